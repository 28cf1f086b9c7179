"""The examples of a corpus that excite a unit most.

A unit is one entry of the last axis of a site: a neuron of `mlp_post`, a dimension of the residual stream, or, with
`encode`, a feature of a sparse autoencoder. The corpus is read once, in batches, and only the best examples are kept.

B batch, T tokens, U units, K kept examples, W tokens of a context window, C model width
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.blocks import Tap
from qkv.errors import UsageError
from qkv.inside.forward import Example, batched, inputs_at, make_inputs
from qkv.inside.sites import check_sites
from qkv.inside.tokens import TokenList, list_tokens
from qkv.models import Network
from qkv.models.runtime import eval_mode
from qkv.progress import OnProgress
from qkv.text import Tokenizer

NO_TOKEN = -1
"""Fills the part of a window that lies outside the text."""
PER_TOKEN_SITES = (
    *("resid_pre", "attn_out", "resid_mid", "cross_out", "cross_mid"),
    *("mlp_pre", "mlp_post", "mlp_out", "resid_post", "state", "final"),
)
"""The sites with one vector for each token."""


@dataclass(frozen=True)
class ActivatingExample:
    """A token that excites a unit, with the tokens around it."""

    value: float
    example: int  # the number of the example in the corpus, from 0
    position: int  # the position of the token in its example
    tokens: TokenList  # the window around it
    values: tuple[float, ...]  # the activation at each token of the window
    offset: int  # the index of the token in the window

    @property
    def text(self) -> str:
        """The window as text, with the exciting token in brackets."""
        texts = self.tokens.texts
        return "".join((*texts[: self.offset], f"[{texts[self.offset]}]", *texts[self.offset + 1 :]))


@dataclass(frozen=True)
class UnitExamples:
    """The examples that excite one unit most, in decreasing order. An example occurs at most once."""

    unit: int
    examples: tuple[ActivatingExample, ...]
    active_fraction: float  # the fraction of all tokens at which the unit is above 0


def top_examples(
    network: Network,
    examples: Iterable[Example],
    site: str,
    units: Sequence[int] | None = None,
    *,
    num_examples: int = 10,
    context: int = 10,
    encode: Callable[[Tensor], Tensor] | None = None,
    tokenizer: Tokenizer | None = None,
    batch_size: int = 16,
    progress: OnProgress | None = None,
) -> dict[int, UnitExamples]:
    """Return the examples that excite each unit of a site most.

    `units` are the numbers of the units; None means all. `context` is the number of tokens to keep on each side.
    `encode` maps the activations at the site to other units, such as the features of a sparse autoencoder.
    """
    check_per_token_site(network, site)
    ranking: Ranking | None = None
    for values, ids, is_token in stream_site(network, examples, site, batch_size, progress):
        values = values if encode is None else encode(values)
        if ranking is None:
            ranking = Ranking(check_units(units, values.shape[-1]), num_examples, context)
        ranking.add(values, ids, is_token)
    if ranking is None:
        raise UsageError("there are no examples; give at least one")
    side = tokenizer.target if tokenizer is not None and site.startswith("decoder") else tokenizer
    return ranking.results(side)


def stream_site(
    network: Network, examples: Iterable[Example], site: str, batch_size: int = 16, progress: OnProgress | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Run examples in batches; yield the activations (B, T, C) at a site, the token ids and a mask of real tokens."""
    done = 0
    for batch in batched(examples, batch_size):
        inputs = make_inputs(network, batch)
        tap = Tap(record=[site])
        with eval_mode(network):
            network.hidden(inputs, tap=tap)
        read = inputs_at(inputs, site)
        yield tap[site].detach(), read.ids, read.is_token
        done += len(batch)
        if progress is not None:
            progress(done, 0)


def check_per_token_site(network: Network, site: str) -> None:
    """Raise an error unless `site` names exactly one site of the model, and this site has one vector per token."""
    check_sites(network.config, site)
    if any(character in site for character in "*?[") or site.rsplit(".", 1)[-1] not in PER_TOKEN_SITES:
        raise UsageError(
            f"{site!r}: give one site that has a vector for each token, such as 'decoder.0.mlp_post'; "
            f"its last part is one of {', '.join(PER_TOKEN_SITES)}"
        )


