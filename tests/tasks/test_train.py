"""A recipe, trained: every objective from small files to a folder that loads and runs; fine-tuning; what is opened."""

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_runs import changed, go_on, log_of, tiny, train, written
from prepare_samples import KINDS
from safetensors import safe_open

import qkv
from qkv import cli
from qkv.data.objectives.table import OBJECTIVES
from qkv.errors import QkvError, UsageError
from qkv.store.model_card import read_card
from qkv.tasks.evaluate import evaluate
from qkv.tasks.model_list import run_model
from qkv.tasks.prepare.memory import estimate_memory
from qkv.tasks.prepare.prepare import prepare
from qkv.tasks.train import ValidationMetrics, open_recipe
from qkv.tasks.watchers import MetricsLog
from qkv.text import Tokenizer
from qkv.train import evaluation
from qkv.train.recipe.schema import Recipe
from qkv.train.run.folder import RunFolder
from qkv.train.watch import EvalReport, Sample, Watcher

THREE = {"steps": 3, "num_workers": 0, "micro_batch_tokens": 0, "ema_decay": 0.0, "eval_every": 2, "batch_tokens": 1024}


def three(folder: Path, kind: str, name: str = "", **sections: dict[str, Any]) -> Recipe:
    keys = {**THREE, **sections.pop("train", {})}
    data = {"max_length": 256, "max_source_length": 0, **sections.pop("data", {})}
    return tiny(folder, name or kind, kind, data=data, train=keys, **sections)


