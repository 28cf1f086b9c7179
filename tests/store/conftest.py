"""Fixtures: a small model as a qkv folder and as a Hugging Face folder, and checks of error messages."""

import json
from pathlib import Path

import pytest
import torch

import qkv
from qkv.blocks import HeadConfig, StackConfig
from qkv.text import Tokenizer

STACK = StackConfig(
    vocab_size=300,
    width=8,
    layers=2,
    heads=2,
    ffn_width=12,
    position="learned",
    max_positions=16,
    norm_placement="post",
    norm_eps=1e-12,
    embedding_norm="extra",
    token_types=2,
)
CONFIG = qkv.Config(
    encoder=STACK,
    head=HeadConfig(kind="mlm", outputs=300, dense="gelu", dense_norm=True, tied=True, bias=True),
    pad_token_id=0,
    architecture="bert",
)


@pytest.fixture(scope="session")
def model() -> qkv.Model:
    """A tiny BERT."""
    return qkv.new(CONFIG, seed=1)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A byte tokenizer with a few special tokens; it has fewer tokens than the model's vocabulary."""
    return Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad", "eos"], template="eos")


@pytest.fixture
def own(model, tmp_path) -> Path:
    """The model as a qkv folder."""
    model.save(tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def foreign(model, tmp_path) -> Path:
    """The model as a Hugging Face folder."""
    model.export(tmp_path / "foreign")
    return tmp_path / "foreign"


@pytest.fixture(params=["own", "foreign"])
def either(request) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture
def refused():
    """Check that a folder is refused with an error of one line that contains all `words`."""

    def check(folder: Path | str, *words: str) -> str:
        with pytest.raises(qkv.QkvError) as caught:
            qkv.load(folder)
        text = str(caught.value)
        assert "\n" not in text
        assert [word for word in words if word not in text] == [], text
        return text

    return check


@pytest.fixture
def edit():
    """Change some keys of a folder's config.json; None removes a key."""

    def change(folder: Path, **keys: object) -> None:
        path = folder / "config.json"
        values = json.loads(path.read_text())
        for key, value in keys.items():
            if value is None:
                del values[key]
            else:
                values[key] = value
        path.write_text(json.dumps(values))

    return change


@pytest.fixture
def same():
    """Whether a folder holds a model with the same config and weights."""

    def compare(folder: Path, model: qkv.Model) -> bool:
        again = qkv.load(folder)
        first, second = (dict(m.network.named_parameters()) for m in (model, again))
        return (
            again.config == model.config
            and first.keys() == second.keys()
            and all(torch.equal(first[name], second[name]) for name in first)
        )

    return compare
