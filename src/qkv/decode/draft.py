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
from qkv.decode.choose import draw, likeliest
from qkv.decode.options import Filter
from qkv.decode.run import exact
from qkv.errors import UsageError
from qkv.models import Decoder, Network, Seq2Seq


@dataclass
class Guesses:
    """Tokens that may come next, in order, and the distributions (V,) that they were drawn from, if they were."""

    ids: list[int] = field(default_factory=list)
    drawn_from: list[Tensor] | None = None


class Guesser(Protocol):
    """Guesses for one text, from its beginning to its end."""

    def guess(self, tokens: list[int], count: int) -> Guesses:
        """At most `count` tokens that may follow `tokens`, which is all that was read and written so far."""


class Draft(Protocol):
    """Where guesses come from."""

    def begin(
        self,
        network: Decoder | Seq2Seq,
        source: Sequence[int] | None,
        filters: list[Filter],
        generator: torch.Generator | None,
    ) -> Guesser:
        """For a new text that `network` will write; without a generator the likeliest tokens are wanted, not draws."""


class Lookup:
    """Prompt look-up: what followed the last time that the text read like this.

    Good for texts that repeat what they read: summaries, corrections, code, answers from a document. An
    encoder-decoder's source counts as text where source and target share their vocabulary.
    """

    def __init__(self, longest: int = 3) -> None:
        """The last `longest` tokens are looked for first, then fewer, down to one."""
        if longest < 1:
            raise UsageError(f"longest = {longest}: at least one token is looked up")
        self.longest = longest

    def begin(
        self,
        network: Decoder | Seq2Seq,
        source: Sequence[int] | None,
        filters: list[Filter],
        generator: torch.Generator | None,
    ) -> "LookupGuesser":
        return LookupGuesser(self.longest, list(source or ()) if network.config.shared_embedding else [])


class LookupGuesser:
    """An index of what followed each run of tokens, kept up to date as the text grows."""

    def __init__(self, longest: int, before: list[int]) -> None:
        self.longest, self.before = longest, before
        self._follows: dict[tuple[int, ...], int] = {}  # run of tokens → where the text went on, the last time
        self._indexed = 1

    def guess(self, tokens: list[int], count: int) -> Guesses:
        text = [*self.before, *tokens]
        for place in range(self._indexed, len(text)):
            for n in range(1, min(self.longest, place) + 1):
                self._follows[tuple(text[place - n : place])] = place
        self._indexed = max(self._indexed, len(text))
        for n in range(min(self.longest, len(text)), 0, -1):
            found = self._follows.get(tuple(text[-n:]))
            if found is not None:
                return Guesses(text[found : found + count])
        return Guesses()


class DraftModel:
    """A small model of the same family and vocabulary, which writes ahead."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def begin(
        self,
        network: Decoder | Seq2Seq,
        source: Sequence[int] | None,
        filters: list[Filter],
        generator: torch.Generator | None,
    ) -> "ModelGuesser":
        small, large = self.network.config, network.config
        if type(self.network) is not type(network) or small.head.kind != "lm":
            raise UsageError(
                f"a {small.family} with a {small.head.kind} head cannot write ahead of a {large.family}; "
                "take a smaller model of the same family"
            )
        if small.stack.vocab != large.stack.vocab:
            raise UsageError(
                f"the draft has a vocabulary of {small.stack.vocab}, the model one of {large.stack.vocab}; "
                "both must have the same tokens"
            )
        assert isinstance(self.network, Decoder | Seq2Seq)
        return ModelGuesser(self.network, source, filters, generator)


class ModelGuesser:
    """The small model, with a cache of its own; what was guessed wrong is taken back at the next call."""

    def __init__(
        self,
        network: Decoder | Seq2Seq,
        source: Sequence[int] | None,
        filters: list[Filter],
        generator: torch.Generator | None,
    ) -> None:
        self.network, self.filters, self.generator = network, filters, generator
        self.cache = network.new_cache(1, 64)
        self.device = next(network.parameters()).device
        self.cross: CrossCache | None = None
        if isinstance(network, Seq2Seq):
            assert source is not None
            self.cross = network.remember(network.encode(torch.tensor([list(source)], device=self.device)))
        self._read: list[int] = []

    def guess(self, tokens: list[int], count: int) -> Guesses:
        config = self.network.decoder.config
        if config.limited:
            count = min(count, config.max_positions - len(tokens) + 1)
        out = Guesses(drawn_from=None if self.generator is None else [])
        for _ in range(count):
            text = [*tokens, *out.ids]
            logits = self._next(text)
            for apply in self.filters:
                logits = apply(logits, torch.tensor([text], device=self.device))
            if not bool((logits > float("-inf")).any()):
                break
            if out.drawn_from is None or self.generator is None:
                out.ids.append(int(likeliest(logits)))
            else:
                out.ids.append(int(draw(logits, [self.generator])))
                out.drawn_from.append(logits[0].double().softmax(-1))
        return out

    def _next(self, text: list[int]) -> Tensor:
        """What the small model says follows (1, V), reading only what it has not read."""
        known = next((i for i, (a, b) in enumerate(zip(self._read, text, strict=False)) if a != b), len(self._read))
        known = min(known, len(text) - 1)
        self.cache.crop(known)
        fed = torch.tensor([text[known:]], device=self.device)
        self._read = list(text)
        if isinstance(self.network, Seq2Seq):
            assert self.cross is not None
            x, _ = self.network.hidden(fed, self.cross, cache=self.cache)
        else:
            x, _ = self.network.hidden(fed, cache=self.cache)
        return exact(self.network.head.read(x[:, -1]))
