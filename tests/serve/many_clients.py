"""Many clients at once: whole answers, streams, slow readers, and clients that go away in the middle.

    export PYTHONPATH=tests/tasks
    python tests/serve/many_clients.py --clients 64 --requests 40       every answer is that of `m.generate`
    python tests/serve/many_clients.py --clients 16 --seconds 600       a soak: memory stays flat, all pages come back

The server is a process of its own (`qkv serve`), whose resident memory is printed while it runs.
"""

import argparse
import asyncio
import collections
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

import qkv

NUM_JOBS = 64
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "and",
    "runs",
    "in",
    "Paris",
    "with",
    "Anna",
]


@dataclass(frozen=True)
class Job:
    """A request, and the text that `m.generate` returns for it."""

    body: dict[str, Any]
    text: str


def make_jobs(model: qkv.Model, count: int = NUM_JOBS, max_tokens: int = 96, seed: int = 0) -> list[Job]:
    """Requests of mixed lengths, greedy or sampled. Some begin alike, so that they share pages."""
    numbers, jobs = random.Random(seed), []
    for i in range(count):
        prompt = " ".join(WORDS[: numbers.randint(1, 6)] + numbers.choices(WORDS, k=numbers.randint(0, 6)))
        options: dict[str, Any] = {"max_tokens": numbers.randint(1, max_tokens), "temperature": 0.0}
        if i % 3 == 0:
            options |= {"temperature": 0.8, "top_p": 0.95, "seed": i}
        jobs.append(Job({"prompt": prompt, **options}, model.generate(prompt, **options).text))
    return jobs


async def ask_whole(client: httpx.AsyncClient, job: Job) -> str:
    """One answer in one piece."""
    response = await client.post("/v1/completions", json=job.body)
    if response.status_code == 429:
        return "busy"
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["text"] == job.text, (job, response.text)
    return "whole"


async def ask_stream(client: httpx.AsyncClient, job: Job, numbers: random.Random) -> str:
    """A stream that is read fast, slowly, or not to its end."""
    kind = numbers.choice(["stream", "stream", "slow", "cancelled"])
    text, num_chunks, last = "", 0, numbers.randint(1, 20)
    async with client.stream("POST", "/v1/completions", json={**job.body, "stream": True}) as response:
        if response.status_code == 429:
            return "busy"
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            text += event["choices"][0]["text"]
            num_chunks += 1
            if kind == "slow":
                await asyncio.sleep(numbers.random() * 0.02)
            if kind == "cancelled" and num_chunks == last:
                assert job.text.startswith(text)
                return kind
    assert text == job.text, (job, text)
    return kind


async def run_clients(
    url: str, jobs: list[Job], num_clients: int, *, num_requests: int = 2**62, seconds: float = 2**30, seed: int = 0
) -> "collections.Counter[str]":
    """Let clients ask until each has asked `num_requests` times, or time is up. Returns what they did."""
    counts: collections.Counter[str] = collections.Counter()
    deadline = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=num_clients)

    async def run_client(client: httpx.AsyncClient, number: int) -> None:
        numbers, asked = random.Random(f"{seed} {number}"), 0
        while asked < num_requests and time.monotonic() < deadline:
            job = numbers.choice(jobs)
            stream = numbers.random() < 0.7
            counts[await (ask_stream(client, job, numbers) if stream else ask_whole(client, job))] += 1
            asked += 1

    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        await asyncio.gather(*(run_client(client, number) for number in range(num_clients)))
    return counts


def resident_mib(process_id: int) -> int:
    """The resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process_id}/status").read_text())
    return int(found[1]) // 1024 if found else 0


def read_gauge(metrics: str, name: str) -> float:
    """A value of the metrics page."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", metrics, re.MULTILINE)
    assert found, name
    return float(found[1])


async def watch_memory(process_id: int, seconds: float) -> list[int]:
    """Print and return the memory of the server, about 20 times."""
    found: list[int] = []
    while True:
        found.append(resident_mib(process_id))
        print(f"{time.strftime('%H:%M:%S')} server: {found[-1]} MiB resident", flush=True)
        await asyncio.sleep(max(2.0, seconds / 20))
        if len(found) > 10_000:
            return found


async def run(url: str, process_id: int, jobs: list[Job], arguments: argparse.Namespace) -> None:
    """Run the clients beside the watch, and check the server afterwards."""
    watch = asyncio.ensure_future(watch_memory(process_id, arguments.seconds or 60))
    began = time.perf_counter()
    limit = {"seconds": arguments.seconds} if arguments.seconds else {"num_requests": arguments.requests}
    counts = await run_clients(url, jobs, arguments.clients, **limit)
    watch.cancel()
    await asyncio.sleep(1)
    metrics = httpx.get(f"{url}/metrics").text
    assert read_gauge(metrics, 'qkv_pages{model="model",state="in use"}') == 0, "pages are missing"
    assert read_gauge(metrics, 'qkv_unfinished{model="model",of="generations"}') == 0
    tokens = read_gauge(metrics, 'qkv_generated_tokens_total{model="model"}')
    print(f"{sum(counts.values()):,} requests, {tokens:,.0f} tokens in {time.perf_counter() - began:.0f} s")
    print(f"{dict(counts)}; all pages are free; {resident_mib(process_id)} MiB resident")


def main() -> None:
    """Start a server and clients."""
    from task_models import decoder

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=40, help="of each client")
    parser.add_argument("--seconds", type=float, default=0, help="instead of a number of requests")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        decoder(max_positions=256).save(Path(folder) / "model")
        jobs = make_jobs(qkv.load(Path(folder) / "model"))
        command = [sys.executable, "-m", "qkv", "serve", f"model={folder}/model", "--port", "0", "--json"]
        with subprocess.Popen(
            [*command, "--log-file", f"{folder}/log"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            assert server.stdout is not None
            url = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")["url"]
            try:
                asyncio.run(run(url, server.pid, jobs, arguments))
            finally:
                server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=60) == 0


if __name__ == "__main__":
    main()
