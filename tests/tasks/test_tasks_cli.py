"""`qkv eval` and `qkv run` for every kind of model: results, results for machines, and one clear line for mistakes."""

import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
import torch
from task_models import bert_tokenizer, decoder, encoder, seq2seq, stack
from torch.nn import functional as F

import qkv
from qkv.blocks import Inputs
from qkv.cli.run import print_result
from qkv.cli.train import example_input
from qkv.tasks.table import TASKS
from qkv.tasks.verbs.answer import Answer

HEADS = {
    "classify": qkv.HeadConfig(kind="classify", labels=("fox", "dog")),
    "score": qkv.HeadConfig(kind="classify", outputs=1),
    "tag": qkv.HeadConfig(kind="tag", labels=("O", "B-PER", "I-PER")),
    "answer": qkv.HeadConfig(kind="span", outputs=2),
    "embed": qkv.HeadConfig(kind="embed"),
    "fill": qkv.HeadConfig(kind="mlm", outputs=1),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, head in HEADS.items():
        encoder(head).save(folder / name)
    seq2seq(max_positions=128).save(folder / "text_to_text")
    decoder().save(folder / "language")
    return folder


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small files of every kind, in the folder that the tests run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    written = {
        "pairs.tsv": "source\ttarget\nthe fox\tthe dog\nlazy\tquick\n",
        "odd.tsv": "left\tright\nthe fox\tthe dog\n",
        "broken.jsonl": '{"source": "a", "target": "b"}\n{broken\n{"source": "c", "target": "d"}\n',
        "test.en": "the fox\nlazy\n",
        "test.de": "the dog\nquick\n",
        "labels.csv": "text,label\nthe fox,fox\na dog,dog\nlazy dog,dog\n",
        "scores.csv": "text,second,score\nthe fox,a fox,4.5\na dog,Anna,1\n",
        "names.conll": "Anna B-PER\nruns O\n\ndog O\n",
        "similar.tsv": "first\tsecond\nfox\tthe fox\ndog\ta dog\n",
        "text.txt": "the lazy fox jumps\nover it\n",
        "table.txt": "the lazy fox jumps.\tover it\n" * 3,
        "squad.json": json.dumps(
            {
                "data": [
                    {
                        "paragraphs": [
                            {
                                "context": "Anna runs",
                                "qas": [
                                    {
                                        "id": "1",
                                        "question": "who?",
                                        "answers": [{"text": "Anna", "answer_start": 0}],
                                    }
                                ],
                            }
                        ]
                    }
                ]
            }
        ),
    }
    for name, text in written.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


JUDGED = {
    "text_to_text": ("pairs.tsv", 2, "exact_match"),
    "language": ("text.txt", 1, "loss"),
    "fill": ("text.txt", 1, "masked_accuracy"),
    "classify": ("labels.csv", 3, "accuracy"),
    "score": ("scores.csv", 2, "spearman"),
    "tag": ("names.conll", 2, "f1"),
    "answer": ("squad.json", 1, "f1"),
    "embed": ("similar.tsv", 2, "retrieval_accuracy"),
}


@pytest.mark.parametrize("name", JUDGED)
def test_every_task_is_judged_on_its_file(name: str, models: Path, files: Path, run_qkv: Any) -> None:
    file, records, main = JUDGED[name]
    out, _ = run_qkv(["eval", str(models / name), file, "--json"])
    values = json.loads(out)
    assert (values["records"], values["main"]) == (records, main)
    assert main in values["metrics"]
    assert values["samples"][0].keys() == {"source", "prediction", "expected"}
    out, _ = run_qkv(["eval", str(models / name), file])
    assert f"{records} record" in out
    assert main.replace("_", " ") in out


def test_files_in_step_and_a_search(models: Path, files: Path, run_qkv: Any) -> None:
    named = ["eval", str(models / "text_to_text"), "source=test.en", "target=test.de", "--beam", "2", "--json"]
    values = json.loads(run_qkv([*named, "--metric", "bleu", "--metric", "word_error_rate", "--samples", "1"])[0])
    assert list(values["metrics"]) == ["bleu", "word_error_rate", "exact_match"]
    assert values["main"] == "bleu"
    assert values["signatures"]["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:none|version:")
    assert len(values["samples"]) == 1
    side = json.loads(run_qkv(["eval", str(models / "text_to_text"), "pairs.tsv", "--beam", "2", "--json"])[0])
    assert side["metrics"]["exact_match"] == values["metrics"]["exact_match"]


def test_scores_have_intervals_and_classes_a_report(models: Path, files: Path, run_qkv: Any) -> None:
    Path("more.csv").write_text("text,label\n" + "the fox,fox\na dog,dog\nlazy,cat\n" * 5, encoding="utf-8")
    command = ["eval", str(models / "classify"), "more.csv"]
    values = json.loads(run_qkv([*command, "--json"])[0])
    low, high = values["intervals"]["accuracy"]
    assert 0 <= low < values["metrics"]["accuracy"] < high <= 1
    assert values["resamples"] == 1000
    confusion = values["report"]["confusion"]
    assert sum(confusion["fox"].values()) == 5
    assert values["report"]["classes"]["cat"] == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        "expected": 5,
        "predicted": 0,
    }
    out, _ = run_qkv(command)
    assert "95 % interval" in out
    assert "most confused" in out
    out, _ = run_qkv([*command, "--resamples", "0"])
    assert "95 % interval" not in out
    tagged = json.loads(run_qkv(["eval", str(models / "tag"), "names.conll", "--json"])[0])
    assert tagged["report"]["classes"]["PER"]["expected"] == 1


