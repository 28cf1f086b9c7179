"""Check a whole recipe: ranges of numbers, and combinations of keys that exclude each other."""

from collections.abc import Sequence
from dataclasses import fields

from qkv.blocks.parts import STACK_PARTS
from qkv.data.objectives.table import OBJECTIVES, applicable_objectives
from qkv.errors import UsageError
from qkv.train.recipe.schema import BUDGETS, Recipe
from qkv.train.recipe.table import SECTIONS
from qkv.values import InvalidValue, check


def check_recipe(recipe: Recipe, where: str = "") -> None:
    """Raise `UsageError` if a recipe cannot be trained. The message names the keys, and says what to write instead."""
    problem = (
        _value_problem(recipe)
        or _data_problem(recipe)
        or _model_problem(recipe)
        or _objective_problem(recipe)
        or _train_problem(recipe)
    )
    if problem:
        raise UsageError(f"{where}: {problem}" if where else problem)


def _value_problem(recipe: Recipe) -> str:
    """Check types and limits, which a recipe from a file has already passed and a recipe from Python has not."""
    try:
        for section in fields(recipe):
            if section.name in SECTIONS:
                check(getattr(recipe, section.name), section.name)
    except InvalidValue as error:
        return str(error)
    return ""


def _data_problem(recipe: Recipe) -> str:
    data, kind = recipe.data, recipe.objective.kind
    if not data.train and not data.mix:
        return 'there is no training data: set data.train to a file, a list of files or a built-in dataset ("dates")'
    if data.train and data.mix:
        return "data.train and data.mix are both set: list every source in data.mix, or leave data.mix out"
    for name, source in data.mix.items():
        if not source.get("train"):
            return f"data.mix.{name} has no files: write {name} = {{train = …, weight = 1.0}}"
    if data.max_score != 1 and kind != "contrastive":
        return f"data.max_score is for contrastive, whose scores are cosine similarities, not for {kind}; leave it out"
    policies = OBJECTIVES[kind].too_long_policies
    if data.too_long and data.too_long not in policies:
        return f'data.too_long = "{data.too_long}" does not work with {kind}; choose {_choices(policies)}'
    sequence = data.max_length + data.max_source_length
    if recipe.train.batch_tokens < sequence:
        return (
            f"train.batch_tokens = {recipe.train.batch_tokens} is less than one sequence of {sequence} tokens: "
            "raise it, or lower data.max_length"
        )
    micro = recipe.train.micro_batch_tokens
    if isinstance(micro, int) and micro and not sequence <= micro <= recipe.train.batch_tokens:
        return (
            f"train.micro_batch_tokens = {micro} must be at least one sequence ({sequence} tokens) and at most "
            "train.batch_tokens; 0 disables micro-batches"
        )
    return ""


def _model_problem(recipe: Recipe) -> str:
    model, kind = recipe.model, recipe.objective.kind
    if model.preset and model.from_:
        return "model.preset (an architecture) and model.from (a trained model) are both set: set one of them"
    if model.vectors and model.from_:
        return "model.vectors initialises a new embedding, and model.from has a trained one: set one of them"
    families = OBJECTIVES[kind].families
    stack_part = model.stack_part
    if stack_part and (model.preset or model.from_):
        key = "preset" if model.preset else "from"
        return f'model.family = "{stack_part}" is a new model, and model.{key} another one: set one of them'
    stacks = (model.overrides, model.overrides.get("encoder", {}), model.overrides.get("decoder", {}))
    block = next((stack["block"] for stack in stacks if stack.get("block") in STACK_PARTS), "")
    if block and block != stack_part:
        return f'model.block = "{block}" replaces all blocks of the model: set model.family = "{block}" instead'
    if model.family and not stack_part and model.family not in families:
        return f'model.family = "{model.family}" cannot learn {kind}; choose {_choices(families)}'
    if model.lora_rank and model.freeze:
        return "model.lora_rank trains LoRA adapters and freezes the rest: leave model.freeze out"
    if model.lora_rank and not model.from_:
        return "model.lora_rank adapts a trained model: set model.from, or leave lora_rank out to train all weights"
    if model.lora_rank and not model.lora_targets:
        return "model.lora_targets is empty, so there is no matrix to adapt: leave it out, or list some"
    for side in ("encoder", "decoder"):
        family = families[0] if stack_part else model.family or families[0]
        if side in model.overrides and not model.preset and not model.from_ and family not in (side, "seq2seq"):
            return f"[model.{side}] is set, but a model for {kind} has no {side}: leave it out"
    return ""


def _objective_problem(recipe: Recipe) -> str:
    objective = recipe.objective
    default = type(objective)()
    for name in (option.name for option in fields(objective) if option.name != "kind"):
        kinds = applicable_objectives(name)
        if getattr(objective, name) != getattr(default, name) and objective.kind not in kinds:
            return f"objective.{name} has no effect for {objective.kind}, only for {', '.join(kinds)}: leave it out"
    return ""


def _train_problem(recipe: Recipe) -> str:
    train, data = recipe.train, recipe.data
    if not any(getattr(train, name) for name in BUDGETS):
        return "the run would never end: set train.steps, train.minutes, train.epochs or train.cpu_minutes"
    if train.epochs and data.mix:
        return "each source of data.mix has its own epochs: set train.steps or train.minutes, not train.epochs"
    if train.residual_dtype == "bfloat16" and train.precision in ("float32", "float16"):
        return f'train.residual_dtype = "bfloat16" needs train.precision = "bfloat16", not "{train.precision}"'
    if train.average_checkpoints and train.final == "best":
        return 'train.average_checkpoints and train.final = "best" exclude each other: choose one of them'
    if train.average_checkpoints and train.ema_decay:
        return "train.ema_decay and train.average_checkpoints both average the weights: choose one of them"
    if not data.valid and not data.valid_fraction:
        needs = {"patience": train.patience, 'final = "best"': train.final == "best", "metric": train.metric}
        for name, given in needs.items():
            if given:
                return f"train.{name} needs validation data: set data.valid, or data.valid_fraction above 0"
    return ""


def _choices(names: Sequence[str]) -> str:
    return " or ".join(f'"{name}"' for name in names)
