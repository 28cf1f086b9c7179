"""`qkv serve` under load, compared with the engine without HTTP and with `transformers serve`, in one run.

    python bench/serve.py --out serve.json            GPT-2 124M with random weights; a GPU if there is one
    python bench/serve.py --tiny --clients 1 4        a tiny model anywhere, to check that it runs

Each client sends one request after the other and reads its stream. "tokens/s" is the rate of all clients together;
"first" is the time to the first token and "between" the time between two chunks of text, in milliseconds. "of engine"
compares with the engine in a process without HTTP, which runs one request per client at any time. All servers get the
same requests: greedy, of one length, with prompts that have no common prefix. The clients are in a process of their
own. `transformers serve` needs transformers[serving]; where it cannot run, its rows say why.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
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
from decode_peers import DEVICE, HALF
from qkv.decode import Engine, GenerationOptions, Request
from qkv.models.tables import presets

VOCAB = 50_257
PROMPT_CHARS = 96
PORTS = count(18_400)
NUMBERS = count(1)
START_SECONDS = 300


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


def write_model(folder: Path, tiny: bool) -> None:
    """GPT-2 with random weights, as a folder of qkv and as one of transformers. No token ends a text."""
    size = {"n_embd": 64, "n_layer": 2, "n_head": 2} if tiny else {}
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
        if line.startswith(b"data: {") and b'"text":""' not in line and b'"text": ""' not in line:
            now = time.perf_counter()
            (times.first if is_first else times.between).append(now - last)
            last, is_first = now, False
    times.tokens += max_tokens
    writer.close()


async def load_server(port: int, model: str, clients: int, requests: int, max_tokens: int) -> Times:
    """Let clients send `requests` requests each, after one that warms up."""
    await asyncio.gather(*(ask(port, model, max_tokens, Times()) for _ in range(clients)))
    times, began = Times(), time.perf_counter()

    async def run_client() -> None:
        for _ in range(requests):
            await ask(port, model, max_tokens, times)

    await asyncio.gather(*(run_client() for _ in range(clients)))
    times.seconds = time.perf_counter() - began
    return times


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
def run_server(command: list[str], port: int, health: str) -> Iterator[None]:
    """A server in a process, from when it answers."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        try:
            deadline = time.monotonic() + START_SECONDS
            while True:
                with suppress(OSError):
                    if urlopen(f"http://127.0.0.1:{port}{health}", timeout=5).status == 200:
                        break
                if process.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    raise RuntimeError(output.read()[-300:])
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait(timeout=60)


def servers(folder: Path, is_peer_run: bool) -> Iterator[tuple[str, list[str], int, str, str]]:
    """The name, the command, the port, the path of health and the name of the model of each server."""
    port = next(PORTS)
    serve = [sys.executable, "-m", "qkv", "serve", f"gpt2={folder / 'qkv'}", "--device", DEVICE]
    log = ["--log-file", str(folder / "log.jsonl")]
    yield "qkv serve", [*serve, "--port", str(port), *log], port, "/readyz", "gpt2"
    program = shutil.which("transformers") or str(Path(sys.executable).with_name("transformers"))
    for name, more in (("transformers serve", []), ("transformers serve, batching", ["--continuous-batching"])):
        if is_peer_run:
            port = next(PORTS)
            model = str(folder / "hf")
            command = [program, "serve", model, "--port", str(port), "--host", "127.0.0.1", "--device", DEVICE, *more]
            yield name, command, port, "/health", model


def measure(folder: Path, arguments: argparse.Namespace) -> list[Row]:
    """All rows."""
    rows: list[Row] = []
    work = (arguments.requests, arguments.tokens)
    rates: dict[int, float] = {}
    for clients in arguments.clients:
        row = load_engine(folder, clients, *work).to_row("engine without HTTP", clients)
        rates[clients] = row["tokens/s"]
        rows.append({**row, "of engine": 1.0})
    for name, command, port, health, model in servers(folder, not arguments.alone):
        try:
            with run_server(command, port, health):
                for clients in arguments.clients:
                    row = asyncio.run(load_server(port, model, clients, *work)).to_row(name, clients)
                    rows.append({**row, "of engine": row["tokens/s"] / rates[clients]})
        except (RuntimeError, OSError, ValueError) as error:
            rows.append({"server": name, "clients": f"did not run: {' '.join(str(error).split())[-200:]}"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few tokens, to check that it runs")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--requests", type=int, default=0, help="of each client (default: 3; with --tiny 2)")
    parser.add_argument("--tokens", type=int, default=0, help="of each answer (default: 64 on a CPU, 224 on a GPU)")
    parser.add_argument("--alone", action="store_true", help="without transformers serve")
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    arguments = parser.parse_args()
    arguments.requests = arguments.requests or (2 if arguments.tiny else 3)
    arguments.tokens = arguments.tokens or (12 if arguments.tiny else 224 if DEVICE == "cuda" else 64)
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else f"a CPU with {torch.get_num_threads()} threads"
    CONSOLE.print(f"torch {torch.__version__} on {name}; {arguments.requests} requests of {arguments.tokens} tokens")
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), arguments.tiny)
        rows = measure(Path(folder), arguments)
    show("serving", rows)
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
