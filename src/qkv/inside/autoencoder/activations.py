"""The training data of a sparse autoencoder: activations of any site, streamed and shuffled.

    chunks = stream_activations(network, examples, "decoder.2.resid_post")
    batches = shuffle_activations(chunks, buffer_tokens=50_000, batch_tokens=1024, seed=0)

Neighbouring tokens have similar activations, so batches are taken at random from a buffer of many texts. Only the
buffer is in memory.

N tokens, C model width
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from qkv.errors import UsageError
from qkv.inside.forward import Example
from qkv.inside.neurons import check_per_token_site, stream_site
from qkv.models import Network


def stream_activations(
    network: Network, examples: Iterable[Example], site: str, *, batch_size: int = 16, epochs: int | None = None
) -> Iterator[Tensor]:
    """Yield the activations (N, C) of all tokens at a site, one batch of examples at a time, in float32 on the CPU.

    The examples are read `epochs` times; None means endlessly. So they must be a list, or another iterable that can be
    read several times.
    """
    check_per_token_site(network, site)
    epoch = 0
    while epochs is None or epoch < epochs:
        is_empty = True
        for values, _, is_token in stream_site(network, examples, site, batch_size):
            is_empty = False
            yield values[is_token].float().cpu()
        if is_empty:
            raise UsageError(
                "there are no examples left; give a list, which can be read several times, or set epochs=1"
            )
        epoch += 1


def shuffle_activations(
    chunks: Iterable[Tensor], *, buffer_tokens: int, batch_tokens: int, seed: int = 0
) -> Iterator[Tensor]:
    """Yield random batches (batch_tokens, C) from a buffer. It is refilled when it is half empty.

    Every activation is yielded exactly once; the last batch may be smaller.
    """
    if batch_tokens < 1 or buffer_tokens < batch_tokens:
        raise UsageError(f"buffer_tokens = {buffer_tokens} must be at least batch_tokens = {batch_tokens} >= 1")
    generator = torch.Generator().manual_seed(seed)
    waiting: list[Tensor] = []
    num_waiting = 0
    for chunk in chunks:
        waiting.append(chunk)
        num_waiting += len(chunk)
        if num_waiting < buffer_tokens:
            continue
        shuffled = shuffle_rows(torch.cat(waiting), generator)
        num_batches = max(1, num_waiting // 2 // batch_tokens)
        yield from shuffled[: num_batches * batch_tokens].split(batch_tokens)
        rest = shuffled[num_batches * batch_tokens :].clone()
        waiting, num_waiting = [rest], len(rest)
    if num_waiting:
        yield from shuffle_rows(torch.cat(waiting), generator).split(batch_tokens)


def shuffle_rows(x: Tensor, generator: torch.Generator) -> Tensor:
    """The rows of a matrix in random order."""
    return x[torch.randperm(len(x), generator=generator)]
