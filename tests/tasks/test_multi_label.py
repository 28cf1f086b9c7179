"""Texts with several labels: from a file with lists of labels to a model that finds each of them."""

import json
from pathlib import Path
from random import Random

import pytest
import torch
from torch.nn import functional as F

import qkv
from qkv.tasks import metrics
from qkv.tasks.describe import describe_prepared, first_batch
from qkv.tasks.prepare.prepare import prepare
from qkv.tasks.train import open_recipe
from qkv.train.loss.training_module import TrainingModule, make_labelled_batch

ANIMALS = ("cat", "dog", "fox")
SETTINGS = {
    "data.format": "jsonl",
    "objective.kind": "classification",
    "tokenizer.kind": "word",
    "tokenizer.min_frequency": 1,
    "model.width": 32,
    "model.layers": 1,
    "model.heads": 2,
    "model.dropout": 0.0,
    "model.head": {"pool": "mean", "dense": "none", "dropout": 0.0},
    "train.lr": 2e-2,
    "train.steps": 40,
    "train.batch_tokens": 512,
    "data.max_length": 16,
    "train.device": "cpu",
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    draw, words = Random(1), ["the", "lazy", "quick", "brown", "runs", "over"]
    lines = []
    for _ in range(400):
        labels = [name for name in ANIMALS if draw.random() < 0.4]
        text = [draw.choice(words) for _ in range(3)] + labels
        draw.shuffle(text)
        lines.append(json.dumps({"text": " ".join(text), "labels": labels}) + "\n")
    (tmp_path / "train.jsonl").write_text("".join(lines[:300]), encoding="utf-8")
    (tmp_path / "valid.jsonl").write_text("".join(lines[300:]), encoding="utf-8")
    paths = {"data.train": str(tmp_path / "train.jsonl"), "data.valid": str(tmp_path / "valid.jsonl")}
    (tmp_path / "labels.toml").write_text("", encoding="utf-8")
    return {
        **paths,
        "data.cache_dir": str(tmp_path / "cache"),
        "run": str(tmp_path / "run"),
        "recipe": str(tmp_path / "labels.toml"),
    }


def test_every_label_is_found(files: dict[str, str]) -> None:
    recipe = files.pop("recipe")
    model = qkv.train(recipe, **files, **SETTINGS)
    assert model.config.head.multi_label
    assert model.config.head.labels == ANIMALS
    assert sorted(model.classify("the fox and a dog").labels) == ["dog", "fox"]
    assert model.classify("the lazy quick").labels == []
    assert str(model.classify("the lazy quick")).startswith("(none)")
    loaded = qkv.load(files["run"])
    assert loaded.classify("a cat", top=1).to_dict().keys() == {"labels", "probabilities"}
    logged = [json.loads(line) for line in (Path(files["run"]) / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in logged if row["kind"] == "eval"][-1]
    assert last["micro_f1"] > 0.95


def test_the_loss_is_the_mean_over_texts_of_the_sum_over_labels(files: dict[str, str]) -> None:
    from qkv.api import _format_override

    recipe = files.pop("recipe")
    opened = open_recipe(recipe, [_format_override(*item) for item in {**files, **SETTINGS}.items()])
    prepared = prepare(opened)
    assert "labels" in describe_prepared(prepared).first_examples[0].parts
    batch = first_batch(prepared.train_data)
    assert batch.num_document_labels == len(batch.example_ids)
    network = prepared.build_network().eval()
    module = TrainingModule(network, opened.objective).eval()
    found = module(
        make_labelled_batch(batch, torch.device("cpu")), torch.tensor(1.0), torch.tensor(1 / batch.num_document_labels)
    )
    model = qkv.Model(prepared.config, network, prepared.tokenizer)
    lines = Path(files["data.train"]).read_text(encoding="utf-8").splitlines()
    losses = []
    for example in batch.example_ids.tolist():
        record = json.loads(lines[example])
        logits = model.logits([prepared.tokenizer.encode(record["text"])])[0]
        targets = torch.tensor([float(name in record["labels"]) for name in ANIMALS])
        losses.append(float(F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")))
    assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_scores_of_label_sets() -> None:
    perfect = metrics.label_set_scores([["a", "b"], []], [["b", "a"], []])
    assert perfect == {"micro_f1": 1.0, "macro_f1": 1.0, "accuracy": 1.0}
    assert metrics.label_set_scores([["a"]], [["b"]]) == {"micro_f1": 0.0, "macro_f1": 0.0, "accuracy": 0.0}
    assert metrics.label_set_scores([], []) == {"micro_f1": 0.0, "macro_f1": 0.0, "accuracy": 0.0}
