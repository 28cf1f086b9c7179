"""Pairs, classes, tags, answers and contrastive pairs: what is shown and what is asked, place by place."""

import numpy as np
import pytest
from synthetic_data import PAIRS, labelled, paired, parts, questions, tagged, texts, tokenizer, tokens_to_char_span

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.objectives import IGNORE_INDEX, SpecialTokenTemplate
from qkv.data.objectives.classification import ClassificationObjective
from qkv.data.objectives.contrastive import ContrastiveObjective
from qkv.data.objectives.question_answering import QuestionAnsweringObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.data.objectives.tagging import TaggingObjective
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError
from qkv.text import Tokenizer

ROLES = tokenizer().special_tokens
NOW = EpochRng(0)


def built(objective):
    examples = np.arange(objective.num_examples(NOW))
    return parts(objective.build(examples[objective.lengths(examples, NOW).any(axis=1)], NOW))


# ---------------------------------------------------------------- frames


@pytest.mark.parametrize("template", ["bert", "roberta", "eos", "bos-eos", "bos"])
def test_a_frame_is_what_the_tokenizer_lays_around_texts(template):
    made = tokenizer(template)
    frame = SpecialTokenTemplate.from_tokenizer(made)
    one, two = made.encode("hello", add_special_tokens=False), made.encode("you", add_special_tokens=False)
    lengths = [np.array([len(one)]), np.array([len(two)])]
    assert frame.add_special_tokens((np.array(one), lengths[0]))[0].tolist() == made.encode("hello")
    ids, types = made.encode_with_token_types("hello", "you")
    assert frame.add_special_tokens((np.array(one), lengths[0]), (np.array(two), lengths[1]))[0].tolist() == ids
    assert frame.token_type_ids(*lengths).tolist() == types
    assert frame.num_special_tokens() == len(made.encode("hello")) - len(one)
    assert frame.num_special_tokens(pair=True) == len(ids) - len(one) - len(two)


def test_without_a_template_the_roles_make_the_frame():
    frame = SpecialTokenTemplate.from_tokenizer(tokenizer("none"))
    assert (frame.prefix, frame.separator, frame.suffix) == ((ROLES.cls,), (ROLES.sep,), (ROLES.sep,))


# ---------------------------------------------------------------- pairs


def test_teacher_forcing():
    examples = paired(PAIRS)
    for number, part in enumerate(built(Seq2SeqObjective(examples, tokenizer(), max_length=40))):
        source, target = (examples[number][field].tolist() for field in ("source", "target"))
        assert part["source_ids"] == [*source, ROLES.eos]
        assert part["ids"] == [ROLES.bos, *target]
        assert part["tokens"] == [*target, ROLES.eos]


def test_a_cut_target_is_not_taught_to_end():
    examples = paired([(3, 9), (9, 3), (3, 4), (3, 5)])
    found = built(Seq2SeqObjective(examples, tokenizer(), max_length=5, max_source_length=6, too_long="truncate"))
    target = examples[0]["target"].tolist()
    assert found[0]["ids"] == [ROLES.bos, *target[:4]]
    assert found[0]["tokens"] == target[:5]
    assert found[1]["source_ids"] == [*examples[1]["source"].tolist()[:5], ROLES.eos]
    assert found[2]["tokens"] == [*examples[2]["target"].tolist(), ROLES.eos]  # 4 tokens and the end: fits exactly
    assert found[3]["tokens"] == examples[3]["target"].tolist()  # 5 tokens fit, the end does not


def test_source_rows_take_the_proportions_of_the_data():
    examples = paired([(20, 9)] * 10)  # 21 and 10 places
    assert Seq2SeqObjective(examples, tokenizer(), max_length=100).max_lengths == (
        100,
        216,
    )  # 210, rounded up to a multiple of 8


def test_padding_starts_the_decoder_where_there_is_no_start_token():
    t5 = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad", "eos"])
    part = built(Seq2SeqObjective(paired([(2, 2)]), t5, max_length=8))[0]
    assert part["ids"][0] == t5.special_tokens.pad


# ---------------------------------------------------------------- classes


def test_two_texts_with_types_and_a_class():
    examples = labelled()
    for number, part in enumerate(built(ClassificationObjective(examples, tokenizer(), max_length=64))):
        one, two = (examples[number][field].tolist() for field in ("first", "second"))
        assert part["ids"] == [ROLES.cls, *one, ROLES.sep, *two, ROLES.sep]
        assert part["token_type_ids"] == [0] * (len(one) + 2) + [1] * (len(two) + 1)
        assert part["classes"] == number % 3


def test_one_text_with_a_score():
    examples = InMemoryExamples([{"first": [200, 201], "score": [0.25]}, {"first": [202], "score": [3.5]}])
    found = built(ClassificationObjective(examples, tokenizer(), max_length=8))
    assert found[0] == {"ids": [ROLES.cls, 200, 201, ROLES.sep], "scores": 0.25}
    assert found[1]["scores"] == 3.5


def test_the_longer_text_is_cut_first():
    examples = InMemoryExamples([{"first": list(range(200, 212)), "second": [150, 151], "label": [0]}])
    with pytest.raises(QkvError, match="needs 17 tokens, and max_length is 10"):
        ClassificationObjective(examples, tokenizer(), max_length=10)
    objective = ClassificationObjective(examples, tokenizer(), max_length=10, too_long="truncate")
    assert built(objective)[0]["ids"] == [ROLES.cls, *range(200, 205), ROLES.sep, 150, 151, ROLES.sep]
    assert (objective.counts.truncated, objective.counts.lost_tokens) == (1, 7)


# ---------------------------------------------------------------- tags


