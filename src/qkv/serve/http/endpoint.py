"""An endpoint: a path with the types of its request and response. The app and the OpenAPI document are made of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from qkv.serve.http.api_error import ApiError, to_api_error
from qkv.serve.http.form import parse_form
from qkv.serve.http.json_body import decode_json, encode_json
from qkv.serve.settings import ServeSettings
from qkv.serve.state import ServerState
from qkv.values import InvalidValue, read

LARGE_BODY_BYTES = 2**14
"""Larger bodies are converted in a thread, so that other requests need not wait."""
COMMON_STATUSES = (400, 401, 403, 404, 405, 408, 413, 415, 429, 500, 503, 504)


@dataclass(frozen=True)
class Call:
    """A request that an endpoint answers: its parsed body, and the server's state."""

    server: ServerState
    request: Request
    body: Any
    request_id: str
    deadline: float  # in the time of the event loop
    files: Mapping[str, bytes] = field(default_factory=dict)  # of a form


@dataclass(frozen=True)
class Endpoint:
    """A method and a path. `handle` returns a dataclass, which is sent as JSON, or a response."""

    method: str
    path: str
    handle: Callable[[Call], Awaitable[Any]]
    summary: str
    body: type | None = None
    answer: type | None = None  # None: the response is text
    media_type: str = "application/json"
    is_form: bool = False  # whether the body is a form, which may have files
    has_stream: bool = False  # whether the answer is also available as server-sent events
    needs_key: bool = True
    statuses: tuple[int, ...] = COMMON_STATUSES

    def to_route(self) -> Route:
        """The route of Starlette."""

        async def respond(request: Request) -> Response:
            try:
                return await answer_request(self, request)
            except Exception as error:
                return report_error(request, error)

        return Route(self.path, respond, methods=[self.method])


class Disconnected(Exception):
    """The client has closed its connection."""


async def answer_request(endpoint: Endpoint, request: Request) -> Response:
    """Read and check the body, and run the endpoint until it is done, out of time, or without a client."""
    server: ServerState = request.app.state.server
    deadline = asyncio.get_running_loop().time() + server.settings.request_seconds
    body: Any = None
    files: Mapping[str, bytes] = {}
    if endpoint.body is not None:
        if endpoint.is_form:
            body, files = await read_form(endpoint.body, request)
        else:
            body = await read_typed_body(endpoint.body, request)
        server.pool.memory.check_request()
    call = Call(server, request, body, request.state.request_id, deadline, files)
    answer = await run_with_client(endpoint.handle(call), request, server.settings.request_seconds)
    return answer if isinstance(answer, Response) else JsonAnswer(answer)


async def read_typed_body(expected: type, request: Request) -> Any:
    """Read the body of a request and convert it to its type."""
    settings: ServeSettings = request.app.state.server.settings
    content = await read_body(request, settings.max_body_bytes, settings.body_seconds)
    if settings.log_texts:
        request.state.logged_body = content.decode("utf-8", "replace")
    if len(content) > LARGE_BODY_BYTES:
        return await asyncio.to_thread(parse_body, expected, content)
    return parse_body(expected, content)


async def read_form(expected: type, request: Request) -> tuple[Any, dict[str, bytes]]:
    """Read a form: its fields as a value of a type, and its files."""
    settings: ServeSettings = request.app.state.server.settings
    content = await read_body(request, settings.max_body_bytes, settings.body_seconds, "multipart/form-data")
    try:
        values, files = await asyncio.to_thread(parse_form, content, request.headers["content-type"])
        return read(expected, values), files
    except InvalidValue as error:
        raise ApiError(400, str(error), param=error.path or None, code="invalid_value") from None


async def read_body(request: Request, max_bytes: int, seconds: float, media_type: str = "application/json") -> bytes:
    """Read the body of a request, with limits."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != media_type:
        raise ApiError(415, f"the header Content-Type must be {media_type}")
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                content += part
                if len(content) > max_bytes:
                    raise ApiError(413, f"the body is larger than max_body_bytes = {max_bytes:,}; send less at once")
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within body_seconds = {seconds:g}; send it faster") from None
    except ClientDisconnect:
        raise Disconnected from None
    return bytes(content)


def parse_body(expected: type, content: bytes) -> Any:
    """Convert the JSON of a body to its type. The error names the first wrong field."""
    try:
        return read(expected, decode_json(content))
    except InvalidValue as error:
        raise ApiError(400, str(error), param=error.path or None, code="invalid_value") from None


async def run_with_client(work: Awaitable[Any], request: Request, seconds: float) -> Any:
    """Run until the work is done. It is cancelled if the client disconnects, or after a time limit."""
    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({task, watcher}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if watcher.done():
            raise Disconnected
        raise ApiError(504, f"the request took longer than request_seconds = {seconds:g}; ask for less at once")
    finally:
        await cancel_all(task, watcher)


async def wait_for_disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_all(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait for their ends. Their errors are ignored."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def report_error(request: Request, error: Exception) -> Response:
    """The response to an error. An unexpected error is logged with its traceback."""
    server: ServerState = request.app.state.server
    if isinstance(error, Disconnected):
        server.metrics.add("qkv_cancelled_total")
        request.state.is_cancelled = True
        return Response(status_code=499)  # nobody reads it
    api_error = to_api_error(error)
    if api_error.status == 500:
        log_failure(server, request.state.request_id, error)
    return api_error.to_response()


def log_failure(server: ServerState, request_id: str, error: BaseException) -> None:
    """Write an unexpected error to the log, with the places in the code but without values."""
    places, traceback = [], error.__traceback__
    while traceback is not None:
        places.append(f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    shown = repr(error) if server.settings.log_texts else type(error).__name__
    server.log.write("failure", request_id=request_id, error=shown, traceback=places)


class JsonAnswer(Response):
    """A dataclass as JSON. NaN and infinities, which JSON does not have, are null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of the JSON."""
        return encode_json(content)
