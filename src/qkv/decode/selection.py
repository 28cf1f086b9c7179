"""Between two forward passes: filter the logits, choose tokens, and collect their log-probabilities.

All of it runs on the device, with one device-to-host copy for each step: a few numbers for each sequence. If the
filters depend on the logits only, every step does the same work, and a CUDA graph captures it (`gpu/graph_runner.py`).

R sequences, V vocabulary, A alternatives
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
    """Chooses the next tokens: the filters to apply, and how many alternatives to report."""

    filters: Sequence[LogitsProcessor] = ()
    num_logprobs: int = 0
    is_stateless: bool = False  # whether the filters depend on the logits only

    def __call__(self, logits: Tensor, tokens: Tensor, uniforms: Tensor | None) -> Tensor:
        """Logits (R, V), tokens so far (R, T) and, to sample, random numbers (R,) → what `unpack_step_output` reads."""
        raw = logits
        for apply in self.filters:
            logits = apply(logits, tokens)
        chosen = argmax(logits) if uniforms is None else sample_by_inverse_cdf(logits, uniforms)
        return pack_step_output(raw, logits, chosen, self.num_logprobs)


def pack_step_output(raw: Tensor, filtered: Tensor, chosen: Tensor, num_logprobs: int) -> Tensor:
    """(R, 3 + 2A) in float64: tokens, their log-probabilities before and their logits after the filters; then the most
    probable tokens and their log-probabilities."""
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
    """The token chosen in each row, and an error if no token could be chosen."""
    for token, logprob, filtered_logit, *more in step_output.tolist():
        half = len(more) // 2
        alternatives = dict(zip(map(int, more[:half]), more[half:], strict=True)) if more else {}
        error = NonFiniteLogits() if isnan(logprob) else None if filtered_logit > float("-inf") else no_token_allowed()
        yield TokenLogprob(int(token), logprob, alternatives), error


class NonFiniteLogits(QkvError):
    """A model's logits are NaN."""

    def __init__(self) -> None:
        super().__init__(
            "the model's logits are not numbers (NaN) at this step: its weights are damaged, or too large for "
            "the dtype that it computes in; load it with another dtype, or check how it was trained"
        )


def no_token_allowed() -> QkvError:
    """The error of a step that may choose no token."""
    return QkvError("every token is forbidden at this step; relax the filters or the constraint")


def token_logprobs(logits: Tensor, chosen: Tensor, num_logprobs: int) -> list[TokenLogprob]:
    """The model's log-probabilities of chosen tokens (R,), before any filter; logits (R, V)."""
    return [logprob for logprob, _ in unpack_step_output(pack_step_output(logits, logits, chosen, num_logprobs))]
