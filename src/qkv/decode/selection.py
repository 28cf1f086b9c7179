"""What lies between two steps: filter the logits, choose, and say what is known of the choice.

All of it is work on the device, and the host reads the outcome back once, a few numbers a row. Where the filters look
at the logits alone it is the same work at every step, so that a CUDA graph can hold it (`qkv.decode.graph_run`).

R rows, V vocabulary, A alternatives
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan

import torch
from torch import Tensor

from qkv.decode.options import LogitsProcessor
from qkv.decode.result import TokenLogprob
from qkv.decode.sampling import argmax, logsumexp, sample_by_inverse_cdf
from qkv.errors import QkvError


@dataclass(frozen=True)
class TokenSelector:
    """How tokens are chosen: by which filters, and how many likeliest ones are told besides."""

    filters: Sequence[LogitsProcessor] = ()
    num_logprobs: int = 0
    is_stateless: bool = False  # the filters look at the logits alone

    def __call__(self, logits: Tensor, tokens: Tensor, uniforms: Tensor | None) -> Tensor:
        """Logits (R, V), the tokens so far (R, T) and, for a draw, a number in [0, 1) a row → what `heard` reads."""
        raw = logits
        for apply in self.filters:
            logits = apply(logits, tokens)
        chosen = argmax(logits) if uniforms is None else sample_by_inverse_cdf(logits, uniforms)
        return pack_step_output(raw, logits, chosen, self.num_logprobs)


def pack_step_output(raw: Tensor, filtered: Tensor, chosen: Tensor, num_logprobs: int) -> Tensor:
    """(R, 3 + 2A) in float64: tokens, their log-probabilities before any filter, their logits after all; likeliest
    tokens and theirs."""
    at = chosen[:, None]
    total = logsumexp(raw)[:, None]
    own = raw.gather(1, at).double()
    left = own if filtered is raw else filtered.gather(1, at).double()
    columns = [at.double(), own - total, left]
    if num_logprobs:
        best, ids = raw.topk(num_logprobs)
        columns += [ids.double(), best.double() - total]
    return torch.cat(columns, dim=1)


def unpack_step_output(step_output: Tensor) -> Iterator[tuple[TokenLogprob, QkvError | None]]:
    """What was chosen in each row, and an error where nothing could be."""
    for token, logprob, left, *more in step_output.tolist():
        half = len(more) // 2
        alternatives = dict(zip(map(int, more[:half]), more[half:], strict=True)) if more else {}
        trouble = NonFiniteLogits() if isnan(logprob) else None if left > float("-inf") else no_token_allowed()
        yield TokenLogprob(int(token), logprob, alternatives), trouble


class NonFiniteLogits(QkvError):
    """A model's scores are NaN."""

    def __init__(self) -> None:
        super().__init__(
            "the model's scores are not numbers (NaN) at this step: its weights are damaged, or they are too large for "
            "the type of number that it computes in"
        )


def no_token_allowed() -> QkvError:
    return QkvError("every token is forbidden at this step; loosen the filters or the constraint")


def token_logprobs(logits: Tensor, chosen: Tensor, num_logprobs: int) -> list[TokenLogprob]:
    """The model's own log-probabilities of the tokens chosen (R,), before any filter; logits (R, V)."""
    return [logprob for logprob, _ in unpack_step_output(pack_step_output(logits, logits, chosen, num_logprobs))]
