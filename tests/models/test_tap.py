"""The tap: every site is there with its shape, shows what the model computed, and changes it when told to."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.blocks import Tap
from qkv.blocks.attention import pattern, scores
from qkv.blocks.kernels.prepared import PreparedMask
from qkv.blocks.mask import Mask, make_layout
from qkv.blocks.parts import all_sites
from qkv.blocks.position import Rotary

Make = Callable[..., Any]
FAMILIES = ["encoder", "decoder", "seq2seq"]
SEGMENT = torch.tensor([[1, 1, 1, 2, 2, 0], [0, 1, 1, 1, 1, 1]])
SOURCE_SEGMENT = torch.tensor([[1, 1, 2, 2, 0], [0, 1, 1, 1, 1]])
ROWS, LENGTH, SOURCE = 2, 6, 5
HEADS, KV, D, C, F = 4, 2, 4, 16, 24


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture
def look(network: Make, run: Make, ids: Make) -> Callable[..., Tensor]:
    """Run a network of some family on padded and packed rows, under a tap."""

    def call(family: str, tap: Tap | None = None, segments: bool = True, **choices: Any) -> Tensor:
        small = network(family, **({"kv_heads": KV, "position": "rotary"} | choices))
        segment, source_segment = (SEGMENT, SOURCE_SEGMENT) if segments else (None, None)
        return run(small, ids(ROWS, LENGTH), segment, ids(ROWS, SOURCE, seed=1), source_segment, tap=tap)

    return call


def expected_names(family: str) -> set[str]:
    """Every site of both layers, those of cross-attention where there is some."""
    sites = set(all_sites()) - {"state", "routing", "final"}  # of recurrent layers and mixtures of experts
    cross = [site for site in sites if site.startswith("cross_")]
    own = [site for site in sites if site not in cross]
    names = set()
    for stack in ("encoder", "decoder"):
        if family in (stack, "seq2seq"):
            sites = own + (cross if stack == "decoder" and family == "seq2seq" else [])
            names |= {f"{stack}.{layer}.{site}" for layer in range(2) for site in sites} | {f"{stack}.final"}
    return names


def expected_shape(name: str) -> tuple[int, ...]:
    site, t = name.rsplit(".", 1)[-1], LENGTH if name.startswith("decoder") else SOURCE
    s = SOURCE if site.startswith("cross_") else t
    shapes: dict[str, tuple[int, ...]] = {
        "q": (ROWS, HEADS, t, D),
        "k": (ROWS, KV, s, D),
        "v": (ROWS, KV, s, D),
        "scores": (ROWS, HEADS, t, s),
        "pattern": (ROWS, HEADS, t, s),
        "z": (ROWS, HEADS, t, D),
        "mlp_pre": (ROWS, t, F),
        "mlp_post": (ROWS, t, F),
    }
    return shapes.get(site.removeprefix("cross_"), (ROWS, t, C))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_site_of_every_layer_is_there(look: Make, family: str) -> None:
    tap = Tap(record=["*"])
    look(family, tap)
    assert set(tap.values) == expected_names(family)


def test_every_site_has_its_shape(look: Make) -> None:
    """A seq2seq has all of them; source and target differ in length, heads in number."""
    tap = Tap(record=["*"])
    look("seq2seq", tap)
    assert {name: tuple(value.shape) for name, value in tap.values.items()} == {
        name: expected_shape(name) for name in tap.values
    }


def test_a_gated_feedforward_shows_both_halves_before_and_one_after(look: Make) -> None:
    tap = Tap(record=["*.mlp_pre", "*.mlp_post"])
    look("encoder", tap, feedforward="swiglu")
    assert tap["encoder.0.mlp_pre"].shape[-1] == 2 * F
    assert tap["encoder.0.mlp_post"].shape[-1] == F


# ── Trap 5: looking changes nothing ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("record", [["*"], ["*pattern"], ["*.0.scores"], ["*.resid_post"]], ids=str)
@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_looking_leaves_outputs_bit_for_bit_the_same(
    look: Make, family: str, kernel: str, segments: bool, record: list[str]
) -> None:
    tap = Tap(record=record)
    seen = look(family, tap, segments, kernel=kernel)
    assert tap.values
    assert torch.equal(seen, look(family, None, segments, kernel=kernel))


def test_looking_draws_no_random_numbers(network: Make, ids: Make) -> None:
    """In training, the same seed drops the same weights whether or not someone looks."""
    small = network("decoder", attention_dropout=0.3, dropout=0.3).train()
    outputs = []
    for tap in (None, Tap(record=["*"])):
        torch.manual_seed(0)
        outputs.append(small(ids(2, 6), tap=tap))
    assert torch.equal(*outputs)


# ── What is shown is what was computed ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("position", ["rotary", "alibi", "t5"])
@pytest.mark.parametrize("family", FAMILIES)
def test_patterns_are_those_that_mixed_the_values(look: Make, family: str, position: str, kernel: str) -> None:
    """z = pattern · v, for self- and cross-attention, under padding, packing and causality."""
    tap = Tap(record=["*"])
    look(family, tap, kernel=kernel, position=position)
    checked = 0
    for name in list(tap.values):
        if not name.endswith("pattern"):
            continue
        v = tap[name.replace("pattern", "v")].repeat_interleave(HEADS // KV, dim=1)
        assert torch.allclose(tap[name] @ v, tap[name.replace("pattern", "z")], atol=1e-12)
        assert torch.equal(tap[name], pattern(tap[name.replace("pattern", "scores")]))
        checked += 1
    assert checked == {"encoder": 2, "decoder": 2, "seq2seq": 6}[family]


def test_a_recorded_pattern_is_the_softmax_of_the_plain_kernel(look: Make) -> None:
    tap = Tap(record=["*.q", "*.k", "*.pattern"])
    look("decoder", tap)
    place = make_layout(SEGMENT, SEGMENT)
    prepared = PreparedMask(Mask(place, place, causal=True), "eager")
    expected = pattern(scores(tap["decoder.1.q"], tap["decoder.1.k"], prepared, D**-0.5))
    assert torch.equal(tap["decoder.1.pattern"], expected)
    sums = tap["decoder.1.pattern"].sum(-1)
    assert torch.allclose(sums, (SEGMENT != 0).double()[:, None].expand_as(sums))


def test_queries_and_keys_are_shown_as_they_meet(look: Make) -> None:
    """After the rotary turn, before any repetition of grouped heads."""
    turned, still = Tap(record=["*.0.q"]), Tap(record=["*.0.q"])
    look("decoder", turned)
    look("decoder", still, position="none")
    rotary = Rotary(make_layout(SEGMENT, SEGMENT).positions, D, 10_000.0, None, torch.float64)
    assert torch.allclose(turned["decoder.0.q"], rotary.rotate(still["decoder.0.q"]), atol=1e-12)


def test_the_stream_adds_up(look: Make) -> None:
    tap = Tap(record=["*"])
    out = look("seq2seq", tap)
    for layer in range(2):
        at = f"decoder.{layer}."
        assert torch.equal(tap[at + "resid_mid"], tap[at + "resid_pre"] + tap[at + "attn_out"])
        assert torch.equal(tap[at + "cross_mid"], tap[at + "resid_mid"] + tap[at + "cross_out"])
        assert torch.equal(tap[at + "resid_post"], tap[at + "cross_mid"] + tap[at + "mlp_out"])
    assert torch.equal(tap["decoder.1.resid_pre"], tap["decoder.0.resid_post"])
    assert torch.equal(tap["decoder.final"], out)


def test_heads_limit_what_is_recomputed(look: Make) -> None:
    every, some = Tap(record=["*pattern", "*scores"]), Tap(record=["*pattern", "*scores"], heads=[3, 1])
    look("seq2seq", every, position="t5")
    look("seq2seq", some, position="t5")
    assert set(every.values) == set(some.values)
    for name in every.values:
        assert torch.equal(some[name], every[name][:, [3, 1]]), name


def test_a_cached_step_shows_all_keys(network: Make, ids: Make) -> None:
    small, text = network("decoder"), ids(2, 6)
    full, step = Tap(record=["*pattern"]), Tap(record=["*pattern"])
    small(text, tap=full)
    cache = small.new_cache(2, 8)
    small(text[:, :5], cache=cache)
    small(text[:, 5:], cache=cache, tap=step)
    assert torch.allclose(step["decoder.1.pattern"], full["decoder.1.pattern"][:, :, 5:], atol=1e-12)


# ── Changing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def nudge(value: Tensor) -> Tensor:
    """Something else at every place, that also survives a softmax."""
    steps = torch.arange(value[0].numel(), dtype=value.dtype).view(value.shape[1:])
    return value + 0.5 * torch.sin(steps)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", sorted(expected_names("seq2seq")))
def test_changing_any_site_changes_the_output(look: Make, name: str, kernel: str) -> None:
    tap = Tap(record=[name], change={name: nudge})
    changed, before = look("seq2seq", tap, kernel=kernel), look("seq2seq", kernel=kernel)
    real = SEGMENT != 0
    assert not torch.allclose(changed[real], before[real], atol=1e-6)
    assert changed[real].isfinite().all()
    recorded = Tap(record=[name])
    look("seq2seq", recorded, kernel=kernel)
    assert torch.allclose(tap[name], nudge(recorded[name]), atol=1e-12), "what is recorded is what was put there"


@pytest.mark.parametrize("name", ["decoder.0.pattern", "encoder.1.scores", "decoder.1.cross_pattern"])
def test_putting_back_what_was_there_changes_nothing(look: Make, name: str) -> None:
    """The slow path that a change takes is the same attention."""
    assert torch.allclose(look("seq2seq", Tap(change={name: lambda value: value})), look("seq2seq"), atol=1e-12)


def test_a_head_that_is_silenced_is_a_head_whose_output_is_zero(look: Make, network: Make, ids: Make) -> None:
    def silence(z: Tensor) -> Tensor:
        return torch.cat([z[:, :1], torch.zeros_like(z[:, 1:2]), z[:, 2:]], dim=1)

    small = network("encoder")
    changed = small(ids(2, 6), tap=Tap(change={"encoder.1.z": silence}))
    with torch.no_grad():
        small.encoder.blocks[1].attention.out.weight[:, D : 2 * D] = 0.0
    assert torch.allclose(changed, small(ids(2, 6)), atol=1e-12)


def test_changes_reach_the_layers_that_they_name_and_no_others(look: Make) -> None:
    before, after = Tap(record=["*"]), Tap(record=["*"], change={"decoder.1.mlp_out": torch.zeros_like})
    look("decoder", before)
    look("decoder", after)
    different = {name for name in before.values if not torch.equal(before[name], after[name])}
    assert different == {"decoder.1.mlp_out", "decoder.1.resid_post", "decoder.final"}


# ── Names ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["decoder.0.cross_patern", "decoder.0.attention", "*.Q", "resid", ""])
def test_a_site_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"no site matches .*; the last part must be one of resid_pre"):
        Tap(record=[name])
    with pytest.raises(ValueError, match="no site matches"):
        Tap(change={name: nudge})


def test_names_may_be_exact_or_patterns() -> None:
    tap = Tap(record=["decoder.0.cross_pattern", "encoder.*.z"], change={"*.1.resid_*": nudge})
    assert tap.matches("decoder.0.cross_pattern")
    assert not tap.matches("decoder.1.cross_pattern")
    assert tap.matches("encoder.7.z")
    assert tap.matches("encoder.1.resid_mid")
    assert tap.changes("encoder.1.resid_mid")
    assert not tap.changes("encoder.7.z")


def test_only_what_was_asked_for_is_kept(look: Make) -> None:
    tap = Tap(record=["decoder.0.cross_pattern"])
    look("seq2seq", tap)
    assert set(tap.values) == {"decoder.0.cross_pattern"}
    with pytest.raises(KeyError):
        tap["decoder.0.z"]
