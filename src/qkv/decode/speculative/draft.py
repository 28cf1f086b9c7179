"""Drafts for speculative decoding propose the next tokens cheaply, by prompt look-up or with a small model.

`speculate.py` verifies every proposed token. So a draft affects the speed of generation, and the text stays the same.
There is one exception: if a `DraftModel` samples, the text may differ, but its distribution stays the same.

V vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from qkv.blocks import CrossCache
from qkv.decode.cache_edits import crop_cache
from qkv.decode.options import LogitsProcessor, PositiveCount
from qkv.decode.runner import promote_to_float32
from qkv.decode.sampling import argmax, sample
from qkv.errors import UsageError
from qkv.models import Network
from qkv.values import check_value

DRAFT_TOKENS = 4
"""The default number of tokens that a draft proposes at a time."""


@dataclass
class Proposal:
    """Proposed next tokens, in order. If they were sampled, `draft_probs` has the distribution (V,) of each."""

    ids: list[int] = field(default_factory=list)
    draft_probs: list[Tensor] | None = None

    def token(self, index: int) -> tuple[int | None, Tensor | None]:
        """Return a proposed token and its distribution, or (None, None) after the last proposed token.

        The distribution is None if the token was not sampled.
        """
        if index >= len(self.ids):
            return None, None
        return self.ids[index], None if self.draft_probs is None else self.draft_probs[index]


class Proposer(Protocol):
    """Proposes the next tokens of one text while it is generated."""

    def propose(self, tokens: list[int], max_tokens: int) -> Proposal:
        """Propose at most `max_tokens` tokens after `tokens`, which are the prompt and all generated tokens."""


class Draft(Protocol):
    """A source of proposals: `PromptLookup` or `DraftModel`."""

    num_draft_tokens: int

    def make_proposer(
        self,
        network: Network,
        source: Sequence[int] | None,
        filters: list[LogitsProcessor],
        generator: torch.Generator | None,
    ) -> Proposer:
        """Return a proposer for a new text of `network`. With a generator it samples, without one it is greedy."""


class PromptLookup:
    """Prompt look-up decoding: find an earlier occurrence of the last tokens, and propose the tokens that followed it.

    It suits texts that repeat their prompt, such as summaries, corrections, code and answers from a document. The
    source of an encoder-decoder is also searched, if source and target share their embeddings.
    """

    def __init__(self, max_ngram_size: int = 3, num_draft_tokens: int = DRAFT_TOKENS) -> None:
        """The last `max_ngram_size` tokens are looked up first. If they are not found, fewer tokens are looked up, down
        to one.
        """
        check_value(PositiveCount, max_ngram_size, "max_ngram_size")
        check_value(PositiveCount, num_draft_tokens, "num_draft_tokens")
        self.max_ngram_size, self.num_draft_tokens = max_ngram_size, num_draft_tokens

    def make_proposer(
        self,
        network: Network,
        source: Sequence[int] | None,
        filters: list[LogitsProcessor],
        generator: torch.Generator | None,
    ) -> "PromptLookupProposer":
        """Return a proposer for a new text."""
        return PromptLookupProposer(self.max_ngram_size, list(source or ()) if network.config.share_embeddings else [])


class PromptLookupProposer:
    """Keeps an index from each n-gram of a text to the position after it, and updates it as the text grows."""

    def __init__(self, max_ngram_size: int, source: list[int]) -> None:
        self.max_ngram_size, self.source = max_ngram_size, source
        self._continuations: dict[tuple[int, ...], int] = {}  # n-gram → the position after its last occurrence
        self._indexed = 1

    def propose(self, tokens: list[int], max_tokens: int) -> Proposal:
        """Find the longest indexed n-gram that ends the text, and propose what followed its previous occurrence."""
        text = [*self.source, *tokens]
        for position in range(self._indexed, len(text)):
            for n in range(1, min(self.max_ngram_size, position) + 1):
                self._continuations[tuple(text[position - n : position])] = position
        self._indexed = max(self._indexed, len(text))
        for n in range(min(self.max_ngram_size, len(text)), 0, -1):
            found = self._continuations.get(tuple(text[-n:]))
            if found is not None:
                return Proposal(text[found : found + max_tokens])
        return Proposal()


class DraftModel:
    """A draft by a smaller model of the same family and vocabulary."""

    def __init__(self, network: Network, num_draft_tokens: int = DRAFT_TOKENS) -> None:
        self.network = network
        check_value(PositiveCount, num_draft_tokens, "num_draft_tokens")
        self.num_draft_tokens = num_draft_tokens

    def make_proposer(
        self,
        network: Network,
        source: Sequence[int] | None,
        filters: list[LogitsProcessor],
        generator: torch.Generator | None,
    ) -> "DraftModelProposer":
        """Return a proposer for a new text. Raises an error if the models differ in family or vocabulary."""
        small, large = self.network.config, network.config
        if type(self.network) is not type(network) or small.head.kind != "lm":
            raise UsageError(
                f"a {small.family} with a {small.head.kind} head cannot be the draft of a {large.family}; "
                "use a smaller model of the same family"
            )
        if small.keeps_state:
            raise UsageError("the draft keeps a state, which cannot forget a rejected token; use a Transformer")
        if small.stack.vocab_size != large.stack.vocab_size:
            raise UsageError(
                f"the draft has a vocabulary of {small.stack.vocab_size} tokens, the model one of "
                f"{large.stack.vocab_size}; use a draft with the same tokenizer"
            )
        return DraftModelProposer(self.network, source, filters, generator)


class DraftModelProposer:
    """Generates with the draft model, which has its own cache. The next call removes rejected tokens from the cache."""

    def __init__(
        self,
        network: Network,
        source: Sequence[int] | None,
        filters: list[LogitsProcessor],
        generator: torch.Generator | None,
    ) -> None:
        self.network, self.filters, self.generator = network, filters, generator
        self.cache = network.new_cache(1, 64)
        self.device = network.device
        self.cross_cache: CrossCache | None = None
        if network.has_source:
            assert source is not None
            memory = network.encode(torch.tensor([list(source)], device=self.device))
            self.cross_cache = network.build_cross_cache(memory)
        self._cached_tokens: list[int] = []

    def propose(self, tokens: list[int], max_tokens: int) -> Proposal:
        """Propose up to `max_tokens` tokens. It stops early at the last position, or if every token is forbidden."""
        config = self.network.output_stack.config
        if config.has_max_positions:
            max_tokens = min(max_tokens, config.max_positions - len(tokens) + 1)
        proposal = Proposal(draft_probs=None if self.generator is None else [])
        for _ in range(max_tokens):
            text = [*tokens, *proposal.ids]
            logits = self._next_logits(text)
            for apply in self.filters:
                logits = apply(logits, torch.tensor([text], device=self.device))
            if not bool((logits > float("-inf")).any()):
                break
            if proposal.draft_probs is None or self.generator is None:
                proposal.ids.append(int(argmax(logits)))
            else:
                proposal.ids.append(int(sample(logits, [self.generator])))
                proposal.draft_probs.append(logits[0].double().softmax(-1))
        return proposal

    def _next_logits(self, text: list[int]) -> Tensor:
        """Return the draft model's logits (1, V) after a text. The model reads only tokens that are not cached."""
        pairs = zip(self._cached_tokens, text, strict=False)
        cached = next((i for i, (a, b) in enumerate(pairs) if a != b), len(self._cached_tokens))
        cached = min(cached, len(text) - 1)
        crop_cache(self.cache, cached)
        new = torch.tensor([text[cached:]], device=self.device)
        self._cached_tokens = list(text)
        x, _ = self.network.hidden(new, cache=self.cache, memory=self.cross_cache)
        return promote_to_float32(self.network.head.project(x[:, -1]))


def make_draft(draft: Draft | Network | str) -> Draft:
    """Convert the `draft` argument of `generate` to a `Draft`."""
    if isinstance(draft, Network):
        return DraftModel(draft)
    if draft == "lookup":
        return PromptLookup()
    if isinstance(draft, str) or not hasattr(draft, "make_proposer"):
        raise UsageError(f'draft = {draft!r}: must be a network, "lookup", a DraftModel or a PromptLookup')
    return draft
