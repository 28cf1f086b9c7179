"""The routes of the studio: its page, the scripts and styles, and the JSON that the page asks for.

Computations run in the thread of their model (`DynamicBatcher`), one after the other. The page is served to everyone;
if the server has API keys, its JSON needs one.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from importlib.resources import files
from threading import Event
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from qkv.api import Model
from qkv.serve.http.api_error import ApiError, to_api_error
from qkv.serve.http.endpoint import read_typed_body, report_error, run_with_client
from qkv.serve.http.json_body import encode_json
from qkv.serve.running.pool import ServedModel
from qkv.serve.state import ServerState
from qkv.serve.studio.document import describe_model, trace_document
from qkv.serve.studio.neurons import find_examples
from qkv.serve.studio.options import StudioOptions
from qkv.serve.studio.requests import ExamplesRequest, SearchRequest, TraceRequest
from qkv.serve.studio.search import run_search
from qkv.serve.studio.words import leave_words_out

MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
LOADING_POLL_SECONDS = 0.1
Handler = Callable[[Request], Awaitable[Any]]


def studio_routes() -> list[BaseRoute]:
    """All routes of the studio. `app.state.studio` holds its `StudioOptions`."""
    return [
        *static_routes(),
        api_route("GET", "models", list_models),
        api_route("GET", "models/{name:path}", show_model),
        api_route("POST", "trace", show_trace),
        api_route("POST", "words", show_words),
        api_route("POST", "examples", show_examples),
        api_route("POST", "search", stream_search),
        api_route("GET", "runs", list_runs),
        api_route("GET", "runs/{run}", read_run),
        api_route("GET", "runs/{run}/study", show_study),
    ]


def static_routes() -> list[Route]:
    """The page at / and /studio, and a route for each of its files. These need no API key."""
    found = {
        "/studio/page/": files("qkv.page").joinpath("static"),
        "/studio/": files("qkv.serve.studio").joinpath("static"),
    }
    routes = []
    for prefix, folder in found.items():
        for file in folder.iterdir():
            media_type = MEDIA_TYPES.get("." + file.name.rpartition(".")[2])
            if media_type is not None and file.name != "index.html":
                routes.append(Route(prefix + file.name, partial(send_file, file, media_type)))
    index = found["/studio/"].joinpath("index.html")
    return [*routes, *(Route(path, partial(send_file, index, "text/html")) for path in ("/", "/studio"))]


async def send_file(file: Any, media_type: str, _: Request) -> Response:
    """A file of the page. It is small, and a browser asks for it again each time, so that it is never outdated."""
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
    return Response(file.read_bytes(), media_type=media_type, headers=headers)


def api_route(method: str, path: str, handle: Handler) -> Route:
    """A route that returns JSON. Errors have the same form as all errors of the server."""

    async def respond(request: Request) -> Response:
        server: ServerState = request.app.state.server
        try:
            answer = await run_with_client(handle(request), request, server.settings.request_seconds)
            return (
                answer if isinstance(answer, Response) else Response(encode_json(answer), media_type="application/json")
            )
        except Exception as error:
            return report_error(request, error)

    return Route(f"/studio/api/{path}", respond, methods=[method])


def options_of(request: Request) -> StudioOptions:
    """The options that the server was started with."""
    options: StudioOptions = request.app.state.studio
    return options


async def find_model(request: Request, name: str) -> ServedModel:
    """The model of this name. If it is not in memory, it is loaded."""
    pool = request.app.state.server.pool
    while pool.state(name) == "loading":
        await asyncio.sleep(LOADING_POLL_SECONDS)
    served: ServedModel = await asyncio.to_thread(pool.load, name)
    return served


async def run_in_model(request: Request, name: str, compute: Callable[[Model], Any]) -> Any:
    """Run a function of a model in the model's thread."""
    request.app.state.server.pool.memory.check_request()
    with (await find_model(request, name)).in_use() as served:
        request.state.model = name
        return await served.batcher.call(lambda: compute(served.model))


async def list_models(request: Request) -> dict[str, Any]:
    """The names of all models; the first is the default."""
    return {"models": list(request.app.state.server.pool.sources)}


async def show_model(request: Request) -> dict[str, Any]:
    """The properties of a model that the page needs."""
    name, options = request.path_params["name"], options_of(request)
    source = request.app.state.server.pool.sources.get(name)

    def describe(model: Model) -> dict[str, Any]:
        examples = options.list_examples(None if isinstance(source, Model) else source)
        return describe_model(model, name, examples, options.find_autoencoders(model.config))

    described: dict[str, Any] = await run_in_model(request, name, describe)
    return described


async def show_trace(request: Request) -> Any:
    """The trace of a text."""
    body, options = await read_typed_body(TraceRequest, request), options_of(request)

    def compute(model: Model) -> dict[str, Any]:
        return trace_document(model, body, options.find_autoencoders(model.config), options.answers)

    return await run_in_model(request, body.model, compute)


async def show_words(request: Request) -> Any:
    """The answer without each word."""
    body = await read_typed_body(TraceRequest, request)
    return await run_in_model(request, body.model, lambda model: leave_words_out(model, body))


async def show_examples(request: Request) -> Any:
    """The top examples of a neuron or a feature."""
    body, options = await read_typed_body(ExamplesRequest, request), options_of(request)

    def compute(model: Model) -> dict[str, Any]:
        return find_examples(model, body, options.find_autoencoders(model.config))

    return await run_in_model(request, body.model, compute)


class SearchCancelled(Exception):
    """The client of a search has disconnected."""


async def stream_search(request: Request) -> Response:
    """A beam search, one line of JSON for each of its steps. An error before the first step has its own status."""
    body = await read_typed_body(SearchRequest, request)
    loop = asyncio.get_running_loop()
    records: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    is_cancelled = Event()

    def report(record: dict[str, Any]) -> None:
        if is_cancelled.is_set():
            raise SearchCancelled
        loop.call_soon_threadsafe(records.put_nowait, record)

    task = asyncio.ensure_future(run_in_model(request, body.model, lambda model: run_search(model, body, report)))
    task.add_done_callback(lambda _: records.put_nowait(None))
    try:
        first = await records.get()
    except asyncio.CancelledError:
        is_cancelled.set()
        raise
    if first is None:
        raise task.exception() or ApiError(500, "the search returned no step")

    async def lines() -> AsyncIterator[bytes]:
        record: dict[str, Any] | None = first
        try:
            while record is not None:
                yield encode_json(record) + b"\n"
                record = await records.get()
            if (error := task.exception()) is not None:
                yield encode_json(to_api_error(error).to_dict()) + b"\n"
        finally:
            is_cancelled.set()

    return StreamingResponse(lines(), media_type="application/x-ndjson")


async def list_runs(request: Request) -> dict[str, Any]:
    """The training runs below the folders that the server was started with."""
    return {"runs": await asyncio.to_thread(options_of(request).runs.list)}


async def show_study(request: Request) -> Any:
    """The study that a run belongs to."""
    return await asyncio.to_thread(options_of(request).runs.read_study, request.path_params["run"])


async def read_run(request: Request) -> Any:
    """The new lines of the log of a run."""
    run, cursor = request.path_params["run"], request.query_params.get("cursor", "")
    return await asyncio.to_thread(options_of(request).runs.read, run, cursor)
