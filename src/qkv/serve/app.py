"""The application: all routes behind one guard. `make_app({"gpt2": "models/gpt2"})` is an ASGI application."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from qkv.api import Model
from qkv.serve.http.api_error import STATUSES, ApiError
from qkv.serve.http.endpoint import Endpoint
from qkv.serve.http.guard import Guard
from qkv.serve.http.keys import ApiKeys
from qkv.serve.http.openapi import DOCS_POLICY, build_openapi, render_docs
from qkv.serve.http.request_log import RequestLog
from qkv.serve.routes import (
    chat_completions,
    completions,
    embeddings,
    images,
    operations,
    responses,
    scores,
    speech,
    task_routes,
    trace,
    transcriptions,
)
from qkv.serve.running.pool import ModelPool
from qkv.serve.settings import ServeSettings
from qkv.serve.state import ServerState
from qkv.serve.studio.options import StudioOptions
from qkv.serve.studio.routes import static_routes, studio_routes

log = logging.getLogger("qkv.serve")


def find_endpoints() -> tuple[Endpoint, ...]:
    """All endpoints, including the endpoints of tasks that other packages have registered."""
    return (
        *completions.ENDPOINTS,
        *chat_completions.ENDPOINTS,
        *responses.ENDPOINTS,
        *embeddings.ENDPOINTS,
        *images.ENDPOINTS,
        *transcriptions.ENDPOINTS,
        *speech.ENDPOINTS,
        *task_routes.find_endpoints(),
        *scores.ENDPOINTS,
        *trace.ENDPOINTS,
        *operations.ENDPOINTS,
    )


def make_app(models: Mapping[str, str | Model], settings: ServeSettings | None = None) -> Starlette:
    """The application for these models: names with paths, which are loaded at the start, or with loaded models.

    `app.state.server` is the state that all routes share (`ServerState`).
    """
    settings = settings or ServeSettings()
    settings.check()
    server = ServerState(
        pool=ModelPool(models, settings),
        settings=settings,
        log=RequestLog(settings.log_file),
        keys=None if settings.keys is None else ApiKeys.read(settings.keys),
    )
    endpoints = find_endpoints()
    document = build_openapi(endpoints)
    page = render_docs(document)

    async def show_document(_: Request) -> Response:
        return JSONResponse(document)

    async def show_page(_: Request) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": DOCS_POLICY})

    routes: list[BaseRoute] = [endpoint.to_route() for endpoint in endpoints]
    routes += [Route("/openapi.json", show_document), Route("/docs", show_page), *studio_routes()]
    open_paths = {endpoint.path: not endpoint.needs_key for endpoint in endpoints}
    open_paths |= dict.fromkeys(("/docs", "/openapi.json", *(route.path for route in static_routes())), True)
    middleware = [Middleware(Guard, server=server, open_paths=open_paths)]
    if settings.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID"],
            expose_headers=["X-Request-ID", "Retry-After"],
        )
        middleware.insert(0, cors)

    @asynccontextmanager
    async def run_models(app: Starlette) -> AsyncIterator[None]:
        """Load the models in the background, so that /healthz answers at once, and stop them at the end."""
        loading = asyncio.create_task(load_models(server))
        try:
            yield
        finally:
            loading.cancel()
            await asyncio.to_thread(server.pool.stop)
            server.log.close()

    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={HTTPException: report_http_error, Exception: report_failure},
        lifespan=run_models,
    )
    app.state.server, app.state.studio = server, StudioOptions()
    return app


async def load_models(server: ServerState) -> None:
    """Load all models one after the other. A model that cannot be loaded does not stop the others."""
    for name in server.pool.sources:
        try:
            await asyncio.to_thread(server.pool.load, name)
            server.log.write("loaded", model=name)
        except Exception as error:
            server.log.write("not loaded", model=name, error=str(error))
            log.error("model %s cannot be loaded: %s", name, error)


async def report_http_error(_: Request, error: Exception) -> Response:
    """Convert Starlette's own errors, such as an unknown path, to the form of all other errors."""
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in STATUSES else 400
    messages = {404: "there is no such path; see /docs", 405: "this path has another method; see /docs"}
    response = ApiError(status, messages.get(status, str(error.detail))).to_response()
    response.headers.update(error.headers or {})
    return response


async def report_failure(_: Request, __: Exception) -> Response:
    """The response to an error outside of the endpoints."""
    return ApiError(500, "the server failed to process this request; its log has the reason").to_response()
