"""Records to integers: what is kept, what is refused and why, and when a cache must be made anew."""

import numpy as np
import pytest
from synthetic_data import record, tokenizer

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.cache.token_cache import TokenCache
from qkv.data.encode import chat
from qkv.data.encode.chat import EncodeChat
from qkv.data.encode.encoders import EncodeClass, EncodeText, find_classes
from qkv.data.objectives import IGNORE_INDEX
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.question_answering import EncodeAnswer
from qkv.data.objectives.seq2seq import EncodePair
from qkv.data.objectives.tagging import EncodeTags
from qkv.data.problems import InvalidRecord, Problems
from qkv.data.stream.random_bits import EpochRng
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import UsageError
from qkv.text import Tokenizer

MADE = tokenizer()
ROLES = MADE.special_tokens


def ids(text: str) -> list[int]:
    return MADE.encode(text, add_special_tokens=False)


def reasons(encode, *records) -> list[str | None]:
    return [one.reason if isinstance(one, InvalidRecord) else None for one in encode(list(records))]


def test_documents():
    assert EncodeText(MADE)([record(text="ab"), record(text="")]) == [{"ids": ids("ab")}, {"ids": []}]


def test_documents_with_words_and_sentences():
    (example,) = EncodeText(MADE, words=True, sentences=True)([record(text="A b. Cd")])
    assert example == {"ids": ids("A b. Cd"), "words": [0, 0, 1, 2, 2, 3, 3], "sentences": [0, 5]}


def test_special_spellings_in_a_text_are_text():
    (example,) = EncodeText(MADE)([record(text="</s>")])
    assert example["ids"] == ids("</s>")
    assert ROLES.eos not in example["ids"]


def test_pairs_each_with_its_tokenizer():
    other = Tokenizer.train("char", iter(["abc"] * 9), vocab_size=10)
    encode = EncodePair(MADE, "en", "de", source_tokenizer=other)
    (example,) = encode([record(en="abc", de="abc")])
    assert example == {"source": other.encode("abc", add_special_tokens=False), "target": ids("abc")}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"source": "a"}, "no field 'target'; known: source"),
        ({"source": "a", "targt": "b"}, "no field 'target'; did you mean 'targt'?"),
        ({"source": 3, "target": "b"}, "the field 'source' must be a text, not a number"),
        ({"source": "", "target": "b"}, "the field 'source' has no tokens"),
        ({"source": "a", "target": "\ud800"}, "lone surrogate"),
    ],
)
def test_an_invalid_pair_is_reported_and_the_others_are_encoded(fields, reason):
    found = reasons(EncodePair(MADE), record(source="a", target="b"), record(**fields), record(source="c", target="d"))
    assert found[0] is None
    assert reason in found[1]
    assert found[2] is None


def test_classes_and_scores():
    encode = EncodeClass(MADE, "a", "b", label="kind", classes=("no", "yes"))
    (example,) = encode([record(a="x", b="yz", kind="yes")])
    assert example == {"first": ids("x"), "second": ids("yz"), "label": 1}
    assert encode.fields == ("first", "second", "label")
    scored = EncodeClass(MADE, "a", "b", score="how")
    assert [one["score"] for one in scored([record(a="x", b="y", how="2.5"), record(a="x", b="y", how=3)])] == [
        2.5,
        3.0,
    ]
    assert EncodeClass(MADE, "a", "b").fields == ("first", "second")


