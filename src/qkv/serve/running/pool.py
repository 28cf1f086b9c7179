"""The models of a server, by name: they are loaded, used and dropped.

Only the names and paths that the server was started with can be loaded: a request has no way to name a path.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from threading import Lock
from typing import Any, Literal

import torch

from qkv.api import Model, load
from qkv.decode import Engine
from qkv.errors import suggest_name
from qkv.serve.http.api_error import ApiError
from qkv.serve.running.batcher import DynamicBatcher
from qkv.serve.running.engine_thread import EngineThread
from qkv.serve.running.fair_lock import FairLock
from qkv.serve.running.memory import MemoryGuard
from qkv.serve.running.token_texts import TokenTexts
from qkv.serve.settings import MIB, ServeSettings
from qkv.tasks.chat.conversation import Chat
from qkv.tasks.table import find_task
from qkv.text.chat_renderer import ChatRenderer

log = logging.getLogger("qkv.serve")

PAGE_SIZE = 16
POLL_SECONDS = 0.02

ModelState = Literal["loaded", "loading", "dropped"]


class ServedModel:
    """A model in memory, with the threads that run it."""

    def __init__(self, name: str, model: Model, settings: ServeSettings) -> None:
        self.name, self.model, self.settings = name, model, settings
        model.network.eval()
        self.created = int(time.time())
        self.task = find_task(model.config).name
        self.num_users = 0
        self._templates = ChatRenderer()
        lock = device_lock(model.device.type)
        self.batcher = DynamicBatcher(
            name,
            gather_seconds=settings.gather_seconds,
            max_queue=settings.max_queue,
            max_batch=settings.max_texts,
            device_lock=lock,
        )
        self.engine: EngineThread | None = None  # only for a Transformer that generates text
        if model.config.decoder is not None and model.config.head.kind == "lm" and not model.config.keeps_state:
            self.engine = EngineThread(
                name,
                lambda: make_engine(model, settings),
                max_queue=settings.max_queue,
                max_chunks_per_second=settings.max_chunks_per_second,
                device_lock=lock,
            )

    @cached_property
    def token_texts(self) -> TokenTexts:
        """The texts of single tokens. The first use takes a moment."""
        tokenizer = self.model.tokenizer
        assert tokenizer is not None
        return TokenTexts(tokenizer.target, self.model.config.stack.vocab_size)

    def find_chat(self, template: str | None) -> Chat:
        """The model with its chat template, which one process renders for all requests."""
        chat = self.model.find_chat(template)
        chat.template.render = self._templates.render
        return chat

    @contextmanager
    def in_use(self) -> Iterator["ServedModel"]:
        """Inside, the model is not dropped."""
        self.num_users += 1
        try:
            yield self
        finally:
            self.num_users -= 1

    def stop(self) -> None:
        """End the threads and the process of the model."""
        self._templates.close()
        self.batcher.stop()
        if self.engine is not None:
            self.engine.stop()


class ModelPool:
    """The models of a server. The first name is the default model of requests that name none."""

    def __init__(self, sources: Mapping[str, str | Model], settings: ServeSettings) -> None:
        """`sources` maps each name to a path, which is loaded by `load`, or to a model that is already in memory."""
        self.sources, self.settings = dict(sources), settings
        self.memory = MemoryGuard(settings)
        self._served: dict[str, ServedModel] = {}
        self._loading: set[str] = set()
        self._lock = Lock()  # protects `_loading`
        for name, source in self.sources.items():
            if isinstance(source, Model):
                self._served[name] = ServedModel(name, source, settings)

    @property
    def loaded(self) -> dict[str, ServedModel]:
        """The models in memory."""
        return dict(self._served)

    def state(self, name: str) -> ModelState:
        """Whether a model is loaded."""
        return "loaded" if name in self._served else "loading" if name in self._loading else "dropped"

    def find(self, name: str | None) -> ServedModel:
        """The loaded model of this name, or the default model. Raises a 404 or a 503."""
        if name is None:
            name = next(iter(self.sources))
        self.check_name(name)
        if name not in self._served:
            raise ApiError(
                503,
                f"model {name!r} is {'being loaded' if name in self._loading else 'not loaded'}; "
                f"POST /models/{name}/load loads it",
                param="model",
                code="model_not_loaded",
                retry_after=5,
            )
        return self._served[name]

    def load(self, name: str) -> ServedModel:
        """Load a model by its name. This blocks; a server calls it in a thread."""
        self.check_name(name)
        with self._lock:
            if name in self._served:
                return self._served[name]
            if name in self._loading:
                raise ApiError(503, f"model {name!r} is being loaded; try again later", param="model", retry_after=5)
            self._loading.add(name)
        try:
            source, settings = self.sources[name], self.settings
            with device_lock(torch.device(settings.device).type):
                if not isinstance(source, Model):
                    self.memory.check_load(name, source)
                    model = load(source, device=settings.device, dtype=settings.dtype)
                    source = model if settings.precision is None else model.quantize(settings.precision)
                self._served[name] = ServedModel(name, source, settings)
            return self._served[name]
        finally:
            self._loading.discard(name)

    async def drop(self, name: str) -> None:
        """Drop a model: new requests are refused at once, running ones may finish, and then its memory is freed."""
        self.check_name(name)
        served = self._served.pop(name, None)
        if served is None:
            return
        deadline = time.monotonic() + self.settings.drain_seconds
        while served.num_users and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.to_thread(served.stop)
        if served.model.device.type == "cuda":
            del served
            torch.cuda.empty_cache()

    def stop(self) -> None:
        """Drop all models without waiting for their requests."""
        while self._served:
            self._served.popitem()[1].stop()

    def check_name(self, name: str) -> None:
        """Raise a 404 for a name that the server does not know."""
        if name not in self.sources:
            raise ApiError(
                404,
                f"there is no model {name[:200]!r}; {suggest_name(name, self.sources)}",
                param="model",
                code="model_not_found",
            )


def make_engine(model: Model, settings: ServeSettings) -> Engine:
    """An engine whose keys and values fit into `cache_mib`."""
    stack = model.config.stack
    bytes_per_value = next(model.network.parameters()).element_size()
    if not next(model.network.parameters()).is_floating_point():  # quantized weights; keys and values are not
        bytes_per_value = 4
    page_bytes = 2 * stack.layers * stack.kv_heads * stack.head_dim * PAGE_SIZE * bytes_per_value
    pages_per_sequence = -(-(stack.max_positions or settings.max_tokens) // PAGE_SIZE)
    num_pages = min(settings.cache_mib * MIB // page_bytes, settings.max_sequences * pages_per_sequence)
    return Engine(
        model.network,
        model.tokenizer,
        max_sequences=settings.max_sequences,
        num_pages=max(1, num_pages),
        page_size=PAGE_SIZE,
    )


@cache
def device_lock(device_type: str) -> AbstractContextManager[Any]:
    """The lock of the threads that use a GPU. Those that use a CPU need none."""
    return nullcontext() if device_type == "cpu" else FairLock()
