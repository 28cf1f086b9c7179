"""One request of the engine: its options, its progress, and the pages that it holds."""

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
"""Called after each step that changed a request, in the thread that ran the step."""


@dataclass(eq=False)
class Request:
    """What `Engine.submit` returns. Read `state`, `ids`, `text`, `result`, `error`; the rest belongs to the engine."""

    request_id: int  # first come, first served
    options: GenerationOptions
    tokens: list[int]  # prompt and generated tokens
    source: tuple[int, ...] | None
    filters: list[LogitsProcessor]
    generator: torch.Generator | None
    sequence: GeneratedSequence
    on_change: OnChange | None = None
    state: RequestState = "waiting"
    result: GenerationResult | None = None  # once it is done
    error: Exception | None = None  # once it has failed
    cancel_requested: bool = False
    pending_text: deque[str] = field(default_factory=deque)  # text that `Engine.stream` has not returned yet
    # its pages
    shared_pages: list[PrefixNode] = field(default_factory=list)  # its first pages, which are full and may be shared
    own_pages: list[int] = field(default_factory=list)  # the pages after those
    can_share_next_page: bool = True  # whether all its full pages are shared, so that the next one can be
    num_cached: int = 0  # tokens whose keys and values are cached
    cross_cache: CrossCache | None = None

    @property
    def is_finished(self) -> bool:
        """Whether it is done, cancelled or failed."""
        return self.state in ("done", "cancelled", "failed")

    @property
    def ids(self) -> list[int]:
        """The new tokens so far."""
        return self.sequence.ids

    @property
    def text(self) -> str:
        """The text so far; empty without a tokenizer."""
        return self.sequence.text

    def queue_text(self, _: int, text: str) -> None:
        """Store a new chunk of text until `Engine.stream` returns it."""
        self.pending_text.append(text)

    @property
    def page_table(self) -> list[int]:
        """Its pages, in order."""
        return [*(one.page for one in self.shared_pages), *self.own_pages]

    @property
    def num_pages(self) -> int:
        """The number of its pages."""
        return len(self.shared_pages) + len(self.own_pages)

    @property
    def num_uncached(self) -> int:
        """The number of tokens that the model must still read."""
        return len(self.tokens) - self.num_cached
