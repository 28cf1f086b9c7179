"""Tag: predict a class for each word of a text (names of people and places, parts of speech)."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Annotated, Any

import numpy as np

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.align import first_nonspace_character
from qkv.data.objectives import IGNORE_INDEX
from qkv.data.objectives.tagging import TaggingObjective, token_features
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError, count_nouns
from qkv.models import Config
from qkv.models.runtime import eval_mode
from qkv.tasks import metrics
from qkv.tasks.baselines import predict_word_tags
from qkv.tasks.evaluation import select_usable
from qkv.tasks.metrics.labels import NO_CLASS
from qkv.tasks.record_task import RecordTask
from qkv.tasks.results import Result, Row, Span, one_line
from qkv.tasks.run.example_batches import ExampleBatches, at_least_float32, max_sequence_length
from qkv.tasks.run.logits import class_names
from qkv.tasks.scorer import Baseline, Metric, Prediction, TaskScorer, set_f1
from qkv.tasks.starters.starter import Starter
from qkv.tasks.task import TaskOptions
from qkv.tasks.text_model import TextModel
from qkv.tasks.verbs.classify import ClassifyEvaluation, check_classes, format_names
from qkv.text import Tokenizer
from qkv.text.words import split_residues, split_words
from qkv.train.watch import Sample


@dataclass(frozen=True)
class TaggedWord:
    """A word with its tag, the probability of the tag, and the characters of the word in the text."""

    word: str
    tag: str
    probability: Annotated[float, "The probability of the tag."]
    start: Annotated[int, "The first character of the word in the text."]
    end: Annotated[int, "One past the last character."]


@dataclass(frozen=True)
class TaggedEntity:
    """An entity of one or more words, the mean probability of their tags, and its characters in the text."""

    text: str
    label: Annotated[str, "The type, such as PER."]
    probability: Annotated[float, "The mean probability of the tags of its words."]
    start: Annotated[int, "The first character of the entity in the text."]
    end: Annotated[int, "One past the last character."]


@dataclass(frozen=True, repr=False)
class TaggedText(Result):
    """The words of a text with their tags. If the tags are BIO or BIOES tags, also the entities."""

    text: Annotated[str, "The text, or the given words with a space between them."]
    words: list[TaggedWord]
    entities: Annotated[list[TaggedEntity], "Empty if the tags are not BIO or BIOES tags."]

    def summary(self) -> str:
        return " ".join(f"{tagged.word}/{tagged.tag}" for tagged in self.words)

    def rows(self) -> list[Row]:
        return [
            (one.label, one_line(one.text), f"{one.start}–{one.end}", f"{one.probability:.4f}") for one in self.entities
        ]

    def marked_text(self) -> tuple[str, Sequence[Span]]:
        if self.entities or any(word.tag == "O" for word in self.words):
            return self.text, [(entity.start, entity.end, entity.label) for entity in self.entities]
        return self.text, [(one.start, one.end, one.tag) for one in self.words]


def count_tags(predicted: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> metrics.ClassCounts:
    """The counts of each tag."""
    ours, theirs = ([list(enumerate(tags)) for tags in side] for side in (predicted, expected))
    return metrics.ClassCounts(ours, theirs, class_of=itemgetter(1))


WORD_METRICS: dict[str, Metric] = {
    "accuracy": lambda ours, theirs: count_tags(ours, theirs).precision(),
    "macro_f1": lambda ours, theirs: count_tags(ours, theirs).macro_f1(),
}


ENTITY_METRICS: dict[str, Metric] = {
    name: partial(lambda name, ours, theirs: metrics.entity_scores(ours, theirs)[name], name)
    for name in ("f1", "precision", "recall", "strict_f1")
}


class TagScorer(TaskScorer):
    """A tag for each word, compared by whole entities if the tags are BIO tags."""

    modality, has_classes, input_fields = "tags", True, ("tokens",)
    metrics: Mapping[str, Metric] = ENTITY_METRICS | WORD_METRICS
    baselines: Mapping[str, Baseline] = {"most frequent tag of each word": Baseline(predict_word_tags, is_cheap=True)}

    def __init__(self, tags: Sequence[str]) -> None:
        self.has_entities = metrics.is_entity_tagging(tags)
        self.metrics = (ENTITY_METRICS if self.has_entities else {}) | WORD_METRICS
        self.metric = "f1" if self.has_entities else "accuracy"

    @property
    def default_metrics(self) -> Sequence[str]:
        return [*ENTITY_METRICS, "accuracy"] if self.has_entities else list(WORD_METRICS)

    def is_usable(self, record: Record) -> bool:
        words, tags = record.fields.get("tokens"), record.fields.get("tags")
        return isinstance(words, list) and isinstance(tags, list) and len(words) == len(tags) > 0

    def expected(self, record: Record) -> tuple[str, ...]:
        return tuple(map(str, record.fields["tags"]))

    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        sentences = [[str(word) for word in record.fields["tokens"]] for record in records]
        tagged = predict_tags(model, sentences, notes)
        return [(tuple(tag for tag, _ in words), min(probability for _, probability in words)) for words in tagged]

    def score_each(self, predicted: Sequence[Any], expected: Sequence[Any]) -> list[float]:
        return set_f1([*map(self.items, predicted)], [*map(self.items, expected)])

    def show(self, value: Any, record: Record | None = None) -> str:
        words = [str(index + 1) for index in range(len(value))] if record is None else record.fields["tokens"]
        if not self.has_entities:
            return " ".join(f"{word}/{tag}" for word, tag in zip(words, value, strict=True))
        spans = metrics.extract_entities(value)
        found = [f"{' '.join(map(str, words[first:end]))} ({label})" for first, end, label in spans]
        return ", ".join(found) or "(no entity)"

    def make_sample(self, record: Record, predicted: Any, expected: Any) -> Sample:
        return Sample(" ".join(map(str, record.fields["tokens"])), " ".join(predicted), " ".join(expected))

    def items(self, value: Any) -> set[Any]:
        return set(metrics.extract_entities(value)) if self.has_entities else set(enumerate(value))

    def pair_classes(self, predicted: Any, expected: Any) -> list[tuple[str, str]]:
        return pair_entities(predicted, expected) if self.has_entities else list(zip(predicted, expected, strict=True))

    def class_of(self, item: Any) -> Hashable:
        return itemgetter(-1)(item)  # type: ignore[no-any-return]


def word_spans(words: Sequence[str]) -> list[tuple[int, int]]:
    """The characters of each word in a text that joins them with spaces.

    >>> word_spans(["in", "Paris"])
    [(0, 2), (3, 8)]
    """
    ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]
    return [(end - len(word), end) for word, end in zip(words, ends, strict=True)]


def merge_entities(text: str, words: Sequence[TaggedWord]) -> list[TaggedEntity]:
    """Merge words with BIO or BIOES tags to entities."""
    entities = []
    for first, last, label in metrics.extract_entities([word.tag for word in words]):
        start, end = words[first].start, words[last - 1].end
        mean = sum(one.probability for one in words[first:last]) / (last - first)
        entities.append(TaggedEntity(text[start:end], label, mean, start, end))
    return entities


def pair_entities(tags: Sequence[str], wanted: Sequence[str]) -> list[tuple[str, str]]:
    """The predicted and the expected type of each span that is an entity, or `NO_CLASS`.

    >>> pair_entities(["B-PER", "O", "B-LOC"], ["B-ORG", "O", "O"])
    [('PER', 'ORG'), ('LOC', '(none)')]
    """
    entities = (metrics.extract_entities(side) for side in (tags, wanted))
    ours, theirs = ({(first, last): kind for first, last, kind in side} for side in entities)
    return [(ours.get(span, NO_CLASS), theirs.get(span, NO_CLASS)) for span in sorted({*ours, *theirs})]


def predict_tags(
    model: TextModel, sentences: Sequence[Sequence[str]], notes: list[str]
) -> list[list[tuple[str, float]]]:
    """The tag of each word and its probability, predicted at the word's first token.

    If the tags of the training data are in a possible order, so are these.
    Long sentences are read in windows, as in training; `notes` count them. A word without tokens gets the tag O or, if
    the model has no O, the first class.
    """
    from qkv.tasks.run.tag_order import most_probable_order

    classes, in_order = class_names(model.config), model.config.head.tags_in_order
    default = "O" if "O" in classes else classes[0]
    predictions = [[(default, 0.0) for _ in words] for words in sentences]
    marked = [mark_first_tokens(model.tokenizer, words) for words in sentences]
    filled = [i for i, example in enumerate(marked) if example["ids"]]
    if not filled:
        return predictions
    # The examples have word numbers in place of tags, so that the objective aligns the numbers with token positions.
    encoded = InMemoryExamples([marked[i] for i in filled], tuple(marked[filled[0]]))
    objective = TaggingObjective(
        encoded, model.tokenizer, max_length=max_sequence_length(model.config), too_long="split"
    )
    if objective.counts.split:
        notes.append(f"{objective.counts.split:,} texts were read in windows of {objective.max_lengths[0]:,} tokens")
    windows = np.arange(objective.num_examples(EpochRng(0)))
    examples = objective.build(windows, EpochRng(0))
    owner = objective.windows.locate(windows, EpochRng(0))[0]
    payloads = {slot.format.kind: one for slot, one in zip(objective.payloads, examples.payloads, strict=True)}
    batched = ExampleBatches(model, examples, objective.pad_token_id, payloads=payloads)
    assert batched.labels is not None
    with eval_mode(model.network):
        for chosen in batched.batches():
            x, _ = batched.hidden(chosen)
            probabilities = at_least_float32(model.network.head.project(x)).softmax(-1).cpu().numpy()
            for row, i in enumerate(chosen):
                positions = np.flatnonzero(batched.labels[i] != IGNORE_INDEX)
                of_words = probabilities[row, positions]
                tags = most_probable_order(of_words, classes) if in_order else of_words.argmax(-1)
                best = of_words[np.arange(len(tags)), tags]
                for word, tag, probability in zip(batched.labels[i][positions], tags, best.tolist(), strict=True):
                    predictions[filled[owner[i]]][word] = classes[tag], probability
    return predictions


def mark_first_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> dict[str, Any]:
    """Encode words joined by spaces, as "ids"; "tags" has the number of each word at its first token.

    The other tokens have `IGNORE_INDEX`. In training, the first token has the word's tag (`EncodeTags`). A tokenizer
    that hashes words adds their features.
    """
    text = " ".join(words)
    try:
        ids, offsets = tokenizer.encode_with_offsets(text)
    except QkvError as error:
        raise QkvError(f"the tokenizer cannot encode the words {text[:60]!r}: {error}") from error
    owner = [number for number, word in enumerate(words) for _ in range(len(word) + 1)]  # and the space after it
    numbers, last_word = [], -1
    for offset in offsets:
        position = first_nonspace_character(text, offset)
        word = owner[position]
        is_first = not text[position : position + 1].isspace() and word != last_word
        numbers.append(word if is_first else IGNORE_INDEX)
        if is_first:
            last_word = word
    marked: dict[str, Any] = {"ids": ids, "tags": numbers}
    return {**marked, "features": token_features(text, offsets)} if tokenizer.hashes_words else marked


class TagTask(RecordTask):
    """Predict the tag of each word."""

    name = "tag"
    description = "predicts the tag of each word"
    question = "Tag the words of texts."
    title = "Tags"
    shows_details = True
    objective = "tagging"
    inputs, target = ("tokens",), "tags"
    reads_words = True
    EvalOptions, results, scorers = ClassifyEvaluation, (TaggedText,), (TagScorer,)
    starter = Starter(
        "A tag for each word: names, parts of speech.",
        "train.conll",
        256,
        pretrained="google-bert/bert-base-cased",
        exportable_preset="bert-base",
        hashes_words=True,
    )
    example_data = (
        "a CoNLL file (a word and its tag in each line), or JSON Lines like "
        '{"tokens": ["Anna", "sleeps"], "tags": ["B-PER", "O"]}, or tokens=FILE tags=FILE with spaces between them'
    )

    def decode(self, model: TextModel, texts: Sequence[str | Sequence[str]], options: TaskOptions) -> list[TaggedText]:
        """The words of each text with their tags. A string is split into words; a list of words is used as it is.

        The words of a protein are its residues.
        A list of words becomes a text with one space between words. Character offsets refer to that text.
        """
        joined = [text if isinstance(text, str) else " ".join(text) for text in texts]
        split = split_residues if model.tokenizer.reads_residues else split_words
        spans = [split(text) if isinstance(text, str) else word_spans(text) for text in texts]
        sentences = [[text[start:end] for start, end in words] for text, words in zip(joined, spans, strict=True)]
        predictions = predict_tags(model, sentences, [])
        has_entities = metrics.is_entity_tagging(class_names(model.config))
        results = []
        for text, words, tags in zip(joined, spans, predictions, strict=True):
            tagged = [
                TaggedWord(text[start:end], *prediction, start, end)
                for (start, end), prediction in zip(words, tags, strict=True)
            ]
            results.append(TaggedText(text, tagged, merge_entities(text, tagged) if has_entities else []))
        return results

    def select(
        self, config: Config, records: Sequence[Record], options: ClassifyEvaluation, notes: list[str]
    ) -> list[Record]:
        usable = select_usable(records, notes, tokens=list, tags=list)
        aligned = [one for one in usable if len(one.fields["tokens"]) == len(one.fields["tags"]) > 0]
        problem = "the numbers of words and tags differ or are 0"
        if not aligned:
            raise UsageError(
                f"{usable[0].location}: {problem}, as in all other records; each record needs one tag per word"
            )
        if len(aligned) < len(usable):
            notes.append(f"{count_nouns(len(usable) - len(aligned), 'record')} left out: {problem}")
        classes, found = class_names(config), {str(tag) for record in aligned for tag in record.fields["tags"]}
        if options.check_classes:
            check_classes(found - {"O"} or found, classes, "tags")  # O, outside of all entities, is in most files
        if unknown := sorted(found - set(classes)):
            notes.append(f"tags that the model does not have, counted as wrong: {format_names(unknown)}")
        return aligned

    def find_scorer(self, config: Config, records: Sequence[Record]) -> TagScorer:
        return TagScorer(class_names(config))


TAG = TagTask()
