"""Weights that are missing, of the wrong shape, truncated, damaged or not safetensors are refused with one error."""

import io
import json
import pickle
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv.store.huggingface import MAX_LISTED
from qkv.store.weights import INDEX_FILE, WEIGHTS_FILE, Weights, write_weights


def rewrite(folder: Path, change) -> None:
    """Rewrite a folder's tensors with changes."""
    tensors = load_file(folder / WEIGHTS_FILE)
    change(tensors)
    save_file(tensors, folder / WEIGHTS_FILE)


def header_length(data: bytes) -> int:
    return struct.unpack("<Q", data[:8])[0]


# ── Tensors that do not fit ──────────────────────────────────────────────────────────────────────────────────────

MISSING, MISSHAPEN = (
    {
        "own": ("encoder.blocks.0.ffn.up.weight", "encoder.blocks.1.ffn.down.bias"),
        "foreign": ("bert.encoder.layer.0.intermediate.dense.weight", "bert.encoder.layer.1.output.dense.bias"),
    },
    "of the wrong shape",
)


@pytest.mark.parametrize("kind", MISSING)
def test_one_error_lists_all_mismatches(kind, request, refused):
    folder = request.getfixturevalue(kind)
    missing, misshapen = MISSING[kind]

    def change(tensors):
        del tensors[missing]
        tensors[misshapen] = torch.zeros(7)
        tensors["stranger.weight"] = torch.zeros(2, 2)

    rewrite(folder, change)
    text = refused(folder, str(folder), "1 tensors missing", f"1 tensors {MISSHAPEN}", "1 tensors unexpected")
    for name in (missing, misshapen, "stranger.weight"):
        assert name.removeprefix("bert.") in text
    assert "(7,)" in text
    assert "(8,)" in text


@pytest.mark.parametrize("kind", MISSING)
def test_a_long_list_is_counted_and_shortened(kind, request, refused):
    folder = request.getfixturevalue(kind)
    rewrite(folder, lambda tensors: [tensors.pop(name) for name in list(tensors)[:15]])
    text = refused(folder, "15 tensors missing", "…")
    assert text.count(".weight") + text.count(".bias") == MAX_LISTED


def test_a_part_of_a_fused_matrix_with_a_wrong_shape_is_refused(foreign, refused):
    """Query, key and value are three tensors in the folder and one in our network; each of the three is checked."""
    name = "bert.encoder.layer.0.attention.self.key.weight"
    rewrite(foreign, lambda tensors: tensors.update({name: torch.zeros(8, 5)}))
    refused(foreign, MISSHAPEN)


def test_a_config_of_another_size_is_refused(either, edit, refused):
    path = either / "config.json"
    path.write_text(path.read_text().replace("300", "301"))
    refused(either, MISSHAPEN, "(300, 8)", "(301, 8)")


def test_other_heads_are_not_read_and_noted(foreign, model):
    rewrite(foreign, lambda tensors: tensors.update({"classifier.weight": torch.zeros(2, 8)}))
    loaded = qkv.load(foreign)
    assert loaded.config == model.config
    assert [note for note in loaded.notes if "other heads" in note and "classifier.weight" in note] == loaded.notes


def test_buffers_of_old_releases_are_ignored(foreign):
    rewrite(foreign, lambda tensors: tensors.update({"bert.embeddings.position_ids": torch.arange(16)[None]}))
    assert qkv.load(foreign).notes == []


def test_old_names_of_norms_are_read(foreign, model, same):
    """TensorFlow's gamma and beta, as in the first BERT folders."""

    def change(tensors):
        for name in [name for name in tensors if "LayerNorm" in name]:
            new = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[new] = tensors.pop(name)

    rewrite(foreign, change)
    assert same(foreign, model)


def test_remote_code_is_not_run_and_noted(foreign, edit, tmp_path):
    ran = tmp_path / "ran"
    (foreign / "evil.py").write_text(f"open({str(ran)!r}, 'w')")
    edit(foreign, auto_map={"AutoModel": "evil.Model", "AutoConfig": "evil.Config"})
    notes = qkv.load(foreign).notes
    assert len(notes) == 1
    assert "auto_map" in notes[0]
    assert not ran.exists()


def test_half_precision_is_kept_on_load(foreign):
    rewrite(foreign, lambda tensors: tensors.update({name: t.bfloat16() for name, t in tensors.items()}))
    assert {p.dtype for p in qkv.load(foreign).network.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in qkv.load(foreign, dtype=torch.float32).network.parameters()} == {torch.float32}


def test_a_loaded_model_does_not_change_with_its_file(either):
    """Overwriting the file in place (`cp new/model.safetensors old/`) must not change a loaded model."""
    loaded = qkv.load(either)
    before = {name: p.clone() for name, p in loaded.network.named_parameters()}
    data = (either / WEIGHTS_FILE).read_bytes()
    with (either / WEIGHTS_FILE).open("r+b") as file:
        file.seek(8 + header_length(data))
        file.write(b"\xff" * (len(data) - 8 - header_length(data)))
    assert all(torch.equal(before[name], p) for name, p in loaded.network.named_parameters())