def test_two_models_are_compared_on_the_same_records(models: Path, files: Path, run_qkv: Any) -> None:
    constant = encoder(HEADS["classify"])
    with torch.no_grad():  # equal logits: the first class, fox, for every text
        for parameter in constant.network.head.parameters():
            parameter.zero_()
    constant.save(files / "fox")
    Path("more.csv").write_text("text,label\n" + "the fox,fox\na dog,fox\nlazy,dog\n" * 10, encoding="utf-8")
    first = str(models / "classify")
    values = json.loads(run_qkv(["eval", first, "fox", "more.csv", "--json"])[0])
    assert [one["model"] for one in values["models"]] == [first, "fox"]
    alone = json.loads(run_qkv(["eval", "fox", "more.csv", "--json"])[0])
    assert values["models"][1]["metrics"] == alone["metrics"]
    assert alone["metrics"]["accuracy"] == pytest.approx(2 / 3)
    difference = values["differences"]["accuracy"]
    scores = [one["metrics"]["accuracy"] for one in values["models"]]
    assert difference["value"] == pytest.approx(scores[1] - scores[0])
    assert difference["interval"][0] <= difference["value"] <= difference["interval"][1]
    assert 0 < difference["p_value"] <= 1
    out, _ = run_qkv(["eval", first, "fox", "more.csv"])
    assert "B − A" in out
    assert "p-value" in out
    same = json.loads(run_qkv(["eval", "fox", "fox", "more.csv", "--json"])[0])["differences"]["accuracy"]
    assert (same["value"], same["p_value"]) == (0.0, 1.0)
    _, err = run_qkv(["eval", first, str(models / "tag"), "more.csv"], code=2)
    assert "compare models of the same task" in err


def test_a_missing_model_is_named_before_missing_data(files: Path, run_qkv: Any) -> None:
    _, err = run_qkv(["eval", "nope"], code=2)
    assert "nope" in err
    assert "evaluation data" not in err


TRAINED = (
    '[data]\ntrain = "labels.csv"\nvalid_fraction = 0.0\n[objective]\nkind = "classification"\n[train]\nsteps = 1\n'
)


