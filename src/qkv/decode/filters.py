"""Filter the logits: plain functions that say what may come next. The second of decoding's four roles.

Each takes logits (R, V) and the tokens so far (R, T), −1 where there is none, and gives logits (R, V); what may not
come has −∞. A filter of your own is any function of that shape.
"""

import math

import torch
from torch import Tensor

from qkv.decode.options import GenerationOptions, LogitsProcessor

NEG_INF = float("-inf")


def repetition_penalty(penalty: float) -> LogitsProcessor:
    """Tokens that have occurred become less likely: positive logits are divided by the penalty, negative multiplied."""

    def apply(logits: Tensor, tokens: Tensor) -> Tensor:
        rows, vocab = logits.shape
        index = torch.where(tokens >= 0, tokens, vocab)  # padding marks a column of its own, which is dropped
        seen = torch.zeros(rows, vocab + 1, dtype=torch.bool, device=logits.device).scatter(1, index, True)[:, :vocab]
        return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)

    return apply


def no_repeat_ngram(n: int) -> LogitsProcessor:
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
        return logits.masked_fill(banned, NEG_INF)

    return apply


def suppress(tokens: tuple[int, ...]) -> LogitsProcessor:
    """These tokens never come."""
    held: dict[torch.device, Tensor] = {}  # copied once, not at every step

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        if logits.device not in held:
            held[logits.device] = torch.tensor(tokens, device=logits.device)
        return logits.index_fill(1, held[logits.device], NEG_INF)

    return apply


def suppress_eos_before(length: int, eos_token_ids: tuple[int, ...]) -> LogitsProcessor:
    """No end while fewer than `length` tokens stand there."""
    ban_end = suppress(eos_token_ids)

    def apply(logits: Tensor, tokens: Tensor) -> Tensor:
        return ban_end(logits, tokens) if tokens.shape[1] < length else logits

    return apply


def temperature(value: float) -> LogitsProcessor:
    """Flatter above 1, sharper below."""
    return lambda logits, _: logits / value


def top_k(k: int) -> LogitsProcessor:
    """The k likeliest."""

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        least = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
        return logits.masked_fill(logits < least, NEG_INF)

    return apply


def top_p(p: float) -> LogitsProcessor:
    """The fewest of the likeliest whose probabilities reach p together; always the likeliest one."""

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        ordered, index = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)  # the probability of all likelier ones
        drop = before >= p
        return logits.masked_fill(drop.scatter(1, index, drop), NEG_INF)

    return apply


def min_p(p: float) -> LogitsProcessor:
    """Those at least p times as likely as the likeliest."""

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        log_likely = logits.log_softmax(-1)
        return logits.masked_fill(log_likely < log_likely.amax(-1, keepdim=True) + math.log(p), NEG_INF)

    return apply


def make_filters(
    options: GenerationOptions, eos_token_ids: tuple[int, ...], prompt_length: int
) -> list[LogitsProcessor]:
    """The filters that a request asks for, in the order in which they apply."""
    chosen: list[LogitsProcessor] = []
    if options.repetition_penalty != 1.0:
        chosen.append(repetition_penalty(options.repetition_penalty))
    if options.no_repeat_ngram_size:
        chosen.append(no_repeat_ngram(options.no_repeat_ngram_size))
    if options.suppress_tokens:
        chosen.append(suppress(options.suppress_tokens))
    if options.min_tokens and eos_token_ids:
        chosen.append(suppress_eos_before(prompt_length + options.min_tokens, eos_token_ids))
    chosen += options.logits_processors
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


def are_stateless(options: GenerationOptions) -> bool:
    """Whether the filters that a request asks for look at the logits alone, so that each step filters as the last."""
    looking_back = (
        options.repetition_penalty != 1.0
        or options.no_repeat_ngram_size
        or options.min_tokens
        or options.logits_processors
    )
    return not looking_back and options.constraint is None
