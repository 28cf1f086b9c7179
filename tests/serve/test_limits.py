"""Limits are named in errors, queues are bounded, keys are needed where they are set, and a server drains."""

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from serving import client, wait_until
from starlette.testclient import TestClient
from task_models import decoder

from qkv.errors import QkvError, UsageError
from qkv.serve.http.keys import ApiKeys, add_key, hash_key
from qkv.serve.http.request_log import RedactingHandler, RequestLog
from qkv.serve.running.engine_thread import EngineThread
from qkv.serve.running.memory import MemoryGuard

BODY: dict[str, Any] = {"prompt": "the fox", "max_tokens": 4, "temperature": 0}


def message(response: Any, status: int) -> str:
    assert response.status_code == status, response.text
    return str(response.json()["error"]["message"])


def test_a_body_has_a_type_a_size_and_a_form() -> None:
    with client({"a": decoder()}, max_body_bytes=100, max_texts=1) as http:
        assert "Content-Type" in message(http.post("/v1/completions", content=b"{}"), 415)
        large = http.post("/v1/completions", json={"prompt": "a" * 100})
        assert "max_body_bytes = 100" in message(large, 413)
        broken = http.post("/score", content=b'{"prompts"', headers={"Content-Type": "application/json"})
        assert "not JSON" in message(broken, 400)
        many = http.post("/score", json={"prompts": ["a", "b"], "targets": ["a", "b"]})
        assert "max_texts = 1" in message(many, 400)
        assert http.get("/score").status_code == 405
        assert http.post("/v1/completions", json=BODY).status_code == 200


def test_a_request_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = decoder(max_positions=128)
    with client({"a": slow}, request_seconds=0.3) as http:
        thread: EngineThread = http.app.state.server.pool.find("a").engine  # type: ignore[attr-defined]
        step = thread.engine.step

        def slow_step() -> bool:
            time.sleep(0.05)
            return step()

        monkeypatch.setattr(thread.engine, "step", slow_step)
        long = {**BODY, "max_tokens": 100, "logit_bias": {str(i): -100 for i in slow.config.eos_token_ids}}
        assert "request_seconds = 0.3" in message(http.post("/v1/completions", json=long), 504)
        streamed = http.post("/v1/completions", json={**long, "stream": True}).text
        assert "request_seconds = 0.3" in streamed
        assert "[DONE]" not in streamed
        deadline = time.monotonic() + 5
        while thread.engine.page_pool.num_available < thread.engine.page_pool.num_pages:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert thread.num_unfinished == 0


def test_a_full_queue_is_a_429() -> None:
    with client({"a": decoder()}, max_queue=2) as http:
        full = http.post("/v1/completions", json={**BODY, "n": 3})
        assert "max_queue = 2" in message(full, 429)
        assert full.headers["retry-after"] == "1"
        assert http.post("/v1/completions", json={**BODY, "n": 2}).status_code == 200


def test_short_memory_and_draining_are_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    with client({"a": decoder()}) as http:
        server = http.app.state.server  # type: ignore[attr-defined]
        monkeypatch.setattr(MemoryGuard, "free_bytes", lambda *_, **__: 2**20)
        short = http.post("/v1/completions", json=BODY)
        assert "min_free_mib = 256" in message(short, 503)
        assert short.headers["retry-after"] == "5"
        assert http.get("/readyz").status_code == 503
        monkeypatch.undo()
        server.is_draining = True
        assert "stopping" in message(http.post("/v1/completions", json=BODY), 503)
        assert http.get("/healthz").json()["status"] == "draining"


def test_a_model_that_does_not_fit_is_not_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    decoder().save(tmp_path / "model")
    with client({"a": str(tmp_path / "model")}, min_free_mib=2**40) as http:
        wait_until(lambda: "model a cannot be loaded" in caplog.text)  # the server tries by itself when it starts
        assert "drop another model" in message(http.post("/models/a/load"), 400)
        assert "not loaded" in message(http.get("/readyz"), 503) or "no model" in http.get("/readyz").text


