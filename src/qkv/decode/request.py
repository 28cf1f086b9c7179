"""One request of the engine: what was asked, how far it is, and the memory that it holds."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from qkv.blocks import CrossCache
from qkv.decode.options import Filter, Options
from qkv.decode.pages import Known
from qkv.decode.result import Result
from qkv.decode.writing import Writing

State = Literal["waiting", "running", "done", "cancelled", "failed"]
OnChange = Callable[["Request"], None]
"""Called after each step that changed a request, in the thread that took the step."""


@dataclass(eq=False)
class Request:
    """What `Engine.submit` gives. Read `state`, `ids`, `text`, `result`, `error`; the rest is the engine's."""

    number: int  # first come, first served
    options: Options
    tokens: list[int]  # all that was read and written
    source: tuple[int, ...] | None
    filters: list[Filter]
    generator: torch.Generator | None
    writing: Writing
    on_change: OnChange | None = None
    state: State = "waiting"
    result: Result | None = None  # when it is done
    error: Exception | None = None  # when it has failed
    cancelling: bool = False
    pieces: deque[str] = field(default_factory=deque)  # text that nobody has fetched yet
    # its memory
    known: list[Known] = field(default_factory=list)  # its first pages, full, which others may share
    own: list[int] = field(default_factory=list)  # the pages after them
    known_so_far: bool = True  # whether all its full pages are among the known, so that the next one can be
    filled: int = 0  # how many of its tokens have their keys and values
    cross: CrossCache | None = None

    @property
    def finished(self) -> bool:
        return self.state in ("done", "cancelled", "failed")

    @property
    def ids(self) -> list[int]:
        """The new tokens so far."""
        return self.writing.ids

    @property
    def text(self) -> str:
        """The text so far; for a model without a tokenizer, none."""
        return self.writing.text

    def hear(self, _: int, piece: str) -> None:
        """Keep a new piece of its text until somebody fetches it."""
        self.pieces.append(piece)

    @property
    def table(self) -> list[int]:
        """Its pages, in order."""
        return [*(one.page for one in self.known), *self.own]

    @property
    def held(self) -> int:
        """How many pages it has."""
        return len(self.known) + len(self.own)

    @property
    def unread(self) -> int:
        """How many tokens the model must still read before it can say what comes next."""
        return len(self.tokens) - self.filled
