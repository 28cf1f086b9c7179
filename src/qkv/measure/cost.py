"""The bytes that a forward pass must read and the FLOPs it must compute, counted from the network's modules.

    bytes    every weight that the pass uses, once for any batch size; the cache, once for each sequence
    FLOPs    2 for each weight of a matrix and token, 4·H·D for each key that a token attends to, as in `models.summary`

Embedding look-ups, norms and softmaxes are small and left out. So are the vectors between layers, which a kernel may
keep in fast memory.

H heads, D head dim
"""

from dataclasses import dataclass

from torch import nn

from qkv.blocks import Stack
from qkv.blocks.block import Block
from qkv.decode.cpu.int8 import Int8Linear
from qkv.models import Encoder, Network, Seq2Seq


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
    """One step of decoding: a token for each of `beams` hypotheses of each row, seeing `slots` of its row's cache.

    Hypotheses of a row see slots of their own besides those they share: `slots` counts what one of them sees, and the
    cache that is read is reckoned as if all were shared, the least that it could be. `source` is the length of what an
    encoder-decoder looks at.
    """
    assert not isinstance(network, Encoder)
    stack, config, queries = network.decoder, network.decoder.config, batch_size * num_beams
    total = linear_cost(network.head, num_tokens=queries)
    if stack.norm is not None:
        total += linear_cost(stack.norm, num_tokens=queries)
    embedding = network.target_embedding if isinstance(network, Seq2Seq) else network.embedding
    if embedding.project is not None:
        total += linear_cost(embedding.project, num_tokens=queries)
    for layer in range(config.layers):
        block = _block(stack, layer)
        total += linear_cost(block, num_tokens=queries)
        window = config.window_of(layer)
        seen = min(context_length, window + 1) if window else context_length
        if block.cross is not None:
            total -= linear_cost(block.cross.kv, num_tokens=queries)  # it read the source, once, before
            seen += source_length
        total += attention_cost(stack, batch_size * seen, queries * seen)
    return total


def prefill_cost(network: Network, batch_size: int, length: int, *, head: bool = True) -> Cost:
    """Reading a prompt of so many tokens in each row, a source, or a text.

    A decoder's head, where it is asked, reads the last token of a row alone; an encoder's is never asked. An
    encoder-decoder reads its sources, makes its decoder's keys and values of them, and takes the decoder's first step.
    """
    if isinstance(network, Encoder):
        return _encoder_cost(network.encoder, network.embedding.project, batch_size, length)
    if isinstance(network, Seq2Seq):
        total = _encoder_cost(network.encoder, network.source_embedding.project, batch_size, length)
        for layer in range(network.decoder.config.layers):
            cross = _block(network.decoder, layer).cross
            assert cross is not None
            total += linear_cost(cross.kv, num_tokens=batch_size * length)
        return total + step_cost(network, batch_size, 1, source_length=length)
    total = _stack_cost(network.decoder, batch_size, length, causal=True)
    if head:
        total += linear_cost(network.head, num_tokens=batch_size)
    project = network.embedding.project
    return total if project is None else total + linear_cost(project, num_tokens=batch_size * length)


def linear_cost(module: nn.Module, *, num_tokens: int) -> Cost:
    """The cost of the linear maps of a module for a number of tokens."""
    numbers = size = 0
    for part in module.modules():
        size += sum(t.numel() * t.element_size() for t in (*part.parameters(False), *part.buffers(False)))
        inputs, outputs = getattr(part, "in_features", 0), getattr(part, "out_features", 0)
        numbers += inputs * outputs
        if isinstance(part, Int8Linear):  # its weights are packed, out of sight; a scale, shift and sum for each output
            size += inputs * outputs + 12 * outputs
    return Cost(size, 2 * numbers * num_tokens)


def attention_cost(stack: Stack, num_keys: int, num_pairs: int) -> Cost:
    """The cost of one layer's attention: keys (and values) read, and (query, key) pairs computed."""
    config = stack.config
    size = next(stack.parameters()).element_size()
    return Cost(2 * config.kv_heads * config.head_dim * size * num_keys, 4 * config.heads * config.head_dim * num_pairs)


def weight_bytes(network: Network) -> int:
    """The memory of all weights of a network."""
    seen = {id(t): t for t in (*network.parameters(), *network.buffers())}
    packed = [module for module in network.modules() if isinstance(module, Int8Linear)]
    plain = sum(t.numel() * t.element_size() for t in seen.values())
    return plain + sum(one.in_features * one.out_features + 12 * one.out_features for one in packed)


def _encoder_cost(stack: Stack, project: nn.Module | None, batch_size: int, length: int) -> Cost:
    total = _stack_cost(stack, batch_size, length, causal=False)
    return total if project is None else total + linear_cost(project, num_tokens=batch_size * length)


def _stack_cost(stack: Stack, batch_size: int, length: int, *, causal: bool) -> Cost:
    """All layers over whole texts. Attention reads what was just computed, so it counts as FLOPs only."""
    total = Cost(0, 0) if stack.norm is None else linear_cost(stack.norm, num_tokens=batch_size * length)
    for layer in range(stack.config.layers):
        total += linear_cost(_block(stack, layer), num_tokens=batch_size * length)
        pairs = num_attention_pairs(length, stack.config.window_of(layer), causal=causal)
        total += Cost(0, attention_cost(stack, 0, batch_size * pairs).flops)
    return total


def num_attention_pairs(length: int, window: int, *, causal: bool) -> int:
    """The number of (query, key) pairs of attention over a text of `length` tokens.

    >>> num_attention_pairs(4, 0, causal=True), num_attention_pairs(4, 1, causal=True)
    (10, 7)
    """
    reach = min(window or length, length - 1)  # how far back a token sees
    back = reach * (reach + 1) // 2 + (length - reach - 1) * reach
    return length + (back if causal else 2 * back)


def _block(stack: Stack, layer: int) -> Block:
    block = stack.block_of(layer)
    assert isinstance(block, Block)
    return block
