"""int8 on the CPU: the original untouched, the copy near it, and refusals where it does not apply."""

import pytest
import torch
from decode_models import tiny

from qkv.decode import Options, generate
from qkv.decode.quantise import Int8Linear, quantise
from qkv.errors import QkvError
from qkv.models import Network

PROMPTS = [[3, 4, 5, 6], [7], [8, 9]]


def test_the_original_stays_as_it_is(network: Network) -> None:
    before = {name: p.clone() for name, p in network.named_parameters()}
    quantise(network)
    assert all(torch.equal(p, before[name]) for name, p in network.named_parameters())
    assert not any(isinstance(module, Int8Linear) for module in network.modules())


def test_every_linear_map_is_in_int8(network: Network) -> None:
    twin = quantise(network)
    assert not any(isinstance(module, torch.nn.Linear) for module in twin.modules())
    linears = sum(isinstance(module, torch.nn.Linear) for module in network.modules())
    assert sum(isinstance(module, Int8Linear) for module in twin.modules()) == linears


def test_a_map_is_off_by_less_than_its_steps() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 32)
    x = torch.randn(5, 64)
    exact, rough = linear(x), Int8Linear(linear)(x)
    error = (exact - rough).abs().max() / exact.abs().max()
    assert 0 < error < 0.03, "one byte for each weight and input: near, and not the same"


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_texts_mostly_agree_with_float32(family: str) -> None:
    network = tiny(family, vocab=40, seed=3).float()
    prompts = [[a, b, 5] for a in range(3, 13) for b in range(3, 8)]
    exact = generate(network, prompts, Options(max_tokens=6))
    rough = generate(quantise(network), prompts, Options(max_tokens=6))
    pairs = [(a, b) for x, y in zip(exact, rough, strict=True) for a, b in zip(x.ids, y.ids, strict=False)]
    assert sum(a == b for a, b in pairs) / len(pairs) > 0.7  # a random model decides by hairs; a trained one does not


def test_twice_is_refused() -> None:
    with pytest.raises(QkvError, match="already"):
        quantise(quantise(tiny("decoder").float()))
