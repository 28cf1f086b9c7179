"""Span corruption and denoising: what was spoiled can be put together again, and in the stated amounts."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_data import documents, marked_texts, parts, quick, tokenizer

from qkv.data.objectives.denoising import DenoisingObjective, poisson_cdf_table
from qkv.data.objectives.span_corruption import SpanCorruptionObjective
from qkv.data.stream.random_bits import EpochRng

ROLES = tokenizer().special_tokens


NOW = EpochRng(0)


def built(objective, draw=NOW):
    return parts(objective.build(np.arange(objective.num_examples(draw)), draw))


def check_teacher_forcing(part: dict, target: list[int]) -> None:
    assert part["ids"] == [ROLES.bos, *target]
    assert part["tokens"] == [*target, ROLES.eos]


# ---------------------------------------------------------------- span corruption


def restore_document(source: list[int], target: list[int], sentinels: tuple[int, ...]) -> list[int]:
    """Restore the original text from a corrupted source and its target, both without EOS."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in sentinels:
            spans[token] = current = []
        else:
            current.append(token)
    return [restored for token in source for restored in (spans[token] if token in sentinels else [token])]


@quick
@given(st.lists(st.integers(1, 80), min_size=1, max_size=6), st.integers(0, 3), st.sampled_from([0.15, 0.5, 0.9]))
def test_source_and_target_restore_the_text(lengths, epoch, density):
    examples = documents(lengths)
    objective = SpanCorruptionObjective(
        examples, tokenizer(), max_source_length=128, mask_prob=density, too_long="error"
    )
    for number, part in enumerate(built(objective, EpochRng(0, epoch))):
        assert part["source_ids"][-1] == part["tokens"][-1] == ROLES.eos
        source, target = part["source_ids"][:-1], part["tokens"][:-1]
        check_teacher_forcing(part, target)
        assert restore_document(source, target, ROLES.sentinels) == examples[number]["ids"].tolist()
        for side in (source, target):
            marks = [token for token in side if token in set(ROLES.sentinels)]
            assert tuple(marks) == ROLES.sentinels[: len(marks)], "each sentinel once, in order"
        assert len([t for t in source if t in ROLES.sentinels]) == len([t for t in target if t in ROLES.sentinels])


def test_the_amounts_are_those_of_t5():
    # T5's own numbers: 568 tokens become 512 on the source side and 114 on the target side, end tokens included.
    objective = SpanCorruptionObjective(documents([568]), tokenizer(), max_source_length=512)
    assert objective.max_lengths == (114, 512)
    assert objective.windows.window_length == 568
    part = built(objective)[0]
    assert len(part["source_ids"]) == 512
    marks = sum(token in ROLES.sentinels for token in part["source_ids"])
    assert marks == 28
    assert len(part["tokens"]) - marks - 1 == 85  # 15 % of 568, in spans of 3.04 on average


def test_no_span_is_favoured():
    objective = SpanCorruptionObjective(documents([30] * 2000), tokenizer(), max_source_length=64)
    hidden = np.zeros(30)
    for number, part in enumerate(built(objective)):
        tokens = objective.examples[number]["ids"].tolist()
        kept, place = part["source_ids"][:-1], 0
        for token in kept:
            if token in ROLES.sentinels:
                span = part["tokens"].index(token) + 1
                while part["tokens"][span] not in ROLES.sentinels and part["tokens"][span] != ROLES.eos:
                    assert part["tokens"][span] == tokens[place]
                    hidden[place] += 1
                    place, span = place + 1, span + 1
            else:
                place += 1
    assert hidden[0] == 0  # a text begins with what is kept and ends with what is cut, as in T5
    assert hidden[-1] == 2000
    inner = hidden[3:-5] / 2000
    assert inner.max() < 2.5 * inner.min()


# ---------------------------------------------------------------- denoising


