"""Edits: what they change, in a forward pass and while generating with a cache, in all three families."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import FAMILIES, IDS, SOURCE_IDS, make_example, make_network
from torch import Tensor

from qkv.api import Model
from qkv.blocks import Inputs, Tap, make_layout
from qkv.decode import GenerationOptions, generate
from qkv.decode.backend import CPU, REFERENCE, choose_backend
from qkv.decode.engine.engine import Engine
from qkv.errors import UsageError
from qkv.inside import (
    Edit,
    EditTap,
    Trace,
    change,
    list_sites,
    mean_ablate,
    mean_values,
    patch,
    resample_ablate,
    steer,
    trace,
    trace_many,
    zero_ablate,
)
from qkv.inside.forward import make_inputs
from qkv.inside.sites import PER_HEAD_SITES
from qkv.models import Network


def record(network: Network, sites: Any = "*", *, other: bool = False, edits: Sequence[Edit] = ()) -> Trace:
    example = make_example(network.config.family, other=other)
    if network.config.family == "seq2seq":
        return trace(network, *example, sites=sites, edits=edits)  # type: ignore[misc, arg-type]
    return trace(network, example, sites=sites, edits=edits)  # type: ignore[arg-type]


def editable_sites(network: Network) -> list[str]:
    return [name for name in list_sites(network.config) if name != "logits"]


def is_per_head(name: str) -> bool:
    return name.rsplit(".", 1)[-1].removeprefix("cross_") in PER_HEAD_SITES


# ── Every site ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", FAMILIES)
def test_every_site_can_be_patched_and_the_patched_value_is_the_donor(family: str) -> None:
    network = make_network(family, kv_heads=2, position="rotary")
    donor, clean = record(network, other=True), record(network)
    for name in editable_sites(network):
        patched = record(network, [name, "logits"], edits=[patch(name, donor)])
        assert torch.equal(patched[name], donor[name]), name
        assert not torch.allclose(patched["logits"], clean["logits"]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_patching_the_first_residual_streams_gives_the_other_run(family: str) -> None:
    """All information passes through the input of the stacks. One of two inputs is not enough."""
    network = make_network(family)
    donor = record(network, other=True)
    inputs = [f"{stack}.0.resid_pre" for stack in donor.tokens]
    patched = record(network, "logits", edits=[patch(name, donor) for name in inputs])
    assert torch.allclose(patched["logits"], donor["logits"], atol=1e-12)
    if len(inputs) == 2:
        half = record(network, "logits", edits=[patch(inputs[0], donor)])
        assert not torch.allclose(half["logits"], donor["logits"], atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["zero", "mean", "resample", "steer", "change"])
def test_every_site_can_be_edited(family: str, kind: str) -> None:
    network = make_network(family, kv_heads=2)
    clean, others = record(network), [record(network, other=True), record(network)]
    for name in editable_sites(network):
        value = clean[name]
        edit = {
            "zero": lambda name=name: zero_ablate(name),
            "mean": lambda name=name: mean_ablate(name, others),
            "resample": lambda name=name: resample_ablate(name, others, seed=3),
            "steer": lambda name=name, value=value: steer(name, torch.ones(value.shape[-1]), scale=0.5),
            "change": lambda name=name: change(name, lambda x: x * 2),
        }[kind]()
        edited = record(network, name, edits=[edit])[name]
        if kind == "mean" and name.endswith(("scores", "pattern")):
            expected = (others[0][name] + others[1][name]) / 2
        elif kind == "mean":
            expected = torch.cat([t[name] for t in others], dim=-2).mean(-2, keepdim=True).expand_as(value)
        elif kind == "resample" and name.endswith(("scores", "pattern")):
            assert any(torch.equal(edited, t[name]) for t in others)
            continue
        elif kind == "resample":
            pool = torch.cat([t[name] for t in others], dim=-2)
            for token in edited.unbind(-2):
                difference = (pool - token.unsqueeze(-2)).abs().sum(-1)  # (N,) or (H, N)
                assert difference.reshape(-1, pool.shape[-2]).sum(0).min() == 0, name
            continue
        else:
            expected = {"zero": value * 0, "steer": value + 0.5, "change": value * 2}[kind]
            expected = torch.zeros_like(value) if kind == "zero" else expected
        torch.testing.assert_close(edited, expected, atol=1e-12, rtol=0, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_chosen_heads_positions_and_neurons_change(family: str) -> None:
    network = make_network(family, kv_heads=2)
    clean = record(network)
    for name in editable_sites(network):
        choices: dict[str, Any] = {"positions": [1, -1], "neurons": [0, 2]}
        if is_per_head(name):
            choices["heads"] = [1]
        edited = record(network, name, edits=[change(name, lambda x: x + 1, **choices)])[name]
        expected = clean[name].clone()
        for position in (1, clean[name].shape[-2] - 1):
            index = (1, position, [0, 2]) if is_per_head(name) else (position, [0, 2])
            expected[index] += 1
        assert torch.equal(edited, expected), name


BOUNDS = st.none() | st.integers(-10, 10)


@given(start=BOUNDS, stop=BOUNDS, step=st.none() | st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_slices_choose_the_positions_that_python_chooses(start: int | None, stop: int | None, step: int | None) -> None:
    chosen, seen = slice(start, stop, step), torch.zeros(1, len(IDS), 1)
    tap = EditTap([change("decoder.0.resid_pre", lambda value: value + 1, positions=chosen)])
    tap.layouts["decoder"] = make_layout(torch.tensor([IDS]))
    edited = tap("decoder.0.resid_pre", seen)
    assert edited[0, :, 0].nonzero()[:, 0].tolist() == list(range(len(IDS)))[chosen]


@pytest.mark.parametrize("family", FAMILIES)
def test_patching_a_run_with_itself_changes_nothing(family: str) -> None:
    network = make_network(family, kv_heads=2)
    clean = record(network)
    again = record(network, edits=[patch("*", clean)])
    for name in clean:
        torch.testing.assert_close(again[name], clean[name], atol=1e-12, rtol=0, msg=name)


def test_edits_apply_in_order_and_to_all_matching_sites() -> None:
    network = make_network("decoder")
    edits = [zero_ablate("decoder.*.mlp_out"), steer("decoder.1.mlp_out", torch.ones(16), scale=2.0)]
    edited = record(network, "*.mlp_out", edits=edits)
    assert edited["decoder.0.mlp_out"].abs().max() == 0
    assert torch.equal(edited["decoder.1.mlp_out"], torch.full((len(IDS), 16), 2.0, dtype=torch.float64))


def test_a_patch_between_different_positions() -> None:
    network = make_network("decoder")
    donor = trace(network, [9, 8, 7], sites="*")
    edit = patch("decoder.0.z", donor, positions=[5, 2], source_positions=[0, 1])
    clean, edited = (record(network, "*.0.z", edits=edits)["decoder.0.z"] for edits in ([], [edit]))
    expected = clean.clone()
    expected[:, 5], expected[:, 2] = donor["decoder.0.z"][:, 0], donor["decoder.0.z"][:, 1]
    assert torch.equal(edited, expected)
    shorter = record(network, "*.0.z", edits=[patch("decoder.0.z", donor)])["decoder.0.z"]
    assert torch.equal(shorter[:, 3:], clean[:, 3:])
    assert torch.equal(shorter[:, :3], donor["decoder.0.z"])


def test_the_mean_over_a_corpus_weighs_every_token() -> None:
    network = make_network("decoder")
    traces = list(trace_many(network, [[1, 2, 3], [4]], sites=["*.mlp_out", "*.z"]))
    means = mean_values(traces)
    every = torch.cat([t["decoder.1.mlp_out"] for t in traces])
    assert torch.allclose(means["decoder.1.mlp_out"], every.mean(0))
    assert means["decoder.1.z"].shape == (4, 4)


def test_heads_are_recorded_alone_where_their_pattern_is_edited() -> None:
    network = make_network("decoder")
    edit = zero_ablate("decoder.0.pattern", heads=[1])
    found = trace(network, IDS, sites="*pattern", heads=[1, 2], edits=[edit])
    assert found["decoder.0.pattern"].shape[0] == found["decoder.1.pattern"].shape[0] == 2
    assert found["decoder.0.pattern"][0].abs().max() == 0
    assert found["decoder.0.pattern"][1].abs().max() > 0


def test_padding_does_not_shift_positions() -> None:
    """In a batch with padding on the left, position 1 is the second token of each text."""
    network = make_network("decoder")
    edits = [change("decoder.0.resid_pre", lambda x: x + 1, positions=[1])]
    ids, mask = torch.tensor([[0, 0, *IDS[:5]], IDS]), torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    with torch.no_grad():
        together = network(Inputs(ids, document_ids=mask), tap=EditTap(edits))
        alone = network(torch.tensor([IDS[:5]]), tap=EditTap(edits))
    assert torch.allclose(together[0, 2:], alone[0], atol=1e-12)


def test_several_targets_of_one_source_are_edited_like_each_alone() -> None:
    """Cross-attention then has the queries of all targets of a source on one axis."""
    network: Any = make_network("seq2seq")
    edits = [zero_ablate(f"decoder.0.{site}", positions=[1, 2]) for site in ("cross_z", "cross_q", "cross_pattern")]
    source, targets = (
        torch.tensor([SOURCE_IDS, SOURCE_IDS[::-1]]),
        torch.tensor([[0, 1, 2, 3], [0, 4, 5, 6], [0, 7, 8, 9], [0, 3, 2, 1]]),
    )
    with torch.no_grad():
        together = network(targets, memory=network.encode(source), tap=EditTap(edits))
        for i in range(4):
            alone = network(Inputs(targets[i : i + 1], source=Inputs(source[i // 2 : i // 2 + 1])), tap=EditTap(edits))
            assert torch.allclose(together[i], alone[0], atol=1e-12)


# ── While generating ────────────────────────────────────────────────────────────────────────────────────────────────


def greedy_without_cache(network: Network, prompt: list[int], edits: Sequence[Edit], length: int) -> list[int]:
    """The reference: a forward pass over the whole text for each token, with the same edits."""
    tokens: list[int] = []
    for _ in range(length):
        example: Any = (prompt, [0, *tokens]) if network.config.family == "seq2seq" else [*prompt, *tokens]
        with torch.no_grad():
            logits = network(make_inputs(network, [example]), tap=EditTap(edits))
        tokens.append(int(logits[0, -1].argmax()))
    return tokens


def make_edits(network: Network) -> dict[str, list[Edit]]:
    stack, is_seq2seq = "decoder", network.config.family == "seq2seq"
    donor, vector = record(network, other=True), torch.randn(16, generator=torch.Generator().manual_seed(1))
    edits = {
        "every position": [zero_ablate("decoder.1.mlp_out")],
        "a head": [zero_ablate("decoder.0.z", heads=[2])],
        "keys of a prompt token": [zero_ablate("decoder.0.k", positions=[0])],
        "a token to be generated": [steer(f"{stack}.0.resid_post", vector, scale=3.0, positions=[7, 8])],
        "from a token on": [change("decoder.0.resid_mid", lambda x: -x, positions=slice(6, None))],
        "a patch": [patch("decoder.0.resid_post", donor)],
        "a patched pattern": [patch("decoder.1.pattern", donor, positions=[4, 5])],
        "resampled": [resample_ablate("decoder.*.attn_out", [donor], seed=5)],
        "mean of one head": [mean_ablate("decoder.0.v", [donor], heads=[0])],
    }
    if is_seq2seq:
        edits |= {
            "the source": [change("encoder.1.resid_pre", lambda x: x * 2, positions=[1, 3])],
            "cross keys": [zero_ablate("decoder.1.cross_k", positions=[2])],
            "cross values, last": [zero_ablate("decoder.1.cross_v", positions=[-1])],
            "cross pattern": [zero_ablate("decoder.0.cross_pattern", heads=[0, 1])],
            "cross output later": [zero_ablate("decoder.0.cross_out", positions=slice(3, None))],
            "cross z of a token": [zero_ablate("decoder.0.cross_z", positions=[2])],
        }
    return edits


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_cached_generation_with_edits_equals_forward_passes(family: str) -> None:
    network = make_network(family, kv_heads=2, position="rotary", init_std=0.5)
    prompt = IDS if family == "decoder" else SOURCE_IDS
    plain = greedy_without_cache(network, prompt, [], 10)
    num_different = 0
    for name, edits in make_edits(network).items():
        options = GenerationOptions(max_tokens=10, tap=EditTap(edits))
        found = generate(network, [prompt], options)[0].ids
        assert found == greedy_without_cache(network, prompt, edits, 10), name
        num_different += found != plain
    assert num_different > len(make_edits(network)) // 2, "most edits must change the text, or this test shows nothing"


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_negative_positions_count_from_the_end_of_the_prompt(family: str) -> None:
    network = make_network(family, init_std=0.5)
    site, prompt = ("decoder.0.resid_pre", IDS) if family == "decoder" else ("encoder.0.resid_pre", SOURCE_IDS)
    last = len(prompt) - 1
    a, b = (
        generate(network, [prompt], GenerationOptions(max_tokens=8, tap=EditTap([zero_ablate(site, positions=[p])])))
        for p in (-1, last)
    )
    assert a[0].ids == b[0].ids


def test_a_batch_with_padding_is_edited_like_its_prompts_alone() -> None:
    network = make_network("decoder", init_std=0.5)
    edits = [change("decoder.0.resid_post", lambda x: -x, positions=[1, 6])]
    prompts = [IDS, IDS[:3], [7, 7]]
    together = generate(network, prompts, GenerationOptions(max_tokens=8, tap=EditTap(edits)))
    for prompt, result in zip(prompts, together, strict=True):
        assert result.ids == greedy_without_cache(network, prompt, edits, 8)


@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_beam_search_with_edits_scores_like_forward_passes(family: str) -> None:
    """The edits include the sites that hold the queries of all beams on one axis."""
    network = make_network(family, init_std=0.5)
    prompt = IDS if family == "decoder" else SOURCE_IDS
    for name, edits in make_edits(network).items():
        options = GenerationOptions(max_tokens=6, beam=3, length_penalty=0.0, tap=EditTap(edits))
        result = generate(network, [prompt], options)[0]
        example: Any = (prompt, [0, *result.ids]) if family == "seq2seq" else [*prompt, *result.ids]
        with torch.no_grad():
            logits = network(make_inputs(network, [example]), tap=EditTap(edits))[0].log_softmax(-1)
        scores = logits[-1 - len(result.ids) : -1].gather(1, torch.tensor(result.ids)[:, None])
        assert result.score == pytest.approx(float(scores.sum()), abs=1e-6), name


def test_edits_run_on_the_reference_backend() -> None:
    network = make_network("decoder")
    assert choose_backend(network, GenerationOptions()) is CPU  # type: ignore[arg-type]
    assert choose_backend(network, GenerationOptions(tap=Tap())) is REFERENCE  # type: ignore[arg-type]


def test_generate_takes_edits(caplog: pytest.LogCaptureFixture) -> None:
    network = make_network("decoder", init_std=0.5)
    model = Model(network.config, network)
    edits = [zero_ablate("decoder.1.mlp_out")]
    expected = greedy_without_cache(network, IDS, edits, 8)
    assert model.generate(IDS, max_tokens=8, edits=edits).ids == expected  # type: ignore[call-overload]
    assert model.generate(IDS, max_tokens=8, edits=edits[0]).ids == expected  # type: ignore[call-overload]
    assert model.generate(IDS, max_tokens=8).ids != expected  # type: ignore[call-overload]
    with caplog.at_level(logging.WARNING, logger="qkv"):
        model.generate(IDS, max_tokens=2, edits=[zero_ablate("decoder.1.mlp_out", positions=[60])])
    assert "never applied" in caplog.text


# ── Wrong calls ─────────────────────────────────────────────────────────────────────────────────────────────────────


def run_edit(edit: Any, family: str = "decoder") -> Tensor:
    return record(make_network(family, kv_heads=2), "logits", edits=[edit])["logits"]


def test_wrong_edits_are_refused() -> None:
    network = make_network("decoder", kv_heads=2)
    donor = record(network, ["*.z", "*pattern"])
    some_heads = trace(network, IDS, sites="*pattern", heads=[0])
    short = trace(network, [1, 2], sites="*")
    for make, message in (
        (lambda: zero_ablate("decoder.0.zz"), "did you mean"),
        (lambda: zero_ablate("decoder.2.z"), "did you mean"),
        (lambda: zero_ablate("logits"), "edit the site 'final'"),
        (lambda: zero_ablate("decoder.0.z", heads=[4]), "there is no 4"),
        (lambda: zero_ablate("decoder.0.k", heads=[2]), "there is no 2"),
        (lambda: zero_ablate("decoder.0.mlp_out", heads=[0]), "has no head axis"),
        (lambda: zero_ablate("decoder.0.mlp_post", neurons=[24]), "there is no 24"),
        (lambda: zero_ablate("decoder.0.z", positions=[7]), "never applied"),
        (lambda: zero_ablate("decoder.0.z", positions=[-8]), "only 7 tokens"),
        (lambda: zero_ablate("decoder.0.z", positions=slice(None, None, -1)), "step"),
        (lambda: patch("decoder.0.q", donor), "nothing was recorded at 'decoder.0.q'"),
        (lambda: patch("decoder.0.pattern", some_heads), "only some heads"),
        (lambda: patch("decoder.0.z", short, positions=[5], source_positions=[4]), "has 2 tokens"),
        (lambda: patch("decoder.0.z", short, positions=[5]), "has 2 tokens"),
        (lambda: patch("decoder.0.z", short, source_positions=[4]), "same number"),
        (lambda: patch("decoder.0.z", short, positions=[-1], source_positions=[1]), "negative"),
        (lambda: steer("decoder.0.resid_pre", torch.ones(3)), "have width 16"),
        (lambda: change("decoder.0.resid_pre", lambda x: x[:, :1]), "returned shape"),
        (lambda: mean_ablate("decoder.0.pattern", [donor, short]), "equal length"),
        (lambda: mean_ablate("decoder.0.pattern", [short]), "2 tokens, but this run has more"),
        (lambda: resample_ablate("decoder.0.pattern", [some_heads]), "only some heads"),
        (lambda: "decoder.0.z", "is not an edit"),
    ):
        with pytest.raises(UsageError, match=message):
            run_edit(make())


def test_patterns_of_other_lengths_and_of_padded_batches_are_refused() -> None:
    network = make_network("encoder")
    short = trace(network, [1, 2, 3], sites="*pattern")
    with pytest.raises(UsageError, match="3 keys, and this one 7"):
        record(network, edits=[patch("encoder.0.pattern", short)])
    donor = record(network)
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    with pytest.raises(UsageError, match="one by one"):
        network(Inputs(torch.tensor([IDS, IDS]), document_ids=mask), tap=EditTap([patch("encoder.0.pattern", donor)]))
    with pytest.raises(UsageError, match="5 to 7 tokens"):
        network(
            Inputs(torch.tensor([IDS, IDS]), document_ids=mask),
            tap=EditTap([zero_ablate("encoder.0.z", positions=[-1])]),
        )


def test_a_forward_pass_of_selected_positions_is_refused() -> None:
    network: Any = make_network("decoder")
    with pytest.raises(UsageError, match="without `selected`"):
        network.hidden(torch.tensor([IDS]), selected=torch.tensor([6]), tap=EditTap([zero_ablate("decoder.1.mlp_out")]))


def test_other_ways_to_decode_refuse_a_tap() -> None:
    network = make_network("decoder")
    options = GenerationOptions(max_tokens=2, tap=EditTap([zero_ablate("decoder.0.z")]))
    with pytest.raises(UsageError, match="draft"):
        generate(network, [IDS], options, draft="lookup")
    with pytest.raises(UsageError, match="engine"):
        Engine(network).submit(IDS, options)
    with pytest.raises(UsageError, match="tap = 3"):
        generate(network, [IDS], GenerationOptions(tap=3))  # type: ignore[arg-type]
