"""What the rows share: reading compressed files, training a recipe, predictions, scores with bootstrap intervals."""

import gzip
import json
import lzma
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import qkv
from qkv.data.records import FileLocation, Record
from qkv.errors import QkvError
from qkv.tasks import metrics
from qkv.tasks.evaluate import evaluate
from qkv.tasks.evaluation import Evaluation
from qkv.tasks.train import TrainingResult, open_recipe
from qkv.tasks.train import train as train_recipe
from qkv.train.recipe.toml import format_value

QUICK_RECORDS = 48
"""With --quick, the number of records of each file that are used."""
QUICK_CHANGES = {
    "train.steps": 3,
    "train.epochs": 0,
    "train.minutes": 0.0,
    "train.eval_every": 3,
    "train.eval_examples": 4,
    "train.save_every": 1,
    "train.num_workers": 0,
    "train.warmup": 1.0,
    "train.compile": "no",
}


@dataclass
class Settings:
    """What the command line says about every training run."""

    device: str = "auto"
    changes: tuple[str, ...] = ()  # key=value for every recipe


settings = Settings()


def device() -> str:
    """The device of this run: the one that was asked for, or a GPU if there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device


# -------------------------------------------------------------------- files


def read_text(path: Path) -> str:
    """The text of a file that may be compressed: `path`, `path`.gz or `path`.xz."""
    openers: dict[str, Callable[..., Any]] = {"": open, ".gz": gzip.open, ".xz": lzma.open}
    for suffix, opener in openers.items():
        if (file := path.with_name(path.name + suffix)).exists():
            with opener(file, "rt", encoding="utf-8", newline="\n") as stream:
                text: str = stream.read()
                return text
    raise SystemExit(f"{path}: no such file, and none with .gz or .xz; give the folder of the datasets with --data")


def read_lines(path: Path) -> list[str]:
    """The lines of a file that may be compressed."""
    return read_text(path).removesuffix("\n").split("\n")


def read_jsonl(path: Path) -> list[Any]:
    """The values of a file of JSON lines that may be compressed."""
    return [json.loads(line) for line in read_lines(path)]


def write_jsonl(path: Path, values: Iterable[Any]) -> Path:
    """Write one JSON value per line, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")
    return path


def write_parts(out: Path, name: str = "data", **parts: Iterable[Any]) -> dict[str, Any]:
    """Write the records of parts, such as train=… and valid=…, and return the keys of a recipe that read them."""
    return {f"data.{part}": write_jsonl(out / name / f"{part}.jsonl", records) for part, records in parts.items()}


