"""Keys and values of earlier tokens do not change, so a decoder stores them. An encoder-decoder has two such caches."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from qkv import Config, HeadConfig, StackConfig, build
from qkv.blocks import CrossCache, EncoderMemory, SelfCache
from qkv.models import Network
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

# What is stored from step to step.
MEMORY, CROSS, BOTH = "encoder's output", "keys and values of the source", "keys and values of source and target"
WORK = "multiply-adds for n tokens"
SAME = "tokens that are the same with and without the caches (fraction)"
SIZE = "size of the cache (KiB)"
SECONDS = "seconds for n tokens"
VOCABULARY, HEADS = 100, 8


@dataclass(frozen=True)
class KvCacheSettings:
    """An encoder-decoder with random weights, and the numbers of generated tokens."""

    lengths: tuple[int, ...] = (16, 32, 64, 128, 256)
    width: int = 32
    layers: int = 2
    source_length: int = 16


def run(experiment: Experiment) -> Iterator[Point]:
    """The work, the tokens and the seconds of generation with each store; the size of both caches."""
    settings = experiment.settings
    source = torch.randint(VOCABULARY, (1, settings.source_length))
    network = make_network(settings)
    tokens: dict[str, list[int]] = {}
    for store in (BOTH, MEMORY, CROSS):
        tokens[store] = []
        network.output_stack.kernel = "eager"  # torch counts the operations of this kernel
        memory = network.encode(source)
        with FlopCounterMode(display=False) as counter:
            for token in generate(network, memory, store, max(settings.lengths)):
                tokens[store].append(token)
                if (n := len(tokens[store])) in settings.lengths:
                    yield Point(WORK, store, n, counter.get_total_flops() / 2)
    for n in settings.lengths:
        num_same = sum(a == b for a, b in zip(tokens[MEMORY][:n], tokens[BOTH][:n], strict=True))
        yield Point(SAME, BOTH, n, num_same / n)
    for store in (BOTH, MEMORY):
        network.output_stack.kernel = "auto"
        start = time.perf_counter()
        for n, _ in enumerate(generate(network, network.encode(source), store, max(settings.lengths)), start=1):
            if n in settings.lengths:
                yield Point(SECONDS, store, n, time.perf_counter() - start)
    for kv_heads in (HEADS, 2, 1):
        yield from measure_sizes(make_network(settings, kv_heads), source, settings.lengths, kv_heads)


def make_network(settings: KvCacheSettings, kv_heads: int = HEADS) -> Network:
    """An encoder-decoder in float64, where rounding is too small to change a token."""
    stack = StackConfig(
        vocab_size=VOCABULARY,
        width=settings.width,
        layers=settings.layers,
        heads=HEADS,
        kv_heads=kv_heads,
        ffn_width=4 * settings.width,
        position="rotary",
        init_std=0.2,  # large enough for logits that differ clearly
    )
    head = HeadConfig(kind="lm", outputs=VOCABULARY)
    network = build(Config(encoder=stack, decoder=stack, head=head), dtype=torch.float64)
    return network.eval().requires_grad_(False)


def generate(network: Network, memory: EncoderMemory, store: str, num_tokens: int) -> Iterator[int]:
    """Generate greedily from the encoder's output. `store` names what is kept from step to step."""
    source = memory if store == MEMORY else network.build_cross_cache(memory)
    cache = network.new_cache(1, num_tokens) if store == BOTH else None
    target = torch.zeros(1, 1, dtype=torch.long)  # the start token
    for _ in range(num_tokens):
        new = target if cache is None else target[:, -1:]
        hidden, _ = network.hidden(new, memory=source, cache=cache)
        best = network.head.project(hidden[:, -1]).argmax(dim=-1)
        target = torch.cat([target, best[:, None]], dim=1)
        yield int(best)


def measure_sizes(network: Network, source: Tensor, lengths: tuple[int, ...], kv_heads: int) -> Iterator[Point]:
    """The bytes of both caches after n generated tokens."""
    cross, cache = network.build_cross_cache(network.encode(source)), network.new_cache(1, max(lengths))
    for n in lengths:
        network(torch.zeros(1, n - cache.filled, dtype=torch.long), memory=cross, cache=cache)
        yield Point(SIZE, f"target, {name_heads(kv_heads)}", n, cache_bytes(cache, cache.filled) / 1024)
        if kv_heads == 1:
            yield Point(SIZE, f"source, {name_heads(kv_heads)}", n, cache_bytes(cross, source.shape[1]) / 1024)


def cache_bytes(cache: SelfCache | CrossCache, num_tokens: int) -> int:
    """The bytes of the keys and values of the first tokens in a cache."""
    stored = [tensor[:, :, :num_tokens] for tensor in (*cache.keys, *cache.values)]
    return sum(tensor.numel() * tensor.element_size() for tensor in stored)


