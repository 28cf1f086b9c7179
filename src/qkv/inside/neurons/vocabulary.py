"""What a neuron, or any direction of the residual stream, writes into the vocabulary.

    vocabulary_effect(network, 3, 5, tokenizer).promoted      # neuron 5 of layer 3

C model width, V vocabulary
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from qkv.errors import UsageError
from qkv.inside.sites import require_blocks
from qkv.inside.tokens import list_tokens
from qkv.models import Network
from qkv.text import Tokenizer


@dataclass(frozen=True)
class TokenEffect:
    """How much a direction changes the logit of a token, per unit of activation."""

    token_id: int
    text: str
    logit: float


@dataclass(frozen=True)
class VocabularyEffect:
    """The tokens whose logits a direction raises most, and the tokens whose logits it lowers most."""

    promoted: tuple[TokenEffect, ...]
    suppressed: tuple[TokenEffect, ...]


def vocabulary_effect(
    network: Network, layer: int, neuron: int, tokenizer: Tokenizer | None = None, *, num_tokens: int = 10
) -> VocabularyEffect:
    """Return what a neuron of the feed-forward of a layer writes into the vocabulary.

    The neuron writes its column of the output matrix into the residual stream. This function projects that vector to
    the vocabulary, as if it reached the head directly: the effect through later layers is left out.
    """
    require_blocks(network.config, "the effect of a neuron on the vocabulary")
    stack = network.output_stack
    if not 0 <= layer < stack.config.layers:
        raise UsageError(f"layer = {layer}: this model has layers 0 … {stack.config.layers - 1}")
    weight: Tensor = stack.block_of(layer).ffn.down.weight  # type: ignore[union-attr, assignment]
    if not 0 <= neuron < weight.shape[1]:
        raise UsageError(f"neuron = {neuron}: this layer has neurons 0 … {weight.shape[1] - 1}")
    return direction_effect(network, weight[:, neuron], tokenizer, num_tokens=num_tokens)


def direction_effect(
    network: Network, direction: Tensor, tokenizer: Tokenizer | None = None, *, num_tokens: int = 10
) -> VocabularyEffect:
    """Return the tokens that a direction (C,) of the last residual stream promotes and suppresses."""
    logits = direction_logits(network, direction)
    count = min(num_tokens, len(logits))
    side = None if tokenizer is None else tokenizer.target

    def list_effects(values: Tensor, indices: Tensor) -> tuple[TokenEffect, ...]:
        texts = list_tokens(indices.tolist(), side).texts
        return tuple(TokenEffect(*row) for row in zip(indices.tolist(), texts, values.tolist(), strict=True))

    return VocabularyEffect(list_effects(*logits.topk(count)), list_effects(*logits.topk(count, largest=False)))


def promoted_texts(
    network: Network, directions: Tensor, tokenizer: Tokenizer | None, num_tokens: int
) -> list[list[str]]:
    """The tokens that each of several directions (N, C) promotes most. One product computes all of them."""
    logits = direction_logits(network, directions)
    best = logits.topk(min(num_tokens, logits.shape[-1])).indices
    side = None if tokenizer is None else tokenizer.target
    return [list(list_tokens(ids, side).texts) for ids in best.tolist()]


@torch.no_grad()
def direction_logits(network: Network, direction: Tensor) -> Tensor:
    """Project directions (…, C) of the last residual stream to the vocabulary: the change of each logit, (…, V).

    The last norm multiplies by its gain and, if it is a layer norm, subtracts the mean; its division by the size of the
    residual stream is left out. A dense layer of the head (masked language models) counts as linear.
    """
    require_blocks(network.config, "the effect of a direction on the vocabulary")
    head, stack = network.head, network.output_stack
    if head.config.kind not in ("lm", "mlm") or head.out is None:
        raise UsageError(f"this model has a {head.config.kind} head, which does not predict tokens")
    norm = stack.norm if stack.norm is not None else stack.blocks[-1].ffn_sub.norm
    x = direction.float()
    for module in (norm, *(part for part in (head.dense, head.norm) if part is not None)):
        if isinstance(module, nn.Linear):
            x = x @ module.weight.float().T
            continue
        if isinstance(module, nn.LayerNorm):
            x = x - x.mean(-1, keepdim=True)
        gain = getattr(module, "weight", None)
        x = x if gain is None else x * gain.float()
    return (x * head.scale) @ head.out.weight.float().T
