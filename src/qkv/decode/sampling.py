"""Choose tokens: argmax or sampling.

R sequences, V vocabulary
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.errors import QkvError


def argmax(logits: Tensor) -> Tensor:
    """Return the token with the largest logit, (R, V) → (R,). If several are equal, the first."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(logits.numpy().argmax(-1))  # NumPy vectorises argmax: 20 times as fast on a CPU
    return logits.argmax(-1)


def fast_topk(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest logits of each row and their indices, largest first. On a CPU, 3 times as fast as `topk`.

    The columns form V // 16 groups of 16: column c is in group c mod (V // 16). The last V mod 16 columns have no
    group. The first pass computes the maximum of each group. The k largest logits are in the k groups with the largest
    maxima, or in the columns without a group. The second pass reads only these groups and columns.
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
    """Return log Σ eˣ of each row, (…, V) → (…), in float64. It is −∞ if every token is forbidden.

    It is computed as max x − log max softmax(x), which is numerically stable. The softmax runs in the dtype of the
    logits, which is fast. Only its maximum is promoted to float64.
    """
    maximum = logits.amax(-1).double()
    probability = logits.softmax(-1).amax(-1).double()
    return torch.where(maximum == float("-inf"), maximum, maximum - probability.log())


def sample(logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """Sample one token for each row, (R, V) → (R,).

    Each row has its own generator, so that its result does not depend on the rest of the batch. Each row draws one
    uniform random number u, and takes the first token whose cumulative probability exceeds u.
    """
    if bool((logits == float("-inf")).all(-1).any()):
        raise QkvError(
            "every token is forbidden at this step, because the filters exclude all of them; "
            "relax suppress_tokens, no_repeat_ngram_size, logits_processors or constraint"
        )
    return sample_by_inverse_cdf(logits, draw_uniforms(generators).to(logits.device))


def draw_uniforms(generators: Sequence[torch.Generator]) -> Tensor:
    """Return one random number in [0, 1) from each generator, (R,)."""
    return torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])


def sample_by_inverse_cdf(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Return the token at which each row's cumulative distribution exceeds its random number: (R, V), (R,) → (R,).

    If all logits of a row are −∞, the token is arbitrary.
    """
    cumulative = logits.double().softmax(-1).cumsum(-1)
    threshold = uniforms[:, None] * cumulative[:, -1:]  # the probabilities sum to 1 only up to rounding
    token = torch.searchsorted(cumulative, threshold, right=True)[:, 0]
    return token.clamp(max=logits.shape[-1] - 1)


def make_generators(seed: int | None, num_sequences: int) -> list[torch.Generator]:
    """Return one generator per sequence, all with this seed. Without a seed, torch's global generator seeds them."""
    seeds = [seed] * num_sequences if seed is not None else torch.randint(0, 2**62, (num_sequences,)).tolist()
    return [torch.Generator().manual_seed(int(s)) for s in seeds]
