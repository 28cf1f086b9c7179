"""Tag: predict a class for each word of a text (names of people and places, parts of speech)."""

from collections.abc import Sequence
from itertools import accumulate, chain
from operator import itemgetter

import numpy as np

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.align import first_nonspace_character
from qkv.data.objectives import IGNORE_INDEX
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.objectives.tagging import TaggingObjective
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError
from qkv.models import Config
from qkv.models.runtime.eval_mode import eval_mode
from qkv.progress import OnProgress
from qkv.tasks import metrics
from qkv.tasks.metrics.report import NO_CLASS
from qkv.tasks.results import TaggedEntity, TaggedText, TaggedWord
from qkv.tasks.run.classify import check_classes, class_names, format_names
from qkv.tasks.run.example_batches import ExampleBatches, at_least_float32, batches, max_sequence_length
from qkv.tasks.task import Evaluation, EvaluationOptions, TextModel, select_metrics, select_usable
from qkv.text import Tokenizer
from qkv.text.words import split_words
from qkv.train.watch import Sample

METRICS = OBJECTIVES["tagging"].metrics


def run(
    model: TextModel,
    texts: Sequence[str | Sequence[str]],
    *,
    batch_size: int = 32,
    progress: OnProgress | None = None,
) -> list[TaggedText]:
    """The words of each text with their tags. A string is split into words; a list of words is used as it is.

    A list of words becomes a text with one space between words. Character offsets refer to that text.
    """
    joined = [text if isinstance(text, str) else " ".join(text) for text in texts]
    spans = [split_words(text) if isinstance(text, str) else word_spans(text) for text in texts]
    sentences = [[text[start:end] for start, end in words] for text, words in zip(joined, spans, strict=True)]
    predictions = predict_tags(model, sentences, batch_size, progress)
    has_entities = metrics.is_entity_tagging(class_names(model.config))
    results = []
    for text, words, tags in zip(joined, spans, predictions, strict=True):
        tagged = [
            TaggedWord(text[start:end], *prediction, start, end)
            for (start, end), prediction in zip(words, tags, strict=True)
        ]
        results.append(TaggedText(text, tagged, merge_entities(text, tagged) if has_entities else []))
    return results


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
    for first, last, label in metrics.extract_entities([one.tag for one in words]):
        start, end = words[first].start, words[last - 1].end
        mean = sum(one.probability for one in words[first:last]) / (last - first)
        entities.append(TaggedEntity(text[start:end], label, mean, start, end))
    return entities


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics, the main one first: entity metrics if the tags are BIO tags, then word metrics."""
    if metrics.is_entity_tagging(class_names(config)):
        return (*METRICS["entities"], *METRICS["words"])
    return METRICS["words"]


def evaluate(model: TextModel, records: Sequence[Record], options: EvaluationOptions) -> Evaluation:
    """Compare whole entities if the tags are BIO tags (B-PER, I-PER, O), or single words if they are plain classes."""
    usable, notes = select_usable(records, tokens=list, tags=list)
    aligned = [one for one in usable if len(one.fields["tokens"]) == len(one.fields["tags"]) > 0]
    problem = "the numbers of words and tags differ or are 0"
    if not aligned:
        raise UsageError(
            f"{usable[0].location}: {problem}, as in all other records; each record needs one tag per word"
        )
    if len(aligned) < len(usable):
        notes.append(f"{len(usable) - len(aligned):,} records left out: {problem}")
    sentences = [[str(word) for word in record.fields["tokens"]] for record in aligned]
    targets = [[str(tag) for tag in record.fields["tags"]] for record in aligned]
    classes, found = class_names(model.config), set(chain.from_iterable(targets))
    if options.check_classes:
        check_classes(found - {"O"} or found, classes, "tags")  # O, outside of all entities, is in most files
    if unknown := sorted(found - set(classes)):
        notes.append(f"tags that the model does not have, counted as wrong: {format_names(unknown)}")
    has_entities = metrics.is_entity_tagging(classes)
    usual = METRICS["entities" if has_entities else "words"]
    names = select_metrics(options.metrics, available_metrics(model.config, aligned), usual)
    answers = predict_tags(model, sentences, options.batch_size, options.progress, notes)
    predictions = [[tag for tag, _ in tags] for tags in answers]
    ours, theirs = ([list(enumerate(tags)) for tags in side] for side in (predictions, targets))
    tag_counts = metrics.ClassCounts(ours, theirs, class_of=itemgetter(1))
    scores = {"accuracy": tag_counts.precision(), "macro_f1": tag_counts.macro_f1()}
    if has_entities:
        scores |= metrics.entity_scores(predictions, targets)
        report = metrics.make_class_report(
            metrics.entity_counts(predictions, targets),
            chain.from_iterable(map(pair_entities, predictions, targets)),
        )
    else:
        flat = (chain.from_iterable(side) for side in (predictions, targets))
        report = metrics.make_class_report(tag_counts, zip(*flat, strict=True))
    samples = [
        Sample(" ".join(words), " ".join(tags), " ".join(wanted))
        for words, tags, wanted in list(zip(sentences, predictions, targets, strict=True))[: options.max_samples]
    ]
    chosen: dict[str, float] = {name: scores[name] for name in names}
    return Evaluation(chosen, samples, names[0], len(aligned), tuple(notes), report=report)


def pair_entities(tags: Sequence[str], wanted: Sequence[str]) -> list[tuple[str, str]]:
    """The predicted and the expected type of each span that is an entity, or `NO_CLASS`.

    >>> pair_entities(["B-PER", "O", "B-LOC"], ["B-ORG", "O", "O"])
    [('PER', 'ORG'), ('LOC', '(none)')]
    """
    entities = (metrics.extract_entities(side) for side in (tags, wanted))
    ours, theirs = ({(first, last): kind for first, last, kind in side} for side in entities)
    return [(ours.get(span, NO_CLASS), theirs.get(span, NO_CLASS)) for span in sorted({*ours, *theirs})]


def predict_tags(
    model: TextModel,
    sentences: Sequence[Sequence[str]],
    batch_size: int,
    progress: OnProgress | None = None,
    notes: list[str] | None = None,
) -> list[list[tuple[str, float]]]:
    """The tag of each word and its probability, predicted at the word's first token.

    Long sentences are read in windows, as in training; `notes` count them. A word without tokens gets the tag O, or
    else the first class.
    """
    classes = class_names(model.config)
    default = "O" if "O" in classes else classes[0]
    predictions = [[(default, 0.0) for _ in words] for words in sentences]
    marked = [mark_first_tokens(model.tokenizer, words) for words in sentences]
    filled = [i for i, example in enumerate(marked) if example["ids"]]
    if not filled:
        return predictions
    # These examples have word numbers instead of tags, so that the objective aligns the numbers with token positions.
    encoded = InMemoryExamples([marked[i] for i in filled], ("ids", "tags"))
    objective = TaggingObjective(
        encoded, model.tokenizer, max_length=max_sequence_length(model.config), too_long="split"
    )
    if notes is not None and objective.counts.split:
        notes.append(f"{objective.counts.split:,} texts were read in windows of {objective.max_lengths[0]:,} tokens")
    windows = np.arange(objective.num_examples(EpochRng(0)))
    examples = objective.build(windows, EpochRng(0))
    owner = objective.windows.locate(windows, EpochRng(0))[0]
    batched = ExampleBatches(model.network, examples, objective.pad_token_id)
    assert batched.labels is not None
    with eval_mode(model.network):
        for chosen in batches(examples.lengths, batch_size, progress):
            x, _ = batched.hidden(chosen)
            probabilities = at_least_float32(model.network.head.project(x)).softmax(-1)
            best, class_id = (part.cpu().numpy() for part in probabilities.max(-1))
            for row, i in enumerate(chosen):
                for position in np.flatnonzero(batched.labels[i] != IGNORE_INDEX):
                    word = int(batched.labels[i][position])
                    prediction = classes[class_id[row, position]], float(best[row, position])
                    predictions[filled[owner[i]]][word] = prediction
    return predictions


def mark_first_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> dict[str, list[int]]:
    """Encode words joined by spaces: the ids, and as "tags" the word's number at the first token of each word.

    The other tokens have `IGNORE_INDEX`. In training, the first token has the word's tag (`EncodeTags`).
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
    return {"ids": ids, "tags": numbers}
