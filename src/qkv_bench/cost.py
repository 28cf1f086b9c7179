"""The bytes that a forward pass must read and the FLOPs it must compute, counted from the network's modules.

    bytes    every weight that the pass uses is read once, whatever the batch size; the KV cache is read once for each
             sequence
    FLOPs    per token: 2 for each weight of a matrix, and 4·H·D for each key that the token attends to, as in
             `models.summary`; the additive attention of a recurrent decoder has one head

Embedding look-ups, norms, softmaxes and recurrent states are small and are not counted. Nor are the activations between
layers, which a kernel may keep in fast memory.

H heads, D head dim
"""

from dataclasses import dataclass

from torch import nn

from qkv.blocks import RecurrentStack, Stack
from qkv.blocks.block import Block
from qkv.blocks.recurrent import AttentiveLayer
from qkv.decode.cpu.packed_linear import QuantizedLinear
from qkv.models import Network


@dataclass(frozen=True)
class Cost:
    """The bytes that a pass reads and the FLOPs that it computes."""

    bytes: int
    flops: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.bytes + other.bytes, self.flops + other.flops)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.bytes - other.bytes, self.flops - other.flops)


def step_cost(
    network: Network, batch_size: int, context_length: int, *, num_beams: int = 1, source_length: int = 0
) -> Cost:
    """The cost of one decoding step: one token for each of the `num_beams` beams of each sequence.

    Each token attends to `context_length` cached tokens and, in an encoder-decoder, to `source_length` source tokens.
    The beams of a sequence share the cache of their prompt, and each has its own cache for its generated tokens. The
    bytes are a lower bound: the cache of a sequence is counted once, as if its beams shared all of it.
    """
    stack, queries = network.output_stack, batch_size * num_beams
    config = stack.config
    total = linear_cost(network.head, num_tokens=queries)
    if stack.norm is not None:
        total += linear_cost(stack.norm, num_tokens=queries)
    project = network.output_embedding.project
    if project is not None:
        total += linear_cost(project, num_tokens=queries)
    if isinstance(stack, RecurrentStack):
        for part in stack.layers:
            total += linear_cost(part, num_tokens=queries)
            if isinstance(part, AttentiveLayer):
                total -= linear_cost(part.key, num_tokens=queries)  # prefill has computed these keys
                total -= Cost(0, linear_cost(part.score, num_tokens=queries).flops)  # it is counted for each key
                total += attention_cost(stack, batch_size * source_length, queries * source_length)
        return total
    for layer in range(config.layers):
        block = _block(stack, layer)
        total += linear_cost(block, num_tokens=queries)
        window = config.window_of(layer)
        seen = min(context_length, window + 1) if window else context_length
        if block.cross is not None:
            total -= linear_cost(block.cross.kv, num_tokens=queries)  # prefill has computed these keys and values
            seen += source_length
        total += attention_cost(stack, batch_size * seen, queries * seen)
    return total


def prefill_cost(network: Network, batch_size: int, length: int, *, head: bool = True) -> Cost:
    """The cost of prefill: one forward pass over `batch_size` prompts, sources or texts of `length` tokens.

    With `head`, the head of a decoder is counted for the last token of each sequence. The head of an encoder is never
    counted. The prefill of an encoder-decoder is a pass of the encoder, the computation of the cross-attention keys and
    values, and the first decoding step.
    """
    stack, project = network.output_stack, network.output_embedding.project
    if not network.is_causal:
        return _encoder_cost(stack, project, batch_size, length)
    if network.has_source:
        total = _encoder_cost(network.stacks["encoder"], network.embeddings["encoder"].project, batch_size, length)
        if isinstance(stack, RecurrentStack):
            source = _source_cost(stack, batch_size, length)
            return total + source + step_cost(network, batch_size, 1, source_length=length)
        for layer in range(stack.config.layers):
            cross = _block(stack, layer).cross
            assert cross is not None
            total += linear_cost(cross.kv, num_tokens=batch_size * length)
        return total + step_cost(network, batch_size, 1, source_length=length)
    total = _stack_cost(stack, batch_size, length, causal=True)
    if head:
        total += linear_cost(network.head, num_tokens=batch_size)
    return total if project is None else total + linear_cost(project, num_tokens=batch_size * length)


