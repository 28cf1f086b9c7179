"""Tasks that read and do not write: each answer is the one that the text alone gives, laid out by hand."""

import numpy as np
import pytest
import torch
from task_models import encoder, model, parts_of, records, seq2seq_tokenizer, stack

import qkv
from qkv.data.objectives.tagging import EncodeTags
from qkv.errors import QkvError, UsageError
from qkv.tasks.evaluate import evaluate, main_metric
from qkv.tasks.verbs import answer, embed, fill
from qkv.tasks.verbs.tag import mark_first_tokens

CLASSES = ("bad", "good", "so so")
TEXTS = ["the fox", "a lazy dog runs over it", "Anna in Paris", "fox"]
LABELS = qkv.HeadConfig(kind="classify", labels=CLASSES, dense="tanh", bias=True)


def framed(made: qkv.Model, *parts: list[int]) -> list[int]:
    """[CLS] a [SEP] b [SEP], by hand."""
    roles = made.tokenizer.special_tokens
    return [roles.cls, *[token for part in parts for token in (*part, roles.sep)]]


def ids(made: qkv.Model, text: str) -> list[int]:
    return made.tokenizer.encode(text, add_special_tokens=False)


# ---------------------------------------------------------------- classify


def test_labels_are_those_of_each_text_alone() -> None:
    made = encoder(LABELS)
    said = made.classify(TEXTS, batch_size=3)
    made.network.eval()
    for text, label in zip(TEXTS, said, strict=True):
        shares = made.logits([framed(made, ids(made, text))])[0].softmax(-1)
        assert label.label == CLASSES[int(shares.argmax())]
        assert list(label.probabilities) == sorted(CLASSES, key=lambda name: -shares[CLASSES.index(name)])
        assert [label.probabilities[name] for name in CLASSES] == pytest.approx(shares.tolist(), abs=1e-5)
        assert label.probability == max(label.probabilities.values())


def test_a_pair_is_read_with_its_sentence_types() -> None:
    made = encoder(LABELS)
    one, two = "the fox", "a lazy dog"
    (said,) = made.classify([(one, two)])
    row = framed(made, ids(made, one), ids(made, two))
    types = [0] * (len(ids(made, one)) + 2) + [1] * (len(ids(made, two)) + 1)
    made.network.eval()
    expected = made.logits([row], token_type_ids=[types])[0].softmax(-1).tolist()
    assert [said.probabilities[name] for name in CLASSES] == pytest.approx(expected, abs=1e-5)
    untyped = made.logits([row])[0].softmax(-1).tolist()
    assert untyped != pytest.approx(expected, abs=1e-3)


def test_labels_are_judged() -> None:
    made = encoder(LABELS)
    said = [one.label for one in made.classify(TEXTS)]
    right = [{"text": text, "label": label} for text, label in zip(TEXTS, said, strict=True)]
    found = evaluate(*parts_of(made), records(right))
    assert found.metrics["accuracy"] == 1.0
    assert found.main_metric == "accuracy" == main_metric(made.config, records(right))
    assert [(sample.prediction, sample.expected) for sample in found.samples] == [(one, one) for one in said]
    wrong = [*right[1:], {"text": TEXTS[0], "label": "unheard of"}]
    found = evaluate(*parts_of(made), records(wrong))
    assert found.metrics["accuracy"] == pytest.approx(3 / 4)
    assert found.notes == (
        "labels that the model does not have, counted as wrong: 'unheard of'; if its texts belong to no class, train "
        'with objective.out_of_scope="unheard of"',
    )
    with pytest.raises(UsageError, match="the labels are 'x', but the classes are 'bad', 'good'"):
        evaluate(*parts_of(made), records([{"text": "fox", "label": "x"}]))


def test_classes_without_names_are_numbers() -> None:
    made = encoder(qkv.HeadConfig(kind="classify", outputs=3))
    found = evaluate(*parts_of(made), records([{"text": "fox", "label": 2}, {"text": "dog", "label": "0"}]))
    assert found.num_records == 2
    assert {sample.prediction for sample in found.samples} <= {"0", "1", "2"}


def test_a_single_output_is_a_score() -> None:
    made = encoder(qkv.HeadConfig(kind="classify", outputs=1))
    said = made.classify(TEXTS)
    made.network.eval()
    assert said[1].score == pytest.approx(made.logits([framed(made, ids(made, TEXTS[1]))])[0].item(), abs=1e-5)
    made.network.train()
    same = [{"text": text, "score": 10 * one.score + 3} for text, one in zip(TEXTS, said, strict=True)]
    found = evaluate(*parts_of(made), records(same))
    assert found.metrics == pytest.approx({"spearman": 1.0, "pearson": 1.0})
    assert found.main_metric == "spearman"
    found = evaluate(*parts_of(made), records([*same, {"text": "a", "score": "much"}]))
    assert "1 record left out: made:5: the score 'much' is not a number" in found.notes