def denoise(lengths, **choices) -> DenoisingObjective:
    return DenoisingObjective(documents(lengths), tokenizer(), **{"max_length": 128, **choices})


@quick
@given(st.lists(st.integers(1, 100), min_size=1, max_size=6), st.integers(0, 3), st.sampled_from([0.1, 0.3, 0.8]))
def test_the_source_is_the_text_with_spans_masked(lengths, epoch, share):
    objective = denoise(lengths, mask_prob=share)
    for number, part in enumerate(built(objective, EpochRng(0, epoch))):
        tokens = objective.examples[number]["ids"].tolist()
        check_teacher_forcing(part, tokens)
        source = part["source_ids"][:-1]
        kept = [token for token in source if token != ROLES.mask]
        gone = max(1, min(len(tokens), int(share * len(tokens) + 0.5)))
        assert len(tokens) - len(kept) == gone
        rest = iter(tokens)
        assert all(token in rest for token in kept), "what is kept keeps its order"
        assert 1 <= len(source) - len(kept) <= gone


def test_spans_have_poisson_lengths():
    objective = denoise([400], max_length=512)
    objective = DenoisingObjective(documents([400] * 300), tokenizer(), max_length=512, max_source_length=512)
    spans, lengths = objective._sample_spans(np.full(300, 400), EpochRng(0).keys("span lengths", np.arange(300)))
    ends = np.cumsum(spans) - 1
    inner = np.delete(lengths, ends)  # the last span of a text takes what is missing, so it is shorter
    expected = np.diff(poisson_cdf_table(3.0), prepend=0)
    observed = np.bincount(inner, minlength=10)[:8] / len(inner)
    assert (abs(observed - expected[:8]) < 0.02).all()
    assert observed[0] > 0.03  # spans of length 0 are there: masks where nothing is missing


def test_a_short_source_row_is_never_overrun():
    objective = DenoisingObjective(documents([100] * 200), tokenizer(), max_length=128, max_source_length=84)
    assert objective.lengths(np.arange(200), EpochRng(0))[:, 1].max() <= 84
    loose = DenoisingObjective(documents([100] * 200), tokenizer(), max_length=128, max_source_length=128)
    assert loose.lengths(np.arange(200), EpochRng(0))[:, 1].max() > 84  # the control: chance alone would have


def test_sentences_are_permuted_whole():
    examples = marked_texts()
    objective = DenoisingObjective(
        examples, tokenizer(), max_length=256, max_source_length=256, mask_prob=0.001, permute_sentences=True
    )
    moved = 0
    for number, part in enumerate(built(objective)):
        tokens = examples[number]["ids"].tolist()
        starts = [*examples[number]["sentences"].tolist(), len(tokens)]
        sentences = [tokens[a:b] for a, b in pairwise(starts)]
        source = part["source_ids"][:-1]
        mask = source.index(ROLES.mask)  # one token is masked at least, so look at the sentences around it
        assert sorted(source[:mask] + source[mask + 1 :]) == sorted(set_less(tokens, source))
        moved += source != [*tokens[:mask], ROLES.mask, *tokens[mask + 1 :]]
        whole = bytes(token % 256 for token in source)
        present = sum(bytes(token % 256 for token in sentence) in whole for sentence in sentences)
        assert present >= len(sentences) - 1
        check_teacher_forcing(part, tokens)
    assert moved > 10


def set_less(tokens: list[int], source: list[int]) -> list[int]:
    """The tokens without the one that the source lacks."""
    left = list(tokens)
    for token in source:
        if token != ROLES.mask:
            left.remove(token)
    (gone,) = left
    rest = list(tokens)
    rest.remove(gone)
    return rest


def test_the_default_source_row_fits_what_is_left():
    objective = denoise([127] * 500)
    lengths = objective.lengths(np.arange(500), EpochRng(0))
    assert lengths[:, 1].mean() / objective.max_lengths[1] == pytest.approx(0.95, abs=0.05)
