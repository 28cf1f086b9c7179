"""The work between two forward passes: filter the logits, choose tokens, and collect their log-probabilities.

All of it runs on the device. Each step copies a few numbers per sequence to the CPU, in one copy. If the filters depend
only on the logits, the selection of tokens can be captured as a CUDA graph (`gpu/graph_runner.py`).

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
    """Filters the logits, chooses the next tokens, and reports `num_logprobs` alternatives for each."""

    filters: Sequence[LogitsProcessor] = ()
    num_logprobs: int = 0
    is_stateless: bool = False  # whether the filters depend only on the logits

    def __call__(self, logits: Tensor, tokens: Tensor, uniforms: Tensor | None) -> Tensor:
        """Choose tokens from the logits (R, V), given the tokens so far (R, T). Returns `pack_step_output`'s tensor.

        With `uniforms`, random numbers (R,), the tokens are sampled. Without them they are the argmax.
        """
        raw = logits
        for apply in self.filters:
            logits = apply(logits, tokens)
        chosen = argmax(logits) if uniforms is None else sample_by_inverse_cdf(logits, uniforms)
        return pack_step_output(raw, logits, chosen, self.num_logprobs)


def pack_step_output(raw: Tensor, filtered: Tensor, chosen: Tensor, num_logprobs: int) -> Tensor:
    """Return one float64 tensor (R, 3 + 2A), so that one copy to the CPU is enough. `unpack_step_output` reads it.

    The columns: the chosen token, its log-probability before the filters, its logit after the filters, the A most
    probable tokens before the filters, and their log-probabilities.
    """
    token = chosen[:, None]
    normalizer = logsumexp(raw)[:, None]
    raw_logit = raw.gather(1, token).double()
    filtered_logit = raw_logit if filtered is raw else filtered.gather(1, token).double()
    columns = [token.double(), raw_logit - normalizer, filtered_logit]
    if num_logprobs:
        best, ids = raw.topk(num_logprobs)
        columns += [ids.double(), best.double() - normalizer]
    return torch.cat(columns, dim=1)


def unpack_step_output(step_output: Tensor) -> Iterator[tuple[TokenLogprob, QkvError | None]]:
    """Yield the chosen token of each sequence, and an error if no token could be chosen."""
    for token, logprob, filtered_logit, *more in step_output.tolist():
        alternatives = unpack_alternatives(more, len(more) // 2)
        yield TokenLogprob(int(token), logprob, alternatives), step_error(logprob, filtered_logit)


def unpack_alternatives(columns: Sequence[float], count: int) -> dict[int, float]:
    """Return the first `count` alternatives, from the last columns of `pack_step_output`."""
    half = len(columns) // 2
    return dict(zip(map(int, columns[:count]), columns[half:], strict=False))


def step_error(logprob: float, filtered_logit: float) -> QkvError | None:
    """Return an error if no token could be chosen."""
    if isnan(logprob):
        return NonFiniteLogits()
    return None if filtered_logit > float("-inf") else no_token_allowed()


class NonFiniteLogits(QkvError):
    """The model's logits are NaN."""

    def __init__(self) -> None:
        super().__init__(
            "the model's logits are not numbers (NaN) at this step: its weights are damaged, or too large for "
            "the dtype that it computes in; load it with another dtype, or check how it was trained"
        )


def no_token_allowed() -> QkvError:
    """Return the error for a step at which every token is forbidden."""
    return QkvError(
        "every token is forbidden at this step, because the filters or the constraint exclude all of them; "
        "relax suppress_tokens, no_repeat_ngram_size, logits_processors or constraint"
    )


def token_logprobs(logits: Tensor, chosen: Tensor, num_logprobs: int) -> list[TokenLogprob]:
    """Return the log-probabilities of the chosen tokens (R,) under the unfiltered logits (R, V)."""
    return [logprob for logprob, _ in unpack_step_output(pack_step_output(logits, logits, chosen, num_logprobs))]
