"""Give all variants of a study the same budget: FLOPs, parameters, tokens or seconds.

    flops        train.steps × batch × training FLOPs of a token is the same as in the baseline
    tokens       train.steps × train.batch_tokens is the same as in the baseline
    seconds      train.steps × measured seconds of a step is the same as in the baseline
    parameters   model.ffn_width is changed until the number of parameters is closest to the baseline's
    steps        nothing is changed

FLOPs are the sums of the FLOPs that the parts of a model state. If a part of one variant does not state its FLOPs, the
FLOPs of all variants are counted by running the networks.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from qkv.blocks import Inputs
from qkv.errors import UsageError
from qkv.models import Config, build
from qkv.models.tables.summary import count_parameters, summarise_model
from qkv.progress import OnStage
from qkv.tasks.prepare.prepare import PreparedRun, prepare
from qkv.tasks.study.plan import Study
from qkv.tasks.train import train
from qkv.train.recipe.schema import BUDGETS, Recipe
from qkv.train.run.folder import RunFolder

TIMED_STEPS, WARM_UP_STEPS, TIMED_RUNS = 12, 4, 3
MAX_COUNTED_LENGTH = 256
"""FLOPs are counted in a sequence of at most this length."""


def match_variants(study: Study, progress: OnStage | None = None) -> None:
    """Decide the budgets of all variants and compute their costs, if this has not been done."""
    if all(variant.parameters for variant in study.variants.values()):
        return
    prepared = {}
    for number, variant in enumerate(study.variants.values()):
        if progress is not None:
            progress("sizes of the variants", number, len(study.variants))
        prepared[variant.name] = prepare(study.recipe(variant.overrides))
    matched = find_overrides(study, prepared, progress)
    configs = {name: one.config for name, one in prepared.items()}
    for name, overrides in matched.items():
        if overrides:
            configs[name] = prepare(study.recipe((*study.variants[name].overrides, *overrides))).config
    flops, are_counted = training_flops(configs, sequence_lengths(prepared))
    for name, config in configs.items():
        parameters = sum(parameter.numel() for parameter in build(config, device="meta").parameters())
        variant = replace(study.variants[name], matched=matched[name], parameters=parameters)
        study.update(replace(variant, flops_per_token=flops[name], flops_are_counted=are_counted))


def sequence_lengths(prepared: dict[str, PreparedRun]) -> dict[str, int]:
    """The sequence length of each variant, which determines the FLOPs of attention."""
    return {name: max(one.train_data.max_lengths) for name, one in prepared.items()}


def find_overrides(
    study: Study, prepared: dict[str, PreparedRun], progress: OnStage | None
) -> dict[str, tuple[str, ...]]:
    """The overrides that give each variant the budget of the baseline."""
    match = study.plan.match
    if match == "steps":
        return dict.fromkeys(study.variants, ())
    if match == "parameters":
        target = total_parameters(prepared[study.baseline].config)
        return {name: match_parameters(name, one.config, target) for name, one in prepared.items()}
    recipes = {name: study.recipe(variant.overrides) for name, variant in study.variants.items()}
    for name, recipe in recipes.items():
        if [name for name in BUDGETS if getattr(recipe.train, name)] != ["steps"]:
            raise UsageError(
                f"--match {match} chooses train.steps, so the budget of {name} must be in steps: set train.steps, and "
                "leave train.minutes, train.epochs and train.cpu_minutes out"
            )
    if match == "seconds":
        cost = time_steps(study, progress)
    else:
        cost = {name: float(recipe.train.batch_tokens) for name, recipe in recipes.items()}
        if match == "flops":
            configs = {name: one.config for name, one in prepared.items()}
            flops, _ = training_flops(
                configs, {name: max(one.train_data.max_lengths) for name, one in prepared.items()}
            )
            cost = {name: tokens * flops[name] for name, tokens in cost.items()}
    budget = recipes[study.baseline].train.steps * cost[study.baseline]
    steps = {name: max(1, round(budget / cost[name])) for name in recipes}
    return {
        name: () if steps[name] == recipe.train.steps else (f"train.steps={steps[name]}",)
        for name, recipe in recipes.items()
    }


def total_parameters(config: Config) -> int:
    """The number of parameters of a model."""
    return sum(count_parameters(config).values())


def match_parameters(name: str, config: Config, target: int) -> tuple[str, ...]:
    """The feed-forward width with which the number of parameters of a model is closest to `target`."""

    def count(width: int) -> int:
        stacks: dict[str, Any] = {side: replace(stack, ffn_width=width) for side, stack in config.stacks.items()}
        return total_parameters(replace(config, **stacks))

    if (now := total_parameters(config)) == target:
        return ()
    low, high = 1, 2 * config.stack.ffn_width
    while count(high) < target and high < 2**20:
        high *= 2
    if count(low) >= count(high) or not count(low) <= target <= count(high):
        raise UsageError(
            f"--match parameters changes model.ffn_width, but no width gives {name} the {target:,} parameters of the "
            f"baseline (it has {now:,}); set the sizes of the variants by hand (--vary), or match something else"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < target else (low, middle)
    best = min((low, high), key=lambda width: abs(count(width) - target))
    return (f"model.ffn_width={best}",)


def training_flops(configs: dict[str, Config], lengths: dict[str, int]) -> tuple[dict[str, int], bool]:
    """The training FLOPs of a token of each model, and whether they are counted instead of stated."""
    summaries = {name: summarise_model(config, lengths[name]) for name, config in configs.items()}
    if not any(summary.unstated_flops for summary in summaries.values()):
        return {name: summary.flops_training for name, summary in summaries.items()}, False
    return {name: count_flops(config, lengths[name]) for name, config in configs.items()}, True


def count_flops(config: Config, length: int) -> int:
    """The training FLOPs of a token: all matrix products, counted in a forward pass."""
    length = min(length, MAX_COUNTED_LENGTH, config.stack.max_positions)
    with torch.random.fork_rng(devices=[]):
        network = build(config).eval()
    for stack in network.stacks.values():
        stack.kernel = "eager"  # whose matrix products are counted
    ids = torch.zeros(1, length, dtype=torch.long)
    inputs = Inputs(ids, source=Inputs(ids) if network.has_source else None)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(inputs)
    return round(3 * int(counter.get_total_flops()) / length)


def time_steps(study: Study, progress: OnStage | None) -> dict[str, float]:
    """The seconds of a training step of each variant: the median of short runs that take turns."""
    times: dict[str, list[float]] = {name: [] for name in study.variants}
    with tempfile.TemporaryDirectory(prefix="qkv-study-") as scratch:
        for number in range(TIMED_RUNS):
            for name, variant in study.variants.items():
                if progress is not None:
                    done = sum(map(len, times.values()))
                    progress("timing the variants", done, TIMED_RUNS * len(times))
                run = Path(scratch) / f"{name}-{number}"
                steps = (f"train.steps={TIMED_STEPS}", "train.log_every=1", f"train.eval_every={10**9}")
                more = (f'run="{run}"', f"train.num_threads={study.plan.threads}", "train.average_checkpoints=0")
                times[name].append(_time_run(study.recipe((*variant.overrides, *steps, *more))))
    return {name: median(seconds) for name, seconds in times.items()}


def _time_run(recipe: Recipe) -> float:
    train(recipe)
    steps = [one for one in RunFolder(recipe.run).log_records() if one.get("kind") == "step"]
    first, last = (next(one for one in steps if one["step"] == step) for step in (WARM_UP_STEPS, TIMED_STEPS))
    return float(last["seconds"] - first["seconds"]) / (TIMED_STEPS - WARM_UP_STEPS)
