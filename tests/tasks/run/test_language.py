"""Language: the loss is the one that the logits of each text alone give, however it is read."""

import math

import pytest
import torch
from rich.console import Console
from task_models import TEXT, decoder, parts_of, records

import qkv
from qkv.errors import QkvError, UsageError
from qkv.render import evaluation
from qkv.render.training_display import correctness_mark
from qkv.tasks.evaluate import evaluate

TEXTS = ["the quick fox", "a", TEXT * 3, "dogs run, and the lazy fox jumps over 12 dogs."]


def loss_alone(made: qkv.Model, text: str, window: int, framed: bool) -> tuple[float, int]:
    """The slow way: a window at a time, each label by itself."""
    roles, ids = made.tokenizer.special_tokens, made.tokenizer.encode(text, add_special_tokens=False)
    if framed:
        ids = [roles.bos, *ids, roles.eos]
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, window):
        shown, wanted = ids[start : start + window], ids[start + 1 : start + window + 1]
        logits = made.logits([shown[: len(wanted)]])[0].double().log_softmax(-1)
        total -= sum(float(logits[place, label]) for place, label in enumerate(wanted))
        count += len(wanted)
    return total, count


@pytest.mark.parametrize("framed", [None, False])
@pytest.mark.parametrize("window", [0, 7])
def test_the_loss_is_that_of_each_text_alone(framed: bool | None, window: int) -> None:
    made = decoder()
    found = evaluate(
        *parts_of(made),
        records([{"text": text} for text in TEXTS]),
        batch_size=3,
        max_length=window,
        add_bos_eos=framed,
    )
    made.network.eval()
    alone = [loss_alone(made, text, window or 64, framed is None) for text in TEXTS]
    nats, count = sum(total for total, _ in alone), sum(count for _, count in alone)
    characters = sum(map(len, TEXTS))
    assert found.metrics["loss"] == pytest.approx(nats / count, rel=1e-5)
    assert found.metrics["perplexity"] == pytest.approx(math.exp(nats / count), rel=1e-4)
    assert found.metrics["bits_per_character"] == pytest.approx(nats / math.log(2) / characters, rel=1e-5)
    assert found.main_metric == "loss"
    split = sum(count > (window or 64) for _, count in alone)
    assert found.notes == (f"{split} texts were read in windows of {window or 64} tokens",)


def test_bytes_are_more_than_characters_where_they_are() -> None:
    made = decoder()
    found = evaluate(*parts_of(made), records([{"text": "ééé fox"}]))
    assert found.metrics["bits_per_byte"] == pytest.approx(found.metrics["bits_per_character"] * 7 / 10)


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity() -> None:
    made = decoder()
    with torch.no_grad():
        made.network.embedding.token.weight.zero_()
    found = evaluate(*parts_of(made), records([{"text": TEXT}]))
    assert found.metrics["perplexity"] == pytest.approx(made.config.stack.vocab_size, rel=1e-5)


def test_of_a_chat_only_the_answers_are_judged() -> None:
    made = decoder(position="rotary")
    turns = [("user", "fox?"), ("assistant", "dog."), ("user", "and?"), ("assistant", "a lazy one")]
    chat = {"messages": [{"role": role, "content": said} for role, said in turns]}
    found = evaluate(*parts_of(made), records([chat]))
    tokenizer = made.tokenizer
    end, start = tokenizer.special_tokens.eos, tokenizer.special_tokens.bos

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    before = [start, *ids("user:\n"), *ids("fox?"), *ids("\n\n"), *ids("assistant:\n")]
    one = [*ids("dog."), end]
    between = [*ids("user:\n"), *ids("and?"), *ids("\n\n"), *ids("assistant:\n")]
    two = [*ids("a lazy one"), end]
    made.network.eval()
    logits = made.logits([[*before, *one, *between, *two]])[0].double().log_softmax(-1)
    places = [*range(len(before), len(before) + len(one))]
    places += range(len(before) + len(one) + len(between), len(before) + len(one) + len(between) + len(two))
    labels = [*one, *two]
    expected = -sum(float(logits[place - 1, label]) for place, label in zip(places, labels, strict=True)) / len(labels)
    assert found.metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert "fox?" in found.samples[0].source
    assert "a lazy one" not in found.samples[0].source
    assert found.samples[0].expected == ""


def test_samples_show_how_a_text_goes_on() -> None:
    made = decoder()
    found = evaluate(*parts_of(made), records([{"text": "the lazy dog"}]), max_samples=1)
    (sample,) = found.samples
    assert "the lazy dog".startswith(sample.source)
    assert sample.source
    assert sample.expected == "", "no continuation is the right one"
    assert correctness_mark(sample) == ""
    console = Console(width=80, force_terminal=False)
    with console.capture() as caught:
        evaluation.print_evaluation("mine", found, console)
    assert "predicted" in caught.get()
    assert "expected" not in caught.get()
    assert evaluate(*parts_of(made), records([{"text": "the fox"}]), max_samples=0).samples == []


def test_texts_that_hold_nothing_to_judge_are_an_error() -> None:
    made = decoder()
    with pytest.raises(QkvError, match="none of the 1 records"):
        evaluate(*parts_of(made), records([{"text": ""}]))
    with pytest.raises(QkvError, match="too short"):
        evaluate(*parts_of(made), records([{"text": "a"}]), add_bos_eos=False)
    with pytest.raises(UsageError, match="no field 'text'"):
        evaluate(*parts_of(made), records([{"txt": "a"}]))


def test_models_with_different_windows_have_the_same_units_and_can_be_compared() -> None:
    """One long text is resampled by blocks of characters, which do not depend on the tokens or the windows."""
    made = decoder()
    text = records([{"text": "the lazy dog runs over the fox. " * 120}])
    one, other = (evaluate(*parts_of(made), text, max_length=length, resamples=200) for length in (16, 50))
    assert one.metrics["bits_per_byte"].num_units == other.metrics["bits_per_byte"].num_units == 3
    difference = one.compare(other, 200)["bits_per_byte"]
    assert difference.interval[0] <= difference.value <= difference.interval[1]
    low, high = one.intervals["loss"]
    assert low < one.metrics["loss"] < high
    many = evaluate(*parts_of(made), records([{"text": f"the fox {i}"} for i in range(40)]))
    assert many.metrics["loss"].num_units == 40
