"""The calls of a model on texts: one text, lists, iterators, texts of any length, and exact character offsets."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from task_models import decoder, encoder, model, seq2seq, stack

import qkv
from qkv.decode import score
from qkv.errors import UsageError
from qkv.tasks.run.generate import GeneratedText
from qkv.tasks.run.translation.parts import join_parts
from qkv.tasks.run.translation.processors import TEXT_PROCESSORS, Part, TextProcessor
from qkv.tasks.table import TASKS
from qkv.text import Tokenizer

CLASSES = ("bad", "good", "so so")
TAGS = ("O", "B-PER", "I-PER", "E-PER", "S-LOC")
MODELS: dict[str, Any] = {
    "translate": (seq2seq, {"max_tokens": 6}),
    "summarise": (seq2seq, {"max_tokens": 6}),
    "classify": (lambda: encoder(qkv.HeadConfig(kind="classify", labels=CLASSES)), {}),
    "tag": (lambda: encoder(qkv.HeadConfig(kind="tag", labels=TAGS)), {}),
    "fill": (lambda: encoder(qkv.HeadConfig(kind="mlm", outputs=1)), {}),
    "complete": (decoder, {"max_tokens": 2}),
}


def text_for(call: str, number: int = 0) -> str:
    return f"the [MASK] fox {number}" if call == "fill" else f"the quick fox {number}"


# ---------------------------------------------------------------- one text, lists, iterators


@pytest.mark.parametrize("call", MODELS)
def test_one_text_a_list_and_an_iterator_give_the_same(call: str) -> None:
    make, options = MODELS[call]
    run = getattr(make(), call)
    texts = [text_for(call, number) for number in range(5)]
    several = run(texts, **options)
    assert isinstance(several, list)
    assert [one.summary() for one in several] == [run(text, **options).summary() for text in texts]
    streamed = run(iter(texts), **options)
    assert isinstance(streamed, Iterator)
    assert [one.summary() for one in streamed] == [one.summary() for one in several]
    assert [one.summary() for one in run(np.array(texts), **options)] == [one.summary() for one in several]
    assert run([], **options) == []


def test_an_iterator_is_read_batch_by_batch() -> None:
    made, read = MODELS["classify"][0](), []

    def endless() -> Iterator[str]:
        while True:
            read.append("fox")
            yield "fox"

    results = made.classify(endless(), batch_size=3)
    assert not read
    next(results)
    assert len(read) == 3


@pytest.mark.parametrize("call", MODELS)
@pytest.mark.parametrize("value", [3, {"a": 1}, b"x", None, {"a"}], ids=["number", "dict", "bytes", "None", "set"])
def test_what_is_no_text_is_refused(call: str, value: Any) -> None:
    run = getattr(MODELS[call][0](), call)
    with pytest.raises(UsageError, match="texts must be a text"):
        run(value)
    with pytest.raises(UsageError, match="text 2 is "):
        run([text_for(call), value])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (("a", None), r"text 1 is \('a', None\) \(tuple\), .* reads one text or two texts; give two strings"),
        (["a", ["b"]], r"text 2 is \['b'\] \(list\), .* reads one text or two texts; give a string, or two"),
        (["a", 3], r"text 2 is 3 \(int\), .* reads one text or two texts; give a string, or two"),
    ],
    ids=["half a pair", "a list of one", "a number"],
)
def test_the_advice_on_what_is_no_text_fits_what_was_given(text: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MODELS["classify"][0]().classify(text)


def test_a_classifier_that_is_to_generate_says_what_it_is() -> None:
    with pytest.raises(
        UsageError, match=r"its family is 'encoder' and its head 'classify'; use a model with a decoder"
    ):
        MODELS["classify"][0]().generate("fox")


@pytest.mark.parametrize("call", MODELS)
def test_empty_texts_and_misspelt_options(call: str) -> None:
    make, options = MODELS[call]
    run = getattr(make(), call)
    if call == "fill":
        with pytest.raises(UsageError, match="nothing to fill in"):
            run("")
    else:
        assert [run(text, **options).summary() is not None for text in ("", " ", "\n")] == [True] * 3
    with pytest.raises(UsageError, match=r"'tpo'; (did you mean 'top'|known)"):
        run(text_for(call), tpo=2)


@pytest.mark.parametrize("call", [*MODELS, "answer"])
def test_a_model_of_another_task_says_what_it_is_and_can_do(call: str) -> None:
    made = decoder() if call != "complete" else seq2seq()
    arguments = ("who?", "Anna") if call == "answer" else ("fox",)
    with pytest.raises(UsageError) as caught:
        getattr(made, call)(*arguments)
    message = str(caught.value)
    assert message.startswith(f"m.{call} needs a model that ")
    assert ("this model is a decoder" if call != "complete" else "an encoder-decoder") in message
    assert f"; use m.{'complete' if call != 'complete' else 'translate'}" in message


def test_every_call_that_errors_name_exists() -> None:
    for task in TASKS.values():
        assert all(name in TASKS or hasattr(qkv.Model, name.split()[0]) for name in (task.name, *task.calls))


def test_an_iterator_of_texts_gives_vectors() -> None:
    made = encoder(qkv.HeadConfig(kind="embed", pool="mean", normalize=True))
    made.network.eval()
    texts = ["the fox", "a dog", "Anna"]
    torch.testing.assert_close(torch.stack(list(made.embed(iter(texts), batch_size=2))), made.embed(texts))


# ---------------------------------------------------------------- translate and summarise


def echo(made: qkv.Model, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make generation return its source in upper case, and record the sources."""
    seen: list[str] = []

    def generate(model: Any, prompts: Any, options: Any, *rest: Any) -> list[qkv.decode.GenerationResult]:
        texts = [model.tokenizer.decode(prompt) for prompt in prompts]
        seen.extend(texts)
        lengths = [model.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        assert all(len(prompt) <= made.config.encoder.max_positions for prompt in prompts)
        return [qkv.decode.GenerationResult(t.upper(), ids, -1.0, "end") for t, ids in zip(texts, lengths, strict=True)]

    monkeypatch.setattr("qkv.tasks.run.translation.parts.generate_batched", generate)
    return seen


def test_a_long_text_is_translated_by_sentence_and_keeps_its_line_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = seq2seq()
    seen = echo(made, monkeypatch)
    text = "  the fox runs. A dog runs!\n\n\tover it.\n"
    result = made.translate(text)
    assert result.text == text.upper()
    assert seen == ["the fox runs.", "A dog runs!", "over it."]
    assert [part.source for part in result.parts] == seen
    seen.clear()
    assert made.translate(" a fox. A dog. ", sentences=False).text == " A FOX. A DOG. "
    assert seen == ["a fox. A dog."]
    seen.clear()
    long = "the quick fox, " * 30
    assert made.translate(long).text.split() == long.upper().split()
    assert len(seen) > 4
    seen.clear()
    made.translate("the fox. a dog. Paris.", prompt="to it - ")
    assert seen == ["to it - the fox. a dog.", "to it - Paris."]


def test_by_default_texts_are_split_as_the_training_data_was(monkeypatch: pytest.MonkeyPatch) -> None:
    made = seq2seq()
    seen = echo(made, monkeypatch)
    for reads_sentences in (None, True, False):
        made.config = replace(made.config, reads_sentences=reads_sentences)
        for sentences in (None, True, False):
            seen.clear()
            made.translate("a fox. A dog.", sentences=sentences)
            is_split = sentences or (sentences is None and reads_sentences is not False)
            assert seen == (["a fox.", "A dog."] if is_split else ["a fox. A dog."])
    seen.clear()
    made.translate("A fox runs. " * 20)  # does not fit
    assert seen == ["A fox runs."] * 20


def test_the_text_processor_of_a_config_decides_what_the_model_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Last(TextProcessor):
        """Reads the last word of a sentence."""

        def read(self, text: str, span: tuple[int, int]) -> Part | None:
            return Part(text[slice(*span)].split()[-1], span)

    made = seq2seq()
    seen = echo(made, monkeypatch)
    text = "- see www.fox the dog."
    read_as = {None: "- see www.fox the dog.", "careful": "see the dog.", "last": "dog."}
    TEXT_PROCESSORS.register("last", Last)
    try:
        for name, read in read_as.items():
            seen.clear()
            made.config = replace(made.config, text_processor=name)
            result = made.translate(text).text
            assert [one.replace(" ", "") for one in seen] == [read.replace(" ", "")]
            assert ("www.fox" in result) == (name == "careful")
    finally:
        TEXT_PROCESSORS.unregister("last")
    with pytest.raises(UsageError, match=r"config\.json: text_processor = 'last' is unknown"):
        made.translate(text)


def test_sentences_without_spaces_between_them_get_spaces() -> None:
    parts = [Part("来。", (0, 2)), Part("去。", (2, 4))]
    for part, text in zip(parts, ["Come.", "Go."], strict=True):
        part.result = GeneratedText(part.source, text, -1.0, "end", [1])
    assert join_parts("来。去。", parts, keep_gaps=True).text == "Come. Go."


def test_a_long_text_is_summarised_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = seq2seq()
    seen = echo(made, monkeypatch)
    text = "the fox runs over it. " * 10
    assert made.summarise(text).text.split() == text.upper().split()
    assert 1 < len(seen) < 10
    seen.clear()
    made.summarise(text, too_long="truncate")
    assert len(seen) == 1
    with pytest.raises(UsageError, match="did you mean 'truncate'"):
        made.summarise(text, too_long="trunctate")


def test_a_text_that_is_too_long_in_one_piece_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"source 0 has .* tokens, but this model has 64 positions"):
        seq2seq().translate("the fox " * 30, sentences=False)