def test_tags_stand_beside_their_tokens_and_survive_splitting():
    examples = tagged()
    objective = TaggingObjective(examples, tokenizer(), max_length=32, too_long="split")
    found: dict[int, list[int]] = {}
    record, _, _ = objective.windows.locate(np.arange(objective.num_examples(NOW)), NOW)
    for one, part in zip(record.tolist(), built(objective), strict=True):
        assert part["tokens"][0] == part["tokens"][-1] == IGNORE_INDEX
        assert [token % 5 for token in part["ids"][1:-1]] == part["tokens"][1:-1]
        found.setdefault(one, []).extend(part["tokens"][1:-1])
    assert [found[one] for one in range(len(examples))] == [
        examples[one]["tags"].tolist() for one in range(len(examples))
    ]


# ---------------------------------------------------------------- answers


def answers(**choices) -> QuestionAnsweringObjective:
    return QuestionAnsweringObjective(
        questions(), tokenizer(), **{"max_length": 40, "overlap": 8, "max_question_length": 10, **choices}
    )


def test_windows_overlap_cover_the_passage_and_point_at_the_answer():
    objective = answers()
    examples = objective.examples
    record, _, first, size = objective.locate(np.arange(objective.num_examples(NOW)))
    reached: dict[int, int] = {}
    pointed: dict[int, int] = {}
    for window, part in enumerate(built(objective)):
        one = int(record[window])
        asked, context, answer = (examples[one][field].tolist() for field in ("question", "context", "answer"))
        begin, end = int(first[window]), int(first[window] + size[window])
        assert part["ids"] == [ROLES.cls, *asked, ROLES.sep, *context[begin:end], ROLES.sep]
        assert part["token_type_ids"] == [0] * (len(asked) + 2) + [1] * (end - begin + 1)
        assert begin == max(0, reached.get(one, 8) - 8), "consecutive windows share 8 tokens"
        reached[one] = end
        start, stop = part["span_starts"], part["span_ends"]
        if answer[0] >= begin and answer[1] < end and answer[0] >= 0:
            assert part["ids"][start : stop + 1] == context[answer[0] : answer[1] + 1]
            pointed[one] = pointed.get(one, 0) + 1
        else:
            assert (start, stop) == (0, 0)
    assert all(reached[one] == len(examples[one]["context"]) for one in range(len(examples)))
    assert set(pointed) == {one for one in range(len(examples)) if examples[one]["answer"][0] >= 0}


def test_an_answer_span_gives_the_answer_s_characters_back():
    objective = answers(max_length=200)
    contexts = texts(12)
    for one in range(12):
        example = objective.examples[one]
        first, last = example["answer"].tolist()
        if first >= 0:
            offsets = list(zip(example["begins"].tolist(), example["ends"].tolist(), strict=True))
            begin, end = tokens_to_char_span(contexts[one], offsets, first, last)
            asked = min(3 * one, len(contexts[one]) - 4)
            assert contexts[one][begin:end] == contexts[one][asked : asked + 4].strip()


def test_places_in_rows_are_characters_of_the_context():
    objective, contexts = answers(), texts(12)
    windows = np.arange(objective.num_examples(NOW))
    spans = np.stack(list(objective.build(windows, NOW).labels.values()), axis=1)
    record, characters = objective.character_spans(windows, spans)
    found = 0
    for one, (begin, end), span in zip(record.tolist(), characters.tolist(), spans.tolist(), strict=True):
        asked = min(3 * one, len(contexts[one]) - 4)
        assert (begin, end) == ((asked, asked + 4) if span != [0, 0] else (-1, -1))
        found += span != [0, 0]
    assert found > 8


@pytest.mark.parametrize("span", [(0, 0), (3, 2), (0, 9), (20, 39)])
def test_a_span_outside_the_passage_is_no_answer(span):
    objective = answers()
    assert objective.character_spans(np.array([0]), np.array([span]))[1].tolist() == [[-1, -1]]


def test_an_overlap_that_leaves_nothing_is_refused():
    with pytest.raises(UsageError, match="overlap = 27 must be less than 27"):
        answers(overlap=27)


def test_long_questions_are_an_error_or_a_choice_that_is_counted():
    with pytest.raises(QkvError, match="needs 4 tokens, and max_question_length is 3"):
        answers(max_question_length=3)
    cut = answers(max_question_length=3, too_long="truncate")
    assert (cut.counts.truncated, cut.counts.lost_tokens) == (12, 12)
    some = InMemoryExamples(
        [{"question": [200] * n, "context": [201, 202], "answer": [0, 1]} for n in (2, 5)],
        ["question", "context", "answer"],
    )
    skipped = QuestionAnsweringObjective(
        some, tokenizer(), max_length=20, overlap=2, max_question_length=3, too_long="skip"
    )
    assert (skipped.counts.skipped, skipped.counts.lost_tokens, skipped.num_examples(NOW)) == (1, 7, 1)


# ---------------------------------------------------------------- contrast


def test_the_source_row_of_a_contrast_takes_the_proportions_of_the_data():
    examples = paired([(18, 8)] * 10, ("first", "second"))  # 20 and 10 places
    assert ContrastiveObjective(examples, tokenizer(), max_length=100).max_lengths == (100, 200)


def test_both_texts_are_framed_each_in_its_row():
    examples = paired(PAIRS, ("first", "second"))
    for number, part in enumerate(
        built(ContrastiveObjective(examples, tokenizer(), max_length=48, max_source_length=40))
    ):
        one, two = (examples[number][field].tolist() for field in ("first", "second"))
        assert part["source_ids"] == [ROLES.cls, *one, ROLES.sep]
        assert part["ids"] == [ROLES.cls, *two, ROLES.sep]
