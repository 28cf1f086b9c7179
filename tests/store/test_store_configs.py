"""A folder whose config is missing, broken, unknown or unsupported is refused with one clear error."""

import json
from typing import Any

import pytest

import qkv
from qkv.models.tables import ARCHITECTURES


def test_an_intact_folder_loads(either, model, same):
    """Control for all tests below."""
    assert same(either, model)


def test_a_missing_folder_is_refused(tmp_path, refused):
    refused(tmp_path / "nowhere", "nowhere", "no such folder")


def test_a_file_instead_of_a_folder(either, refused):
    refused(either / "model.safetensors", "model.safetensors", "this is a file", "folder")


def test_no_config(either, tmp_path, refused):
    (tmp_path / "empty").mkdir()
    (either / "config.json").unlink()
    for folder in (either, tmp_path / "empty"):
        refused(folder, str(folder), "no config.json")


def test_a_config_that_cannot_be_read(either, refused):
    """A folder named config.json replaces a file without permission, because root may read any file."""
    (either / "config.json").unlink()
    (either / "config.json").mkdir()
    refused(either, "config.json", "cannot be read")


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_truncated_config_is_refused(either, fraction, refused):
    text = (either / "config.json").read_bytes().rstrip()
    (either / "config.json").write_bytes(text[: int(fraction * len(text))])
    refused(either, "config.json", *(["the file is empty"] if fraction == 0 else ["line", "not JSON"]))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"\x80\x04\x95\x00\xff\xfe", "not UTF-8 text"),
        (b"\x00" * 64, "not JSON"),
        (b"[1, 2]", "list"),
        (b'"bert"', "str"),
        (b"null", "NoneType"),
        (b"7", "int"),
        (b'{"layers": ' + b"9" * 5000 + b"}", "JSON"),
        (b'{"a": ' * 100_000, "JSON"),
        (b"hidden_size: 768\n", "not JSON"),
    ],
    ids=["binary", "zeros", "list", "string", "null", "number", "endless number", "endless depth", "yaml"],
)
def test_a_config_that_is_not_a_json_object_is_refused(either, content, word, refused):
    (either / "config.json").write_bytes(content)
    refused(either, str(either / "config.json"), word)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model_type": "berts"}, ["config.json", "'berts'", "did you mean 'bert'?"]),
        ({"model_type": "xyzzy"}, ["'xyzzy'", *ARCHITECTURES]),  # no name is similar, so all are listed
        ({"architectures": ["BertForMaskedLMs"]}, ["'BertForMaskedLMs'", "did you mean 'BertForMaskedLM'?"]),
        ({"num_attention_heads": 3}, ["config.json", "width = 8", "heads = 3"]),
    ],
    ids=["architecture", "strange architecture", "class", "heads"],
)
def test_a_wrong_value_of_a_hugging_face_config_is_refused(foreign, edit, refused, keys, words):
    edit(foreign, **keys)
    refused(foreign, *words)


UNSUPPORTED = [
    ("bert", {"is_decoder": True}, ["is_decoder", "True", "False"]),
    ("bert", {"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key", "absolute"]),
    ("bert", {"hidden_act": "mish"}, ["hidden_act", "mish", "gelu"]),
    ("bert", {"add_cross_attention": True}, ["add_cross_attention"]),
    ("albert", {"inner_group_num": 2}, ["inner_group_num", "2"]),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx"]),
    ("gpt_neox", {"attention_bias": False}, ["attention_bias"]),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": False}}, ["yarn", "truncate"]),
    ("llama", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, ["longrope", "linear"]),
    ("llama", {"mlp_bias": True, "attention_bias": False}, ["mlp_bias", "attention_bias"]),
    ("t5", {"feed_forward_proj": "gated-mish"}, ["feed_forward_proj", "gated-mish"]),
    ("modernbert", {"classifier_pooling": "max", "architectures": ["ModernBertForSequenceClassification"]}, ["max"]),
]


@pytest.mark.parametrize(
    ("kind", "keys", "words"), UNSUPPORTED, ids=[f"{k}-{next(iter(v))}" for k, v, _ in UNSUPPORTED]
)
def test_a_setting_that_is_not_supported(kind, keys, words, foreign, refused):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 12}
    (foreign / "config.json").write_text(json.dumps({"model_type": kind, **sizes, **keys}))
    refused(foreign, "config.json", *words)


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads"])
def test_a_missing_size_is_named(key, foreign, refused):
    sizes = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}
    del sizes[key]
    (foreign / "config.json").write_text(json.dumps(sizes))
    refused(foreign, "config.json", "missing", key)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"encoder": None, "head": None}, ["encoder"]),
        ({"layer": 3}, ["'layer'"]),
        ({"encoder": {"vocab_size": 3}}, ["encoder", "missing", "width"]),
        ({"encoder": [1]}, ["encoder", "list"]),
        ({"head": {"kind": "mlms", "outputs": 300}}, ["head", "mlms"]),
        ({"head": {"kind": "mlm", "outputs": 299}}, ["299", "300"]),
        ({"head": 5}, ["head"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_qkv_config_with_a_wrong_field_is_refused(own, edit, keys, words, refused):
    edit(own, **keys)
    refused(own, "config.json", *words)


def test_a_misspelt_field_of_a_qkv_config_is_refused_with_the_nearest_known_one(own, edit, refused):
    stack = json.loads((own / "config.json").read_text())["encoder"]
    edit(own, encoder={**stack, "widht": 8})
    refused(own, "encoder", "'widht'", "did you mean 'width'?")


@pytest.mark.parametrize("version", [2, "1", 0])
def test_a_format_that_this_version_does_not_read(own, edit, version, refused):
    edit(own, version=version)
    refused(own, "config.json", "version", repr(version), "update qkv")


def test_a_model_type_is_needed_in_a_sentence_transformers_folder(foreign, edit, refused):
    (foreign / "modules.json").write_text("[]")
    edit(foreign, model_type=None)
    refused(foreign, "model_type")


WRONG: list[Any] = [None, "x", -1, 0, 1.5, [], {}, True, 10**30, [None]]


@pytest.mark.parametrize("kind", ["own", "foreign"])
def test_any_wrong_value_loads_or_is_refused(kind, request):
    """Each wrong value of each key either loads or raises a QkvError, and no other error."""
    folder = request.getfixturevalue(kind)
    whole = json.loads((folder / "config.json").read_text())
    paths = [(key,) for key in whole]
    paths += [(part, key) for part in ("encoder", "head") if kind == "own" for key in whole[part]]
    counts = {"loaded": 0, "refused": 0}
    for path in paths:
        for value in WRONG:
            changed = json.loads(json.dumps(whole))
            holder = changed if len(path) == 1 else changed[path[0]]
            holder[path[-1]] = value
            (folder / "config.json").write_text(json.dumps(changed))
            try:
                qkv.load(folder, device="meta")
                counts["loaded"] += 1
            except qkv.QkvError:
                counts["refused"] += 1
    assert min(counts.values()) > 20, counts
