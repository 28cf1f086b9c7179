"""The one-hot table of a new head is fitted before the first step, to variants of one protein."""

import csv
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from fault_runs import log_of, notes_of

import qkv
from qkv.blocks.one_hot import OneHotTable
from qkv.tasks.train import train
from qkv.text.residues import AMINO_ACIDS, describe_residues
from qkv.train import one_hot_fit
from qkv.train.one_hot_fit import EffectTable, Features
from qkv.train.recipe import recipe_file

RESIDUES = 10
RECIPE = """
run = "{run}"
[data]
train = "{data}"
modality = "protein"
columns = {{{field} = "sequence", score = "score"}}
valid_fraction = 0.2
[tokenizer]
kind = "char"
[model]
width = 16
layers = 1
head = {{pool = "mean", {dense}one_hot_positions = 12}}
[objective]
kind = "{kind}"
[train]
steps = 2
batch_tokens = 1024
lr = {lr}
final = "best"
metric = "loss"
on_nonfinite = "skip"
fit_head = {fit}
"""


def make_variants(path: Path) -> None:
    """Variants of one protein with up to three substitutions, and the sum of their effects."""
    rng = Random(0)
    wild = [rng.choice(AMINO_ACIDS) for _ in range(RESIDUES)]
    effects = {(i, residue): rng.gauss(0, 3) for i in range(RESIDUES) for residue in AMINO_ACIDS}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sequence", "score"])
        for _ in range(200):
            chosen = list(wild)
            for i in rng.sample(range(RESIDUES), rng.randint(0, 3)):
                chosen[i] = rng.choice("ADKLW")
            effect = sum(effects[i, now] for i, (was, now) in enumerate(zip(wild, chosen, strict=True)) if was != now)
            writer.writerow(["".join(chosen), f"{100 + effect:.4f}"])


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("variants") / "variants.csv"
    make_variants(path)
    return path


@pytest.fixture(autouse=True)
def few_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_hot_fit, "FOLDS", 2)
    monkeypatch.setattr(one_hot_fit, "PROPERTY_SCALES", (0.0, 0.6))


def run(variants: Path, kind: str, name: str, *, fit: str = "true", lr: float = 1e-3) -> Any:
    folder = variants.parent / name
    values = (
        {"field": "first", "dense": ""} if kind == "contrastive" else {"field": "text", "dense": 'dense = "none", '}
    )
    recipe = RECIPE.format(run=folder, data=variants, kind=kind, fit=fit, lr=lr, **values)
    train(recipe_file.loads(recipe, "recipe.toml"))
    return folder


def test_a_number_is_fitted_first_and_steps_that_destroy_the_network_leave_it(variants: Path) -> None:
    """A control: without the fit, the scores around 100 are far away."""
    fitted = run(variants, "classification", "fitted", lr=50.0)
    first = log_of(fitted, "eval")[0]
    assert first["step"] == 0
    assert first["spearman"] > 0.9
    assert "was fitted to one-hot features of" in notes_of(fitted)
    lines = list(csv.DictReader(variants.open()))[:50]
    found = qkv.load(fitted).classify([one["sequence"] for one in lines])
    errors = [abs(one.score - float(line["score"])) for one, line in zip(found, lines, strict=True)]
    assert float(np.median(errors)) < 1.0
    unfitted = run(variants, "classification", "unfitted", fit="false")
    assert log_of(unfitted, "eval")[0]["loss"] > 100 * first["loss"]
    assert "one-hot" not in notes_of(unfitted)


def test_an_embedding_turns_with_the_score(variants: Path) -> None:
    """The cosine with the variant of the lowest score falls as the score rises."""
    fitted = run(variants, "contrastive", "embedding")
    lines = sorted(csv.DictReader(variants.open()), key=lambda one: float(one["score"]))
    vectors = qkv.load(fitted).embed([one["sequence"] for one in lines]).cpu().numpy()
    ranks = np.argsort(np.argsort(-vectors @ vectors[0]))
    assert np.corrcoef(ranks, np.arange(len(lines)))[0, 1] > 0.9


def test_the_effects_of_alike_residues_are_alike_with_properties_only() -> None:
    """A gradient that raises the effect of L raises that of I, too, unless the scale of the properties is 0."""
    tokens = [*AMINO_ACIDS, "<pad>"]
    table = EffectTable(OneHotTable(2, 21, 4), 1, torch.tensor(describe_residues(tokens)), 1.0)
    changed = []
    for scale in (0.0, 0.6):
        table.use_properties(scale)
        row = 21 + tokens.index("L")
        table.project(Features(torch.tensor([[row]]), torch.ones(1, 1))).sum().backward()
        with torch.no_grad():
            table.weight.add_(table.weight.grad)
        effects = table.effects().detach().view(2, 21)
        changed.append([float(effects[1, tokens.index(one)]) for one in ("L", "I", "D", "<pad>")])
        assert effects[0].abs().max() < 1e-6, "other positions do not change"
        table.weight.grad = None
    assert changed[0] == pytest.approx([1.0, 0.0, 0.0, 0.0], abs=1e-6)
    assert changed[1][0] > changed[1][1] > 0.5 > changed[1][2]
    assert changed[1][3] == pytest.approx(0.0, abs=1e-5)
