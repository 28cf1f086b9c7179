"""Classify: the class of a text or of two (a topic, yes or no), or a score where the head has a single output."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qkv.data.draw import Draw
from qkv.data.encode import number_of
from qkv.data.examples import MemoryExamples
from qkv.data.objectives import Classify
from qkv.data.problems import BadRecord
from qkv.data.records import Record
from qkv.errors import UsageError
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks.layout import Laid, batches, room
from qkv.tasks.task import Evaluation, Progress, Usable, choose, evaluating, tokenizer_of
from qkv.text import Tokenizer
from qkv.train.watch import Sample

Text = str | tuple[str, str]
"""A text, or two that are read together."""

LABELLED = ("accuracy", "macro_f1", "matthews")
SCORED = ("spearman", "pearson")
SHOWN = 40  # characters of a text in an error


@dataclass(frozen=True)
class Label:
    """The likeliest class, and the probability of each."""

    label: str
    probability: float
    probabilities: dict[str, float]


@dataclass(frozen=True)
class Score:
    """A number, from a head with a single output."""

    score: float


def run(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    texts: Sequence[Text],
    *,
    batch: int = 32,
    progress: Progress | None = None,
) -> list[Label] | list[Score]:
    """The class (or score) of each text, or of each pair of texts. One that is too long is an error."""
    said, sizes = read(network, tokenizer_of(tokenizer), config, texts, batch, progress)
    refuse_long(texts, sizes, room(config))
    if config.head.outputs == 1:
        return [Score(float(row[0])) for row in said]
    names = class_names(config)
    return [labelled(names, row) for row in said]


def labelled(names: Sequence[str], logits: np.ndarray) -> Label:
    """Logits as a label with its probabilities."""
    shares = np.exp(logits.astype(np.float64) - logits.max())
    shares = shares / shares.sum()
    best = int(logits.argmax())
    return Label(names[best], float(shares[best]), dict(zip(names, shares.tolist(), strict=True)))


def class_names(config: Config) -> tuple[str, ...]:
    """The names of the classes; their numbers where the model has none."""
    return config.head.labels or tuple(str(number) for number in range(config.head.outputs))


def known(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics that can be asked for; first what a model is judged by."""
    return SCORED if config.head.outputs == 1 else LABELLED


def evaluate(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    records: Sequence[Record],
    *,
    batch: int = 32,
    beam: int = 1,
    progress: Progress | None = None,
    metrics: Sequence[str] = (),
    samples: int = 8,
) -> Evaluation:
    """How many labels are right; or, with a single output, how far scores agree.

    Texts that are too long are cut as in training, and counted in the notes. A label that the model does not have is
    counted as wrong.
    """
    reader = tokenizer_of(tokenizer)
    scored = config.head.outputs == 1
    usual = known(config, records)
    names = choose(metrics, usual, usual)
    usable = Usable.of(records, text=str, **({"score": (int, float, str)} if scored else {"label": (str, int)}))
    listed, notes = usable.records, usable.notes
    wanted_scores: list[float] = []
    if scored:
        listed, wanted_scores = with_scores(listed, notes)
    said, sizes = read(network, reader, config, [texts_of(record) for record in listed], batch, progress)
    if cut := int((sizes > room(config)).sum()):
        notes.append(f"{cut:,} of {len(listed):,} texts were cut to the {room(config):,} tokens that fit")
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
            raise UsageError(f"none of the labels is one of this model's: {told(strange)}, but {told(classes)}")
        if strange:
            notes.append(f"labels that the model does not have, counted as wrong: {told(strange)}")
        scores = {name: getattr(measure, name)(written, expected) for name in names}
    split = [_parts(texts_of(record)) for record in listed]
    shown = [
        Sample(" ‖ ".join(parts), text, target, typed="\t".join(parts))
        for parts, text, target in list(zip(split, written, expected, strict=True))[:samples]
    ]
    return Evaluation(scores, shown, names[0], len(listed), tuple(notes))


def with_scores(records: Sequence[Record], notes: list[str]) -> tuple[list[Record], list[float]]:
    """Records whose score is a number, and those numbers."""
    good, scores, bad = [], [], ""
    for record in records:
        try:
            scores.append(number_of(record, "score"))
            good.append(record)
        except BadRecord as error:
            bad = bad or f"{record.where}: {error.reason}"
    if not good:
        raise UsageError(bad)
    if bad:
        notes.append(f"{len(records) - len(good):,} records left out: {bad}")
    return good, scores


def read(
    network: Network,
    tokenizer: Tokenizer,
    config: Config,
    texts: Sequence[Text],
    batch: int,
    progress: Progress | None = None,
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
    objective = Classify(MemoryExamples(examples, (*fields, "label")), tokenizer, length=room(config), too_long="cut")
    pieces = objective.build(np.arange(len(texts)), Draw(0))
    laid = Laid(network, pieces, objective.pad)
    out = np.zeros((len(texts), config.head.outputs), np.float32)
    with evaluating(network):
        for chosen in batches(pieces.lengths, batch, progress):
            out[chosen] = laid.outputs(chosen).cpu().numpy()
    return out, objective.sizes(slice(None))[:, 0]


def refuse_long(texts: Sequence[Text], sizes: np.ndarray, most: int) -> None:
    """An error where texts have more tokens than fit, with the first of them."""
    long = (sizes > most).nonzero()[0]
    if not len(long):
        return
    first = int(long[0])
    begins = " ‖ ".join(_parts(texts[first]))
    begins = repr(begins[:SHOWN]) + ("…" if len(begins) > SHOWN else "")
    many = f"{len(long):,} of {len(texts):,} texts are" if len(texts) > 1 else "the text is"
    raise UsageError(
        f"{many} longer than the {most:,} tokens that fit: text {first + 1:,}, which begins with {begins}, has "
        f"{sizes[first]:,} with the special ones; shorten {'them' if len(long) > 1 else 'it'}"
    )


def texts_of(record: Record) -> Text:
    """A record's text, or its two."""
    second = record.fields.get("second")
    return (record.fields["text"], second) if isinstance(second, str) else record.fields["text"]


def told(names: Sequence[str], most: int = 8) -> str:
    """Some names, for a message."""
    return ", ".join(map(repr, names[:most])) + (", …" if len(names) > most else "")


def _parts(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text
