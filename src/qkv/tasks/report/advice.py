"""What to change next: all rules, in the order of importance.

First comes a run that has not finished, then what makes the score itself doubtful, then what keeps the model from
learning, then what would make it better. To add a rule, write a function from `Facts` to an `Advice` or None, and add a
row.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from qkv.tasks.report.facts import Advice, Facts
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

Rule = Callable[[Facts], Advice | None]

RULES: dict[str, Rule] = {
    "unfinished": advise_resuming,
    "leakage": advise_leakage,
    "test_leakage": advise_test_leakage,
    "labels": advise_labels,
    "lr": advise_lr,
    "unusable": advise_unusable,
    "truncation": advise_truncation,
    "pretrained": advise_pretrained,
    "overfitting": advise_overfitting,
    "underfitting": advise_underfitting,
    "imbalance": advise_imbalance,
    "baseline": advise_baseline,
    "more_data": advise_more_data,
    "few_records": advise_evaluation,
}


def give_advice(facts: Facts) -> list[Advice]:
    """All advice that applies, the most important first. Each command that trains has a run of its own."""
    given = []
    names = free_names(facts.run)
    facts = replace(facts, new_run=next(names))
    for rule in RULES.values():
        if (advice := rule(facts)) is not None:
            given.append(advice)
            if advice.trains:
                facts = replace(facts, new_run=next(names))
    return given


def free_names(run: str) -> Iterator[str]:
    """The names run-2, run-3 and so on, without those of existing runs and recipes."""
    names = (f"{run}-{number}" for number in count(2))
    return (name for name in names if not Path(name).exists() and not Path(f"{name}.toml").exists())
