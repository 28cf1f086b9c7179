"""Small networks of all three families, and one way to run any of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.blocks import HeadConfig, Inputs, StackConfig, Tap
from qkv.models import Config, Decoder, Encoder, Network, Seq2Seq, build

VOCAB = 40


def make_stack_config(**choices: Any) -> StackConfig:
    size = {
        "vocab_size": VOCAB,
        "width": 16,
        "layers": 2,
        "heads": 4,
        "ffn_width": 24,
        "max_positions": 64,
        "init_std": 0.3,
    }
    return StackConfig(**(size | choices))


def make_config(family: str, head: HeadConfig | None = None, **choices: Any) -> Config:
    """A small config; both stacks of a seq2seq alike."""
    stack = make_stack_config(**choices)
    kind = "mlm" if family == "encoder" else "lm"
    return Config(
        encoder=stack if family != "decoder" else None,
        decoder=stack if family != "encoder" else None,
        head=head or HeadConfig(kind=kind, outputs=VOCAB),  # type: ignore[arg-type]
    )


def make_network(
    family: str,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    kernel: str = "auto",
    head: HeadConfig | None = None,
    **choices: Any,
) -> Network:
    """A network in eval mode, with norms and biases moved off their start so that leaving one out shows."""
    torch.manual_seed(seed)
    network = build(make_config(family, head, **choices), dtype=dtype)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    for name in ("encoder", "decoder"):
        if hasattr(network, name):
            getattr(network, name).kernel = kernel
    return network.eval()


def run_network(
    network: Network,
    ids: Tensor,
    segment: Tensor | None = None,
    source: Tensor | None = None,
    source_segment: Tensor | None = None,
    *,
    tap: Tap | None = None,
) -> Tensor:
    """The vectors that the head reads, of any family; `source` is for a seq2seq."""
    if isinstance(network, Seq2Seq):
        assert source is not None
        memory = network.encode(Inputs(source, document_ids=source_segment), tap=tap)
        return network.hidden(Inputs(ids, document_ids=segment), memory=memory, tap=tap)[0]
    assert isinstance(network, Encoder | Decoder)
    return network.hidden(Inputs(ids, document_ids=segment), tap=tap)[0]


@pytest.fixture
def stack_config() -> Callable[..., StackConfig]:
    return make_stack_config


@pytest.fixture
def config() -> Callable[..., Config]:
    return make_config


@pytest.fixture
def network() -> Callable[..., Any]:
    return make_network


@pytest.fixture
def run() -> Callable[..., Tensor]:
    return run_network


@pytest.fixture
def ids() -> Callable[..., Tensor]:
    """Random token ids (rows, length)."""

    def draw(rows: int, length: int, seed: int = 0) -> Tensor:
        return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))

    return draw