def test_n_best_are_the_hypotheses_of_the_search() -> None:
    made = seq2seq()
    result = made.translate("the fox", top=3, max_tokens=6)
    made.network.eval()
    expected = made.generate("the fox", beam=3, num_return_sequences=3, max_tokens=6)
    found = [(one.text, one.score) for one in (result, *result.alternatives)]
    assert [text for text, _ in found] == [one.text for one in (expected, *expected.alternatives)]
    assert [score for _, score in found] == pytest.approx([one.score for one in (expected, *expected.alternatives)])
    assert len(result.to_dict()["alternatives"]) == 2
    with pytest.raises(UsageError, match="top = 0"):
        made.translate("the fox", top=0)


def test_a_prefix_is_forced_and_conditions_the_rest() -> None:
    made = seq2seq()
    result = made.translate("the fox. The dog.", prefix="the dog", max_tokens=5)
    assert result.text.startswith("the dog")
    assert result.parts[0].text.startswith("the dog")
    ids = tuple(made.tokenizer.encode("the dog", add_special_tokens=False))
    made.network.eval()
    expected = made.generate("the fox.", prefix=ids, max_tokens=5)
    assert result.parts[0].ids == [*ids, *expected.ids]
    assert result.parts[1].ids == made.generate("The dog.", max_tokens=5).ids


