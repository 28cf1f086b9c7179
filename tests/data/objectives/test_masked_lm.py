"""Masked language modelling: 15 %, 80/10/10, whole words, and two parts that follow each other or do not."""

import numpy as np
import pytest
from synthetic_data import documents, marked_texts, parts, record, texts, token_lists, tokenizer

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.encoders import EncodeText
from qkv.data.objectives import IGNORE_INDEX
from qkv.data.objectives.masked_lm import MaskedLMObjective, TokenMasking, choose_whole_words
from qkv.data.objectives.next_sentence import NextSentenceObjective
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError

ROLES = tokenizer().special_tokens


NOW = EpochRng(0)


def built(objective, draw=NOW):
    return parts(objective.build(np.arange(objective.num_examples(draw)), draw))


def test_labels_are_the_hidden_tokens_and_the_rest_is_shown():
    lengths = [1, 2, 10, 40, 100]
    examples = documents(lengths)
    for number, part in enumerate(built(MaskedLMObjective(examples, tokenizer(), max_length=128))):
        tokens = examples[number]["ids"].tolist()
        assert part["ids"][0] == ROLES.cls
        assert part["ids"][-1] == ROLES.sep
        assert part["tokens"][0] == part["tokens"][-1] == IGNORE_INDEX
        hidden = [place for place, label in enumerate(part["tokens"][1:-1]) if label != IGNORE_INDEX]
        assert len(hidden) == max(1, int(0.15 * len(tokens) + 0.5))
        for place, token in enumerate(tokens):
            if place in hidden:
                assert part["tokens"][1 + place] == token
            else:
                assert part["ids"][1 + place] == token


def test_hidden_tokens_become_masks_strangers_or_stay():
    tokens = np.array([t for ids in token_lists([500] * 100) for t in ids])
    masking = TokenMasking.from_tokenizer(tokenizer())
    seen, labels = masking(tokens, np.full(100, 500), EpochRng(0).keys("mask", np.arange(100)))
    hidden = labels != IGNORE_INDEX
    share = {
        "hidden": hidden.mean(),
        "mask": (seen[hidden] == ROLES.mask).mean(),
        "same": (seen[hidden] == tokens[hidden]).mean(),
    }
    assert share["hidden"] == pytest.approx(0.15, abs=1e-9)
    assert share["mask"] == pytest.approx(0.8, abs=0.02)
    assert share["same"] == pytest.approx(0.1, abs=0.02)  # and now and then a stranger is the token itself
    strangers = seen[hidden & (seen != tokens) & (seen != ROLES.mask)]
    special = tokenizer().special_ids
    assert not special & set(strangers.tolist())
    assert len(set(strangers.tolist())) > 200  # from the whole vocabulary (362 ids with the 106 special ones)


def test_every_place_is_hidden_equally_often():
    tokens, lengths = np.arange(20 * 3000) % 200 + 150, np.full(3000, 20)
    _, labels = TokenMasking.from_tokenizer(tokenizer())(tokens, lengths, EpochRng(0).keys("mask", np.arange(3000)))
    assert (abs((labels != IGNORE_INDEX).reshape(3000, 20).mean(axis=0) - 0.15) < 0.025).all()


def test_strangers_are_never_special_whatever_the_ids():
    masking = TokenMasking(mask_token_id=4, vocab_size=10, special_ids=(0, 4, 5, 9))
    assert masking._non_special_id(np.arange(6)).tolist() == [1, 2, 3, 6, 7, 8]


def test_whole_words_are_hidden_whole():
    examples = marked_texts()
    objective = MaskedLMObjective(examples, tokenizer(), max_length=300, whole_word_masking=True)
    for number, part in enumerate(built(objective)):
        words = examples[number]["words"].tolist()
        by_word: dict[int, set[bool]] = {}
        for word, label in zip(words, part["tokens"][1:-1], strict=True):
            by_word.setdefault(word, set()).add(label != IGNORE_INDEX)
        assert all(len(fates) == 1 for fates in by_word.values())
        assert any(True in fates for fates in by_word.values())


