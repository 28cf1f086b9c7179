"""The embedding: token, scale, position, type, norm, projection, each where the config has it."""

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import conv1d

from qkv.blocks.config import StackConfig
from qkv.blocks.embedding import Embedding, unmasked_fraction
from qkv.blocks.position import sinusoids

Config = Callable[..., StackConfig]
IDS = torch.tensor([[3, 7, 7], [1, 0, 39]])
POSITION = torch.arange(3)[None]


def embedding(config: StackConfig) -> Embedding:
    torch.manual_seed(0)
    return Embedding(config).double().eval()


@pytest.mark.parametrize(("scale", "factor"), [("none", 1.0), ("sqrt", 4.0)])
def test_tokens_are_scaled_by_the_root_of_the_width_or_not(small: Config, scale: str, factor: float) -> None:
    """Trap 10: √16 = 4, and only the token's vector is scaled, not its position."""
    layer = embedding(small(position="sinusoidal", embedding_scale=scale))
    expected = layer.token.weight[IDS] * factor + sinusoids(POSITION, 16)
    assert torch.allclose(layer(IDS, POSITION), expected, atol=1e-15)


def test_a_narrow_embedding_is_scaled_by_its_own_width(small: Config) -> None:
    layer = embedding(small(position="none", embedding_scale="sqrt", embedding_width=4))
    assert layer.project is not None
    assert torch.allclose(layer(IDS, POSITION), layer.project(layer.token.weight[IDS] * 2.0), atol=1e-15)


@pytest.mark.parametrize("kind", ["rotary", "alibi", "t5", "none"])
def test_positions_that_act_in_attention_add_nothing_here(small: Config, kind: str) -> None:
    layer = embedding(small(position=kind))
    assert torch.equal(layer(IDS, POSITION), layer.token.weight[IDS])


@pytest.mark.parametrize("offset", [0, 2])
def test_learned_positions_read_their_row_from_the_offset_on(small: Config, offset: int) -> None:
    layer = embedding(small(position="learned", position_offset=offset))
    assert layer.position is not None
    assert layer.position.weight.shape == (64 + offset, 16)
    expected = layer.token.weight[IDS] + layer.position.weight[offset : offset + 3]
    assert torch.equal(layer(IDS, POSITION), expected)


def test_split_sinusoids_are_added_split(small: Config) -> None:
    layer = embedding(small(position="sinusoidal_split"))
    assert torch.allclose(
        layer(IDS, POSITION) - layer.token.weight[IDS], sinusoids(POSITION, 16, split=True), atol=1e-15
    )


def test_types_are_added_and_default_to_the_first(small: Config) -> None:
    layer = embedding(small(position="none", token_types=2))
    assert layer.types is not None
    types = torch.tensor([[0, 1, 1], [0, 0, 1]])
    assert torch.equal(layer(IDS, POSITION, types), layer.token.weight[IDS] + layer.types.weight[types])
    assert torch.equal(layer(IDS, POSITION), layer(IDS, POSITION, torch.zeros_like(types)))


def test_the_norm_comes_after_the_sum_and_before_the_projection(small: Config) -> None:
    layer = embedding(small(position="learned", token_types=2, embedding_norm="extra", embedding_width=8))
    assert layer.norm is not None
    assert layer.project is not None
    assert layer.position is not None
    assert layer.types is not None
    total = layer.token.weight[IDS] + layer.position.weight[:3] + layer.types.weight[0]
    assert torch.allclose(layer(IDS, POSITION), layer.project(layer.norm(total)), atol=1e-15)


def test_dropout_acts_in_training_alone(small: Config) -> None:
    layer = embedding(small(position="none", dropout=0.5))
    assert torch.equal(layer(IDS, POSITION), layer.token.weight[IDS])
    dropped = layer.train()(IDS, POSITION)
    assert 0 < int((dropped == 0).sum()) < dropped.numel()


def test_the_fraction_of_tokens_that_are_no_masks_is_counted_in_each_document() -> None:
    is_mask = torch.tensor([[True, False, False, False], [True, True, False, True]])
    assert unmasked_fraction(is_mask, None).tolist() == [[0.75], [0.25]]
    documents = torch.tensor([[1, 2, 2, 2], [1, 1, 2, 2]])
    found = unmasked_fraction(is_mask, documents)
    # A document of masks counts as one token of the sequence, so that nothing is divided by 0.
    assert found.tolist() == [[0.25, 1.0, 1.0, 1.0], [0.25, 0.25, 0.5, 0.5]]


def test_a_window_is_a_convolution_inside_each_document(small: Config) -> None:
    layer = embedding(small(position="none", embedding_width=4, embedding_window=2))
    assert layer.project is not None
    ids, documents = torch.tensor([[3, 7, 7, 1, 0, 39]]), torch.tensor([[1, 1, 1, 2, 2, 0]])
    kernel = layer.project.weight.view(16, 5, 4).transpose(1, 2)
    expected = conv1d(layer.token.weight[ids].mT, kernel, layer.project.bias, padding=2).mT
    positions = torch.arange(6)[None]
    assert torch.allclose(layer(ids, positions), expected, atol=1e-15)
    packed = layer(ids, positions, None, documents)
    for part in (ids[:, :3], ids[:, 3:5]):
        at = 0 if part.shape[1] == 3 else 3
        alone = layer(part, positions[:, : part.shape[1]])
        assert torch.allclose(packed[:, at : at + part.shape[1]], alone, atol=1e-15)
    assert not torch.allclose(packed, expected), "the negative control: without documents, neighbours are read"