def linear_cost(module: nn.Module, *, num_tokens: int) -> Cost:
    """The cost of all weights of a module, applied to `num_tokens` tokens."""
    matrix_weights = size = 0
    for part in module.modules():
        size += sum(t.numel() * t.element_size() for t in (*part.parameters(False), *part.buffers(False)))
        inputs, outputs = getattr(part, "in_features", 0), getattr(part, "out_features", 0)
        matrix_weights += inputs * outputs
        if isinstance(part, nn.RNNBase | nn.RNNCellBase):
            matrix_weights += sum(weight.numel() for weight in part.parameters() if weight.dim() == 2)
        if isinstance(part, QuantizedLinear):
            size += part.packed_bytes
    return Cost(size, 2 * matrix_weights * num_tokens)


def attention_cost(stack: Stack, num_keys: int, num_pairs: int) -> Cost:
    """The cost of one layer's attention: `num_keys` keys and values are read, `num_pairs` query-key pairs computed."""
    config = stack.config
    size = next(stack.parameters()).element_size()
    return Cost(2 * config.kv_heads * config.head_dim * size * num_keys, 4 * config.heads * config.head_dim * num_pairs)


def weight_bytes(network: Network) -> int:
    """The bytes of all weights and buffers of a network; a shared tensor is counted once."""
    seen = {id(t): t for t in (*network.parameters(), *network.buffers())}
    packed = [module.packed_bytes for module in network.modules() if isinstance(module, QuantizedLinear)]
    plain = sum(t.numel() * t.element_size() for t in seen.values())
    return plain + sum(packed)


def _encoder_cost(stack: Stack, project: nn.Module | None, batch_size: int, length: int) -> Cost:
    total = _stack_cost(stack, batch_size, length, causal=False)
    return total if project is None else total + linear_cost(project, num_tokens=batch_size * length)


def _stack_cost(stack: Stack, batch_size: int, length: int, *, causal: bool) -> Cost:
    """The cost of all layers for whole texts. Keys and values come from the same pass: attention reads no cache."""
    total = Cost(0, 0) if stack.norm is None else linear_cost(stack.norm, num_tokens=batch_size * length)
    if isinstance(stack, RecurrentStack):
        return linear_cost(stack.layers, num_tokens=batch_size * length)
    for layer in range(stack.config.layers):
        total += linear_cost(_block(stack, layer), num_tokens=batch_size * length)
        pairs = num_attention_pairs(length, stack.config.window_of(layer), causal=causal)
        total += attention_cost(stack, 0, batch_size * pairs)
    return total


def _source_cost(stack: RecurrentStack, batch_size: int, length: int) -> Cost:
    """The cost of what a recurrent decoder computes from its source once: the first state, and the keys."""
    total, first = Cost(0, 0), stack.layers[0]
    if stack.initial is not None:
        total += linear_cost(stack.initial, num_tokens=batch_size)
    if isinstance(first, AttentiveLayer):
        total += linear_cost(first.key, num_tokens=batch_size * length)
    return total


def num_attention_pairs(length: int, window: int, *, causal: bool) -> int:
    """The number of (query, key) pairs of attention over a text of `length` tokens.

    >>> num_attention_pairs(4, 0, causal=True), num_attention_pairs(4, 1, causal=True)
    (10, 7)
    """
    reach = min(window or length, length - 1)  # the largest distance to a token that is attended to
    back = reach * (reach + 1) // 2 + (length - reach - 1) * reach
    return length + (back if causal else 2 * back)


def _block(stack: Stack, layer: int) -> Block:
    block = stack.block_of(layer)
    assert isinstance(block, Block)
    return block
