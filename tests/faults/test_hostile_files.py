"""Files that no one should write: pipes, devices, symlink loops, numbers without end, integer weights.

Each of them is refused with a `QkvError` of bounded length, without hanging and without much memory.
"""

import bz2
import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from task_models import seq2seq

import qkv
from qkv.data.readers import read
from qkv.errors import MAX_MESSAGE_CHARACTERS, QkvError, UsageError, shorten
from qkv.files import MAX_FILE_BYTES, open_file, parse_json, read_bytes, read_json, to_path
from qkv.store.word_vectors import read_word_vectors
from qkv.tasks.prepare.prepare import prepare
from qkv.tasks.prepare.sources import check_cache_folder
from qkv.text import Tokenizer
from qkv.text.formats.growth import list_replacements, max_growth
from qkv.train.checkpoint.files import DamagedCheckpoint, read_checksummed
from qkv.train.recipe import recipe_file
from qkv.train.recipe.schema import DataSection, Recipe, TrainSection
from qkv.train.recipe.toml import MAX_KEY_PARTS, parse_toml

BAD_FILES = ["pipe", "device", "loop", "folder"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder-decoder with its tokenizer."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    seq2seq().save(folder)
    return folder


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    """A copy of the model that a test may change."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in saved.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def replace_file(path: Path, kind: str) -> Path:
    """Put something that is not a regular file at a path."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path.name)
    return path


def change_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


# -------------------------------------------------------------------- what is not a regular file


@pytest.mark.parametrize("kind", BAD_FILES)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_a_model_folder_with_it_is_refused(name: str, kind: str, model: Path) -> None:
    replace_file(model / name, kind)
    with pytest.raises(QkvError, match=str(model)):
        qkv.load(model)


@pytest.mark.parametrize("kind", BAD_FILES)
def test_every_reader_refuses_it(kind: str, tmp_path: Path) -> None:
    path = replace_file(tmp_path / "a.txt", kind)
    for call in (
        open_file,
        read_json,
        read_checksummed,
        Tokenizer.load,
        recipe_file.read,
        lambda one: read_word_vectors(one, {"a": 0}, 2),
        lambda one: list(read(one)),
    ):
        with pytest.raises(QkvError):
            call(path)


def test_a_folder_that_links_to_itself(tmp_path: Path) -> None:
    path = replace_file(tmp_path / "model", "loop")
    for call in (qkv.load, recipe_file.read, Tokenizer.load):
        with pytest.raises(QkvError, match="model"):
            call(path)


@pytest.mark.parametrize("name", ["a\0b", "~no-such-user/model"])
def test_a_name_that_cannot_be_a_path(name: str, tmp_path: Path) -> None:
    for call in (to_path, qkv.load, recipe_file.read, qkv.new("bert-tiny").save):
        with pytest.raises(UsageError, match=r"path"):
            call(name)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(QkvError, match="at most 536,870,912 are read"):
        read_bytes(path)


# -------------------------------------------------------------------- files that grow, links, names that occur twice


def test_a_block_that_expands_a_million_times_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.bz2"
    path.write_bytes(bz2.compress(b"\0" * 2**28))
    tracemalloc.start()
    with pytest.raises(QkvError, match="more than 200 times as many"):
        list(read(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * 2**20


@pytest.mark.parametrize(("part", "steps"), [("normalizer", "normalizers"), ("decoder", "decoders")])
def test_a_tokenizer_that_makes_texts_endless_is_refused(part: str, steps: str, model: Path) -> None:
    replace_a = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    nested = {"type": "Sequence", steps: [{"type": "Sequence", steps: [replace_a] * 29}, replace_a]}
    change_json(model / "tokenizer.json", **{part: nested})
    with pytest.raises(QkvError, match=f"steps of its {part} that replace text can make a text 1,000,000,000 times"):
        qkv.load(model)


@pytest.mark.parametrize(
    ("replacements", "growth"),
    [
        ([("String", " ", "▁")] * 40, 1),
        ([("String", "…", "..."), ("String", "—", "--"), ("String", "½", "1/2")], 3),
        ([("String", "a", "bb"), ("String", "b", "cc"), ("String", "c", "ddd")], 12),
        ([("String", "ab", "abab"), ("String", "ba", "x")], 2),
        ([("Regex", " {2,}", "▁")] * 40, 1),
        ([("Regex", "x*", "ab")] * 2, 9),
        ([("Regex", ".", "ab"), ("String", "c", "dddd")], 4),
        ([("String", "", "a")] * 3, 8),
    ],
)
def test_the_growth_of_replacements(replacements: list[tuple[str, str, str]], growth: int) -> None:
    steps = [{"type": "Replace", "pattern": {kind: text}, "content": content} for kind, text, content in replacements]
    assert max_growth(list_replacements({"type": "Sequence", "normalizers": steps})) == growth


def test_a_chat_template_that_links_to_another_folder_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("{{ messages }} secret")
    (model / "chat_template.jinja").symlink_to(tmp_path / "private")
    with pytest.raises(QkvError, match=r"links to .*private, which is not in this folder"):
        qkv.load(model)


def test_the_links_of_the_hub_s_cache_are_followed(model: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc").write_text("{{ messages[0]['content'] }}")
    folder = tmp_path / "snapshots" / "main"
    folder.parent.mkdir()
    model.rename(folder)
    (folder / "chat_template.jinja").symlink_to("../../blobs/abc")
    assert qkv.load(folder).tokenizer.config["chat_template"].startswith("{{")  # type: ignore[union-attr]


def test_a_tensor_that_is_stored_twice_is_refused(model: Path) -> None:
    path = model / "model.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].decode().rstrip()
    name, entry = next((name, entry) for name, entry in json.loads(header).items() if name != "__metadata__")
    header = header[:-1] + f", {json.dumps(name)}: {json.dumps(entry)}}}"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + data[8 + size :])
    with pytest.raises(QkvError, match=f"the tensor {name} occurs 2 times"):
        qkv.load(model)


def test_a_tensor_in_two_files_is_refused(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    (model / "model-00002-of-00002.safetensors").write_bytes((model / "model-00001-of-00002.safetensors").read_bytes())
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(QkvError, match="is also in another file"):
        qkv.load(model)


def test_a_recipe_cannot_fill_a_folder_of_other_files_with_its_cache(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root")
    data = {"train": str(tmp_path / "a.txt"), "cache_dir": str(tmp_path)}
    (tmp_path / "a.txt").write_text("a text\n" * 100)
    with pytest.raises(UsageError, match="contains other files, not tokenised data"):
        prepare(Recipe(data=DataSection(**data), train=TrainSection(steps=1)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "passwd"]
    for entry in ("contents.json", "tokenizers"):
        folder = tmp_path / f"with {entry}"
        folder.mkdir()
        (folder / entry).touch()
        (folder / "other").touch()
        check_cache_folder(folder)
    check_cache_folder(tmp_path / "missing")


# -------------------------------------------------------------------- numbers and nesting


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1' + "0" * 5000 + "}", "more than 300 digits"),
        ('{"a": -1' + "0" * 300 + "}", "more than 300 digits"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_with_bounds(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(QkvError, match=reason) as caught:
        read_json(tmp_path / "a.json")
    assert len(str(caught.value)) < 300
    assert parse_json('{"a": [18446744073709551615, -9223372036854775808]}') == {"a": [2**64 - 1, -(2**63)]}
    assert isinstance(parse_json("-9223372036854775809"), float)


def test_the_number_that_stands_for_no_limit_is_read(model: Path) -> None:
    """Many published tokenizer_config.json files have it."""
    change_json(model / "tokenizer_config.json", model_max_length=1000000000000000019884624838656)
    qkv.load(model)


def test_but_it_is_no_whole_number(model: Path) -> None:
    change_json(model / "config.json", pad_token_id=10**30)
    with pytest.raises(QkvError, match="pad_token_id = 1e\\+30 must be an integer"):
        qkv.load(model)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a" + ".a" * 50_000 + " = 1", "more than 32 parts"),
        ("x = {" + '"a" . ' * 50_000 + "a = 1}", "more than 32 parts"),
        ("[" + "a." * 50_000 + "a]", "more than 32 parts"),
        ("a = 1" + "0" * 5000, "thousands of digits"),
        ("a = 9223372036854775808", "more than 64 bits"),
        ("a = " + "[" * 50_000, "nested too deeply"),
        ('a = ["\\u0000"]', "NUL"),
        ('a = "' + '\\"' * 200_000, "Unterminated"),
    ],
)
def test_toml_with_bounds(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(UsageError, match=reason):
        recipe_file.read(tmp_path / "a.toml")


def test_dots_in_strings_and_comments_are_not_parts_of_keys() -> None:
    dots = "." * (2 * MAX_KEY_PARTS)
    text = f'a = \'{dots}\' # {dots}\nb = """{dots}\n{dots}"""\nc = [{"1.5, " * 100}]'
    assert parse_toml(text)["b"] == f"{dots}\n{dots}"


# -------------------------------------------------------------------- long values in messages


def test_a_long_value_is_cut() -> None:
    assert shorten("abc", 3) == "abc"
    assert len(shorten("a" * 100_000)) < 150
    assert len(str(QkvError("a" * 10**6 + "; the advice"))) < MAX_MESSAGE_CHARACTERS + 100
    assert str(QkvError("a" * 10**6 + "; the advice")).endswith("; the advice")


def test_a_config_with_a_long_value_is_refused_in_a_few_words(model: Path) -> None:
    change_json(model / "config.json", pad_token_id="x" * 100_000)
    with pytest.raises(QkvError, match="must be an integer") as caught:
        qkv.load(model)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "override", ["model.width={}", "objective.kind={}", "{}=1", "train.{}=1", "{}", "train.lr=[{}]"]
)
def test_a_recipe_with_a_long_value_is_refused_in_a_few_words(override: str) -> None:
    with pytest.raises(UsageError) as caught:
        recipe_file.read("dates", [override.format("x" * 100_000)])
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("kind", "reason"), [("pipe", "not a regular file"), ("device", "not a regular"), ("loop", "symbolic links")]
)
def test_a_recipe_that_is_no_file_is_named_as_such(kind: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(QkvError, match=reason):
        recipe_file.read(replace_file(tmp_path / "a.toml", kind))


# -------------------------------------------------------------------- weights


@pytest.mark.parametrize("dtype", [b"I32", b"U32"])
def test_integers_are_not_weights(dtype: bytes, model: Path) -> None:
    path = model / "model.safetensors"
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = data[8 : 8 + size].replace(b'"F32"', b'"' + dtype + b'"')
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
    for device in ("cpu", "meta"):
        with pytest.raises(QkvError, match=f"is stored as {dtype.decode()}, but weights are floating-point"):
            qkv.load(model, device=device)


# -------------------------------------------------------------------- tokenizers


def change_tokenizer(model: Path, change: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads((model / "tokenizer.json").read_text())
    change(values)
    (model / "tokenizer.json").write_text(json.dumps(values))


def set_id(token_id: int) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        values["model"]["vocab"]["z"] = token_id

    return change


@pytest.mark.parametrize(("token_id", "reason"), [(2**30, "may have ids up to 65,728"), (5, "both have the id 5")])
def test_an_id_that_no_vocabulary_needs(token_id: int, reason: str, model: Path) -> None:
    change_tokenizer(model, set_id(token_id))
    with pytest.raises(QkvError, match=reason):
        qkv.load(model)
    (model / "vocab.json").write_text((model / "tokenizer.json").read_text())
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    (model / "vocab.json").write_text(json.dumps(vocabulary))
    (model / "merges.txt").write_text("t h\n")
    (model / "tokenizer.json").unlink()
    with pytest.raises(QkvError, match=reason):
        Tokenizer.load(model)


def test_a_template_without_ids_adds_nothing(model: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        for token in values["post_processor"]["special_tokens"].values():
            token["ids"] = token["tokens"] = []

    change_tokenizer(model, change)
    assert Tokenizer.load(model).encode("the") == Tokenizer.load(model).encode("the", add_special_tokens=False)


def test_a_template_with_an_id_that_no_token_has_is_refused_at_load(model: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        for token in values["post_processor"]["special_tokens"].values():
            token["ids"] = [2**31]

    change_tokenizer(model, change)
    with pytest.raises(QkvError, match="its template adds the id 2147483648, which no token has"):
        qkv.load(model)


@pytest.mark.parametrize("entry", [{"content": 5}, {}, [], None])
def test_an_added_token_of_the_wrong_type(entry: object, model: Path) -> None:
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    (model / "vocab.txt").write_text("\n".join(vocabulary) + "\n[UNK]")
    (model / "tokenizer.json").unlink()
    (model / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"x": entry}}))
    with pytest.raises(QkvError, match="tokenizer files cannot be used"):
        Tokenizer.load(model)


def test_a_text_as_bytes_is_refused(saved: Path) -> None:
    loaded = qkv.load(saved)
    for prompts in (b"x", bytearray(b"x"), [b"x"], memoryview(b"x")):
        with pytest.raises(UsageError, match="expected a text or token ids"):
            loaded.generate(prompts)


# -------------------------------------------------------------------- configs


def test_a_first_token_outside_the_vocabulary_is_refused_at_load(model: Path) -> None:
    change_json(model / "config.json", decoder_start_token_id=10**6)
    with pytest.raises(QkvError, match="decoder_start_token_id = 1000000 is not in the vocabulary"):
        qkv.load(model)


def test_other_special_tokens_outside_the_vocabulary_are_dropped_with_a_note(model: Path) -> None:
    change_json(model / "config.json", eos_token_ids=[1, 10**6], pad_token_id=-1)
    loaded = qkv.load(model)
    assert (loaded.config.eos_token_ids, loaded.config.pad_token_id) == ((1,), None)
    assert len(loaded.notes) == 2
    loaded.generate("the fox", max_tokens=4, min_tokens=3)


def test_a_manifest_that_is_a_pipe_is_a_damaged_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpoint, match="not a regular file"):
        read_checksummed(replace_file(tmp_path / "manifest.json", "pipe"))
