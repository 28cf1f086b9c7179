"""In bfloat16, the answers of many clients are those of `m.generate`, up to ties.

    PYTHONPATH=tests/tasks python tests/serve/bfloat16_ties.py

Sums in another order round differently, and a batch has another order than a request alone. So two tokens that are
about equally probable may change places. Where an answer differs first, its token must be as probable as that of
`m.generate`, up to `MARGIN`.
"""

import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx
import torch
from many_clients import WORDS
from task_models import decoder

import qkv

MARGIN = 2 / 32  # nats: a logit between 4 and 8 is a multiple of 1/32 in bfloat16, and each of two may be rounded
NUM_REQUESTS = 192
NUM_CLIENTS = 64


def tie_gap(model: qkv.Model, expected: Any, choice: dict[str, Any]) -> float:
    """The difference of the log-probabilities of the first tokens that differ; 0 if the answers are equal."""
    if choice["text"] == expected.text:
        return 0.0
    assert model.tokenizer is not None
    ours = [model.tokenizer.decode(expected.ids[: end + 1]) for end in range(len(expected.ids))]
    theirs = list(accumulate(choice["logprobs"]["tokens"]))
    first = next(i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1])
    return abs(float(expected.logprobs[first].logprob) - float(choice["logprobs"]["token_logprobs"][first]))


async def complete_all(url: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers to all requests, which are sent at once."""
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=NUM_CLIENTS)) as client:
        responses = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
    return [response.raise_for_status().json()["choices"][0] for response in responses]


def main() -> None:
    """Compare the server with `m.generate`, both in bfloat16."""
    numbers = random.Random(0)
    prompts = [" ".join(numbers.choices(WORDS, k=numbers.randint(1, 12))) for _ in range(NUM_REQUESTS)]
    options = [{"max_tokens": numbers.randint(8, 96), "temperature": 0.0} for _ in prompts]
    with tempfile.TemporaryDirectory() as folder:
        decoder(max_positions=256).save(Path(folder) / "model")
        model = qkv.load(Path(folder) / "model", dtype=torch.bfloat16)
        expected = [model.generate(prompt, **one) for prompt, one in zip(prompts, options, strict=True)]
        command = [sys.executable, "-m", "qkv", "serve", f"model={folder}/model", "--dtype", "bfloat16", "--port", "0"]
        with subprocess.Popen(
            [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as server:
            assert server.stdout is not None
            url = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")["url"]
            try:
                bodies = [{"prompt": p, "logprobs": 1, **one} for p, one in zip(prompts, options, strict=True)]
                choices = asyncio.run(complete_all(url, bodies))
            finally:
                server.send_signal(signal.SIGTERM)
    gaps = [tie_gap(model, *pair) for pair in zip(expected, choices, strict=True)]
    num_equal = sum(choice["text"] == one.text for one, choice in zip(expected, choices, strict=True))
    print(
        f"{num_equal} of {len(gaps)} answers are equal; where the others differ first, by {max(gaps):.4f} nats at most"
    )
    assert max(gaps) < MARGIN


if __name__ == "__main__":
    main()