# ── Damaged files ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "cut",
    [
        lambda data: 0,
        lambda data: 1,
        lambda data: 7,
        lambda data: 8,
        lambda data: 8 + header_length(data) // 2,
        lambda data: 8 + header_length(data),
        lambda data: 8 + header_length(data) + 1,
        lambda data: len(data) // 2,
        lambda data: len(data) - 1,
    ],
    ids=["empty", "1 byte", "7 bytes", "length only", "in header", "no data", "1 byte of data", "half", "last byte"],
)
def test_a_truncated_file_is_refused(either, cut, refused):
    data = (either / WEIGHTS_FILE).read_bytes()
    (either / WEIGHTS_FILE).write_bytes(data[: cut(data)])
    refused(either, WEIGHTS_FILE, "not a complete safetensors file")


def test_a_file_with_trailing_bytes_is_refused(either, refused):
    with (either / WEIGHTS_FILE).open("ab") as file:
        file.write(b"tail")
    refused(either, WEIGHTS_FILE, "not a complete safetensors file")


def test_no_flipped_bit_of_a_header_changes_a_tensor(tmp_path):
    """Flip each bit of a small header: the file is refused, or names and shapes differ, or nothing has changed."""
    save_file({"a": torch.arange(3.0), "b": torch.ones(2, 2, dtype=torch.float64)}, tmp_path / WEIGHTS_FILE)
    tensors = {name: tensor.clone() for name, tensor in load_file(tmp_path / WEIGHTS_FILE).items()}
    whole, data = Weights(tmp_path), (tmp_path / WEIGHTS_FILE).read_bytes()
    seen = {"refused": 0, "changed": 0, "same": 0}
    for bit in range(8 * (8 + header_length(data))):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << (bit % 8)
        (tmp_path / WEIGHTS_FILE).write_bytes(broken)
        try:
            read = Weights(tmp_path)
        except qkv.QkvError:
            seen["refused"] += 1
            continue
        if (read.shapes, read.dtypes) != (whole.shapes, whole.dtypes):
            seen["changed"] += 1
        else:
            assert all(torch.equal(read.get(name), tensors[name]) for name in tensors)
            seen["same"] += 1
    assert seen["refused"] > seen["changed"] > 0, seen


def test_a_flipped_bit_of_a_header_is_refused(either):
    """Flip one bit of every thirteenth byte, except in the text of the metadata and in the spaces at the end."""
    data = (either / WEIGHTS_FILE).read_bytes()
    start = data.index(b'"__metadata__"')
    free = range(start, data.index(b"}", start) + 1)
    end = 8 + len(data[8 : 8 + header_length(data)].rstrip())
    for index in [index for index in range(0, end, 13) if index not in free]:
        broken = bytearray(data)
        broken[index] ^= 1 << (index % 7)
        (either / WEIGHTS_FILE).write_bytes(broken)
        with pytest.raises(qkv.QkvError):
            qkv.load(either, device="meta")


@pytest.mark.parametrize(
    "content", [b"not a model\n" * 9, b"\xff" * 64, b"\x00" * 64, b"<html><body>404</body></html>"]
)
def test_other_content_under_the_name_is_refused(either, content, refused):
    (either / WEIGHTS_FILE).write_bytes(content)
    refused(either, WEIGHTS_FILE, "not a complete safetensors file")


def test_a_folder_instead_of_the_file_is_refused(either, refused):
    (either / WEIGHTS_FILE).unlink()
    (either / WEIGHTS_FILE).mkdir()
    refused(either, WEIGHTS_FILE)


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580])
def test_a_safetensors_file_that_looks_like_a_pickle_is_read(length, tmp_path):
    """A file starts with the length of its header. The bytes of 640, for example, look like the start of a pickle."""
    weights = {"a": torch.arange(3.0)}
    save_file(weights, tmp_path / WEIGHTS_FILE)
    data = (tmp_path / WEIGHTS_FILE).read_bytes()
    header = data[8 : 8 + header_length(data)]
    data = struct.pack("<Q", length) + header.ljust(length) + data[8 + len(header) :]
    (tmp_path / WEIGHTS_FILE).write_bytes(data)
    assert torch.equal(Weights(tmp_path).get("a"), weights["a"])


# ── Pickles ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Evil:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def evil(path: Path, how: str) -> bytes:
    if how == "torch":
        buffer = io.BytesIO()
        torch.save({"weight": Evil(path)}, buffer)
        return buffer.getvalue()
    return pickle.dumps({"weight": Evil(path)}, protocol=int(how))


PICKLES = ["torch", *(str(p) for p in range(pickle.HIGHEST_PROTOCOL + 1))]


@pytest.mark.parametrize("how", PICKLES)
def test_the_pickle_would_do_harm(how, tmp_path):
    """Control: unpickled, it creates the file."""
    data = evil(tmp_path / "harm", how)
    if how == "torch":
        torch.load(io.BytesIO(data), weights_only=False)
    else:
        pickle.loads(data)
    assert (tmp_path / "harm").exists()


