"""Which task a model is made for, and what holds for all of them: modes, weights, the same numbers each time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from task_models import decoder, encoder, parts_of, records, seq2seq, weights

import qkv
from qkv.cli.evaluate import ONE_SEED, SEVERAL_SEEDS, describe_seeds
from qkv.data import Problems
from qkv.errors import UsageError
from qkv.models.tables import presets
from qkv.tasks.evaluate import evaluate, main_metric
from qkv.tasks.evaluation_records import load_records
from qkv.tasks.prepare.columns import field_names
from qkv.tasks.table import TASKS, find_task

TAGGED = {"tokens": ["Anna", "runs"], "tags": ["B-PER", "O"]}
ASKED = {"question": "who?", "context": "Anna runs", "answers": ["Anna"], "starts": [0]}
MODELS: dict[str, Any] = {
    "translate": (seq2seq, [{"source": "fox", "target": "dog"}], ["fox", "a dog"]),
    "complete": (decoder, [{"text": "the lazy fox"}], ["fox", "a dog"]),
    "fill": (lambda: encoder(qkv.HeadConfig(kind="mlm", outputs=1)), [{"text": "the lazy fox"}], ["a <mask>"]),
    "classify": (
        lambda: encoder(qkv.HeadConfig(kind="classify", labels=("a", "b"))),
        [{"text": "fox", "label": "a"}],
        ["fox", ("fox", "dog")],
    ),
    "tag": (lambda: encoder(qkv.HeadConfig(kind="tag", labels=("O", "B-PER"))), [TAGGED], ["Anna runs", ["fox"]]),
    "answer": (lambda: encoder(qkv.HeadConfig(kind="span", outputs=2)), [ASKED], [("who?", "Anna runs")]),
    "embed": (lambda: encoder(qkv.HeadConfig(kind="embed")), [{"first": "fox", "second": "dog"}], ["fox", "dog"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_task_runs_judges_and_leaves_the_network_as_it_was(name: str) -> None:
    make, listed, texts = MODELS[name]
    made = make()
    assert find_task(made.config).name == name
    made.network.head.eval()  # a part that was frozen stays so
    modes = [module.training for module in made.network.modules()]
    before = weights(made)
    found = evaluate(*parts_of(made), records(listed))
    assert found == evaluate(*parts_of(made), records(listed), batch_size=1)
    assert found.main_metric in found.metrics
    assert found.main_metric == main_metric(made.config, records(listed))
    assert found.num_records == 1
    results = made.run(texts)
    assert len(results) == len(texts)
    assert [module.training for module in made.network.modules()] == modes
    assert all(torch.equal(a, b) for a, b in zip(before, weights(made), strict=True))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", MODELS)
def test_every_task_works_under_autocast(name: str) -> None:
    make, listed, texts = MODELS[name]
    made = make()
    with torch.autocast("cpu", torch.bfloat16):
        found = evaluate(*parts_of(made), records(listed))
        assert len(made.run(texts)) == len(texts)
    assert all(value == value for value in found.metrics.values())


@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_its_task(name: str) -> None:
    make, _, texts = MODELS[name]
    made = make()
    several, single = made.run(texts), made.run(texts[0])
    assert len(several) == len(texts)
    if name == "embed":
        assert single.vector == pytest.approx(several[0].vector, abs=1e-5)
    elif name == "classify":
        assert single.label == several[0].label
    else:
        assert type(single) is type(several[0])


def test_fields_are_those_that_training_uses() -> None:
    for task in TASKS.values():
        assert {*task.inputs, task.target} <= set(field_names(task.objective))


def test_records_of_another_task_have_no_metric() -> None:
    assert main_metric(seq2seq().config, records([{"text": "a spoiled text"}])) == ""
    assert main_metric(seq2seq().config, []) == ""


@pytest.mark.parametrize(
    "head", [qkv.HeadConfig(), qkv.HeadConfig(kind="choice", outputs=1)], ids=lambda head: head.kind
)
def test_a_model_for_no_task_says_so(head: qkv.HeadConfig) -> None:
    with pytest.raises(UsageError, match=f"{head.kind} head on the family encoder"):
        find_task(encoder(head).config)


def test_an_encoder_and_decoder_that_classifies_says_so() -> None:
    config = presets.find_preset("t5-small")
    changed = qkv.Config(
        encoder=config.encoder, decoder=config.decoder, head=qkv.HeadConfig(kind="classify", outputs=2)
    )
    with pytest.raises(UsageError, match="classify head on the family seq2seq"):
        find_task(changed)


def test_wrong_options_and_texts_are_named() -> None:
    made = encoder(qkv.HeadConfig(kind="classify", labels=("a", "b")))
    with pytest.raises(UsageError, match="has no option 'batch_sizes'"):
        made.run(["fox"], batch_sizes=2)
    with pytest.raises(UsageError, match=r"text 1 is 3 \(int\)"):
        made.run([3])
    with pytest.raises(UsageError, match="reads one text at a time"):
        decoder().run([("fox", "dog")])
    with pytest.raises(UsageError, match="batch_size = 0"):
        made.run(["fox"], batch_size=0)
    bare = qkv.Model(made.config, made.network)
    with pytest.raises(UsageError, match="no tokenizer"):
        bare.run("fox")


def test_labels_of_an_evaluation_are_read_as_in_training(tmp_path: Path) -> None:
    rows = ['{"text": "no label"}', '{"text": "fox", "label": " a"}', '{"text": "dog", "label": ""}']
    (tmp_path / "test.jsonl").write_text("\n".join([*rows, '{"text": "fox", "label": "b "}']), encoding="utf-8")
    problems = Problems(max_invalid_fraction=1)
    found = load_records(TASKS["classify"], tmp_path / "test.jsonl", problems=problems)
    assert [record.fields["label"] for record in found] == ["a", "b"]
    assert {name: one.count for name, one in problems.categories.items()} == {"missing field": 1, "no label": 1}
    result = evaluate(*parts_of(encoder(qkv.HeadConfig(kind="classify", labels=("a", "b")))), found)
    assert (result.num_records, result.notes) == (2, ())


def test_columns_that_are_guessed_are_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "plain.tsv"
    file.write_text("A fox runs.\tA dog runs.\nAnna runs.\tIt runs.\n", encoding="utf-8")
    result = seq2seq().evaluate(str(file), resamples=0)
    assert result.num_records == 2
    assert "column 0 is read as the source, column 1 is read as the target" in result.notes[0]
    assert result.notes[0] in caplog.text
    with pytest.raises(UsageError, match="no column is recognised"):
        load_records(TASKS["translate"], file, guess=False)


@pytest.mark.parametrize("reads_pairs", [None, False, True])
def test_a_classifier_reads_pairs_only_if_it_was_trained_on_them(reads_pairs: bool | None) -> None:
    made = encoder(qkv.HeadConfig(kind="classify", labels=("a", "b")))
    made.config = replace(made.config, reads_pairs=reads_pairs)
    pair = {"text": "fox", "second": "dog", "label": "a"}
    alone = {"text": "fox", "label": "a"}
    if reads_pairs is None:  # an imported model
        assert len(made.classify(["fox", ("fox", "dog")])) == 2
        return
    right: Any = ("fox", "dog") if reads_pairs else "fox"
    wrong: Any = "fox" if reads_pairs else ("fox", "dog")
    made.classify(right)
    with pytest.raises(UsageError, match=r"text 2 is .* trained on"):
        made.classify([right, wrong])
    if reads_pairs:
        assert evaluate(*parts_of(made), records([pair, alone])).num_records == 1
        with pytest.raises(UsageError, match=r"there is one text.*--columns second=COLUMN"):
            evaluate(*parts_of(made), records([alone]))
    else:
        both = evaluate(*parts_of(made), records([pair, alone]))
        assert both.samples[0].source == both.samples[1].source == "fox"
        assert "only the first text of each pair is read" in both.notes[0]


def test_files_of_an_evaluation_are_texts_or_paths(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("source\ttarget\nfox\tdog\n", encoding="utf-8")
    task = TASKS["translate"]
    for data in (file, str(file), [file]):
        assert load_records(task, data)[0].fields == {"source": "fox", "target": "dog"}
    by_field = load_records(task, {"source": file, "target": file})
    assert by_field[0].fields["source"] == by_field[0].fields["target"]
    for wrong in (3, None, b"pairs.tsv", [3], {"source": 3}):
        with pytest.raises(UsageError, match="data must be a file, a list of files, field → file, or a built-in"):
            load_records(task, wrong)  # type: ignore[arg-type]


def test_only_evaluations_of_the_same_records_are_compared() -> None:
    one, other = (encoder(qkv.HeadConfig(kind="classify", labels=("a", "b")), seed) for seed in (1, 2))
    listed = [{"text": f"fox {number}", "label": "ab"[number % 2]} for number in range(20)]
    found = evaluate(*parts_of(one), records(listed))
    assert "accuracy" in found.compare(evaluate(*parts_of(other), records(listed), metrics=["accuracy"]))
    changes = [{"text": "dog", "label": "a"}, {"text": "fox 0", "label": "b"}]  # another input, and another target
    for changed in ([changes[0], *listed[1:]], [changes[1], *listed[1:]], listed[::-1], listed[:-1]):
        with pytest.raises(UsageError, match="the evaluations are of different data"):
            found.compare(evaluate(*parts_of(one), records(changed)))
    accuracy, f1 = (evaluate(*parts_of(one), records(listed), metrics=[name]) for name in ("accuracy", "macro_f1"))
    one_metric = evaluate(*parts_of(one), records(listed), metrics="accuracy")
    assert one_metric.metrics == accuracy.metrics
    with pytest.raises(UsageError, match="no metric in common: accuracy, and macro_f1"):
        accuracy.compare(f1)
    with pytest.raises(UsageError, match=r"compare: got 5 \(int\)"):
        found.compare(5)  # type: ignore[arg-type]


def test_an_evaluation_prints_its_metrics() -> None:
    made = encoder(qkv.HeadConfig(kind="classify", labels=("a", "b")))
    found = evaluate(*parts_of(made), records([{"text": "a fox", "label": "a"}, {"text": "dog", "label": "b"}] * 5))
    assert repr(found) == f"<Evaluation: accuracy {found.metrics['accuracy']:.4g}, 10 records>"
    lines = str(found).splitlines()
    assert lines[0] == "10 records"
    assert [line.split()[:2] for line in lines[1:]] == [[name, f"{value:.4g}"] for name, value in found.metrics.items()]
    bounds = replace(found, intervals={"accuracy": (0.25, 0.75)})
    assert "[0.25, 0.75]" in str(bounds).splitlines()[1]


def test_a_comparison_says_whether_its_models_differ_in_more_than_the_seed(tmp_path: Path) -> None:
    recipes = []
    for name, seed, lr in (("a", 1, 1), ("b", 2, 1), ("c", 1, 2)):
        recipes.append(tmp_path / name / "recipe.toml")
        recipes[-1].parent.mkdir()
        recipes[-1].write_text(f'run = "{name}"\n[train]\nlr = {lr}e-3\nseed = {seed}\n')
    assert describe_seeds(recipes[:2]) == SEVERAL_SEEDS
    assert describe_seeds(recipes) == describe_seeds(recipes[1:]) == ONE_SEED
    assert describe_seeds([recipes[0], tmp_path / "downloaded" / "recipe.toml"]) == ""