def weights(run: str | Path) -> dict[str, torch.Tensor]:
    with safe_open(Path(run) / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary


# ------------------------------------------------------------------------------------------------ every objective

RUN = {  # a text to run a model on; spoiled texts are what an encoder and decoder of theirs would read
    "question_answering": "Where is Paris?\tAnna sleeps near Paris. Bob runs.",
    "masked_lm": "the cat <mask> over",
    "next_sentence": "the cat <mask> over",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_objective_trains_and_its_folder_loads_and_runs(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = three(folder, kind)
    trained = train(recipe)
    assert (trained.run_end.step, trained.run_end.reason) == (3, "steps")
    losses = [line["loss"] for line in log_of(recipe.run, "step")]
    assert all(0 < loss < 20 for loss in losses)
    assert {"loss"} <= trained.run_end.metrics.keys()
    loaded = qkv.load(recipe.run)
    assert loaded.notes == []
    for name, values in trained.network.state_dict().items():
        assert torch.equal(values, loaded.network.state_dict()[name]), name
    code = cli.run_command(["run", recipe.run, RUN.get(kind, "the cat runs"), "--json"])
    caught = capsys.readouterr()
    assert code == 0, caught.err
    assert json.loads(caught.out)["input"] == RUN.get(kind, "the cat runs")


def test_every_objective_has_its_file() -> None:
    """A control: none is left out above, but those of images and sounds, which tests/images and tests/sounds train."""
    for name in set(OBJECTIVES) - set(KINDS):
        assert {"image", "audio"} & {one.modality for one in OBJECTIVES[name].fields}, name
    assert set(KINDS) <= set(OBJECTIVES)


# ---------------------------------------------------------------------------------------------------- fine-tuning


@pytest.fixture(scope="module")
def base(folder: Path) -> Path:
    recipe = three(folder, "seq2seq", "base", train={"steps": 2})
    train(recipe)
    return Path(recipe.run)


def changed_names(before: Path, after: Path) -> set[str]:
    one, other = weights(before), weights(after)
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


def test_going_on_from_a_checkpoint_trains_all_of_it(folder: Path, base: Path) -> None:
    recipe = three(folder, "seq2seq", "tuned", model={"from_": str(base), "overrides": {}})
    train(recipe)
    assert changed_names(base, Path(recipe.run)) == set(weights(base))


def test_what_is_frozen_stays_bit_for_bit(folder: Path, base: Path) -> None:
    recipe = three(folder, "seq2seq", "frozen", model={"from_": str(base), "overrides": {}, "freeze": ("encoder.*",)})
    train(recipe)
    names = set(weights(base))
    frozen = {name for name in names if name.startswith("encoder.")}
    assert frozen
    assert changed_names(base, Path(recipe.run)) == names - frozen


def test_a_run_whose_first_weights_have_gone_says_what_to_do(folder: Path, base: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    qkv.load(base).save(gone)
    recipe = three(folder, "seq2seq", "orphan", model={"from_": str(gone), "overrides": {}})
    train(recipe)
    moved = gone.rename(tmp_path / "elsewhere")
    with pytest.raises(
        QkvError, match=r"model\.from: .*gone: no such folder.*checkpoints have.*put the model back to resume"
    ):
        go_on(recipe.run, "train.steps=4")
    moved.rename(gone)
    assert go_on(recipe.run, "train.steps=4").run_end.step == 4


def test_low_rank_additions_end_in_the_matrices_they_were_added_to(folder: Path, base: Path) -> None:
    recipe = three(
        folder, "seq2seq", "lora", model={"from_": str(base), "overrides": {}, "lora_rank": 2}, train={"lr": 0.05}
    )
    train(recipe)
    moved = changed_names(base, Path(recipe.run))
    matrices = {
        name
        for name, values in weights(base).items()
        if values.ndim == 2 and any(fnmatchcase(name.rpartition(".")[0], one) for one in recipe.model.lora_targets)
    }
    assert moved == matrices
    assert not any("lora" in name for name in weights(recipe.run))
    for name in moved:
        difference = (weights(recipe.run)[name] - weights(base)[name]).double()
        assert torch.linalg.matrix_rank(difference, rtol=1e-4) <= 2
    loaded = qkv.load(recipe.run)
    assert loaded.notes == []
    assert loaded.config == qkv.load(base).config


def test_low_rank_additions_survive_a_crash(folder: Path, base: Path) -> None:
    constant = {"schedule": "constant", "warmup": 0.0, "steps": 4}
    model = {"from_": str(base), "overrides": {}, "lora_rank": 2}
    recipe = three(folder, "seq2seq", "lora whole", model=model, train=constant)
    train(recipe)
    train(changed(recipe, "lora again", steps=2))
    go_on(folder / "lora again", "train.steps=4")
    assert changed_names(Path(recipe.run), folder / "lora again") == set()


def test_a_new_head_on_a_checkpoint_is_trained_beside_low_rank_additions(folder: Path) -> None:
    pretrained = three(folder, "masked_lm", "pretrained", train={"steps": 2})
    train(pretrained)
    model = {"from_": pretrained.run, "overrides": {}, "lora_rank": 2}
    recipe = three(folder, "classification", "classified", model=model)
    trained = train(recipe)
    before = {name: p for name, p in qkv.load(pretrained.run).network.named_parameters() if "head." not in name}
    for name, p in trained.network.named_parameters():
        if name in before and "attention" not in name:
            assert torch.equal(p, before[name]), name
    assert qkv.load(recipe.run).config.head.labels == ("bad", "good")
    head = sum(p.numel() for name, p in trained.network.named_parameters() if name.startswith("head."))
    counted = estimate_memory(recipe, trained.config, (256,)).trainable
    without = estimate_memory(
        replace(recipe, model=replace(recipe.model, from_=recipe.run)), trained.config, (256,)
    ).trainable
    assert counted == without + head > head > 0, "what is told before a run counts the head, too"


def test_another_tokenizer_than_the_checkpoints_is_told_of(folder: Path, base: Path) -> None:
    """Smaller, so that its ids have places; but they are other pieces'."""
    texts = ["abc", "bcd"]
    Tokenizer.train(
        "char", iter(texts), vocab_size=12, special_tokens=["pad", "bos", "eos", "unk"], template="eos"
    ).save(folder / "other tokenizer")
    model = {"from_": str(base), "overrides": {}}
    told = "model.from was trained with another tokenizer"
    for name, section, wanted in (("own", {}, False), ("other", {"from_": str(folder / "other tokenizer")}, True)):
        recipe = three(folder, "seq2seq", f"pieces {name}", model=model, tokenizer=section, train={"steps": 1})
        assert any(told in note for note in train(recipe).notes) is wanted


def test_a_head_with_another_dropout_is_no_new_head(folder: Path) -> None:
    pretrained = three(folder, "classification", "with a head", train={"steps": 2})
    train(pretrained)
    model = {"from_": pretrained.run, "overrides": {"head": {"dropout": 0.4}}, "lora_rank": 2}
    recipe = three(folder, "classification", "dropped", model=model)
    assert train(recipe).config.head.dropout == 0.4
    moved = changed_names(Path(pretrained.run), Path(recipe.run))
    assert moved
    assert all("attention" in name for name in moved)


# ----------------------------------------------------------------------------------------------- the model's card


@pytest.mark.parametrize(
    ("data", "card"),
    [
        ({"train": "{at}/pairs.tsv"}, "{at}/pairs.tsv"),
        ({"train": {"source": "{at}/a.en", "target": "{at}/a.de"}}, "{at}/a.en, {at}/a.de"),
        ({"train": "", "mix": {"news": {"train": "{at}/pairs.tsv"}}}, "news: {at}/pairs.tsv"),
    ],
    ids=["a file", "by field", "a mixture"],
)
def test_the_card_names_the_files(folder: Path, data: dict[str, Any], card: str) -> None:
    given = json.loads(json.dumps(data).replace("{at}", str(folder)))
    recipe = three(folder, "seq2seq", f"card {card[:4]}{len(card)}", data=given, train={"steps": 1})
    train(recipe)
    text = (Path(recipe.run) / "README.md").read_text(encoding="utf-8")
    assert f"| {card.format(at=folder)} |" in text


# ----------------------------------------------------------------------------- a small sample of the validation data


class Reports(Watcher):
    """Keeps what a run reports."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.evaluations: list[EvalReport] = []

    def on_note(self, step: int, text: str) -> None:
        self.notes.append(text)

    def on_evaluate(self, report: EvalReport) -> None:
        self.evaluations.append(report)


@pytest.mark.parametrize("chosen", ["", "accuracy"])
def test_with_a_small_sample_the_loss_selects_the_weights_unless_the_recipe_names_a_metric(
    chosen: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation.TimedMetrics, "plan", lambda self, limit: 3)  # as with a slow model
    monkeypatch.setattr(evaluation.TimedMetrics, "enlarge", lambda self, planned, limit: planned)
    keys = {"steps": 8, "eval_every": 1, "final": "best", "metric": chosen}
    path = written(three(folder, "classification", f"small-{chosen}", train=keys))
    reports = Reports()
    qkv.train(path, watcher=reports)
    during = reports.evaluations[:8]
    name = chosen or "loss"
    assert [one.metric for one in during] == [name] * 8
    assert sum("the loss selects the best weights" in note for note in reports.notes) == (not chosen)
    values = [one.metrics[name] for one in during]
    best = during[values.index(max(values) if chosen else min(values))]
    run = path.with_suffix("")
    assert chosen or reports.evaluations[-1].metrics == pytest.approx(best.metrics), "the kept weights"
    assert during[-1].subset == "the task's metrics use 3 of 4 examples"
    subset = "the task's metrics use 3 of 15 examples"
    assert read_card(run)["scores"].endswith(f" on validation data (3 examples); {subset}")
    assert subset in run_model(RunFolder(run)).scores


def test_the_scores_of_a_run_rest_on_all_of_its_validation_data(folder: Path) -> None:
    """Its log, its model card and the list of models say on how many, with the interval."""
    path = written(three(folder, "classification", "all of it", train={"steps": 3, "eval_examples": 4}))
    qkv.train(path)
    run = path.with_suffix("")
    (*_, last) = (one for one in RunFolder(run).log_records() if one["kind"] == "eval")
    assert last["final"]["num_examples"] == 15
    low, high = last["final"]["intervals"]["accuracy"]
    assert 0 <= low <= last["accuracy"] <= high <= 1
    assert f"[{low:.4g}, {high:.4g}]" in read_card(run)["scores"]
    assert read_card(run)["scores"].endswith("on validation data (15 examples)")
    assert f"[{low:.4g}, {high:.4g}] of 15 examples" in run_model(RunFolder(run)).scores


def test_training_goes_on_if_no_label_of_a_few_examples_is_known(folder: Path) -> None:
    """As with a rare class that is only in the validation data."""
    prepared = prepare(three(folder, "classification", "rare"))
    prepared.valid_records = [replace(one, fields={**one.fields, "label": "rare"}) for one in prepared.valid_records]
    judged, network = ValidationMetrics(prepared), prepared.build_network()
    sample = judged.sample(network)
    assert sample.expected == "rare"
    assert judged(network, 2).metrics["accuracy"] == 0
    with pytest.raises(UsageError, match="none of the labels is a class"):
        evaluate(network, prepared.tokenizer, prepared.config, prepared.valid_records)


# ----------------------------------------------------------------------------------------------- what is opened


def test_a_run_is_kept_below_runs_unless_told_otherwise(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "mine.toml").write_text('[data]\ntrain = "pairs.tsv"\n[train]\nsteps = 3\n')
    assert open_recipe("mine.toml").run == str(Path("runs") / "mine")
    assert open_recipe("mine.toml", ["run=other"]).run == "other"
    assert open_recipe("dates").run == str(Path("runs") / "dates")


def test_a_folder_that_was_moved_goes_on_where_it_is(folder: Path, tmp_path: Path) -> None:
    recipe = three(folder, "seq2seq", "to move", train={"steps": 2, "schedule": "constant", "warmup": 0.0})
    train(recipe)
    moved = Path(recipe.run).rename(tmp_path / "moved")
    end = go_on(moved, "train.steps=3").run_end
    assert (end.step, end.folder) == (3, str(moved))
    assert not Path(recipe.run).exists()


def test_a_runs_recipe_starts_another_run_where_another_folder_is_given(folder: Path, base: Path) -> None:
    other = folder / "another"
    files = {path.name: path.stat().st_mtime_ns for path in base.iterdir()}
    opened = open_recipe(base, [f"run={other}", "train.lr=0.5", "train.steps=1"])
    assert opened.run == str(other)
    assert train(opened).run_end.step == 1
    assert files == {path.name: path.stat().st_mtime_ns for path in base.iterdir()}, "the first is left alone"


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no recipe\.toml"):
        open_recipe(tmp_path)


def test_a_model_folder_without_a_run_is_not_trained_over(folder: Path, base: Path, tmp_path: Path) -> None:
    qkv.load(base).save(tmp_path / "model")
    with pytest.raises(QkvError, match=r"this folder has a model but no run.*model\.from"):
        train(open_recipe(Path(base) / "recipe.toml", [f"run={tmp_path / 'model'}"]))


def test_a_file_that_is_not_there_can_be_put_right_in_the_same_folder(folder: Path) -> None:
    recipe = three(folder, "seq2seq", "mended")
    wrong = replace(recipe, data=replace(recipe.data, train=str(folder / "missing.tsv")))
    with pytest.raises(QkvError, match="missing"):
        train(wrong)
    assert train(recipe).run_end.step == THREE["steps"]


def test_what_fails_before_the_first_step_can_be_put_right_in_the_same_folder(folder: Path) -> None:
    """The model is made and the log begun by then, but nothing was trained that another recipe could spoil."""
    recipe = three(folder, "seq2seq", "put right", model={"freeze": ("encodr.*",)})
    path = written(recipe)
    with pytest.raises(QkvError, match="encodr"):
        train(open_recipe(path))
    changes = [
        "model.freeze=['encoder.*']",
        "tokenizer.kind=byte",
        "tokenizer.vocab_size=259",
        "train.batch_tokens=512",
    ]
    trained = train(open_recipe(path, changes))
    assert trained.run_end.step == THREE["steps"]
    assert trained.tokenizer.vocab_size == 259, "not the first attempt's tokenizer"
    with pytest.raises(QkvError, match="started with another recipe"):
        open_recipe(path, [*changes, "train.lr=0.5"])


@pytest.mark.parametrize(
    "sections",
    [
        {"data": {"train": "missing.tsv"}},
        {"data": {"train": "empty.tsv"}},
        {"data": {"max_length": 1}},
        {"model": {"freeze": ("encodr.*",)}},  # fails after the tokenizer is saved
        {"train": {"metric": "blue"}},
    ],
)
def test_a_training_that_fails_in_preparation_leaves_nothing_behind(
    sections: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "empty.tsv").write_text("source\ttarget\n", encoding="utf-8")
    monkeypatch.chdir(folder)
    recipe = three(folder, "seq2seq", "new/run", **sections)
    with pytest.raises(QkvError):
        train(recipe)
    assert not Path(recipe.run).parent.exists()
    Path(recipe.run).mkdir(parents=True)
    with pytest.raises(QkvError):
        train(recipe)
    assert not any(Path(recipe.run).iterdir())  # the folder was there before
    Path(recipe.run).rmdir()
    Path(recipe.run).parent.rmdir()


def test_a_model_keeps_whether_it_was_trained_on_sentences_and_fine_tuning_finds_out_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, ending in (("sentences", "."), ("phrases", "")):
        lines = [f"{n} dogs run{ending}\t{n} Hunde laufen{ending}\n" for n in range(60)]
        (folder / f"{name}.tsv").write_text("source\ttarget\n" + "".join(lines), encoding="utf-8")
    first = three(folder, "seq2seq", "of sentences", data={"train": str(folder / "sentences.tsv")}, train={"steps": 1})
    with monkeypatch.context() as older:  # a run of a qkv that does not look at sentences
        older.setattr("qkv.tasks.prepare.prepare.find_reads_sentences", lambda pairs: None)
        assert train(first).config.reads_sentences is None
    assert go_on(first.run, "train.steps=2").config.reads_sentences is True
    assert qkv.load(first.run).config.reads_sentences is True
    keys = {"data": {"train": str(folder / "phrases.tsv")}, "model": {"from_": first.run}, "train": {"steps": 1}}
    second = three(folder, "seq2seq", "of phrases", **keys)
    assert train(second).config.reads_sentences is False


def test_the_log_keeps_some_samples_of_each_evaluation(tmp_path: Path) -> None:
    samples = [Sample(f"source {n}", "x" * 900, "expected") for n in range(6)]
    samples[0] = Sample("shown", "prediction", "expected", model_input="as the model reads it")
    with RunFolder(tmp_path / "run").lock() as folder:
        MetricsLog(folder, "").on_evaluate(EvalReport(7, 1.0, {"loss": 2.0}, True, samples))
        records = folder.log_records()
    assert [record["kind"] for record in records] == ["eval", *["sample"] * 4]
    assert records[1] == {
        "kind": "sample",
        "step": 7,
        "source": "as the model reads it",
        "prediction": "prediction",
        "expected": "expected",
    }
    assert len(records[2]["prediction"]) < 600