def check_units(units: Sequence[int] | None, num_units: int) -> list[int]:
    """Return the units as a list; None means all."""
    if units is None:
        return list(range(num_units))
    wrong = [unit for unit in units if not 0 <= unit < num_units]
    if wrong:
        raise UsageError(f"units: there is no unit {wrong[0]}; this site has units 0 … {num_units - 1}")
    return list(units)


class Ranking:
    """Keeps the K best examples of each unit, with the tokens and the activations around the best token."""

    def __init__(self, units: list[int], num_examples: int, context: int) -> None:
        self.units, self.num_examples, self.context = units, num_examples, context
        width = 2 * context + 1
        shape = (num_examples, len(units))
        self.best = torch.full(shape, float("-inf"))  # (K, U)
        self.examples = torch.full(shape, -1)
        self.positions = torch.full(shape, -1)
        self.ids = torch.full((*shape, width), NO_TOKEN)  # (K, U, W)
        self.values = torch.zeros(*shape, width)
        self.active = torch.zeros(len(units))
        self.num_seen = self.num_tokens = 0

    def add(self, values: Tensor, ids: Tensor, is_token: Tensor) -> None:
        """Add a batch: activations (B, T, units of the site), token ids (B, T), and which of them are tokens."""
        chosen = values if len(self.units) == values.shape[-1] else values[..., self.units]
        chosen = chosen.detach().float().cpu()  # (B, T, U)
        ids, is_token = ids.cpu(), is_token.cpu()
        self.active += ((chosen > 0) & is_token[:, :, None]).sum((0, 1))
        self.num_tokens += int(is_token.sum())
        best, positions = chosen.masked_fill(~is_token[:, :, None], float("-inf")).max(1)  # (B, U)
        windows, inside = self._windows(positions, is_token)  # (B, U, W)
        rows = torch.arange(len(ids))[:, None, None]
        window_ids = ids[rows, windows].masked_fill(~inside, NO_TOKEN)
        window_values = chosen[rows, windows, torch.arange(chosen.shape[-1])[:, None]].masked_fill(~inside, 0.0)
        numbers = (self.num_seen + torch.arange(len(ids)))[:, None].expand_as(positions)
        self.num_seen += len(ids)
        kept = torch.cat([self.best, best]).topk(self.num_examples, dim=0).indices  # (K, U)
        self.best = torch.cat([self.best, best]).gather(0, kept)
        self.examples = torch.cat([self.examples, numbers]).gather(0, kept)
        self.positions = torch.cat([self.positions, positions]).gather(0, kept)
        wide = kept[:, :, None].expand(-1, -1, windows.shape[-1])
        self.ids = torch.cat([self.ids, window_ids]).gather(0, wide)
        self.values = torch.cat([self.values, window_values]).gather(0, wide)

    def _windows(self, positions: Tensor, is_token: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions around the best ones, (B, U) → (B, U, W), and whether each is a token of the text."""
        around = positions[:, :, None] + torch.arange(-self.context, self.context + 1)
        clamped = around.clamp(0, is_token.shape[1] - 1)
        inside = (around == clamped) & is_token[torch.arange(len(is_token))[:, None, None], clamped]
        return clamped, inside

    def results(self, tokenizer: Tokenizer | None) -> dict[int, UnitExamples]:
        """Return the kept examples of each unit, the best first."""
        found = {}
        for column, unit in enumerate(self.units):
            listed = [self._example(row, column, tokenizer) for row in range(self.num_examples)]
            fraction = float(self.active[column]) / max(self.num_tokens, 1)
            found[unit] = UnitExamples(unit, tuple(example for example in listed if example is not None), fraction)
        return found

    def _example(self, row: int, column: int, tokenizer: Tokenizer | None) -> ActivatingExample | None:
        if int(self.examples[row, column]) < 0:
            return None
        ids = self.ids[row, column]
        inside = ids != NO_TOKEN
        return ActivatingExample(
            value=float(self.best[row, column]),
            example=int(self.examples[row, column]),
            position=int(self.positions[row, column]),
            tokens=list_tokens(ids[inside].tolist(), tokenizer),
            values=tuple(self.values[row, column][inside].tolist()),
            offset=int(inside[: self.context].sum()),
        )
