"""Tag: a class for each word of a text (names of people and places, parts of speech)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.align import first_nonspace_character
from qkv.data.objectives import IGNORE_INDEX, Tagging
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks.run.classify import class_names, format_names
from qkv.tasks.run.example_batches import ExampleBatches, at_least_float32, batches, max_sequence_length
from qkv.tasks.task import Evaluation, ProgressCallback, UsableRecords, evaluating, require_tokenizer, select_metrics
from qkv.text import Tokenizer
from qkv.train.watch import Sample

ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
WORD_METRICS = ("accuracy", "macro_f1")
# Words of running text: letters and digits, with what may stand inside a word; any other sign by itself.
WORD_PATTERN = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class TaggedWord:
    """A word, its tag, and how sure the model is of it."""

    word: str
    tag: str
    probability: float


def run(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    texts: Sequence[str | Sequence[str]],
    *,
    batch_size: int = 32,
    progress: ProgressCallback | None = None,
) -> list[list[TaggedWord]]:
    """The words of each text with their tags. A text is cut into words and signs; a list of words is taken as it is."""
    words = [WORD_PATTERN.findall(text) if isinstance(text, str) else list(text) for text in texts]
    said = predict_tags(network, require_tokenizer(tokenizer), config, words, batch_size, progress)
    return [
        [TaggedWord(word, *answer) for word, answer in zip(listed, answers, strict=True)]
        for listed, answers in zip(words, said, strict=True)
    ]


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics that can be asked for; first what a model is judged by."""
    return (*ENTITY_METRICS, *WORD_METRICS) if measure.is_entity_tagging(class_names(config)) else WORD_METRICS


def evaluate(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    records: Sequence[Record],
    *,
    batch_size: int = 32,
    beam: int = 1,
    progress: ProgressCallback | None = None,
    metrics: Sequence[str] = (),
    max_samples: int = 5,
) -> Evaluation:
    """For marks and kinds (B-PER, I-PER, O) how many whole entities are right; for plain classes how many words."""
    usable = UsableRecords.select(records, tokens=list, tags=list)
    notes = usable.notes
    even = [one for one in usable.records if len(one.fields["tokens"]) == len(one.fields["tags"]) > 0]
    if len(even) < len(usable.records):
        notes.append(f"{len(usable.records) - len(even):,} records left out: not as many tags as words, or none")
    if not even:
        raise UsageError(f"{records[0].location}: not as many tags as words, or none; nor has any other record")
    words = [[str(word) for word in record.fields["tokens"]] for record in even]
    expected = [[str(tag) for tag in record.fields["tags"]] for record in even]
    classes = class_names(config)
    strange = sorted({tag for tags in expected for tag in tags} - set(classes))
    if strange:
        notes.append(f"tags that the model does not have, counted as wrong: {format_names(strange)}")
    chunked = measure.is_entity_tagging(classes)
    names = select_metrics(metrics, available_metrics(config, even), ENTITY_METRICS if chunked else WORD_METRICS)
    answers = predict_tags(network, require_tokenizer(tokenizer), config, words, batch_size, progress)
    said = [[tag for tag, _ in listed] for listed in answers]
    flat = [tag for tags in said for tag in tags], [tag for tags in expected for tag in tags]
    scores = {"accuracy": measure.accuracy(*flat), "macro_f1": measure.macro_f1(*flat)}
    if chunked:
        scores |= measure.entity_scores(said, expected)
    shown = [
        Sample(" ".join(listed), " ".join(tags), " ".join(wanted))
        for listed, tags, wanted in list(zip(words, said, expected, strict=True))[:max_samples]
    ]
    return Evaluation({name: scores[name] for name in names}, shown, names[0], len(even), tuple(notes))


def predict_tags(
    network: Network,
    tokenizer: Tokenizer,
    config: Config,
    sentences: Sequence[Sequence[str]],
    batch_size: int,
    progress: ProgressCallback | None = None,
) -> list[list[tuple[str, float]]]:
    """The tag and its probability for each word, read off the word's first token.

    Long sentences are read in windows, as in training. A word that the tokenizer makes nothing of is tagged O, or with
    the first class.
    """
    classes = class_names(config)
    nothing = "O" if "O" in classes else classes[0]
    answers = [[(nothing, 0.0) for _ in words] for words in sentences]
    marked = [mark_first_tokens(tokenizer, words) for words in sentences]
    filled = [i for i, example in enumerate(marked) if example["ids"]]
    if not filled:
        return answers
    # The "tags" of these examples are the numbers of words: the layout carries them to their places.
    objective = Tagging(
        InMemoryExamples([marked[i] for i in filled], ("ids", "tags")),
        tokenizer,
        max_length=max_sequence_length(config),
        too_long="split",
    )
    windows = np.arange(objective.num_examples(EpochRng(0)))
    pieces = objective.build(windows, EpochRng(0))
    owner = objective.windows.locate(windows, EpochRng(0))[0]
    laid = ExampleBatches(network, pieces, objective.pad_token_id)
    assert laid.labels is not None
    with evaluating(network):
        for chosen in batches(pieces.lengths, batch_size, progress):
            x, _ = laid.hidden(chosen)
            shares = at_least_float32(network.head.project(x)).softmax(-1)
            best, number = (part.cpu().numpy() for part in shares.max(-1))
            for row, i in enumerate(chosen):
                for place in np.flatnonzero(laid.labels[i] != IGNORE_INDEX):
                    word = int(laid.labels[i][place])
                    answers[filled[owner[i]]][word] = classes[number[row, place]], float(best[row, place])
    return answers


def mark_first_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> dict[str, list[int]]:
    """The ids of words joined by spaces and, beside each, the number of the word that it is the first token of.

    The same token carries a word's tag in training (`EncodeTags`).
    """
    text = " ".join(words)
    try:
        ids, offsets = tokenizer.encode_with_offsets(text)
    except QkvError as error:
        raise QkvError(f"the words {text[:60]!r} cannot be read: {error}") from error
    owner = [number for number, word in enumerate(words) for _ in range(len(word) + 1)]  # and the space after it
    numbers, before = [], -1
    for offset in offsets:
        place = first_nonspace_character(text, offset)
        word = owner[place]
        begins = not text[place : place + 1].isspace() and word != before
        numbers.append(word if begins else IGNORE_INDEX)
        before = word if begins else before
    return {"ids": ids, "tags": numbers}
