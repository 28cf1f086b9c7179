"""Classify: the class of a text or of two (a topic, yes or no), or a score where the head has a single output."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.encoders import parse_number
from qkv.data.objectives import Classification
from qkv.data.problems import InvalidRecord
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks.run.example_batches import ExampleBatches, batches, max_sequence_length
from qkv.tasks.task import Evaluation, ProgressCallback, UsableRecords, evaluating, require_tokenizer, select_metrics
from qkv.text import Tokenizer
from qkv.train.watch import Sample

TextOrPair = str | tuple[str, str]
"""A text, or two that are read together."""

LABEL_METRICS = ("accuracy", "macro_f1", "matthews")
SCORE_METRICS = ("spearman", "pearson")
MAX_SHOWN_CHARS = 40  # characters of a text in an error


@dataclass(frozen=True)
class ClassPrediction:
    """The likeliest class, and the probability of each."""

    label: str
    probability: float
    probabilities: dict[str, float]


@dataclass(frozen=True)
class ScorePrediction:
    """A number, from a head with a single output."""

    score: float


def run(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    texts: Sequence[TextOrPair],
    *,
    batch_size: int = 32,
    progress: ProgressCallback | None = None,
) -> list[ClassPrediction] | list[ScorePrediction]:
    """The class (or score) of each text, or of each pair of texts. One that is too long is an error."""
    said, sizes = compute_logits(network, require_tokenizer(tokenizer), config, texts, batch_size, progress)
    check_text_lengths(texts, sizes, max_sequence_length(config))
    if config.head.outputs == 1:
        return [ScorePrediction(float(row[0])) for row in said]
    names = class_names(config)
    return [make_prediction(names, row) for row in said]


def make_prediction(names: Sequence[str], logits: np.ndarray) -> ClassPrediction:
    """Logits as a label with its probabilities."""
    shares = np.exp(logits.astype(np.float64) - logits.max())
    shares = shares / shares.sum()
    best = int(logits.argmax())
    return ClassPrediction(names[best], float(shares[best]), dict(zip(names, shares.tolist(), strict=True)))


def class_names(config: Config) -> tuple[str, ...]:
    """The names of the classes; their numbers where the model has none."""
    return config.head.labels or tuple(str(number) for number in range(config.head.outputs))


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics that can be asked for; first what a model is judged by."""
    return SCORE_METRICS if config.head.outputs == 1 else LABEL_METRICS


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
    max_samples: int = 8,
) -> Evaluation:
    """How many labels are right; or, with a single output, how far scores agree.

    Texts that are too long are cut as in training, and counted in the notes. A label that the model does not have is
    counted as wrong.
    """
    reader = require_tokenizer(tokenizer)
    scored = config.head.outputs == 1
    usual = available_metrics(config, records)
    names = select_metrics(metrics, usual, usual)
    usable = UsableRecords.select(
        records, text=str, **({"score": (int, float, str)} if scored else {"label": (str, int)})
    )
    listed, notes = usable.records, usable.notes
    wanted_scores: list[float] = []
    if scored:
        listed, wanted_scores = select_scored(listed, notes)
    said, sizes = compute_logits(
        network, reader, config, [record_text(record) for record in listed], batch_size, progress
    )
    if cut := int((sizes > max_sequence_length(config)).sum()):
        notes.append(
            f"{cut:,} of {len(listed):,} texts were cut to the {max_sequence_length(config):,} tokens that fit"
        )
    scores: dict[str, float] = {}
    if scored:
        numbers = said[:, 0].tolist()
        scores = {name: getattr(measure, name)(numbers, wanted_scores) for name in names}
        written, expected = [f"{one:.3g}" for one in numbers], [f"{one:.3g}" for one in wanted_scores]
    else:
        classes = class_names(config)
        written = [classes[place] for place in said.argmax(1)]
        expected = [str(record.fields["label"]) for record in listed]
        strange = sorted(set(expected) - set(classes))
        if len(strange) == len(set(expected)):
            raise UsageError(
                f"none of the labels is one of this model's: {format_names(strange)}, but {format_names(classes)}"
            )
        if strange:
            notes.append(f"labels that the model does not have, counted as wrong: {format_names(strange)}")
        scores = {name: getattr(measure, name)(written, expected) for name in names}
    split = [_parts(record_text(record)) for record in listed]
    shown = [
        Sample(" ‖ ".join(parts), text, target, model_input="\t".join(parts))
        for parts, text, target in list(zip(split, written, expected, strict=True))[:max_samples]
    ]
    return Evaluation(scores, shown, names[0], len(listed), tuple(notes))