def test_a_classifier_is_compared_with_a_linear_svm_on_the_same_data(
    models: Path, files: Path, run_qkv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn", reason="the baseline needs scikit-learn")
    shutil.copytree(models / "classify", "run")
    Path("run/recipe.toml").write_text(TRAINED, encoding="utf-8")
    Path("wrong.csv").write_text("text,label\nthe fox,fox\na dog,fox\nlazy dog,fox\n", encoding="utf-8")
    command = ["eval", "run", "labels.csv"]
    values = json.loads(run_qkv([*command, "--json"])[0])
    assert values["baseline"] == {"accuracy": 1.0, "macro_f1": 1.0, "matthews": 1.0}  # it has seen these records
    assert values["metrics"]["accuracy"] < 1
    out, _ = run_qkv(command)
    assert "TF-IDF + linear SVM" in out
    assert "this is not a test score: the run was trained on labels.csv" in out
    assert "is better than this model" not in out, "the baseline knows its training data by heart"
    Path("new.csv").write_text("text,label\nthe fox!,fox\na dog!,dog\nlazy dog!,dog\n", encoding="utf-8")
    advice = "is better than this model. Train longer"
    started = "qkv init classify FILE --from MODEL"
    assert f"{advice}, or fine-tune a trained model: {started}" in run_qkv(["eval", "run", "new.csv"])[0]
    Path("run/recipe.toml").write_text(f'{TRAINED}[model]\nfrom = "models/bert"\n', encoding="utf-8")
    out, _ = run_qkv(["eval", "run", "new.csv"])
    assert f"{advice}.\n" in out
    assert started not in out
    Path("run/recipe.toml").write_text(TRAINED, encoding="utf-8")
    values = json.loads(run_qkv(["eval", "run", "wrong.csv", "--json"])[0])
    assert values["baseline"]["accuracy"] == pytest.approx(1 / 3)
    out, _ = run_qkv([*command, "--no-baseline"])
    assert "SVM" not in out
    monkeypatch.setattr("qkv.tasks.baselines.find_spec", lambda name: None)
    assert json.loads(run_qkv([*command, "--json"])[0])["baseline"] == {}
    monkeypatch.undo()
    monkeypatch.chdir(files)
    Path("run/recipe.toml").write_text(TRAINED.replace("labels.csv", "gone.csv"), encoding="utf-8")
    _, err = run_qkv(command)
    assert "no baseline was trained: " in err
    assert "gone.csv" in err


def test_only_classifiers_of_runs_have_a_baseline(models: Path, files: Path, run_qkv: Any) -> None:
    values = json.loads(run_qkv(["eval", str(models / "classify"), "labels.csv", "--json"])[0])
    assert values["baseline"] == {}


def test_columns_of_other_names_are_asked_for_and_taken(models: Path, files: Path, run_qkv: Any) -> None:
    _, err = run_qkv(["eval", str(models / "text_to_text"), "odd.tsv"], code=2)
    assert "left, right" in err
    assert "for example: --columns source=left --columns target=right" in err
    assert "If the first line is data and not a header: --columns source=0 --columns target=1" in err
    chosen = ["--columns", "source=left", "--columns", "target=right", "--json"]
    values = json.loads(run_qkv(["eval", str(models / "text_to_text"), "odd.tsv", *chosen])[0])
    assert (values["samples"][0]["source"], values["samples"][0]["expected"]) == ("the fox", "the dog")


NO_HEADER = "A lazy fox runs.\tThe quick dog jumps.\nAnna runs.\tA dog runs.\n"


def test_a_table_without_a_header_is_read_as_init_reads_it(models: Path, files: Path, run_qkv: Any) -> None:
    Path("plain.tsv").write_text(NO_HEADER, encoding="utf-8")
    out, err = run_qkv(["eval", str(models / "text_to_text"), "plain.tsv", "--json"])
    values = json.loads(out)
    assert values["records"] == 2, "the first line is data"
    assert (values["samples"][0]["source"], values["samples"][0]["expected"]) == tuple(
        NO_HEADER.split("\n")[0].split("\t")
    )
    assert "plain.tsv: no header line, so column 0 is read as the source, column 1 is read as the target" in err
    Path("scored.csv").write_text("A lazy fox.,The fox.,4.5\nA dog runs.,Anna jumps.,1.0\n", encoding="utf-8")
    out, err = run_qkv(["eval", str(models / "embed"), "scored.csv", "--json"])
    assert json.loads(out)["main"] == "spearman"
    assert "column 2 is read as the score" in err


@pytest.mark.parametrize("second", [False, True])
def test_the_columns_of_a_recipe_are_preferred_to_a_guess(
    second: bool, models: Path, files: Path, run_qkv: Any
) -> None:
    Path("plain.tsv").write_text(NO_HEADER, encoding="utf-8")
    shutil.copytree(models / "text_to_text", "run")
    recipe = '[data]\ntrain = "pairs.tsv"\ncolumns = {source = 1, target = 0}\n[train]\nsteps = 1\n'
    Path("run/recipe.toml").write_text(recipe, encoding="utf-8")
    others = [str(models / "text_to_text")] if second else []
    out, err = run_qkv(["eval", *others, "run", "plain.tsv", "--json", "--resamples", "0"])
    assert "run: columns from the recipe of this run: source = 1, target = 0" in err
    assert "no header line" not in err
    values = json.loads(out)
    assert (values["models"][0] if second else values)["samples"][0]["source"] == "The quick dog jumps."


def test_a_run_whose_columns_a_table_does_not_have_falls_back_to_a_guess(
    models: Path, files: Path, run_qkv: Any
) -> None:
    Path("plain.tsv").write_text(NO_HEADER, encoding="utf-8")
    shutil.copytree(models / "text_to_text", "run")
    recipe = '[data]\ntrain = "pairs.tsv"\ncolumns = {source = "en", target = "de"}\n[train]\nsteps = 1\n'
    Path("run/recipe.toml").write_text(recipe, encoding="utf-8")
    _, err = run_qkv(["eval", "run", "plain.tsv"])
    assert "column 0 is read as the source" in err


@pytest.mark.parametrize("reads_pairs", [False, True])
def test_a_classifier_refuses_texts_of_another_form_than_in_training(
    reads_pairs: bool, models: Path, files: Path, run_qkv: Any
) -> None:
    made = encoder(HEADS["classify"])
    made.config = replace(made.config, reads_pairs=reads_pairs)
    made.save("run")
    right, wrong = ("a fox\ta dog", "a fox") if reads_pairs else ("a fox", "a fox\ta dog")
    run_qkv(["run", "run", right])
    _, err = run_qkv(["run", "run", wrong], code=2)
    assert ("a tab between them" if reads_pairs else "replace it by a space") in err


def test_problems_in_the_data_are_told(models: Path, files: Path, run_qkv: Any) -> None:
    out, err = run_qkv(["eval", str(models / "text_to_text"), "broken.jsonl"])
    assert "2 records" in out
    assert "broken.jsonl:2" in err
    values = json.loads(run_qkv(["eval", str(models / "text_to_text"), "broken.jsonl", "--json"])[0])
    assert values["problems"]["num_invalid"] == 1


def test_a_builtin_dataset_by_name(models: Path, files: Path, run_qkv: Any) -> None:
    named = ["eval", str(models / "text_to_text"), "dates", "--limit", "3", "--json"]
    test = json.loads(run_qkv(named)[0])
    assert test["records"] == 3
    valid = json.loads(run_qkv([*named, "--split", "valid"])[0])
    assert test["samples"] != valid["samples"]
    assert json.loads(run_qkv([*named, "--split", "test"])[0])["samples"] == test["samples"]


def test_the_limit_takes_the_first(models: Path, files: Path, run_qkv: Any) -> None:
    values = json.loads(run_qkv(["eval", str(models / "classify"), "labels.csv", "--limit", "2", "--json"])[0])
    assert [sample["expected"] for sample in values["samples"]] == ["fox", "dog"]


@pytest.mark.parametrize(
    ("name", "more", "code", "words"),
    [
        ("text_to_text", [], 2, ["qkv eval", "test.tsv"]),
        ("text_to_text", ["nothere.tsv"], 1, ["nothere.tsv"]),
        ("text_to_text", ["datse"], 2, ["datse", "dates"]),
        ("text_to_text", ["pairs.tsv", "--metric", "blue"], 2, ["blue", "bleu"]),
        ("text_to_text", ["pairs.tsv", "--split", "test"], 2, ["split", "dates"]),
        ("text_to_text", ["dates", "--split", "tset"], 2, ["tset", "test"]),
        ("text_to_text", ["pairs.tsv", "--beam", "0"], 2, ["--beam must be >= 1, got 0"]),
        ("text_to_text", ["pairs.tsv", "--batch-size", "-1"], 2, ["--batch-size must be >= 0, got -1"]),
        ("text_to_text", ["pairs.tsv", "--columns", "zz"], 2, ["--columns", "field=value"]),
        ("text_to_text", ["pairs.tsv", "--columns", "sorce=source"], 2, ["sorce", "source"]),
        ("text_to_text", ["pairs.tsv", "--format", "tvs"], 2, ["tsv"]),
        ("text_to_text", ["pairs.tsv", "--device", "gpu"], 2, ["gpu", "cuda"]),
        ("text_to_text", ["labels.csv"], 2, ["target", "text, label", "--columns target=label"]),
        ("text_to_text", ["text.txt"], 2, ["columns are text. Add the missing columns"]),
        ("text_to_text", ["odd.tsv", "--columns", "source=left"], 2, ["the target; add --columns target=COLUMN"]),
        ("language", ["table.txt"], 2, ["--columns text=0", "--format text"]),
        ("classify", ["pairs.tsv"], 2, ["label"]),
        ("tag", ["labels.csv"], 2, ["tokens"]),
        ("nothere", ["pairs.tsv"], 2, ["nothere"]),
    ],
)
def test_mistakes_are_one_clear_error(
    name: str, more: list[str], code: int, words: list[str], models: Path, files: Path, run_qkv: Any
) -> None:
    out, err = run_qkv(["eval", str(models / name), *more], code=code)
    assert not out
    assert all(word in err for word in words), err


# ---------------------------------------------------------------- qkv run

LINES = {
    "classify": (["the fox", "a\tdog"], {"label", "probability", "probabilities", "rejected_label"}),
    "score": (["the fox"], {"score"}),
    "tag": (["Anna runs, fox"], {"text", "words", "entities"}),
    "answer": (["who?\tAnna runs"], {"text", "start", "end", "score", "probability", "alternatives"}),
    "embed": (["the fox", "dog"], {"vector"}),
    "fill": (["the <mask> fox"], {"text", "candidates"}),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_for_each_line(name: str, models: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    texts, keys = LINES[name]
    lines = [texts[0], "", *texts[1:]]

    def stdin() -> None:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO("\n".join(lines).encode() + b"\n")))

    stdin()
    out, _ = run_qkv(["run", str(models / name)])
    shown = out.splitlines()
    assert len(shown) == len(lines)
    assert shown[1] == ""
    stdin()
    out, _ = run_qkv(["run", str(models / name), "--json"])
    values = [json.loads(line) for line in out.splitlines()]
    assert [one["input"] for one in values] == lines
    assert set(values[0]) == {"input", *keys}
    assert set(values[1]) == {"input"}


def test_lines_say_what_the_model_says(models: Path, run_qkv: Any) -> None:
    loaded = qkv.load(models / "classify")
    expected = loaded.run("the fox")
    assert run_qkv(["run", str(models / "classify"), "the fox"])[0] == f"{expected.label}\t{expected.probability:.4f}\n"
    tagged = qkv.load(models / "tag").run("Anna runs")
    shown = " ".join(f"{one.word}/{one.tag}" for one in tagged.words)
    assert run_qkv(["run", str(models / "tag"), "Anna runs"])[0].splitlines()[0] == shown
    vector = qkv.load(models / "embed").run("fox")
    found = [float(number) for number in run_qkv(["run", str(models / "embed"), "fox"])[0].split()]
    assert found == pytest.approx(vector.vector, rel=1e-4)


def test_options_for_writing_are_refused_where_nothing_is_written(models: Path, run_qkv: Any) -> None:
    _, err = run_qkv(["run", str(models / "classify"), "fox", "--temperature", "0.5"], code=2)
    assert "--temperature is for models that generate text" in err
    _, err = run_qkv(["run", str(models / "classify"), "fox", "--align"], code=2)
    assert "--align is for a model that generates a text for a text, but this one predicts the class" in err
    _, err = run_qkv(["run", str(models / "text_to_text"), "fox", "--threshold", "0.5"], code=2)
    assert "--threshold is for a model that predicts the class" in err
    _, err = run_qkv(["run", str(models / "answer"), "who?"], code=2)
    assert "with a tab between them" in err


def test_no_answer_is_an_empty_line_for_a_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = Answer("", -1, -1, 0.0)
    print_result("who?\tAnna runs", nothing, json=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_result("who?\tAnna runs", nothing, json=False)
    assert capsys.readouterr().out == "\n(no answer)\n"


def test_options_of_a_task_reach_it(models: Path, run_qkv: Any) -> None:
    out, _ = run_qkv(["run", str(models / "classify"), "the fox", "--top", "1", "--threshold", "1", "--json"])
    assert (json.loads(out)["label"], len(json.loads(out)["probabilities"])) == (None, 1)
    out, _ = run_qkv(["run", str(models / "answer"), "who?\tAnna runs", "--must-answer", "--top", "2", "--json"])
    assert json.loads(out)["text"]
    options = ["--sentences", "--top", "2", "--align", "--prefix", "the", "--max-tokens", "4", "--json"]
    out, err = run_qkv(["run", str(models / "text_to_text"), "a fox. A dog", *options])
    assert "1 of 1 outputs were cut off after 4 tokens" in err
    found = json.loads(out)
    assert found["text"].startswith("the")
    assert [len(part["alternatives"]) for part in found["parts"]] == [1, 1]
    assert {"source", "target", "weight"} <= set(found["alignment"][0])


def test_a_model_that_knows_sentences_reads_them(models: Path, run_qkv: Any) -> None:
    made = qkv.load(models / "text_to_text")
    made.config = replace(made.config, reads_sentences=True)
    made.save(models / "sentences")
    command = ["run", str(models / "sentences"), "a fox. A dog", "--max-tokens", "4", "--json"]
    out, err = run_qkv(command)
    assert len(json.loads(out)["parts"]) == 2
    assert "1 of 1 texts were read in several parts" in err
    assert "--no-sentences" in err
    assert "in several parts" not in run_qkv([*command, "--sentences"])[1]
    whole = made.translate("a fox. A dog", sentences=False, max_tokens=4)
    assert json.loads(run_qkv([*command, "--no-sentences"])[0]) == {"input": "a fox. A dog", **whole.to_dict()}
    assert not whole.parts
    _, err = run_qkv(["run", str(models / "classify"), "fox", "--no-sentences"], code=2)
    assert "--no-sentences is for a model that generates a text for a text" in err


def test_a_bad_line_loses_no_results_and_is_named(models: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    lines = ["the <mask> fox", "", "no mask", "a <mask>"]
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO("\n".join(lines).encode())))
    out, err = run_qkv(["run", str(models / "fill")], code=2)
    assert "line 3: " in err
    expected = qkv.load(models / "fill").fill("the <mask> fox")
    assert out == f"{expected.summary()}\n\n"


def test_a_byte_order_mark_is_not_text(models: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"\xef\xbb\xbfthe fox\n")))
    out, _ = run_qkv(["run", str(models / "classify"), "--json"])
    assert json.loads(out)["input"] == "the fox"


