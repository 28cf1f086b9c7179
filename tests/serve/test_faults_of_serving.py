"""Faults: a forward pass or a step raises, memory runs out, the disk of the log is full, clients vanish or stall."""

import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from serving import served, wait_until
from task_models import decoder

import qkv

LENGTH = 24


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    made = decoder(max_positions=512)
    made.network.eval()
    return made


def ask(url: str, prompt: str, **options: Any) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": LENGTH, "temperature": 0, **options}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60)


def ask_all(url: str, prompts: list[str]) -> list[httpx.Response]:
    with ThreadPoolExecutor(len(prompts)) as threads:
        return list(threads.map(lambda prompt: ask(url, prompt), prompts))


def check_pages(app: Any) -> None:
    """All pages come back, and nothing is left in the queue."""
    thread = app.state.server.pool.find(None).engine
    wait_until(lambda: thread.engine.page_pool.num_available == thread.engine.page_pool.num_pages)
    wait_until(lambda: thread.num_unfinished == 0)


def fail_once(app: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, where: str) -> None:
    """The fifth forward pass, or the fifth step, raises an error."""
    engine = app.state.server.pool.find(None).engine.engine
    owner, name = (engine, "step") if where == "step" else (engine, "_model")
    original, count = getattr(owner, name), 0

    class Failing:
        def __call__(self, *arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == 5:
                raise error
            return original(*arguments)

        def __getattr__(self, other: str) -> Any:
            return getattr(original, other)

    monkeypatch.setattr(owner, name, Failing())


PROMPTS = ["the fox", "a dog", "in Paris with Anna", "runs"]


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (RuntimeError("a bug"), "pass"),
        (torch.OutOfMemoryError("CUDA out of memory"), "pass"),
        (RuntimeError("a bug"), "step"),
    ],
)
def test_requests_finish_after_a_fault(
    model: qkv.Model, monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
) -> None:
    with served({"a": model}) as (url, app):
        fail_once(app, monkeypatch, error, where)
        answers = ask_all(url, PROMPTS)
        assert [one.status_code for one in answers] == [200] * len(PROMPTS)
        texts = [one.json()["choices"][0]["text"] for one in answers]
        assert texts == [model.generate(prompt, max_tokens=LENGTH).text for prompt in PROMPTS]
        assert app.state.server.pool.find(None).engine.num_faults >= 1
        check_pages(app)


def test_an_engine_that_cannot_be_replaced_is_a_503_until_the_model_is_loaded_again(
    model: qkv.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise MemoryError

    with served({"a": model}) as (url, app):
        thread = app.state.server.pool.find(None).engine
        monkeypatch.setattr(thread, "_make_engine", fail)
        fail_once(app, monkeypatch, RuntimeError("a bug"), "step")
        assert 503 in [one.status_code for one in ask_all(url, PROMPTS)]
        assert ask(url, "a").status_code == 503
        assert httpx.get(f"{url}/readyz").status_code == 503
        assert httpx.get(f"{url}/healthz").status_code == 200
        assert httpx.post(f"{url}/models/a/drop").status_code == 200
        assert httpx.post(f"{url}/models/a/load").status_code == 200
        assert ask(url, "a").status_code == 200


def test_the_reason_of_a_fault_fails_alone(model: qkv.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that makes every pass fail gets a 500 (503 if memory runs out); the others finish."""
    assert model.tokenizer is not None
    poison = model.tokenizer.encode("0", add_special_tokens=False)[0]
    with served({"a": model}) as (url, app):
        engine = app.state.server.pool.find(None).engine.engine
        run = engine._model

        class Poisoned:
            def __call__(self, batch: Any, version: int) -> Any:
                if any(request.tokens[0] == poison for request in batch.requests):
                    raise RuntimeError("this request breaks the model")
                return run(batch, version)

            def __getattr__(self, name: str) -> Any:
                return getattr(run, name)

        monkeypatch.setattr(engine, "_model", Poisoned())
        answers = ask_all(url, [*PROMPTS, "0 is bad"])
        assert [one.status_code for one in answers] == [200] * len(PROMPTS) + [500]
        assert "breaks the model" not in answers[-1].text
        check_pages(app)


def test_a_full_disk_does_not_stop_the_server(model: qkv.Model) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with served({"a": model}, log_file=Path("/dev/full")) as (url, app):
        assert [ask(url, "a").status_code for _ in range(3)] == [200] * 3
        wait_until(lambda: app.state.server.log.num_dropped >= 3)


def open_socket(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def send(connection: socket.socket, body: dict[str, Any], *, length: int | None = None) -> None:
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {length or len(data)}\r\n\r\n".encode() + data)


def test_half_a_body_times_out_and_others_finish(model: qkv.Model) -> None:
    with served({"a": model}, body_seconds=0.3) as (url, app):
        connection = open_socket(url)
        send(connection, {"prompt": "a"}, length=1000)
        assert ask(url, "a").status_code == 200
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")
        vanished = open_socket(url)
        send(vanished, {"prompt": "a"}, length=1000)
        vanished.close()
        wait_until(lambda: app.state.server.num_running == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place(
    model: qkv.Model, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    with served({"a": model}) as (url, app):
        thread = app.state.server.pool.find(None).engine
        slow_down(monkeypatch, thread.engine)
        no_end = {str(token): -100 for token in model.config.eos_token_ids}
        connection = open_socket(url)
        send(connection, {"prompt": "a", "max_tokens": 400, "stream": stream, "logit_bias": no_end})
        wait_until(lambda: thread.num_unfinished == 1 and thread.engine.stats.generated_tokens > 3)
        connection.close()
        check_pages(app)
        assert thread.engine.stats.generated_tokens < 300
        wait_until(lambda: app.state.server.num_running == 0)
        counted = re.search(r'qkv_generated_tokens_total{model="a"} (\d+)', httpx.get(f"{url}/metrics").text)
        assert counted is not None
        assert int(counted[1]) > 3


def slow_down(monkeypatch: pytest.MonkeyPatch, engine: Any) -> None:
    step, pause = engine.step, threading.Event()

    def slow_step() -> Any:
        pause.wait(0.005)
        return step()

    monkeypatch.setattr(engine, "step", slow_step)


def test_a_slow_reader_delays_nobody(model: qkv.Model) -> None:
    with served({"a": model}, send_buffer=4096) as (url, app):
        connection = open_socket(url)
        no_end = {str(token): -100 for token in model.config.eos_token_ids}
        body = {"prompt": "a", "max_tokens": 300, "stream": True, "n": 8, "logprobs": 20, "logit_bias": no_end}
        send(connection, body)
        wait_until(lambda: app.state.server.pool.find(None).engine.num_unfinished == 8)
        assert ask(url, "the fox").json()["choices"][0]["text"] == model.generate("the fox", max_tokens=LENGTH).text
        check_pages(app)  # the engine has finished all texts, although nobody has read them
        wait_until(lambda: app.state.server.num_running == 1)  # a request ends a moment after its answer is read
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        connection.close()
        wait_until(lambda: app.state.server.num_running == 0)
