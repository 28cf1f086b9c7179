"""What to change next: all rules, in the order of importance.

First comes a run that has not finished, then what makes the score itself doubtful, then what keeps the model from
learning, then what would make it better. To add a rule, write a function from `RunDiagnostics` to an `Advice` or None,
and add a row.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from qkv.tasks.report.diagnostics import Advice, RunDiagnostics
from qkv.tasks.report.rules_data import (
    advise_evaluation,
    advise_imbalance,
    advise_labels,
    advise_leakage,
    advise_more_data,
    advise_test_leakage,
    advise_truncation,
    advise_unusable,
)
from qkv.tasks.report.rules_training import (
    advise_baseline,
    advise_lr,
    advise_overfitting,
    advise_pretrained,
    advise_resuming,
    advise_underfitting,
)

MAX_ADVICE = 3
"""The number of changes that a report shows first."""

Rule = Callable[[RunDiagnostics], Advice | None]

RULES: tuple[Rule, ...] = (
    advise_resuming,
    advise_leakage,
    advise_test_leakage,
    advise_labels,
    advise_lr,
    advise_unusable,
    advise_truncation,
    advise_pretrained,
    advise_overfitting,
    advise_underfitting,
    advise_imbalance,
    advise_baseline,
    advise_more_data,
    advise_evaluation,
)


def give_advice(run: RunDiagnostics) -> list[Advice]:
    """All advice that applies, the most important first. Each command that starts a run names a new folder."""
    given = []
    names = unused_run_names(run.folder)
    run = replace(run, new_run=next(names))
    for rule in RULES:
        if (advice := rule(run)) is not None:
            given.append(advice)
            if advice.starts_run:
                run = replace(run, new_run=next(names))
    return given


def unused_run_names(run: str) -> Iterator[str]:
    """The names run-2, run-3 and so on, except names of existing runs and recipes."""
    names = (f"{run}-{number}" for number in count(2))
    return (name for name in names if not Path(name).exists() and not Path(f"{name}.toml").exists())
