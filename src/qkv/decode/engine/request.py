"""One request of the engine: what was asked, how far it is, and the memory that it holds."""

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
"""Called after each step that changed a request, in the thread that took the step."""


@dataclass(eq=False)
class Request:
    """What `Engine.submit` gives. Read `state`, `ids`, `text`, `result`, `error`; the rest is the engine's."""

    request_id: int  # first come, first served
    options: GenerationOptions
    tokens: list[int]  # all that was read and written
    source: tuple[int, ...] | None
    filters: list[LogitsProcessor]
    generator: torch.Generator | None
    sequence: GeneratedSequence
    on_change: OnChange | None = None
    state: RequestState = "waiting"
    result: GenerationResult | None = None  # when it is done
    error: Exception | None = None  # when it has failed
    cancel_requested: bool = False
    pending_text: deque[str] = field(default_factory=deque)  # text that nobody has fetched yet
    # its memory
    shared_pages: list[PrefixNode] = field(default_factory=list)  # its first pages, full, which others may share
    own_pages: list[int] = field(default_factory=list)  # the pages after them
    can_share_next_page: bool = True  # whether all its full pages are among the known, so that the next one can be
    num_cached: int = 0  # how many of its tokens have their keys and values
    cross_cache: CrossCache | None = None

    @property
    def is_finished(self) -> bool:
        return self.state in ("done", "cancelled", "failed")

    @property
    def ids(self) -> list[int]:
        """The new tokens so far."""
        return self.sequence.ids

    @property
    def text(self) -> str:
        """The text so far; for a model without a tokenizer, none."""
        return self.sequence.text

    def queue_text(self, _: int, piece: str) -> None:
        """Keep a new piece of its text until somebody fetches it."""
        self.pending_text.append(piece)

    @property
    def page_table(self) -> list[int]:
        """Its pages, in order."""
        return [*(one.page for one in self.shared_pages), *self.own_pages]

    @property
    def num_pages(self) -> int:
        """How many pages it has."""
        return len(self.shared_pages) + len(self.own_pages)

    @property
    def num_uncached(self) -> int:
        """How many tokens the model must still read before it can say what comes next."""
        return len(self.tokens) - self.num_cached
