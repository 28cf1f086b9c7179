"""What a translator copies as it is: URLs, list markers, and symbols that its tokenizer never saw."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qkv
from qkv.data import FileLocation, Record
from qkv.data.objectives.table import RequiredTokens
from qkv.errors import UsageError
from qkv.tasks.prepare.tokenizer import add_symbols, train_tokenizer
from qkv.tasks.run.generate import GeneratedText, WordLink
from qkv.text import Tokenizer
from qkv.text.tokenizer import SYMBOLS_KEY
from qkv.text.words import split_words
from qkv.train.recipe.schema import TokenizerSection
from qkv_translation.verbatim import find_parentheticals, inner_span, leave_out_copied, make_symbol_check

EN_FR = qkv.load("en-fr")
UNSEEN = "☃♥€“”–—😀👩💻".__contains__


@pytest.mark.parametrize(
    ("text", "read", "copied"),
    [
        ("Hello ☃.", "Hello.", ["☃"]),
        ("I ☃ you!", "I you!", ["☃"]),
        ("I ☃ ♥ you", "I you", ["☃", "♥"]),
        ("Hello ☃☃", "Hello", ["☃☃"]),
        ("He paid €20 for it.", "He paid 20 for it.", ["€"]),
        ("5€ each", "5 each", ["€"]),
        ("😀 Yes", "Yes", ["😀"]),
        ("A 👩\u200d💻 works", "A works", ["👩\u200d💻"]),
        ("See https://example.org/a?b=c.", "See.", ["https://example.org/a?b=c"]),
        ("Read it (https://example.org) first.", "Read it first.", ["(https://example.org)"]),
        ("I read HTTPS://example.org/a_(b) (again).", "I read (again).", ["HTTPS://example.org/a_(b)"]),
        ("www.example.org/☃", "", ["www.example.org/☃"]),
        ("(☃) The cat, ☃, and I.", "The cat,, and I.", ["(☃)", "☃"]),
        ("“Yes” – he said—slowly – 1914–1918 e\u0301☃s", '"Yes", he said, slowly, 1914-1918 e\u0301☃s', []),
        ("do☃not", "do☃not", []),
        ("Awww...so cute!", "Awww...so cute!", []),
        ("Write to anna.b@mail.org.", "Write to.", ["anna.b@mail.org"]),
        ("Open src/main.py, /etc/hosts and ../a.", "Open, and.", ["src/main.py", "/etc/hosts", "../a"]),
        ("He and/or she, 12/05, 3 km/h", "He and/or she, 12/05, 3 km/h", []),
        ("He/she.They 24/7.Yes 1/2.5", "He/she.They 24/7.Yes 1/2.5", []),
    ],
)
def test_what_the_model_reads(text: str, read: str, copied: list[str]) -> None:
    source = leave_out_copied(text, UNSEEN)
    assert source.text == read
    assert [one.text for one in source.copied] == copied
    assert all(text[i] == character or character in '"-, ' for i, character in zip(source.origins, read, strict=True))


def test_texts_in_unseen_brackets_are_translated_and_inserted() -> None:
    source = leave_out_copied("Tom (my friend) lives in Oslo (Norway).", "()".__contains__, {"my friend": "mon ami"})
    assert source.text == "Tom lives in Oslo."
    assert [one.text for one in source.copied] == ["(mon ami)", "(Norway)"]
    assert leave_out_copied("Tom (my friend)", UNSEEN).text == "Tom (my friend)", "the tokenizer knows brackets"
    source = leave_out_copied(
        "Go (now)☃ [(then)](https://a.b/(x)).", "()[]☃".__contains__, {"now": "là", "then": "puis"}
    )
    assert source.text == "Go."
    assert [one.text for one in source.copied] == ["(là)☃", "[(puis)](https://a.b/(x))"]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("(He left.)", "He left."),
        ("- One thing", "One thing"),
        ("— Hello.", "Hello."),
        ("2. Next", "Next"),
        ("3. Mai 2021", "3. Mai 2021"),
        ("3.5 liters", "3.5 liters"),
        ("- April is cold.", "April is cold."),
        ("“Yes.”", "Yes."),
        ('"Yes," he said, "no."', '"Yes," he said, "no."'),
    ],
)
def test_list_markers_and_quotation_marks_around_a_sentence_are_not_read(text: str, inside: str) -> None:
    start, end = inner_span(text, (0, len(text)))
    assert text[start:end] == inside


def identity(text: str) -> list[WordLink]:
    """The alignment of a text with itself."""
    return [WordLink(text[a:b], text[a:b], a, b, a, b, 1.0) for a, b in split_words(text)]


@pytest.mark.parametrize(
    "text",
    [
        "Hello ☃.",
        "I ☃ you!",
        "I ☃ ♥ you",
        "☃ I know (☃) you",
        "He paid €20 for 5€ and 7 €.",
        "Tom♥ and Ann see https://example.org, too.",
        "Read it (https://example.org) first. ☃",
        "the the ♥the the♥ the ♥ the",
    ],
)
def test_copies_are_inserted_where_they_were(text: str) -> None:
    source = leave_out_copied(text, UNSEEN)
    result = GeneratedText(source.text, source.text, 0.0, "end", [])
    assert source.insert_copies(result, lambda one: identity(one.text)).text == text


@given(st.text("ab ☃€(.)2–", max_size=40))
def test_every_copy_is_in_the_result_and_links_point_to_their_words(text: str) -> None:
    source = leave_out_copied(text.strip(), UNSEEN)
    links = identity(source.text)
    result = GeneratedText(source.text, source.text, 0.0, "end", [], alignment=links)
    found = source.insert_copies(result, lambda one: identity(one.text))
    assert sorted(found.text.replace(" ", "")) == sorted(
        source.text.replace(" ", "") + "".join(one.text for one in source.copied).replace(" ", "")
    )
    assert [found.text[link.target_start : link.target_end] for link in found.alignment] == [
        one.target for one in links
    ]
    assert all(found.source[link.source_start : link.source_end] == link.source for link in found.alignment)
    assert found.source == text.strip()


def test_words_in_another_order_keep_their_symbol() -> None:
    """The gap is the one with the fewest words on the wrong side, even if a link is wrong."""
    source = leave_out_copied("a black cat ☃ and a white dog", UNSEEN)
    target = "un chat noir et un chien blanc"
    pairs = {"un": "dog", "chat": "cat", "noir": "black", "et": "and", "chien": "dog", "blanc": "white"}  # one is wrong
    links = [
        WordLink(pairs[target[a:b]], target[a:b], source.text.index(pairs[target[a:b]]), 0, a, b, 1.0)
        for a, b in split_words(target)
    ]
    result = GeneratedText(source.text, target, 0.0, "end", [])
    assert source.insert_copies(result, lambda _: links).text == "un chat noir ☃ et un chien blanc"


def test_a_symbol_of_the_training_text_is_no_unseen_one() -> None:
    texts = [f"{word} ☃" for word in dir(str) * 5]
    tokenizer = Tokenizer.train("byte-bpe", iter(texts), vocab_size=400, special_tokens=["pad", "eos"])
    is_unseen = make_symbol_check(tokenizer)
    assert [is_unseen(one) for one in "☃☂😀é a"] == [False, True, True, False, False, False]
    of_bytes = Tokenizer.train("byte", iter(texts), vocab_size=300, special_tokens=["pad", "eos"])
    assert not make_symbol_check(of_bytes)("😀")


def test_a_tokenizer_of_a_run_lists_the_symbols_of_its_text() -> None:
    def train(*texts: str) -> Tokenizer:
        records = [Record({"source": text, "target": text}, FileLocation("a.tsv", i)) for i, text in enumerate(texts)]
        sources = [SimpleNamespace(records=lambda problems: iter(records))]
        section, required = TokenizerSection(vocab_size=300), RequiredTokens(("pad", "eos"))
        return train_tokenizer(section, required, sources, [1.0])  # type: ignore[arg-type]

    tokenizer = train(*(f"{word} + ☃, £" for word in dir(str)[:4]), "5 + 3 £", "5 # 3")
    assert tokenizer.config[SYMBOLS_KEY] == "+,_£☃", "each side counts, and # is in two texts only"
    is_unseen = make_symbol_check(tokenizer)
    assert [is_unseen(one) for one in "+£☃#°😀a5"] == [False, False, False, True, True, True, False, False]


def test_symbols_of_new_training_data_are_seen() -> None:
    tokenizer = qkv.load("en-fr").tokenizer
    assert tokenizer is not None
    records = [Record({"source": "I (he)", "target": "Je (il)"}, FileLocation("a.tsv", i)) for i in range(5)]
    add_symbols(tokenizer, [SimpleNamespace(records=lambda problems: iter(records))])  # type: ignore[list-item]
    is_unseen = make_symbol_check(tokenizer)
    assert [is_unseen(one) for one in "().#"] == [False, False, False, True]


@pytest.mark.parametrize("kind", ["char", "word", "unigram", "bpe", "wordpiece"])
def test_symbols_count_as_seen_in_every_kind_of_tokenizer(kind: str) -> None:
    texts = ["The dogs’ “balls” , ☃ … 。", "“Yes” … 。 ☃ the dogs’"] * 30
    tokenizer = Tokenizer.train(kind, iter(texts), vocab_size=120, special_tokens=["pad", "eos", "unk"])
    is_unseen = make_symbol_check(tokenizer)
    assert [one for one in "☃…。😀" if is_unseen(one)] == ["😀"]
    assert kind == "word" or not any(map(is_unseen, "’“”"))


@pytest.mark.parametrize("kind", ["byte", "word", "char", "byte-bpe", "unigram"])
def test_letters_of_every_script_are_read(kind: str) -> None:
    texts = ["मैं घर जाता हूँ", "მე სახლში ვარ", "我 喜欢 猫", "Huế là đẹp", "ผมรักเธอ", "पक्\u200dका घर"]
    special_tokens = ["pad", "eos"] if kind.startswith("byte") else ["pad", "eos", "unk"]
    tokenizer = Tokenizer.train(kind, iter(texts), vocab_size=400, special_tokens=special_tokens)
    for text in [*texts, "你好世界"]:
        assert leave_out_copied(text, make_symbol_check(tokenizer)).text == text


@pytest.mark.parametrize(
    ("text", "translation"),
    [
        ("The cat is black 😀.", "Le chat est noir 😀."),
        ("- The cat is black.", "- Le chat est noir."),
        ("“The cat is black.”", "“Le chat est noir.”"),
        ("The cat is black 😀 and the dog is white.", "Le chat est noir 😀 et le chien est blanc."),
        ("He paid €20 for it.", "Il a payé €20 pour cela."),
        ("I was tired — very tired.", "J'étais fatigué, très fatigué."),
        ("I read https://example.org/a?b=c yesterday.", "J'ai lu https://example.org/a?b=c hier."),
        ("Where is Tom? 😀", "Où est Tom ? 😀"),
        ("I like C++ and C#.", "J'aime C++ et C#."),
        ("I paid £20.", "J'ai payé £20."),
        ("Open the file src/main.py now.", "Ouvrez le fichier src/main.py maintenant."),
        ("I saw Tom (my brother) yesterday.", "J'ai vu Tom (mon frère) hier."),
        ("He lives in Paris (France).", "Il vit à Paris (France)."),
        ("(Hello!) The cat is black.", "(Salut !) Le chat est noir."),
        ("(I am very tired).", "(Je suis très fatigué)."),
        ("(the shop is closed) 2020", "(le magasin est fermé) 2020"),
        ("I have a dog (my best friend)😀.", "J'ai un chien (ma meilleure amie)😀."),
        ("THE MEN (AND THE WOMEN) ARE HERE.", "LES HOMMES (ET LES FEMMES) SONT LÀ."),
        ("I read https://example.org/(my-page)/index yesterday.", "J'ai lu https://example.org/(my-page)/index hier."),
        ("12", "12"),
        ("...", "..."),
        ("Hi Tom,\n\nThank you very much,\nTom", "Salut Tom,\n\nMerci beaucoup,\nTom"),
        ("Here is what I need:\n- The cat.", "Voici ce dont j'ai besoin:\n- Le chat."),
    ],
)
def test_the_translator_in_the_box_copies_what_it_cannot_know(text: str, translation: str) -> None:
    assert EN_FR.translate(text).text == translation


def test_texts_in_brackets_of_a_long_text_are_translated() -> None:
    model = qkv.load("en-fr")
    model.config = replace(model.config, reads_sentences=False)
    assert model.translate("The dog (my best friend) is here. " * 40).text.count("(ma meilleure amie)") == 40


def test_only_brackets_have_an_empty_alignment() -> None:
    result = EN_FR.translate("(I am tired) 5 (he is old)", align=True, top=2)
    assert result.text == "(Je suis fatigué) 5 (il est vieux)"
    assert result.alignment == []


def test_alignment_and_alternatives_have_the_copies() -> None:
    text = "The cat is black 😀 and the dog is white. I paid €20."
    result = EN_FR.translate(text, align=True, top=2)
    assert " ".join(part.source for part in result.parts) == text
    assert [len(part.alternatives) for part in result.parts] == [1, 1]
    assert all("😀" in one.text for one in (result.parts[0], *result.parts[0].alternatives))
    assert {"cat": "chat", "dog": "chien", "20": "20"}.items() <= {
        link.source: link.target for link in result.alignment
    }.items()
    for link in result.alignment:
        assert text[link.source_start : link.source_end] == link.source
        assert result.text[link.target_start : link.target_end] == link.target
    assert EN_FR.translate(text, sentences=False).parts == []  # in one piece, nothing is copied


@pytest.mark.parametrize("text", ["I was tired – very tired.", "“No,” she said.", "It is closed - really."])
def test_alignments_point_to_the_words_of_a_sentence_that_the_model_reads_in_another_form(text: str) -> None:
    result = EN_FR.translate(text, align=True)
    assert len(result.alignment) > 3
    for link in result.alignment:
        assert text[link.source_start : link.source_end] == link.source
        assert result.text[link.target_start : link.target_end] == link.target


@pytest.mark.parametrize("name", ["sentences", "align"])
def test_a_flag_is_no_text(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} = 'no' must be True or False"):
        EN_FR.translate("Hello.", **{name: "no"})


def test_a_tuple_is_no_list_of_texts() -> None:
    with pytest.raises(UsageError, match="reads one text at a time; give a list of strings"):
        EN_FR.translate(("Hello.", "Good bye."))


def test_the_alignment_of_copies_reports_its_progress_so_that_it_can_be_stopped() -> None:
    calls = list[tuple[int, int]]()
    EN_FR.translate("a ( " * 40 + "b", max_tokens=1, progress=lambda *numbers: calls.append(numbers))
    assert len(calls) > 2, "one for the translation, and one for each batch of the alignment"

    class Stopped(Exception):
        pass

    def stop(*_: int) -> None:
        raise Stopped

    for text in ("a ( " * 40 + "b", "I (my friend) go."):
        with pytest.raises(Stopped):
            EN_FR.translate(text, max_tokens=1, progress=stop)


def test_parentheses_are_translated_with_progress() -> None:
    calls = list[tuple[int, int]]()
    EN_FR.translate("Tom (my friend) sings.", progress=lambda *numbers: calls.append(numbers))
    assert calls[0] == (0, 0)


def test_copies_in_long_sentences_need_no_alignment() -> None:
    source = leave_out_copied("a ☃ " * 200 + "b", UNSEEN)
    result = GeneratedText(source.text, "x " * 20 + "y", 0.0, "end", [1])

    def find_links(_: GeneratedText) -> list[WordLink]:
        raise AssertionError("it takes quadratic time")

    text = source.insert_copies(result, find_links).text
    assert text.count("☃") == 200
    assert text.startswith("☃ ☃")
    assert text.endswith("☃ y")
    assert text.count("☃", 0, len(text) // 2) in range(90, 111)


def test_brackets_beside_many_urls_take_linear_time() -> None:
    text = "(a) www.b.cc/(d) " * 20_000
    began = time.process_time()
    assert len(find_parentheticals(text, "()".__contains__)) == 20_000
    assert time.process_time() - began < 2