def test_long_texts_are_cut_and_told_when_judged_and_refused_when_run() -> None:
    made = encoder(LABELS, max_positions=8)
    long = "the lazy dog " * 20
    found = evaluate(*parts_of(made), records([{"text": long, "label": "bad"}, {"text": "fox", "label": "bad"}]))
    assert found.notes == ("1 of 2 texts were truncated to the 8 tokens that fit",)
    with pytest.raises(UsageError, match="the text is longer than the 8 tokens"):
        made.classify([long])


@pytest.mark.parametrize("task", ["classify", "embed"])
def test_a_text_that_is_too_long_is_named(task: str) -> None:
    made = encoder(LABELS if task == "classify" else qkv.HeadConfig(kind="embed"), max_positions=8)
    call = getattr(made, task)
    long = "the lazy dog " * 20
    with pytest.raises(UsageError) as caught:
        call(["fox", long, "dog", long + "!"])
    many = len(framed(made, ids(made, long)))
    begins = repr(long[:40]) + "…"
    others = '"split" or "truncate"' if task == "classify" else '"truncate"'
    assert str(caught.value) == (
        f"2 of 4 texts are longer than the 8 tokens that this model can read: text 2, which begins "
        f"with {begins}, has {many:,} with special tokens; shorten them, or set too_long to {others}"
    )
    assert len(call(["fox", "dog"])) == 2
    assert len(call([])) == 0


def test_of_two_texts_both_are_named() -> None:
    made = encoder(LABELS, max_positions=8)
    with pytest.raises(UsageError, match=r"text 1, which begins with 'fox ‖ the lazy dog the lazy .*; shorten it"):
        made.classify([("fox", "the lazy dog " * 20), ("a", "b")])


def test_a_decoder_classifies_too() -> None:
    tokenizer = seq2seq_tokenizer()
    head = qkv.HeadConfig(kind="classify", labels=CLASSES, pool="last")
    made = model(qkv.Config(decoder=stack(tokenizer), head=head, pad_token_id=tokenizer.special_tokens.pad), tokenizer)
    said = made.classify(TEXTS)
    made.network.eval()
    expected = made.logits([tokenizer.encode(TEXTS[1])])[0].softmax(-1).tolist()
    assert [said[1].probabilities[name] for name in CLASSES] == pytest.approx(expected, abs=1e-5)


# ---------------------------------------------------------------- tag

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
SENTENCES = [["Anna", "runs", "in", "Paris", "."], ["the", "jumping", "foxes"], ["dog"]]


def test_tags_are_read_off_each_words_first_token() -> None:
    made = encoder(qkv.HeadConfig(kind="tag", labels=TAGS))
    said = made.tag(SENTENCES, batch_size=2)
    made.network.eval()
    for words, tagged in zip(SENTENCES, (one.words for one in said), strict=True):
        assert [one.word for one in tagged] == words
        pieces = [ids(made, word) for word in words]
        shares = made.logits([framed(made, [token for piece in pieces for token in piece])])[0].softmax(-1)
        place = 1
        for piece, one in zip(pieces, tagged, strict=True):
            assert one.tag == TAGS[int(shares[place].argmax())]
            assert one.probability == pytest.approx(float(shares[place].max()), abs=1e-5)
            place += len(piece)
    assert any(len(ids(made, word)) > 1 for words in SENTENCES for word in words)


def test_the_token_that_is_read_is_the_token_that_was_taught() -> None:
    made = encoder(qkv.HeadConfig(kind="tag", labels=TAGS))
    for words in (*SENTENCES, ["Paris", "\u200b", "fox"], ["dog's", "3.5", "—"]):
        numbers = [str(number) for number in range(len(words))]
        (taught,) = EncodeTags(made.tokenizer, classes=numbers)(records([{"tokens": words, "tags": numbers}]))
        assert mark_first_tokens(made.tokenizer, words) == {"ids": taught["ids"], "tags": taught["tags"]}


def test_running_text_is_cut_into_words_and_signs() -> None:
    made = encoder(qkv.HeadConfig(kind="tag", labels=TAGS))
    (said,) = made.tag(["Anna's dog-house, in Paris (3.5 km)!"])
    assert [one.word for one in said.words] == ["Anna's", "dog-house", ",", "in", "Paris", "(", "3.5", "km", ")", "!"]
    assert [one.words for one in made.tag(["", " "])] == [[], []]