def name_heads(kv_heads: int) -> str:
    """The number of key/value heads in words."""
    return f"{kv_heads} key/value head" + ("s" if kv_heads > 1 else "")


def check(table: Table) -> list[Check]:
    """Without the cache of the target, the work grows by one power of n more. The tokens are the same."""
    last = table.xs(WORK)[-1]
    growth = {store: table.exponent(WORK, store) for store in (MEMORY, CROSS, BOTH)}
    work = {store: table.mean(WORK, store, last) for store in (MEMORY, CROSS, BOTH)}
    sizes = [table.curve(SIZE, f"target, {name_heads(heads)}") for heads in (HEADS, 2, 1)]
    same = min(table.curve(SAME, BOTH).values())
    return [
        Check(
            "caching the keys and values of source and target lowers the exponent of the work by one (0.8–1.2), and "
            "changes no token",
            0.8 <= growth[MEMORY] - growth[BOTH] <= 1.2 and same == 1.0,
            f"exponent {growth[BOTH]:.2f} with the caches, {growth[MEMORY]:.2f} without; {same:.0%} of the tokens are "
            "equal",
        ),
        Check(
            "the cache comes from the encoder: caching only the keys and values of the source also lowers the "
            "exponent by one",
            0.8 <= growth[MEMORY] - growth[CROSS] <= 1.2,
            f"exponent {growth[CROSS]:.2f}; at n = {last} it saves {1 - work[CROSS] / work[MEMORY]:.0%} of the work, "
            f"and both caches {1 - work[BOTH] / work[MEMORY]:.1%}",
        ),
        Check(
            "the cache of the target grows with n, and in proportion to the number of key/value heads",
            abs(table.exponent(SIZE, f"target, {name_heads(HEADS)}") - 1) < 0.01
            and all(sizes[0][last] == few[last] * HEADS / heads for few, heads in zip(sizes[1:], (2, 1), strict=True)),
            f"{sizes[0][last]:.0f}, {sizes[1][last]:.0f} and {sizes[2][last]:.0f} KiB with {HEADS}, 2 and 1 heads",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    import qkv

    network = qkv.load("en-fr").network
    source, target = torch.randint(8000, (1, 9)), torch.randint(8000, (1, 20))
    memory = network.encode(source)
    cross_cache = network.build_cross_cache(memory)  # keys and values of the source: computed once
    cache = network.new_cache(batch_size=1, capacity=32)  # keys and values of the target: one more in each step
    for token in target.split(1, dim=1):
        logits = network(token, memory=cross_cache, cache=cache)
    difference = (logits[:, -1] - network(target, memory=memory)[:, -1]).abs().max()
    print(f"largest difference from the logits without a cache: {difference:.1e}")
    print("source", tuple(cross_cache.keys[0].shape), "target", tuple(cache.keys[0][:, :, : cache.filled].shape))


CLAIM = Claim(
    name="kv-cache",
    chapter="running",
    title="The KV cache takes one power of n off the work of generation",
    quotes=(Quote("Store KV cache(output of encoder)", "video", "wrong: there are two caches"),),
    question="What must be stored while a model generates, what does it save, and how large is it?",
    method="An encoder-decoder with random weights generates n tokens greedily. From step to step it keeps only the "
    "encoder's output, or the keys and values of the source, or the keys and values of both sides. Torch counts "
    "the multiply-adds of the decoder; the encoder runs once in all cases.",
    lesson="A causal mask makes the keys and values of a token independent of all later tokens, so they are computed "
    "once and stored. Each step then computes one token instead of n. The notes call the output of the encoder the "
    "cache. There are two caches, and both hold keys and values of every layer. The cache of the source is computed "
    "once, the cache of the target grows by one token in each step. The second one saves the power of n. "
    "Grouped-query attention shrinks both, because query heads share keys and values.",
    limits="The count has no bytes. A step with a cache reads all weights and the whole cache for one token, so its "
    "time depends on memory bandwidth.",
    settings={
        "mini": KvCacheSettings((8, 16, 32), layers=1, source_length=4),
        "small": KvCacheSettings(),
        "full": KvCacheSettings((16, 32, 64, 128, 256, 512, 1024)),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=WORK, x="generated tokens n", log_x=True, log_y=True),
        Chart(measure=SIZE, x="generated tokens n", log_x=True, log_y=True),
        Chart(measure=SECONDS, x="generated tokens n", log_x=True, log_y=True),
    ),
    example=example,
    is_deterministic=True,
    timed=(SECONDS,),
    seeds={"mini": 1, "small": 3, "full": 3},
)
