"""What the studio computes: its numbers equal torch's, switches are ablations, and bad requests are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from look_models import make_model

import qkv
from qkv.decode import GenerationOptions
from qkv.errors import UsageError
from qkv.inside import SparseAutoencoder, zero_ablate
from qkv.inside.autoencoder.model import AutoencoderConfig
from qkv.inside.look.search import describe_search
from qkv.page import unpack
from qkv.serve.studio.document import describe_model, trace_document
from qkv.serve.studio.neurons import find_examples
from qkv.serve.studio.options import StudioOptions
from qkv.serve.studio.requests import ExamplesRequest, SearchRequest, TraceRequest
from qkv.serve.studio.results import ResultCache
from qkv.serve.studio.runs import Runs
from qkv.serve.studio.search import run_search
from qkv.serve.studio.switches import make_edits
from qkv.serve.studio.words import leave_words_out
from qkv.tasks.study import StudyPlan, create
from qkv.values import read

FAMILIES = ("encoder", "decoder", "seq2seq")
TEXT = "the cat chased"


@pytest.fixture(scope="module")
def models() -> dict[str, qkv.Model]:
    return {family: make_model(family) for family in FAMILIES}


def trace(model: qkv.Model, request: TraceRequest, autoencoders: Any) -> dict[str, Any]:
    return trace_document(model, request, autoencoders, ResultCache())


def ask(**values: Any) -> TraceRequest:
    return read(TraceRequest, {"model": "m", "text": TEXT, **values})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_document_has_the_views_that_are_asked_for(models: dict[str, qkv.Model], family: str) -> None:
    model = models[family]
    for view in ("embeddings", "attention", "neurons", "mask", "lens", "next"):
        document = json.loads(json.dumps(trace(model, ask(views=[view]), {}), allow_nan=False))
        assert document["views"] == ["tokens", view]
        assert document["answer"]["text"] == document["answer"]["with_all"]
    for view in ("alignment", "word_alignment"):
        assert (view in trace(model, ask(views=[view]), {})["views"]) == (family == "seq2seq")


def test_words_are_aligned_as_in_translate(models: dict[str, qkv.Model]) -> None:
    for model, text in ((models["seq2seq"], TEXT), (qkv.load("en-fr"), "The girl reads a book.")):
        document = trace(model, ask(text=text, views=["word_alignment"]), {})
        found = document["word_alignment"]
        expected = model.translate(text, align=True, max_tokens=47)
        assert document["answer"]["text"] == expected.text
        assert [
            (found["source"][link["source"]], found["target"][link["target"]], link["weight"])
            for link in found["links"]
        ] == [(link.source, link.target, pytest.approx(link.weight, abs=1e-4)) for link in expected.alignment]
        assert "word_alignment" not in trace(model, ask(text=text, views=["attention"]), {})  # that panel stays fast
    pairs = {(found["source"][link["source"]], found["target"][link["target"]]) for link in found["links"]}
    assert {("girl", "fille"), ("reads", "lit"), ("book", "livre")} <= pairs  # cross-attention is one word off


def test_the_alignment_is_of_the_target_and_the_switches_that_are_shown(models: dict[str, qkv.Model]) -> None:
    model = models["seq2seq"]
    request = ask(target="le chat", views=["word_alignment"])
    found = trace(model, request, {})["word_alignment"]
    assert (found["source"], found["target"]) == (["the", "cat", "chased"], ["le", "chat"])
    without = trace(model, replace(request, off=("encoder.0",)), {})["word_alignment"]
    assert without["links"] != found["links"]
    off = tuple(f"decoder.{layer}.cross.{head}" for layer in range(2) for head in range(3))
    assert not trace(model, replace(request, off=off), {})["word_alignment"]["links"]  # nothing of the source is read
    long = trace(model, ask(text="&" * 33, target="le", views=["word_alignment"]), {})["word_alignment"]
    assert (len(long["source"]), long["links"]) == (33, [])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_of_the_next_token_equal_torch(models: dict[str, qkv.Model], family: str) -> None:
    model = models[family]
    logits = model.trace(TEXT, sites=["logits"])["logits"]
    described = trace(model, ask(views=["next"], position=2), {})["next"]
    expected, order = logits[2].sort(descending=True)
    np.testing.assert_allclose(unpack(described["logits"]), expected.numpy(), rtol=1e-5, atol=1e-6)
    assert described["ids"] == order.tolist()[:100]
    with pytest.raises(UsageError, match=r"position 500: the text has \d+ tokens"):
        trace(model, ask(views=["next"], position=500), {})


def test_one_head_is_asked_for_with_exact_numbers(models: dict[str, qkv.Model]) -> None:
    model = models["seq2seq"]
    document = trace(model, ask(views=["attention"], layer=1, head=2), {})
    recorded = model.trace(TEXT, sites=["*.q", "*.cross_q"])
    cross = next(one for one in document["attention"] if one["name"] == "cross")
    np.testing.assert_allclose(unpack(cross["details"][0]["q"]), recorded["decoder.1.cross_q"][2].numpy(), rtol=1e-5)
    assert not trace(model, ask(views=["attention"]), {})["attention"][0]["details"]


def test_switched_off_parts_are_ablated(models: dict[str, qkv.Model]) -> None:
    model = models["decoder"]
    off = ["decoder.0.head.1", "decoder.0.head.2", "decoder.1.mlp"]
    edits = [zero_ablate("decoder.0.z", heads=[1, 2]), zero_ablate("decoder.1.mlp_out")]
    document = trace(model, ask(off=off, views=["next"]), {})
    expected = model.trace(TEXT, sites=["logits"], edits=edits)["logits"][-1].sort(descending=True)[0]
    np.testing.assert_allclose(unpack(document["next"]["logits"]), expected.numpy(), rtol=1e-5, atol=1e-6)
    assert document["answer"]["text"] == model.generate(TEXT, max_tokens=16, edits=edits).text
    assert document["answer"]["with_all"] == model.generate(TEXT, max_tokens=16).text
    assert document["answer"]["text"] != document["answer"]["with_all"]  # a negative control: these parts matter


def test_answers_are_kept_until_the_weights_change() -> None:
    model, answers = make_model("decoder"), ResultCache()
    first = answers.find(model, TEXT, ())
    assert answers.find(model, TEXT, ()) is first
    assert answers.find(model, TEXT, ("decoder.0",)).text != first.text
    with torch.no_grad():
        next(model.network.parameters()).mul_(-1)
    assert answers.find(model, TEXT, ()).text == model.generate(TEXT, max_tokens=16).text != first.text


def test_a_switched_off_layer_leaves_the_residual_stream_alone(models: dict[str, qkv.Model]) -> None:
    for family, stack in (("encoder", "encoder"), ("seq2seq", "decoder")):
        model = models[family]
        values = model.trace(TEXT, sites=["*resid*"], edits=make_edits(model.config, [f"{stack}.0"]))
        np.testing.assert_array_equal(values[f"{stack}.0.resid_pre"], values[f"{stack}.0.resid_post"])
        assert not np.array_equal(values[f"{stack}.1.resid_pre"], values[f"{stack}.1.resid_post"])


@pytest.mark.parametrize(
    "name", ["decoder.2", "decoder.0.head.3", "decoder.0.cross.0", "encoder.0", "x", "decoder.0.mlp.1"]
)
def test_unknown_parts_are_refused(models: dict[str, qkv.Model], name: str) -> None:
    with pytest.raises(UsageError, match="this model has no part"):
        make_edits(models["decoder"].config, [name])


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_the_steps_of_a_search_are_those_of_the_whole_search(models: dict[str, qkv.Model], family: str) -> None:
    model, records = models[family], list[dict[str, Any]]()
    request = read(SearchRequest, {"model": "m", "text": TEXT, "beam": 3, "max_tokens": 5})
    run_search(model, request, records.append)
    options = GenerationOptions(beam=3, max_tokens=5, return_search_steps=True)
    result = model.generate(TEXT, beam=3, max_tokens=5, return_search_steps=True)
    whole = describe_search(result, options, model.tokenizer)
    assert [record["step"] for record in records[:-1]] == whole["steps"]
    assert records[-2]["hypotheses"] == whole["hypotheses"]
    assert records[-2]["best"] == whole["best"]
    assert records[-1] == {"stop_reason": whole["stop_reason"]}


def test_a_search_ends_when_its_client_goes_away(models: dict[str, qkv.Model]) -> None:
    records: list[dict[str, Any]] = []

    def report(record: dict[str, Any]) -> None:
        records.append(record)
        if len(records) == 2:
            raise ConnectionError

    request = read(SearchRequest, {"model": "m", "text": TEXT})
    with pytest.raises(ConnectionError):
        run_search(models["decoder"], request, report)
    assert len(records) == 2


def test_words_are_left_out_one_by_one(models: dict[str, qkv.Model]) -> None:
    model = models["seq2seq"]
    found = leave_words_out(model, ask())
    assert [(one["word"], one["text"]) for one in found["words"]] == [
        ("the", "cat chased"),
        ("cat", "the chased"),
        ("chased", "the cat"),
    ]
    for one in found["words"]:
        assert one["answer"] == model.generate(one["text"], max_tokens=47).text
    assert not leave_words_out(model, ask(text="cat"))["words"]  # nothing would be left


@pytest.mark.parametrize("family", FAMILIES)
def test_top_examples_of_a_neuron(models: dict[str, qkv.Model], family: str) -> None:
    model = models[family]
    stack = "decoder" if family != "encoder" else "encoder"
    body = {
        "model": "m",
        "text": TEXT,
        "site": f"{stack}.1.mlp_post",
        "unit": 3,
        "texts": ["le chat", "14 mai"],
        "off": [],
    }
    found = find_examples(model, read(ExamplesRequest, body), {})
    assert found["num_texts"] == 3
    values = [
        model.trace(text, sites=["*.1.mlp_post"])[f"{stack}.1.mlp_post"][:, 3].max()
        for text in ("le chat", "14 mai", TEXT)
    ]
    assert [one["value"] for one in found["examples"]] == pytest.approx(
        sorted(map(float, values), reverse=True), abs=1e-3
    )
    assert len(found["promoted"]) == 8


def test_features_of_an_autoencoder_are_units_of_a_text(models: dict[str, qkv.Model]) -> None:
    model = models["decoder"]
    autoencoder = SparseAutoencoder(AutoencoderConfig(width=16, features=32, k=4, site="decoder.0.resid_post"))
    studio = StudioOptions(autoencoders={"sae": autoencoder})
    found = studio.find_autoencoders(model.config)
    assert list(found) == ["sae"]
    assert not studio.find_autoencoders(models["encoder"].config)  # another stack
    document = trace(model, ask(views=["neurons", "features"]), found)
    layer = document["neurons"]["layers"][-1]
    expected = autoencoder.encode(model.trace(TEXT)["decoder.0.resid_post"]).detach()
    assert (layer["autoencoder"], layer["size"]) == ("sae", 32)
    assert layer["peaks"][0] == pytest.approx(float(expected.max()), abs=1e-3)
    body = {"model": "m", "text": TEXT, "site": "sae", "unit": layer["neurons"][0]}
    examples = find_examples(model, read(ExamplesRequest, body), found)
    assert examples["examples"][0]["value"] == pytest.approx(float(expected.max()), abs=1e-3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "must be an object"),
        ({"text": "a"}, "model is missing; it must be a string"),
        ({"model": "m", "text": 3}, "text = 3 must be a string"),
        ({"model": "m", "text": " "}, "text is empty"),
        ({"model": "m", "text": "a" * 9000}, "text must have at most 8,000 characters, and has 9,000; shorten it"),
        ({"model": "m", "text": "a", "of": []}, "unknown key 'of'; did you mean 'off'"),
        ({"model": "m", "text": "a", "off": [1]}, r"off\[0\] = 1 must be a string"),
        ({"model": "m", "text": "a", "views": ["lenses"]}, "did you mean 'lens'"),
        ({"model": "m", "text": "a", "layer": -1}, "layer = -1 must be at least 0"),
        ({"model": "m", "text": "a", "layer": True}, "layer = true must be an integer"),
    ],
)
def test_bad_requests_say_what_is_wrong(body: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(TraceRequest, body)


def test_a_text_of_too_many_tokens_is_refused(models: dict[str, qkv.Model]) -> None:
    long = make_model("decoder", max_positions=400)
    with pytest.raises(UsageError, match="the text has 300 tokens, and the studio shows at most 256; shorten it"):
        trace(long, ask(text="a" * 300), {})
    with pytest.raises(UsageError):  # longer than the model itself can read
        trace(models["decoder"], ask(text="a" * 60), {})


def test_a_pair_of_texts_has_a_tab_between_them(models: dict[str, qkv.Model]) -> None:
    document = trace(models["encoder"], ask(text="le\tchat"), {})
    assert "".join(document["sequences"]["encoder"]["texts"]) == "lechat"
    assert trace(models["decoder"], ask(text="le\tchat"), {})["notes"]  # a decoder reads the tab, which is unknown


def test_a_model_describes_itself(models: dict[str, qkv.Model]) -> None:
    described = describe_model(models["seq2seq"], "m", [], {})
    assert described["stacks"] == [
        {"name": "encoder", "layers": 2, "heads": 3, "width": 16, "cross": False},
        {"name": "decoder", "layers": 2, "heads": 3, "width": 16, "cross": True},
    ]
    mask = describe_model(models["encoder"], "m", [], {})
    assert mask["mask"] in mask["examples"][0]


def write_run(folder: Path, lines: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text("")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "metrics.jsonl"


def test_a_run_is_followed_line_by_line(tmp_path: Path) -> None:
    log = write_run(tmp_path / "runs" / "a", [{"kind": "step", "step": 10, "loss": 2.5}])
    runs = Runs([tmp_path / "runs"])
    listed = runs.list()
    assert [(one["name"], one["state"]) for one in listed] == [("a", "interrupted")]
    run = listed[0]["id"]
    first = runs.read(run, "")
    assert [record["step"] for record in first["records"]] == [10]
    with log.open("a") as file:
        file.write('{"kind": "step", "step": 20, "loss": 2.0}\n{"kind": "st')  # half a line is not read yet
    second = runs.read(run, first["cursor"])
    assert [record["step"] for record in second["records"]] == [20]
    assert not second["reset"]
    assert not runs.read(run, second["cursor"])["records"]
    with log.open("a") as file:
        file.write('ep", "step": 30, "loss": 1.0}\n{"kind": "end", "step": 30, "reason": "steps"}\n')
    third = runs.read(run, second["cursor"])
    assert [record["kind"] for record in third["records"]] == ["step", "end"]
    assert third["state"] == "finished"
    log.unlink()
    log.write_text('{"kind": "step", "step": 5, "loss": 3.0}\n')  # the log was written again, as after a resumption
    again = runs.read(run, third["cursor"])
    assert again["reset"]
    assert [record["step"] for record in again["records"]] == [5]


@pytest.mark.parametrize("run", ["../../etc", "", "0" * 16, "a"])
def test_only_listed_runs_are_read(tmp_path: Path, run: str) -> None:
    write_run(tmp_path / "a", [])
    with pytest.raises(UsageError, match="there is no run"):
        Runs([tmp_path]).read(run, "")


def test_damaged_logs_and_wrong_cursors_are_survived(tmp_path: Path) -> None:
    log = write_run(tmp_path / "a", [])
    log.write_bytes(b"\xff\xfe\n[1]\n{}\n" + b"x" * 30_000 + b'\n{"kind": "note", "step": 1, "text": "hello"}\n')
    runs = Runs([tmp_path])
    run = runs.list()[0]["id"]
    for cursor in ("", "x:y", "1:-5", ":", f"{log.stat().st_ino}:999999999", "9" * 50):
        assert [record["text"] for record in runs.read(run, cursor)["records"]] == ["hello"]


def test_runs_of_a_study_have_its_table_and_its_verdicts(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a\n")
    recipe = 'data.train = "text.txt"\nobjective.kind = "causal_lm"\ntrain.steps = 1\n'
    (tmp_path / "base.toml").write_text(recipe)
    vary = {"model.feedforward": ("gelu", "swiglu")}
    create(tmp_path / "runs" / "s", StudyPlan(recipe=str(tmp_path / "base.toml"), vary=vary, seeds=2))
    for name in ("s/gelu-0", "s/swiglu-1", "alone"):
        write_run(tmp_path / "runs" / name, [{"kind": "step", "step": 1, "loss": 2.0}])
    runs = Runs([tmp_path / "runs"])
    ids = {one["name"]: one["id"] for one in runs.list()}
    assert {one["name"]: one["study"] for one in runs.list()} == {"s/gelu-0": "s", "s/swiglu-1": "s", "alone": None}
    study = runs.read_study(ids["s/swiglu-1"])
    assert study["variants"] == {ids["s/gelu-0"]: "gelu", ids["s/swiglu-1"]: "swiglu"}
    assert [row[0] for row in study["table"]] == ["", "gelu", "swiglu"]
    assert any("0 of 4 runs are finished" in note for note in study["notes"])
    with pytest.raises(UsageError, match="does not belong to a study"):
        runs.read_study(ids["alone"])
