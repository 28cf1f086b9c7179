"""Codes that a model generates become drawings: with a toy back end, a picture of coloured tiles."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from squares import VOCAB, make_config
from torch import Tensor, nn

import qkv
from qkv.blocks.back_ends import BACK_ENDS, BackEndConfig, register_back_end
from qkv.decode import GenerationOptions, draw, generate
from qkv.models import Config, Network, build
from qkv.models.tables.summary import count_parameters
from qkv.train.loss.training_module import TrainingModule
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.recipe.schema import ObjectiveSection, TrainSection

FIRST, CODES = 22, 6


@dataclass(frozen=True, kw_only=True)
class TilesConfig(BackEndConfig):
    """Rows of `columns` tiles."""

    kind: ClassVar[str] = "tiles"
    columns: int = 2

    def length(self, size: tuple[int, int]) -> int:
        return size[0] * size[1]


class Tiles(nn.Module):
    """Each code is a colour."""

    def __init__(self, config: TilesConfig) -> None:
        super().__init__()
        self.columns, self.colours = config.columns, nn.Embedding(config.num_codes, 3)

    def forward(self, codes: Tensor) -> Tensor:
        return self.colours(codes).view(-1, self.columns, 3)


if "tiles" not in BACK_ENDS:
    register_back_end(TilesConfig, Tiles)


def config_with(*back_ends: BackEndConfig, family: str = "decoder") -> Config:
    return replace(make_config(family), back_ends=back_ends or (TilesConfig(first_id=FIRST, num_codes=CODES),))


def make_network(family: str = "decoder") -> Network:
    torch.manual_seed(0)
    return build(config_with(family=family), dtype=torch.float64).eval()


def test_runs_of_codes_are_drawn_and_the_rest_is_text() -> None:
    network = make_network()
    ids = [3, FIRST, FIRST + 5, FIRST + 1, FIRST, 4, 5, FIRST + 2, FIRST + 3]
    one, two = draw(network, ids)
    assert (one.kind, one.start, one.end, one.values.shape) == ("tiles", 1, 5, (2, 2, 3))
    assert (two.start, two.end, two.values.shape) == (7, 9, (1, 2, 3))
    colours = network.back_ends["tiles"].colours.weight
    assert torch.equal(one.values.flatten(0, 1), colours[torch.tensor([0, 5, 1, 0])])
    assert not one.values.requires_grad
    assert draw(network, [1, 2, 3]) == []


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_a_generated_picture_is_drawn(family: str) -> None:
    """A model that may only write codes draws a picture of the size that its config states."""
    network = make_network(family)
    allowed = torch.full((VOCAB,), float("-inf"), dtype=torch.float64)
    allowed[FIRST : FIRST + CODES] = 0.0
    length = network.config.back_ends[0].length((3, 2))
    options = GenerationOptions(
        max_tokens=length, min_tokens=length, logits_processors=(lambda logits, tokens: logits + allowed,)
    )
    ids = generate(network, [[5, 6, 7]], options)[0].ids
    (drawing,) = draw(network, ids)
    assert drawing.values.shape == (3, 2, 3)


def test_a_fast_path_runs_a_network_with_back_ends() -> None:
    from qkv.decode.backend import CPU, choose_backend

    assert choose_backend(make_network(), GenerationOptions()) is CPU


@pytest.mark.parametrize(
    ("back_ends", "message"),
    [
        ([TilesConfig(first_id=VOCAB - 1, num_codes=2)], "codes end at 31, but vocab_size = 30"),
        ([TilesConfig(num_codes=2), TilesConfig(first_id=5, num_codes=2)], "occurs 2 times"),
    ],
)
def test_codes_are_ids_of_the_vocabulary(back_ends: list[BackEndConfig], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_with(*back_ends)


def test_codes_of_two_back_ends_do_not_overlap() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Other(TilesConfig):
        kind: ClassVar[str] = "other-tiles"

    register_back_end(Other, Tiles, replace=True)
    try:
        with pytest.raises(ValueError, match="overlap with others at 23"):
            config_with(TilesConfig(first_id=FIRST, num_codes=4), Other(first_id=FIRST + 1, num_codes=2))
        config_with(TilesConfig(first_id=FIRST, num_codes=4), Other(first_id=FIRST + 4, num_codes=2))
    finally:
        BACK_ENDS.unregister("other-tiles")


def test_a_folder_keeps_the_back_end(tmp_path: Path) -> None:
    model = qkv.new(config_with())
    model.save(tmp_path / "model")
    again = qkv.load(tmp_path / "model")
    assert again.config == model.config
    ids = [FIRST, FIRST + 1]
    assert torch.equal(draw(again.network, ids)[0].values, draw(model.network, ids)[0].values)
    with pytest.raises(qkv.QkvError, match=r"cannot store the back ends of this model \(tiles\)"):
        qkv.new(replace(config_with(), front_ends=())).export(tmp_path / "hf")


def test_its_parameters_are_counted_and_not_trained() -> None:
    config = config_with()
    assert count_parameters(config)["back ends"] == CODES * 3
    network = build(config)
    assert sum(count_parameters(config).values()) == sum(p.numel() for p in network.parameters())
    trained = make_optimizer(TrainingModule(network, ObjectiveSection()).named_parameters(), TrainSection())
    ids = {id(p) for group in trained.param_groups for p in group["params"]}
    assert not ids & {id(p) for p in network.back_ends.parameters()}