def test_keys_are_hashed_and_needed(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    key = add_key(path, "laptop")
    add_key(path, "phone")
    assert key not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    with client({"a": decoder()}, keys=path) as http:
        for headers in ({}, {"Authorization": "Bearer qkv-wrong"}, {"Authorization": f"Basic {key}"}):
            refused = http.post("/v1/completions", json=BODY, headers=headers)
            assert "API key" in message(refused, 401)
        assert http.get("/metrics").status_code == 401
        assert http.get("/unknown").status_code == 401
        assert http.get("/healthz").status_code == 200
        allowed = http.post("/v1/completions", json=BODY, headers={"Authorization": f"Bearer {key}"})
        assert allowed.status_code == 200
    with pytest.raises(UsageError, match="has a key 'phone' already"):
        add_key(path, "phone")
    with pytest.raises(UsageError, match="the name of a key"):
        add_key(path, "a b")
    path.write_text("laptop 1234\n")
    with pytest.raises(QkvError, match="line 1: expected NAME and a SHA-256 hash"):
        ApiKeys.read(path)
    assert ApiKeys({"a": hash_key("x")}).find_name("x") == "a"
    assert ApiKeys({"a": hash_key("x")}).find_name("y") is None


def logged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("log_texts", [False, True])
def test_logs_have_ids_and_numbers_but_no_texts(tmp_path: Path, log_texts: bool) -> None:
    path = tmp_path / "log.jsonl"
    with client({"a": decoder()}, log_file=path, log_texts=log_texts) as http:
        answer = http.post("/v1/completions", json=BODY, headers={"X-Request-ID": "abc-1"})
        assert answer.headers["x-request-id"] == "abc-1"
        forged = http.get("/healthz", headers={"X-Request-ID": 'a"\\n{}'})
        assert forged.headers["x-request-id"].isalnum()
    line = next(one for one in logged(path) if one.get("request_id") == "abc-1")
    assert line["status"] == 200
    assert line["model"] == "a"
    assert line["prompt_tokens"] == 7
    assert line["generated_tokens"] == 4
    assert ("the fox" in path.read_text()) == log_texts
    assert path.stat().st_mode & 0o777 == 0o600


def test_messages_of_a_model_are_logged_without_their_texts(tmp_path: Path) -> None:
    for log_texts in (False, True):
        log = RequestLog(path := tmp_path / f"{log_texts}.jsonl")
        logger = logging.getLogger("qkv.a-test")
        logger.addHandler(RedactingHandler(log, log_texts))
        logger.propagate = False
        logger.warning("the text %r is too long", "my secret")
        log.close()
        logger.handlers.clear()
        assert logged(path)[0]["level"] == "warning"
        assert ("my secret" in path.read_text()) == log_texts


def test_a_dropped_model_finishes_its_requests() -> None:
    with client({"a": decoder(max_positions=128), "b": decoder()}) as http:
        server = http.app.state.server  # type: ignore[attr-defined]

        async def drop_while_running() -> tuple[int, str]:
            served = server.pool.find("a")
            with served.in_use():
                dropping = asyncio.ensure_future(server.pool.drop("a"))
                await asyncio.sleep(0.05)
                state = server.pool.state("a")
                assert not dropping.done()
            await dropping
            return served.num_users, state

        assert asyncio.run(drop_while_running()) == (0, "dropped")
        assert "POST /models/a/load" in message(http.post("/v1/completions", json={**BODY, "model": "a"}), 503)
        assert http.post("/v1/completions", json={**BODY, "model": "b"}).status_code == 200


def test_the_test_client_is_refused_under_another_name() -> None:
    with client({"a": decoder()}, allowed_hosts=("example.org",)) as http:
        assert http.get("/healthz").status_code == 403
        assert TestClient(http.app, base_url="http://example.org:8000").get("/healthz").status_code == 200
