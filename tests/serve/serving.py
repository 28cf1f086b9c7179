"""Servers for tests: an app in this process, or uvicorn in a thread with a real socket."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.testclient import TestClient

import qkv
from qkv.serve.app import make_app
from qkv.serve.server import make_config
from qkv.serve.settings import ServeSettings


def settings(**changes: Any) -> ServeSettings:
    """Settings whose log is nowhere."""
    return ServeSettings(**{"log_file": Path("/dev/null"), "max_sequences": 8, **changes})


@contextlib.contextmanager
def client(models: Mapping[str, str | qkv.Model], **changes: Any) -> Iterator[TestClient]:
    """A client of an app in this process."""
    with TestClient(make_app(models, settings(**changes)), base_url="http://localhost") as opened:
        yield opened


@contextlib.contextmanager
def served(
    models: Mapping[str, str | qkv.Model], *, send_buffer: int = 0, **changes: Any
) -> Iterator[tuple[str, Starlette]]:
    """A server with a real socket. Yields its address and its app. `send_buffer` limits what the system buffers."""
    app = make_app(models, settings(**changes))
    server = uvicorn.Server(make_config(app, app.state.server.settings, "127.0.0.1", 0))
    listener = socket.create_server(("127.0.0.1", 0))
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    wait_until(lambda: httpx.get(f"{address}/readyz").status_code == 200)
    try:
        yield address, app
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


def wait_until(is_true: Any, seconds: float = 20.0) -> None:
    """Wait for a condition, or fail."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.005)
