"""A model from a checkpoint: what a run has so far, or had at an earlier step, is what it would have ended with."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_runs import Crash, CrashAfter, changed, go_on, tiny, train, written

import qkv
from qkv import cli
from qkv.blocks import HeadConfig
from qkv.errors import QkvError
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.recipe.schema import Recipe
from qkv.train.run.load import load_model

KEYS = {
    "steps": 3,
    "num_workers": 0,
    "micro_batch_tokens": 0,
    "ema_decay": 0.0,
    "save_every": 1,
    "eval_every": 2,
    "batch_tokens": 1024,
}


def short(folder: Path, kind: str, name: str, model: dict[str, Any] | None = None, **keys: Any) -> Recipe:
    sections: dict[str, Any] = {"model": model} if model else {}
    data = {"max_length": 256, "max_source_length": 0}
    return tiny(folder, name, kind, data=data, train={**KEYS, **keys}, **sections)


def stopped(run: str) -> Path:
    """The same run as it would lie there if it had been stopped before its end."""
    copy = Path(f"{run} stopped")
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("config.json", "model.safetensors", "README.md"))
    return copy


def differing(one: qkv.Model, other: qkv.Model) -> list[str]:
    a, b = dict(one.network.named_parameters()), dict(other.network.named_parameters())
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]


@pytest.mark.parametrize("kind", ["seq2seq", "causal_lm", "masked_lm", "classification", "contrastive"])
@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_a_run_that_was_stopped_can_be_tried(folder: Path, kind: str, ema: float) -> None:
    recipe = short(folder, kind, f"{kind} {ema}", ema_decay=ema)
    train(recipe)
    whole, found = qkv.load(recipe.run), qkv.load(stopped(recipe.run))
    assert found.config == whole.config
    assert found.tokenizer.fingerprint == whole.tokenizer.fingerprint
    assert differing(found, whole) == []
    assert not found.network.training
    whose = "the moving average of the weights" if ema else "the weights"
    go_on = f"(resume it with qkv train '{recipe.run} stopped')"
    assert found.notes == [f"this run has not finished {go_on}; these are {whose} of step 3"]


def test_what_was_learnt_in_low_rank_additions_is_in_the_matrices(folder: Path) -> None:
    base = short(folder, "seq2seq", "base")
    train(base)
    model = {"from_": base.run, "overrides": {}, "lora_rank": 2, "lora_alpha": 7.0}
    recipe = short(folder, "seq2seq", "lora", model, lr=0.05)
    train(recipe)
    left = stopped(recipe.run)
    shutil.rmtree(base.run)  # the checkpoint needs nothing but its run
    whole, found = qkv.load(recipe.run), qkv.load(left)
    assert differing(found, whole) == []
    half = [qkv.load(one, dtype="bfloat16") for one in (recipe.run, left)]
    assert differing(*half) == [], "they are added before anything is rounded"
    assert next(half[1].network.parameters()).dtype == torch.bfloat16


def test_an_earlier_step_is_what_a_shorter_run_ends_with(folder: Path, run_qkv: Any) -> None:
    constant = {"schedule": "constant", "warmup": 0.0}
    recipe = short(folder, "causal_lm", "long", **constant)
    train(recipe)
    train(changed(recipe, "early", steps=2))
    place = Path(recipe.run) / "checkpoints" / "step-000000002"
    found = qkv.load(place)
    assert found.notes == ["these are the weights of step 2"]
    assert differing(found, qkv.load(folder / "early")) == []
    assert differing(found, qkv.load(recipe.run)), "a control: another step moved the weights"
    assert cli.run_command(["run", str(place), "the cat"]) == 0
    assert cli.run_command(["info", str(place)]) == 0
    assert "these are the weights of step 2" in run_qkv(["export", str(place), str(folder / "theirs")]).err
    assert differing(qkv.load(folder / "theirs"), found) == []


def test_a_checkpoint_that_is_damaged_is_passed_over_and_told_of(folder: Path) -> None:
    recipe = short(folder, "seq2seq", "damaged")
    train(recipe)
    left = stopped(recipe.run)
    shard = left / "checkpoints" / "step-000000003" / "shard-00000-of-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[8 + int.from_bytes(data[:8], "little")] ^= 1  # the first byte of the first tensor, which is a weight
    shard.write_bytes(data)
    found = qkv.load(left)
    assert "step-000000003" in found.notes[0]
    assert "these are the weights of step 2" in found.notes[1]
    with pytest.raises(QkvError, match="step-000000003"):
        qkv.load(shard.parent)


def test_a_run_that_went_on_after_its_end_says_so(folder: Path) -> None:
    recipe = short(folder, "seq2seq", "further", schedule="constant", warmup=0.0)
    train(recipe)
    assert qkv.load(recipe.run).notes == []
    with pytest.raises(Crash):
        go_on(recipe.run, "train.steps=9", watch=CrashAfter(5))
    (note,) = qkv.load(recipe.run).notes
    assert note.startswith("this is the model of step 3, and the run was continued since: its newest weights are in ")
    assert Path(note.rpartition(" ")[2]).name == "step-000000004"


def test_checkpoints_that_vanish_while_they_are_read_are_no_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on prunes: what was the newest a moment ago may be gone."""
    recipe = short(folder, "seq2seq", "pruned")
    train(recipe)
    left = stopped(recipe.run)
    usual = Checkpoint.read_tensor

    def whole(self: Checkpoint, name: str) -> torch.Tensor:
        if self.step == 3:
            shutil.rmtree(self.folder, ignore_errors=True)
        return usual(self, name)

    monkeypatch.setattr(Checkpoint, "read_tensor", whole)
    (note,) = qkv.load(left).notes
    assert note.endswith("the weights of step 2")


