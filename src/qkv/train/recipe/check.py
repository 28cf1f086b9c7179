"""What cannot be in a recipe though each value by itself could: refused with the key and what to write instead."""

from collections.abc import Sequence
from dataclasses import fields
from math import isfinite
from typing import Any

from qkv.data.objectives.table import OBJECTIVES, applicable_objectives
from qkv.errors import UsageError, suggest_name
from qkv.train.recipe.schema import Recipe
from qkv.train.run.trackers import TRACKERS

# key: least, most, whether most itself is allowed
RANGES: dict[str, tuple[float, float, bool]] = {
    "data.valid_fraction": (0, 1, False),
    "data.max_invalid_fraction": (0, 1, True),
    "data.epoch_examples": (0, float("inf"), True),
    "data.max_length": (1, float("inf"), True),
    "data.max_source_length": (0, float("inf"), True),
    "tokenizer.vocab_size": (1, float("inf"), True),
    "tokenizer.min_frequency": (0, float("inf"), True),
    "model.lora_rank": (0, float("inf"), True),
    "objective.label_smoothing": (0, 1, False),
    "objective.mask_prob": (0, 1, False),
    "objective.overlap": (0, float("inf"), True),
    "train.steps": (0, float("inf"), True),
    "train.minutes": (0, float("inf"), False),
    "train.epochs": (0, float("inf"), False),
    "train.batch_tokens": (1, 2**27, True),  # a batch is laid out in memory
    "train.weight_decay": (0, float("inf"), False),
    "train.momentum": (0, 1, False),
    "train.max_grad_norm": (0, float("inf"), False),
    "train.warmup": (0, float("inf"), False),
    "train.decay_fraction": (0, 1, True),
    "train.final_lr": (0, 1, True),
    "train.num_threads": (0, 1024, True),
    "train.num_workers": (0, float("inf"), True),
    "train.tensor_parallel": (1, float("inf"), True),
    "train.seed": (0, 2**63, False),
    "train.log_every": (1, float("inf"), True),
    "train.eval_every": (0, float("inf"), True),
    "train.eval_examples": (0, float("inf"), True),
    "train.eval_beam": (1, float("inf"), True),
    "train.patience": (0, float("inf"), True),
    "train.save_every": (0, float("inf"), True),
    "train.keep_checkpoints": (1, float("inf"), True),
    "train.ema_decay": (0, 1, False),
    "train.average_checkpoints": (0, float("inf"), True),
}
POSITIVE = ("model.lora_alpha", "objective.mean_span_length", "objective.temperature", "train.lr", "train.eps")


def check_recipe(recipe: Recipe, where: str = "") -> None:
    """Raise `UsageError` where a recipe could not be trained, saying which keys and what to write instead."""
    told = f"{where}: " if where else ""
    for key, (least, most, itself) in RANGES.items():
        value = get_value(recipe, key)
        if not (least <= value and (value < most or (itself and value == most))):
            reach = f"in {least} … {most}" + " (less)" * (not itself)
            if most == float("inf"):
                reach = f"at least {least}" + ", and finite" * (value == most)
            raise UsageError(f"{told}{key} = {value} must be {reach}")
    for key in POSITIVE:
        value = get_value(recipe, key)
        if not (isfinite(value) and value > 0):
            raise UsageError(f"{told}{key} = {value} must be above 0" + ", and finite" * (not isfinite(value)))
    for problem in (_data(recipe), _model(recipe), _objective(recipe), _train(recipe)):
        if problem:
            raise UsageError(f"{told}{problem}")


def get_value(recipe: Recipe, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(recipe, section), name)


