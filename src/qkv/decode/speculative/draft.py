"""Cheap guesses at the next tokens, for speculative decoding: from a look at the text so far, or by a small model.

What guesses decide is only how fast a text is written, never what: `qkv.decode.speculate` checks each of them.

V vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from qkv.blocks import CrossCache
from qkv.decode.options import LogitsProcessor
from qkv.decode.runner import promote_to_float32
from qkv.decode.sampling import argmax, sample
from qkv.errors import UsageError
from qkv.models import Decoder, Network, Seq2Seq


@dataclass
class Proposal:
    """Tokens that may come next, in order, and the distributions (V,) that they were drawn from, if they were."""

    ids: list[int] = field(default_factory=list)
    draft_probs: list[Tensor] | None = None


class Proposer(Protocol):
    """Guesses for one text, from its beginning to its end."""

    def propose(self, tokens: list[int], max_tokens: int) -> Proposal:
        """At most `count` tokens that may follow `tokens`, which is all that was read and written so far."""


class Draft(Protocol):
    """Where guesses come from."""

    def make_proposer(
        self,
        network: Decoder | Seq2Seq,
        source: Sequence[int] | None,
        filters: list[LogitsProcessor],
        generator: torch.Generator | None,
    ) -> Proposer:
        """For a new text that `network` will write; without a generator the likeliest tokens are wanted, not draws."""


class PromptLookup:
    """Prompt look-up: what followed the last time that the text read like this.

    Good for texts that repeat what they read: summaries, corrections, code, answers from a document. An
    encoder-decoder's source counts as text where source and target share their vocabulary.
    """

    def __init__(self, max_ngram_size: int = 3) -> None:
        """The last `longest` tokens are looked for first, then fewer, down to one."""
        if max_ngram_size < 1:
            raise UsageError(f"longest = {max_ngram_size}: at least one token is looked up")
        self.max_ngram_size = max_ngram_size

    def make_proposer(
        self,
        network: Decoder | Seq2Seq,
        source: Sequence[int] | None,
        filters: list[LogitsProcessor],
        generator: torch.Generator | None,
    ) -> "PromptLookupProposer":
        return PromptLookupProposer(self.max_ngram_size, list(source or ()) if network.config.share_embeddings else [])


class PromptLookupProposer:
    """An index of what followed each run of tokens, kept up to date as the text grows."""

    def __init__(self, max_ngram_size: int, source: list[int]) -> None:
        self.max_ngram_size, self.source = max_ngram_size, source
        self._continuations: dict[tuple[int, ...], int] = {}  # run of tokens → where the text went on, the last time
        self._indexed = 1

    def propose(self, tokens: list[int], max_tokens: int) -> Proposal:
        text = [*self.source, *tokens]
        for place in range(self._indexed, len(text)):
            for n in range(1, min(self.max_ngram_size, place) + 1):
                self._continuations[tuple(text[place - n : place])] = place
        self._indexed = max(self._indexed, len(text))
        for n in range(min(self.max_ngram_size, len(text)), 0, -1):
            found = self._continuations.get(tuple(text[-n:]))
            if found is not None:
                return Proposal(text[found : found + max_tokens])
        return Proposal()


class DraftModel:
    """A small model of the same family and vocabulary, which writes ahead."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def make_proposer(
        self,
        network: Decoder | Seq2Seq,
        source: Sequence[int] | None,
        filters: list[LogitsProcessor],
        generator: torch.Generator | None,
    ) -> "DraftModelProposer":
        small, large = self.network.config, network.config
        if type(self.network) is not type(network) or small.head.kind != "lm":
            raise UsageError(
                f"a {small.family} with a {small.head.kind} head cannot write ahead of a {large.family}; "
                "take a smaller model of the same family"
            )
        if small.stack.vocab_size != large.stack.vocab_size:
            raise UsageError(
                f"the draft has a vocabulary of {small.stack.vocab_size}, the model one of {large.stack.vocab_size}; "
                "both must have the same tokens"
            )
        assert isinstance(self.network, Decoder | Seq2Seq)
        return DraftModelProposer(self.network, source, filters, generator)


class DraftModelProposer:
    """The small model, with a cache of its own; what was guessed wrong is taken back at the next call."""

    def __init__(
        self,
        network: Decoder | Seq2Seq,
        source: Sequence[int] | None,
        filters: list[LogitsProcessor],
        generator: torch.Generator | None,
    ) -> None:
        self.network, self.filters, self.generator = network, filters, generator
        self.cache = network.new_cache(1, 64)
        self.device = next(network.parameters()).device
        self.cross_cache: CrossCache | None = None
        if isinstance(network, Seq2Seq):
            assert source is not None
            self.cross_cache = network.build_cross_cache(
                network.encode(torch.tensor([list(source)], device=self.device))
            )
        self._cached_tokens: list[int] = []

    def propose(self, tokens: list[int], max_tokens: int) -> Proposal:
        config = self.network.decoder.config
        if config.has_max_positions:
            max_tokens = min(max_tokens, config.max_positions - len(tokens) + 1)
        out = Proposal(draft_probs=None if self.generator is None else [])
        for _ in range(max_tokens):
            text = [*tokens, *out.ids]
            logits = self._next_logits(text)
            for apply in self.filters:
                logits = apply(logits, torch.tensor([text], device=self.device))
            if not bool((logits > float("-inf")).any()):
                break
            if out.draft_probs is None or self.generator is None:
                out.ids.append(int(argmax(logits)))
            else:
                out.ids.append(int(sample(logits, [self.generator])))
                out.draft_probs.append(logits[0].double().softmax(-1))
        return out

    def _next_logits(self, text: list[int]) -> Tensor:
        """What the small model says follows (1, V), reading only what it has not read."""
        known = next(
            (i for i, (a, b) in enumerate(zip(self._cached_tokens, text, strict=False)) if a != b),
            len(self._cached_tokens),
        )
        known = min(known, len(text) - 1)
        self.cache.crop(known)
        fed = torch.tensor([text[known:]], device=self.device)
        self._cached_tokens = list(text)
        if isinstance(self.network, Seq2Seq):
            assert self.cross_cache is not None
            x, _ = self.network.hidden(fed, self.cross_cache, cache=self.cache)
        else:
            x, _ = self.network.hidden(fed, cache=self.cache)
        return promote_to_float32(self.network.head.project(x[:, -1]))
