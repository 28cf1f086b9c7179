"""`qkv look`: the heat map, the files that it writes, and its errors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from look_models import make_model

import qkv
from qkv import cli
from qkv.page import unpack
from qkv.render.heatmap import draw_heatmap


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for family in ("encoder", "decoder", "seq2seq"):
        make_model(family).save(folder / family)
    return folder


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize("family", ["encoder", "decoder", "seq2seq"])
def test_look_writes_a_page_and_prints_a_heat_map(models: Path, family: str, run_qkv: Any) -> None:
    caught = run_qkv(["look", str(models / family), "the cat"])
    assert "look.html: written" in caught.err
    assert ("Cross-attention" if family == "seq2seq" else "self-attention") in caught.out
    assert Path("look.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_prints_the_numbers_and_writes_nothing(models: Path, run_qkv: Any) -> None:
    arguments = ["look", str(models / "seq2seq"), "the cat", "--target", "le chat", "--layers", "1", "--json"]
    document = json.loads(run_qkv(arguments).out)
    assert document["version"] == 1
    assert "".join(document["sequences"]["decoder"]["texts"][1:]) == "le chat"
    assert all(one["layers"] == [1] for one in document["attention"])
    assert document["views"].count("alignment") == document["views"].count("search") == 1
    assert not list(Path.cwd().iterdir())


def test_unknown_tokens_are_counted(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(["look", str(models / "encoder"), "the Ω"]) == 0
    note = "1 of 5 tokens of the text are not in the vocabulary."
    assert note in capsys.readouterr().err
    assert note in Path("look.html").read_text(encoding="utf-8")


def test_the_mask_token_of_another_model_is_noted(models: Path, run_qkv: Any) -> None:
    note = "[MASK] is plain text for this model; its mask is <mask>."
    assert note in run_qkv(["look", str(models / "encoder"), "the [MASK]"]).err
    assert "plain text" not in run_qkv(["look", str(models / "encoder"), "the <mask>"]).err


def test_the_page_is_written_even_if_nobody_reads_the_heat_map(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(look: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("qkv.cli.look.print_look", fail)
    monkeypatch.setattr("qkv.cli.os.dup2", lambda *_: None)
    assert cli.run_command(["look", str(models / "encoder"), "the"]) == 0
    assert Path("look.html").exists()


def test_a_beam_of_one_means_no_search(models: Path, run_qkv: Any) -> None:
    captured = run_qkv(["look", str(models / "decoder"), "the", "--beam", "1", "--json"])
    assert "search" not in json.loads(captured.out)["views"]


def test_a_text_that_fills_all_positions_has_no_search(models: Path, run_qkv: Any) -> None:
    document = json.loads(run_qkv(["look", str(models / "decoder"), "a" * 48, "--json"]).out)
    assert "search" not in document["views"]
    assert document["notes"] == ["There is no beam search: the text fills all 48 positions of the model."]


@pytest.mark.parametrize("heads", [[], ["--layers", "0", "--heads", "1"]])
def test_an_svg_shows_the_tokens_as_text(models: Path, heads: list[str]) -> None:
    assert cli.run_command(["look", str(models / "encoder"), "<b>&amp;", "--out", "new/heads.svg", *heads]) == 0
    picture = ElementTree.parse("new/heads.svg").getroot()
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert ("<" in texts) == bool(heads)  # only a single head has room for its tokens
    assert "b" not in {element.tag for element in picture.iter()}


def test_mask_packs_texts_and_pads_them(models: Path, run_qkv: Any) -> None:
    arguments = ["look", str(models / "decoder"), "cat", "mouse", "--mask", "--length", "10"]
    assert "2 padding positions attend to no key" in run_qkv(arguments).out
    mask = json.loads(run_qkv([*arguments, "--json"]).out)["attention"][0]["masks"][0]
    assert (unpack(mask["reasons"]) == 0).sum() == 3 * 4 // 2 + 5 * 6 // 2
    assert mask["fully_masked_queries"] == mask["padding_queries"] == [8, 9]


def test_layers_that_only_one_stack_has(tmp_path: Path, run_qkv: Any) -> None:
    model = make_model("seq2seq")
    assert model.config.encoder is not None
    encoder = replace(model.config.encoder, layers=3)
    qkv.new(replace(model.config, encoder=encoder), tokenizer=model.tokenizer).save(tmp_path / "deep-encoder")
    captured = run_qkv(["look", "deep-encoder", "the cat", "--layers", "2", "--out", "look.json"])
    assert "Encoder self-attention, layer 2" in captured.out
    document = json.loads(Path("look.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in document["attention"]] == ["encoder"]
    assert "alignment" not in document["views"]
    decoder = replace(model.config.encoder, layers=3)
    qkv.new(replace(model.config, decoder=decoder), tokenizer=model.tokenizer).save(tmp_path / "deep-decoder")
    assert "a --target for each text" in run_qkv(["look", "deep-decoder", "the cat", "--mask", "--layers", "2"], 2).err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["decoder"], "no text to look at"),
        (["decoder", "a", "b"], "a page shows one text"),
        (["decoder", " "], "the text is empty"),
        (["decoder", "a" * 60], "60 tokens are more than the 48 positions"),
        (["decoder", "the", "--target", "cat"], "is for an encoder-decoder"),
        (["decoder", "the", "--layers", "2"], "this model has layers 0 … 1"),
        (["decoder", "the", "--heads", "0-9"], "--heads 3: this model has heads 0 … 2"),
        (["decoder", "the", "--layers", "one"], "'one' is not a number; write it like 0,2 or 4-7"),
        (["decoder", "the", "--layers", "3-1"], "counts down"),
        (["decoder", "the", "--out", "look.png"], "must end in .html"),
        (["decoder", "the", "--mask", "--out", "look.svg"], "a mask is drawn as a page"),
        (["decoder", "the", "--length", "9"], "--length pads the mask"),
        (["decoder", "the", "--mask", "--length", "2"], "the texts have 3 tokens"),
        (
            ["decoder", "the", "--mask", "--length", "2000"],
            "the packed sequence has 2,000 tokens",
        ),
        (["seq2seq", "the", "cat", "--mask", "--target", "le"], "1 targets for 2 texts"),
        (["decoder", "the", "--beam", "0"], "--beam must be >= 1"),
    ],
)
def test_wrong_calls_are_clear_errors(models: Path, arguments: list[str], words: str, run_qkv: Any) -> None:
    assert words in run_qkv(["look", str(models / arguments[0]), *arguments[1:]], 2).err
    assert not list(Path.cwd().iterdir())


def test_wide_characters_keep_their_columns() -> None:
    lines = draw_heatmap(np.eye(2), ["五月", "a"], ["五", "a"], width=40)
    assert [line.plain for line in lines[:3]] == ["     五a ", "五月 ██  ", "   a   ██"]


def test_a_heat_map_says_which_keys_do_not_fit() -> None:
    lines = draw_heatmap(np.eye(3), ["a", " b", "\x1b"], ["a", " b", "\x1b"], width=8)
    assert [line.plain for line in lines[-5:-2]] == [" a ██  ", "␣b   ██", " ␛     "]
    assert lines[-1].plain == "1 of 3 keys do not fit; the page has them all"
