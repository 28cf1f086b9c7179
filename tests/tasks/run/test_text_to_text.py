"""Text to text: what is written is what decoding alone writes, and scored against the right targets."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from task_models import decoder, parts_of, records, seq2seq

import qkv
from qkv.errors import UsageError
from qkv.tasks.evaluate import evaluate, main_metric
from qkv.tasks.run.generate import continue_texts
from qkv.tasks.text_model import TextModel
from qkv.tasks.verbs import text_to_text

SOURCES = ["the fox", "a", "dogs and a fox run over it", "brown dog, lazy", "the lazy dog jumps", "x y z", "Paris"]


def alone(made: qkv.Model, sources: list[str], **options: object) -> list[str]:
    made.network.eval()
    written = [made.generate(source, **options).text for source in sources]
    made.network.train()
    return written


@pytest.mark.parametrize("beam", [1, 3])
def test_a_model_scores_fully_on_what_it_writes_itself(beam: int) -> None:
    made = seq2seq(position="rotary")
    written = alone(made, SOURCES, max_tokens=40, beam=beam)
    assert len(set(written)) > 2, "the network should not say the same of everything"
    pairs = [{"source": a, "target": b} for a, b in zip(SOURCES, written, strict=True)]
    found = evaluate(*parts_of(made), records(pairs), beam=beam, batch_size=2, max_tokens=40)
    assert found.metrics["exact_match"] == 1.0
    assert [sample.prediction for sample in found.samples] == written
    moved = [{"source": a, "target": b} for a, b in zip(SOURCES, [*written[1:], written[0]], strict=True)]
    assert evaluate(*parts_of(made), records(moved), max_tokens=40).metrics["exact_match"] < 1.0


def test_sources_of_several_sentences_are_noted_if_the_model_reads_sentences() -> None:
    made = seq2seq()
    pairs = records([{"source": "The fox runs. A dog runs.", "target": "x"}, {"source": "A dog runs.", "target": "x"}])
    assert not evaluate(*parts_of(made), pairs, max_tokens=4).notes[1:]
    made.config = replace(made.config, reads_sentences=True)
    note, _ = evaluate(*parts_of(made), pairs, max_tokens=4).notes
    assert note.startswith("1 of 2 sources have several sentences; here, each source is read in one piece")


def test_the_batch_size_changes_nothing() -> None:
    made = seq2seq()
    pairs = records([{"source": source, "target": "the fox runs"} for source in SOURCES])
    first, *others = (evaluate(*parts_of(made), pairs, batch_size=batch) for batch in (1, 3, 32))
    assert all(other == first for other in others)


def test_words_decide_whether_bleu_says_anything() -> None:
    made = seq2seq()
    short = records([{"source": "a", "target": "2021-05-04"}, {"source": "b", "target": "one two three"}])
    long = records([{"source": "a", "target": "one two three four five"}, {"source": "b", "target": "one two three"}])
    found = evaluate(*parts_of(made), short)
    assert list(found.metrics) == ["exact_match"]
    assert found.main_metric == "exact_match" == main_metric(made.config, short)
    found = evaluate(*parts_of(made), long)
    assert {"exact_match", "bleu", "tokenised_bleu"} <= found.metrics.keys()
    assert found.main_metric == "bleu" == main_metric(made.config, long)


def test_metrics_can_be_asked_for_by_name() -> None:
    made = seq2seq()
    pairs = records([{"source": "a", "target": "b"}])
    found = evaluate(*parts_of(made), pairs, metrics=["word_error_rate"])
    assert list(found.metrics) == ["word_error_rate", "exact_match"]
    assert found.main_metric == "word_error_rate"
    with pytest.raises(UsageError, match="did you mean 'bleu'"):
        evaluate(*parts_of(made), pairs, metrics=["blue"])


def test_several_targets_of_a_source_are_all_right_but_count_once() -> None:
    made = seq2seq()
    (written,) = alone(made, ["fox"], max_tokens=40)
    pairs = [{"source": "fox", "target": written}, {"source": "fox", "target": "another"}]
    pairs.append({"source": "dog", "target": "nothing like it"})
    found = evaluate(*parts_of(made), records(pairs), max_tokens=40)
    assert found.metrics["exact_match"] == pytest.approx(1 / 3)
    assert found.metrics["exact_match_any"] == pytest.approx(1 / 2)


def test_what_is_cut_is_told() -> None:
    made = seq2seq()
    found = evaluate(*parts_of(made), records([{"source": "a fox", "target": "b"}]), max_tokens=2)
    assert found.notes == ("1 of 1 predictions were cut off at 2 tokens",)
    assert len(found.samples[0].prediction) <= 2


def test_a_source_too_long_to_read_is_truncated_and_told() -> None:
    made = seq2seq(max_positions=16)
    long = "fox " * 20
    found = evaluate(*parts_of(made), records([{"source": long, "target": "x"}, {"source": "fox", "target": "x"}]))
    assert "1 sources were truncated to the 16 tokens that fit" in found.notes
    made.network.eval()
    source = [*made.tokenizer.encode(long)[:15], made.tokenizer.special_tokens.eos]
    start = made.generate(source, max_tokens=9).text
    assert found.samples[0].prediction == start


def test_records_that_lack_a_field_are_left_out_and_told() -> None:
    made = seq2seq()
    pairs = records([{"source": "a", "target": "b"}, {"source": "a"}, {"source": "a", "target": 3}])
    found = evaluate(*parts_of(made), pairs)
    assert found.num_records == 1
    assert "2 of 3 records left out: made:2: no field 'target'" in found.notes[0]
    with pytest.raises(
        UsageError, match=r"made:1: no field 'source' \(did you mean 'sorce'\?\); its fields are: sorce"
    ):
        evaluate(*parts_of(made), records([{"sorce": "a", "target": "b"}]))
    with pytest.raises(UsageError, match="no records"):
        evaluate(*parts_of(made), [])


def test_running_gives_what_generate_gives_in_order() -> None:
    made = seq2seq()
    texts = [*SOURCES, "", " "]
    results = continue_texts(TextModel(*parts_of(made), batch_size=3), texts, {"max_tokens": 12})
    assert [result.text for result in results[: len(SOURCES)]] == alone(made, SOURCES, max_tokens=12)
    assert [result.text for result in results[len(SOURCES) :]] == ["", ""]
    with pytest.raises(UsageError, match="did you mean 'max_tokens'"):
        continue_texts(TextModel(*parts_of(made)), texts, {"max_token": 12})
    with pytest.raises(UsageError, match="unknown option 'foo'; known: ") as caught:
        made.translate("fox", foo=1)
    known = str(caught.value).partition("known: ")[2].split(", ")
    assert len(known) == len(set(known))


def test_a_decoder_goes_on_without_the_end_that_its_tokenizer_adds() -> None:
    made = decoder()
    ids = text_to_text.prompt_ids(made.tokenizer, made.config, "fox")
    assert ids == made.tokenizer.encode("fox", add_special_tokens=False)
    assert text_to_text.prompt_ids(made.tokenizer, seq2seq().config, "fox") == made.tokenizer.encode("fox")


def test_progress_ends_at_the_number_of_sources() -> None:
    heard: list[tuple[int, int]] = []
    pairs = records([{"source": source, "target": "x"} for source in SOURCES])
    made = seq2seq()
    evaluate(*parts_of(made), pairs, batch_size=3, progress=lambda done, total: heard.append((done, total)))
    assert heard == [(3, 7), (6, 7), (7, 7)]


def test_a_truncated_source_ends_with_the_end_token_as_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    made = seq2seq(max_positions=16)
    read: list[list[int]] = []
    generate = text_to_text.generate_batched

    def record(model: TextModel, prompts: list[list[int]], *rest: Any) -> Any:
        read.extend(prompts)
        return generate(model, prompts, *rest)

    monkeypatch.setattr(text_to_text, "generate_batched", record)
    evaluate(*parts_of(made), records([{"source": "the quick brown fox jumps", "target": "dog"}]), max_tokens=4)
    text = made.tokenizer.encode("the quick brown fox jumps", add_special_tokens=False)
    assert read == [[*text[:15], made.tokenizer.special_tokens.eos]]


@pytest.mark.parametrize("make", [seq2seq, decoder])
def test_how_much_is_written_does_not_depend_on_the_other_texts(make: Callable[..., qkv.Model]) -> None:
    long = "the quick brown fox jumps over the lazy dog and runs in Paris"
    made = make(seed=1, max_positions=200)
    assert made.run("a fox").ids == made.run(["a fox", long])[0].ids
    if make is seq2seq:
        alone, beside = made.translate("a fox"), made.translate(["a fox", long])
        assert len(alone.ids) == 64, "it does not end by itself"
        assert beside[0].ids == alone.ids
        assert len(beside[1].ids) > 64