def test_a_long_sentence_is_tagged_in_windows_without_losing_a_word() -> None:
    made = encoder(qkv.HeadConfig(kind="tag", labels=TAGS), max_positions=12)
    words = ["fox", "dog", "Anna"] * 20
    (said,) = made.tag([words])
    assert [one.word for one in said.words] == words
    assert all(one.probability > 0 for one in said.words)


def test_tags_are_judged_by_whole_entities() -> None:
    made = encoder(qkv.HeadConfig(kind="tag", labels=TAGS))
    said = [[one.tag for one in tagged.words] for tagged in made.tag(SENTENCES)]
    same = [{"tokens": words, "tags": tags} for words, tags in zip(SENTENCES, said, strict=True)]
    found = evaluate(*parts_of(made), records(same))
    assert found.metrics["accuracy"] == 1.0
    assert found.main_metric == "f1"
    assert found.metrics["f1"] == 1.0
    uneven = [*same, {"tokens": ["a", "b"], "tags": ["O"]}]
    found = evaluate(*parts_of(made), records(uneven))
    assert found.num_records == 3
    assert found.notes == ("1 record left out: the numbers of words and tags differ or are 0",)
    with pytest.raises(UsageError, match="the numbers of words and tags differ"):
        evaluate(*parts_of(made), records(uneven[-1:]))


def test_plain_classes_are_judged_by_words() -> None:
    made = encoder(qkv.HeadConfig(kind="tag", labels=("NOUN", "VERB")))
    found = evaluate(*parts_of(made), records([{"tokens": ["fox", "runs"], "tags": ["NOUN", "ADV"]}]))
    assert list(found.metrics) == ["accuracy", "macro_f1"]
    assert found.notes == ("tags that the model does not have, counted as wrong: 'ADV'",)


@pytest.mark.parametrize("tags", [["7", "0"], ["PER", "O"]], ids=["numbers", "without B and I"])
def test_tags_that_all_mean_something_else_are_refused(tags: list[str]) -> None:
    made = encoder(qkv.HeadConfig(kind="tag", labels=TAGS))
    listed = records([{"tokens": ["Anna", "runs"], "tags": tags}])
    with pytest.raises(
        UsageError, match=f"none of the tags is a class .* are .*'{tags[0]}', but .* --columns tags=COLUMN"
    ):
        evaluate(*parts_of(made), listed)
    outside = records([{"tokens": ["Anna", "runs"], "tags": ["O", "O"]}])
    assert evaluate(*parts_of(made), outside).num_records == 1


# ---------------------------------------------------------------- answer

SPAN = qkv.HeadConfig(kind="span", outputs=2)
PASSAGE = "Anna runs over the lazy dog and the quick brown fox jumps in Paris with Anna"


def slow_answer(made: qkv.Model, question: str, passage: str) -> tuple[str, float]:
    """Every span of the whole passage, one after the other."""
    asked, tokens = ids(made, question), made.tokenizer.encode_with_offsets(passage)
    row = framed(made, asked, tokens[0])
    types = [0] * (len(asked) + 2) + [1] * (len(tokens[0]) + 1)
    made.network.eval()
    logits = made.logits([row], token_type_ids=[types])[0].double()
    first = len(asked) + 2
    best, span = -np.inf, (0, 0)
    for start in range(len(tokens[0])):
        for end in range(start, min(start + answer.MAX_ANSWER_TOKENS, len(tokens[0]))):
            worth = float(logits[first + start, 0] + logits[first + end, 1])
            if worth > best:
                best, span = worth, (start, end)
    text = passage[tokens[1][span[0]][0] : tokens[1][span[1]][1]]
    return text.strip(), best - float(logits[0].sum())


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_answer_is_the_best_of_all_spans(seed: int) -> None:
    made = encoder(SPAN, seed=seed)
    questions = ["who runs?", "the fox", "in Paris?"]
    said = made.answer([(question, PASSAGE) for question in questions], must_answer=True, batch_size=2)
    for question, found in zip(questions, said, strict=True):
        text, score = slow_answer(made, question, PASSAGE)
        assert found.text == text == PASSAGE[found.start : found.end]
        assert found.score == pytest.approx(score, abs=1e-4)
    mayhap = made.answer([(question, PASSAGE) for question in questions])
    assert [one.text for one in mayhap] == [one.text if one.score >= 0 else "" for one in said]


