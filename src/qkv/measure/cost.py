"""What a pass through a network must read and compute at the least, counted from the network's own parts.

    bytes    every weight that the pass uses, once, whatever the batch; the cache, once a row
    FLOPs    2 for every weight of a matrix and token, 4·H·D for every key that a token sees, as in `models.account`

Looking up embeddings, norms and softmaxes are left out: they are little beside it. So are the vectors between layers,
which a kernel may keep close by.

H heads, D head width
"""

from dataclasses import dataclass

from torch import nn

from qkv.blocks import Stack
from qkv.blocks.block import Block
from qkv.decode.quantise import Int8Linear
from qkv.models import Encoder, Network, Seq2Seq


@dataclass(frozen=True)
class Cost:
    """What one pass reads, in bytes, and computes, in FLOPs."""

    bytes: int
    flops: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.bytes + other.bytes, self.flops + other.flops)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.bytes - other.bytes, self.flops - other.flops)


def step_cost(network: Network, rows: int, slots: int, *, beams: int = 1, source: int = 0) -> Cost:
    """One step of decoding: a token for each of `beams` hypotheses of each row, seeing `slots` of its row's cache.

    Hypotheses of a row see slots of their own besides those they share: `slots` counts what one of them sees, and the
    cache that is read is reckoned as if all were shared, the least that it could be. `source` is the length of what an
    encoder-decoder looks at.
    """
    assert not isinstance(network, Encoder)
    stack, config, queries = network.decoder, network.decoder.config, rows * beams
    total = passed(network.head, tokens=queries)
    if stack.norm is not None:
        total += passed(stack.norm, tokens=queries)
    embedding = network.target_embedding if isinstance(network, Seq2Seq) else network.embedding
    if embedding.project is not None:
        total += passed(embedding.project, tokens=queries)
    for layer in range(config.layers):
        block = _block(stack, layer)
        total += passed(block, tokens=queries)
        window = config.window_of(layer)
        seen = min(slots, window + 1) if window else slots
        if block.cross is not None:
            total -= passed(block.cross.kv, tokens=queries)  # it read the source, once, before
            seen += source
        total += attended(stack, rows * seen, queries * seen)
    return total


def read_cost(network: Network, rows: int, length: int, *, head: bool = True) -> Cost:
    """Reading a prompt of so many tokens in each row, a source, or a text.

    A decoder's head, where it is asked, reads the last token of a row alone; an encoder's is never asked. An
    encoder-decoder reads its sources, makes its decoder's keys and values of them, and takes the decoder's first step.
    """
    if isinstance(network, Encoder):
        return _encoded(network.encoder, network.embedding.project, rows, length)
    if isinstance(network, Seq2Seq):
        total = _encoded(network.encoder, network.source_embedding.project, rows, length)
        for layer in range(network.decoder.config.layers):
            cross = _block(network.decoder, layer).cross
            assert cross is not None
            total += passed(cross.kv, tokens=rows * length)
        return total + step_cost(network, rows, 1, source=length)
    total = _stacked(network.decoder, rows, length, causal=True)
    if head:
        total += passed(network.head, tokens=rows)
    project = network.embedding.project
    return total if project is None else total + passed(project, tokens=rows * length)


def passed(module: nn.Module, *, tokens: int) -> Cost:
    """The cost of so many tokens that pass through the linear maps of a module."""
    numbers = size = 0
    for part in module.modules():
        size += sum(t.numel() * t.element_size() for t in (*part.parameters(False), *part.buffers(False)))
        inputs, outputs = getattr(part, "in_features", 0), getattr(part, "out_features", 0)
        numbers += inputs * outputs
        if isinstance(part, Int8Linear):  # its weights are packed, out of sight; a scale, shift and sum for each output
            size += inputs * outputs + 12 * outputs
    return Cost(size, 2 * numbers * tokens)


def attended(stack: Stack, keys: int, pairs: int) -> Cost:
    """One layer's attention: so many keys (and values) read, and pairs of a query and a key that it sees."""
    config = stack.config
    size = next(stack.parameters()).element_size()
    return Cost(2 * config.kv_heads * config.head_width * size * keys, 4 * config.heads * config.head_width * pairs)


def weight_bytes(network: Network) -> int:
    """What all weights of a network take in memory."""
    seen = {id(t): t for t in (*network.parameters(), *network.buffers())}
    packed = [module for module in network.modules() if isinstance(module, Int8Linear)]
    plain = sum(t.numel() * t.element_size() for t in seen.values())
    return plain + sum(one.in_features * one.out_features + 12 * one.out_features for one in packed)


def _encoded(stack: Stack, project: nn.Module | None, rows: int, length: int) -> Cost:
    total = _stacked(stack, rows, length, causal=False)
    return total if project is None else total + passed(project, tokens=rows * length)


def _stacked(stack: Stack, rows: int, length: int, *, causal: bool) -> Cost:
    """All layers over whole texts. What attention reads was just computed: it counts as FLOPs alone."""
    total = Cost(0, 0) if stack.norm is None else passed(stack.norm, tokens=rows * length)
    for layer in range(stack.config.layers):
        total += passed(_block(stack, layer), tokens=rows * length)
        pairs = pairs_seen(length, stack.config.window_of(layer), causal=causal)
        total += Cost(0, attended(stack, 0, rows * pairs).flops)
    return total


def pairs_seen(length: int, window: int, *, causal: bool) -> int:
    """How many pairs of a query and a key that it sees a text of so many tokens has.

    >>> pairs_seen(4, 0, causal=True), pairs_seen(4, 0, causal=False), pairs_seen(4, 1, causal=True)
    (10, 16, 7)
    """
    reach = min(window or length, length - 1)  # how far back a token sees
    back = reach * (reach + 1) // 2 + (length - reach - 1) * reach
    return length + (back if causal else 2 * back)


def _block(stack: Stack, layer: int) -> Block:
    block = stack.block_of(layer)
    assert isinstance(block, Block)
    return block