def test_a_single_text_keeps_its_line_breaks(run_qkv: Any) -> None:
    text, french = "The cat is black.\n\n- The cat is black.", "Le chat est noir.\n\n- Le chat est noir."
    assert run_qkv(["run", "en-fr", text])[0] == f"{french}\n"
    assert run_qkv(["run", "en-fr", text, "I like tea."])[0].splitlines() == [
        french.replace("\n", " "),
        "J'aime le thé.",
    ]


def test_several_results_are_shown(models: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    out, _ = run_qkv(["run", str(models / "classify"), "the fox", "--top", "2"])
    assert out == f"{qkv.load(models / 'classify').classify('the fox', top=2)}\n"
    assert len(out.splitlines()) == 3
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"the fox\n")))
    _, err = run_qkv(["run", str(models / "classify"), "--top", "2"], code=2)
    assert "--top 2 needs --json for lines on stdin" in err
    out, _ = run_qkv(["run", str(models / "text_to_text"), "a fox", "--align"])
    aligned = qkv.load(models / "text_to_text").translate("a fox", align=True, sentences=False)
    assert out == f"{aligned}\n"
    assert len(out.splitlines()) > 1
    _, err = run_qkv(["run", str(models / "text_to_text"), "--align"], code=2)
    assert "--align needs --json for lines on stdin" in err