@pytest.mark.parametrize(
    ("encode", "fields", "reason"),
    [
        (EncodeClass(MADE, label="kind", classes=("no", "yes")), {"text": "x", "kind": "yess"}, "did you mean 'yes'"),
        (
            EncodeClass(MADE, label="kind", classes=("no", "yes")),
            {"text": "x", "kind": " "},
            "the field 'kind' is empty",
        ),
        (EncodeClass(MADE, score="how"), {"text": "x", "how": "much"}, "the how 'much' is not a number"),
        (EncodeClass(MADE, score="how"), {"text": "x", "how": float("inf")}, "not a number"),
        (
            EncodeTags(MADE, classes=("O",)),
            {"tokens": ["a", "b"], "tags": ["O"]},
            "the field 'tokens' has 2 entries, but 'tags' has 1",
        ),
        (EncodeTags(MADE, classes=("O",)), {"tokens": ["a"], "tags": ["B-PER"]}, "the tag 'B-PER' is not one of"),
        (EncodeTags(MADE, classes=("O",)), {"tokens": ["\ud800"], "tags": ["O"]}, "lone surrogate"),
        (
            EncodeAnswer(MADE),
            {"question": "q", "context": "abc", "answers": ["zz"], "starts": [9]},
            "no token of the context overlaps the answer 'zz'",
        ),
        (
            EncodeAnswer(MADE),
            {"question": "q", "context": "abc", "answers": ["c"], "starts": ["2"]},
            "the field 'starts' has a wrong entry: number 0 must be an integer, not a text",
        ),
        (EncodeChat(MADE), {"messages": [{"role": "user", "content": "hi"}]}, "no message with the role 'assistant'"),
        (
            EncodeChat(MADE),
            {"messages": [{"from": "user", "value": "hi"}]},
            "the field 'messages' has a wrong entry: number 0 must be an object",
        ),
    ],
)
def test_what_cannot_be_encoded_says_why(encode, fields, reason):
    assert reason in reasons(encode, record(**fields))[0]


def test_labels_need_their_classes():
    with pytest.raises(UsageError, match="find_classes"):
        EncodeClass(MADE, label="kind")


def test_classes_are_found_in_labels_and_in_tags():
    made = [record(kind="b", tags=["O", "B-X"]), record(kind="a", tags=["I-X"]), record(kind="b")]
    assert find_classes(made, "kind") == ("a", "b")
    assert find_classes([*made, record(kind=""), record(kind=" "), record(kind=0)], "kind") == ("0", "a", "b")
    assert find_classes(made, "tags") == ("B-X", "I-X", "O")


TAGS = ("O", "B-PER", "I-PER", "B-LOC")


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (
            "first",
            [
                1,
                IGNORE_INDEX,
                IGNORE_INDEX,
                IGNORE_INDEX,
                2,
                IGNORE_INDEX,
                IGNORE_INDEX,
                0,
                IGNORE_INDEX,
                IGNORE_INDEX,
                IGNORE_INDEX,
                3,
                IGNORE_INDEX,
            ],
        ),
        ("all", [1, 2, 2, IGNORE_INDEX, 2, 2, IGNORE_INDEX, 0, 0, 0, IGNORE_INDEX, 3, 3]),
    ],
)
def test_tags_stand_on_the_first_piece_or_on_all(pieces, expected):
    encode = EncodeTags(MADE, classes=TAGS, label_subwords=pieces)
    (example,) = encode([record(tokens=["Ann", "Bo", "saw", "LA"], tags=["B-PER", "I-PER", "O", "B-LOC"])])
    assert example == {"ids": ids("Ann Bo saw LA"), "tags": expected}


@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "wordpiece", "unigram", "char"])
def test_every_word_has_one_tag_whatever_the_tokenizer(kind):
    made = Tokenizer.train(kind, iter(["Ann saw Bo in Paris and New York ."] * 20), vocab_size=300, min_frequency=1)
    words = ["Ann", "saw", "Paris", "New", "York", "."]
    encode = EncodeTags(made, classes=tuple("abcdef"))
    (example,) = encode([record(tokens=words, tags=list("abcdef"))])
    assert [tag for tag in example["tags"] if tag != IGNORE_INDEX] == [0, 1, 2, 3, 4, 5]


def test_answers_are_spans_of_tokens():
    made = record(question="who?", context="it was Ann.", answers=["Ann"], starts=[7])
    (example,) = EncodeAnswer(MADE)([made])
    assert example["answer"] == [7, 9]
    assert example["context"][7:10] == ids("Ann")
    none = record(question="who?", context="it was.", answers=[], starts=[])
    assert EncodeAnswer(MADE)([none])[0]["answer"] == [-1, -1]


