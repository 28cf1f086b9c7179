"""All ways to a result agree: `m.<verb>`, `qkv run --json`, `POST /<verb>` and the studio give the same JSON values.

`qkv run` loads the model from its folder; the server and the studio have it in memory. The studio has no options.
"""

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from serving import client
from starlette.testclient import TestClient
from task_models import decoder, encoder, model, seq2seq, seq2seq_tokenizer, stack

import qkv
from qkv.cli import run_command
from qkv.errors import UsageError
from qkv.serve.studio.results import find_results
from qkv.tasks.table import PAYLOAD_TASKS, TASKS
from qkv.tasks.task import Task
from qkv.values import find_fields

LABELS = ("bad", "good", "so so")


def classifier(**head: Any) -> qkv.Model:
    return encoder(qkv.HeadConfig(kind="classify", **head))


def with_config(made: qkv.Model, **changes: Any) -> qkv.Model:
    return qkv.Model(replace(made.config, **changes), made.network, made.tokenizer)


def decoder_classifier() -> qkv.Model:
    tokenizer = seq2seq_tokenizer()
    head = qkv.HeadConfig(kind="classify", labels=LABELS, pool="last")
    return model(qkv.Config(decoder=stack(tokenizer), head=head, pad_token_id=tokenizer.special_tokens.pad), tokenizer)


MODELS: dict[str, tuple[str, Any]] = {
    "translator": ("translate", seq2seq),
    "of sentences": ("translate", lambda: with_config(seq2seq(2), reads_sentences=True)),
    "summariser": ("summarise", lambda: with_config(seq2seq(3), task="summarise")),
    "language": ("complete", decoder),
    "masks": ("fill", lambda: encoder(qkv.HeadConfig(kind="mlm", outputs=1))),
    "classes": ("classify", lambda: classifier(labels=LABELS)),
    "out of scope": ("classify", lambda: classifier(labels=LABELS, threshold=0.9)),
    "sets of labels": ("classify", lambda: classifier(labels=LABELS, multi_label=True)),
    "scores": ("classify", lambda: classifier(outputs=1)),
    "decoder": ("classify", decoder_classifier),
    "pairs": ("classify", lambda: with_config(classifier(labels=LABELS), reads_pairs=True)),
    "tags": ("tag", lambda: encoder(qkv.HeadConfig(kind="tag", labels=("O", "B-PER", "I-PER", "S-LOC")))),
    "answers": ("answer", lambda: encoder(qkv.HeadConfig(kind="span", outputs=2))),
    "vectors": ("embed", lambda: encoder(qkv.HeadConfig(kind="embed", pool="mean", normalize=True))),
}
OPTIONS: dict[str, Any] = {
    "align": [True],
    "beam": [3],
    "length_penalty": [0.5],
    "max_tokens": [3],
    "must_answer": [True],
    "no_repeat_ngram_size": [2],
    "prefix": ["the d"],
    "prompt": ["a "],
    "sentences": [True, False],
    "stop": [["o", "ff"]],
    "threshold": [0.9, 0.0],
    "too_long": ["split", "truncate", "window", "error"],
    "top": [2],
}
"""Values of each option of a task; a value that a task does not have is left out."""
PIECES = [
    *["the", "quick", "brown", "fox", "jumps", "over", "Anna", "Paris", "naïve", "2026"],
    *".,?!…",
    "🦊",
    "👩🏽‍🚀",
    "e\u0301",
    "<b>",
    '"',
    "—",
]


@dataclass
class Ways:
    """The models in their folders and on a server."""

    folder: Path
    server: TestClient
    models: dict[str, qkv.Model]


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    folder, models = tmp_path_factory.mktemp("models"), {name: make() for name, (_, make) in MODELS.items()}
    for name, made in models.items():
        made.save(folder / name)
    with client(models, gather_seconds=0.0) as server:
        yield Ways(folder, server, models)


def cases() -> list[Any]:
    """Each model with its default options, and with each option of its task set to another value."""
    made = []
    for name, (verb, _) in MODELS.items():
        chosen: list[dict[str, Any]] = [{}]
        for option in find_fields(TASKS[verb].Options):
            if not option.is_hidden:
                values = [value for value in OPTIONS[option.key] if not option.choices or value in option.choices]
                chosen += [{option.key: value} for value in values]
        made += [pytest.param(name, one, id=f"{name} {one or ''}") for one in chosen]
    return made


def make_texts(task: Task, name: str) -> list[str]:
    """Lines with a text each: short and long ones, punctuation, emoji, pairs of texts, a part that is empty."""
    rng = random.Random(name)

    def text(count: int) -> str:
        return "".join(rng.choice(PIECES) + rng.choice(["", " ", " ", "  "]) for _ in range(count)).strip()

    lengths = [1, 2, 5, 9, 60]
    if task.needs_all_inputs:
        return [f"{text(3)}\t{text(count)}" for count in lengths] + ["who?\t "]
    if name == "pairs":
        return [f"{text(count)}\t{text(2)}" for count in lengths] + ["the fox\t", " \tthe fox"]
    lines = [text(count) for count in lengths]
    if task.name == "fill":
        return [f"{line} [MASK] {text(2)}" for line in lines] + ["the [MASK] fox [MASK]"]
    if task.accepts_pairs and name != "scores":
        return [*lines, "the fox\ta dog", "the fox\t"]
    return [*lines, "tabs\tin a\ttext"]


