"""From a config to a network: its class, type, device, and which parameters are one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qkv.blocks import HeadConfig, Inputs
from qkv.errors import UsageError
from qkv.models import Config, Decoder, Encoder, Seq2Seq, build

Make = Callable[..., Any]
TIED = HeadConfig(kind="lm", outputs=40, tied=True)


@pytest.mark.parametrize(("family", "kind"), [("encoder", Encoder), ("decoder", Decoder), ("seq2seq", Seq2Seq)])
def test_a_config_makes_the_class_of_its_family(config: Make, family: str, kind: type) -> None:
    assert type(build(config(family))) is kind


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_every_parameter_has_the_type_asked_for(config: Make, dtype: torch.dtype) -> None:
    assert {p.dtype for p in build(config("seq2seq", position="t5"), dtype=dtype).parameters()} == {dtype}


def test_on_the_meta_device_there_are_shapes_alone(config: Make) -> None:
    shapes, real = build(config("seq2seq"), device="meta"), build(config("seq2seq"))
    assert {p.device.type for p in shapes.parameters()} == {"meta"}
    assert {n: p.shape for n, p in shapes.named_parameters()} == {n: p.shape for n, p in real.named_parameters()}


def test_networks_hold_no_buffers(config: Make) -> None:
    """Tables of positions are computed: `.bfloat16()` has nothing to ruin, and a file nothing to leave out."""
    for position in ("sinusoidal", "rotary", "alibi", "t5"):
        assert not list(build(config("seq2seq", position=position)).buffers())


def test_a_tied_head_shares_the_embeddings_storage(config: Make) -> None:
    network = build(config("decoder", TIED))
    assert isinstance(network, Decoder)
    assert network.head.out.weight is network.embedding.token.weight
    names = [name for name, _ in network.named_parameters()]
    assert "embedding.token.weight" in names
    assert "head.out.weight" not in names


def test_a_tied_head_is_still_tied_after_a_change_of_type(config: Make) -> None:
    network = build(config("decoder", TIED), dtype=torch.bfloat16).double()
    assert network.head.out.weight is network.embedding.token.weight  # type: ignore[union-attr]


def test_a_shared_embedding_is_one_for_source_target_and_tied_head(stack_config: Make) -> None:
    network = build(Config(encoder=stack_config(), decoder=stack_config(), head=TIED, share_embeddings=True))
    assert isinstance(network, Seq2Seq)
    assert network.source_embedding.token is network.target_embedding.token
    assert network.head.out.weight is network.source_embedding.token.weight


def test_separate_embeddings_are_separate_and_the_head_is_tied_to_the_target_s(stack_config: Make) -> None:
    network = build(Config(encoder=stack_config(vocab_size=50), decoder=stack_config(), head=TIED))
    assert isinstance(network, Seq2Seq)
    assert network.source_embedding.token.weight.shape == (50, 16)
    assert network.head.out.weight is network.target_embedding.token.weight


@pytest.mark.parametrize(("init", "std"), [("normal", 0.02), ("xavier", 0.125), ("t5", 1.0)])
def test_a_tied_matrix_starts_as_an_embedding(config: Make, init: str, std: float) -> None:
    """Not as the output matrix that it also is."""
    torch.manual_seed(0)
    network = build(config("decoder", TIED, width=64, init=init, init_std=0.02))
    assert float(network.embedding.token.weight.detach().std()) == pytest.approx(std, rel=0.05)  # type: ignore[union-attr]


def test_types_and_texts_reach_an_encoder(config: Make) -> None:
    torch.manual_seed(0)
    network = build(config("encoder", HeadConfig(kind="classify", outputs=3), token_types=2, init_std=0.3)).eval()
    ids = torch.arange(6)[None]
    segment = torch.tensor([[1, 1, 1, 2, 2, 0]])
    assert network(Inputs(ids, document_ids=segment, max_documents=2)).shape == (1, 2, 3)
    types = torch.tensor([[0, 1, 1, 0, 0, 0]])
    assert not torch.equal(
        network(Inputs(ids, document_ids=segment, token_type_ids=types)), network(Inputs(ids, document_ids=segment))
    )


def test_types_reach_the_encoder_of_a_seq2seq(config: Make) -> None:
    torch.manual_seed(0)
    network = build(config("seq2seq", token_types=2, init_std=0.3)).eval()
    ids = torch.arange(6)[None]
    plain, typed = (network.encode(Inputs(ids, token_type_ids=types)).vectors for types in (None, torch.ones_like(ids)))
    assert not torch.equal(plain, typed)


def test_a_value_that_is_no_config_is_named() -> None:
    with pytest.raises(UsageError, match="a network is built from a Config or the name of a preset, got 3"):
        build(3)  # type: ignore[arg-type]
