"""Edits: change activations in a forward pass or while generating.

    zero_ablate("decoder.3.z", heads=[5])                     set to zero
    mean_ablate("decoder.*.mlp_out", traces)                  set to the mean of other runs
    resample_ablate("decoder.3.attn_out", traces, seed=0)     set to values of random tokens of other runs
    patch("decoder.3.resid_pre", trace, positions=[4])        copy from another run
    steer("decoder.6.resid_post", vector, scale=4.0)          add a vector
    change("decoder.6.mlp_post", function)                    apply a function

    network(ids, tap=EditTap(edits)), model.trace(text, edits=edits), model.generate(text, edits=edits)

An edit has a site, which may be a glob pattern, and can be limited to heads, positions and neurons. Positions count the
tokens of a sequence from 0, without padding. Negative positions count from the end of the sequence; while generating,
from the end of the prompt. An edit of position p applies when the model reads token p: the tokens of the prompt in the
prefill, and each generated token in its own step. As the keys and values of a token are computed once and cached, the
result is the same as without a cache. Without `positions`, an edit applies to the prompt and to all generated tokens.

B batch, T tokens or queries, S keys, H heads, D head dim, C model width, N tokens of other runs
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from qkv.errors import UsageError
from qkv.inside.edit_tap import Edit, SiteContext, expand_token_mask
from qkv.inside.sites import MATRIX_SITES, PER_HEAD_SITES
from qkv.inside.trace import Trace

Value = TypeVar("Value")


class Where(TypedDict, total=False):
    """The part of a site that an edit changes; a field that is None does not limit it."""

    heads: Sequence[int] | None
    positions: Sequence[int] | slice | None
    neurons: Sequence[int] | None


NUM_RESAMPLED_POSITIONS = 2**14
"""The random choice of `resample_ablate` repeats after this number of positions."""


def zero_ablate(site: str, **where: Unpack[Where]) -> Edit:
    """Set a site to zero."""
    return Edit(site, lambda value, context: torch.zeros_like(value), **where)


def mean_ablate(site: str, means: Iterable[Trace] | Mapping[str, Tensor], **where: Unpack[Where]) -> Edit:
    """Set a site to its mean over all tokens of other runs, given as traces or as the result of `mean_values`.

    The mean of scores and patterns is taken for each pair of query and key, so these runs must have equal lengths.
    """
    if not isinstance(means, Mapping):
        means = mean_values(means, site)
    table: Mapping[str, Tensor] = means

    def replacement(value: Tensor, context: SiteContext) -> Tensor:
        mean = _look_up(table, context.name, "means")
        if context.activation in MATRIX_SITES:
            return _take_rows(mean, value, context, context.positions)
        if context.activation in PER_HEAD_SITES:
            mean = mean[:, None]  # (H, 1, D)
        return mean.to(value).expand_as(value)

    return Edit(site, replacement, **where)


def resample_ablate(site: str, traces: Iterable[Trace], *, seed: int = 0, **where: Unpack[Where]) -> Edit:
    """Set each token's value to the value of a random token of other runs. The seed and the position choose the token.

    For scores and patterns, the seed chooses one of the runs, which must have the length of the edited run. To use the
    values of one other run at the same positions, use `patch`.
    """
    pools: dict[str, list[Tensor]] = {}
    for trace in traces:
        for name, value in trace.values.items():
            if fnmatchcase(name, site):
                pools.setdefault(name, []).append(value)
    joined: dict[str, Tensor] = {}  # (N, C) or (H, N, D), concatenated when they are first used

    def replacement(value: Tensor, context: SiteContext) -> Tensor:
        pool = _look_up(pools, context.name, "traces")
        generator = torch.Generator().manual_seed(seed + zlib.crc32(context.name.encode()))
        if context.activation in MATRIX_SITES:
            chosen = int(torch.randint(len(pool), (1,), generator=generator))
            return _take_rows(pool[chosen], value, context, context.positions)
        if context.name not in joined:
            joined[context.name] = torch.cat(pool, dim=-2)
        values = joined[context.name]
        table = torch.randint(values.shape[-2], (NUM_RESAMPLED_POSITIONS,), generator=generator)
        indices = table[context.positions.cpu() % NUM_RESAMPLED_POSITIONS]
        return _take_tokens(values, indices).to(value).expand_as(value)

    return Edit(site, replacement, **where)


def patch(site: str, trace: Trace, *, source_positions: Sequence[int] | None = None, **where: Unpack[Where]) -> Edit:
    """Copy a site from another run, position by position.

    `source_positions` are the positions in the trace that correspond to `positions`; by default, they are equal.
    Without `positions`, tokens beyond the end of the trace keep their values.
    """
    positions = where.get("positions")
    listed = tuple(positions) if isinstance(positions, Sequence) else None
    if source_positions is not None and (listed is None or len(listed) != len(source_positions)):
        raise UsageError("source_positions need the same number of `positions`, as a list")
    if source_positions is not None and any(p < 0 for p in (*listed, *source_positions)):  # type: ignore[misc]
        raise UsageError("source_positions: give positions from 0, not negative ones")
    origin = dict(zip(listed, source_positions, strict=True)) if listed and source_positions is not None else None

    def replacement(value: Tensor, context: SiteContext) -> Tensor:
        donor = _look_up(trace.values, context.name, "trace")
        indices = context.positions.cpu()
        if origin is not None:
            indices = indices.clone().apply_(lambda position: origin.get(position, position))
        length = donor.shape[-2]
        missing = [p for p in (listed if origin is None else origin.values()) or () if p >= length]
        if missing:
            raise UsageError(f"position {missing[0]}: the trace has {length} tokens at {context.name}; give lower ones")
        inside = indices < length
        indices = indices.clamp(max=length - 1)
        if context.activation in MATRIX_SITES:
            new = _take_rows(donor, value, context, indices)
        else:
            new = _take_tokens(donor, indices).to(value).expand_as(value)
        return torch.where(expand_token_mask(inside.to(value.device), context), new, value)

    return Edit(site, replacement, **where)


def steer(site: str, vector: Tensor, *, scale: float = 1.0, **where: Unpack[Where]) -> Edit:
    """Add `scale` × `vector` to a site. The vector has the size of the last axis: (C,), or (D,) for each head."""

    def replacement(value: Tensor, context: SiteContext) -> Tensor:
        if vector.shape != value.shape[-1:]:
            raise UsageError(
                f"the vector has shape {tuple(vector.shape)}, but the vectors of {context.name} have width "
                f"{value.shape[-1]}; use a vector of this width"
            )
        return value + scale * vector.to(value)

    return Edit(site, replacement, **where)


def change(site: str, function: Callable[[Tensor], Tensor], **where: Unpack[Where]) -> Edit:
    """Apply a function to the whole value, which has a batch axis. Only the chosen heads, positions, … are replaced."""
    return Edit(site, lambda value, context: function(value), **where)


def mean_values(traces: Iterable[Trace], sites: str = "*") -> dict[str, Tensor]:
    """Return the mean of each site over all tokens of all traces: (C,), or (H, D) for values per head.

    The mean of scores and patterns is (H, T, S), over the traces, which must have equal lengths.
    """
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    for trace in traces:
        for name, value in trace.values.items():
            if not fnmatchcase(name, sites):
                continue
            is_matrix = name.endswith(MATRIX_SITES)
            if is_matrix and name in sums and sums[name].shape != value.shape:
                raise UsageError(f"{name}: the mean of a pattern needs texts of equal length; use another site")
            total = value.double() if is_matrix else value.double().sum(dim=-2)
            sums[name] = sums[name] + total if name in sums else total
            counts[name] = counts.get(name, 0) + (1 if is_matrix else value.shape[-2])
    return {name: total / counts[name] for name, total in sums.items()}


def _take_tokens(values: Tensor, indices: Tensor) -> Tensor:
    """Take the tokens at indices (B, T) from values (N, C) → (B, T, C), or (H, N, D) → (B, H, T, D)."""
    return values[indices] if values.dim() == 2 else values[:, indices].transpose(0, 1)


def _take_rows(matrix: Tensor, value: Tensor, context: SiteContext, indices: Tensor) -> Tensor:
    """Take the queries at indices (B, T) from scores or a pattern (H, T', S') → (B, H, T, S).

    While generating, a causal pattern has as many keys as there are tokens so far. Keys beyond them are masked.
    """
    indices = indices.cpu()
    if len(matrix) != value.shape[1]:
        raise UsageError(f"{context.name}: the other run has only some heads; record it without `heads`")
    if int(indices.max()) >= matrix.shape[1]:
        raise UsageError(
            f"{context.name}: the other run has {matrix.shape[1]} tokens, but this run has more; choose positions that "
            "both runs have"
        )
    if context.has_padding:
        raise UsageError(f"{context.name}: patterns of padded sequences cannot be replaced; run them one by one")
    num_keys, wanted = matrix.shape[-1], value.shape[-1]
    if num_keys != wanted and ("cross_" in context.name or context.name.startswith("encoder")):
        raise UsageError(f"{context.name}: the other run has {num_keys} keys, and this one {wanted}; use equal lengths")
    rows = matrix[:, indices].transpose(0, 1)[..., :wanted]
    masked = 0.0 if context.activation == "pattern" else float("-inf")
    rows = torch.nn.functional.pad(rows, (0, wanted - rows.shape[-1]), value=masked)
    return rows.to(value).expand_as(value)


def _look_up(table: Mapping[str, Value], name: str, argument: str) -> Value:
    if name not in table:
        raise UsageError(f"{argument}: nothing was recorded at {name!r}, which this edit replaces; record it")
    return table[name]
