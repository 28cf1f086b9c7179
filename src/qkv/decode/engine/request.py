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
    eos_token_ids: tuple[int, ...]
    tokens: list[int]  # the prompt and the generated tokens
    source: tuple[int, ...] | None
    filters: list[LogitsProcessor]
    is_plain: bool  # whether each token is the argmax of the logits, without filters and alternatives
    has_stateless_filters: bool  # whether the filters depend only on the logits, not on the tokens so far
    generator: torch.Generator | None
    sequence: GeneratedSequence
    on_change: OnChange | None = None
    state: RequestState = "waiting"
    result: GenerationResult | None = None  # set when the request is done
    error: Exception | None = None  # set when the request has failed
    pending_text: deque[str] = field(default_factory=deque)  # chunks that `Engine.stream` has not yielded yet
    page_table: list[int] = field(default_factory=list)  # the numbers of the request's pages, in order
    has_new_pages: bool = False  # whether `page_table` has grown since it was last copied to the device
    shared_pages: list[PrefixNode] = field(default_factory=list)  # the first pages: full, cached, and usable by others
    can_share_next_page: bool = True  # False once the cache has another page for the same prefix
    slot: int = -1  # the index of a running request in tensors that have a row for each sequence
    # The number of tokens, with a token that was chosen on the device and is not in `tokens` yet, and its maximum.
    length: int = 0
    max_length: int = 0
    num_cached: int = 0  # the number of tokens that the model has read, or will read in a step that was launched
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
    def own_pages(self) -> list[int]:
        """The pages after the shared ones."""
        return self.page_table[len(self.shared_pages) :]

    @property
    def num_uncached(self) -> int:
        """The number of tokens that the model has not read yet."""
        return self.length - self.num_cached

    @property
    def can_decode(self) -> bool:
        """Whether the next step generates a token from the newest one. Otherwise the request is prefilled, or ends."""
        return self.length - self.num_cached == 1 and self.length < self.max_length
