"""Train a sparse autoencoder on a site of a model, in one call.

autoencoder = fit_autoencoder(network, examples, "decoder.2.resid_post", features=1024, k=16)
"""

from collections.abc import Sequence
from itertools import chain
from typing import Literal

from qkv.inside.autoencoder.activations import shuffle_activations, stream_activations
from qkv.inside.autoencoder.model import AutoencoderConfig, SparseAutoencoder
from qkv.inside.autoencoder.train import AutoencoderOptions, OnAutoencoderStep, train_autoencoder
from qkv.inside.forward import Example
from qkv.models import Network


def fit_autoencoder(
    network: Network,
    examples: Sequence[Example],
    site: str,
    *,
    features: int = 1024,
    kind: Literal["topk", "relu"] = "topk",
    k: int = 32,
    options: AutoencoderOptions | None = None,
    batch_size: int = 16,
    batch_tokens: int = 1024,
    buffer_tokens: int = 65_536,
    on_step: OnAutoencoderStep | None = None,
) -> SparseAutoencoder:
    """Train a sparse autoencoder on the activations of a site, on the network's device.

    The network reads `batch_size` examples at a time, and starts again after the last one. Each step trains on
    `batch_tokens` tokens, taken at random from a buffer of `buffer_tokens`. `k` is the number of active features of a
    token (topk only); with relu, `options.l1` sets the sparsity.
    """
    chunks = stream_activations(network, examples, site, batch_size=batch_size)
    first = next(chunks)
    config = AutoencoderConfig(width=first.shape[1], features=features, kind=kind, k=k, site=site)
    batches = shuffle_activations(
        chain([first], chunks),
        buffer_tokens=buffer_tokens,
        batch_tokens=batch_tokens,
        seed=0 if options is None else options.seed,
    )
    device = network.device
    return train_autoencoder((batch.to(device) for batch in batches), config, options, on_step=on_step)
