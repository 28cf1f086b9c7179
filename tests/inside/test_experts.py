"""Mixtures of experts: trained by a recipe and resumed, their routing drawn, their dead experts found."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import IDS, make_network

import qkv
from qkv.cli import run_command
from qkv.inside.doctor import run_check
from qkv.inside.doctor.subject import Subject, random_batch
from qkv.page import unpack
from qkv.tasks.train import open_recipe, train

RECIPE = """
run = "r"
[data]
train = "text.txt"
max_length = 32
cache_dir = "cache"
[tokenizer]
kind = "char"
[model]
width = 16
layers = 2
heads = 2
feedforward = "moe"
experts = 4
{keys}
[objective]
kind = "causal_lm"
[train]
steps = 6
batch_tokens = 128
micro_batch_tokens = 64
device = "cpu"
"""


def test_the_doctor_finds_experts_without_tokens() -> None:
    network = make_network("decoder", feedforward="moe", experts=4, dtype=torch.float32)
    subject = Subject(network, None, random_batch(network.config))
    assert run_check("experts", subject).status == "ok"
    with torch.no_grad():
        block: Any = network.stacks["decoder"].block_of(1)
        block.attention_sub.norm.bias.zero_()
        block.ffn_sub.norm.weight.zero_()
        block.ffn_sub.norm.bias.fill_(1.0)
        block.ffn.router.weight.copy_(torch.tensor([3.0, 2.0, 1.0, 0.0])[:, None].expand(-1, 16))
    found = run_check("experts", subject)
    assert found.status == "warning"
    assert found.values["dead"] == ["decoder.1 expert 2", "decoder.1 expert 3"]
    assert "raise balance_loss" in found.advice
    assert (
        run_check("experts", Subject(make_network("decoder"), None, random_batch(network.config))).status == "skipped"
    )


def test_look_draws_the_weights_of_the_router() -> None:
    network = make_network("decoder", feedforward="moe", experts=4)
    model = qkv.Model(network.config, network, None)
    document = model.look(IDS).document
    assert "neurons" in document["views"]
    layer = document["neurons"]["layers"][1]
    assert (layer["noun"], layer["size"], layer["promotes"]) == ("expert", 4, None)
    drawn = torch.from_numpy(unpack(layer["activations"]))  # (experts, tokens), by their peaks
    routing = model.trace(IDS, sites=["decoder.1.routing"])["decoder.1.routing"]
    assert routing.sum(-1).tolist() == pytest.approx([1.0] * len(IDS))
    torch.testing.assert_close(drawn, routing.T[layer["neurons"]].double(), atol=0.01, rtol=0)


@pytest.mark.parametrize("keys", ["", "balance_loss = 0.5\nrouter_z_loss = 0.1"])
def test_a_recipe_trains_a_mixture_with_its_losses(keys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("".join(f"the cat number {i} sees {i * i} dogs\n" for i in range(60)))
    (tmp_path / "r.toml").write_text(RECIPE.format(keys=keys))
    model = qkv.train("r.toml")
    copy.deepcopy(model.network)
    copy.deepcopy(model.network.train())
    assert qkv.load("r").generate("the ", max_tokens=4).text == model.generate("the ", max_tokens=4).text
    if keys:
        train(open_recipe("r.toml", ["run=plain", "model.balance_loss=0", "model.router_z_loss=0"]))
        ours, plain = (dict(qkv.load(run).network.named_parameters()) for run in ("r", "plain"))
        name = "decoder.blocks.0.ffn.router.weight"
        assert not torch.allclose(ours[name], plain[name], atol=1e-5), "the losses move the router"


def test_info_shows_the_parameters_that_a_token_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = make_network("decoder", feedforward="moe", experts=4)
    qkv.Model(network.config, network, None).save(tmp_path)
    assert run_command(["info", str(tmp_path), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["total"] - values["active"] == 2 * 2 * (3 * 16 * 24 + 2 * 24 + 16)
    assert run_command(["info", str(tmp_path)]) == 0
    assert "used by a token" in capsys.readouterr().out
