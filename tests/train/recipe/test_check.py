"""Values out of range and impossible combinations are errors that say what to write instead."""

from dataclasses import fields, replace
from typing import Any

import pytest

from qkv.data.objectives.table import OBJECTIVES, applicable_objectives
from qkv.errors import UsageError
from qkv.train.recipe.check import check_recipe
from qkv.train.recipe.recipe_file import loads
from qkv.train.recipe.schema import DataSection, ObjectiveSection, Recipe, TrainSection
from qkv.train.recipe.table import SECTIONS
from qkv.values import find_fields
from qkv.values.types import strip_notes

SOUND = Recipe(data=DataSection(train="a.tsv"), train=TrainSection(steps=10))


def changed(**keys: Any) -> Recipe:
    """Return a valid recipe with `section__key` changed."""
    recipe = SOUND
    for key, value in keys.items():
        section, name = key.split("__")
        recipe = replace(recipe, **{section: replace(getattr(recipe, section), **{name: value})})
    return recipe


def test_a_sound_recipe_passes() -> None:
    check_recipe(SOUND)
    check_recipe(changed(model__family="lstm", model__overrides={"encoder": {"layers": 2}}))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"train__steps": 0}, "would never end"),
        ({"data__train": ""}, "no training data"),
        ({"data__mix": {"a": {"train": "b"}}}, "both set"),
        ({"data__train": "", "data__mix": {"a": {"weight": 1.0}}}, "data.mix.a has no files"),
        (
            {"data__train": "", "data__mix": {"a": {"train": "b", "weight": 0.0}}},
            "data.mix.a.weight = 0.0 must be at least 1e-06",
        ),
        ({"data__train": "", "data__mix": {"a": {"train": "b"}}, "train__epochs": 1}, "its own epochs"),
        ({"train__batch_tokens": 100}, "less than one sequence of 512"),
        ({"train__micro_batch_tokens": 100}, "must be at least one sequence"),
        ({"train__micro_batch_tokens": 10**6}, "must be at least one sequence"),
        ({"train__micro_batch_tokens": -1}, "train.micro_batch_tokens = -1 must be at least 0"),
        ({"data__too_long": "split"}, "does not work with seq2seq"),
        ({"model__preset": "gpt2", "model__from_": "x"}, "set one of them"),
        ({"model__family": "decoder"}, "cannot learn seq2seq"),
        ({"model__family": "lstm", "model__preset": "gpt2"}, 'model.family = "lstm" is a new model, and model.preset'),
        ({"model__family": "lstm", "model__from_": "runs/a"}, "model.from another one: set one of them"),
        (
            {"model__overrides": {"block": "lstm"}},
            'model.block = "lstm" replaces all blocks of the model: set model.fam',
        ),
        (
            {"model__overrides": {"decoder": {"block": "gru"}}},
            'model.block = "gru" replaces all blocks of the model: set',
        ),
        ({"model__lora_rank": 4, "model__from_": "x", "model__freeze": ("a",)}, "leave model.freeze out"),
        ({"model__lora_rank": 4}, "adapts a trained model"),
        ({"model__lora_rank": 4, "model__from_": "x", "model__lora_targets": ()}, "no matrix to adapt"),
        ({"model__overrides": {"encoder": {"layers": 1}}, "objective__kind": "causal_lm"}, "causal_lm has no encoder"),
        ({"objective__whole_word_masking": True}, "only for masked_lm"),
        ({"objective__label_smoothing": 1.0}, "objective.label_smoothing = 1.0"),
        ({"objective__kind": "contrastive", "objective__label_smoothing": 0.1}, "has no effect for contrastive"),
        ({"objective__kind": "span_corruption", "objective__mean_span_length": 0.5}, "at least 1"),
        ({"train__betas": (0.9,)}, "train.betas = (0.9,) must be a list of 2 numbers"),
        ({"train__betas": (0.9, 1.0)}, "train.betas[1] = 1.0 must be below 1"),
        ({"train__trackers": ("tensorbord",)}, "did you mean 'tensorboard'?"),
        ({"train__average_checkpoints": 2, "train__final": "best"}, "choose"),
        ({"train__average_checkpoints": 2, "train__ema_decay": 0.9}, "choose one"),
        (
            {"train__residual_dtype": "bfloat16", "train__precision": "float32"},
            'needs train.precision = "bfloat16"',
        ),
        ({"train__patience": 2, "data__valid_fraction": 0.0}, "needs validation data"),
        ({"train__final": "best", "data__valid_fraction": 0.0}, "needs validation data"),
        ({"train__metric": "loss", "data__valid_fraction": 0.0}, "needs validation data"),
        ({"train__seed": 2**63}, "train.seed = 9223372036854775808 must be at most"),
        ({"train__lr": 0.0}, "train.lr = 0.0 must be at least 1e-30"),
        ({"train__lr": float("inf")}, "train.lr = inf must be at most"),
        ({"train__lr": float("nan")}, "train.lr = nan must be at least"),
        ({"train__minutes": float("inf")}, "train.minutes = inf must be at most"),
        ({"train__num_workers": 10_000}, "must be at most 64"),
        ({"train__num_threads": 10_000}, "must be at most 1,024"),
        ({"train__batch_tokens": 10**9}, "must be at most 134,217,728"),
        ({"train__weight_decay": float("nan")}, "train.weight_decay"),
        ({"train__minutes": float("inf")}, "train.minutes"),
    ],
)
def test_what_is_impossible(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        check_recipe(changed(**keys), "mine.toml")
    assert message in str(error.value)
    assert str(error.value).startswith("mine.toml: ")


NUMBERS = {
    f"{section.name}.{field.name}": (field.limits, strip_notes(field.type)[0])
    for section in find_fields(Recipe)
    if section.name in SECTIONS
    for field in find_fields(section.type)
    if strip_notes(field.type)[0] in (int, float)
}


@pytest.mark.parametrize("key", NUMBERS)
def test_every_number_has_limits_and_refuses_numbers_outside_of_them(key: str) -> None:
    limits, kind = NUMBERS[key]
    assert limits.minimum is not None
    high = limits.maximum if limits.below is None else limits.below
    assert high is not None
    step = 1 if kind is int else 0.5
    above = high if limits.below is not None else high + high * step
    for outside in (limits.minimum - step, above, float("nan")):
        with pytest.raises(UsageError, match=key.replace(".", r"\.")):
            check_recipe(changed(**{key.replace(".", "__"): outside}))
        section, name = key.split(".")
        with pytest.raises(UsageError, match=rf"^r\.toml:(2: {key} = .* must be| .* the integer)"):
            loads(f"[{section}]\n{name} = {outside}", "r.toml")


def test_validation_data_makes_early_stopping_possible() -> None:
    check_recipe(changed(train__patience=2, data__valid_fraction=0.0, data__valid="valid.tsv"))


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_every_objective_has_its_families_and_its_way_with_long_records(kind: Any) -> None:
    policy = OBJECTIVES[kind].too_long_policies[0]
    check_recipe(replace(SOUND, objective=ObjectiveSection(kind=kind), data=replace(SOUND.data, too_long=policy)))


def test_keys_that_belong_to_some_objectives_are_keys_of_the_section() -> None:
    options = {field.name for field in fields(ObjectiveSection)} - {"kind"}
    assert {name for spec in OBJECTIVES.values() for name in spec.options} == options
    assert all(set(applicable_objectives(name)) < set(OBJECTIVES) for name in options)