def test_long_documents_are_summarised(models: Path, run_qkv: Any, caplog: pytest.LogCaptureFixture) -> None:
    folder, text = str(models / "text_to_text"), "the fox runs over it. " * 30
    out, err = run_qkv(["run", folder, text, "--max-tokens", "2", "--too-long", "split", "--json"])
    expected = qkv.load(folder).summarise(text, max_tokens=2)
    assert json.loads(out)["text"] == expected.text
    assert len(json.loads(out)["parts"]) == len(expected.parts) > 2
    assert "1 of 1 texts were read in several parts, because they are too long" in err
    out, err = run_qkv(["run", folder, text, "--max-tokens", "2", "--too-long", "truncate"])
    assert out == f"{expected.parts[0].summary()}\n"
    assert "1 of 1 texts are too long: only their beginnings were summarised" in caplog.text
    _, err = run_qkv(["run", folder, text, "--too-long", "split", "--align"], code=2)
    assert "--align and --too-long do not go together" in err
    assert "translate has --align, summarise has --too-long" in err


def test_a_decoder_suggests_completions(models: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    call = ["run", str(models / "language"), "the lazy", "--top", "3", "--max-tokens", "2"]
    expected = qkv.load(models / "language").complete("the lazy", top=3, max_tokens=2)
    assert run_qkv(call)[0] == f"{expected}\n"
    assert len(expected.suggestions) == 3
    assert json.loads(run_qkv([*call, "--json"])[0])["suggestions"] == expected.to_dict()["suggestions"]
    _, err = run_qkv([*call, "--temperature", "0.5"], code=2)
    assert "--temperature with --top: the most likely completions of a text are found without sampling" in err
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"the lazy\n\na dog\n")))
    out, _ = run_qkv([*call[:2], *call[3:], "--json"])
    assert [len(json.loads(line).get("suggestions") or []) for line in out.splitlines()] == [3, 0, 3]