def reads_long_texts(task: Task, name: str, options: dict[str, Any]) -> bool:
    """Whether a text may have more tokens than the model has positions."""
    if task.name in ("classify", "embed"):
        return options.get("too_long") == "truncate" or (options.get("too_long") == "split" and name != "pairs")
    return options.get("sentences") is not False


@pytest.mark.parametrize(("name", "options"), cases())
def test_all_ways_to_a_result_agree(
    ways: Ways, name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, task = ways.models[name], TASKS[MODELS[name][0]]
    lines = make_texts(task, name)
    is_error = "error" in options.values() or (name == "scores" and bool({"top", "threshold"} & set(options)))
    if is_error:
        lines = [max(lines, key=len)]
    elif not reads_long_texts(task, name, options):
        lines = [line for line in lines if len(line) < 100]
    inputs = [task.read_line(line) for line in lines]
    found = call(made, task, inputs, options)
    assert isinstance(found, str) == is_error
    assert found == post(ways.server, task, name, inputs, options)
    shown = {"top": 3, **options} if task.name == "complete" else options  # without --top, it generates
    assert found == run(ways.folder / name, lines, shown, monkeypatch, capsys)
    if not options and task.name != "complete":
        assert found == [shown.to_dict()["result"] for shown in find_results(made, lines)]


def test_a_continuation_in_the_studio_is_that_of_m_run_and_qkv_run(
    ways: Ways, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, lines = ways.models["language"], make_texts(TASKS["complete"], "language")[:4]
    options = {"max_tokens": 16}
    expected = [one.to_dict() for one in made.run(lines, **options)]
    assert [shown.to_dict()["result"] for shown in find_results(made, lines)] == expected
    assert run(ways.folder / "language", lines, options, monkeypatch, capsys) == expected


def test_every_task_and_every_value_of_an_option_is_compared() -> None:
    assert {verb for verb, _ in MODELS.values()} == set(TASKS) - set(PAYLOAD_TASKS)
    compared = [task for name, task in TASKS.items() if name not in PAYLOAD_TASKS]
    options = {one.key: one for task in compared for one in find_fields(task.Options) if not one.is_hidden}
    assert set(OPTIONS) == set(options)


def test_below_the_threshold_a_classifier_abstains_everywhere(
    ways: Ways, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The threshold of the model's config is the default of all ways."""
    made, lines = ways.models["out of scope"], ["the fox", "a dog"]
    found = call(made, TASKS["classify"], lines, {})
    assert [one["label"] for one in found] == [None, None]
    assert [shown.to_dict()["result"] for shown in find_results(made, lines)] == found
    assert run(ways.folder / "out of scope", lines, {}, monkeypatch, capsys) == found
    assert post(ways.server, TASKS["classify"], "out of scope", lines, {}) == found
    assert found != call(made, TASKS["classify"], lines, {"threshold": 0.0})


def test_an_answer_in_the_studio_is_part_of_the_passage_or_there_is_none(ways: Ways) -> None:
    """The passages are short, so that some of the answers are likely to be "no answer"."""
    made = ways.models["answers"]
    passages = ["Anna runs over the lazy dog", *["the", "fox", "a", "dog", "it", ".", "?", "-"]]
    asked = [(question, passage) for passage in passages for question in ("who?", "where?", passage)]
    results: list[Any] = [find_results(made, ["\t".join(pair)])[0].result for pair in asked]
    for result, (_, passage) in zip(results, asked, strict=True):
        assert result.text == (passage[result.start : result.end] if result.start >= 0 else "")
    assert {result.start >= 0 for result in results} == {True, False}


def call(made: qkv.Model, task: Task, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """The JSON values of the results in Python, or the message of the error."""
    try:
        found = getattr(made, task.name)(list(inputs), **options)
    except UsageError as error:
        return str(error)
    results = [{"vector": one} for one in found.tolist()] if task.name == "embed" else [one.to_dict() for one in found]
    return json.loads(json.dumps(results))


def post(server: TestClient, task: Task, name: str, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """The results of a request, or the message of the error."""
    if task.needs_all_inputs:
        body = dict(zip(task.inputs, map(list, zip(*inputs, strict=True)), strict=True))
    else:
        body = {"texts": [list(one) if isinstance(one, tuple) else one for one in inputs]}
    answer = server.post(f"/{task.name}", json={"model": name, **body, **options})
    assert answer.status_code in (200, 400)
    return answer.json()["results"] if answer.status_code == 200 else answer.json()["error"]["message"]


def run(
    folder: Path,
    lines: Sequence[str],
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Any:
    """The results that `qkv run --json` prints for lines on stdin, or the message of the error."""
    flags = []
    for key, value in options.items():
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}={one}" for one in (value if isinstance(value, list) else [value])]
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO("\n".join(lines).encode())))
    capsys.readouterr()
    code = run_command(["run", str(folder), "--json", *flags])
    out, err = capsys.readouterr()
    if code:
        return err.splitlines()[-1].removeprefix("qkv: ")
    results = [json.loads(line) for line in out.splitlines()]
    assert [one.pop("input") for one in results] == list(lines)
    return results