def test_without_the_choice_words_are_torn():
    examples = marked_texts()  # the control for the test above
    torn = 0
    for number, part in enumerate(built(MaskedLMObjective(examples, tokenizer(), max_length=300))):
        by_word: dict[int, set[bool]] = {}
        for word, label in zip(examples[number]["words"].tolist(), part["tokens"][1:-1], strict=True):
            by_word.setdefault(word, set()).add(label != IGNORE_INDEX)
        torn += sum(len(fates) == 2 for fates in by_word.values())
    assert torn > 50


def test_whole_words_keep_the_share_on_average():
    random = np.random.default_rng(0)
    words = np.repeat(np.arange(20000), random.integers(1, 6, 20000))[: 500 * 100]
    lengths = np.full(500, 100)
    chosen = choose_whole_words(EpochRng(0).keys("mask", np.arange(500)), lengths, np.full(500, 15), words)
    assert chosen.mean() == pytest.approx(0.15, abs=0.004)


@pytest.mark.parametrize("choice", [{"mask_prob": 0.0}, {"mask_prob": 1.5}, {"replace_prob": 0.8, "random_prob": 0.3}])
def test_impossible_shares_are_refused(choice):
    with pytest.raises(UsageError, match="mask_prob"):
        TokenMasking(mask_token_id=1, vocab_size=10, **choice)


# ---------------------------------------------------------------- next sentence


def unmasked(part: dict) -> list[int]:
    return [seen if label == IGNORE_INDEX else label for seen, label in zip(part["ids"], part["tokens"], strict=True)]


def next_sentence(length: int = 48) -> NextSentenceObjective:
    """Over documents of random tokens, no two alike, with a sentence every 7 tokens."""
    lists = token_lists([9 * number for number in range(24)])
    made = [{"ids": ids, "sentences": list(range(0, len(ids), 7))} for ids in lists]
    return NextSentenceObjective(InMemoryExamples(made), tokenizer(), max_length=length)


@pytest.mark.parametrize("epoch", range(4))
def test_every_token_is_shown_once_whatever_is_exchanged(epoch):
    objective = next_sentence()
    shown: list[int] = []
    for part in built(objective, EpochRng(0, epoch)):
        shown += [token for token in unmasked(part) if token not in (ROLES.cls, ROLES.sep)]
    stored = [
        token for number in range(len(objective.examples)) for token in objective.examples[number]["ids"].tolist()
    ]
    assert sorted(shown) == sorted(stored)


def test_the_label_says_whether_the_second_part_follows():
    objective, draw = next_sentence(), EpochRng(0)
    found = {0: 0, 1: 0, IGNORE_INDEX: 0}
    for example, part in enumerate(built(objective, draw)):
        record_number, start, one, two = objective.segment_pairs[example].tolist()
        tokens = objective.examples[record_number]["ids"].tolist()
        said = unmasked(part)
        assert said[0] == ROLES.cls
        assert said[1 : 1 + one] == tokens[start : start + one]
        second = said[2 + one : -1]
        found[part["classes"]] += 1
        if part["classes"] == IGNORE_INDEX:
            assert two == 0
            assert len(said) == one + 2
            assert set(part["token_type_ids"]) == {0}
        else:
            assert said[1 + one] == said[-1] == ROLES.sep
            follows = tokens[start + one : start + one + two]
            assert (second == follows) == (part["classes"] == 0)
            assert part["token_type_ids"] == [0] * (one + 2) + [1] * (len(second) + 1)
    assert found[0] > 5
    assert found[1] > 5


def test_about_half_are_exchanged():
    long = [record(text=" ".join(text * 4 for text in texts(9)[number % 9 :])) for number in range(40)]
    examples = InMemoryExamples.from_records(long, EncodeText(tokenizer(), sentences=True))
    objective = NextSentenceObjective(examples, tokenizer(), max_length=64)
    classes = np.array([part["classes"] for epoch in range(2) for part in built(objective, EpochRng(0, epoch))])
    assert (classes == 1).sum() / (classes != IGNORE_INDEX).sum() == pytest.approx(0.5, abs=0.05)


def test_parts_begin_at_sentences_where_they_can():
    objective = next_sentence(length=120)
    begins = 0
    for record_number, start, one, two in objective.segment_pairs.tolist():
        sentences = set(objective.examples[record_number]["sentences"].tolist())
        begins += two > 0 and start + one in sentences
    assert begins == sum(two > 0 for *_, two in objective.segment_pairs.tolist())
