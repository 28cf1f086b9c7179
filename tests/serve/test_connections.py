"""Clients that send their headers slowly, open many connections, or do not read answers: they lose their connection."""

import json
import socket
import time
from typing import Any

import httpx
import pytest
from serving import served, wait_until
from task_models import decoder

import qkv

NUM_CLIENTS = 8
MAX_UNSENT = 2_000_000


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    return decoder(max_positions=128)


def connect(url: str, *, receive_buffer: int = 0) -> socket.socket:
    address = httpx.URL(url)
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(10)
    connection.connect((address.host, address.port))
    return connection


def post(path: str, body: dict[str, Any]) -> tuple[bytes, bytes]:
    """The headers and the body of a request."""
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""]).encode(), content


def receive(connection: socket.socket, end: bytes) -> bytes:
    """Read an answer up to its last bytes."""
    answer = b""
    while not answer.endswith(end):
        part = connection.recv(10_000)
        assert part, answer
        answer += part
    return answer


def drip(connection: socket.socket) -> bytes:
    """Send a byte of a header again and again until the server closes the connection. Returns its answer."""
    answer, deadline = b"", time.monotonic() + 10
    connection.settimeout(0.02)
    while time.monotonic() < deadline:
        try:
            connection.sendall(b"x")
            part = connection.recv(10_000)
        except TimeoutError:
            continue
        except OSError:
            return answer
        if not part:
            return answer
        answer += part
    pytest.fail("the server has kept the connection")


def test_headers_have_a_deadline(model: qkv.Model) -> None:
    with served({"a": model}, header_seconds=0.3) as (url, _):
        connection = connect(url)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert drip(connection).startswith(b"HTTP/1.1 408 Request Timeout")


def test_the_headers_of_a_later_request_have_a_deadline(model: qkv.Model) -> None:
    with served({"a": model}, header_seconds=0.3) as (url, _):
        connection = connect(url)
        for _ in range(3):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in receive(connection, b"}")
            time.sleep(0.15)
        time.sleep(0.4)  # an idle connection is not closed
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert b"408" in drip(connection)


def test_a_slow_body_is_not_a_slow_header(model: qkv.Model) -> None:
    with served({"a": model}, header_seconds=0.2, body_seconds=5) as (url, _):
        connection = connect(url)
        headers, body = post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        connection.sendall(headers)
        time.sleep(0.5)
        connection.sendall(body)
        assert b"200 OK" in receive(connection, b"}")


def test_one_address_cannot_take_all_connections(model: qkv.Model) -> None:
    with served({"a": model}, max_connections_per_address=NUM_CLIENTS) as (url, _):
        opened = [connect(url) for _ in range(NUM_CLIENTS)]
        wait_until(lambda: refuses(url))
        opened.pop().close()
        wait_until(lambda: not refuses(url))
        for connection in opened:
            connection.close()


def refuses(url: str) -> bool:
    connection = connect(url)
    try:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return b" 429 " in connection.recv(10_000)
    except OSError:
        return True
    finally:
        connection.close()


def test_answers_that_nobody_reads_are_bounded_and_dropped(model: qkv.Model) -> None:
    body: dict[str, Any] = {"text": [5] * 120, "sites": ["decoder.*.pattern", "decoder.*.scores"]}
    with served({"a": model}, send_buffer=4096, write_seconds=1, max_unsent_bytes=MAX_UNSENT) as (url, app):
        size = len(httpx.post(f"{url}/trace", json=body).content)
        assert 2 * size < MAX_UNSENT < NUM_CLIENTS * size
        server = app.state.server
        connections = [connect(url, receive_buffer=4096) for _ in range(NUM_CLIENTS)]
        for connection in connections:
            connection.sendall(b"".join(post("/trace", body)))
        wait_until(lambda: server.unsent_bytes >= 2 * size)
        wait_until(lambda: "max_unsent_bytes" in httpx.post(f"{url}/trace", json=body).text)
        assert server.unsent_bytes <= MAX_UNSENT
        wait_until(lambda: not server.unsent_bytes and not server.num_running)  # the unread connections are closed
        assert len(httpx.post(f"{url}/trace", json=body).content) == size
        for connection in connections:
            connection.close()
