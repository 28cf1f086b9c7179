"""Neurons and sparse features: how active they are on a text, and the example texts that activate them most.

T tokens, F features of an autoencoder
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from qkv.api import Model
from qkv.decode.runner import start_token
from qkv.errors import UsageError
from qkv.inside import SparseAutoencoder, Trace, direction_effect, top_examples, vocabulary_effect
from qkv.inside.forward import Example
from qkv.inside.look.neurons import NUM_PROMOTED, describe_units
from qkv.inside.neurons import VocabularyEffect, promoted_texts
from qkv.serve.studio.requests import MAX_TOKENS, ExamplesRequest
from qkv.serve.studio.results import find_results, read_text

NUM_EXAMPLES = 8
CONTEXT = 8
"""The number of tokens shown on each side of the token that activates a unit."""
NUM_EFFECTS = 8
RESIDUAL_SITES = ("resid_pre", "resid_mid", "resid_post", "mlp_out", "attn_out")
"""The sites whose directions can be projected to the vocabulary."""


@torch.no_grad()
def describe_features(
    model: Model, trace: Trace, autoencoders: Mapping[str, SparseAutoencoder]
) -> list[dict[str, Any]]:
    """The active features of each autoencoder, in the form of a layer of neurons."""
    described = []
    for name, autoencoder in autoencoders.items():
        site = autoencoder.config.site
        units = describe_units(autoencoder.encode(trace[site].float()))
        promotes = None
        if promotes_tokens(model, site):
            directions = autoencoder.decoder[units["neurons"]]
            promotes = promoted_texts(model.network, directions, model.tokenizer, NUM_PROMOTED)
        described.append(
            {"stack": site.split(".")[0], "autoencoder": name, "site": site, "promotes": promotes, **units}
        )
    return described


def promotes_tokens(model: Model, site: str) -> bool:
    """Whether a direction at a site has a direct effect on the logits of tokens."""
    stack, activation = site.split(".")[0], site.rsplit(".", 1)[-1]
    predicts = model.config.head.kind in ("lm", "mlm") and stack == model.network.output_stack.name
    return predicts and activation in RESIDUAL_SITES


@torch.no_grad()
def find_examples(
    model: Model, request: ExamplesRequest, autoencoders: Mapping[str, SparseAutoencoder]
) -> dict[str, Any]:
    """The examples among the given texts that activate a unit most, and the tokens that the unit promotes."""
    autoencoder = autoencoders.get(request.site)
    site = request.site if autoencoder is None else autoencoder.config.site
    texts = [text for text in dict.fromkeys([*request.texts, request.text]) if text.strip()]
    found = top_examples(
        model.network,
        make_examples(model, texts, site),
        site,
        [request.unit],
        num_examples=NUM_EXAMPLES,
        context=CONTEXT,
        encode=None if autoencoder is None else autoencoder.encode,
        tokenizer=model.tokenizer,
    )[request.unit]
    effect = find_effect(model, site, request.unit, autoencoder)
    return {
        "num_texts": len(texts),
        "active_fraction": found.active_fraction,
        "examples": [
            {
                "value": round(one.value, 4),
                "tokens": list(one.tokens.texts),
                "values": [round(value, 4) for value in one.values],
                "offset": one.offset,
            }
            for one in found.examples
            if one.value > 0
        ],
        "promoted": None if effect is None else [one.text for one in effect.promoted],
        "suppressed": None if effect is None else [one.text for one in effect.suppressed],
    }


def find_effect(model: Model, site: str, unit: int, autoencoder: SparseAutoencoder | None) -> VocabularyEffect | None:
    """The tokens that a unit promotes; None if it has no direct effect on them."""
    stack, layer, activation = [*site.split("."), "", ""][:3]
    if autoencoder is not None:
        if not promotes_tokens(model, site):
            return None
        return direction_effect(model.network, autoencoder.decoder[unit], model.tokenizer, num_tokens=NUM_EFFECTS)
    is_read = model.config.head.kind in ("lm", "mlm") and stack == model.network.output_stack.name
    if activation != "mlp_post" or not is_read:
        return None
    return vocabulary_effect(model.network, int(layer), unit, model.tokenizer, num_tokens=NUM_EFFECTS)


def make_examples(model: Model, texts: Sequence[str], site: str) -> list[Example]:
    """The token ids of example texts. The decoder of an encoder-decoder reads the model's own outputs."""
    sources = [read_text(model, text)[0] for text in texts]
    longest = max(map(len, sources))
    if longest > MAX_TOKENS:
        raise UsageError(f"an example has {longest:,} tokens, and at most {MAX_TOKENS} are read; shorten it")
    network = model.network
    if not network.has_source:
        return list(sources)
    reads_outputs = site.startswith("decoder") and model.config.head.kind == "lm"
    written = [answer.ids for answer in find_results(model, texts)] if reads_outputs else [()] * len(texts)
    return [(ids, [start_token(network), *target]) for ids, target in zip(sources, written, strict=True)]
