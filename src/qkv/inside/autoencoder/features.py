"""The features of a sparse autoencoder, with the examples that excite them and the tokens that they promote."""

from collections.abc import Iterable

import torch

from qkv.inside.autoencoder.evaluate import AutoencoderReport
from qkv.inside.autoencoder.feature_page import FeatureReport, FeatureSummary
from qkv.inside.autoencoder.model import SparseAutoencoder
from qkv.inside.forward import Example
from qkv.inside.neurons import (
    direction_effect,
    top_examples,
)
from qkv.models import Network
from qkv.text import Tokenizer


def summarise_features(
    network: Network,
    autoencoder: SparseAutoencoder,
    examples: Iterable[Example],
    *,
    tokenizer: Tokenizer | None = None,
    max_features: int = 100,
    num_examples: int = 8,
    context: int = 12,
    batch_size: int = 16,
    report: AutoencoderReport | None = None,
) -> FeatureReport:
    """Return the features with their top examples.

    The features with the largest activations come first, but a feature that is active at more than a tenth of all
    tokens comes last, because it seldom has one meaning.
    """
    site = autoencoder.config.site
    with torch.no_grad():
        found = top_examples(
            network,
            examples,
            site,
            num_examples=num_examples,
            context=context,
            encode=autoencoder.encode,
            tokenizer=tokenizer,
            batch_size=batch_size,
        )
    alive = [feature for feature in found.values() if feature.examples and feature.examples[0].value > 0]
    alive.sort(key=lambda feature: (feature.active_fraction > 0.1, -feature.examples[0].value))
    has_effect = network.head.config.kind in ("lm", "mlm") and site.startswith(
        "encoder" if network.config.decoder is None else "decoder"
    )
    has_effect = has_effect and site.endswith(("resid_pre", "resid_mid", "resid_post", "mlp_out", "attn_out"))
    summaries = []
    for feature in alive[:max_features]:
        direction = autoencoder.decoder[feature.unit].detach()
        effect = direction_effect(network, direction, tokenizer, num_tokens=8) if has_effect else None
        active = tuple(example for example in feature.examples if example.value > 0)
        summaries.append(FeatureSummary(feature.unit, feature.active_fraction, active, effect))
    return FeatureReport(site, tuple(summaries), autoencoder.config.features, report)
