"""Saving is all or nothing: if it is refused or fails, an old model in the folder stays intact."""

import copy
import errno
import json
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

import qkv
from qkv.blocks.feedforward import FeedForward
from qkv.store import weights
from qkv.store import write_folder as folders
from qkv.store.staged_folder import STAGING_FOLDER
from qkv.store.weights import INDEX_FILE, WEIGHTS_FILE


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, including hidden ones."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(params=["save", "export"])
def write(request):
    """The two functions that write a folder."""
    return lambda model, folder: getattr(model, request.param)(folder)


@pytest.fixture
def other(model) -> qkv.Model:
    """Another model, with other weights and another depth."""
    return qkv.new(replace(model.config, encoder=replace(model.config.encoder, layers=3, num_layer_groups=3)), seed=2)


def test_a_new_folder_and_those_above_it_are_made(model, write, tmp_path, same):
    write(model, tmp_path / "a" / "b" / "c")
    assert same(tmp_path / "a" / "b" / "c", model)


def test_what_a_folder_holds(model, tokenizer, tmp_path):
    qkv.Model(model.config, model.network, tokenizer).save(tmp_path / "out")
    names = {"config.json", WEIGHTS_FILE, "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert set(contents(tmp_path / "out")) == names


def test_an_empty_folder_is_accepted(model, write, tmp_path, same):
    write(model, tmp_path)
    assert same(tmp_path, model)


def test_a_tilde_is_expanded(model, tmp_path, monkeypatch, same):
    monkeypatch.setenv("HOME", str(tmp_path))
    model.save("~/saved")
    assert same(tmp_path / "saved", model)


class Doubled(FeedForward):
    """A feed-forward that no config names."""

    def forward(self, x, tap=None):
        return 2 * super().forward(x, tap)


def replace_class(network):
    network.encoder.blocks[1].ffn.__class__ = Doubled


def replace_forward(network):
    network.encoder.blocks[1].ffn.forward = torch.tanh


def add_module(network):
    network.encoder.blocks[0].extra = torch.nn.Linear(2, 2)


def remove_module(network):
    del network.encoder.blocks[1]


def replace_activation(network):
    network.encoder.blocks[0].ffn.activation = torch.tanh


def change_scale(network):
    network.encoder.blocks[0].attention.scale = 0.1


def add_hook(network):
    network.encoder.blocks[0].register_forward_hook(lambda module, arguments, out: 2 * out)


def resize(network):
    network.encoder.blocks[0].ffn.up = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace_class, r"encoder.blocks.1.ffn is Doubled, not FeedForward: .*qkv.register_part"),
        (replace_forward, "encoder.blocks.1.ffn has a forward function of its own"),
        (replace_activation, "encoder.blocks.0.ffn.activation is <built-in .*tanh.*>, not <"),
        (change_scale, "encoder.blocks.0.attention.scale is 0.1, not 0.5"),
        (add_hook, r"encoder.blocks.0 has a hook, .*handle.remove\(\)"),
        (add_module, "encoder.blocks.0.extra is an additional Linear"),
        (remove_module, "encoder.blocks.1 is not in the network"),
        (resize, r"encoder.blocks.0.ffn.up has the parameters .*\(2, 2\)"),
    ],
)
def test_a_network_that_its_config_does_not_build_is_refused_by_name(model, write, tmp_path, change, message):
    changed = qkv.Model(model.config, copy.deepcopy(model.network), model.tokenizer)
    change(changed.network)
    with pytest.raises(qkv.QkvError, match=message):
        write(changed, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_is_not_overwritten(model, write, tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(qkv.QkvError, match="file: this is a file"):
        write(model, tmp_path / "file")
    assert contents(tmp_path) == {"file": b"precious"}


def test_a_folder_with_other_files_is_not_changed(model, write, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("cat")
    (tmp_path / "tokenizer.json").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(qkv.QkvError, match="other files"):
        write(model, tmp_path)
    assert contents(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == {"photos", "tokenizer.json"}


def test_a_folder_below_a_file_cannot_be_made(model, write, tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(qkv.QkvError, match="could not be written"):
        write(model, tmp_path / "file" / "out")


# ── Replacing a model ───────────────────────────────────────────────────────────────────────────────────────────────


def test_another_model_replaces_the_first(either, other, write, same):
    write(other, either)
    assert same(either, other)


def test_an_existing_readme_is_kept(either, other):
    (either / "README.md").write_text("my words")
    other.save(either)
    assert (either / "README.md").read_text() == "my words"


def shard_all(monkeypatch) -> None:
    """Make the rest of the test write weights as several files."""
    real = weights.write_weights
    small = lambda folder, tensors: real(folder, tensors, max_shard_bytes=3_000)  # noqa: E731
    monkeypatch.setattr(weights, "write_weights", small)
    monkeypatch.setattr(folders, "write_weights", small)


def test_shards_replace_a_single_file(either, other, write, monkeypatch, same):
    shard_all(monkeypatch)
    write(other, either)
    assert not (either / WEIGHTS_FILE).exists()
    assert same(either, other)


def test_a_single_file_replaces_shards(model, other, write, tmp_path, monkeypatch, same):
    with monkeypatch.context() as patched:
        shard_all(patched)
        write(model, tmp_path / "out")
    assert (tmp_path / "out" / INDEX_FILE).exists()
    write(other, tmp_path / "out")
    assert same(tmp_path / "out", other)
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors*")] == [WEIGHTS_FILE]


def test_the_old_tokenizer_is_deleted(model, tokenizer, write, tmp_path):
    write(qkv.Model(model.config, model.network, tokenizer), tmp_path / "out")
    write(model, tmp_path / "out")
    assert qkv.load(tmp_path / "out").tokenizer is None


def test_a_model_loaded_from_a_folder_is_saved_back_into_it(either, same):
    model = qkv.load(either)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(1.0)
    model.save(either)
    assert same(either, model)


def test_a_model_replaces_a_sentence_transformers_folder(foreign, model, same):
    (foreign / "modules.json").write_text(
        json.dumps([{"path": "", "type": "sentence_transformers.models.Transformer"}])
    )
    assert qkv.load(foreign).config.head.kind == "embed"
    model.save(foreign)
    assert same(foreign, model)


# ── Failures while saving ───────────────────────────────────────────────────────────────────────────────────────────

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("error", "words"),
    [(FULL, "No space left"), (SafetensorError("Error while serializing: I/O error"), "I/O error")],
    ids=["OSError", "SafetensorError"],
)
def test_a_failure_while_weights_are_written_leaves_the_old_model(either, other, write, error, words, monkeypatch):
    before = contents(either)

    def fail(tensors, path, **more):
        Path(path).write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(weights, "save_file", fail)
    with pytest.raises(qkv.QkvError, match=f"could not be written.*{words}"):
        write(other, either)
    assert contents(either) == before
    assert not (either / STAGING_FOLDER).exists()


def test_a_failure_at_a_later_shard_leaves_the_old_model(either, model, other, write, monkeypatch, same):
    """When the error occurs, some new files are complete, but none of them may have replaced an old one."""
    shard_all(monkeypatch)
    write(model, either)
    before, real, calls = contents(either), weights.save_file, []

    def fail_third(tensors, path, **more):
        calls.append(path)
        if len(calls) == 3:
            raise FULL
        real(tensors, path, **more)

    monkeypatch.setattr(weights, "save_file", fail_third)
    with pytest.raises(qkv.QkvError, match="No space left"):
        write(other, either)
    assert contents(either) == before
    monkeypatch.undo()
    assert same(either, model)


def test_a_failure_while_the_config_is_written_leaves_the_old_model(either, other, write, monkeypatch):
    before, real = contents(either), Path.write_bytes

    def fail(path, *args, **more):
        if path.name.startswith("config.json"):
            raise FULL
        return real(path, *args, **more)

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(qkv.QkvError, match="No space left"):
        write(other, either)
    monkeypatch.undo()
    assert contents(either) == before


def test_an_interrupt_leaves_the_old_model(either, other, write, monkeypatch):
    before = contents(either)

    def interrupt(*args, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(weights, "save_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(other, either)
    assert contents(either) == before


def test_a_failed_save_to_a_new_folder_leaves_no_folder_and_can_be_repeated(model, write, tmp_path, monkeypatch, same):
    def fail(*args, **more):
        raise FULL

    with monkeypatch.context() as patched:
        patched.setattr(weights, "save_file", fail)
        with pytest.raises(qkv.QkvError, match="No space left"):
            write(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    write(model, tmp_path / "out")
    assert same(tmp_path / "out", model)


def test_files_of_a_killed_save_are_deleted(either, other, write, same):
    (either / STAGING_FOLDER).mkdir()
    (either / STAGING_FOLDER / WEIGHTS_FILE).write_bytes(b"half of it")
    (either / STAGING_FOLDER / "config.json").write_bytes(b"{")
    write(other, either)
    assert same(either, other)
    assert not (either / STAGING_FOLDER).exists()


def test_a_killed_save_to_a_new_folder_can_be_repeated(model, write, tmp_path, same):
    (tmp_path / "out" / STAGING_FOLDER).mkdir(parents=True)
    (tmp_path / "out" / STAGING_FOLDER / WEIGHTS_FILE).write_bytes(b"half of it")
    write(model, tmp_path / "out")
    assert same(tmp_path / "out", model)


def test_a_real_file_size_limit_is_reported(model, write, tmp_path):
    """The operating system itself limits files to two kilobytes here; nothing is mocked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
    try:
        with pytest.raises(qkv.QkvError, match="could not be written"):
            write(model, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "out").exists()


def test_a_folder_without_permission_is_reported(model, write, tmp_path, monkeypatch):
    """The error is mocked, because root may write anywhere."""

    def refuse(path, *args, **more):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(qkv.QkvError, match=r"out: could not be written \(Permission denied\)"):
        write(model, tmp_path / "out")