def test_entities_are_listed_with_their_offsets(models: Path, monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    """For texts on the command line. A line on stdin is one line of output."""
    text = "Anna runs over the dog"
    expected = qkv.load(models / "tag").tag(text)
    assert expected.entities, "an untrained model that marks nothing would prove nothing"
    out, _ = run_qkv(["run", str(models / "tag"), text])
    assert out == f"{expected}\n"
    first = expected.entities[0]
    assert str(first.start) in out.splitlines()[1]
    assert first.text in out.splitlines()[1]
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(text.encode())))
    assert len(run_qkv(["run", str(models / "tag")])[0].splitlines()) == 1


def test_a_text_out_of_scope_does_not_look_like_a_class(models: Path, run_qkv: Any) -> None:
    call = ["run", str(models / "classify"), "the fox", "--threshold", "0.999"]
    best = qkv.load(models / "classify").classify("the fox")
    out, _ = run_qkv(call)
    assert out == f"(none)\tbelow the threshold: {best.label} {best.probability:.4f}\n"
    found = json.loads(run_qkv([*call, "--json"])[0])
    assert (found["label"], found["rejected_label"]) == (None, best.label)


def test_the_translator_in_the_box_reads_sentence_by_sentence(run_qkv: Any) -> None:
    text = "The cat sleeps. I love you very much."
    out, _ = run_qkv(["run", "en-fr", text])
    assert out == f"{qkv.load('en-fr').translate(text).text}\n"


