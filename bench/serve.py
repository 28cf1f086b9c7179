"""`qkv serve` under load, compared with the engine without HTTP and with `transformers serve`, in one run.

    python bench/serve.py --out serve.json            GPT-2 124M with random weights; a GPU if there is one
    python bench/serve.py --tiny --clients 1 4        a tiny model anywhere, to check that it runs
    CUDA_VISIBLE_DEVICES= taskset -c 0,1 python bench/serve.py --client-cores 2 3
                                                      on two cores of a larger machine, with the clients on two others

Each client sends one request after the other and reads its stream. "tokens/s" is the rate of all clients together;
"first" is the time to the first token and "between" the time between two chunks of text, in milliseconds. "of engine"
compares with the engine in a process without HTTP, which runs one request per client at any time. All servers get the
same requests: greedy, of one length, with prompts that have no common prefix. The clients are in a process of their
own. `transformers serve` needs transformers[serving]; where it cannot run, its rows say why. Without
`--continuous-batching` it runs one request after the other, so one request warms it up. After `--max-seconds` no client
starts a new request, so that a slow server has fewer requests per client; those that run are finished and counted.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import qkv
from decode import CONSOLE, Row, show
from decode_peers import DEVICE, HALF, free
from qkv.decode import Engine, GenerationOptions, Request
from qkv.models.tables import presets

VOCAB = 50_257
PROMPT_CHARS = 96
PORTS = count(18_400)
NUMBERS = count(1)
START_SECONDS = 120
ANSWER_SECONDS = 240
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"n_embd": 64, "n_layer": 2, "n_head": 2},
    "small": {"n_embd": 512, "n_layer": 8, "n_head": 8},
    "gpt2": {},
}


@dataclass(frozen=True)
class Server:
    """A server's name in the table, its command, and where and as what it serves the model."""

    name: str
    command: list[str]
    port: int
    health: str
    model: str
    batches: bool = True


@dataclass
class Times:
    """What the clients of one server have seen."""

    tokens: int = 0
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)

    def to_row(self, server: str, clients: int) -> Row:
        row: Row = {"server": server, "clients": clients, "tokens/s": self.tokens / self.seconds}
        for name, values in (("first", self.first), ("between", self.between)):
            row |= {f"{name} p{p}": 1e3 * float(np.percentile(values, p)) for p in (50, 99)}
        return row


# ── The model ────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_tokenizer() -> qkv.Tokenizer:
    """A byte-level BPE tokenizer whose tokens all have a text, so that every new token is visible in a stream."""
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for length in (2, 3, 4):
        for letters in product(ascii_lowercase, repeat=length):
            if len(vocabulary) == VOCAB - 1:
                break
            word = "".join(letters)
            merges.append((word[:-1], word[-1]))
            vocabulary[word] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    return qkv.Tokenizer(backend, {"eos_token": "<|endoftext|>", "model_max_length": 1024})


def write_model(folder: Path, size: dict[str, int]) -> None:
    """GPT-2 with random weights, as a folder of qkv and as one of transformers. No token ends a text."""
    config = replace(presets.find_preset("gpt2", vocab_size=VOCAB, **size), eos_token_ids=())
    model = qkv.new(config, tokenizer=make_tokenizer(), dtype=HALF)
    model.save(folder / "qkv")
    model.export(folder / "hf")


def make_prompt() -> str:
    """A new prompt, which begins like no other."""
    generator = np.random.default_rng(next(NUMBERS))
    return "".join(generator.choice(list(ascii_lowercase + "    "), PROMPT_CHARS))


