"""Choose tokens: argmax or sampling. The third of decoding's four roles.

R sequences, V vocabulary
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.errors import QkvError


def argmax(logits: Tensor) -> Tensor:
    """(R, V) → (R,); the first one if several are equal."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(logits.numpy().argmax(-1))  # NumPy's is vectorised: 20 times as fast on a CPU
    return logits.argmax(-1)


def fast_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest logits of each row and their indices, largest first: `topk` in two passes.

    Columns that are V/16 apart form a group. The k largest logits lie in the k groups with the largest maxima, or in
    the remainder after the last group, so the second pass reads only those. On a CPU this is three times as fast.
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

    Computed as max x − log softmax(x) at the maximum, which is stable. The softmax runs in the dtype of the logits,
    which is fast; only its maximum is promoted to float64.
    """
    maximum = logits.amax(-1).double()
    probability = logits.softmax(-1).amax(-1).double()
    return torch.where(maximum == float("-inf"), maximum, maximum - probability.log())


def sample(logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Sample one token for each row, (R, V) → (R,).

    Each row has its own generator, so that results do not depend on the rest of the batch. It takes one uniform
    random number for each row, and inverts the cumulative distribution.
    """
    if bool((logits == float("-inf")).all(-1).any()):
        raise QkvError("every token is forbidden at this step; relax the filters")
    return sample_by_inverse_cdf(logits, draw_uniforms(generators).to(logits.device))


def draw_uniforms(generators: Sequence[torch.Generator]) -> Tensor:
    """A random number in [0, 1) from each generator, (R,)."""
    return torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])


def sample_by_inverse_cdf(logits: Tensor, uniforms: Tensor) -> Tensor:
    """The token at which each row's cumulative distribution reaches its random number: (R, V), (R,) → (R,).

    Any token, if all logits of a row are −∞.
    """
    cumulative = logits.double().softmax(-1).cumsum(-1)
    wanted = uniforms[:, None] * cumulative[:, -1:]  # the sum is 1 only up to rounding
    token = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
    return token.clamp(max=logits.shape[-1] - 1)


def make_generators(seed: int | None, num_sequences: int) -> list[torch.Generator]:
    """A generator for each sequence; without a seed, they are seeded by torch's global generator."""
    seeds = [seed] * num_sequences if seed is not None else torch.randint(0, 2**62, (num_sequences,)).tolist()
    return [torch.Generator().manual_seed(int(s)) for s in seeds]