def test_a_checkpoint_is_told_by_its_name_and_read_with_its_own_tokenizer(folder: Path, tmp_path: Path) -> None:
    recipe, other = short(folder, "seq2seq", "named"), short(folder, "causal_lm", "other")
    for one in (recipe, other):
        train(one)
    model = tmp_path / "model"
    qkv.load(recipe.run).save(model)
    (model / "manifest.json").write_text('{"name": "not ours"}', encoding="utf-8")
    assert differing(qkv.load(model), qkv.load(recipe.run)) == []
    link = tmp_path / "best"
    link.symlink_to(Path(recipe.run) / "checkpoints" / "step-000000002")
    assert qkv.load(link).notes == ["these are the weights of step 2"]
    moved = Path(other.run) / "checkpoints" / "step-000000002"
    shutil.rmtree(moved)
    shutil.copytree(Path(recipe.run) / "checkpoints" / "step-000000002", moved)
    with pytest.raises(QkvError, match="was trained with another tokenizer"):
        qkv.load(moved)


def test_shapes_alone_cost_no_reading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = short(folder, "seq2seq", "shapes")
    train(recipe)
    monkeypatch.setattr(Checkpoint, "read_tensor", lambda *_: pytest.fail("a tensor was read"))
    found = load_model(stopped(recipe.run), device="meta")
    assert all(parameter.is_meta for parameter in found.network.parameters())


def test_another_run_goes_on_from_a_checkpoint(folder: Path) -> None:
    """With its weights, its tokenizer, and a fresh head where it needs one; an unfinished run is a moving thing."""
    recipe = short(folder, "masked_lm", "pretrained")
    train(recipe)
    left = stopped(recipe.run)
    place = left / "checkpoints" / "step-000000002"
    model = {"from_": str(place), "overrides": {}, "freeze": ("encoder.*", "embedding.*")}
    tuned = short(folder, "classification", "tuned", model, lr=0.1)
    trained = train(tuned)
    before = dict(qkv.load(place).network.named_parameters())
    frozen = {name: value for name, value in trained.network.named_parameters() if not name.startswith("head.")}
    assert all(torch.equal(value, before[name]) for name, value in frozen.items())
    assert trained.config.head.kind == "classify"
    assert trained.tokenizer.fingerprint == qkv.load(recipe.run).tokenizer.fingerprint  # type: ignore[union-attr]
    assert any("newly initialised: head." in note for note in trained.notes)
    again = short(folder, "classification", "again", {"from_": str(left), "overrides": {}})
    with pytest.raises(QkvError, match=r"is not finished.* or give one of its checkpoints"):
        train(again)
    with pytest.raises(QkvError, match="to put a new head on it, give one of its checkpoints"):
        qkv.load(left, head=HeadConfig(kind="classify", outputs=2))
    assert qkv.load(place, head=HeadConfig(kind="classify", outputs=2)).config.head.outputs == 2


def test_a_run_that_has_saved_nothing_has_no_model(folder: Path) -> None:
    recipe = short(folder, "seq2seq", "nothing")
    train(recipe)
    left = stopped(recipe.run)
    shutil.rmtree(left / "checkpoints")
    with pytest.raises(QkvError, match=r"has no checkpoint yet\. If it is training, wait"):
        qkv.load(left)
    other = folder / "own recipe"
    other.mkdir()
    (other / "recipe.toml").write_text(Path(written(recipe)).read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(QkvError, match="this run has no checkpoint yet"):
        qkv.load(other)