# ── Clients ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def ask(port: int, model: str, max_tokens: int, times: Times) -> None:
    """One streamed request over a plain socket, because a client library would need more CPU time than the server."""
    prompt: dict[str, Any] = {"model": model, "prompt": make_prompt(), "max_tokens": max_tokens}
    body = json.dumps({**prompt, "temperature": 0, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status!r} {(await reader.read(2000))!r}")
    last, is_first = began, True
    async for line in reader:
        if line.startswith(b'data: {"error"'):
            raise RuntimeError(line.decode())
        if line.startswith(b"data: {") and b'"text":""' not in line and b'"text": ""' not in line:
            now = time.perf_counter()
            (times.first if is_first else times.between).append(now - last)
            last, is_first = now, False
    writer.close()
    if is_first:
        raise RuntimeError("the stream has no text")
    times.tokens += max_tokens


async def load_server(server: Server, clients: int, arguments: argparse.Namespace) -> Times:
    """Let clients send their requests, after those that warm up."""
    ask_server = partial(ask, server.port, server.model, arguments.tokens)
    async with asyncio.timeout(ANSWER_SECONDS):
        await asyncio.gather(*(ask_server(Times()) for _ in range(clients if server.batches else 1)))
        times, began = Times(), time.perf_counter()

        async def run_client() -> None:
            for number in range(arguments.requests):
                if number == 0 or time.perf_counter() - began < arguments.max_seconds:
                    await ask_server(times)

        await asyncio.gather(*(run_client() for _ in range(clients)))
    times.seconds = time.perf_counter() - began
    return times


@contextmanager
def use_cores(cores: list[int]) -> Iterator[None]:
    """Run this thread on other cores, if any are named."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class EngineClients:
    """Clients of an engine in this process: when a request ends, the client's next one is submitted."""

    def __init__(self, engine: Engine, clients: int, requests: int, max_tokens: int) -> None:
        self.engine, self.max_tokens = engine, max_tokens
        self.left, self.times = clients * (requests - 1), Times()
        self.last: dict[Request, float] = {}
        began = time.perf_counter()
        for _ in range(clients):
            self.submit()
        engine.run()
        self.times.seconds = time.perf_counter() - began

    def submit(self) -> None:
        assert self.engine.tokenizer is not None
        prompt = self.engine.tokenizer.encode(make_prompt())
        began = time.perf_counter()
        request = self.engine.submit(prompt, GenerationOptions(max_tokens=self.max_tokens), self.on_change)
        self.last[request] = began

    def on_change(self, request: Request) -> None:
        now = time.perf_counter()
        (self.times.first if len(request.ids) == 1 else self.times.between).append(now - self.last[request])
        self.last[request] = now
        if request.is_finished:
            self.times.tokens += len(request.ids)
            if self.left > 0:
                self.left -= 1
                self.submit()


def load_engine(folder: Path, clients: int, requests: int, max_tokens: int) -> Times:
    """The same work without HTTP, after as many requests as there are clients have warmed up."""
    model = qkv.load(folder / "qkv", device=DEVICE)
    engine = Engine(model.network, model.tokenizer, max_sequences=64, num_pages=64 * 64)
    EngineClients(engine, clients, 1, max_tokens)
    return EngineClients(engine, clients, requests, max_tokens).times


# ── Servers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def run_server(server: Server) -> Iterator[None]:
    """A server in a process, from when it answers."""
    with tempfile.TemporaryFile("w+") as output:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(server.command, stdout=output, stderr=output, env=environment)
        try:
            deadline = time.monotonic() + START_SECONDS
            while True:
                with suppress(OSError):
                    if urlopen(f"http://127.0.0.1:{server.port}{server.health}", timeout=5).status == 200:
                        break
                if process.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    raise RuntimeError(output.read()[-300:])
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def list_servers(folder: Path, is_peer_run: bool) -> Iterator[Server]:
    """All servers that are compared."""
    port = next(PORTS)
    serve = [sys.executable, "-m", "qkv", "serve", f"gpt2={folder / 'qkv'}", "--device", DEVICE]
    log = ["--log-file", str(folder / "log.jsonl")]
    yield Server("qkv serve", [*serve, "--port", str(port), *log], port, "/readyz", "gpt2")
    if is_peer_run:
        peer = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve"]
        model = str(folder / "hf")
        for name, more in (("transformers serve", []), ("transformers serve, batching", ["--continuous-batching"])):
            port = next(PORTS)
            command = [*peer, model, "--port", str(port), "--host", "127.0.0.1", "--device", DEVICE, *more]
            yield Server(name, command, port, "/health", model, batches=bool(more))


def measure(folder: Path, arguments: argparse.Namespace) -> list[Row]:
    """All rows. Each is printed when it is known, because the last servers may be slow."""
    rows: list[Row] = []
    rates: dict[int, float] = {}

    def add(row: Row) -> None:
        rows.append(row)
        CONSOLE.print(json.dumps(row), soft_wrap=True)
        if arguments.out:
            arguments.out.write_text(json.dumps(rows, indent=1))

    for clients in arguments.clients:
        row = load_engine(folder, clients, arguments.requests, arguments.tokens).to_row("engine without HTTP", clients)
        rates[clients] = row["tokens/s"]
        add({**row, "of engine": 1.0})
    free()
    for server in list_servers(folder, not arguments.alone):
        try:
            with run_server(server):
                for clients in arguments.clients:
                    with use_cores(arguments.client_cores):
                        times = asyncio.run(load_server(server, clients, arguments))
                    row = times.to_row(server.name, clients)
                    add({**row, "of engine": row["tokens/s"] / rates[clients]})
        except (RuntimeError, OSError, ValueError) as error:
            add({"server": server.name, "clients": f"did not run: {' '.join(repr(error).split())[-200:]}"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few tokens, to check that it runs")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--size", choices=SIZES, default="gpt2", help="of the model: 124M, 51M or tiny")
    parser.add_argument("--requests", type=int, default=0, help="of each client (default: 3; with --tiny 2)")
    parser.add_argument("--tokens", type=int, default=0, help="of each answer (default: 64 on a CPU, 224 on a GPU)")
    parser.add_argument("--max-seconds", type=float, default=60, help="no client starts a request later")
    parser.add_argument("--client-cores", type=int, nargs="+", default=[], help="cores for the clients alone")
    parser.add_argument("--alone", action="store_true", help="without transformers serve")
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    arguments = parser.parse_args()
    arguments.size = "tiny" if arguments.tiny else arguments.size
    arguments.requests = arguments.requests or (2 if arguments.tiny else 3)
    arguments.tokens = arguments.tokens or (12 if arguments.tiny else 224 if DEVICE == "cuda" else 64)
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else f"a CPU with {torch.get_num_threads()} threads"
    work = f"{arguments.requests} requests of {arguments.tokens} tokens from each client"
    CONSOLE.print(f"torch {torch.__version__} on {name}; {arguments.size}; {work}")
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), SIZES[arguments.size])
        rows = measure(Path(folder), arguments)
    show("serving", rows)


if __name__ == "__main__":
    main()
