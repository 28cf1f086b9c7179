"""Sparse autoencoders: train them on the activations of a site, measure them, and see their features.

model         the autoencoder, saved as one file       train       the training loop
activations   streamed and shuffled training data      evaluate    explained variance, L0, loss recovered
features      the features with their top examples

    chunks = stream_activations(network, examples, "decoder.2.resid_post")
    batches = shuffle_activations(chunks, buffer_tokens=50_000, batch_tokens=1024)
    autoencoder = train_autoencoder(batches, AutoencoderConfig(width=128, features=1024, site="decoder.2.resid_post"))
    evaluate_autoencoder(network, autoencoder, other_examples)
"""

from qkv.inside.autoencoder.activations import shuffle_activations, stream_activations
from qkv.inside.autoencoder.evaluate import AutoencoderReport, evaluate_autoencoder
from qkv.inside.autoencoder.features import FeatureReport, FeatureSummary, summarise_features
from qkv.inside.autoencoder.model import AutoencoderConfig, SparseAutoencoder
from qkv.inside.autoencoder.train import AutoencoderOptions, AutoencoderProgress, train_autoencoder

__all__ = [
    "AutoencoderConfig",
    "AutoencoderOptions",
    "AutoencoderProgress",
    "AutoencoderReport",
    "FeatureReport",
    "FeatureSummary",
    "SparseAutoencoder",
    "evaluate_autoencoder",
    "shuffle_activations",
    "stream_activations",
    "summarise_features",
    "train_autoencoder",
]