# ---------------------------------------------------------------- chats

TURNS = [("system", "Be kind."), ("user", "Hello!"), ("assistant", "Hi."), ("user", "Bye"), ("assistant", "Bye.")]


def messages(turns) -> list[dict[str, str]]:
    return [{"role": role, "content": said} for role, said in turns]


def test_a_chat_is_laid_out_as_documented():
    (example,) = EncodeChat(MADE)([record(messages=messages(TURNS))])
    text = MADE.decode(example["ids"], skip_special_tokens=False)
    assert text == ("<s>system:\nBe kind.\n\nuser:\nHello!\n\nassistant:\nHi.</s>user:\nBye\n\nassistant:\nBye.</s>")


def test_only_answers_and_their_ends_are_learnt():
    (example,) = EncodeChat(MADE)([record(messages=messages(TURNS))])
    learnt = [token for token, mark in zip(example["ids"], example["answer"], strict=True) if mark]
    assert learnt == [*ids("Hi."), ROLES.eos, *ids("Bye."), ROLES.eos]


def test_the_loss_falls_on_the_answers_only():
    examples = InMemoryExamples.from_records([record(messages=messages(TURNS))], EncodeChat(MADE))
    rows = SequenceStream(
        CausalLMObjective(examples, MADE, max_length=128, loss_mask_field="answer", add_bos_eos=False), batch_tokens=128
    )
    pieces = rows.objectives[0].build(np.array([0]), rows.order.epoch_orders[0].rng(0))
    labels = pieces.labels["tokens"]
    said = labels[labels != IGNORE_INDEX].tolist()
    assert said == [*ids("Hi."), ROLES.eos, *ids("Bye."), ROLES.eos]


def test_a_chat_is_written_by_the_template_of_its_tokenizer(monkeypatch):
    own = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}</s>{% endfor %}"
    own += "{% if add_generation_prompt %}[assistant] {% endif %}"
    monkeypatch.setitem(MADE.config, "chat_template", own)
    encode = EncodeChat(MADE)
    (example,) = encode([record(messages=messages([("user", "Hello!"), ("assistant", "Hi.")]))])
    assert MADE.decode(example["ids"], skip_special_tokens=False) == "[user] Hello!</s>[assistant] Hi.</s>"
    prompt = encode.template.encode(messages([("user", "Hello!")]))
    assert example["ids"] == [*prompt, *ids("Hi."), ROLES.eos]
    assert example["answer"] == [0] * len(prompt) + [1] * (len(example["ids"]) - len(prompt))
    monkeypatch.delitem(MADE.config, "chat_template")
    assert EncodeChat(MADE).fingerprint != encode.fingerprint


def test_many_chats_are_rendered_in_one_round_trip_and_each_has_its_own_error(monkeypatch):
    own = "{% for m in messages %}{% if m['content'] == 'bad' %}{{ raise_exception('no') }}{% endif %}"
    monkeypatch.setitem(MADE.config, "chat_template", own + "{{ m['content'] }}</s>{% endfor %}")
    said = ["Hi.", "bad", "\ufdd0", "Bye."]
    records = [record(messages=messages([("user", "Hello!"), ("assistant", one)])) for one in said]
    records.insert(1, record(messages=[]))
    encode = EncodeChat(MADE)
    alone = [encode([one])[0] for one in records]  # also renders what is rendered once for all chats
    batches, render = [], encode.template.render
    monkeypatch.setattr(encode.template, "render", lambda *call: batches.append(len(call[1])) or render(*call))
    monkeypatch.setattr(chat, "BATCH_CHATS", 10)
    together = encode(records * 3)
    assert batches == [8, 4]  # a chat without messages is not rendered
    assert [one for one in together if isinstance(one, dict)] == [alone[0], alone[4]] * 3
    wrong = [one.reason for one in alone[1:4]]
    assert [one.reason for one in together if isinstance(one, InvalidRecord)] == wrong * 3
    assert ["no message" in wrong[0], "TemplateError: no" in wrong[1], "U+FDD0" in wrong[2]] == [True] * 3