def _data(recipe: Recipe) -> str:
    data, kind = recipe.data, recipe.objective.kind
    if not data.train and not data.mix:
        return 'there is nothing to train on: give data.train a file, a list of files or a built-in dataset ("dates")'
    if data.train and data.mix:
        return "data.train and data.mix are both given: name every source in data.mix, or leave it out"
    for name, source in data.mix.items():
        if not source.get("train"):
            return f"data.mix.{name} has no train: write {name} = {{train = …, weight = 1.0}}"
        weight = source.get("weight", 1.0)
        if not (isfinite(weight) and weight > 0):
            return f"data.mix.{name}.weight = {weight} must be above 0"
    policies = OBJECTIVES[kind].too_long
    if data.too_long and data.too_long not in policies:
        return f'data.too_long = "{data.too_long}" is not possible for {kind}; choose {_choices(policies)}'
    row = data.max_length + data.max_source_length
    if recipe.train.batch_tokens < row:
        return (
            f"train.batch_tokens = {recipe.train.batch_tokens} is less than one row of {row} places: "
            "raise it, or lower data.max_length"
        )
    micro = recipe.train.micro_batch_tokens
    if isinstance(micro, int) and micro and not row <= micro <= recipe.train.batch_tokens:
        return (
            f"train.micro_batch_tokens = {micro} must lie between a row ({row}) and train.batch_tokens; 0: all at once"
        )
    return ""


def _model(recipe: Recipe) -> str:
    model, kind = recipe.model, recipe.objective.kind
    if model.preset and model.from_:
        return "model.preset is a shape and model.from a trained model: give one of them"
    if model.vectors and model.from_:
        return "model.vectors starts a new embedding, and model.from has a trained one: give one of them"
    families = OBJECTIVES[kind].families
    if model.family and model.family not in families:
        return f'model.family = "{model.family}" cannot learn {kind}; it needs {_choices(families)}'
    if model.lora_rank and model.freeze:
        return "model.lora_rank trains additions alone and freezes the rest: leave model.freeze out"
    if model.lora_rank and not model.from_:
        return "model.lora_rank adapts a trained model: give model.from, or leave lora_rank out to train all of it"
    if model.lora_rank and not model.lora_targets:
        return "model.lora_targets is empty: there is no matrix to add to"
    for side in ("encoder", "decoder"):
        family = model.family or families[0]
        if side in model.overrides and not model.preset and not model.from_ and family not in (side, "seq2seq"):
            return f"[model.{side}] is given, but {kind} is learnt by a model with a {family} alone"
    return ""


def _objective(recipe: Recipe) -> str:
    objective = recipe.objective
    usual = type(objective)()
    for name in (option.name for option in fields(objective) if option.name != "kind"):
        kinds = applicable_objectives(name)
        if getattr(objective, name) != getattr(usual, name) and objective.kind not in kinds:
            return f"objective.{name} means nothing for {objective.kind}: it belongs to {', '.join(kinds)}"
    if objective.mean_span_length < 1:
        return f"objective.mean_span_length = {objective.mean_span_length} must be at least 1"
    return ""


def _train(recipe: Recipe) -> str:
    train, data = recipe.train, recipe.data
    if not (train.steps or train.minutes or train.epochs):
        return "the run would never end: give train.steps, train.minutes or train.epochs"
    if train.epochs and data.mix:
        return "the sources of data.mix have epochs of their own: give train.steps or train.minutes, not train.epochs"
    if len(train.betas) != 2 or not all(0 <= beta < 1 for beta in train.betas):
        return f"train.betas = {list(train.betas)} must be two numbers from 0 to below 1"
    for name in train.trackers:
        if name not in TRACKERS:
            return f"train.trackers: unknown tracker {name!r}; {suggest_name(name, TRACKERS)}"
    if isinstance(train.micro_batch_tokens, int) and train.micro_batch_tokens < 0:
        return f'train.micro_batch_tokens = {train.micro_batch_tokens} must be a number of places, 0 (all) or "auto"'
    if train.residual_dtype == "bfloat16" and train.precision in ("float32", "float16"):
        return f'train.residual_dtype = "bfloat16" belongs to train.precision = "bfloat16", not "{train.precision}"'
    if train.average_checkpoints and train.final == "best":
        return 'train.average_checkpoints is the mean of the last checkpoints and train.final = "best" a single one: choose'
    if train.average_checkpoints and train.ema_decay:
        return "train.ema_decay and train.average_checkpoints both average the weights: choose one"
    if not data.valid and not data.valid_fraction:
        needs = {"patience": train.patience, 'final = "best"': train.final == "best", "metric": train.metric}
        for name, given in needs.items():
            if given:
                return f"train.{name} needs validation data: give data.valid, or a data.valid_fraction above 0"
    return ""


def _choices(names: Sequence[str]) -> str:
    return " or ".join(f'"{name}"' for name in names)
