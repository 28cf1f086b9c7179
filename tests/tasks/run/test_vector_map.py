"""A map of texts: what is read, projected and drawn."""

import pytest
import torch

from qkv.errors import UsageError
from qkv.models.tables.presets import find_preset
from qkv.render.vector_map import draw_vector_map
from qkv.tasks.run.vector_map import VectorMap, map_texts, project
from qkv.tasks.text_model import TextModel
from qkv.text import Tokenizer


@pytest.fixture(scope="module")
def model():
    import qkv

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    made = qkv.new(find_preset("esm2-8m", **sizes), tokenizer=Tokenizer.for_proteins(), seed=1)
    return TextModel(made.network, made.tokenizer, made.config)


def test_the_axes_are_the_principal_components():
    torch.manual_seed(0)
    vectors = torch.randn(50, 4) * torch.tensor([5.0, 2.0, 0.1, 0.1]) + 7
    points, explained = project(vectors)
    values = torch.linalg.eigvalsh(torch.cov(vectors.double().T)).flip(0)
    assert explained == pytest.approx((values[:2] / values.sum()).tolist())
    assert torch.cov(points.T)[0, 1].abs() < 1e-4
    assert points[:, 0].var() == pytest.approx(float(values[0]), rel=1e-4)


def test_proteins_with_labels_are_read_and_drawn(model, tmp_path):
    path, notes = tmp_path / "family.csv", []
    path.write_text("sequence,label\nMKTAYIAK,a\nmktayiar,a\nGLLDTFKN,b\nMKT9,b\n")
    found = map_texts(model, path, notes)
    assert (found.points.shape, found.labels, found.scores) == ((3, 2), ("a", "a", "b"), None)
    assert notes == ["3 texts from the column sequence, coloured by label"]
    picture = draw_vector_map(found, "a & b")
    assert picture.count("<circle") == 3 + 2
    assert "a &amp; b" in picture
    fasta = tmp_path / "family.fasta"
    fasta.write_text(">one\nMKTAYIAK\n>two\nMKTAYIAR\n>three\nGLLDTFKN\n")
    assert map_texts(model, fasta, []).labels == ()


def test_scores_are_shades_and_few_texts_are_refused(model, tmp_path):
    labels = tuple(str(number) for number in range(8))
    found = VectorMap(torch.randn(8, 2), labels, (0.5, 0.2))
    assert found.scores == tuple(map(float, range(8)))
    assert "#dbeafe" in draw_vector_map(found, "scores")
    path = tmp_path / "two.csv"
    path.write_text("sequence,score\nMKTAYIAK,1\nMKTAYIAR,2\n")
    with pytest.raises(UsageError, match="2 texts, but a map needs at least 3"):
        map_texts(model, path, [])
    path.write_text("x,y\n1,2\n3,4\n")
    with pytest.raises(UsageError, match="no column is recognised as the text"):
        map_texts(model, path, [])