@pytest.mark.parametrize("kind", ["byte", "byte-bpe", "char", "unigram", "wordpiece"])
def test_a_prompt_has_the_tokens_of_training(kind):
    said = [content for _, content in TURNS]
    tokenizer = Tokenizer.train(
        kind,
        iter([*said, "user:\nassistant:\nsystem:\n\n"] * 20),
        vocab_size=300,
        special_tokens=["pad", "bos", "eos", "unk"],
    )
    encode = EncodeChat(tokenizer)
    (example,) = encode([record(messages=messages(TURNS))])
    prompt = encode.template.encode(messages(TURNS[:-1]))
    assert example["ids"][: len(prompt)] == prompt
    assert tokenizer.decode(example["ids"][len(prompt) :]).strip() == TURNS[-1][1]
    assert example["answer"][-(len(example["ids"]) - len(prompt)) :] == [1] * (len(example["ids"]) - len(prompt))


def test_unknown_roles_are_invalid():
    (found,) = EncodeChat(MADE)([record(messages=messages([("human", "a"), ("assistant", "b")]))])
    assert isinstance(found, InvalidRecord)
    assert "unknown role 'human'" in found.reason


# ---------------------------------------------------------------- caches


def test_a_fingerprint_changes_with_every_choice():
    other = Tokenizer.train("byte", iter([]), vocab_size=300, special_tokens=["pad", "eos"])
    made = [
        EncodeText(MADE),
        EncodeText(other),
        EncodeText(MADE, "body"),
        EncodeText(MADE, words=True),
        EncodeText(MADE, sentences=True),
        EncodePair(MADE),
        EncodePair(MADE, source_tokenizer=other),
        EncodePair(MADE, "en"),
        EncodeClass(MADE),
        EncodeClass(MADE, second="b"),
        EncodeClass(MADE, label="l", classes=("a", "b")),
        EncodeClass(MADE, label="l", classes=("b", "a")),
        EncodeClass(MADE, score="l"),
        EncodeTags(MADE, classes=("a",)),
        EncodeTags(MADE, classes=("a",), label_subwords="all"),
        EncodeAnswer(MADE),
        EncodeChat(MADE),
        EncodeChat(MADE, "turns"),
    ]
    assert len({encode.fingerprint for encode in made}) == len(made)
    assert EncodeText(MADE).fingerprint == EncodeText(MADE).fingerprint


@pytest.mark.parametrize("score", [None, "score"])
def test_batches_from_a_cache_are_batches_from_memory(tmp_path, score):
    made = [record(text="abc" * (i % 5 + 1), other="de" * (i % 3 + 1), score=i / 8) for i in range(20)]
    encode = EncodeClass(MADE, "text", "other", score=score)
    cached = TokenCache.build(made, encode, tmp_path / "cache")
    held = InMemoryExamples.from_records(made, encode)
    assert cached.fields == held.fields
    for field in encode.fields:
        assert cached.lengths(field).tolist() == held.lengths(field).tolist()
        chosen = np.array([7, 3, 3, 19])
        for one, other in zip(cached.gather(field, chosen), held.gather(field, chosen), strict=True):
            assert one.tolist() == other.tolist()
            assert one.dtype == other.dtype


def test_bad_records_in_memory_are_counted_with_file_and_line():
    problems = Problems(max_invalid_fraction=1)
    InMemoryExamples.from_records([record(text="a"), record(txt="b")], EncodeText(MADE), problems)
    assert "made.jsonl:1: no field 'text'" in str(problems.summary())


def test_an_example_from_a_cache_is_named_with_file_and_line(tmp_path):
    cache = TokenCache.build([record(text="abc")], EncodeText(MADE), tmp_path / "cache")
    objective = CausalLMObjective(cache, MADE, max_length=8)
    assert objective.origin(0, EpochRng(0)) == "record 0 (made.jsonl:1), tokens 0–3"
