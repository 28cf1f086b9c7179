"""Choose the next tokens of the engine's requests, each with its own options, and copy them to the CPU without waiting.

R sequences, V vocabulary
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.decode.engine.pages import to_device
from qkv.decode.engine.request import Request
from qkv.decode.runner import promote_to_float32
from qkv.decode.sampling import argmax, draw_uniforms, sample_by_inverse_cdf
from qkv.decode.selection import pack_step_output

FailedRequests = list[tuple[Request, Exception]]
"""The requests one of whose filters raised an error."""


@dataclass(eq=False)
class PendingTokens:
    """The tokens of one forward pass, which the device may still be computing."""

    requests: Sequence[Request | None]  # None: the row has no new token here
    step_output: Tensor  # on the CPU; complete after `event`
    event: torch.cuda.Event | None

    def read(self) -> Iterator[tuple[Request | None, list[float]]]:
        """Wait for the tokens. Returns each request with its row of `pack_step_output`."""
        if self.event is not None:
            self.event.synchronize()
        return zip(self.requests, self.step_output.tolist(), strict=True)


def choose_tokens(
    requests: Sequence[Request | None], logits: Tensor, argmax_output: Tensor | None, newest_tokens: Tensor | None
) -> tuple[list[PendingTokens], FailedRequests]:
    """Choose the next token of each request, from the logits (R, V), and write it to `newest_tokens` at its slot.

    `argmax_output` (R, 3) is the result for plain requests, which a graph has already written to `newest_tokens`.
    """
    out: list[PendingTokens] = []
    errors: FailedRequests = []
    if argmax_output is not None:
        out.append(_start_copy([r if r and r.is_plain else None for r in requests], argmax_output))
    others = [(row, r) for row, r in enumerate(requests) if r and not (r.is_plain and argmax_output is not None)]
    if others:
        chosen = [request for _, request in others]
        if len(others) < len(requests):
            logits = logits[to_device(torch.tensor([row for row, _ in others]), logits.device)]
        step_output = _select_tokens(chosen, promote_to_float32(logits), errors)
        if newest_tokens is not None:
            slots = to_device(torch.tensor([request.slot for request in chosen]), logits.device)
            newest_tokens.index_copy_(0, slots, step_output[:, 0].long())
        out.append(_start_copy(chosen, step_output))
    return out, errors


def _select_tokens(requests: Sequence[Request], logits: Tensor, errors: FailedRequests) -> Tensor:
    """Filter the logits and choose a token for each request. Returns `pack_step_output`'s tensor."""
    filtered = _filter(requests, logits, errors)
    chosen = argmax(filtered)
    sampled = [row for row, request in enumerate(requests) if request.generator is not None]
    if sampled:
        uniforms = draw_uniforms([r.generator for r in requests if r.generator is not None])
        index = to_device(torch.tensor(sampled), logits.device)
        chosen[index] = sample_by_inverse_cdf(filtered[index], to_device(uniforms, logits.device))
    return pack_step_output(logits, filtered, chosen, max(request.options.logprobs for request in requests))


def _filter(requests: Sequence[Request], raw: Tensor, errors: FailedRequests) -> Tensor:
    """Apply the filters of each request to its logits. Equal filters that depend only on the logits run together."""
    groups: dict[object, list[int]] = {}  # the rows of requests with the same filters
    for row, request in enumerate(requests):
        if request.filters:
            o = request.options
            settings = (o.temperature, o.top_k, o.top_p, o.min_p, tuple(o.suppress_tokens))
            groups.setdefault(settings if request.has_stateless_filters else row, []).append(row)
    out = raw.clone() if groups else raw
    for rows in groups.values():
        request, index = requests[rows[0]], to_device(torch.tensor(rows), raw.device)
        logits, tokens = raw[index], to_device(torch.tensor([request.tokens]), raw.device)
        try:
            for apply in request.filters:
                logits = apply(logits, tokens)
        except Exception as error:
            errors.append((request, error))
        else:
            out[index] = logits
    return out


def _start_copy(requests: Sequence[Request | None], step_output: Tensor) -> PendingTokens:
    for request in requests:
        if request is not None:
            request.length += 1
    if not step_output.is_cuda:
        return PendingTokens(requests, step_output, None)
    copied, event = step_output.to("cpu", non_blocking=True), torch.cuda.Event()
    event.record()
    return PendingTokens(requests, copied, event)
