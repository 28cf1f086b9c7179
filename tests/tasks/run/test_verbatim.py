"""What a translator copies as it is: URLs, list markers, and symbols that its tokenizer has never seen."""

import pytest

import qkv
from qkv.errors import UsageError
from qkv.tasks.run.verbatim import symbol_check, translatable_spans
from qkv.text import Tokenizer


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hello ☃.", ["Hello"]),
        ("I ☃ you!", ["I", "you!"]),
        ("See https://example.org/a?b=c.", ["See"]),
        ("www.example.org", []),
        ("- One thing", ["One thing"]),
        ("2. Next", ["Next"]),
        ("3. Mai 2021", ["3. Mai 2021"]),
        ("3.5 liters", ["3.5 liters"]),
        ("do☃not", ["do☃not"]),
        ("- April is cold.", ["April is cold."]),
        ("Awww...so cute!", ["Awww...so cute!"]),
        ("I read HTTPS://example.org/a_(b) (again).", ["I read", "(again)."]),
        ("(☃) The cat, ☃, and I.", ["The cat,", "and I."]),
        ("☃ ... ☃", []),
        ("Nothing special.", ["Nothing special."]),
    ],
)
def test_the_parts_that_are_translated(text: str, parts: list[str]) -> None:
    spans = translatable_spans(text, (0, len(text)), "☃".__contains__)
    assert [text[start:end] for start, end in spans] == parts


def test_a_symbol_of_the_training_text_is_no_unseen_one() -> None:
    texts = [f"{word} ☃" for word in dir(str) * 5]
    tokenizer = Tokenizer.train("byte-bpe", iter(texts), vocab_size=400, special_tokens=["pad", "eos"])
    is_unseen = symbol_check(tokenizer)
    assert [is_unseen(one) for one in "☃☂😀é a"] == [False, True, True, False, False, False]
    words = Tokenizer.train("char", iter(["a ☃ b"]), vocab_size=20, special_tokens=["pad", "eos", "unk"])
    assert [symbol_check(words)(one) for one in "☃😀"] == [False, True]


@pytest.mark.parametrize("kind", ["byte", "word", "char", "byte-bpe", "unigram"])
def test_letters_of_every_script_are_translated(kind: str) -> None:
    texts = ["मैं घर जाता हूँ", "მე სახლში ვარ", "我 喜欢 猫", "Huế là đẹp", "ผมรักเธอ"]
    special_tokens = ["pad", "eos"] if kind.startswith("byte") else ["pad", "eos", "unk"]
    tokenizer = Tokenizer.train(kind, iter(texts), vocab_size=400, special_tokens=special_tokens)
    for text in [*texts, "你好世界"]:
        assert translatable_spans(text, (0, len(text)), symbol_check(tokenizer)) == [(0, len(text))]


def test_the_translator_in_the_box_copies_what_it_cannot_know() -> None:
    model = qkv.load("en-fr")
    texts = [
        "The cat is black 😀.",
        "- The cat is black.",
        "“The cat is black.”",
        "Look: https://example.org/a?b=c",
        "...",
    ]
    found = [result.text for result in model.translate(texts)]
    assert found[0] == "Le chat est noir 😀."
    assert found[1].startswith("- Le chat est noir")
    assert found[2] == "“Le chat est noir.”"
    assert found[3].endswith(" https://example.org/a?b=c")
    assert found[4] == "..."
    mixed = "The cat is black 😀 and the dog is white."
    result = model.translate(mixed, align=True)
    assert len(result.parts) == 2
    for link in result.alignment:
        assert mixed[link.source_start : link.source_end] == link.source
        assert result.text[link.target_start : link.target_end] == link.target
    assert model.translate(mixed, sentences=False).parts == []  # in one piece, nothing is copied


@pytest.mark.parametrize("name", ["sentences", "align"])
def test_a_flag_is_no_text(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} = 'no': must be True or False"):
        qkv.load("en-fr").translate("Hello.", **{name: "no"})


def test_a_tuple_is_no_list_of_texts() -> None:
    with pytest.raises(UsageError, match="reads one text at a time; give a list of strings"):
        qkv.load("en-fr").translate(("Hello.", "Good bye."))
