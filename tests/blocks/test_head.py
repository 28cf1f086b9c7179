"""Heads: pooling, every kind's shape and sum, tied weights, and configs that make no sense."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks import Head, HeadConfig, SequenceLayout, StackConfig, make_layout, pool

Config = Callable[..., StackConfig]
HOW = ["first", "last", "mean"]


def vectors(rows: int = 2, length: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(rows, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def head(config: HeadConfig, stack: StackConfig, token: nn.Embedding | None = None) -> Head:
    torch.manual_seed(0)
    return Head(config, stack, token).double().eval()


# ── Pooling ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", HOW)
def test_pooling_packed_texts_is_pooling_each_alone(how: str) -> None:
    """Three texts in two rows, with padding on all sides."""
    segment = torch.tensor([[0, 1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 0, 0, 0]])
    x = vectors(2, 7)
    found = pool(x, make_layout(x, segment), how, max_documents=3)
    assert found.shape == (2, 3, 16)
    for row, text in [(0, 1), (0, 2), (1, 1)]:
        mine = x[row][segment[row] == text]
        expected = {"first": mine[0], "last": mine[-1], "mean": mine.mean(0)}[how]
        assert torch.allclose(found[row, text - 1], expected, atol=1e-15)
    for row, text in [(0, 3), (1, 2), (1, 3)]:
        assert (found[row, text - 1] == 0).all(), "a text that is not there is zeros"


@pytest.mark.parametrize("how", HOW)
def test_pooling_without_segments_is_over_the_whole_row(how: str) -> None:
    x = vectors()
    expected = {"first": x[:, 0], "last": x[:, -1], "mean": x.mean(1)}[how]
    assert torch.allclose(pool(x, make_layout(x), how)[:, 0], expected, atol=1e-15)


@pytest.mark.parametrize("how", HOW)
def test_pooling_does_not_read_padding(how: str) -> None:
    segment = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    x = vectors()
    poisoned = x.masked_fill((segment == 0)[:, :, None], float("nan"))
    place = make_layout(x, segment)
    assert torch.equal(pool(poisoned, place, how), pool(x, place, how))


def test_a_mean_of_many_bfloat16_vectors_is_taken_in_float32() -> None:
    x = torch.ones(1, 4096, 2, dtype=torch.bfloat16) + 2**-7 * (torch.arange(4096) % 2)[None, :, None].bfloat16()
    found = pool(x, make_layout(x), "mean")
    assert found.dtype == torch.float32
    assert float(found[0, 0, 0]) == pytest.approx(1 + 2**-8, abs=1e-6)


# ── Kinds ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "outputs", "shape"),
    [
        ("none", 0, (2, 5, 16)),
        ("lm", 40, (2, 5, 40)),
        ("mlm", 40, (2, 5, 40)),
        ("tag", 7, (2, 5, 7)),
        ("span", 2, (2, 5, 2)),
        ("classify", 3, (2, 3)),
        ("choice", 1, (2, 1)),
        ("embed", 0, (2, 16)),
    ],
)
def test_every_kind_has_its_shape(small: Config, kind: str, outputs: int, shape: tuple[int, ...]) -> None:
    layer, x = head(HeadConfig(kind=kind, outputs=outputs), small()), vectors()  # type: ignore[arg-type]
    assert layer(x, make_layout(x)).shape == shape


@pytest.mark.parametrize("kind", ["classify", "choice", "embed"])
def test_pooled_kinds_answer_for_every_packed_text(small: Config, kind: str) -> None:
    layer = head(HeadConfig(kind=kind, outputs=0 if kind == "embed" else 3, pool="last"), small())  # type: ignore[arg-type]
    x = vectors(1, 6)
    packed = layer(x, make_layout(x, torch.tensor([[1, 1, 2, 2, 2, 0]])), max_documents=2)
    for text, part in enumerate((x[:, :2], x[:, 2:5])):
        assert torch.allclose(packed[:, text], layer(part, make_layout(part)), atol=1e-12)


def test_a_head_without_anything_passes_vectors_on(small: Config) -> None:
    x = vectors()
    assert head(HeadConfig(), small())(x, make_layout(x)) is x


def test_a_dense_head_bends_norms_and_projects(small: Config) -> None:
    config = HeadConfig(kind="mlm", outputs=40, dense="gelu", dense_norm=True, bias=True)
    layer, x = head(config, small()), vectors()
    assert layer.dense is not None
    assert layer.norm is not None
    assert layer.out is not None
    with torch.no_grad():
        layer.norm.weight.copy_(torch.rand(16))
        layer.out.bias.copy_(torch.rand(40))
    assert torch.equal(layer(x, make_layout(x)), layer.out(layer.norm(F.gelu(layer.dense(x)))))


@pytest.mark.parametrize(("name", "bend"), [("relu", F.relu), ("tanh", torch.tanh), ("silu", F.silu), ("gelu", F.gelu)])
def test_a_dense_layer_bends_as_it_is_told(small: Config, name: str, bend: Callable[[Tensor], Tensor]) -> None:
    config = HeadConfig(kind="classify", outputs=3, dense=name, dense_bias=False)  # type: ignore[arg-type]
    layer, x = head(config, small()), vectors()
    assert layer.dense is not None
    assert layer.out is not None
    assert layer.dense.bias is None
    assert torch.equal(layer(x, make_layout(x)), layer.out(bend(layer.dense(x[:, 0]))))


def test_vectors_may_be_scaled_by_the_root_of_the_width(small: Config) -> None:
    plain, scaled = (head(HeadConfig(kind="lm", outputs=40, scale=s), small()) for s in ("none", "rsqrt"))
    x = vectors()
    assert torch.allclose(scaled(x, make_layout(x)), plain(x, make_layout(x)) / 4.0, atol=1e-15)


def test_embeddings_may_be_of_length_one(small: Config) -> None:
    x = vectors()
    long, unit = (
        head(HeadConfig(kind="embed", pool="mean", normalize=u), small())(x, make_layout(x)) for u in (False, True)
    )
    assert torch.allclose(unit.norm(dim=-1), torch.ones(2, dtype=torch.float64))
    assert torch.allclose(unit, long / long.norm(dim=-1, keepdim=True))


def test_reading_chosen_positions_is_choosing_from_all(small: Config) -> None:
    """What a loss over masked words does."""
    layer, x = head(HeadConfig(kind="mlm", outputs=40, dense="gelu", dense_norm=True), small()), vectors()
    chosen = torch.tensor([[True, False, False, True, True], [False, True, False, False, False]])
    assert torch.allclose(layer.project(x[chosen]), layer(x, make_layout(x))[chosen], atol=1e-12)


def test_dropout_acts_in_training_alone(small: Config) -> None:
    layer, x = head(HeadConfig(kind="classify", outputs=3, dropout=0.5), small()), vectors()
    assert torch.equal(layer(x, make_layout(x)), layer(x, make_layout(x)))
    assert not torch.equal(layer.train()(x, make_layout(x)), layer(x, make_layout(x)))


def test_a_mean_in_float32_is_read_by_a_bfloat16_head(small: Config) -> None:
    layer = Head(HeadConfig(kind="classify", outputs=3, pool="mean", dense="tanh", dense_norm=True), small()).bfloat16()
    x = vectors().bfloat16()
    assert layer(x, make_layout(x)).dtype == torch.bfloat16


def test_the_sentence_head_reads_the_first_token(small: Config) -> None:
    layer, x = head(HeadConfig(kind="mlm", outputs=40, next_sentence_classes=2), small()), vectors()
    assert layer.sentence is not None
    assert layer.sentence.dense is not None
    assert layer.sentence.out is not None
    segment = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    first = torch.stack([x[0, 1], x[1, 0]])
    expected = layer.sentence.out(torch.tanh(layer.sentence.dense(first)))
    assert torch.allclose(layer.sentence(x, make_layout(x, segment)), expected, atol=1e-15)


# ── Tied weights ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tied_head_is_the_embedding(small: Config) -> None:
    token = nn.Embedding(40, 16).double()
    layer, x = head(HeadConfig(kind="lm", outputs=40, tied=True), small(), token), vectors()
    assert layer.out is not None
    assert layer.out.weight is token.weight
    assert torch.allclose(layer(x, make_layout(x)), x @ token.weight.T)
    assert head(HeadConfig(kind="lm", outputs=40), small(), token).out.weight is not token.weight  # type: ignore[union-attr]


def test_a_tied_head_of_a_narrow_embedding_narrows_first(small: Config) -> None:
    token = nn.Embedding(40, 8).double()
    config = HeadConfig(kind="mlm", outputs=40, tied=True, dense="gelu", dense_norm=True)
    layer, x = head(config, small(embedding_width=8), token), vectors()
    assert layer.dense is not None
    assert layer.norm is not None
    assert torch.allclose(layer(x, make_layout(x)), layer.norm(F.gelu(layer.dense(x))) @ token.weight.T)


@pytest.mark.parametrize(
    ("token", "match"),
    [
        (None, "a tied head needs the token embedding"),
        (nn.Embedding(41, 16), "a tied head has 41 outputs, not 40"),
        (nn.Embedding(40, 8), "on vectors of 16 needs a dense layer to reach 8"),
    ],
    ids=["none", "vocabulary", "width"],
)
def test_a_tied_head_that_does_not_fit_is_refused(small: Config, token: nn.Embedding | None, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Head(HeadConfig(kind="lm", outputs=40, tied=True), small(), token)


# ── Configs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_labels_say_how_many_outputs_there_are() -> None:
    config = HeadConfig(kind="classify", labels=["bad", "good"])  # type: ignore[arg-type]
    assert config.outputs == 2
    assert config.labels == ("bad", "good")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"kind": "clasify", "outputs": 2}, "kind = 'clasify' must be one of 'none', 'lm'"),
        ({"kind": "classify", "outputs": 2, "pool": "max"}, "pool = 'max' must be one of 'first', 'last', 'mean'"),
        ({"kind": "classify", "outputs": 2, "dense": "gellu"}, "dense = 'gellu' must be one of 'relu', .* 'none'"),
        ({"kind": "classify", "outputs": 3, "labels": ("a", "b")}, "2 labels for outputs = 3"),
        ({"kind": "classify"}, "a head of kind 'classify' needs outputs"),
        ({"kind": "lm"}, "a head of kind 'lm' needs outputs"),
        ({"kind": "classify", "outputs": 2, "tied": True}, "tied: only an lm or mlm head"),
        ({"kind": "classify", "outputs": 2, "next_sentence_classes": 2}, "next_sentence_classes is for an mlm head"),
        ({"kind": "classify", "outputs": 2, "dense_norm": True}, "dense_norm = True needs a dense layer"),
        ({"kind": "classify", "outputs": 2, "dropout": 1.0}, "dropout = 1.0 must be below 1"),
        ({"kind": "classify", "outputs": "2"}, "outputs = '2' must be an integer"),
        ({"kind": "classify", "outputs": True}, "outputs = True must be an integer"),
        ({"kind": "classify", "labels": "bad"}, "labels = 'bad' must be a list of strings"),
        ({"kind": "classify", "outputs": 2, "bias": 1}, "bias = 1 must be True or False"),
    ],
)
def test_a_head_that_makes_no_sense_is_refused_by_field(fields: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        HeadConfig(**fields)  # type: ignore[arg-type]


def test_place_may_come_from_anywhere() -> None:
    """Pooling needs segments alone: positions of the caller's own are not looked at."""
    x = vectors()
    segment = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])
    odd = SequenceLayout(segment, torch.full((2, 5), 99))
    assert torch.equal(pool(x, odd, "mean"), pool(x, make_layout(x, segment), "mean"))
