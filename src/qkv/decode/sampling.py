"""Choose tokens: the likeliest, or a draw. The third of decoding's four roles."""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.errors import QkvError


def argmax(logits: Tensor) -> Tensor:
    """(R, V) → (R,), the first of equals."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(logits.numpy().argmax(-1))  # NumPy's runs on vectors: twenty times as fast there
    return logits.argmax(-1)


def fast_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and where they stand, largest first: `topk`, with one look at most of the vocabulary.

    Columns that are V/16 apart stand for one another: the k largest lie in the k groups with the largest maxima, or in
    what is left over, and only those are looked at again. That is three times as fast on a CPU.
    """
    rows, vocab = logits.shape
    groups = vocab // 16
    if logits.device.type != "cpu" or groups <= 4 * k:
        return logits.topk(k)
    whole = 16 * groups
    top = logits[:, :whole].view(rows, 16, groups).amax(1).topk(k).indices  # (R, k)
    ids = (top[:, :, None] + torch.arange(0, whole, groups)).flatten(1)
    if whole < vocab:
        ids = torch.cat([ids, torch.arange(whole, vocab).expand(rows, -1)], dim=1)
    best, index = logits.gather(1, ids).topk(k)
    return best, ids.gather(1, index)


def logsumexp(logits: Tensor) -> Tensor:
    """log Σ eˣ of each row, (…, V) → (…), in float64; −∞ where every token is forbidden.

    From the largest and its probability, which no rounding can lose: log Σ eˣ = max x − log softmax(x) there. Only
    that probability is taken in the type of the logits, so that vectors of float32 do the work.
    """
    largest = logits.amax(-1).double()
    share = logits.softmax(-1).amax(-1).double()
    return torch.where(largest == float("-inf"), largest, largest - share.log())


def sample(logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """One token a row, by its probability; each row has a generator of its own, so that neighbours change nothing.

    One uniform number a row, then the inverse of the cumulative distribution: (R, V) → (R,).
    """
    if bool((logits == float("-inf")).all(-1).any()):
        raise QkvError("every token is forbidden at this step; loosen the filters")
    return sample_by_inverse_cdf(logits, draw_uniforms(generators).to(logits.device))


def draw_uniforms(generators: Sequence[torch.Generator]) -> Tensor:
    """A number in [0, 1) from each, (R,)."""
    return torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])


def sample_by_inverse_cdf(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Where each row's cumulative distribution reaches its number: (R, V), (R,) → (R,); any token if all are −∞."""
    cumulative = logits.double().softmax(-1).cumsum(-1)
    wanted = uniforms[:, None] * cumulative[:, -1:]  # the sum is 1 only up to rounding
    token = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
    return token.clamp(max=logits.shape[-1] - 1)


def make_generators(seed: int | None, num_sequences: int) -> list[torch.Generator]:
    """A generator for each row; without a seed, seeds from torch's own generator."""
    seeds = [seed] * num_sequences if seed is not None else torch.randint(0, 2**62, (num_sequences,)).tolist()
    return [torch.Generator().manual_seed(int(s)) for s in seeds]
