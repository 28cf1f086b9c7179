"""The tuned lens: it starts as the logit lens, training brings it closer to the model, the network stays as it is."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import FAMILIES, VOCAB, make_example, make_network

from qkv.blocks import HeadConfig
from qkv.errors import QkvError, UsageError
from qkv.inside import TunedLens, lens_sites, logit_lens, measure_lens, trace, train_tuned_lens


def make_examples(family: str, count: int, seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(VOCAB, (4 + i % 7,), generator=generator).tolist() for i in range(count)]
    return [(text[::-1], [0, *text]) for text in texts] if family == "seq2seq" else texts


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_training_brings_every_layer_closer_to_the_model(family: str, placement: str) -> None:
    """On texts that it was not trained on. An untrained lens is exactly as far away as the logit lens."""
    network = make_network(family, norm_placement=placement, dtype=torch.float32)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    lens = train_tuned_lens(network, make_examples(family, 100, 1), steps=40, batch_size=16, lr=0.03)
    error = measure_lens(network, lens, make_examples(family, 30, 2))
    untrained = measure_lens(network, TunedLens(lens_sites(network), 16), make_examples(family, 30, 2))
    assert len(error.sites) == 2
    assert untrained.tuned_lens == untrained.logit_lens == error.logit_lens
    for logit, tuned in zip(error.logit_lens, error.tuned_lens, strict=True):
        assert tuned < 0.8 * logit
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_lens_reads_traces_and_survives_a_file(tmp_path: Path) -> None:
    network = make_network("decoder", dtype=torch.float32)
    lens = train_tuned_lens(network, make_examples("decoder", 50, 1), steps=20, lr=0.01)
    found = trace(network, make_example("decoder"))  # type: ignore[arg-type]
    tuned, plain = logit_lens(network, found, translate=lens), logit_lens(network, found)
    assert torch.allclose(tuned.target_probs[-1], plain.target_probs[-1])
    assert not torch.allclose(tuned.target_probs[0], plain.target_probs[0])
    lens.save(tmp_path / "lens.safetensors")
    again = logit_lens(network, found, translate=TunedLens.load(tmp_path / "lens.safetensors"))
    assert torch.equal(again.top_probs, tuned.top_probs)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_not_measured(family: str) -> None:
    network = make_network(family)
    lens = TunedLens(lens_sites(network), 16)
    together, alone = (measure_lens(network, lens, make_examples(family, 6, 3), batch_size=n) for n in (6, 1))
    assert together.logit_lens == pytest.approx(alone.logit_lens, rel=1e-5)


def test_training_is_deterministic_and_stops_in_time() -> None:
    network = make_network("decoder", dtype=torch.float32)
    examples = make_examples("decoder", 20, 1)
    a, b = (train_tuned_lens(network, examples, steps=5, max_tokens=10) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    stopped = train_tuned_lens(network, examples, steps=10**9, max_seconds=0.0)
    assert all(float(parameter.abs().max()) == 0 for parameter in stopped.parameters())


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    network = make_network("decoder")
    trace(network, [1, 2]).save(tmp_path / "t.safetensors")
    for call, message in (
        (lambda: train_tuned_lens(network, []), "at least one text"),
        (lambda: train_tuned_lens(make_network("encoder", head=HeadConfig(kind="tag", outputs=2)), [[1]]), "tag head"),
        (lambda: TunedLens.load(tmp_path / "t.safetensors"), "not a tuned lens"),
        (lambda: TunedLens.load(tmp_path / "none.safetensors"), "none.safetensors"),
    ):
        with pytest.raises((QkvError, UsageError), match=message):
            call()