def hold_out(records: Sequence[Any], size: int) -> tuple[list[Any], list[Any]]:
    """Split records at random, always in the same way: the rest, and at most `size` of them, or a tenth."""
    order = np.random.default_rng(0).permutation(len(records))
    size = min(size, len(records) // 10)
    chosen = set(order[:size].tolist())
    return [r for i, r in enumerate(records) if i not in chosen], [records[i] for i in sorted(chosen)]


def shorten(records: Sequence[Any], quick: bool) -> list[Any]:
    """The records; with `quick`, only the first few."""
    return list(records[:QUICK_RECORDS] if quick else records)


# -------------------------------------------------------------------- training


@dataclass
class Trained:
    """A finished training run."""

    run: Path
    steps: int
    seconds: float
    parameters: int
    metrics: dict[str, float]  # on the validation data, at the end

    def load(self) -> qkv.Model:
        """The trained model, on the device of this run."""
        return qkv.load(self.run, device=device())

    def to_dict(self) -> dict[str, Any]:
        """The facts of the run for the results."""
        facts = {"parameters": self.parameters, "seconds": round(self.seconds, 1), "steps": self.steps}
        return {**facts, "validation": self.metrics}


def train(recipe: str, out: Path, changes: Mapping[str, Any], *, seed: int, quick: bool, name: str = "run") -> Trained:
    """Train a recipe, given as TOML or as the name of a built-in recipe, in the folder out/name.

    `changes` are keys of the recipe with dots, such as "data.train". An interrupted run is resumed if its
    recipe and the code are the same, else it starts again.
    """
    file: str | Path = recipe
    if "\n" in recipe:
        file = out / f"{name}.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(recipe, encoding="utf-8")
    fixed = {
        "run": str(out / name),
        "train.seed": seed,
        "train.device": device(),
        "data.cache_dir": str(out / "data/cache"),
    }
    values = {"train.keep_checkpoints": 1, **changes, **fixed, **(QUICK_CHANGES if quick else {})}
    words = [f"{key}={_format(value)}" for key, value in values.items()]
    words += [change for change in settings.changes if not quick]
    try:
        result = _train(file, words, quick)
    except QkvError as error:
        if not any(reason in str(error) for reason in ("cannot be resumed", "started with another recipe")):
            raise
        shutil.rmtree(out / name)  # the code or the row has changed since the run was interrupted
        result = _train(file, words, quick)
    end = result.run_end
    parameters = sum(one.numel() for one in result.network.parameters())
    return Trained(out / name, end.step, end.seconds, parameters, dict(end.metrics))


def _train(file: str | Path, words: list[str], quick: bool) -> TrainingResult:
    opened = open_recipe(file, words)
    if quick:  # a small batch that holds one sequence
        longest = opened.data.max_length + opened.data.max_source_length
        opened = open_recipe(file, [*words, f"train.batch_tokens={max(longest, 1024)}"])
    return train_recipe(opened)


def _format(value: Any) -> str:
    return format_value(str(value) if isinstance(value, Path) else value)


# -------------------------------------------------------------------- predictions


def evaluate_records(trained: Trained, records: Sequence[Mapping[str, Any]], **options: Any) -> Evaluation:
    """Evaluate a trained model as `qkv eval` does. The result has a sample for each record: the predictions."""
    model = trained.load()
    listed = [Record(dict(fields), FileLocation("test", number)) for number, fields in enumerate(records, 1)]
    return evaluate(model.network, model.tokenizer, model.config, listed, max_samples=len(listed), **options)


def text_losses(trained: Trained, texts: Sequence[str], **options: Any) -> list[dict[str, Any]]:
    """The summed loss of each text in nats, and its number of predicted tokens and bytes, as `qkv eval` counts them."""
    model, lines = trained.load(), []
    for text in texts:
        record = Record({"text": text}, FileLocation("test"))
        found = evaluate(model.network, model.tokenizer, model.config, [record], max_samples=0, **options).metrics
        num_bytes = len(text.encode())
        nats = found["bits_per_byte"] * math.log(2) * num_bytes
        lines.append({"text": text, "nats": nats, "tokens": round(nats / found["loss"]), "bytes": num_bytes})
    return lines


def generate(trained: Trained, records: Sequence[Mapping[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """A prediction for the `source` of each record, with its `target`. Options are those of an evaluation: beam, …"""
    found = evaluate_records(trained, records, **{"batch_size": 256, "metrics": ["exact_match"], **options})
    return [{"source": one.source, "prediction": one.prediction, "references": [one.expected]} for one in found.samples]


def group_references(predictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line for each source, with all its references."""
    grouped: dict[str, dict[str, Any]] = {}
    for line in predictions:
        kept = grouped.setdefault(line["source"], {**line, "references": []})
        kept["references"] += line["references"]
    return list(grouped.values())


# -------------------------------------------------------------------- scores


def with_interval(score: float, scale: float = 1.0) -> dict[str, float]:
    """A score with its 95 % bootstrap interval, as `qkv eval` computes it."""
    low, high = metrics.confidence_intervals({"score": score}).get("score", (score, score))
    return {"value": score * scale, "low": low * scale, "high": high * scale}


def interval(numerators: Sequence[float], denominators: Sequence[float] | None = None, scale: float = 1.0) -> Any:
    """The ratio of two sums over the test examples, or a mean, with its interval.

    >>> interval([1, 0, 1, 1], scale=100)["value"]
    75.0
    """
    if denominators is None:
        return with_interval(metrics.mean_score(numerators), scale)
    return with_interval(metrics.ratio_score(numerators, denominators), scale)


def compute(metric: str, predictions: Sequence[Mapping[str, Any]], scale: float = 1.0) -> Any:
    """A metric of `qkv eval`, such as "chrf", of the predictions against their references, with its interval."""
    function = getattr(metrics, metric)
    texts, references = [line["prediction"] for line in predictions], [line["references"] for line in predictions]
    return with_interval(function(texts, references), scale)


def exact_match(predictions: Sequence[Mapping[str, Any]]) -> Any:
    """The percentage of predictions that equal one of their references, with its interval."""
    return compute("exact_match", predictions, scale=100)


def rouge(predictions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """ROUGE-1, 2 and L (F1 in per cent, with stemming) against the best reference. Needs rouge-score."""
    names = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL"}
    return {name: compute(metric, predictions, scale=100) for name, metric in names.items()}
