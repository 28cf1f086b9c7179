"""A fast path runs only the modules that it was written for: a network with any other module runs on the reference."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from decode_models import tiny
from torch import nn
from torch.nn import functional as F

from qkv.blocks import Embedding, Head, Stack
from qkv.blocks.attention import CrossAttention, SelfAttention
from qkv.blocks.block import Block, ResidualWrapper
from qkv.blocks.dropout import Dropout
from qkv.blocks.feedforward import FeedForward
from qkv.decode import GenerationOptions, generate
from qkv.decode.backend import CPU, REFERENCE, choose_backend
from qkv.decode.cpu.int8 import Int8Linear
from qkv.decode.cpu.quantize import quantize
from qkv.decode.gpu import static_runner
from qkv.errors import QkvError
from qkv.models import Decoder, Seq2Seq
from qkv.train.loss.training_module import TrainingModule
from qkv.train.recipe.schema import ObjectiveSection

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


def own_activation(network: Any) -> None:
    network.decoder.blocks[0].ffn.activation = torch.tanh


def sequential(network: Any) -> None:
    network.decoder.blocks[1].ffn_sub.dropout = nn.Sequential(nn.Tanh())


CHANGES: dict[str, Callable[[Any], None]] = {
    **{kind.__name__: twice(kind) for kind in (FeedForward, SelfAttention, Block, ResidualWrapper, Stack, Embedding)},
    "Head": twice(Head, "project"),
    "Decoder": twice(Decoder, "hidden"),
    "Dropout": twice(Dropout),
    "an instance's forward": own_forward,
    "an instance's activation": own_activation,
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


class DoubledLinear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def double(linear: nn.Module) -> None:
    linear.__class__ = DoubledLinear


def add_hook(linear: nn.Module) -> None:
    linear.register_forward_hook(lambda module, arguments, out: 2 * out)


@pytest.mark.parametrize("change", [double, add_hook])
def test_int8_replaces_linear_maps_of_torch_only(change: Callable[[Any], None]) -> None:
    network: Any = tiny("decoder").float()
    change(network.decoder.blocks[0].ffn.down)
    copy = quantize(network)
    x = torch.randn(3, network.config.stack.ffn_width)
    with torch.no_grad():
        torch.testing.assert_close(copy.decoder.blocks[0].ffn.down(x), network.decoder.blocks[0].ffn.down(x))
    assert isinstance(copy.decoder.blocks[1].ffn.down, Int8Linear), "the others are quantised"


@pytest.mark.parametrize("change", [double, add_hook])
def test_the_loss_is_of_the_logits_that_the_network_computes(change: Callable[[Any], None]) -> None:
    """Also where the loss would be fused with the output matrix; also with a head of one's own."""
    network: Any = tiny("decoder")
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        for one in (lambda: change(network.head.out), lambda: twice(Head, "project")(network)):
            one()
            module = TrainingModule(network, ObjectiveSection()).eval()
            loss = module.token_loss(network.hidden(ids)[0][0], ids[0])
            torch.testing.assert_close(loss, F.cross_entropy(network(ids)[0], ids[0], reduction="sum"))


@pytest.mark.parametrize("kind", [Head, Decoder])
def test_a_forward_that_nothing_calls_is_an_error(kind: type[nn.Module]) -> None:
    """Training and decoding select positions before the head, so they call `hidden` and `project`."""
    network: Any = tiny("decoder")
    twice(kind)(network)
    for call in (
        lambda: generate(network, [PROMPT], GenerationOptions()),
        lambda: TrainingModule(network, ObjectiveSection()),
    ):
        with pytest.raises(QkvError, match="Twice has a `forward` of its own, which training and decoding do not call"):
            call()
