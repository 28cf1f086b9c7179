"""Hypotheses side by side in one row of the cache find what hypotheses with caches of their own find."""

import pytest
import torch
from decode_models import START, run_backend
from decode_stacks import DECODERS, PROMPTS, STACKS, apart, make
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.blocks import SelfCache
from qkv.decode import GenerationOptions
from qkv.decode.backend import CPU, REFERENCE, Backend
from qkv.decode.cpu import beam_slots
from qkv.decode.cpu import step as fast_cpu
from qkv.decode.cpu.beam_slots import NEG_INF, BeamSlots
from qkv.decode.runner import ModelRunner
from qkv.models import Seq2Seq

BEAMS = 3
EVERY = [("decoder", name) for name in DECODERS] + [("seq2seq", name) for name in STACKS]


def tidy_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_slots, "COMPACT_EVERY_STEPS", 1)
    monkeypatch.setattr(beam_slots, "MAX_USED_FRACTION", 1.0)


def found(
    family: str, name: str, prompts: list[list[int]], options: GenerationOptions, backend: Backend = CPU
) -> list[tuple[list[int], float]]:
    results = run_backend(backend, make(family, {**DECODERS[name], "init_std": 0.8}), prompts, options)
    return [(one.ids, round(one.score, 9)) for result in results for one in (result, *result.alternatives)]


@pytest.mark.parametrize("prompts", PROMPTS)
@pytest.mark.parametrize(("family", "name"), EVERY)
@pytest.mark.parametrize(("many", "tidied"), [(1, False), (100, False), (1, True)], ids=["products", "sdpa", "tidied"])
def test_a_search_finds_the_same(
    family: str, name: str, prompts: str, many: int, tidied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_cpu, "MIN_BATCHED_QUERIES", many)
    if tidied:
        tidy_always(monkeypatch)
    options = GenerationOptions(max_tokens=6, beam=BEAMS, num_return_sequences=BEAMS)
    ours = found(family, name, PROMPTS[prompts], options)
    assert found(family, name, PROMPTS[prompts], options, REFERENCE) == ours


def test_a_search_moves_no_keys_until_a_source_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cache: SelfCache, rows: torch.Tensor, since: int = 0) -> None:
        raise AssertionError("the cache was moved")

    monkeypatch.setattr(beam_slots, "reorder_cache", refuse)
    monkeypatch.setattr(fast_cpu, "reorder_cache", refuse)
    assert found("seq2seq", "pre-norm", [[5, 6, 7]], GenerationOptions(max_tokens=6, beam=BEAMS))


# ── Any course of a search ───────────────────────────────────────────────────────────────────────────────────────

Course = list[tuple[list[int], list[int]]]
"""Of each step the rows that stay, by their numbers, and of each hypothesis of these its parent in its row."""
NAMES = [("decoder", "windows"), ("decoder", "t5"), ("decoder", "grouped heads"), ("seq2seq", "post-norm")]
NETWORKS = {pair: make(pair[0], STACKS[pair[1]]) for pair in NAMES}


@st.composite
def courses(draw: st.DrawFn) -> Course:
    rows, course = 3, []
    for _ in range(draw(st.integers(1, 5))):
        staying = sorted(draw(st.sets(st.integers(0, rows - 1), min_size=1)))
        parents = [draw(st.integers(0, BEAMS - 1)) for _ in range(len(staying) * BEAMS)]
        course.append((staying, parents))
        rows = len(staying)
    return course


