"""Examine a model or a recipe, for `qkv doctor`: prepare its data, take a batch, and run all checks.

report = examine("translate.toml")
report.is_healthy, [finding.summary for finding in report.findings]
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from qkv.errors import QkvError, UsageError, suggest_name
from qkv.files import to_path
from qkv.inside.doctor import Finding, Subject, random_batch, take_sequences
from qkv.inside.doctor import examine as run_checks
from qkv.models import Config, build
from qkv.models.runtime import free_memory
from qkv.models.tables import presets
from qkv.progress import OnStage
from qkv.store.hub import bundled_folders
from qkv.tasks.describe import first_batch
from qkv.tasks.prepare.model import apply_adapters
from qkv.tasks.prepare.prepare import prepare
from qkv.train.checkpoint.files import run_path
from qkv.train.recipe import recipe_file
from qkv.train.run.load import load_model

BYTES_PER_PARAMETER = 20
"""The memory of the largest check: the weights, and a copy of them that is trained with AdamW."""


@dataclass(frozen=True)
class DoctorReport:
    """What `qkv doctor` found."""

    name: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]  # which weights and which data were examined
    seconds: float

    @property
    def is_healthy(self) -> bool:
        """Whether no check failed. Warnings are allowed."""
        return all(finding.status != "failed" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        findings = [finding.to_dict() for finding in self.findings]
        return {
            "name": self.name,
            "healthy": self.is_healthy,
            "checks": findings,
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


def examine(name: str, overrides: Sequence[str] = (), progress: OnStage | None = None) -> DoctorReport:
    """Examine a recipe, a model folder, a hub id or a preset. `overrides` change keys of a recipe."""
    began = time.monotonic()
    subject, notes = open_subject(name, overrides, progress)
    report = None if progress is None else lambda done, total: progress("examining", done, total)
    findings = run_checks(subject, report)
    return DoctorReport(name, tuple(findings), tuple(notes), time.monotonic() - began)


def open_subject(name: str, overrides: Sequence[str], progress: OnStage | None) -> tuple[Subject, list[str]]:
    """What to examine, and notes on it.

    The name of a recipe means new weights, as at the start of its training. The folder of a run means its trained
    weights, on the data of its recipe.
    """
    path = to_path(name)
    if path.is_file() or (not path.exists() and name in recipe_file.builtin_recipes()):
        return recipe_subject(name, overrides, progress)
    if overrides:
        raise UsageError(f"{overrides[0]!r}: key=value changes a recipe, but {name} is a model; leave it out")
    if not path.exists() and name in presets.PRESETS:
        config = presets.find_preset(name)
        check_memory(name, config)
        torch.manual_seed(0)
        note = "new weights of a preset, on random tokens; to examine them on data, give a recipe"
        return Subject(build(config), None, random_batch(config), is_new=True, has_random_batch=True), [note]
    if not path.exists() and "/" not in name and name not in bundled_folders():
        known = [*recipe_file.builtin_recipes(), *presets.PRESETS, *bundled_folders()]
        raise UsageError(f"{name}: no such recipe, model folder or preset; {suggest_name(name, known)}")
    return model_subject(name, progress)


def check_memory(name: str, config: Config) -> None:
    """Raise an error if the checks of a model need more memory than is free."""
    parameters = sum(parameter.numel() for parameter in build(config, device="meta").parameters())
    needed, free = BYTES_PER_PARAMETER * parameters, free_memory(torch.device("cpu"))
    if free is not None and needed > free:
        raise UsageError(
            f"{name} has {parameters / 1e6:,.0f}M parameters; checks need about {needed / 1e9:,.0f} GB of memory, "
            f"and only {free / 1e9:,.0f} GB are free. Examine a recipe with the same choices and fewer layers "
            "(qkv doctor my.toml model.layers=2), or use a machine with more memory"
        )


def recipe_subject(name: str, overrides: Sequence[str], progress: OnStage | None) -> tuple[Subject, list[str]]:
    """The new network of a recipe, with the first sequences of its data."""
    recipe_file.import_plugins_of(name, overrides)
    recipe = recipe_file.read(name, overrides)
    prepared = prepare(recipe, progress, free_memory=free_memory(torch.device("cpu")))
    network = apply_adapters(prepared.build_network(), recipe, prepared.config)
    batch = take_sequences(first_batch(prepared.train_data))
    subject = Subject(network, prepared.tokenizer, batch, recipe.objective, recipe.train, is_new=True)
    start = f"the weights of {recipe.model.from_}" if recipe.model.from_ else "new weights"
    return subject, [f"{start}, on {batch.num_tokens:,} tokens of the training data"]


def model_subject(name: str, progress: OnStage | None) -> tuple[Subject, list[str]]:
    """A trained model with data to examine it on: the data of its recipe if it is a run and the data still exists, else
    random tokens.
    """
    stored = load_model(name)
    check_memory(name, stored.config)
    notes = list(stored.notes)
    file = run_path(to_path(name)) / "recipe.toml"
    if file.is_file() and stored.tokenizer is not None:
        try:
            recipe = recipe_file.read(file)
            prepared = prepare(recipe, progress, tokenizer=stored.tokenizer)
            batch = take_sequences(first_batch(prepared.train_data))
        except QkvError as error:
            notes.append(f"the data of its recipe cannot be read, so random tokens are used ({error})")
        else:
            notes.append(f"trained weights, on {batch.num_tokens:,} tokens of the training data")
            return Subject(stored.network, stored.tokenizer, batch, recipe.objective, recipe.train), notes
    else:
        notes.append("trained weights, on random tokens: a model folder has no data; the folder of a run has")
    batch = random_batch(stored.config)
    return Subject(stored.network, stored.tokenizer, batch, has_random_batch=True), notes
