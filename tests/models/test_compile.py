"""Nothing in the hot path breaks `torch.compile(fullgraph=True)`, and nothing is compiled twice for one shape.

The tracing is what breaks, so it is what these tests run: graphs are executed as traced, and for one network of each
family through the passes that split off the backward. Generating code would take a minute and prove no more of ours.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

Make = Callable[..., Any]
FAMILIES = ["encoder", "decoder", "seq2seq"]
POSITIONS = ["sinusoidal", "sinusoidal_split", "learned", "rotary", "alibi", "t5", "none"]
SEGMENT = torch.tensor([[1, 1, 1, 2, 2, 0], [0, 1, 1, 1, 1, 1]])


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def call(network: Any, family: str, ids: Make, seed: int) -> Tensor:
    """One forward pass over packed and padded rows."""
    one, other = ids(2, 6, seed=seed), ids(2, 6, seed=seed + 1)
    if family == "seq2seq":
        return network(one, other, SEGMENT, SEGMENT)
    return network(one, SEGMENT)


@pytest.mark.parametrize(
    ("family", "position"),
    [*(("decoder", position) for position in POSITIONS), ("encoder", "t5"), ("seq2seq", "alibi")],
)
def test_one_graph_gives_the_eager_numbers_and_serves_twice(
    network: Make, ids: Make, family: str, position: str
) -> None:
    small, counter = network(family, position=position, kv_heads=2, layers=1, sliding_window=3), CompileCounter()
    compiled = torch.compile(small, fullgraph=True, backend=counter)
    with torch.no_grad():
        for seed in (0, 5):
            assert torch.equal(call(compiled, family, ids, seed), call(small, family, ids, seed))
    assert counter.frame_count == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_through_a_compiled_network_are_the_eager_ones(network: Make, ids: Make, family: str) -> None:
    small = network(family, position="rotary", norm="rmsnorm", feedforward="swiglu", layers=1).train()
    compiled = torch.compile(small, fullgraph=True, backend="aot_eager")
    found = {}
    for name, run in (("eager", small), ("compiled", compiled)):
        small.zero_grad()
        call(run, family, ids, 0).square().sum().backward()
        found[name] = [p.grad.clone() for p in small.parameters() if p.grad is not None]
    assert len(found["eager"]) == len(list(small.parameters()))
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(found["eager"], found["compiled"], strict=True))


def test_a_row_without_segments_compiles(network: Make, ids: Make) -> None:
    small = network("decoder", layers=1)
    compiled = torch.compile(small, fullgraph=True, backend="eager")
    assert torch.equal(compiled(ids(2, 6)), small(ids(2, 6)))


@pytest.mark.parametrize("position", ["learned", "rotary", "t5"])
def test_a_compiled_step_with_a_static_cache_is_the_eager_step(network: Make, ids: Make, position: str) -> None:
    """Left-padded prompts, then token by token: one graph for all steps, and the same as a growing cache."""
    small, counter = network("decoder", position=position, layers=1), CompileCounter()
    static, growing = small.new_cache(2, 12, static=True), small.new_cache(2, 12)
    step = torch.compile(lambda token: small(token, cache=static), fullgraph=True, backend=counter)
    with torch.no_grad():
        for cache in (static, growing):
            small(ids(2, 6), SEGMENT.clamp(max=1), cache=cache)
        for seed in range(4):
            token = ids(2, 1, seed=seed)
            assert torch.allclose(step(token), small(token, cache=growing), atol=1e-11)
    assert counter.frame_count == 1
    assert int(static.cursor) == 10


def test_a_compiled_seq2seq_step_reads_its_source_for_all_beams(network: Make, ids: Make) -> None:
    small, counter = network("seq2seq", layers=1), CompileCounter()
    with torch.no_grad():
        memory = small.build_cross_cache(small.encode(ids(2, 6), SEGMENT.clamp(max=1)))
        static, growing = small.new_cache(4, 8, static=True), small.new_cache(4, 8)
        step = torch.compile(lambda token: small.decode(token, memory, cache=static), fullgraph=True, backend=counter)
        for seed in range(3):
            token = ids(4, 1, seed=seed)
            assert torch.allclose(step(token), small.decode(token, memory, cache=growing), atol=1e-11)
    assert counter.frame_count == 1


def test_a_full_static_cache_is_noticed_in_a_compiled_step(network: Make, ids: Make) -> None:
    small = network("decoder", layers=1)
    cache = small.new_cache(2, 2, static=True)
    step = torch.compile(lambda token: small(token, cache=cache), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        step(ids(2, 1))
        step(ids(2, 1))
        with pytest.raises(RuntimeError, match="the static cache of 2 slots is full"):
            step(ids(2, 1))
