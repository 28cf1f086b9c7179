"""Filter the logits: plain functions that say what may come next. The second of decoding's four roles.

Each takes logits (R, V) and the tokens so far (R, T), −1 where there is none, and gives logits (R, V); what may not
come has −∞. A filter of your own is any function of that shape.
"""

import math

import torch
from torch import Tensor

from qkv.decode.options import Filter, Options

NEVER = float("-inf")


def repetition(penalty: float) -> Filter:
    """Tokens that have occurred become less likely: positive logits are divided by the penalty, negative multiplied."""

    def apply(logits: Tensor, tokens: Tensor) -> Tensor:
        rows, vocab = logits.shape
        index = torch.where(tokens >= 0, tokens, vocab)  # padding marks a column of its own, which is dropped
        seen = torch.zeros(rows, vocab + 1, dtype=torch.bool, device=logits.device).scatter(1, index, True)[:, :vocab]
        return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)

    return apply


def no_repeat(n: int) -> Filter:
    """No n tokens in a row may occur twice."""

    def apply(logits: Tensor, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length < n:
            return logits
        windows = tokens.unfold(1, n, 1)  # (R, T − n + 1, n)
        last = tokens[:, length - n + 1 :]  # (R, n − 1)
        again = (windows[:, :, :-1] == last[:, None]).all(-1) & (windows >= 0).all(-1)  # (R, T − n + 1)
        banned = torch.zeros_like(logits, dtype=torch.bool)
        row, place = again.nonzero(as_tuple=True)
        banned[row, windows[row, place, -1]] = True
        return logits.masked_fill(banned, NEVER)

    return apply


def ban(tokens: tuple[int, ...]) -> Filter:
    """These tokens never come."""
    held: dict[torch.device, Tensor] = {}  # copied once, not at every step

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        if logits.device not in held:
            held[logits.device] = torch.tensor(tokens, device=logits.device)
        return logits.index_fill(1, held[logits.device], NEVER)

    return apply


def not_before(length: int, end: tuple[int, ...]) -> Filter:
    """No end while fewer than `length` tokens stand there."""
    ban_end = ban(end)

    def apply(logits: Tensor, tokens: Tensor) -> Tensor:
        return ban_end(logits, tokens) if tokens.shape[1] < length else logits

    return apply


def temperature(value: float) -> Filter:
    """Flatter above 1, sharper below."""
    return lambda logits, _: logits / value


def top_k(k: int) -> Filter:
    """The k likeliest."""

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
        return logits.masked_fill(logits < least, NEVER)

    return apply


def top_p(p: float) -> Filter:
    """The fewest of the likeliest whose probabilities reach p together; always the likeliest one."""

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        ordered, index = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)  # the probability of all likelier ones
        drop = before >= p
        return logits.masked_fill(drop.scatter(1, index, drop), NEVER)

    return apply


def min_p(p: float) -> Filter:
    """Those at least p times as likely as the likeliest."""

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        log_likely = logits.log_softmax(-1)
        return logits.masked_fill(log_likely < log_likely.amax(-1, keepdim=True) + math.log(p), NEVER)

    return apply


def filters_of(options: Options, end: tuple[int, ...], start_length: int) -> list[Filter]:
    """The filters that a request asks for, in the order in which they apply."""
    chosen: list[Filter] = []
    if options.repetition_penalty != 1.0:
        chosen.append(repetition(options.repetition_penalty))
    if options.no_repeat:
        chosen.append(no_repeat(options.no_repeat))
    if options.banned:
        chosen.append(ban(options.banned))
    if options.min_tokens and end:
        chosen.append(not_before(start_length + options.min_tokens, end))
    chosen += options.filters
    if options.temperature > 0:
        if options.temperature != 1.0:
            chosen.append(temperature(options.temperature))
        if options.top_k:
            chosen.append(top_k(options.top_k))
        if options.top_p < 1.0:
            chosen.append(top_p(options.top_p))
        if options.min_p > 0.0:
            chosen.append(min_p(options.min_p))
    return chosen


def settled(options: Options) -> bool:
    """Whether the filters that a request asks for look at the logits alone, so that each step filters as the last."""
    looking_back = options.repetition_penalty != 1.0 or options.no_repeat or options.min_tokens or options.filters
    return not looking_back and options.constraint is None