@pytest.mark.parametrize("how", PICKLES)
def test_a_pickle_under_the_name_of_safetensors_is_not_opened(either, how, tmp_path, refused):
    (either / WEIGHTS_FILE).write_bytes(evil(tmp_path / "harm", how))
    text = refused(either, WEIGHTS_FILE)
    assert not (tmp_path / "harm").exists()
    if how not in "01":  # the oldest protocols are text and are refused because they are not safetensors
        assert "pickle" in text


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "weights.ckpt", "model.pkl"])
def test_a_pickle_alone_is_named_and_not_opened(either, name, tmp_path, refused):
    (either / WEIGHTS_FILE).unlink()
    (either / name).write_bytes(evil(tmp_path / "harm", "torch"))
    refused(either, name, "pickle", "not opened", "safetensors")
    assert not (tmp_path / "harm").exists()


def test_a_pickle_beside_safetensors_is_left_alone(either, model, tmp_path, same):
    (either / "pytorch_model.bin").write_bytes(evil(tmp_path / "harm", "torch"))
    assert same(either, model)
    assert not (tmp_path / "harm").exists()


def test_a_pickle_among_the_shards_is_not_opened(either, tmp_path, refused):
    names = shard(either)
    (either / names[1]).write_bytes(evil(tmp_path / "harm", "torch"))
    refused(either, names[1], "pickle")
    assert not (tmp_path / "harm").exists()


def test_a_folder_without_weights_is_refused(either, refused):
    (either / WEIGHTS_FILE).unlink()
    refused(either, str(either), "no weights", WEIGHTS_FILE)


# ── Several files ────────────────────────────────────────────────────────────────────────────────────────────────


def shard(folder: Path) -> list[str]:
    """Rewrite a folder's weights as several files."""
    tensors = load_file(folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).unlink()
    return write_weights(folder, tensors, max_shard_bytes=3_000)[:-1]


def point(folder: Path, name: str) -> None:
    """Change the file of one tensor in the index."""
    index = json.loads((folder / INDEX_FILE).read_text())
    first = next(iter(index["weight_map"]))
    index["weight_map"][first] = name
    (folder / INDEX_FILE).write_text(json.dumps(index))


def test_intact_shards_load(either, model, same):
    """Control for the tests below."""
    assert len(shard(either)) > 2
    assert same(either, model)


def test_a_missing_shard_is_named(either, refused):
    names = shard(either)
    (either / names[1]).unlink()
    refused(either, names[1], f"1 of {len(names)} weight files are missing")


def test_a_truncated_shard_is_named(either, refused):
    names = shard(either)
    data = (either / names[2]).read_bytes()
    (either / names[2]).write_bytes(data[:-1])
    refused(either, names[2], "not a complete safetensors file")


@pytest.mark.parametrize("how", ["../{}", "/{}", "sub/../../{}", "..", ".", "", "sub/{}"])
def test_paths_of_an_index_stay_inside_the_folder(either, how, tmp_path, refused):
    names = shard(either)
    outside = tmp_path / names[0]
    shutil.move(either / names[0], outside)
    name = how.format(names[0]) if not how.startswith("/") else str(outside)
    point(either, name)
    refused(either, INDEX_FILE, repr(name), "is not a file in this folder")


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[]", "{", ""])
def test_an_invalid_index_is_refused(either, content, refused):
    shard(either)
    (either / INDEX_FILE).write_text(content)
    refused(either, INDEX_FILE)


# ── Tokenizer and vocabulary ─────────────────────────────────────────────────────────────────────────────────────


def test_a_tokenizer_larger_than_the_vocabulary_is_refused_with_both_sizes(either, refused):
    large = qkv.Tokenizer.train("byte", iter([]), vocab_size=320, special_tokens=["pad", "eos"], num_sentinels=60)
    assert large.vocab_size > 300
    large.save(either)
    refused(either, str(large.vocab_size), "300", "tokenizer", "vocabulary")


@pytest.mark.parametrize(("source", "target"), [(300, 250), (250, 300)])
def test_a_tokenizer_must_fit_both_sides_of_a_pair(source, target, tokenizer, tmp_path, refused):
    """A tokenizer for both sides must fit into the smaller vocabulary."""
    sides = [qkv.StackConfig(vocab_size=vocab, width=8, layers=1, heads=2, ffn_width=12) for vocab in (source, target)]
    model = qkv.new(qkv.Config(encoder=sides[0], decoder=sides[1]))
    model.save(tmp_path / "pair")
    tokenizer.save(tmp_path / "pair")
    refused(tmp_path / "pair", str(tokenizer.vocab_size), "250")


def test_a_tokenizer_that_fits_is_read(either, tokenizer):
    tokenizer.save(either)
    assert qkv.load(either).tokenizer.fingerprint == tokenizer.fingerprint


def test_a_broken_tokenizer_is_named(either, tokenizer, refused):
    tokenizer.save(either)
    (either / "tokenizer.json").write_text("{")
    refused(either, "tokenizer.json")
