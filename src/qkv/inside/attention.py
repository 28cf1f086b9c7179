"""Attention inside a trace: patterns of chosen layers and heads, value-weighted patterns, summaries of heads, rollout.

A trace that has q and k needs no patterns: `attention_pattern` computes them from q, k and the mask when they are
needed. q and k grow with the length of the text, and patterns with its square.

T queries, S keys, H heads, KV key/value heads, D head dim, C model width
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from qkv.blocks import Mask, Stack
from qkv.blocks.attention import Attention, pattern, scores
from qkv.blocks.block import Block
from qkv.blocks.kernels.prepared import PreparedMask
from qkv.errors import UsageError, suggest_name
from qkv.inside.sites import require_blocks
from qkv.inside.trace import Trace
from qkv.models import Network

RESIDUAL_FRACTION = 0.5
"""In attention rollout, the fraction of a token's state that it keeps in each attention (Abnar and Zuidema 2020)."""


def attention_pattern(network: Network, trace: Trace, site: str, heads: Sequence[int] | None = None) -> Tensor:
    """Return the pattern (H, T, S) of a site such as "decoder.3.cross_pattern", for chosen heads (default: all).

    The pattern is the recorded one. If the trace has none, it is computed from the recorded q and k.
    """
    chosen = _check_heads(network, site, heads)
    if site in trace:
        recorded = list(range(len(trace[site]))) if trace.heads is None else list(trace.heads)
        if set(chosen) <= set(recorded):
            return trace[site][[recorded.index(head) for head in chosen]]
    prefix = site.removesuffix("pattern")
    if f"{prefix}q" not in trace or f"{prefix}k" not in trace:
        raise UsageError(f"{site}: neither this pattern nor {prefix}q and {prefix}k were recorded; record one of them")
    return compute_pattern(network, trace, site, chosen)


def compute_pattern(network: Network, trace: Trace, site: str, heads: Sequence[int]) -> Tensor:
    """Compute the pattern (H, T, S) of some heads from the recorded q and k, the mask and the position bias."""
    stack, attention = find_attention(network, site)
    prefix, chosen = site.removesuffix("pattern"), list(heads)
    q, k = trace[f"{prefix}q"][chosen], trace[f"{prefix}k"][key_heads(attention, chosen)]
    queries = trace.queries(site).layout()
    bias = None
    if "cross_" in site:
        mask = Mask(queries, trace.keys(site).layout())
    else:
        mask = Mask(queries, queries, stack.causal, stack.config.window_of(int(site.split(".")[1])))
        if stack.bias is not None:
            positions = queries.positions.to(network.device)
            with torch.no_grad():
                bias = stack.bias(positions, positions, q.dtype).cpu()[:, chosen]
    raw = scores(q[None], k[None], PreparedMask(mask, "eager", bias), attention.scale, attention.score_cap)
    return pattern(raw, None if attention.sinks is None else attention.sinks[chosen].detach().cpu())[0]


def value_weighted_pattern(network: Network, trace: Trace, site: str, heads: Sequence[int] | None = None) -> Tensor:
    """Return ‖αᵢⱼ vⱼ Wₒ‖ (H, T, S): the norm of the vector that key j adds to the output of query i in each head.

    A large attention weight on a token with a small value vector has little effect (Kobayashi et al. 2020).
    """
    _, attention = find_attention(network, site)
    chosen = _check_heads(network, site, heads)
    weights = attention_pattern(network, trace, site, chosen)
    v = trace[site.removesuffix("pattern") + "v"][key_heads(attention, chosen)].to(weights.dtype)  # (H, S, D)
    w_o = output_matrices(attention)[chosen].to(weights.dtype)  # (H, D, C)
    norms: Tensor = torch.linalg.vector_norm(v @ w_o, dim=-1)  # (H, S)
    return weights * norms[:, None, :]