def test_the_translator_in_the_box_aligns_words() -> None:
    """Its cross-attention is right for fewer than one word in ten."""
    links = qkv.load("en-fr").translate("The old cat chased the small mouse.", align=True).alignment
    found = {link.target: link.source for link in links}
    expected = {"vieux": "old", "chat": "cat", "poursuivi": "chased", "petite": "small", "souris": "mouse"}
    assert found == found | expected


def test_a_word_is_aligned_with_the_word_it_depends_on_and_offsets_are_exact() -> None:
    made = seq2seq()
    text = "the fox. a dog runs"
    result = made.translate(text, align=True, max_tokens=12)
    assert result.alignment
    for link in result.alignment:
        assert text[link.source_start : link.source_end] == link.source
        assert result.text[link.target_start : link.target_end] == link.target
        assert 0 < link.weight <= 1
    source = "the fox"
    single = made.translate(source, align=True, max_tokens=12)
    made.network.eval()
    end = len(made.tokenizer.encode("the", add_special_tokens=False))
    ids = made.tokenizer.encode(source)  # characters: 3 of "the", a space, 3 of "fox", EOS
    whole, *without = score(made.network, [ids, ids[end:], ids[: end + 1] + ids[end + 4 :]], [single.ids] * 3)
    word = single.alignment[0]
    drops = [
        sum(one.logprob - other.logprob for one, other in list(zip(whole, left, strict=True))[: word.target_end])
        for left in without
    ]
    assert word.source == ("the" if drops[0] > drops[1] else "fox")
    assert word.weight == pytest.approx(max(drops) / sum(max(drop, 0) for drop in drops), abs=1e-4)


