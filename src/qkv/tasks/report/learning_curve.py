"""A learning curve: the score of models trained on fractions of the data, extrapolated to twice the data.

The error e of a model falls with the number n of training records about as e = a · n^(−b) (Hestness et al. 2017, "Deep
Learning Scaling is Predictable, Empirically"). A line is fitted to log e over log n, and extrapolated to twice the
data. The interval of the expected gain includes three kinds of uncertainty: the evaluation records are resampled; small
fractions are trained on several subsets; and the line is fitted to all points and to the last points only, because real
curves bend. The gain that would be measured on the same evaluation records has a wider interval, because a model
trained on twice the data makes different mistakes. Its gain varies as much as the last gain of the curve.

For classifiers, the curve of the baseline (TF-IDF with a linear SVM) is computed, which takes seconds. With a budget of
minutes, the run's own recipe is trained on each fraction for an equal part of the time. For a language model, the
records are excerpts of its documents, and the error is its loss.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from qkv.data.records import Record
from qkv.tasks.evaluate import evaluate
from qkv.tasks.metrics.bootstrap import Interval, bootstrap, percentiles
from qkv.tasks.metrics.notation import find_scale
from qkv.tasks.report.score import predict_and_score, to_points
from qkv.tasks.scorer import TaskScorer
from qkv.tasks.text_model import TextModel
from qkv.tasks.train import train
from qkv.train.recipe.schema import DataSection, Recipe

BASELINE_FRACTIONS = (1 / 8, 1 / 4, 1 / 2, 1.0)
RUN_FRACTIONS = (1 / 4, 1 / 2, 1.0)
MIN_RECORDS = 40  # of the smallest fraction
OVERHEAD_SECONDS = 60.0
RESAMPLES = 500
MAX_SUBSETS = 4  # of the smallest fraction, for a baseline
MIN_ERROR = 1e-3  # the logarithm of an error of 0 is not finite

TrainAndScore = Callable[[Sequence[Record]], float]
"""Train on these records, and return the score on the evaluation records."""


@dataclass(frozen=True)
class CurvePoint:
    """The score of a model that was trained on some of the records."""

    records: int
    score: float


@dataclass(frozen=True)
class Gain:
    """The gain to expect from twice the data, with 95 % intervals. If a loss falls, the gain is positive."""

    value: float
    expected: Interval  # interval of the expected gain
    measured: Interval  # interval of the gain that would be measured on the same evaluation records


@dataclass(frozen=True)
class LearningCurve:
    """The points of the curve, and the gain of twice the data."""

    metric: str
    model: str  # the model that was trained on the fractions, in words
    points: tuple[CurvePoint, ...]
    gain: Gain
    seconds: float
    unit: str = "record"

    def to_dict(self) -> dict[str, Any]:
        """The curve for JSON, with the scale of its scores."""
        return asdict(self) | {"scale": find_scale(self.metric)}


def learn_fractions(
    metric: str,
    name: str,
    training: Sequence[Record],
    fractions: Sequence[float],
    train_and_score: TrainAndScore,
    max_seconds: float,
    max_subsets: int = 1,
) -> LearningCurve | None:
    """Train on random fractions, the smallest first, until the time is up; None for fewer than three points.

    For a fraction below a half, up to `max_subsets` disjoint subsets are used, because the score of a single subset
    depends on its records.
    """
    began = time.monotonic()
    shuffled = Random(0).sample(list(training), len(training))
    scores: dict[int, list[float]] = {}
    for fraction in fractions:
        count = int(fraction * len(shuffled))
        for subset in range(max(1, min(max_subsets, int(0.5 / fraction)))):
            if count >= MIN_RECORDS and time.monotonic() - began < max_seconds:
                scores.setdefault(count, []).append(train_and_score(shuffled[subset * count :][:count]))
    if len(scores) < 3:
        return None
    gain = extrapolate(metric, scores)
    points = tuple(CurvePoint(count, sum(several) / len(several)) for count, several in scores.items())
    return LearningCurve(metric, name, points, gain, time.monotonic() - began)


def extrapolate(metric: str, scores: Mapping[int, Sequence[float]]) -> Gain:
    """The gain of twice the largest number of records; `scores` are number of records → scores.

    Each resample takes one score for each number of records, with resampled evaluation records. The gain is the mean
    over the lines fitted to all points, to all but the first, and so on, down to the last two.

    >>> round(extrapolate("accuracy", {100: [0.6], 200: [0.8], 400: [0.9]}).value, 3)
    0.05
    """
    is_loss = metric == "loss"
    best = 100.0 / to_points(metric, 1.0)
    sizes = np.log(list(scores))

    def gain(values: np.ndarray, first: int) -> np.ndarray:
        """The gain for each row of scores (R, points), by a line through the points from number `first` on."""
        chosen = values[:, first:]
        errors = np.log(np.maximum(chosen if is_loss else (best - chosen) / best, MIN_ERROR))
        centred = sizes[first:] - sizes[first:].mean()
        slope = errors @ centred / (centred @ centred)
        last = errors.mean(-1) + slope * centred[-1]
        found: np.ndarray = (1.0 if is_loss else best) * (np.exp(last) - np.exp(last + slope * np.log(2)))
        return found

    starts = range(len(scores) - 1)  # from all points to the last two
    means = np.array([[np.mean(several) for several in scores.values()]], np.float64)
    value = float(np.mean([gain(means, first) for first in starts]))
    columns = []
    rng = np.random.default_rng(0)
    for several in scores.values():
        samples = bootstrap({str(number): score for number, score in enumerate(several)}, RESAMPLES)
        if len(samples) < len(several):  # a score that cannot be resampled
            return Gain(value, (value, value), (value, value))
        chosen = rng.integers(len(several), size=RESAMPLES)
        columns.append(np.stack(list(samples.values()))[chosen, np.arange(RESAMPLES)])
    values = np.stack(columns, axis=1)
    gains = np.concatenate([gain(values, first) for first in starts])
    spread = float((values[:, -1] - values[:, -2]).std())
    largest = means[0, -1] if is_loss else best - means[0, -1]
    measured = np.minimum(gains + spread * rng.standard_normal(len(gains)), largest)
    return Gain(value, percentiles(gains), percentiles(measured))


def baseline_curve(
    scorer: TaskScorer,
    training: Sequence[Record],
    records: Sequence[Record],
    name: str,
    predict: Callable[[TaskScorer, Sequence[Record], Sequence[Record]], list[Any]],
    max_seconds: float,
) -> LearningCurve | None:
    """The learning curve of a baseline."""
    usable = [record for record in training if scorer.is_usable(record)]
    expected = [scorer.expected(record) for record in records]
    return learn_fractions(
        scorer.metric,
        name,
        usable,
        BASELINE_FRACTIONS,
        lambda chosen: scorer.measure(predict(scorer, chosen, records), expected),
        max_seconds,
        MAX_SUBSETS,
    )


def recipe_curve(
    scorer: TaskScorer,
    recipe: Recipe,
    model_folder: str,
    training: Sequence[Record],
    records: Sequence[Record],
    minutes: float,
) -> LearningCurve | None:
    """The learning curve of the run's own recipe."""

    def score(model: TextModel, seconds: float) -> float:
        found = predict_and_score(scorer, model, records, seconds, len(records), recipe.train.eval_beam)
        return scorer.measure(found.predicted, found.expected)

    usable = [record for record in training if scorer.is_usable(record)]
    return train_on_fractions(scorer.metric, recipe, model_folder, usable, records, score, minutes)