def select_scored(records: Sequence[Record], notes: list[str]) -> tuple[list[Record], list[float]]:
    """Records whose score is a number, and those numbers."""
    good, scores, bad = [], [], ""
    for record in records:
        try:
            scores.append(parse_number(record, "score"))
            good.append(record)
        except InvalidRecord as error:
            bad = bad or f"{record.location}: {error.reason}"
    if not good:
        raise UsageError(bad)
    if bad:
        notes.append(f"{len(records) - len(good):,} records left out: {bad}")
    return good, scores


def compute_logits(
    network: Network,
    tokenizer: Tokenizer,
    config: Config,
    texts: Sequence[TextOrPair],
    batch_size: int,
    progress: ProgressCallback | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """What the head says of each text (N, V), laid out as in training and cut to fit, and the tokens (N,) of each."""
    if not texts:
        return np.zeros((0, config.head.outputs), np.float32), np.zeros(0, np.int64)
    parts = [_parts(text) for text in texts]
    pair = any(len(part) > 1 for part in parts)
    sides = [tokenizer.encode_batch([part[0] for part in parts])]
    if pair:
        sides.append(tokenizer.encode_batch([part[1] if len(part) > 1 else "" for part in parts]))
    fields = ("first", "second")[: len(sides)]
    examples = [dict(zip(fields, ids, strict=True)) | {"label": 0} for ids in zip(*sides, strict=True)]
    objective = Classification(
        InMemoryExamples(examples, (*fields, "label")),
        tokenizer,
        max_length=max_sequence_length(config),
        too_long="truncate",
    )
    pieces = objective.build(np.arange(len(texts)), EpochRng(0))
    laid = ExampleBatches(network, pieces, objective.pad_token_id)
    out = np.zeros((len(texts), config.head.outputs), np.float32)
    with evaluating(network):
        for chosen in batches(pieces.lengths, batch_size, progress):
            out[chosen] = laid.outputs(chosen).cpu().numpy()
    return out, objective.required_lengths(slice(None))[:, 0]


def check_text_lengths(texts: Sequence[TextOrPair], lengths: np.ndarray, max_length: int) -> None:
    """An error where texts have more tokens than fit, with the first of them."""
    long = (lengths > max_length).nonzero()[0]
    if not len(long):
        return
    first = int(long[0])
    begins = " ‖ ".join(_parts(texts[first]))
    begins = repr(begins[:MAX_SHOWN_CHARS]) + ("…" if len(begins) > MAX_SHOWN_CHARS else "")
    many = f"{len(long):,} of {len(texts):,} texts are" if len(texts) > 1 else "the text is"
    raise UsageError(
        f"{many} longer than the {max_length:,} tokens that fit: text {first + 1:,}, which begins with {begins}, has "
        f"{lengths[first]:,} with the special ones; shorten {'them' if len(long) > 1 else 'it'}"
    )


def record_text(record: Record) -> TextOrPair:
    """A record's text, or its two."""
    second = record.fields.get("second")
    return (record.fields["text"], second) if isinstance(second, str) else record.fields["text"]


def format_names(names: Sequence[str], max_names: int = 8) -> str:
    """Some names, for a message."""
    return ", ".join(map(repr, names[:max_names])) + (", …" if len(names) > max_names else "")


def _parts(text: TextOrPair) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text