def test_a_long_passage_is_read_in_windows_and_the_best_of_them_wins() -> None:
    made = encoder(SPAN, max_positions=24)
    passage = " ".join([PASSAGE] * 4)
    (found,) = made.answer([("who?", passage)], must_answer=True)
    assert passage[found.start : found.end] == found.text != ""
    assert len(ids(made, passage)) > 24


def test_best_span_keeps_to_the_longest() -> None:
    starts, ends = np.array([9.0, 0.0, 0.0, 1.0]), np.array([0.0, 0.0, 0.0, 9.0])
    for max_tokens, span, total in ((4, [0, 3], 18.0), (2, [3, 3], 10.0)):
        spans, sums, _ = answer.best_spans(starts, ends, 1, max_tokens=max_tokens)
        assert (spans.tolist(), sums.tolist()) == ([span], [total])


def test_answers_are_judged_against_the_best_reference() -> None:
    made = encoder(SPAN, seed=2)
    (found,) = made.answer([("who?", PASSAGE)], must_answer=True)
    asked = {"question": "who?", "context": PASSAGE, "starts": [0]}
    judged = evaluate(*parts_of(made), records([{**asked, "answers": ["zzz", found.text]}]))
    assert judged.metrics == {"f1": 1.0, "exact_match": 1.0}
    assert judged.samples[0].expected == f"zzz / {found.text}"
    judged = evaluate(*parts_of(made), records([{**asked, "answers": ["zzz"]}]))
    assert judged.metrics == {"f1": 0.0, "exact_match": 0.0}


def test_no_answer_is_right_where_there_is_none() -> None:
    made = encoder(SPAN, seed=2)
    with torch.no_grad():
        made.network.head.out.weight.zero_()  # every span is as likely as none, so a span is given
    none = records([{"question": "who?", "context": "fox, dog", "answers": [], "starts": []}])
    assert evaluate(*parts_of(made), none).metrics["exact_match"] == 0.0
    (found,) = made.answer([("who?", "")])
    assert (found.text, found.start) == ("", -1)
    assert evaluate(*parts_of(made), records([{**none[0].fields, "context": " "}])).metrics["exact_match"] == 1.0


def test_a_question_comes_with_a_passage() -> None:
    made = encoder(SPAN)
    with pytest.raises(UsageError, match="text 2 is not a question and its context"):
        made.answer([("who?", "Anna"), "who?"])  # type: ignore[list-item]


# ---------------------------------------------------------------- embed

EMBED = qkv.HeadConfig(kind="embed", pool="mean", normalize=True)


def test_vectors_are_those_of_embed() -> None:
    made = encoder(EMBED)
    found = made.embed(TEXTS, batch_size=3)
    made.network.eval()
    torch.testing.assert_close(found, made.embed(TEXTS))
    assert made.embed([]).shape == (0, 16)


def test_scores_are_compared_with_cosines() -> None:
    made = encoder(qkv.HeadConfig(kind="embed", pool="mean"))
    pairs = [("the fox", "a dog"), ("fox", "the lazy fox"), ("Anna", "Anna"), ("in Paris", "dogs run")]
    vectors = [made.embed(list(pair)) for pair in pairs]
    cosines = [float(torch.cosine_similarity(*pair, dim=0)) for pair in vectors]
    listed = [{"first": a, "second": b, "score": 5 * near} for (a, b), near in zip(pairs, cosines, strict=True)]
    found = evaluate(*parts_of(made), records(listed))
    assert found.metrics == pytest.approx({"spearman": 1.0, "pearson": 1.0})
    flipped = [{**one, "score": -one["score"]} for one in listed]
    assert evaluate(*parts_of(made), records(flipped)).metrics["spearman"] == pytest.approx(-1.0)


def test_without_scores_each_text_should_find_its_partner() -> None:
    made = encoder(EMBED)
    same = records([{"first": text, "second": text} for text in TEXTS])
    found = evaluate(*parts_of(made), same)
    assert found.metrics == {"retrieval_accuracy": 1.0, "mean_reciprocal_rank": 1.0}
    assert found.main_metric == "retrieval_accuracy" == main_metric(made.config, same)
    moved = [{"first": a, "second": b} for a, b in zip(TEXTS, [*TEXTS[1:], TEXTS[0]], strict=True)]
    found = evaluate(*parts_of(made), records(moved))
    assert found.metrics["retrieval_accuracy"] == 0.0
    assert [sample.prediction for sample in found.samples] == TEXTS


def test_ranks_count_those_that_are_nearer() -> None:
    one = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    two = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
    rank, nearest = embed.rank_partners(one, two, torch.tensor([1, 0]))
    assert (rank.tolist(), nearest.tolist()) == ([2, 3], [0, 2])


# ---------------------------------------------------------------- fill

