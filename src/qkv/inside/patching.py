"""Activation patching: replace one position or head of a run by the value of another run, and measure the effect.

    clean, corrupted = m.trace("The capital of France is", sites="*.resid_pre"), m.trace("The capital of Spain is")
    metric = logit_difference(paris, madrid)
    activation_patching(m.network, corrupted, clean, metric, sites="*.resid_pre").recovered      # layer × position
    activation_patching(m.network, corrupted, clean, metric, sites="*.z", over="head")           # layer × head

`activation_patching` runs the model once for each cell of the matrix, in batches. `attribution_patching` estimates the
same matrix from one forward and one backward pass: gradient × difference, the first-order approximation.

B batch, T tokens, H heads, V vocabulary, R rows (sites), K columns (positions or heads)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor

from qkv.blocks import Tap
from qkv.errors import UsageError
from qkv.inside.forward import repeat_inputs
from qkv.inside.sites import MATRIX_SITES, PER_HEAD_SITES, activation_of, check_sites, list_sites
from qkv.inside.trace import LOGITS, Trace
from qkv.models import Network
from qkv.models.runtime import eval_mode

Metric = Callable[[Tensor], Tensor]
"""A function of the logits (B, T, V) that returns one number per sequence, (B,)."""
Over = Literal["position", "head"]
"""The columns of the matrix."""
Donor = Trace | Mapping[str, Tensor] | Literal["zero"]
"""The new values: those of another run, means (the result of `mean_values`), or zeros."""


@dataclass(frozen=True)
class PatchingResult:
    """The metric after replacing one part at a time: each row is a site, each column a position or a head."""

    values: Tensor  # (R, K)
    sites: tuple[str, ...]
    over: Over
    baseline: float  # the metric without a replacement
    donor: float | None  # the metric of the other run, if the donor is one

    @property
    def effects(self) -> Tensor:
        """The change of the metric, (R, K)."""
        return self.values - self.baseline

    @property
    def recovered(self) -> Tensor:
        """The change as a fraction of the difference between the two runs, (R, K): 1 recovers all of it."""
        if self.donor is None or self.donor == self.baseline:
            raise UsageError("recovered needs a donor run whose metric differs from the baseline; use effects")
        return self.effects / (self.donor - self.baseline)


def logit_difference(token: int, other: int, position: int = -1) -> Metric:
    """Return a metric: the logit of a token minus the logit of another token, at one position."""
    return lambda logits: logits[:, position, token] - logits[:, position, other]


def token_logprob(token: int, position: int = -1) -> Metric:
    """Return a metric: the log-probability of a token at one position."""
    return lambda logits: logits[:, position].log_softmax(-1)[:, token]


def activation_patching(
    network: Network,
    base: Trace,
    donor: Donor,
    metric: Metric,
    *,
    sites: str | Sequence[str] = "*.resid_pre",
    over: Over = "position",
    batch_size: int = 32,
) -> PatchingResult:
    """Replace each position, or each head, of each site by the donor's value, and measure the metric.

    `base` is the run that is changed; only its tokens are used. The donor needs the values of the sites. All sites must
    have the same number of columns, so call it for the encoder and the decoder separately.
    """
    names = _check_sites(network, base, sites, over)
    rows = []
    with eval_mode(network):
        baseline = _measure(network, base, metric)
        for site in names:
            num_columns, cells = _num_columns(network, base, site, over), []
            for start in range(0, num_columns, batch_size):
                columns = range(start, min(start + batch_size, num_columns))
                tap = Tap(change={site: _replace_columns(donor, site, columns, over)})
                cells.append(metric(network(repeat_inputs(network, base, len(columns)), tap=tap)).cpu())
            rows.append(torch.cat(cells))
        donor_metric = _measure(network, donor, metric) if isinstance(donor, Trace) else None
    return PatchingResult(torch.stack(rows), tuple(names), over, baseline, donor_metric)


def attribution_patching(
    network: Network,
    base: Trace,
    donor: Donor,
    metric: Metric,
    *,
    sites: str | Sequence[str] = "*.resid_pre",
    over: Over = "position",
) -> PatchingResult:
    """Estimate the result of `activation_patching` from one forward and one backward pass: gradient × (donor − base).

    The estimate is the first-order approximation. It is good for small replacements, and poor where a replacement
    saturates a softmax or changes the scale of a norm: compare it with `activation_patching` before you rely on it.
    """
    names = _check_sites(network, base, sites, over)
    values: dict[str, Tensor] = {}
    offsets: dict[str, Tensor] = {}

    def add_offset(site: str) -> Callable[[Tensor], Tensor]:
        def change(value: Tensor) -> Tensor:
            values[site] = value.detach()
            offsets[site] = torch.zeros_like(value, requires_grad=True)
            return value + offsets[site]

        return change

    tap = Tap(change={site: add_offset(site) for site in names})
    with eval_mode(network), torch.enable_grad():
        measured = metric(network(repeat_inputs(network, base, 1), tap=tap))[0]
        gradients = torch.autograd.grad(measured, [offsets[site] for site in names])
    baseline, rows = float(measured.detach()), []
    for site, gradient in zip(names, gradients, strict=True):
        value = values[site][0]
        difference = (_donor_value(donor, site, value) - value).nan_to_num(nan=0.0)  # −∞ − −∞ at masked scores
        effect = (gradient[0] * difference).movedim(_column_axis(site, over), 0).flatten(1).sum(1)
        rows.append(baseline + effect.cpu())
    with eval_mode(network):
        donor_metric = _measure(network, donor, metric) if isinstance(donor, Trace) else None
    return PatchingResult(torch.stack(rows), tuple(names), over, baseline, donor_metric)


def _measure(network: Network, trace: Trace, metric: Metric) -> float:
    measured = metric(network(repeat_inputs(network, trace, 1)))
    if measured.shape != (1,):
        raise UsageError(f"the metric returned shape {tuple(measured.shape)} for one sequence; return one number each")
    return float(measured[0])


def _check_sites(network: Network, base: Trace, sites: str | Sequence[str], over: Over) -> list[str]:
    """Return the names of the sites, and raise an error if they cannot be the rows of one matrix."""
    if over not in ("position", "head"):
        raise UsageError(f'over = {over!r} is unknown; choose "position" or "head"')
    patterns = check_sites(network.config, sites)
    names = [n for n in list_sites(network.config) if n != LOGITS and any(fnmatchcase(n, p) for p in patterns)]
    if over == "head" and not all(activation_of(name) in PER_HEAD_SITES for name in names):
        raise UsageError(f'over="head" needs sites with a head axis ({", ".join(PER_HEAD_SITES)}), got {sites!r}')
    if len({_num_columns(network, base, name, over) for name in names}) > 1:
        raise UsageError(
            f"{sites!r} matches sites with different numbers of columns; patch them separately, such as "
            '"encoder.*.resid_pre" and "decoder.*.resid_pre"'
        )
    return names


def _num_columns(network: Network, base: Trace, site: str, over: Over) -> int:
    if over == "position":
        return len(base.queries(site))
    stack = getattr(network, site.partition(".")[0]).config
    return int(stack.kv_heads if activation_of(site) in ("k", "v") else stack.heads)


def _replace_columns(donor: Donor, site: str, columns: Sequence[int], over: Over) -> Callable[[Tensor], Tensor]:
    """Return a change for a batch: in sequence i, it replaces column `columns[i]` by the donor's value."""
    axis = _column_axis(site, over)

    def change(value: Tensor) -> Tensor:
        new, out = _donor_value(donor, site, value[0]), value.clone()
        for row, column in enumerate(columns):
            out[row].select(axis, column).copy_(new.select(axis, column))
        return out

    return change


def _column_axis(site: str, over: Over) -> int:
    """Return the axis of positions or heads in a value without a batch axis."""
    return 1 if over == "position" and activation_of(site) in PER_HEAD_SITES else 0


def _donor_value(donor: Donor, site: str, value: Tensor) -> Tensor:
    """Return the donor's value of a site in the shape of `value`, which has no batch axis."""
    if isinstance(donor, str):
        if donor != "zero":
            raise UsageError(f'donor = {donor!r} is unknown; give a trace, means or "zero"')
        return torch.zeros_like(value)
    table = donor.values if isinstance(donor, Trace) else donor
    if site not in table:
        raise UsageError(f"the donor has no values of {site}; record them: m.trace(text, sites=…)")
    new = table[site].to(value)
    if not isinstance(donor, Trace) and activation_of(site) not in MATRIX_SITES:
        new = (new[:, None] if activation_of(site) in PER_HEAD_SITES else new).expand_as(value)
    if new.shape != value.shape:
        raise UsageError(
            f"{site}: the donor has shape {tuple(new.shape)}, and the base run {tuple(value.shape)}; "
            "the two texts must have the same number of tokens"
        )
    return new
