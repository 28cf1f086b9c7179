"""Filters: functions that change the logits of the next token.

A filter takes logits (R, V) and the tokens so far (R, T), left-padded with −1. It returns logits (R, V), in which
forbidden tokens have −∞. Any function with this signature can be one of the `logits_processors` of a call.
"""

import math

import torch
from torch import Tensor

from qkv.decode.options import GenerationOptions, LogitsProcessor

NEG_INF = float("-inf")


def repetition_penalty(penalty: float) -> LogitsProcessor:
    """Lower the logits of tokens that have occurred: divide positive ones by the penalty, multiply negative ones."""

    def apply(logits: Tensor, tokens: Tensor) -> Tensor:
        rows, vocab = logits.shape
        index = torch.where(tokens >= 0, tokens, vocab)  # padding marks an extra column, which is dropped
        seen = torch.zeros(rows, vocab + 1, dtype=torch.bool, device=logits.device).scatter(1, index, True)[:, :vocab]
        return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)

    return apply


def no_repeat_ngram(n: int) -> LogitsProcessor:
    """Forbid tokens that would complete an n-gram that has occurred."""

    def apply(logits: Tensor, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length < n:
            return logits
        windows = tokens.unfold(1, n, 1)  # (R, T − n + 1, n)
        last = tokens[:, length - n + 1 :]  # (R, n − 1)
        repeats = (windows[:, :, :-1] == last[:, None]).all(-1) & (windows >= 0).all(-1)  # (R, T − n + 1)
        forbidden = torch.zeros_like(logits, dtype=torch.bool)
        row, start = repeats.nonzero(as_tuple=True)
        forbidden[row, windows[row, start, -1]] = True
        return logits.masked_fill(forbidden, NEG_INF)

    return apply


def suppress(tokens: tuple[int, ...]) -> LogitsProcessor:
    """Forbid these tokens."""
    ids_on: dict[torch.device, Tensor] = {}  # a copy on each device, so that a step copies nothing

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        if logits.device not in ids_on:
            ids_on[logits.device] = torch.tensor(tokens, device=logits.device)
        return logits.index_fill(1, ids_on[logits.device], NEG_INF)

    return apply


def suppress_eos_before(length: int, eos_token_ids: tuple[int, ...]) -> LogitsProcessor:
    """Forbid the end-of-sequence tokens while there are fewer than `length` columns of tokens.

    The columns include the padded prompts and the generated tokens.
    """
    suppress_eos = suppress(eos_token_ids)

    def apply(logits: Tensor, tokens: Tensor) -> Tensor:
        return suppress_eos(logits, tokens) if tokens.shape[1] < length else logits

    return apply


def temperature(value: float) -> LogitsProcessor:
    """Divide the logits by the temperature. Above 1 the distribution becomes flatter, below 1 sharper."""
    return lambda logits, _: logits / value


def top_k(k: int) -> LogitsProcessor:
    """Keep the k most probable tokens."""

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
        return logits.masked_fill(logits < least, NEG_INF)

    return apply


def top_p(p: float) -> LogitsProcessor:
    """Keep the smallest set of most probable tokens with a total probability of at least p."""

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        ordered, index = logits.sort(descending=True)
        probs = ordered.softmax(-1)
        # Drop a token if the tokens before it already have a total probability of at least p.
        drop = probs.cumsum(-1) - probs >= p
        return logits.masked_fill(drop.scatter(1, index, drop), NEG_INF)

    return apply


def min_p(p: float) -> LogitsProcessor:
    """Keep the tokens that have at least p times the largest probability."""

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        logprobs = logits.log_softmax(-1)
        return logits.masked_fill(logprobs < logprobs.amax(-1, keepdim=True) + math.log(p), NEG_INF)

    return apply


def make_filters(
    options: GenerationOptions, eos_token_ids: tuple[int, ...], prompt_length: int
) -> list[LogitsProcessor]:
    """Return the filters of a call, in the order in which they run."""
    filters: list[LogitsProcessor] = []
    if options.repetition_penalty != 1.0:
        filters.append(repetition_penalty(options.repetition_penalty))
    if options.no_repeat_ngram_size:
        filters.append(no_repeat_ngram(options.no_repeat_ngram_size))
    if options.suppress_tokens:
        filters.append(suppress(options.suppress_tokens))
    if options.min_tokens and eos_token_ids:
        filters.append(suppress_eos_before(prompt_length + options.min_tokens, eos_token_ids))
    filters += options.logits_processors
    if options.temperature > 0:
        if options.temperature != 1.0:
            filters.append(temperature(options.temperature))
        if options.top_k:
            filters.append(top_k(options.top_k))
        if options.top_p < 1.0:
            filters.append(top_p(options.top_p))
        if options.min_p > 0.0:
            filters.append(min_p(options.min_p))
    return filters


def has_stateless_filters(options: GenerationOptions) -> bool:
    """Return whether the filters of a call depend only on the logits, not on the tokens so far."""
    needs_tokens = (
        options.repetition_penalty != 1.0
        or options.no_repeat_ngram_size
        or options.min_tokens
        or options.logits_processors
    )
    return not needs_tokens and options.constraint is None
