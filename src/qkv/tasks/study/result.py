"""The result of a study: a row for each variant, and a comparison of each other variant with the baseline."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from typing import Any

from qkv.files import replace_nonfinite
from qkv.tasks.metrics.notation import find_scale
from qkv.tasks.study.paired import CONFIDENCE, MAX_SEEDS, POWER, PairedDifference, compare_pairs, mean_and_sd
from qkv.tasks.study.plan import BASE, Study
from qkv.train.progress import lower_is_better

ONE_SEED = "one seed per variant: the difference holds for these runs, not for the change of the recipe"


@dataclass(frozen=True)
class Finished:
    """What a finished run of a study measured."""

    metrics: dict[str, float]
    steps: int
    tokens: int
    seconds: float
    failure: str = ""  # why the run ended without a model, such as a loss that is not finite


@dataclass(frozen=True)
class VariantRow:
    """A variant: its values over the seeds, and its cost."""

    name: str
    overrides: tuple[str, ...]
    matched: tuple[str, ...]
    tuned: tuple[str, ...]
    values: tuple[float, ...]  # the study's metric for each seed; NaN for a run that failed
    mean: float
    sd: float | None
    metrics: dict[str, float]  # the mean of every metric
    parameters: int
    flops: float | None  # training FLOPs of a run; None: unknown
    tokens: float  # in a run
    seconds: float
    failures: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """A variant compared with the baseline on the seeds of both."""

    variant: str
    baseline: str
    difference: PairedDifference  # the variant's values minus the baseline's values
    verdict: str


@dataclass(frozen=True)
class StudyResult:
    """The rows and the comparisons of the finished runs of a study."""

    folder: str
    recipe: str
    metric: str
    is_lower_better: bool
    match: str
    seeds: int
    finished: int  # the number of runs
    runs: int
    confidence: float  # of each interval
    flops_are_counted: bool
    rows: tuple[VariantRow, ...]
    comparisons: tuple[Comparison, ...]
    commands: tuple[str, ...]  # commands that reproduce the study
    notes: tuple[str, ...] = field(default_factory=tuple)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values: dict[str, Any] = replace_nonfinite(asdict(self))
        return values

    @property
    def is_complete(self) -> bool:
        """Whether all runs are finished."""
        return self.finished == self.runs


def make_result(study: Study, finished: Mapping[str, Finished]) -> StudyResult:
    """The result of the finished runs of a study, by the names of their folders."""
    plan = study.plan
    cells = study.cells()
    rows = [
        make_row(study, name, [finished.get(cell.name) for cell in cells if cell.variant == name])
        for name in study.variants
    ]
    # Each of k comparisons has an interval of 1 − 0.05/k, so that all of them hold with 95 % (Bonferroni).
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(rows) - 1)
    is_lower = lower_is_better(plan.metric)
    base, *others = rows
    comparisons = [found for row in others if (found := compare_rows(base, row, plan.metric, is_lower, confidence))]
    notes = [f"{row.name}: a run failed: {why}" for row in rows for why in row.failures]
    if plan.match in ("flops", "tokens", "seconds", "parameters") and not any(row.matched for row in rows):
        notes.append(f"the variants have the same {plan.match} without a change")
    return StudyResult(
        folder=str(study.folder),
        recipe=plan.recipe,
        metric=plan.metric,
        is_lower_better=is_lower,
        match=plan.match,
        seeds=plan.seeds,
        finished=sum(cell.name in finished for cell in cells),
        runs=len(cells),
        confidence=confidence,
        flops_are_counted=any(variant.flops_are_counted for variant in study.variants.values()),
        rows=tuple(rows),
        comparisons=tuple(comparisons),
        commands=study_commands(study),
        notes=tuple(notes),
    )


def make_row(study: Study, name: str, runs: list[Finished | None]) -> VariantRow:
    """The row of a variant, from its runs by seed; None stands for a run that is not finished."""
    variant, metric = study.variants[name], study.plan.metric
    values = tuple(nan if run is None else run.metrics.get(metric, nan) for run in runs)
    usable = [value for value in values if isfinite(value)]
    mean, sd = mean_and_sd(usable) if usable else (nan, None)
    measured = [run for run in runs if run is not None and run.metrics]
    names = list(dict.fromkeys(one for run in measured for one in run.metrics))

    def average(numbers: list[float]) -> float:
        return sum(numbers) / len(numbers) if numbers else 0.0

    tokens = average([run.tokens for run in measured])
    return VariantRow(
        name=name,
        overrides=variant.overrides,
        matched=variant.matched,
        tuned=variant.tuned,
        values=values,
        mean=mean,
        sd=sd,
        metrics={one: average([run.metrics[one] for run in measured if one in run.metrics]) for one in names},
        parameters=variant.parameters,
        flops=None if variant.flops_per_token is None else tokens * variant.flops_per_token,
        tokens=tokens,
        seconds=average([run.seconds for run in measured]),
        failures=tuple(run.failure for run in runs if run is not None and run.failure),
    )


def compare_rows(
    base: VariantRow, row: VariantRow, metric: str, is_lower: bool, confidence: float = CONFIDENCE
) -> Comparison | None:
    """Compare a variant with the baseline on the seeds that both have; None if they have no seed in common."""
    pairs = [pair for pair in zip(row.values, base.values, strict=True) if all(map(isfinite, pair))]
    if not pairs:
        return None
    ours, theirs = zip(*pairs, strict=True)
    difference = compare_pairs(ours, theirs, confidence)
    verdict = describe_difference(row.name, base.name, metric, is_lower, difference, confidence)
    return Comparison(row.name, base.name, difference, verdict)


@dataclass(frozen=True)
class MetricComparison:
    """One metric of a variant: its values over the seeds, and the difference from the baseline."""

    metric: str
    variant: str
    values: tuple[float, ...]
    mean: float
    sd: float | None
    difference: PairedDifference | None  # None for the baseline
    verdict: str = ""  # the verdict on the main metric


def compare_scores(models: Sequence[tuple[str, Mapping[str, float]]], main: str) -> list[MetricComparison]:
    """Compare the variants of models by each metric. The models of each variant are in the order of the seeds."""
    names = list(dict.fromkeys(variant for variant, _ in models))
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(names) - 1)
    found = []
    for metric in models[0][1]:
        values = {name: [float(scores[metric]) for variant, scores in models if variant == name] for name in names}
        for name in names:
            difference, verdict = None, ""
            if name != names[0]:
                difference = compare_pairs(values[name], values[names[0]], confidence)
                if metric == main:
                    is_lower = lower_is_better(metric)
                    verdict = describe_difference(name, names[0], metric, is_lower, difference, confidence)
            found.append(
                MetricComparison(metric, name, tuple(values[name]), *mean_and_sd(values[name]), difference, verdict)
            )
    return found


def describe_difference(
    name: str, base: str, metric: str, is_lower: bool, found: PairedDifference, confidence: float = CONFIDENCE
) -> str:
    """The verdict in words.

    >>> describe_difference("b", "a", "loss", True, compare_pairs([1.0, 1.1], [1.2, 1.0]))
    'b is not distinguishable from a with 2 seeds: loss −0.0500 (95 % interval −1.956 to +1.856). If the difference is \
real, about 60 seeds would settle it (power 80 %)'
    """
    shown = f"{metric} {format_signed(metric, found.mean)}"
    if found.interval is None:
        return f"{name} − {base}: {shown}. {ONE_SEED[0].upper()}{ONE_SEED[1:]}"
    low, high = (format_signed(metric, end) for end in found.interval)
    inside = f"{shown} ({100 * confidence:.3g} % interval {low} to {high}"
    if found.is_settled:
        word = "better" if (found.mean < 0) == is_lower else "worse"
        return f"{name} is {word} than {base}: {inside}, {found.seeds} seeds)"
    if found.seeds_needed is None:
        needed = f"more than {MAX_SEEDS:,} seeds would be needed to settle it"
    else:
        needed = f"about {found.seeds_needed:,} seeds would settle it (power {100 * POWER:.0f} %)"
    return (
        f"{name} is not distinguishable from {base} with {found.seeds} seeds: {inside}). If the difference is real, "
        f"{needed}"
    )


def format_signed(metric: str, value: float) -> str:
    """A difference with its sign, in four digits; points of a percentage for fractions.

    >>> format_signed("loss", -0.01234), format_signed("accuracy", 0.0321)
    ('−0.0123', '+3.21 points')
    """
    sign = "−" if value < 0 else "+"
    if find_scale(metric) == "fraction":
        return f"{sign}{100 * abs(value):.3g} points"
    size = abs(value)
    return f"{sign}{size:.4f}" if size < 1 else f"{sign}{size:.4g}"


def study_commands(study: Study) -> tuple[str, ...]:
    """The command of the study, and the commands of the runs that count."""
    plan = study.plan
    choices = [("--vary", key, values) for key, values in plan.vary.items()]
    choices += [("--tune", key, values) for key, values in plan.tune.items()]
    options = [f"{option} {shlex.quote(key + '=' + ','.join(values))}" for option, key, values in choices]
    options.append(f"--seeds {plan.seeds}")
    options += [f"--match {plan.match}"] if plan.match != "steps" else []
    options += [f"--metric {plan.metric}"] if plan.metric != "loss" else []
    whole = " ".join(["qkv study", shlex.quote(plan.recipe), *map(shlex.quote, plan.overrides), *options])
    base = shlex.quote(str(study.folder / BASE))
    return (whole, *(" ".join(["qkv train", base, *map(shlex.quote, cell.overrides)]) for cell in study.cells()))
