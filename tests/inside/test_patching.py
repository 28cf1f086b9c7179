"""Activation patching: each cell equals a run with one patch. Attribution patching is its first-order approximation."""

from typing import Any

import pytest
import torch
from small_networks import FAMILIES, IDS, make_example, make_network

from qkv.blocks import HeadConfig
from qkv.errors import UsageError
from qkv.inside import (
    Trace,
    activation_patching,
    attribution_patching,
    logit_difference,
    mean_ablate,
    mean_values,
    patch,
    token_logprob,
    trace,
    zero_ablate,
)
from qkv.inside.sites import PER_HEAD_SITES
from qkv.models import Network

METRIC = logit_difference(3, 8)


def record(network: Network, *, other: bool = False, **options: Any) -> Trace:
    example: Any = make_example(network.config.family, other=other)
    pair = example if network.config.family == "seq2seq" else (example, None)
    return trace(network, *pair, **{"sites": "*", **options})


def stacks(family: str) -> list[str]:
    return ["encoder", "decoder"] if family == "seq2seq" else [family]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("site", ["resid_pre", "z", "k", "pattern", "mlp_post", "cross_z", "cross_v"])
def test_every_cell_is_a_run_with_one_patch(family: str, site: str) -> None:
    network = make_network(family, kv_heads=2)
    base, donor = record(network), record(network, other=True)
    for stack in stacks(family):
        if f"{stack}.0.{site}" not in base:
            continue
        for over in ("position", "head") if site.removeprefix("cross_") in PER_HEAD_SITES else ("position",):
            options: Any = {"sites": f"{stack}.*.{site}", "over": over, "batch_size": 3}
            found = activation_patching(network, base, donor, METRIC, **options)
            assert found.sites == (f"{stack}.0.{site}", f"{stack}.1.{site}")
            assert found.baseline == pytest.approx(float(METRIC(base["logits"][None])))
            assert found.donor == pytest.approx(float(METRIC(donor["logits"][None])))
            for row, name in enumerate(found.sites):
                for column in range(found.values.shape[1]):
                    chosen: Any = {"positions" if over == "position" else "heads": [column]}
                    run = record(network, sites="logits", edits=[patch(name, donor, **chosen)])
                    expected = float(METRIC(run["logits"][None]))
                    assert float(found.values[row, column]) == pytest.approx(expected, abs=1e-9)
            assert found.effects.abs().max() > 1e-3


def test_zeros_and_means() -> None:
    network = make_network("decoder")
    base, others = record(network), [record(network, other=True), record(network)]
    zeros = activation_patching(network, base, "zero", METRIC, sites="*.z", over="head")
    means = activation_patching(network, base, mean_values(others), METRIC, sites="*.z", over="head")
    for head in range(4):
        for found, edit in (
            (zeros, zero_ablate("decoder.1.z", heads=[head])),
            (means, mean_ablate("decoder.1.z", others, heads=[head])),
        ):
            run = record(network, sites="logits", edits=[edit])
            assert float(found.values[1, head]) == pytest.approx(float(METRIC(run["logits"][None])), abs=1e-9)
    assert zeros.donor is None


def test_the_whole_difference_is_recovered_at_the_last_position_of_the_last_layer() -> None:
    network = make_network("decoder")
    found = activation_patching(network, record(network), record(network, other=True), METRIC, sites="*.resid_post")
    assert found.recovered[-1, -1] == pytest.approx(1.0)
    assert found.recovered[-1, :-1].abs().max() == pytest.approx(0.0, abs=1e-9)


def mix(base: Trace, donor: Trace, amount: float) -> Trace:
    values = {name: base[name] + amount * (donor[name] - base[name]).nan_to_num(nan=0.0) for name in base}
    return Trace(values, donor.tokens)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("site", ["resid_pre", "z", "v", "pattern", "scores", "mlp_out", "cross_z", "cross_k"])
def test_attribution_patching_is_the_limit_of_small_patches(family: str, site: str) -> None:
    """A patch of a thousandth of the difference has a thousandth of the estimated effect. Its square is negligible."""
    network = make_network(family, kv_heads=2)
    base, donor = record(network), record(network, other=True)
    small = mix(base, donor, 1e-4)
    for stack in stacks(family):
        if f"{stack}.0.{site}" not in base:
            continue
        for over in ("position", "head") if site.removeprefix("cross_") in PER_HEAD_SITES else ("position",):
            options: Any = {"sites": f"{stack}.*.{site}", "over": over}
            estimate = attribution_patching(network, base, donor, METRIC, **options)
            measured = activation_patching(network, base, small, METRIC, **options)
            scale = float(estimate.effects.abs().max())
            assert scale > 1e-3
            assert torch.allclose(measured.effects / 1e-4, estimate.effects, atol=1e-2 * scale)
            assert estimate.values.shape == measured.values.shape
            assert estimate.baseline == pytest.approx(measured.baseline)


def test_attribution_patching_leaves_no_gradients() -> None:
    network = make_network("decoder")
    attribution_patching(network, record(network), record(network, other=True), METRIC)
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_token_types_are_kept() -> None:
    network = make_network("encoder", token_types=2)
    types = [0, 0, 0, 1, 1, 1, 1]
    base, donor = record(network, token_type_ids=types), record(network, other=True, token_type_ids=types)
    found = activation_patching(network, base, donor, token_logprob(3))
    assert found.baseline == pytest.approx(float(base["logits"][-1].log_softmax(-1)[3]))


def test_a_classifier_has_a_metric_of_its_classes() -> None:
    network = make_network("encoder", head=HeadConfig(kind="classify", outputs=3))
    found = activation_patching(
        network, record(network), record(network, other=True), lambda logits: logits[:, 0] - logits[:, 1]
    )
    assert found.values.shape == (2, len(IDS))


def test_wrong_calls_are_refused() -> None:
    network, both = make_network("decoder"), make_network("seq2seq")
    base, donor, short = record(network), record(network, other=True), trace(network, [1, 2], sites="*")
    for call, message in (
        (lambda: activation_patching(network, base, short, METRIC), "same number of tokens"),
        (
            lambda: activation_patching(network, base, trace(network, IDS, sites="*.z"), METRIC),
            "no values of decoder.0.resid_pre",
        ),
        (lambda: activation_patching(network, base, donor, METRIC, over="head"), "head axis"),
        (lambda: activation_patching(network, base, donor, METRIC, sites="*.zz"), "no site"),
        (lambda: activation_patching(network, base, donor, METRIC, over="layer"), "over = 'layer'"),  # type: ignore[arg-type]
        (lambda: activation_patching(network, base, "nothing", METRIC), "donor = 'nothing'"),  # type: ignore[arg-type]
        (lambda: activation_patching(network, base, donor, lambda logits: logits.sum()), "one number each"),
        (lambda: activation_patching(both, record(both), record(both, other=True), METRIC), "separately"),
        (lambda: activation_patching(network, base, "zero", METRIC).recovered, "use effects"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
