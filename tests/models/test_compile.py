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

from qkv.blocks import Inputs

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
        return network(Inputs(other, document_ids=SEGMENT, source=Inputs(one, document_ids=SEGMENT)))
    return network(Inputs(one, document_ids=SEGMENT))


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
