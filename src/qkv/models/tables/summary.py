"""The parameters, FLOPs and memory of a model, computed from its config: no network is built.

Each part states its own cost (`blocks/cost.py`); this file adds them up. Without a window, every token counts as
attending to all `context_length` keys, also in a causal layer. The backward pass costs twice as much as the forward
pass, so training costs three times the forward pass. A tied output matrix counts like any matrix.
"""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from qkv.blocks import HeadConfig, StackConfig
from qkv.blocks.back_ends import BACK_ENDS
from qkv.blocks.cost import PartCost, linear
from qkv.blocks.front_ends import FRONT_ENDS
from qkv.blocks.parts import count_new_parameters, part_cost
from qkv.models.config import Config

FIRST_COMPONENTS = ("embedding", "recurrent", "attention", "mlp")
LAST_COMPONENTS = ("norms", "head", "other")
"""The order of the components; those of parts of one's own come between."""
BYTES_PER_NUMBER = {"float32": 4, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class ModelSummary:
    """Parameters, FLOPs and memory of a model."""

    family: str
    layers: dict[str, int]  # per stack
    heads: dict[str, int]
    width: int
    vocab_size: int
    context_length: int  # the length for which FLOPs are computed
    parameters: dict[str, int]  # per component; shared parameters count once
    total: int
    active: int  # the parameters that a token uses: in a mixture, those of its experts only
    tied: bool  # whether the output matrix is the embedding
    flops_forward: int  # per token, without front ends and the parts in `unstated_flops`
    flops_training: int  # per token, forward and backward
    flops_per_input: dict[str, int]  # by the front end: reading one image, all of whose vectors go through one stack
    unstated_flops: tuple[str, ...]  # registered parts that do not state their FLOPs
    weight_bytes: dict[str, int]  # per dtype
    cache_bytes_per_token: dict[str, int]  # per dtype: the keys and values of self-attention
    cross_bytes_per_source_token: dict[str, int]  # per dtype: the keys and values of cross-attention
    state_bytes: dict[str, int]  # per dtype: the state for each sequence, besides keys and values

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def summarise_model(
    config: Config, context_length: int | None = None, num_parameters: int | None = None
) -> ModelSummary:
    """Summarise a config at a context length (by default its number of positions, at most 2,048).

    `num_parameters` is the number that the network really has, if it is known. If the parts state another number, the
    difference is the component "other".
    """
    parameters = count_parameters(config)
    if num_parameters not in (None, sum(parameters.values())):
        parameters["other"] = (num_parameters or 0) - sum(parameters.values())
    total = sum(parameters.values())
    context_length = context_length or min(config.stack.max_positions, 2048)
    forward = PartCost({}, 2 * _head_weights(config)) + _ends_cost(config)
    for name, stack in config.stacks.items():
        forward += _forward_cost(config, name, stack, context_length)
    flops = forward.flops or 0
    decoding = PartCost({}, 0)
    if config.decoder is not None:
        for cost, _ in _layers(config, "decoder", config.decoder):
            decoding += cost
    return ModelSummary(
        family=config.family,
        layers={name: stack.layers for name, stack in config.stacks.items()},
        heads={name: stack.heads for name, stack in config.stacks.items()},
        width=config.stack.width,
        vocab_size=config.stack.vocab_size,
        context_length=context_length,
        parameters=parameters,
        total=total,
        active=total - sum(_unused(config, name, stack) for name, stack in config.stacks.items()),
        tied=config.head.tied,
        flops_forward=flops,
        flops_training=3 * (flops + 2 * _future_weights(config)),
        flops_per_input=_input_flops(config),
        unstated_flops=forward.unstated,
        weight_bytes=_bytes(total),
        cache_bytes_per_token=_bytes(decoding.cached),
        cross_bytes_per_source_token=_bytes(decoding.cached_of_source),
        state_bytes=_bytes(decoding.state),
    )


def count_parameters(config: Config) -> dict[str, int]:
    """Return the number of parameters of each component. A shared matrix counts once, where it is first used."""
    total = PartCost({"head": _head_parameters(config.head, config.stack)}, 0) + _ends_cost(config)
    for name, stack in config.stacks.items():
        total += _embedding_cost(stack) + _final_norm_cost(stack)
        layers = [cost for cost, _ in _layers(config, name, stack)]
        for cost in layers[: stack.num_layer_groups]:  # layers share blocks if there are fewer groups than layers
            total += cost
    counts = dict(total.parameters or {})
    if config.share_embeddings:
        counts["embedding"] -= config.stack.vocab_size * (config.stack.embedding_width or config.stack.width)
    own = [name for name in counts if name not in FIRST_COMPONENTS + LAST_COMPONENTS]
    return {name: counts[name] for name in (*FIRST_COMPONENTS, *own, *LAST_COMPONENTS) if name in counts}


def _unused(config: Config, name: str, stack: StackConfig) -> int:
    """The parameters of a stack that a token does not use."""
    return sum(cost.unused for cost, _ in _layers(config, name, stack)[: stack.num_layer_groups])


def _bytes(numbers: int) -> dict[str, int]:
    return {dtype: numbers * size for dtype, size in BYTES_PER_NUMBER.items()}


def _layers(config: Config, name: str, stack: StackConfig) -> list[tuple[PartCost, int]]:
    """The cost of each layer of a stack, with its sliding window. A part that is a whole stack counts as
    one layer.
    """
    cross = name == "decoder" and config.family == "seq2seq"
    if not stack.has_blocks:
        return [(part_cost("block", stack, name=name, causal=name == "decoder", cross=cross), 0)]
    block = part_cost("block", stack, cross=cross)
    layers = [(block, stack.window_of(layer)) for layer in range(stack.layers)]
    if stack.embedding_norm == "replaces_first":
        layers[0] = part_cost("block", stack, cross=cross, skip_norm=True), layers[0][1]
    return layers


def _embedding_cost(stack: StackConfig) -> PartCost:
    """The cost of the embedding and its norm, and of the positions, wherever they act."""
    width = stack.embedding_width or stack.width
    parameters = (stack.vocab_size + stack.token_types) * width
    inputs = (2 * stack.embedding_window + 1) * width if stack.embedding_width or stack.embedding_window else 0
    parameters += linear(inputs, stack.width, bias=True) if inputs else 0
    cost = PartCost({"embedding": parameters, "norms": 0}, 2 * inputs * stack.width)
    cost += part_cost("position", stack)
    return cost + part_cost("norm", stack, width) if stack.embedding_norm != "none" else cost


def _ends_cost(config: Config) -> PartCost:
    total = PartCost({}, 0)
    for one in config.front_ends:
        number = count_new_parameters(partial(FRONT_ENDS[one.kind].module, one, config.stack.width))
        is_stated = one.example_size is not None and one.flops(one.example_size, config.stack.width) is not None
        total += PartCost({"front ends": number}, 0, unstated=() if is_stated else (f"front end = {one.kind!r}",))
    for end in config.back_ends:
        number = count_new_parameters(partial(BACK_ENDS[end.kind].module, end))
        total += PartCost({"back ends": number}, 0, unstated=(f"back end = {end.kind!r}",))
    return total


def _input_flops(config: Config) -> dict[str, int]:
    """The FLOPs of each front end and of the stack that reads its vectors, if all inputs have one size."""
    name, stack = next(iter(config.stacks.items()))
    found = {}
    for one in config.front_ends:
        flops = None if one.example_size is None else one.flops(one.example_size, stack.width)
        if flops is not None and one.example_size is not None:
            length = one.length(one.example_size)
            found[one.kind] = flops + length * (_forward_cost(config, name, stack, length).flops or 0)
    return found


def _final_norm_cost(stack: StackConfig) -> PartCost:
    has_norm = stack.norm_placement != "post" and stack.has_blocks
    return part_cost("norm", stack, stack.width) if has_norm else PartCost({}, 0)


def _head_parameters(head: HeadConfig, stack: StackConfig) -> int:
    inner = stack.embedding_width if head.tied and stack.embedding_width else stack.width
    total = linear(stack.width, inner, bias=head.dense_bias) if head.dense != "none" else 0
    if head.dense_norm:
        total += sum((part_cost("norm", stack, inner).parameters or {}).values())
    if head.kind != "none":
        total += (0 if head.tied else inner * head.outputs) + (head.outputs if head.bias else 0)
    total += head.future_tokens * linear(stack.width, stack.width, bias=True)
    if head.one_hot_positions:
        total += (head.one_hot_positions * stack.vocab_size + 1) * stack.width
    if head.next_sentence_classes:
        total += linear(stack.width, stack.width, bias=True)
        total += linear(stack.width, head.next_sentence_classes, bias=True)
    return total


def _forward_cost(config: Config, name: str, stack: StackConfig, context_length: int) -> PartCost:
    """The cost of an embedding and all layers. Shared weights count in each layer, and attention as FLOPs."""
    total = _embedding_cost(stack) + _final_norm_cost(stack)
    for cost, window in _layers(config, name, stack):
        reach = window + 1 if name == "decoder" else 2 * window + 1
        keys = min(context_length, reach) if window else context_length
        attended = cost.flops_per_key * keys + cost.flops_per_source_key * context_length
        total += cost + PartCost({}, attended)
    return total


def _future_weights(config: Config) -> int:
    """The weights of the outputs that only training computes, and the output matrix for each of them."""
    return config.head.future_tokens * (config.stack.width**2 + _head_weights(config))


def _head_weights(config: Config) -> int:
    head, width = config.head, config.stack.width
    inner = config.stack.embedding_width if head.tied and config.stack.embedding_width else width
    return (width * inner if head.dense != "none" else 0) + inner * head.outputs