@dataclass(frozen=True)
class HeadSummary:
    """A summary of one head: means over the queries of a text, or of several texts.

    A value is None where it is not defined, such as `mean_distance` for cross-attention.
    """

    site: str
    head: int
    entropy: float  # of the attention weights of a query, in nats
    max_weight: float  # the largest weight of a query
    first_token: float  # the weight on the first token
    mean_distance: float | None = None  # Σ weight · |query position − key position|; self-attention
    previous_token: float | None = None  # the weight on the token before the query; self-attention
    induction: float | None = None  # the weight on the token after an earlier occurrence of the query's token
    separator: float | None = None  # the weight on special tokens such as [SEP]
    alignment: float | None = None  # the weight on the keys that are aligned with the query; cross-attention


def head_summaries(
    traces: Trace | Iterable[Trace], *, alignment: Collection[tuple[int, int]] | None = None
) -> list[HeadSummary]:
    """Summarise every recorded pattern, head by head. Several traces are averaged.

    `alignment` has pairs of a query position in the target and a key position in the source. `induction` is None for a
    text without repeated tokens, and `separator` is None for a text without special tokens.
    """
    found: dict[tuple[str, int], list[HeadSummary]] = {}
    for trace in [traces] if isinstance(traces, Trace) else traces:
        sites = [site for site in trace if site.endswith("pattern")]
        if not sites:
            raise UsageError('the trace has no patterns; record it with sites="*pattern"')
        for site in sites:
            heads = trace.heads if trace.heads is not None else range(len(trace[site]))
            for head, weights in zip(heads, trace[site], strict=True):
                found.setdefault((site, head), []).append(_summarise(trace, site, head, weights, alignment))
    return [_mean_summary(summaries) for summaries in found.values()]


@dataclass(frozen=True)
class Rollout:
    """Attention rollout: which input tokens the state of each token is made of. Every row sums to 1.

    An encoder-only or decoder-only model has one matrix. In an encoder-decoder, the rows of `decoder` (T, T) and
    `source` (T, S) together sum to 1.
    """

    encoder: Tensor | None = None  # (S, S)
    decoder: Tensor | None = None  # (T, T)
    source: Tensor | None = None  # (T, S)


def rollout(network: Network, trace: Trace) -> Rollout:
    """Multiply the attention patterns of all layers, as if each token kept half of its state in each attention.

    The trace needs the patterns of all layers. The weights of a layer are the means over its recorded heads.
    """
    require_blocks(network.config, "attention rollout")
    if "decoder" not in trace.tokens:
        return Rollout(encoder=_roll_out_self_attention(network, trace, "encoder"))
    if "encoder" not in trace.tokens:
        return Rollout(decoder=_roll_out_self_attention(network, trace, "decoder"))
    encoder = _roll_out_self_attention(network, trace, "encoder")
    decoder = torch.eye(len(trace.tokens["decoder"]), dtype=torch.float64)
    source = torch.zeros(len(decoder), len(encoder), dtype=torch.float64)
    own = _mean_patterns(network, trace, "decoder", "pattern")
    cross = _mean_patterns(network, trace, "decoder", "cross_pattern")
    kept = _kept_fraction(network, "decoder")
    for self_weights, cross_weights in zip(own, cross, strict=True):
        decoder, source = _mix(kept, decoder, self_weights @ decoder), _mix(kept, source, self_weights @ source)
        decoder, source = kept * decoder, _mix(kept, source, cross_weights @ encoder)
    return Rollout(encoder, decoder, source)


def find_attention(network: Network, site: str) -> tuple[Stack, Attention]:
    """Return the stack and the attention module of a site such as "decoder.3.cross_pattern"."""
    require_blocks(network.config, f"{site}: this function")
    name, _, rest = site.partition(".")
    stack, layer = network.stacks.get(name), rest.partition(".")[0]
    if not isinstance(stack, Stack) or not layer.isdigit() or int(layer) >= stack.config.layers:
        known = [f"{part}.{i}.pattern" for part in network.stacks for i in range(3)]
        raise UsageError(f"this model has no site {site!r}; {suggest_name(site, known)}")
    block = stack.block_of(int(layer))
    assert isinstance(block, Block)
    attention = block.cross if "cross_" in site else block.attention
    if attention is None:
        raise UsageError(f"{site}: this model has no cross-attention")
    return stack, attention


