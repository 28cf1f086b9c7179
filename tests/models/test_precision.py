"""Low precision: positions far out (trap 18), and whole networks in bfloat16 against better ones (trap 19)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.blocks import Inputs
from qkv.blocks import position as module
from qkv.blocks.position import Rotary

Make = Callable[..., Any]
FAR = 16_000


def both(network: Make, family: str, **choices: Any) -> tuple[Any, Any]:
    """One network in bfloat16, and the same weights (rounded the same) in float64."""
    low = network(family, dtype=torch.bfloat16, init_std=0.1, **choices)
    high = network(family, init_std=0.1, **choices)
    high.load_state_dict({name: value.double() for name, value in low.state_dict().items()})
    return low, high


def error(network: Make, ids: Make, at: int, **choices: Any) -> float:
    """How far a bfloat16 decoder lies from float64, relative, with texts that start at position `at`."""
    low, high = both(network, "decoder", width=64, heads=2, **choices)
    text = ids(4, 12)
    where = at + torch.arange(12)[None]
    with torch.no_grad():
        a, b = (net.hidden(Inputs(text, positions=where))[0].double() for net in (low, high))
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("position", ["rotary", "sinusoidal"])
def test_a_bfloat16_model_is_as_good_far_out_as_at_the_start(network: Make, ids: Make, position: str) -> None:
    near, far = (error(network, ids, at, position=position) for at in (0, FAR))
    assert near < 0.02
    assert far < 2 * near


def test_low_precision_angles_would_be_noticed(network: Make, ids: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: positions and frequencies rounded as `.bfloat16()` would round a table's."""

    def rounded(position: Tensor, frequencies: Tensor) -> Tensor:
        return (position.bfloat16()[..., None] * frequencies.bfloat16()).double()

    right = Rotary.__init__

    def wrong(self: Rotary, position: Tensor, width: int, base: float, scaling: Any, dtype: torch.dtype) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if dtype == torch.bfloat16:
                patch.setattr(module, "_angles", rounded)
            right(self, position, width, base, scaling, dtype)

    monkeypatch.setattr(Rotary, "__init__", wrong)
    assert error(network, ids, FAR, position="rotary") > 0.1


@pytest.mark.parametrize("family", ["encoder", "decoder", "seq2seq"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_a_bfloat16_network_is_near_the_exact_one(network: Make, run: Make, ids: Make, family: str, norm: str) -> None:
    low, high = both(network, family, norm=norm, position="alibi")
    one, other = ids(2, 24), ids(2, 20, seed=1)
    with torch.no_grad():
        a, b = run(low, one, None, other), run(high, one, None, other)
    assert a.dtype == torch.bfloat16
    assert float((a.double() - b).norm() / b.norm()) < 0.03


def test_a_float32_network_is_near_the_exact_one(network: Make, ids: Make) -> None:
    single, double = network("decoder", dtype=torch.float32), network("decoder")
    double.load_state_dict({name: value.double() for name, value in single.state_dict().items()})
    with torch.no_grad():
        a, b = single(ids(2, 24)), double(ids(2, 24))
    assert float((a.double() - b).abs().max()) < 1e-4
