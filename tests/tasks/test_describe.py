"""What a dry run says: counts that are true, memory that is near, examples as the model will see them."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from prepare_samples import KINDS, sample_recipe
from rich.console import Console
from torch.autograd.graph import saved_tensors_hooks

from qkv.blocks import Inputs
from qkv.data import Loader
from qkv.models import build
from qkv.render.dry_run import print_dry_run
from qkv.store import write_model
from qkv.tasks.describe import describe, describe_prepared
from qkv.tasks.prepare.memory import activation_bytes, estimate_memory, resolve_precision
from qkv.tasks.prepare.prepare import prepare
from qkv.train import step
from qkv.train.recipe.recipe_file import loads


@pytest.mark.parametrize("kind", KINDS)
def test_every_objective_is_described_rendered_and_told_as_json(folder: Path, kind: Any) -> None:
    recipe = sample_recipe(folder, kind)
    described = describe(recipe)
    assert loads(described.recipe) == recipe
    assert described.first_examples
    told = json.loads(json.dumps(described.to_dict()))
    assert told["memory"]["total"] == described.memory.total
    shown = StringIO()
    print_dry_run(described, Console(file=shown, width=150))
    text = shown.getvalue()
    for expected in (f'kind = "{kind}"', "memory (estimate)", "steps per epoch", described.first_examples[0].origin):
        assert expected in text


@pytest.mark.parametrize("kind", ["seq2seq", "causal_lm", "classification"])
def test_steps_of_an_epoch_and_padding_are_what_the_loader_gives(folder: Path, kind: Any) -> None:
    prepared = prepare(sample_recipe(folder, kind, data={"max_length": 64}, train={"batch_tokens": 256}))
    described = describe_prepared(prepared)
    batches = list(Loader(prepared.train_data, epochs=1))
    assert described.steps_per_epoch is not None
    assert abs(described.steps_per_epoch - len(batches)) <= 1
    batches.pop()  # which may hold empty rows
    places = sum(b.inputs.ids.numel() + (b.inputs.source.ids.numel() if b.inputs.source else 0) for b in batches)
    padding = 1 - sum(batch.num_tokens for batch in batches) / places
    assert abs(described.padding_fraction - padding) < 0.06


def test_examples_are_shown_as_the_model_will_see_them(folder: Path) -> None:
    pairs = describe(sample_recipe(folder, "seq2seq")).first_examples[0]
    assert "pairs.tsv:" in pairs.origin
    source = pairs.parts["source"].removesuffix("</s>")
    assert pairs.parts["input"] == f"<s>{source.upper()}"
    assert pairs.parts["target"] == f"{source.upper()}</s>"
    tags = describe(sample_recipe(folder, "tagging")).first_examples[0]
    words = tags.parts["input"].removeprefix("<cls>").removesuffix("<sep>").split()
    assert tags.parts["target"].split() == ["B-LOC" if "r" in word else "O" for word in words]
    answers = describe(sample_recipe(folder, "question_answering")).first_examples
    assert any(one.parts["answer"].strip().strip(".") in one.parts["input"] for one in answers)
    moods = describe(sample_recipe(folder, "classification")).first_examples
    assert {one.parts["class"] for one in moods} <= {"bad", "good"}
    assert "score" in describe(sample_recipe(folder, "contrastive", "scores.jsonl")).first_examples[0].parts


def test_a_mixture_has_no_epoch(folder: Path) -> None:
    mix = {name: {"train": str(folder / "pairs.tsv")} for name in ("a", "b")}
    described = describe(sample_recipe(folder, "seq2seq", data={"train": "", "mix": mix}))
    assert described.steps_per_epoch is None
    assert described.first_examples[0].origin.split(":")[0] in mix


# -------------------------------------------------------------------- memory


@pytest.mark.parametrize(("optimizer", "share"), [("adamw", 2.0), ("sgd", 1.0), ("lamb", 2.0)])
def test_the_state_of_the_optimizer_is_counted(folder: Path, optimizer: str, share: float) -> None:
    recipe = sample_recipe(folder, "seq2seq", train={"optimizer": optimizer})
    config = prepare(recipe).config
    found = estimate_memory(recipe, config, (256, 256))
    parameters = sum(p.numel() for p in build(config, device="meta").parameters())
    assert found.parameters == found.trainable == parameters
    assert found.weights == found.gradients == 4 * parameters
    assert abs(found.optimizer / (4 * parameters) - share) < 0.01  # and a few counters


def test_what_is_frozen_costs_no_gradient(folder: Path) -> None:
    recipe = sample_recipe(folder, "seq2seq", model={"freeze": ("encoder.*",)}, train={"ema_decay": 0.9})
    config = prepare(recipe).config
    found = estimate_memory(recipe, config, (256, 256))
    stays = sum(p.numel() for n, p in build(config, device="meta").named_parameters() if n.startswith("encoder."))
    assert found.trainable == found.parameters - stays
    assert found.gradients == found.ema == 4 * found.trainable


def test_low_rank_additions_are_all_that_is_trained(folder: Path, tmp_path: Path) -> None:
    first = prepare(sample_recipe(folder, "seq2seq"))
    write_model(tmp_path / "whole", first.config, first.build_network(), first.tokenizer)
    recipe = sample_recipe(folder, "seq2seq", model={"from_": str(tmp_path / "whole"), "overrides": {}, "lora_rank": 2})
    described = describe(recipe)
    assert 0 < described.memory.trainable < described.model_summary.total / 5
    shown = StringIO()
    print_dry_run(described, Console(file=shown, width=120))
    assert "trainable" in shown.getvalue()


@pytest.mark.parametrize("kind", ["seq2seq", "causal_lm"])
@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("", {}),
        ("", {"feedforward": "gelu", "norm": "layernorm", "dropout": 0.0}),
        ("rnn", {}),
        ("gru", {}),
        ("lstm", {"recurrent_attention": "none"}),
    ],
    ids=str,
)
def test_activations_are_near_what_the_backward_pass_keeps(
    folder: Path, kind: Any, family: str, change: dict[str, Any]
) -> None:
    model = {"family": family, "overrides": {"width": 64, "layers": 3, **change}}
    prepared = prepare(sample_recipe(folder, kind, model=model, data={"max_length": 64}))
    network: Any = prepared.build_network()
    ids = torch.randint(5, prepared.tokenizer.vocab_size, (8, 64))
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    held: dict[int, torch.Tensor] = {}  # kept alive, so that no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = network(Inputs(ids, source=Inputs(ids))) if kind == "seq2seq" else network(ids)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    measured = sum(tensor.untyped_storage().nbytes() for tensor in held.values())
    rows = (64, 64) if kind == "seq2seq" else (64,)
    estimate = activation_bytes(prepared.config, 8, rows, 1.0, "float32", gradient_checkpointing=False)
    assert 0.7 < estimate / measured < 1.5


@pytest.mark.parametrize(
    ("here", "bfloat16", "asked", "expected"),
    [
        (True, True, "auto", "bfloat16"),
        (True, False, "auto", "float32"),  # an older GPU
        (True, True, "cpu", "float32"),
        (False, False, "auto", "float32"),
        (False, False, "cuda", "bfloat16"),  # described on another machine than it will run on
    ],
)
def test_the_precision_that_is_told_is_the_one_that_a_run_takes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, here: bool, bfloat16: bool, asked: str, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: here)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: bfloat16)
    recipe = sample_recipe(folder, "seq2seq", train={"device": asked})
    assert resolve_precision(recipe) == expected
    if here:
        device = torch.device("cpu" if asked == "cpu" else "cuda")
        assert step.resolve_precision(recipe.train, device) == expected


def test_recomputing_and_half_precision_take_less() -> None:
    from qkv.models.tables.presets import find_preset

    whole = activation_bytes(find_preset("gpt2"), 4, (1024,), 1.0, "float32", gradient_checkpointing=False)
    again = activation_bytes(find_preset("gpt2"), 4, (1024,), 1.0, "float32", gradient_checkpointing=True)
    half = activation_bytes(find_preset("gpt2"), 4, (1024,), 1.0, "bfloat16", gradient_checkpointing=False)
    assert again < whole / 2
    assert whole / 2 < half < whole