# ---------------------------------------------------------------- classify


def test_top_threshold_and_temperature() -> None:
    made = MODELS["classify"][0]()
    full = made.classify("the fox")
    assert (
        list(full.probabilities) == list(made.classify("the fox", top=2).probabilities) + list(full.probabilities)[2:]
    )
    assert made.classify("the fox", threshold=full.probability).label == full.label
    above = made.classify("the fox", threshold=min(1.0, full.probability + 0.01))
    assert (above.label, above.probability) == (None, full.probability)
    assert above.summary().startswith("(none)")
    for wrong in ({"threshold": 2}, {"threshold": "high"}, {"top": -1}, {"top": 1.5}):
        with pytest.raises(UsageError, match=f"{next(iter(wrong))} = .* must be"):
            made.classify("the fox", **wrong)
    logits = np.log(list(full.probabilities.values()))
    head = qkv.HeadConfig(kind="classify", labels=CLASSES, temperature=2.0)
    cooled = qkv.Model(qkv.Config(encoder=made.config.encoder, head=head, pad_token_id=0), made.network, made.tokenizer)
    expected = np.exp(logits / 2) / np.exp(logits / 2).sum()
    assert list(cooled.classify("the fox").probabilities.values()) == pytest.approx(expected.tolist())


@pytest.mark.parametrize("empty", ["", " \n", ("the fox", ""), (" ", "the fox")], ids=repr)
@pytest.mark.parametrize("too_long", ["error", "split"])
def test_an_empty_text_has_no_class(empty: Any, too_long: str) -> None:
    made = MODELS["classify"][0]()
    full, none = made.classify(["the fox", empty], too_long=too_long, threshold=0.0)
    assert full.label is not None
    assert (none.label, none.rejected_label, none.probabilities) == (None, None, {})
    assert none.summary() == "(none)\tempty text"
    several = encoder(qkv.HeadConfig(kind="classify", labels=CLASSES, multi_label=True))
    assert several.classify(empty, threshold=0.0, too_long=too_long).labels == []
    number = encoder(qkv.HeadConfig(kind="classify", outputs=1))
    with pytest.raises(UsageError, match=r"text 2 is empty \(.*\), so it has no score; leave it out"):
        number.classify(["the fox", empty], too_long=too_long)


def test_a_long_text_is_classified_by_the_mean_of_its_parts() -> None:
    made = encoder(qkv.HeadConfig(kind="classify", labels=CLASSES), max_positions=12)
    sentences = ["the fox runs over it.", "A lazy dog runs over."]
    text = " ".join(sentences)
    parts = [np.log([made.classify(one).probabilities[name] for name in CLASSES]) for one in sentences]
    centred = np.mean(parts, axis=0)
    expected = np.exp(centred) / np.exp(centred).sum()
    found = made.classify(text, too_long="split").probabilities
    assert [found[name] for name in CLASSES] == pytest.approx(expected.tolist(), abs=1e-4)
    cut = made.classify(text, too_long="truncate").probabilities
    assert [cut[name] for name in CLASSES] != pytest.approx(expected.tolist(), abs=1e-2)
    with pytest.raises(UsageError, match='too_long to "split"'):
        made.classify(text)


