"""Attention on the pictures that a model reads: where each word looks, and whether it depends on what it looks at.

Queries are the words that an encoder-decoder writes, the texts of a decoder after its images, or what a classifier
reads: the first token, or the mean of all. Keys are the patches. The check of cause and effect: the patches that a word
looks at most become the mean colour of their picture, and so do as many random patches, as a control.

Q queries, S keys, P patches of a picture, L layers
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.blocks import Inputs
from qkv.blocks.inputs import Prompt
from qkv.images.config import PatchesConfig
from qkv.images.shapes import write_png
from qkv.inside.attention import attention_pattern, rollout
from qkv.inside.trace import Trace
from qkv.models import Network
from qkv.models.runtime import eval_mode
from qkv.page import pack_weights

KIND = PatchesConfig.kind
MAX_QUERIES = 24
ABLATED_FRACTION = 1 / 8  # of the patches of a picture
NUM_CONTROLS = 4  # sets of random patches


@dataclass(frozen=True)
class PictureQueries:
    """The words that look at patches, and how likely the model finds what it says at each of them."""

    rows: list[int]  # of the patterns
    texts: list[str]
    layers: list[Tensor]  # (Q, S) the pattern of each layer, the mean over its heads
    rolled: Tensor  # (Q, S) attention rollout
    score: Callable[[Inputs], Tensor]  # the log-probabilities (Q,) of the model's own outputs, for other pictures


def describe_pictures(network: Network, trace: Trace, prompt: Prompt) -> dict[str, Any]:
    """What the page shows of the pictures in a prompt. The trace has the patterns of all layers and heads."""
    config: Any = next(one for one in network.config.front_ends if one.kind == KIND)
    queries = find_queries(network, trace, prompt)
    payload, (rows, columns) = prompt.inputs.payloads[KIND], config.grid
    values = payload.values.view(-1, rows * columns, payload.values.shape[-1])  # (k, P, F)
    firsts = [int(start) + int(config.class_token) for start in payload.starts]
    maps = torch.stack([*queries.layers, queries.rolled])  # (L + 1, Q, S)
    pictures = []
    for patches, first in zip(values, firsts, strict=True):
        weights = maps[:, :, first : first + rows * columns]
        peak = weights.amax(-1, keepdim=True).clamp(min=1e-12)
        pictures.append(
            {
                "png": to_data_url(patches, config),
                "weights": pack_weights((weights / peak).numpy()),
                "share": weights.sum(-1).tolist(),
            }
        )
    index = torch.cat([torch.arange(first, first + rows * columns) for first in firsts])
    looked = torch.stack(queries.layers).mean(0)[:, index]  # (Q, k · P)
    return {
        "rows": rows,
        "columns": columns,
        "maps": [*(f"layer {number}" for number in range(len(queries.layers))), "rollout"],
        "queries": queries.texts,
        "pictures": pictures,
        "effects": measure_effects(network, prompt, queries, looked),
    }


def find_queries(network: Network, trace: Trace, prompt: Prompt) -> PictureQueries:
    """The queries of a trace, by the family of the model."""
    rolled, stack = rollout(network, trace), "decoder" if network.is_causal else "encoder"
    site = "cross_pattern" if network.has_source else "pattern"
    sites = [f"{stack}.{layer}.{site}" for layer in range(network.config.stack.layers)]
    layers = [attention_pattern(network, trace, one).double().mean(0) for one in sites]
    tokens = trace.tokens[stack]
    source: Any = rolled.source if network.has_source else getattr(rolled, stack)
    if not network.is_causal:
        rows, texts, wanted = [0], [tokens.texts[0]], trace["logits"].flatten().argmax()
        if network.config.head.pool == "mean":  # each token counts alike
            layers, source = [one.mean(0, keepdim=True) for one in layers], source.mean(0, keepdim=True)
            texts = ["mean of all tokens"]

        def outputs(inputs: Inputs) -> Tensor:
            found: Tensor = network(inputs).log_softmax(-1)[:1, wanted]
            return found
    else:
        last = 0 if network.has_source else max(prompt.inputs.payloads[KIND].rows.tolist()) + 1
        rows = list(range(last, len(tokens)))[:MAX_QUERIES]
        said = [*tokens.ids[1:], int(trace["logits"][-1].argmax())]
        texts = [tokens.texts[row] for row in rows]
        if network.has_source:
            texts = [*tokens.texts[1:], "(end)"][: len(rows)]
        wanted = torch.tensor([said[row] for row in rows])

        def outputs(inputs: Inputs) -> Tensor:
            logits: Tensor = network(inputs)[0, rows].log_softmax(-1)
            return logits.gather(1, wanted[:, None].to(logits.device))[:, 0]

    def score(inputs: Inputs) -> Tensor:
        if network.has_source:
            ids = torch.tensor([tokens.ids])
            inputs = Inputs(ids, source=inputs)
        with eval_mode(network):
            return outputs(inputs.to(network.device)).double().cpu()

    return PictureQueries(rows, texts, [one[rows] for one in layers], source[rows].double(), score)


def measure_effects(network: Network, prompt: Prompt, queries: PictureQueries, looked: Tensor) -> dict[str, Any]:
    """How much the log-probability of each output falls without the patches that it looks at (Q, k · P), and without
    as many random patches.
    """
    payload = prompt.inputs.payloads[KIND]
    count = max(1, round(looked.shape[1] * ABLATED_FRACTION))
    generator = torch.Generator().manual_seed(0)
    pixels = payload.values.float()
    mean = pixels.view(len(pixels), -1, 3).mean((0, 1)).repeat(pixels.shape[1] // 3)

    def score_without(patches: Tensor) -> Tensor:
        changed = pixels.clone()
        changed[patches] = mean
        own = payload._replace(values=changed)
        return queries.score(replace(prompt.inputs, payloads={**prompt.inputs.payloads, KIND: own}))

    before = queries.score(prompt.inputs)
    controls = [
        score_without(torch.randperm(looked.shape[1], generator=generator)[:count]) for _ in range(NUM_CONTROLS)
    ]
    without = [score_without(row.topk(count).indices)[number] for number, row in enumerate(looked)]
    return {
        "num_patches": count,
        "looked": [round(float(one - other), 4) for one, other in zip(before, without, strict=True)],
        "random": (before - torch.stack(controls).mean(0)).round(decimals=4).tolist(),
    }


def to_data_url(patches: Tensor, config: PatchesConfig) -> str:
    """Patches (P, F) of a picture in bytes as the URL of a PNG file."""
    (rows, columns), side = config.grid, config.patch
    grid = patches.to(torch.uint8).numpy().reshape(rows, columns, side, side, 3).swapaxes(1, 2)
    pixels = np.ascontiguousarray(grid.reshape(rows * side, columns * side, 3))
    return "data:image/png;base64," + base64.b64encode(write_png(pixels)).decode()
