"""Sparse autoencoders: train them on the activations of a site, measure them, and see their features.

model         the autoencoder, saved as one file       train         the training loop; all in one call
activations   streamed and shuffled training data      features      the features with their top examples
evaluate      explained variance, L0, loss recovered   feature_page  the features as a page
superposition a toy model with known features

    autoencoder = fit_autoencoder(network, examples, "decoder.2.resid_post", features=1024, k=16)
    report = evaluate_autoencoder(network, autoencoder, other_examples)
    summarise_features(network, autoencoder, other_examples, tokenizer=tokenizer, report=report).save("features.html")
"""

from qkv.inside.autoencoder.activations import shuffle_activations, stream_activations
from qkv.inside.autoencoder.evaluate import AutoencoderReport, evaluate_autoencoder
from qkv.inside.autoencoder.feature_page import FeatureReport, FeatureSummary
from qkv.inside.autoencoder.features import summarise_features
from qkv.inside.autoencoder.model import AutoencoderConfig, SparseAutoencoder
from qkv.inside.autoencoder.train import AutoencoderOptions, AutoencoderProgress, fit_autoencoder, train_autoencoder

__all__ = [
    "AutoencoderConfig",
    "AutoencoderOptions",
    "AutoencoderProgress",
    "AutoencoderReport",
    "FeatureReport",
    "FeatureSummary",
    "SparseAutoencoder",
    "evaluate_autoencoder",
    "fit_autoencoder",
    "shuffle_activations",
    "stream_activations",
    "summarise_features",
    "train_autoencoder",
]