def test_special_tokens_that_the_tokenizer_does_not_add_count_too() -> None:
    roles = ["pad", "bos", "eos", "unk"]
    words = Tokenizer.train("word", iter(["the fox runs over it ."]), 80, special_tokens=roles, min_frequency=1)
    config = qkv.Config(
        encoder=stack(words, max_positions=16), head=qkv.HeadConfig(kind="classify", outputs=3), pad_token_id=0
    )
    assert model(config, words).classify("the fox " * 15, too_long="split").label


def test_a_text_beside_a_pair_may_be_as_long_as_alone() -> None:
    made = encoder(qkv.HeadConfig(kind="classify", outputs=3))
    text = " ".join(["fox"] * 62)  # 64 with special tokens; a pair has one more
    alone, beside = made.classify(text), made.classify([text, ("a fox", "a dog")])[0]
    assert beside.probabilities == pytest.approx(alone.probabilities)
    with pytest.raises(UsageError, match="65 with special tokens"):
        made.classify([(text[4:], "fox")])


# ---------------------------------------------------------------- tag


def test_entities_are_merged_and_offsets_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MODELS["tag"][0]()
    by_word = {"Zoë": "B-PER", "de\u0301 Anna": "", "de\u0301": "I-PER", "Anna": "E-PER", "𝔓aris": "S-LOC"}

    def tags(_: Any, sentences: Any, *rest: Any) -> list[list[tuple[str, float]]]:
        return [[(by_word.get(word, "O"), 0.5) for word in words] for words in sentences]

    monkeypatch.setattr("qkv.tasks.verbs.tag.predict_tags", tags)
    text = "👩🏽\u200d🚀 Zoë de\u0301 Anna, in\n 𝔓aris!"
    result = made.tag(text)
    assert [(one.text, one.label) for one in result.entities] == [("Zoë de\u0301 Anna", "PER"), ("𝔓aris", "LOC")]
    for one in result.entities:
        assert text[one.start : one.end] == one.text
    for word in result.words:
        assert text[word.start : word.end] == word.word
    words = ("Zoë", "Anna", "in", "𝔓aris")
    given = made.tag(words)
    assert given.text == " ".join(words)
    assert [word.word for word in given.words] == list(words)
    assert [given.text[one.start : one.end] for one in given.entities] == ["Zoë Anna", "𝔓aris"]
    assert [one.text for one in made.tag([list(words), text])] == [given.text, text]


# ---------------------------------------------------------------- answer

SPAN = qkv.HeadConfig(kind="span", outputs=2)
PASSAGE = "Anna runs over the lazy dog and the quick brown fox jumps in Paris with Anna"


def test_questions_and_contexts_are_paired() -> None:
    made = encoder(SPAN)
    single = made.answer("who?", PASSAGE, must_answer=True)
    assert made.answer(("who?", PASSAGE), must_answer=True) == single
    assert made.answer(["who?", "where?"], PASSAGE, must_answer=True)[0] == single
    assert made.answer("who?", [PASSAGE, "the fox"], must_answer=True)[0] == single
    assert made.answer(["who?"], [PASSAGE], must_answer=True) == [single]
    assert list(made.answer(iter([("who?", PASSAGE)]), must_answer=True)) == [single]
    assert next(made.answer(iter(["who?"]), PASSAGE, must_answer=True)) == single
    with pytest.raises(UsageError, match="2 questions for 1 contexts"):
        made.answer(["a", "b"], [PASSAGE])
    with pytest.raises(UsageError, match=r"m\.answer needs the context, too: write m\.answer\(question, context\)"):
        made.answer("who?")
    with pytest.raises(UsageError, match="context must be a text, or a list or an iterator of texts, got 3"):
        made.answer("who?", 3)