MLM = qkv.HeadConfig(kind="mlm", outputs=1)


def test_white_space_and_two_spellings_of_a_word_are_candidates() -> None:
    tokenizer = qkv.Tokenizer.train(
        "byte-bpe", iter(["the king the\n king"] * 9), vocab_size=300, special_tokens=["mask"]
    )
    with_space, alone, newline = (tokenizer.encode(text) for text in (" the", "the", "\n"))
    assert [len(one) for one in (with_space, alone, newline)] == [1, 1, 1]
    tokens = [*newline, *with_space, *alone, tokenizer.special_tokens.mask]
    found = fill._fill_text(tokenizer, ["", ""], {0: ([0.4, 0.3, 0.2, 0.1], tokens)})
    assert found.candidates == [{"\n": 0.4, "the": 0.3, "<mask>": 0.1}]
    assert [row[0] for row in found.rows()] == [r"'\n'", "the", "<mask>"]


def test_a_mask_stands_for_a_word_with_its_space_and_the_rest_of_the_text_stays() -> None:
    texts = ["the king and the queen"] * 9
    tokenizer = qkv.Tokenizer.train("byte-bpe", iter(texts), vocab_size=300, special_tokens=["pad", "mask"])
    king, queen = (tokenizer.encode(text)[0] for text in (" king", " queen"))
    config = qkv.Config(
        encoder=stack(tokenizer), head=qkv.HeadConfig(kind="mlm", outputs=tokenizer.vocab_size), pad_token_id=0
    )
    made = model(config, tokenizer)
    spaced, joined = made.fill(["the [MASK]  AND  the queen", "the[MASK]  AND  the queen"])
    assert spaced == joined, "in training, a mask replaces the token of the space and the word"
    assert spaced.text.endswith("  AND  the queen")
    predicted = {1: ([0.9], [king]), 5: ([0.9], [queen])}
    found = fill._fill_text(tokenizer, ["the", " and the", "!"], predicted)
    assert found.text == "the king and the queen!"
    assert fill._fill_text(tokenizer, ["", "!"], {0: ([0.9], [king])}).text == "king!"


def test_gaps_are_filled_with_the_likeliest_words() -> None:
    made = encoder(MLM)
    tokenizer = made.tokenizer
    texts = ["the [MASK] fox", "[MASK] lazy [MASK]"]
    texts = [text.replace("[MASK]", tokenizer.id_to_token(tokenizer.special_tokens.mask)) for text in texts]
    said = made.fill(texts, top=3)
    made.network.eval()
    for text, found in zip(texts, said, strict=True):
        row = tokenizer.encode(text, parse_special_tokens=True)
        shares = made.logits([row])[0].softmax(-1)
        places = [place for place, token in enumerate(row) if token == tokenizer.special_tokens.mask]
        assert len(found.candidates) == len(places)
        for place, gap in zip(places, found.candidates, strict=True):
            assert list(gap.values()) == pytest.approx(shares[place].topk(3).values.tolist(), abs=1e-5)
            row[place] = int(shares[place].argmax())
        assert found.text == tokenizer.decode(row)
    with pytest.raises(UsageError, match=r"text 2 has nothing to fill in; write .*mask"):
        made.fill([texts[0], "no gap"])


def test_hidden_words_are_judged_the_same_way_each_time() -> None:
    made = encoder(MLM)
    listed = records([{"text": text} for text in (*TEXTS, "the lazy dog " * 40)])
    first = evaluate(*parts_of(made), listed, batch_size=2)
    assert evaluate(*parts_of(made), listed, batch_size=7).metrics == pytest.approx(first.metrics)
    assert first.main_metric == "masked_accuracy"
    assert 0 < first.metrics["loss"] < 50
    assert first.notes == ("1 texts were read in windows of 64 tokens",)
    assert len(first.samples) == 3
    with pytest.raises(QkvError, match="none of the 1 records"):
        evaluate(*parts_of(made), records([{"text": " "}]))


def test_a_model_that_always_says_one_word_is_right_where_it_stands() -> None:
    made = encoder(MLM)
    fox = ids(made, "fox")
    assert len(fox) == 1
    with torch.no_grad():  # all logits equal but one
        made.network.head.out.weight.zero_()
        made.network.head.out.bias = torch.nn.Parameter(torch.zeros(made.tokenizer.vocab_size))
        made.network.head.out.bias[fox[0]] = 5.0
    listed = records([{"text": "fox " * 20}, {"text": "dog " * 20}])
    found = evaluate(*parts_of(made), listed)
    assert found.metrics["masked_accuracy"] == pytest.approx(0.5)
