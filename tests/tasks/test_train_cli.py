"""`qkv train` and `qkv init` as people type them: rightly, wrongly, and to look first."""

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_runs import tiny, written
from prepare_samples import sample_files

import qkv
from qkv.cli.shared import print_result
from qkv.data import EncodeChat, ValidationSplit, read
from qkv.tasks.report import make
from qkv.train.run.folder import RunFolder

TINY = ["model.width=16", "model.heads=2", "model.layers=1", "tokenizer.kind=char", "data.max_length=96"]
SHORT = [*TINY, "train.steps=3", "train.minutes=0", "train.batch_tokens=1024", "train.eval_examples=4"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files and a recipe, to stand in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    sample_files(tmp_path)
    written(tiny(tmp_path, "mine", train={"steps": 3, "num_workers": 0}))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine.toml", "train.stpes=3"], ["'stpes'", "[train]", "did you mean 'steps'?"]),
        (["mine.toml", "trian.steps=3"], ["'trian'", "did you mean 'train'?"]),
        (["mine.toml", "model.widht=3"], ["'widht'", "did you mean 'width'?"]),
        (["mine.toml", "steps=3"], ["'steps'", "it belongs in [train]"]),
        (["mine.toml", "train.steps=many"], ["train.steps", '"many"', "must be an integer"]),
        (["mine.toml", "train.optimizer=adamx"], ["train.optimizer", "did you mean 'adam'?"]),
        (["mine.toml", "objective.kind=causallm"], ["objective.kind", "did you mean 'causal_lm'?"]),
        (["mine.toml", "train.steps=-1"], ["train.steps = -1", "at least 0"]),
        (
            ["mine.toml", "train.steps=0"],
            ["would never end", "train.epochs or train.cpu_minutes"],
        ),
        (["mine.toml", "train.steps"], ["write key=value"]),
        (["mine.toml", "model.lora_rank=4"], ["model.lora_rank", "model.from"]),
        (["mine.tmol"], ["mine.tmol", "no such recipe file"]),
        (["date"], ["date", "did you mean 'dates'?"]),
        (["mine.toml", "--dryrun"], ["--dryrun", "--dry-run"]),
        (["mine.toml", "--processes", "0"], ["--processes must be >= 1, got 0"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_end_with_two_and_the_nearest_name(
    here: Path, run_qkv: Any, arguments: list[str], words: list[str]
) -> None:
    out, err = run_qkv(["train", *arguments], code=2)
    assert out == ""
    for word in words:
        assert word in err
    assert not (here / "mine").exists(), "nothing has begun"


def test_a_mistake_in_the_file_is_named_with_its_line(here: Path, run_qkv: Any) -> None:
    (here / "bad.toml").write_text('[data]\ntrain = "pairs.tsv"\n\n[train]\nsteps = 3\nlearning = 4\n')
    _, err = run_qkv(["train", "bad.toml"], code=2)
    assert "bad.toml:6: unknown key 'learning' in [train]" in err


def test_training_says_what_came_of_it(here: Path, run_qkv: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MIN_QUICK_SECONDS", "MAX_QUICK_SECONDS"):  # on a busy machine, a second may be too short for a score
        monkeypatch.setattr(make, limit, 60)
    out, err = run_qkv(["train", "mine.toml"])
    assert out.splitlines()[0].startswith(f"{here / 'mine'}: 3 steps, exact_match ")
    curves = here / "mine" / "curves.svg"
    _, score, *_, page, drawn, tried, next_command = out.splitlines()
    assert score.startswith("BLEU 0.0 (0.0 … 0.0) on 16 records; copy of the source: ")
    assert drawn == f"Learning curves: {curves}"
    assert next_command == f"Is it good, and what next? The whole report: qkv report {here / 'mine'}"
    assert page == f"First report: {here / 'mine' / 'report.html'}"
    text = (here / "mine" / "report.html").read_text(encoding="utf-8")
    assert "this is a quick report" in text
    assert "copy of the source" in text
    found = shlex.split(tried.removeprefix("Try it: qkv run "))
    assert found[0] == str(here / "mine")
    assert found[1] in (here / "pairs.tsv").read_text(encoding="utf-8"), "a text of the user's own"
    assert len(found) == 2
    assert "<svg" in curves.read_text(encoding="utf-8")
    assert "step 3" in err
    assert "parameters" in err
    out, _ = run_qkv(["run", str(here / "mine"), "the cat", "a dog"])
    assert len(out.splitlines()) == 2


def test_for_machines(here: Path, run_qkv: Any) -> None:
    out, _ = run_qkv(["train", "mine.toml", "--json"])
    values = json.loads(out)
    assert (values["step"], values["reason"]) == (3, "steps")
    assert values["metrics"].keys() >= {"loss", "exact_match"}
    assert Path(values["run"]) == here / "mine"


def test_without_validation_the_line_ends_with_the_steps(here: Path, run_qkv: Any) -> None:
    out, _ = run_qkv(["train", "mine.toml", "data.valid_fraction=0"])
    assert out.splitlines()[0] == f"{here / 'mine'}: 3 steps"


def test_looking_first_trains_nothing(here: Path, run_qkv: Any) -> None:
    out, _ = run_qkv(["train", "mine.toml", "--dry-run", "train.lr=0.25"])
    for words in ("lr = 0.25", "[model]", "total", "parameters", "pairs.tsv", "source", "target"):
        assert words in out, words
    assert not (here / "mine").exists()
    values = json.loads(run_qkv(["train", "mine.toml", "--dry-run", "--json"])[0])
    assert values["family"] == "seq2seq"
    assert values["budget"] == {"steps": 3}
    assert values["model_summary"]["total"] > 1000
    assert values["first_examples"][0]["parts"].keys() == {"source", "input", "target"}
    assert not (here / "mine").exists()


def test_of_records_that_name_their_fields_no_first_line_is_told(here: Path, run_qkv: Any) -> None:
    rows = '{"review": "a fine one", "stars": "good"}\n{"review": "not so fine", "stars": "bad"}\n' * 10
    (here / "reviews.jsonl").write_text(rows, encoding="utf-8")
    out, _ = run_qkv(["init", "classify", "reviews.jsonl"])
    assert "(columns: text = review, label = stars); next" in out


def test_a_recipe_written_for_ones_own_file_trains(here: Path, run_qkv: Any) -> None:
    out, _ = run_qkv(["init", "translate", "languages.tsv"])
    assert "wrote translate.toml (columns: " in out
    assert "the first line is read as column names); next: qkv train translate.toml --dry-run" in out
    run_qkv(["train", "translate.toml", "--dry-run", *SHORT], code=0)
    out, _ = run_qkv(["train", "translate.toml", *SHORT])
    run = out.split(":")[0]
    assert RunFolder(here / run).is_run
    assert len(run_qkv(["run", run, "the cat"])[0].splitlines()) == 1
    values = json.loads(run_qkv(["eval", run, "pairs.tsv", "--limit", "3", "--json"])[0])
    assert values["records"] == 3
    _, err = run_qkv(["init", "translate"], code=1)
    assert "this file already exists" in err


def test_the_example_of_inits_own_help(here: Path, run_qkv: Any) -> None:
    out, _ = run_qkv(["init", "--help"])
    assert "qkv init translate source=train.en target=train.de" in out
    (here / "a.en").rename("train.en")
    (here / "a.de").rename("train.de")
    run_qkv(["init", "translate", "source=train.en", "target=train.de"])
    values = json.loads(run_qkv(["train", "translate.toml", "--dry-run", "--json", *SHORT])[0])
    assert values["first_examples"][0]["parts"].keys() == {"source", "input", "target"}


def test_a_document_may_be_a_list_of_sentences(here: Path, run_qkv: Any) -> None:
    names = [a + b for a in "abcdef" for b in "ghijkl"]
    rows = [{"source": [f"{name} eats.", f"{name} naps."], "target": [f"About {name}."]} for name in names]
    (here / "papers.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run_qkv(["init", "summarise", "papers.jsonl", "--out", "papers.toml"])
    out, _ = run_qkv(["train", "papers.toml", "--dry-run", *TINY])
    assert re.search(r"^source: (\w\w) eats\. \1 naps\.</s>$", out, re.MULTILINE), out
    assert re.search(r"^target: About \w\w\.</s>$", out, re.MULTILINE), out


@pytest.mark.parametrize(
    ("fields", "code", "problem"),
    [
        ({"source": "a b", "target": 5}, 2, "the target is 5 (int), but seq2seq reads texts; write a text there, or"),
        ({"source": ["a", 1], "target": "a"}, 2, "the source is ['a', 1] (list)"),
        ({"source": "a b", "target": ["a", "b"]}, 1, "the target is a list of 2 texts; join them"),
    ],
    ids=["a number", "not only texts", "alternatives or sentences"],
)
@pytest.mark.parametrize("option", ["", "--valid"])
def test_init_refuses_pairs_that_are_no_texts(
    here: Path, run_qkv: Any, fields: dict[str, object], code: int, problem: str, option: str
) -> None:
    (here / "bad.jsonl").write_text(json.dumps(fields))
    files = ["pairs.tsv", option, "bad.jsonl"] if option else ["bad.jsonl"]
    _, err = run_qkv(["init", "summarise", *files, "--out", "bad.toml"], code)
    assert f"bad.jsonl:1: {problem}" in err
    assert not (here / "bad.toml").exists()


def moods(here: Path, **labels: str) -> None:
    """Files with a text for each letter, which is the text's label."""
    for name, given in labels.items():
        rows = [f"text {number} is {label},{label}" for number, label in enumerate(given)]
        (here / f"{name}.csv").write_text("text,label\n" + "\n".join(rows))


def test_a_label_that_only_the_validation_files_have_may_be_out_of_scope(here: Path, run_qkv: Any) -> None:
    moods(here, train="ab" * 20, valid="abo" * 20, test="abo", several="abop" * 20)
    run_qkv(["init", "classify", "train.csv", "--valid", "valid.csv", "--test", "test.csv"])
    assert tomllib.loads((here / "classify.toml").read_text())["objective"]["out_of_scope"] == "o"
    run_qkv(["train", "classify.toml", "--dry-run", *TINY])
    _, err = run_qkv(["train", "classify.toml", "objective.out_of_scope=", "--dry-run", *TINY], code=1)
    assert "the label 'o' is not one of the classes" in err
    assert "If the texts with the label 'o' belong to no class, set objective.out_of_scope=\"o\"." in err
    _, err = run_qkv(["train", "classify.toml", "objective.out_of_scope=", "data.valid=several.csv", *TINY], code=1)
    assert "objective.out_of_scope" not in err, "several labels are no label of texts out of scope"


@pytest.mark.parametrize("valid", ["ab", "abcd"], ids=["none is unseen", "two are"])
def test_init_names_no_label_of_texts_out_of_scope_without_reason(here: Path, run_qkv: Any, valid: str) -> None:
    moods(here, train="ab" * 20, valid=valid)
    run_qkv(["init", "classify", "train.csv", "--valid", "valid.csv"])
    assert "out_of_scope" not in (here / "classify.toml").read_text()


def test_a_recipe_that_cannot_be_written(here: Path, run_qkv: Any) -> None:
    _, err = run_qkv(["init", "translate", "--out", "nowhere/x.toml"], code=1)
    assert "nowhere/x.toml: cannot be written (No such file or directory)" in err


def test_a_task_that_is_none(here: Path, run_qkv: Any) -> None:
    _, err = run_qkv(["init", "translat"], code=2)
    assert "did you mean 'translate'?" in err


def test_a_table_without_a_header_line_stays_one(here: Path, run_qkv: Any, caplog: pytest.LogCaptureFixture) -> None:
    """`init` says how it reads the first line; `eval` reads the file as the run did; another recipe has another run."""
    (here / "bare.tsv").write_text("".join(f"wun too {n}\t12{n}\n" for n in range(60)), encoding="utf-8")
    out, _ = run_qkv(["init", "translate", "bare.tsv", "--out", "numbers.toml"])
    assert "columns: source = 0, target = 1; the first line is read as data" in out
    out, _ = run_qkv(["train", "numbers.toml", *SHORT])
    assert out.split(":")[0] == "runs/numbers"
    out, err = run_qkv(["eval", "runs/numbers", "bare.tsv", "--limit", "3"])
    assert "3 records" in out
    assert "columns from the recipe of this run: source = 0, target = 1" in err
    written, _ = run_qkv(["run", "runs/numbers", "wun"])
    for name in ("config.json", "model.safetensors"):
        (here / "runs/numbers" / name).unlink()
    assert run_qkv(["run", "runs/numbers", "wun"])[0] == written
    assert "this run has not finished (resume it with qkv train runs/numbers)" in caplog.text
    place = "runs/numbers/checkpoints/step-000000003"
    assert run_qkv(["run", place, "wun"])[0] == written
    assert "3 records" in run_qkv(["eval", place, "bare.tsv", "--limit", "3"])[0], "columns as in its run"
    shutil.rmtree(here / "runs/numbers/checkpoints")
    _, err = run_qkv(["run", "runs/numbers", "wun"], code=1)
    assert "this run has no checkpoint yet. If it is training, wait for the first one" in err


def test_checkpoints_of_finished_runs_are_deleted_after_a_question(
    here: Path, run_qkv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_qkv(["init", "translate", "pairs.tsv"])
    run_qkv(["train", "translate.toml", "run=runs/done", *SHORT])
    checkpoints = here / "runs/done/checkpoints"
    assert json.loads(run_qkv(["models", "--prune", "--yes", "--json"])[0])["pruned"][0]["run"] == "runs/done"
    assert not checkpoints.exists()
    assert run_qkv(["run", "runs/done", "wun"])[0]
    assert "nothing was deleted" in run_qkv(["models", "--prune"])[0]
    run_qkv(["train", "translate.toml", "run=runs/more", *SHORT])
    _, err = run_qkv(["models", "--prune"], code=2)
    assert "--prune asks before it deletes; in a script, answer with --yes" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert "nothing was deleted" in run_qkv(["models", "--prune"])[0]
    assert (here / "runs/more/checkpoints").exists()
    _, err = run_qkv(["train", "runs/done", "train.steps=9"], code=1)
    assert "this run has a model but no checkpoints" in err


def test_a_run_is_scored_on_what_its_recipe_holds_out(here: Path, run_qkv: Any) -> None:
    lines = (here / "pairs.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (here / "held.tsv").write_text("".join(lines[:8]), encoding="utf-8")
    run_qkv(["init", "translate", "pairs.tsv"])
    run_qkv(["train", "translate.toml", "run=a", *SHORT])
    out, err = run_qkv(["eval", "a", "--json"])
    assert "evaluated on the data of its recipe: the 10% that the run held out of pairs.tsv" in err
    split = ValidationSplit(0.1, group_by=("source",))
    held_out = [one for one in read("pairs.tsv") if split.assign(one) == "validation"]
    assert json.loads(out)["records"] == len(held_out) > 0
    assert json.loads(out)["samples"][0]["source"] == held_out[0].fields["source"]
    reason = "this is not a test score: the run chose its weights by the score on these records"
    assert json.loads(out)["notes"][0] == reason
    out, _ = run_qkv(["eval", "a", "pairs.tsv", "--limit", "3"])
    assert "this is not a test score: the run was trained on pairs.tsv, except for the 10% that it held out" in out
    run_qkv(["train", "translate.toml", "run=c", "data.valid_fraction=0", "train.final=last", *SHORT])
    _, err = run_qkv(["eval", "c"], code=2)
    assert "no evaluation data was given; for example: qkv eval c test.tsv" in err
    run_qkv(["train", "translate.toml", "run=b", "data.test=held.tsv", "data.valid=pairs.tsv", *SHORT])
    out, err = run_qkv(["eval", "b", "--json"])
    assert "evaluated on the data of its recipe: held.tsv" in err
    assert json.loads(out)["records"] == 7
    assert json.loads(out)["data"] == ["held.tsv"]
    assert not any("test score" in note for note in json.loads(out)["notes"])
    assert json.loads(run_qkv(["eval", "b", "pairs.tsv", "--limit", "3", "--json"])[0])["records"] == 3


def test_what_a_recipe_holds_out_is_read_by_the_recipes_columns(here: Path, run_qkv: Any) -> None:
    """Even where other columns have the names that would be recognised."""
    lines = "".join(f"x\ty\twun {n}\teins {n}\n" for n in range(60))
    (here / "wide.tsv").write_text("source\ttarget\ta\tb\n" + lines, encoding="utf-8")
    run_qkv(["init", "translate", "wide.tsv"])
    columns = ["data.columns.source=a", "data.columns.target=b"]
    run_qkv(["train", "translate.toml", "run=a", "data.test=wide.tsv", *columns, *SHORT])
    sample = json.loads(run_qkv(["eval", "a", "--limit", "3", "--json"])[0])["samples"][0]
    assert (sample["source"][:3], sample["expected"][:4]) == ("wun", "eins")


def test_init_data_and_eval_read_a_file_without_a_header_alike(here: Path, run_qkv: Any) -> None:
    """Scores from 0 to 5 become cosine similarities; no line is lost as a header, and no column is dropped."""
    rows = "".join(f"A man plays song {n}.\tA woman sings song {n}.\t{n % 6}.0\n" for n in range(60))
    (here / "sts.tsv").write_text(rows, encoding="utf-8")
    (here / "test.txt").write_text(rows[: len(rows) // 2].rpartition("\n")[0] + "\n", encoding="utf-8")
    out, _ = run_qkv(["init", "embed", "sts.tsv", "--test", "test.txt"])
    assert "columns: first = 0, second = 1, score = 2; the first line is read as data" in out
    recipe = tomllib.loads((here / "embed.toml").read_text())["data"]
    assert (recipe["max_score"], recipe["test"]) == (5.0, "test.txt")
    found = json.loads(run_qkv(["data", "sts.tsv", "--test", "test.txt", "--json"])[0])
    assert found["train"]["examples"] == 60
    assert found["test"]["files"][0]["format"] == "tsv"
    run_qkv(["train", "embed.toml", "run=e", *SHORT])
    result = json.loads(run_qkv(["eval", "e", "--json"])[0])
    assert result["records"] == found["test"]["examples"]
    assert result["main"] == "spearman"
    assert json.loads(run_qkv(["eval", "e", "--test", "sts.tsv", "--json"])[0])["records"] == 60
    _, err = run_qkv(["eval", "e", "sts.tsv", "--test", "sts.tsv"], code=2)
    assert "one set of files is evaluated at a time" in err
    _, err = run_qkv(["train", "embed.toml", "run=f", "data.max_score=1", *SHORT], code=2)
    assert "set data.max_score = 5" in err


def test_a_key_a_format_and_columns_are_the_same_for_all_commands(here: Path, run_qkv: Any) -> None:
    rows = [{"review": f"fine thing {n}", "stars": str(n % 2)} for n in range(40)]
    (here / "two.json").write_text(json.dumps({"train": rows, "meta": [1]}), encoding="utf-8")
    _, err = run_qkv(["init", "classify", "two.json"], code=2)
    assert "choose one with --records-key train (data.records_key)" in err
    reading = ["--records-key", "train", "--columns", "text=review", "--columns", "label=stars"]
    run_qkv(["init", "classify", "two.json", *reading])
    data = tomllib.loads((here / "classify.toml").read_text())["data"]
    assert (data["records_key"], data["columns"]) == ("train", {"text": "review", "label": "stars"})
    assert json.loads(run_qkv(["data", "two.json", *reading, "--json"])[0])["examples"] == 40
    run_qkv(["train", "classify.toml", "run=k", *SHORT])
    assert json.loads(run_qkv(["eval", "k", "two.json", *reading, "--json"])[0])["records"] == 40
    (here / "table").write_text("review\tstars\n" + "so it is\t1\nis it so\t2\n" * 20, encoding="utf-8")
    arguments = ["init", "classify", "table", "--format", "tsv", "--out", "t.toml", *reading[2:]]
    run_qkv(arguments)
    assert tomllib.loads((here / "t.toml").read_text())["data"]["format"] == "tsv"
    _, err = run_qkv(["init", "classify", "two.json", "--columns", "text=revew", "--records-key", "train"], code=2)
    assert "did you mean 'review'" in err


def test_all_alternatives_of_a_missing_file_are_named(here: Path, run_qkv: Any) -> None:
    (here / "a.en").write_text("one\n", encoding="utf-8")
    _, err = run_qkv(["init", "classify", "text=a.en"], code=2)
    assert "needs a file for label or score; add label=FILE" in err


def test_few_and_short_pairs_are_read_letter_by_letter(here: Path, run_qkv: Any) -> None:
    for name, many in (("short", 1), ("long", 20)):
        lines = "".join(f"{'wun ' * many}{n}\t{'eins ' * many}{n}\n" for n in range(60))
        (here / f"{name}.tsv").write_text(lines, encoding="utf-8")
        run_qkv(["init", "translate", f"{name}.tsv", "--out", f"{name}.toml"])
    kinds = [tomllib.loads((here / f"{name}.toml").read_text())["tokenizer"]["kind"] for name in ("short", "long")]
    assert kinds == ["char", "byte-bpe"]


def test_what_to_try_has_the_parts_that_the_model_reads(here: Path, run_qkv: Any) -> None:
    """Two texts with a tab between them, as a shell takes it."""
    rows = [f"a {n}\tb {n + n % 2}\t{('same', 'other')[n % 2]}" for n in range(60)]
    (here / "two.tsv").write_text("\n".join(["first\tsecond\tlabel", *rows]) + "\n")
    run_qkv(["init", "classify", "two.tsv", "--out", "two.toml"])
    out, _ = run_qkv(["train", "two.toml", "run=two", *SHORT])
    (line,) = (line for line in out.splitlines() if line.startswith("Try it"))
    assert line.startswith("Try it: qkv run two $'a ")
    assert "\\tb " in line


def test_a_model_that_is_trained_on_chats_can_chat(here: Path, run_qkv: Any) -> None:
    """From scratch, without a template in the tokenizer: the one that training used is saved."""
    chats = [[{"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"{n}!"}] for n in range(40)]
    (here / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    run_qkv(["init", "language", "chats.jsonl", "--out", "chat.toml"])
    out, _ = run_qkv(["train", "chat.toml", "run=chat", *SHORT])
    assert "Try it: qkv chat chat\n" in out
    model = qkv.load("chat")
    assert model.tokenizer is not None
    (encoded,) = EncodeChat(model.tokenizer)([next(iter(read("chats.jsonl")))])
    prompt = model.find_chat().template.encode(chats[0][:1])
    assert encoded["ids"][: len(prompt)] == prompt, "the prompt of a chat is that of training"
    assert model.chat("Say 7.", max_tokens=3).messages[-1]["role"] == "assistant"


@pytest.mark.parametrize("device", ["mps", "meta", "gpu", "cuda:99"])
def test_a_device_that_is_not_there(device: str, here: Path, run_qkv: Any) -> None:
    """To look first tells of it too, and other commands say the same."""
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("it is there")
    for more in ([], ["--dry-run"]):
        _, err = run_qkv(["train", "mine.toml", f"train.device={device}", *more], 2)
        assert f"train.device = '{device}'" in err or "there is no GPU 99" in err
    if device in ("mps", "gpu"):
        run_qkv(["train", "mine.toml", "--json"])
        run_qkv(["run", "mine", "hello", "--device", device], 2)


def test_json_has_no_numbers_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    print_result(True, "", {"metrics": {"loss": float("nan"), "each": (1.5, float("-inf"))}})
    assert json.loads(capsys.readouterr().out, parse_constant=refuse) == {
        "metrics": {"loss": None, "each": [1.5, None]}
    }
