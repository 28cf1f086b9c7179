"""A request of the engine: its options, its progress, and its pages."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from qkv.blocks import CrossCache
from qkv.decode.engine.pages import PrefixNode
from qkv.decode.options import GenerationOptions, LogitsProcessor
from qkv.decode.result import GenerationResult
from qkv.decode.sequence import GeneratedSequence

RequestState = Literal["waiting", "running", "done", "cancelled", "failed"]
OnChange = Callable[["Request"], None]
"""Called in each step that runs, fails or cancels the request, in the thread that runs the step. It is not called when
a request is preempted."""


@dataclass(eq=False)
class Request:
    """A request, as `Engine.submit` returns it.

    Callers may read `state`, `ids`, `text`, `result` and `error`. The engine uses the other attributes.
    """

    request_id: int  # counts up in the order of arrival
    options: GenerationOptions
    tokens: list[int]  # the prompt and the generated tokens
    source: tuple[int, ...] | None
    filters: list[LogitsProcessor]
    generator: torch.Generator | None
    sequence: GeneratedSequence
    on_change: OnChange | None = None
    state: RequestState = "waiting"
    result: GenerationResult | None = None  # set when the request is done
    error: Exception | None = None  # set when the request has failed
    cancel_requested: bool = False
    pending_text: deque[str] = field(default_factory=deque)  # chunks that `Engine.stream` has not yielded yet
    # The first pages are full and cached, so that other requests may share them. `own_pages` follow them.
    shared_pages: list[PrefixNode] = field(default_factory=list)
    own_pages: list[int] = field(default_factory=list)
    can_share_next_page: bool = True  # False once the cache has another page for the same prefix
    num_cached: int = 0  # the number of tokens whose keys and values are in the pages
    cross_cache: CrossCache | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the request is done, cancelled or failed."""
        return self.state in ("done", "cancelled", "failed")

    @property
    def ids(self) -> list[int]:
        """The new tokens so far."""
        return self.sequence.ids

    @property
    def text(self) -> str:
        """The text so far. It is empty if the engine has no tokenizer."""
        return self.sequence.text

    def queue_text(self, _: int, text: str) -> None:
        """Store a new chunk of text until `Engine.stream` yields it."""
        self.pending_text.append(text)

    @property
    def page_table(self) -> list[int]:
        """The numbers of the request's pages, in order."""
        return [*(node.page for node in self.shared_pages), *self.own_pages]

    @property
    def num_pages(self) -> int:
        """The number of the request's pages."""
        return len(self.shared_pages) + len(self.own_pages)

    @property
    def num_uncached(self) -> int:
        """The number of tokens that the model has not read yet."""
        return len(self.tokens) - self.num_cached
