"""A request of the engine: its options, its progress, and its pages."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch

from qkv.blocks import CrossCache, Inputs
from qkv.blocks.inputs import Prompt
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
    prompt: Prompt | None  # the prompt of a decoder, if it has payloads
    source: Sequence[int] | None
    prefix_key: Hashable  # the inputs besides tokens on which the keys and values of a page depend
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
    # The number of tokens, including a token that was chosen on the device and is not in `tokens` yet; and its maximum.
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

    def chunk(self, num_tokens: int) -> Prompt:
        """Return the next tokens that the model reads, with their payloads and positions."""
        first, end = self.num_cached, self.num_cached + num_tokens
        if self.prompt is None:
            positions = torch.arange(first, end)[None]
            return Prompt(Inputs(torch.tensor([self.tokens[first:end]]), positions=positions))
        whole = self.prompt.extend(self.tokens[len(self.prompt) : end])
        return Prompt(whole.inputs.columns(first, end))

    def positions(self, num_tokens: int) -> list[int]:
        """Return the positions of the first tokens."""
        if self.prompt is None:
            return list(range(num_tokens))
        return self.prompt.extend([0] * (num_tokens - len(self.prompt))).positions[:num_tokens]

    @cached_property
    def cuts(self) -> list[int]:
        """The numbers of tokens after which the prompt may be cut: not inside an image or sound."""
        return [0] if self.prompt is None else [0, *(end for _, end in self.prompt.inputs.split_columns(1))]

    def can_cut(self, num_tokens: int) -> bool:
        """Return whether the model may read the first tokens alone."""
        return num_tokens >= self.cuts[-1] or num_tokens in self.cuts

    def chunk_length(self, num_tokens: int) -> int:
        """Return how many tokens the model reads next: at most `num_tokens`, unless that splits an image or sound."""
        end = self.num_cached + num_tokens
        if self.can_cut(end):
            return num_tokens
        possible = [cut for cut in self.cuts if self.num_cached < cut]
        return max((cut for cut in possible if cut <= end), default=possible[0]) - self.num_cached

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


def prefix_key(prompt: Sequence[int], *, is_source: bool) -> Hashable:
    """Return the `prefix_key` of a request: the whole source of an encoder-decoder, or the payloads of a prompt."""
    digest = prompt.digest() if isinstance(prompt, Prompt) else None
    return (tuple(prompt), digest) if is_source else digest