def test_a_model_that_writes_still_writes(models: Path, run_qkv: Any) -> None:
    out, _ = run_qkv(["run", str(models / "text_to_text"), "the fox", "dog", "--max-tokens", "5"])
    expected = qkv.load(models / "text_to_text").generate_lines(["the fox", "dog"], max_tokens=5)
    assert out.splitlines() == [" ".join(result.text.splitlines()) for result in expected]


# ---------------------------------------------------------------- something learnt


def test_what_was_learnt_is_seen(tmp_path: Path, run_qkv: Any) -> None:
    """Texts with a fox in them, told from those without: chance before training, nearly all right after it."""
    draw, words = random.Random(3), ["the", "lazy", "quick", "brown", "dog", "runs", "over"]

    def example() -> tuple[str, str]:
        listed = [draw.choice(words) for _ in range(draw.randint(2, 6))]
        if draw.random() < 0.5:
            listed.insert(draw.randrange(len(listed)), "fox")
        return " ".join(listed), "fox" if "fox" in listed else "none"

    tokenizer = bert_tokenizer()
    tower = stack(tokenizer, token_types=2, dropout=0.0, init_std=0.05, position="rotary")
    head = qkv.HeadConfig(kind="classify", labels=("fox", "none"), pool="mean")
    made = qkv.new(
        qkv.Config(encoder=tower, head=head, pad_token_id=tokenizer.special_tokens.pad), tokenizer=tokenizer, seed=2
    )
    rows = [example() for _ in range(200)]
    test = tmp_path / "test.csv"
    test.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))

    def accuracy(name: str) -> float:
        made.save(tmp_path / name)
        found = json.loads(run_qkv(["eval", str(tmp_path / name), str(test), "--json"])[0])
        return float(found["metrics"]["accuracy"])

    assert accuracy("before") < 0.75
    optimizer = torch.optim.AdamW(made.network.parameters(), lr=1e-2)
    for _ in range(60):
        batch = [example() for _ in range(32)]
        encoded = [tokenizer.encode(text) for text, _ in batch]
        longest = max(map(len, encoded))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in encoded])
        segment = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in encoded])
        labels = torch.tensor([head.labels.index(label) for _, label in batch])
        F.cross_entropy(made.network(Inputs(ids, document_ids=segment)), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert accuracy("after") > 0.95
    label = qkv.Model(made.config, made.network, tokenizer).classify("the lazy fox")
    assert (label.label, label.probability > 0.9) == ("fox", True)


@pytest.mark.parametrize("task", ["answer", "fill", "classify", "pairs", "text_to_text"])
def test_what_training_says_to_try_runs_even_without_a_short_text(models, files, run_qkv, task):
    fields = ("text", "second") if task == "pairs" else ()
    task = "classify" if task == "pairs" else task
    given = example_input(None, TASKS[task].example_line(fields) if task in TASKS else "")
    text = subprocess.run(["bash", "-c", f"printf %s {given}"], capture_output=True, text=True, check=True).stdout
    out, _ = run_qkv(["run", str(models / task), text])
    assert out


def test_alternatives_of_several_sentences_are_shown_with_their_part(models, files, run_qkv):
    call = ["run", str(models / "text_to_text"), "--top", "2", "--max-tokens", "4"]
    single, _ = run_qkv([*call, "the fox."])
    assert len(single.splitlines()) == 2
    several, _ = run_qkv([*call, "--sentences", "the fox. A dog."])
    assert [line.split()[:2] for line in several.splitlines()[1:]] == [["part", "1"], ["part", "2"]]