def language_model_curve(
    metric: str,
    recipe: Recipe,
    model_folder: str,
    training: Sequence[Record],
    records: Sequence[Record],
    minutes: float,
) -> LearningCurve | None:
    """The learning curve of a language model, trained on excerpts of its documents."""

    def score(model: TextModel, seconds: float) -> float:
        return evaluate(model.network, model.tokenizer, model.config, records, max_samples=0).metrics[metric]

    curve = train_on_fractions(metric, recipe, model_folder, training, records, score, minutes)
    return None if curve is None else replace(curve, unit="excerpt")


def train_on_fractions(
    metric: str,
    recipe: Recipe,
    model_folder: str,
    training: Sequence[Record],
    records: Sequence[Record],
    score: Callable[[TextModel, float], float],
    minutes: float,
) -> LearningCurve | None:
    """Train the recipe on each fraction for an equal part of `minutes`. `score` gets a model and its seconds."""
    each = minutes / len(RUN_FRACTIONS)
    with tempfile.TemporaryDirectory(prefix="qkv-report-") as name:
        folder = Path(name)
        valid = write_records(folder / "valid.jsonl", records)

        def train_and_score(chosen: Sequence[Record]) -> float:
            made = train(make_short_recipe(recipe, folder / str(len(chosen)), model_folder, chosen, valid, each))
            return score(TextModel(made.network.to("cpu"), made.tokenizer, made.config), 60 * each)

        label = f"this recipe, {each:.2g} minutes on each fraction"
        limit = 2 * 60 * minutes + OVERHEAD_SECONDS  # includes preparing the data and evaluating
        return learn_fractions(metric, label, training, RUN_FRACTIONS, train_and_score, limit)


def explain_no_curve(num_usable: int, unit: str = "record") -> str:
    """Why a curve of the recipe has fewer than three points, and what to do."""
    needed = round(MIN_RECORDS / RUN_FRACTIONS[0])
    if num_usable < needed:
        return f"it needs at least {needed} training {unit}s, and there are {num_usable}; add training data"
    return "the time was too short to train on three fractions of the data; raise --curve-minutes"


def make_short_recipe(
    recipe: Recipe, folder: Path, model_folder: str, training: Sequence[Record], valid: Path, minutes: float
) -> Recipe:
    """A recipe for a short run on these records, with the tokenizer of the reported run."""
    columns = {name: name for name in training[0].fields if all(name in record.fields for record in training)}
    data = DataSection(
        train=str(write_records(folder.with_suffix(".jsonl"), training)),
        valid=str(valid),
        format="jsonl",
        columns=columns,
        max_length=recipe.data.max_length,
        max_source_length=recipe.data.max_source_length,
        too_long=recipe.data.too_long,
        layout=recipe.data.layout,
        max_score=recipe.data.max_score,
        max_invalid_fraction=1.0,
        cache_dir=str(folder.parent / "cache"),
    )
    budget = replace(
        recipe.train,
        minutes=minutes,
        steps=0,
        epochs=0,
        cpu_minutes=0,
        patience=0,
        eval_examples=0,
        trackers=(),
        metric="",
    )
    tokenizer = replace(recipe.tokenizer, from_=model_folder)
    return replace(recipe, run=str(folder), data=data, tokenizer=tokenizer, train=replace(budget, final="last"))


def write_records(path: Path, records: Sequence[Record]) -> Path:
    """Write the fields of records as JSON lines."""
    path.write_text("".join(json.dumps(record.fields) + "\n" for record in records), encoding="utf-8")
    return path