def output_matrices(attention: Attention) -> Tensor:
    """Return the output matrix of each head, (H, D, C): the output of a head is z Wₒ."""
    weight = attention.out.weight.detach().cpu()  # (C, H·D)
    if weight.numel() == 0:
        raise UsageError("this network was quantized for decoding and has no full weights; use the original model")
    return weight.T.reshape(attention.heads, attention.head_dim, -1)


def key_heads(attention: Attention, heads: Sequence[int]) -> list[int]:
    """Return the key/value head of each query head (grouped-query attention)."""
    return [head * attention.kv_heads // attention.heads for head in heads]


def _check_heads(network: Network, site: str, heads: Sequence[int] | None) -> list[int]:
    _, attention = find_attention(network, site)
    chosen = list(range(attention.heads) if heads is None else heads)
    for head in chosen:
        if not 0 <= head < attention.heads:
            raise UsageError(f"heads: there is no head {head}; {site} has heads 0 … {attention.heads - 1}")
    return chosen


def _summarise(
    trace: Trace, site: str, head: int, weights: Tensor, alignment: Collection[tuple[int, int]] | None
) -> HeadSummary:
    weights = weights.double()  # (T, S)
    queries, keys = trace.queries(site), trace.keys(site)
    is_cross = "cross_" in site
    entropy = -torch.special.xlogy(weights, weights).sum(-1).mean()
    special = torch.tensor(keys.special)
    separator = float(weights[:, special].sum(-1).mean()) if bool(special.any()) else None
    distance = previous = induction = aligned = None
    if is_cross:
        if alignment:
            linked = torch.zeros_like(weights)
            for query, key in alignment:
                linked[query, key] = 1.0
            has_link = linked.any(-1)
            aligned = float((weights * linked).sum(-1)[has_link].mean())
    else:
        positions = torch.arange(len(queries), dtype=torch.float64)
        distance = float((weights * (positions[:, None] - positions).abs()).sum(-1).mean())
        previous = float(weights.diagonal(-1).mean()) if len(queries) > 1 else None
        induction = _induction(weights, queries.ids)
    return HeadSummary(
        site,
        head,
        entropy=float(entropy),
        max_weight=float(weights.amax(-1).mean()),
        first_token=float(weights[:, 0].mean()),
        mean_distance=distance,
        previous_token=previous,
        induction=induction,
        separator=separator,
        alignment=aligned,
    )


def _induction(weights: Tensor, ids: Sequence[int]) -> float | None:
    """Return the mean weight on tokens that follow an earlier occurrence of the query's token."""
    sums = []
    for query, token in enumerate(ids):
        followers = [i + 1 for i in range(query) if ids[i] == token]
        if followers:
            sums.append(float(weights[query, followers].sum()))
    return sum(sums) / len(sums) if sums else None


def _mean_summary(summaries: list[HeadSummary]) -> HeadSummary:
    means: dict[str, Any] = {"site": summaries[0].site, "head": summaries[0].head}
    for field in fields(HeadSummary)[2:]:
        values = [value for summary in summaries if (value := getattr(summary, field.name)) is not None]
        means[field.name] = sum(values) / len(values) if values else None
    return HeadSummary(**means)


def _mean_patterns(network: Network, trace: Trace, stack: str, activation: str) -> list[Tensor]:
    """Return the pattern of each layer of a stack, averaged over heads, (T, S)."""
    layers = range(getattr(network, stack).config.layers)
    return [trace[f"{stack}.{layer}.{activation}"].double().mean(dim=0) for layer in layers]


def _roll_out_self_attention(network: Network, trace: Trace, stack: str) -> Tensor:
    state = torch.eye(len(trace.tokens[stack]), dtype=torch.float64)
    for weights in _mean_patterns(network, trace, stack, "pattern"):
        state = _mix(_kept_fraction(network, stack), state, weights @ state)
    return state


def _kept_fraction(network: Network, stack: str) -> float:
    """The fraction of its state that a token keeps in each attention: none without skip connections."""
    return RESIDUAL_FRACTION if getattr(network, stack).config.residual != "none" else 0.0


def _mix(fraction: float, kept: Tensor, attended: Tensor) -> Tensor:
    return fraction * kept + (1 - fraction) * attended
