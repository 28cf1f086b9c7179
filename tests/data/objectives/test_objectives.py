"""What holds for every objective: it keeps its word on lengths, and an example is the same in any company."""

import numpy as np
import pytest
from synthetic_data import OBJECTIVES, documents, marked_texts, paired, parts, tokenizer

from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.denoising import DenoisingObjective
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.objectives.next_sentence import NextSentenceObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.data.objectives.span_corruption import SpanCorruptionObjective
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError
from qkv.text import Tokenizer

RANDOM = ["masked", "masked, whole words", "next sentence", "span corruption", "denoise"]


def everything(objective, draw) -> np.ndarray:
    examples = np.arange(objective.num_examples(draw))
    return examples[objective.lengths(examples, draw).any(axis=1)]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_lengths_are_what_is_built(name):
    objective = OBJECTIVES[name]()
    for epoch in (0, 1, 5):
        draw = EpochRng(3, epoch)
        examples = everything(objective, draw)
        pieces = objective.build(examples, draw)
        sides = [pieces.lengths] + ([] if pieces.source_lengths is None else [pieces.source_lengths])
        assert objective.lengths(examples, draw).tolist() == np.stack(sides, axis=1).tolist()
        assert (np.stack(sides, axis=1) <= objective.max_lengths).all()
        assert len(pieces.ids) == pieces.lengths.sum()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_example_is_the_same_in_any_company(name):
    objective = OBJECTIVES[name]()
    draw = EpochRng(1, 2)
    examples = everything(objective, draw)
    together = parts(objective.build(examples, draw))
    alone = [parts(objective.build(examples[place : place + 1], draw))[0] for place in range(len(examples))]
    turned = parts(objective.build(examples[::-1], draw))[::-1]
    assert together == alone
    assert together == turned


@pytest.mark.parametrize("name", OBJECTIVES)
def test_outputs_are_what_is_built(name):
    objective = OBJECTIVES[name]()
    draw = EpochRng(0)
    pieces = objective.build(everything(objective, draw), draw)
    assert tuple(pieces.labels) == tuple(label.name for label in objective.labels)
    assert (pieces.token_type_ids is not None) == objective.has_token_types
    assert (pieces.source_ids is not None) == (len(objective.max_lengths) == 2)
    for label in objective.labels:
        count = pieces.lengths.sum() if label.per == "token" else len(pieces.lengths)
        assert pieces.labels[label.name].shape == ((count, label.width) if label.width else (count,))


@pytest.mark.parametrize("name", RANDOM)
def test_choices_differ_between_epochs_and_seeds(name):
    objective = OBJECTIVES[name]()
    examples = everything(objective, EpochRng(0))
    built = [
        parts(objective.build(examples, EpochRng(seed, epoch))) for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]
    assert built[0] != built[1]
    assert built[0] != built[2]
    assert built[0] == built[3]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_example_can_be_named(name):
    objective = OBJECTIVES[name]()
    assert objective.origin(0, EpochRng(0)).startswith("record ")


def test_no_examples_is_an_error():
    with pytest.raises(QkvError, match="no examples"):
        CausalLMObjective(documents([]), tokenizer(), max_length=8)


def test_a_missing_field_names_those_there_are():
    with pytest.raises(UsageError, match="no field 'source'; known: ids"):
        Seq2SeqObjective(documents([3]), tokenizer(), max_length=8)


def test_a_missing_role_is_named():
    plain = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad", "eos"])
    with pytest.raises(UsageError, match="'mask'"):
        MaskedLMObjective(documents([3]), plain, max_length=8)


def test_too_few_sentinels_are_counted():
    few = Tokenizer.train("byte", iter([]), vocab_size=280, special_tokens=["pad", "eos"], num_sentinels=5)
    with pytest.raises(UsageError, match=r"need \d+ sentinel tokens, but the tokenizer has 5"):
        SpanCorruptionObjective(documents([3]), few, max_source_length=512)


def no_separator():
    return Tokenizer.train("byte", iter([]), vocab_size=258, special_tokens=["pad", "mask"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SpanCorruptionObjective(documents([3]), tokenizer(), max_source_length=32, mask_prob=1.0),
            "mask_prob = 1.0",
        ),
        (
            lambda: SpanCorruptionObjective(documents([3]), tokenizer(), max_source_length=32, mean_span_length=0.5),
            "mean_span_length = 0.5",
        ),
        (lambda: DenoisingObjective(documents([3]), tokenizer(), max_length=32, mask_prob=0.0), "mask_prob = 0.0"),
        (lambda: NextSentenceObjective(marked_texts(), no_separator(), max_length=32), "sep"),
    ],
)
def test_impossible_choices_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_a_row_too_short_for_anything_is_refused():
    with pytest.raises(UsageError, match="length = 2 is too small"):
        MaskedLMObjective(documents([3]), tokenizer(), max_length=2)


@pytest.mark.parametrize(
    ("too_long", "expected"),
    [
        ("skip", {"examples": 2, "skipped": 2, "truncated": 0, "lost_tokens": 2 + 20 + 12 + 2, "tokens": 6}),
        (
            "truncate",
            {"examples": 4, "skipped": 0, "truncated": 2, "lost_tokens": (21 - 10) + (13 - 8), "tokens": 6 + 36 - 16},
        ),
    ],
)
def test_pairs_that_do_not_fit_are_counted(too_long, expected):
    examples = paired([(2, 2), (2, 20), (12, 2), (1, 1)])  # source, target
    objective = Seq2SeqObjective(examples, tokenizer(), max_length=10, max_source_length=8, too_long=too_long)
    assert {name: objective.counts.to_dict()[name] for name in expected} == expected


def test_pairs_that_do_not_fit_stop_the_run_unless_a_choice_is_made():
    with pytest.raises(QkvError, match=r"2 of 4 records are too long.*needs 21 tokens, and max_length is 10.*too_long"):
        Seq2SeqObjective(paired([(2, 2), (2, 20), (12, 2), (1, 1)]), tokenizer(), max_length=10, max_source_length=8)