def logits_of(pair: tuple[str, str], prompts: list[list[int]], course: Course, *, fast: bool) -> list[torch.Tensor]:
    network = NETWORKS[pair]
    targets = [[START]] * len(prompts) if isinstance(network, Seq2Seq) else prompts
    run = ModelRunner(network, targets, max_new_tokens=2, cpu=fast)
    with torch.inference_mode():
        if isinstance(network, Seq2Seq):
            run.encode_sources(prompts)
        out = [run.prefill()]
        run.expand_beams(BEAMS)
        rows = len(prompts)
        for number, (staying, parents) in enumerate(course):
            chosen = torch.tensor(
                [row * BEAMS + parents[n * BEAMS + b] for n, row in enumerate(staying) for b in range(BEAMS)]
            )
            (run.keep if len(staying) < rows else run.reorder)(chosen)
            rows = len(staying)
            out.append(run.step((torch.arange(rows * BEAMS) * 7 + number) % 17 + 3))
    return out


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NAMES), st.sampled_from(sorted(PROMPTS)), courses(), st.booleans())
def test_any_course_of_a_search_gives_the_same_logits(
    pair: tuple[str, str], prompts: str, course: Course, tidied: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if tidied:
            tidy_always(patch)
        both = [logits_of(pair, PROMPTS[prompts], course, fast=fast) for fast in (True, False)]
    assert apart(*both) < 1e-12


def test_a_parent_that_is_not_followed_is_seen() -> None:
    """Negative control: who came by what matters to the logits."""
    swapped, kept = [([0, 1, 2], parents) for parents in ([1, 0, 2] * 3, [0, 1, 2] * 3)]
    first = ([0, 1, 2], [0] * 9)
    one, other = (
        logits_of(("decoder", "t5"), PROMPTS["even"], [first, second], fast=True) for second in (swapped, kept)
    )
    assert apart(one, other) > 1e-3


# ── The mask ─────────────────────────────────────────────────────────────────────────────────────────────────────


def cache_of(rows: int, filled: int) -> SelfCache:
    cache = SelfCache(1, rows, 1, 8, 2)
    cache.filled = filled
    cache.document_ids[:, :filled] = 1
    cache.positions[:, :filled] = torch.arange(filled)
    return cache


def seen(forks: BeamSlots) -> list[list[list[int]]]:
    return [[[s for s, value in enumerate(row) if value == 0] for row in rows] for rows in forks.mask.tolist()]


def test_a_hypothesis_sees_its_prompt_and_its_own_slots() -> None:
    forks = BeamSlots(cache_of(1, 2), 2, torch.float32)
    assert seen(forks) == [[[0, 1], [0, 1]]]
    assert forks.advance().positions.tolist() == [[2, 2]]
    assert seen(forks) == [[[0, 1, 2], [0, 1, 3]]]
    forks.reorder(torch.tensor([1, 1]))
    assert forks.advance().positions.tolist() == [[3, 3]]
    assert seen(forks) == [[[0, 1, 3, 4], [0, 1, 3, 5]]]
    assert set(forks.mask.unique().tolist()) == {0.0, NEG_INF}


def test_what_nobody_sees_any_more_is_tidied_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 0 goes on from its hypothesis 1 alone, row 1 from both: the longer one says how many slots there are."""
    monkeypatch.setattr(beam_slots, "COMPACT_EVERY_STEPS", 2)
    cache = cache_of(2, 1)
    forks = BeamSlots(cache, 2, torch.float32)
    for parents in ([0, 1, 2, 3], [1, 1, 2, 3]):
        cache.add_layout(forks.advance())
        cache.write(0, *(cache.positions[:, None, cache.filled - 2 : cache.filled, None].expand(-1, -1, -1, 2),) * 2)
        forks.reorder(torch.tensor(parents))
    assert cache.filled == 5, "most of it is seen"
    forks.steps = 4
    forks.reorder(torch.tensor([0, 1, 2, 2]))
    assert cache.filled == 3
    assert seen(forks) == [[[0, 1, 2], [0, 1, 2]]] * 2
    assert cache.positions[:, :3].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert cache.keys[0][:, 0, :3, 0].tolist() == [[0, 1, 2], [0, 1, 2]], "keys moved with their places"
    assert cache.document_ids.sum(dim=1).tolist() == [3, 3], "the rest is free again"
    assert forks.advance().positions.tolist() == [[3, 3], [3, 3]]


def test_a_row_with_fewer_slots_sees_no_more_than_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    tidy_always(monkeypatch)
    cache = cache_of(2, 1)
    forks = BeamSlots(cache, 3, torch.float32)
    cache.add_layout(forks.advance())
    forks.reorder(torch.tensor([2, 2, 2, 3, 4, 3]))
    assert cache.filled == 3
    assert seen(forks) == [[[0, 1]] * 3, [[0, 1], [0, 2], [0, 1]]]


def test_padding_of_prompts_is_never_seen() -> None:
    cache = cache_of(2, 3)
    cache.document_ids[1, :2] = 0
    cache.positions[1, 2] = 0
    cache.is_default = False
    assert seen(BeamSlots(cache, 2, torch.float32)) == [[[0, 1, 2]] * 2, [[2]] * 2]


def test_what_hypotheses_have_in_common_is_held_once() -> None:
    """Slots grow with the text, not with the text times the beams."""
    cache, beams, steps = cache_of(1, 1), 5, 64
    forks = BeamSlots(cache, beams, torch.float32)
    for _ in range(steps):
        cache.add_layout(forks.advance())
        forks.reorder(torch.zeros(beams, dtype=torch.long))
    assert cache.filled <= 1 + steps + beam_slots.COMPACT_EVERY_STEPS * beams
    assert len(seen(forks)[0][0]) == 1 + steps


def test_what_leaves_takes_its_row_of_the_cache_with_it() -> None:
    cache = cache_of(3, 2)
    cache.keys[0][:] = torch.arange(3.0)[:, None, None, None]
    forks = BeamSlots(cache, 2, torch.float32)
    forks.reorder(torch.tensor([1, 0, 5, 5]))
    assert cache.batch_size == 2
    assert cache.keys[0][:, 0, 0, 0].tolist() == [0.0, 2.0]
    assert len(forks.mask) == 2