@pytest.mark.parametrize("max_positions", [64, 24])
def test_answers_do_not_overlap_and_probabilities_add_up(max_positions: int) -> None:
    made = encoder(SPAN, max_positions=max_positions)
    context = "😀 e\u0301 " + PASSAGE
    result = made.answer("who?", context, top=4)
    answers = [result, *result.alternatives]
    assert len(answers) == 4
    assert sum(one.probability for one in answers) <= 1
    assert [one.probability for one in answers] == sorted((one.probability for one in answers), reverse=True)
    spans = sorted((one.start, one.end) for one in answers if one.text)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert all(context[one.start : one.end] == one.text for one in answers if one.text)
    always = made.answer("who?", context, must_answer=True)
    assert always.probability > max(one.probability for one in answers if one.text) - 1e-12


def test_the_probability_is_a_softmax_over_all_spans_and_none() -> None:
    made = encoder(SPAN)
    with torch.no_grad():
        made.network.head.out.weight.zero_()  # all logits are equal
    context = "the fox"  # n tokens have n·(n + 1) / 2 spans
    count = len(made.tokenizer.encode(context, add_special_tokens=False))
    result = made.answer("who?", context)
    assert result.probability == pytest.approx(1 / (count * (count + 1) / 2 + 1))


# ---------------------------------------------------------------- fill


def test_masks_in_long_texts_and_both_spellings(caplog: pytest.LogCaptureFixture) -> None:
    made = MODELS["fill"][0]()
    spelling = made.tokenizer.id_to_token(made.tokenizer.special_tokens.mask)
    result = made.fill("the [MASK] fox", top=3)
    assert result == made.fill(f"the {spelling} fox", top=3)
    assert [len(one) for one in result.candidates] == [3]
    long = "dog " * 100 + "the [MASK] fox" + " dog" * 100
    found = made.fill(long)
    assert len(found.text.split()) >= 200
    assert "1 of 1 texts are longer than 64 tokens: only the tokens around their masks were read" in caplog.messages
    with pytest.raises(UsageError, match='set too_long to "window"'):
        made.fill(long, too_long="error")
    with pytest.raises(UsageError, match="did you mean 'window'"):
        made.fill(long, too_long="windows")


def test_masks_that_are_far_apart_are_each_read_with_the_text_around_them() -> None:
    made = MODELS["fill"][0]()
    first, second = "the [MASK] fox" + " dog" * 100, "dog " * 100 + "a lazy [MASK]"
    both = made.fill(f"{first} {second}", top=2)
    for found, alone in zip(both.candidates, (first, second), strict=True):
        assert found == pytest.approx(made.fill(alone, top=2).candidates[0], abs=1e-5)
    single = made.fill([f"{first} {second}", "a [MASK]"], top=2, batch_size=1)[0]
    assert [list(one) for one in single.candidates] == [list(one) for one in both.candidates]
    assert "[MASK]" not in both.text


# ---------------------------------------------------------------- translate and summarise


def test_options_of_translate_that_cannot_be_are_refused() -> None:
    made = seq2seq()
    with pytest.raises(UsageError, match=r"prefix = \['the', 'a'\] must be a string"):
        made.translate(["a fox", "a dog"], prefix=["the", "a"])
    with pytest.raises(UsageError, match="top = 3 needs a beam search, which does not sample"):
        made.translate("a fox", top=3, temperature=0.5)
    assert made.translate("a fox", prefix="the ", max_tokens=4) == made.translate("a fox", prefix="the", max_tokens=4)


def test_a_text_too_long_to_summarise_is_refused_if_it_should_be() -> None:
    made, text = seq2seq(max_positions=32), "the quick brown fox jumps. " * 3
    with pytest.raises(UsageError, match=r"a text of 81 characters.*is too long.*set too_long"):
        made.summarise(text, too_long="error")
    assert made.summarise("the fox", too_long="error", max_tokens=4).ids
    assert len(made.summarise(text, max_tokens=4).parts) > 1
