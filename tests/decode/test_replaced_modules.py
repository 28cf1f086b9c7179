"""A fast path runs only the modules that it was written for: a network with any other module runs on the reference."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from decode_models import tiny
from torch import nn

from qkv.blocks import Embedding, Head, Stack
from qkv.blocks.attention import CrossAttention, SelfAttention
from qkv.blocks.block import Block, ResidualWrapper
from qkv.blocks.dropout import Dropout
from qkv.blocks.feedforward import FeedForward
from qkv.decode import GenerationOptions, generate
from qkv.decode.backend import CPU, REFERENCE, choose_backend
from qkv.decode.gpu import static_runner
from qkv.models import Decoder, Seq2Seq

PROMPT = [5, 6, 7, 3]


def twice(kind: type[nn.Module], method: str = "forward") -> Callable[[Any], None]:
    """Turn every module of a kind into a subclass of which a method returns twice as much."""

    def doubled(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = getattr(kind, method)(self, *args, **kwargs)
        return (2 * out[0], *out[1:]) if isinstance(out, tuple) else 2 * out

    def change(network: nn.Module) -> None:
        for module in [m for m in network.modules() if type(m) is kind]:
            module.__class__ = type("Twice", (kind,), {method: doubled})

    return change


def own_forward(network: Any) -> None:
    ffn = network.decoder.blocks[0].ffn
    ffn.forward = lambda x, tap=None: 2 * FeedForward.forward(ffn, x, tap)


def hook(network: Any) -> None:
    network.decoder.blocks[0].attention.out.register_forward_hook(lambda module, args, out: 2 * out)


def sequential(network: Any) -> None:
    network.decoder.blocks[1].ffn_sub.dropout = nn.Sequential(nn.Tanh())


CHANGES: dict[str, Callable[[Any], None]] = {
    **{kind.__name__: twice(kind) for kind in (FeedForward, SelfAttention, Block, ResidualWrapper, Stack, Embedding)},
    "Head": twice(Head, "project"),
    "Decoder": twice(Decoder, "hidden"),
    "Dropout": twice(Dropout),
    "an instance's forward": own_forward,
    "hook": hook,
    "another module for the dropout": sequential,
}


def log_probs_of(network: Any, ids: list[int]) -> list[float]:
    """The log-probabilities of generated tokens in one forward pass over the whole sequence."""
    with torch.no_grad():
        table = network(torch.tensor([PROMPT + ids])).log_softmax(-1)[0, len(PROMPT) - 1 :]
    return [float(table[step, token]) for step, token in enumerate(ids)]


@pytest.mark.parametrize("change", CHANGES)
def test_a_network_with_another_module_decodes_as_its_forward_pass(change: str) -> None:
    network: Any = tiny("decoder")
    assert choose_backend(network, GenerationOptions()) is CPU
    assert static_runner.is_supported(network)
    before = log_probs_of(network, [4, 8, 3])
    CHANGES[change](network)
    assert log_probs_of(network, [4, 8, 3]) != pytest.approx(before), "the negative control: the change matters"
    assert choose_backend(network, GenerationOptions()) is REFERENCE
    assert not static_runner.is_supported(network)
    result = generate(network, [PROMPT], GenerationOptions(max_tokens=5, min_tokens=3))[0]
    found = [one.logprob for one in result.logprobs][: len(result.ids)]
    assert found == pytest.approx(log_probs_of(network, result.ids), abs=1e-9)


@pytest.mark.parametrize("kind", [CrossAttention, FeedForward, Stack, Seq2Seq])
def test_an_encoder_decoder_with_another_module_runs_on_the_reference(kind: type[nn.Module]) -> None:
    network: Any = tiny("seq2seq")
    assert choose_backend(network, GenerationOptions()) is CPU
    twice(kind)(network)
    assert choose_backend(network, GenerationOptions()) is REFERENCE


def test_linear_maps_and_norms_are_called_so_they_may_be_others() -> None:
    """Adapters and quantised matrices stay fast: a fast path calls a linear map or norm that it does not know."""
    network: Any = tiny("decoder")
    ffn = network.decoder.blocks[0].ffn
    ffn.down = nn.Sequential(ffn.down, nn.Tanh())
    assert choose_backend(network, GenerationOptions()) is CPU
    result = generate(network, [PROMPT], GenerationOptions(max_tokens=5, min_tokens=3))[0]
    found = [one.logprob for one in result.logprobs][: len(result.ids)]
    assert found == pytest.approx(log_probs_of(network, result.ids), abs=1e-9)
