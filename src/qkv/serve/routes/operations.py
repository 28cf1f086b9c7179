"""Health, metrics, and the list of models, which can be loaded and dropped by name."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from starlette.responses import PlainTextResponse, Response

from qkv.serve.http.api_error import ApiError
from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.http.metrics import Sample
from qkv.serve.running.engine_thread import dropped_error
from qkv.serve.running.pool import ModelPool, ModelState
from qkv.serve.state import ServerState

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class ServedModelInfo:
    """A model of this server."""

    id: Annotated[str, "The name to use as `model` in requests."]
    object: Literal["model"]
    created: Annotated[int, "When it was loaded, in seconds since 1970; 0 if it is not loaded."]
    owned_by: str
    state: ModelState
    task: Annotated[str | None, "What the model does: language, text_to_text, classify, tag, answer, fill or embed."]
    num_parameters: int | None
    context: Annotated[int | None, "The number of tokens that the model was made for; null if unknown."]


@dataclass(frozen=True)
class ServedModelList:
    """The models of this server. The first is the default."""

    object: Literal["list"]
    data: list[ServedModelInfo]


@dataclass(frozen=True)
class Health:
    """The state of the server."""

    status: Literal["ok", "draining", "not ready"]
    seconds: Annotated[float, "Since the server was started."]


def describe_model(pool: ModelPool, name: str) -> ServedModelInfo:
    """The properties of a model that a client may see; its path is not one of them."""
    served = pool.loaded.get(name)
    if served is None:
        return ServedModelInfo(name, "model", 0, "qkv", pool.state(name), None, None, None)
    stack = served.model.config.stack
    count = sum(parameter.numel() for parameter in served.model.network.parameters())
    return ServedModelInfo(
        name, "model", served.created, "qkv", "loaded", served.task, count, stack.max_positions or None
    )


async def list_models(call: Call) -> ServedModelList:
    """List all models, loaded or not."""
    pool = call.server.pool
    return ServedModelList("list", [describe_model(pool, name) for name in pool.sources])


async def show_model(call: Call) -> ServedModelInfo:
    """Describe one model."""
    name, pool = call.request.path_params["name"], call.server.pool
    pool.check_name(name)
    return describe_model(pool, name)


async def load_model(call: Call) -> ServedModelInfo:
    """Load a model by its name."""
    name, pool = call.request.path_params["name"], call.server.pool
    await asyncio.to_thread(pool.load, name)
    return describe_model(pool, name)


async def drop_model(call: Call) -> ServedModelInfo:
    """Drop a model, after its running requests."""
    name, pool = call.request.path_params["name"], call.server.pool
    await pool.drop(name)
    return describe_model(pool, name)


async def check_health(call: Call) -> Health:
    """Whether the server runs at all."""
    return Health("draining" if call.server.is_draining else "ok", round(time.time() - call.server.started_at, 3))


async def check_ready(call: Call) -> Health:
    """Whether the server accepts work now: a 503 while it drains or loads, or if a model failed or memory is short."""
    server = call.server
    if server.is_draining:
        raise ApiError(503, "the server is stopping", code="draining", retry_after=1)
    if not server.pool.loaded:
        raise ApiError(503, "no model is loaded yet", code="model_not_loaded", retry_after=1)
    for served in server.pool.loaded.values():
        if served.engine is not None and served.engine.has_stopped:
            raise dropped_error(served.name)
    server.pool.memory.check_request()
    return await check_health(call)


async def show_metrics(call: Call) -> Response:
    """All metrics as text."""
    return PlainTextResponse(call.server.metrics.render(current_samples(call.server)), media_type=METRICS_TYPE)


def current_samples(server: ServerState) -> Iterator[Sample]:
    """The values that are read at the moment of the request."""
    yield "qkv_requests_running", {}, server.num_running
    yield "qkv_free_memory_bytes", {}, server.pool.memory.free_bytes()
    yield "qkv_log_lines_dropped_total", {}, server.log.num_dropped
    for name, served in server.pool.loaded.items():
        labels = {"model": name}
        yield "qkv_unfinished", {**labels, "of": "calls"}, served.batcher.num_unfinished
        yield "qkv_batches_total", labels, served.batcher.num_batches
        if served.engine is not None:
            engine = served.engine.engine
            yield "qkv_unfinished", {**labels, "of": "generations"}, served.engine.num_unfinished
            yield "qkv_faults_total", labels, served.engine.num_faults
            yield "qkv_reused_tokens_total", labels, engine.stats.reused_tokens
            yield "qkv_preemptions_total", labels, engine.stats.preemptions
            free = engine.page_pool.num_available
            yield "qkv_pages", {**labels, "state": "available"}, free
            yield "qkv_pages", {**labels, "state": "in use"}, engine.page_pool.num_pages - free


ENDPOINTS = (
    Endpoint("GET", "/v1/models", list_models, "List the models.", answer=ServedModelList),
    Endpoint("GET", "/v1/models/{name}", show_model, "Describe a model.", answer=ServedModelInfo),
    Endpoint("POST", "/models/{name}/load", load_model, "Load a model by its name.", answer=ServedModelInfo),
    Endpoint("POST", "/models/{name}/drop", drop_model, "Drop a model by its name.", answer=ServedModelInfo),
    Endpoint("GET", "/healthz", check_health, "Whether the server runs.", answer=Health, needs_key=False),
    Endpoint("GET", "/readyz", check_ready, "Whether the server accepts work.", answer=Health, needs_key=False),
    Endpoint("GET", "/metrics", show_metrics, "Metrics for Prometheus.", media_type=METRICS_TYPE),
)
