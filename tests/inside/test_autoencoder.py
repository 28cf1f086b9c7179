"""Sparse autoencoders: they find known features, and their measures equal slow definitions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import FAMILIES, VOCAB, make_network
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import HeadConfig
from qkv.errors import QkvError, UsageError
from qkv.inside.autoencoder import (
    AutoencoderConfig,
    AutoencoderOptions,
    SparseAutoencoder,
    evaluate_autoencoder,
    fit_autoencoder,
    shuffle_activations,
    stream_activations,
    summarise_features,
    train_autoencoder,
)
from qkv.inside.autoencoder.superposition import ToyModel, mean_max_cosine, sample_features, train_toy_model
from qkv.inside.autoencoder.train import training_loss
from qkv.inside.record import trace

TRUE_FEATURES, WIDTH, PROBABILITY = 40, 16, 0.02


@pytest.fixture(scope="module")
def toy() -> ToyModel:
    return train_toy_model(TRUE_FEATURES, WIDTH, probability=PROBABILITY, steps=700)


def toy_batches(toy: ToyModel, probability: float = PROBABILITY) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    while True:
        x = sample_features(768, TRUE_FEATURES, probability, generator)
        yield toy.hidden(x[x.any(1)]).detach()


@pytest.mark.parametrize(("kind", "steps", "lr"), [("topk", 500, 3e-3), ("relu", 800, 1e-2)])
def test_the_features_of_a_toy_model_are_found(toy: ToyModel, kind: Any, steps: int, lr: float) -> None:
    assert len(toy.directions) == TRUE_FEATURES  # it stores all of them, in 16 dimensions
    config = AutoencoderConfig(width=WIDTH, features=2 * TRUE_FEATURES, kind=kind, k=2)
    autoencoder = train_autoencoder(toy_batches(toy), config, AutoencoderOptions(steps=steps, lr=lr, l1=0.1))
    assert mean_max_cosine(toy.directions, autoencoder.decoder.detach()) >= 0.95
    untrained = SparseAutoencoder(config)  # the negative control
    assert mean_max_cosine(toy.directions, untrained.decoder.detach()) < 0.7


def test_features_that_are_not_sparse_are_not_found(toy: ToyModel) -> None:
    """The negative control of the data: if half of the features are active at once, no method can separate them."""
    config = AutoencoderConfig(width=WIDTH, features=2 * TRUE_FEATURES, k=2)
    autoencoder = train_autoencoder(toy_batches(toy, 0.5), config, AutoencoderOptions(steps=150, lr=3e-3))
    assert mean_max_cosine(toy.directions, autoencoder.decoder.detach()) < 0.8


@pytest.mark.parametrize("kind", ["topk", "relu"])
def test_training_is_the_same_each_time_and_reports_its_progress(toy: ToyModel, kind: Any) -> None:
    config = AutoencoderConfig(width=WIDTH, features=32, kind=kind, k=3)
    seen: list[Any] = []
    options = AutoencoderOptions(steps=60, lr=1e-2)
    first = train_autoencoder(toy_batches(toy), config, options, on_step=seen.append, report_every=20)
    second = train_autoencoder(toy_batches(toy), config, options)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert [one.step for one in seen] == [0, 20, 40, 59]
    assert seen[-1].explained_variance > seen[0].explained_variance
    assert torch.allclose(first.decoder.norm(dim=1), torch.ones(32), atol=1e-5)


@pytest.mark.parametrize("kind", ["topk", "relu"])
def test_the_loss_of_training_is_that_of_the_definition(kind: Any) -> None:
    """The fast reconstruction of topk, a sum of k rows, equals encode and decode."""
    torch.manual_seed(0)
    autoencoder = SparseAutoencoder(AutoencoderConfig(width=6, features=20, kind=kind, k=4)).double()
    x = torch.randn(9, 6, dtype=torch.float64)
    options = AutoencoderOptions(l1=0.3, aux_loss_coefficient=0.0)
    loss, reconstructed, active = training_loss(autoencoder, x, torch.zeros(20, dtype=torch.bool), options, 1.0)
    features = autoencoder.encode(x)
    expected = F.mse_loss(autoencoder.decode(features), x)
    if kind == "relu":
        expected = expected + 0.3 * features.sum(-1).mean()
    assert torch.allclose(loss, expected)
    assert torch.allclose(reconstructed, autoencoder(x))
    assert active.tolist() == features.any(0).nonzero().flatten().tolist()
    if kind == "topk":
        assert int((features > 0).sum(-1).max()) <= 4


@pytest.mark.parametrize(("auxiliary", "is_trained"), [(1.0, True), (0.0, False)])
def test_dead_features_learn_only_through_the_auxiliary_loss(auxiliary: float, is_trained: bool) -> None:
    autoencoder = SparseAutoencoder(AutoencoderConfig(width=6, features=20, k=2))
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    active = autoencoder.encode(x).any(0)
    with torch.no_grad():
        autoencoder.encoder[:5] *= 0.01  # alive in principle, but never among the two largest
    is_dead = torch.arange(20) < 5
    loss, _, used = training_loss(autoencoder, x, is_dead, AutoencoderOptions(aux_loss_coefficient=auxiliary), 1.0)
    loss.backward()
    assert active.all()
    assert not set(used.tolist()) & set(range(5))
    assert bool(autoencoder.decoder.grad[:5].any()) == is_trained


def test_a_saved_autoencoder_is_the_same(tmp_path: Path) -> None:
    config = AutoencoderConfig(width=6, features=20, k=4, site="decoder.0.resid_post")
    autoencoder = SparseAutoencoder(config, seed=3)
    autoencoder.scale.fill_(2.5)
    autoencoder.save(tmp_path / "a.safetensors")
    loaded = SparseAutoencoder.load(tmp_path / "a.safetensors")
    x = torch.randn(5, 6)
    assert loaded.config == config
    assert torch.equal(loaded(x), autoencoder(x))
    (tmp_path / "b.safetensors").write_bytes(b"nothing")
    for name in ("b.safetensors", "missing.safetensors"):
        with pytest.raises(QkvError, match=name):
            SparseAutoencoder.load(tmp_path / name)


# ── The stream of activations ───────────────────────────────────────────────────────────────────────────────────


def make_corpus(family: str, size: int = 9) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 9, (size,), generator=generator).tolist()
    texts = [torch.randint(0, VOCAB, (length,), generator=generator).tolist() for length in lengths]
    return texts if family != "seq2seq" else [(text, [0, *text[::-1]]) for text in texts]


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_activations_are_those_of_traces(family: str) -> None:
    network, corpus = make_network(family), make_corpus(family)
    site = "encoder.1.resid_post" if family != "decoder" else "decoder.1.resid_post"
    streamed = torch.cat(list(stream_activations(network, corpus, site, batch_size=4, epochs=1)))
    pairs = [example if isinstance(example, tuple) else (example, None) for example in corpus]
    traced = torch.cat([trace(network, ids, target, sites=site)[site] for ids, target in pairs])
    assert torch.allclose(streamed, traced.float(), atol=1e-5)


def test_a_shuffled_buffer_yields_every_activation_once_and_is_bounded() -> None:
    sizes = [7, 30, 2, 41, 20]
    rows = torch.arange(sum(sizes), dtype=torch.float32)[:, None]
    batches = list(shuffle_activations(rows.split(sizes), buffer_tokens=32, batch_tokens=8, seed=0))
    assert sorted(torch.cat(batches).flatten().tolist()) == list(range(100))
    assert torch.cat(batches).flatten().tolist() != list(range(100))
    assert all(len(batch) <= 8 for batch in batches)


def test_one_call_trains_on_a_site() -> None:
    """`fit_autoencoder` is the stream, the buffer and the training loop, one after the other."""
    network, corpus = make_network("decoder", dtype=torch.float32), make_corpus("decoder")
    site, options = "decoder.0.mlp_post", AutoencoderOptions(steps=5)
    sizes = {"buffer_tokens": 64, "batch_tokens": 32}
    fitted = fit_autoencoder(network, corpus, site, features=50, k=3, options=options, **sizes)
    batches = shuffle_activations(stream_activations(network, corpus, site), **sizes)
    expected = train_autoencoder(batches, fitted.config, options)
    assert fitted.config == AutoencoderConfig(width=24, features=50, k=3, site=site)
    assert all(torch.equal(a, b) for a, b in zip(fitted.parameters(), expected.parameters(), strict=True))


def test_examples_that_cannot_be_read_again_are_an_error() -> None:
    chunks = stream_activations(make_network("decoder"), iter(make_corpus("decoder")), "decoder.0.resid_post")
    with pytest.raises(UsageError, match="several times"):
        list(chunks)
    with pytest.raises(UsageError, match="buffer_tokens"):
        next(shuffle_activations([], buffer_tokens=3, batch_tokens=8))


# ── Measures ────────────────────────────────────────────────────────────────────────────────────────────────────


class PerfectAutoencoder(SparseAutoencoder):
    """Reconstructs everything: for each dimension, a feature for positive and one for negative values."""

    def __init__(self, width: int) -> None:
        super().__init__(AutoencoderConfig(width=width, features=2 * width, kind="relu"))
        with torch.no_grad():
            both = torch.cat([torch.eye(width), -torch.eye(width)])
            self.encoder.copy_(both)
            self.decoder.copy_(both)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_perfect_autoencoder_loses_nothing(family: str) -> None:
    network, corpus = make_network(family, dtype=torch.float32), make_corpus(family)
    site = "encoder.1.resid_post" if family == "encoder" else "decoder.0.resid_post"
    report = evaluate_autoencoder(network, PerfectAutoencoder(16), corpus, site=site, batch_size=4)
    assert report.explained_variance == pytest.approx(1.0, abs=1e-6)
    assert report.l0 == pytest.approx(16)
    assert report.loss_recovered == pytest.approx(1.0, abs=1e-4)
    assert report.loss_zero != pytest.approx(report.loss)


def test_an_autoencoder_that_reconstructs_zero_recovers_nothing() -> None:
    network, corpus = make_network("decoder", dtype=torch.float32), make_corpus("decoder")
    nothing = PerfectAutoencoder(16)
    with torch.no_grad():
        nothing.encoder_bias.fill_(-1e6)
    report = evaluate_autoencoder(network, nothing, corpus, site="decoder.0.resid_post")
    assert report.loss_recovered == pytest.approx(0.0, abs=1e-6)
    assert (report.l0, report.dead_fraction) == (0.0, 1.0)


def test_the_measures_equal_slow_definitions() -> None:
    network, corpus = make_network("decoder", dtype=torch.float32), make_corpus("decoder")
    site = "decoder.1.resid_pre"
    autoencoder = SparseAutoencoder(AutoencoderConfig(width=16, features=50, k=5, site=site))
    autoencoder.scale.fill_(0.5)
    report = evaluate_autoencoder(network, autoencoder, corpus, batch_size=3)
    traces = [trace(network, ids, sites=[site, "logits"]) for ids in corpus]
    x = torch.cat([one[site] for one in traces])
    with torch.no_grad():
        features = autoencoder.encode(x)
        error = (autoencoder.decode(features) - x).square().sum() / (x - x.mean(0)).square().sum()
    assert report.explained_variance == pytest.approx(1 - float(error), rel=1e-4)
    assert report.l0 == pytest.approx(float((features > 0).float().sum(-1).mean()))
    assert report.num_tokens == len(x)
    losses = [
        F.cross_entropy(one["logits"][:-1], torch.tensor(ids[1:]), reduction="sum")
        for one, ids in zip(traces, corpus, strict=True)
    ]
    assert report.loss == pytest.approx(float(sum(losses)) / sum(len(ids) - 1 for ids in corpus), rel=1e-5)


def test_features_come_with_examples_and_tokens() -> None:
    network, corpus = make_network("decoder", dtype=torch.float32), make_corpus("decoder")
    autoencoder = SparseAutoencoder(AutoencoderConfig(width=16, features=50, k=5, site="decoder.1.resid_post"))
    found = summarise_features(network, autoencoder, corpus, max_features=7, num_examples=3)
    assert len(found.features) == 7
    for feature in found.features:
        assert 1 <= len(feature.examples) <= 3
        assert all(example.value > 0 for example in feature.examples)
        assert len(feature.effect.promoted) == 8


def test_wrong_calls_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="no activations"):
        train_autoencoder([], AutoencoderConfig(width=6, features=40))
    with pytest.raises(UsageError, match=r"\(N, 6\)"):
        train_autoencoder([torch.zeros(3, 5)], AutoencoderConfig(width=6, features=40))
    network = make_network("encoder", head=HeadConfig(kind="classify", outputs=2))
    with pytest.raises(UsageError, match="output for each token"):
        evaluate_autoencoder(network, PerfectAutoencoder(16), make_corpus("encoder"), site="encoder.0.resid_post")
    with pytest.raises(ValueError, match="k = 32"):
        AutoencoderConfig(width=6, features=20, k=32)
