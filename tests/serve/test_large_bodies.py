"""Legal bodies of a megabyte: the server answers other requests meanwhile, and checks counts before it converts."""

import gc
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from qkv.serve.server import prepare_interpreter

MAX_WAIT = 0.5
"""How long /healthz may take, in seconds: 0.1 on an idle machine."""
COMPLETION = {"model": "text", "max_tokens": 1}
LARGE: dict[str, tuple[str, dict[str, Any], str]] = {
    "prompts": ("/v1/completions", COMPLETION | {"prompt": ["a"] * 200_000}, "max_choices"),
    "ids": ("/v1/completions", COMPLETION | {"prompt": [5] * 500_000}, "positions"),
    "prompts of ids": ("/v1/completions", COMPLETION | {"prompt": [[5]] * 200_000}, "max_choices"),
    "long prompts": ("/v1/completions", COMPLETION | {"prompt": ["the fox " * 230] * 120, "n": 1}, "tokens"),
    "stops": ("/v1/completions", COMPLETION | {"prompt": "a", "stop": ["ab"] * 150_000}, "at most 16 items"),
    "biases": (
        "/v1/completions",
        COMPLETION | {"prompt": "a", "logit_bias": {str(i): 1 for i in range(90_000)}},
        "at most 1,024 items",
    ),
    "unknown values": (
        "/v1/completions",
        COMPLETION
        | {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": {"x": [[]] * 300_000}}}},
        "",
    ),
    "messages": (
        "/v1/chat/completions",
        {"model": "chat", "messages": [{"role": "user", "content": "a"}] * 25_000},
        "at most 4,096 items",
    ),
    "parts": (
        "/v1/chat/completions",
        {"model": "chat", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 28_000}]},
        "28,019 tokens",
    ),
    "texts": ("/translate", {"model": "pairs", "texts": ["a"] * 200_000}, "max_texts"),
    "words": ("/tag", {"model": "tags", "texts": [["a"]] * 150_000}, "max_texts"),
    "inputs": ("/v1/embeddings", {"model": "classes", "input": ["a"] * 200_000}, "max_texts"),
    "a traced text": ("/trace", {"model": "text", "text": [5] * 500_000}, "positions"),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _interpreter() -> Iterator[None]:
    before = sys.getswitchinterval()
    prepare_interpreter()
    yield
    sys.setswitchinterval(before)
    gc.unfreeze()


@pytest.mark.parametrize("name", LARGE)
def test_other_requests_are_answered_while_a_large_body_is_read(running: Any, name: str) -> None:
    path, body, message = LARGE[name]
    content = json.dumps(body, separators=(",", ":")).encode()
    assert len(content) <= 2**20
    answers: list[httpx.Response] = []

    def send() -> None:
        headers = {"Content-Type": "application/json"}
        answers.append(httpx.post(running.url + path, content=content, headers=headers, timeout=60))

    httpx.get(f"{running.url}/healthz")
    thread = threading.Thread(target=send)
    thread.start()
    waits = []
    with httpx.Client() as client:
        while thread.is_alive():
            began = time.monotonic()
            assert client.get(f"{running.url}/healthz", timeout=60).status_code == 200
            waits.append(time.monotonic() - began)
            time.sleep(0.005)
    thread.join()
    assert answers[0].status_code == (400 if message else 200)
    assert message in answers[0].text[:500]
    assert max(waits, default=0) < MAX_WAIT
