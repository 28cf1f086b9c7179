"""Facts: a small decoder learns them, patching finds where they are, and a rank-one edit changes one of them."""

import pytest
import torch
from torch import Tensor

from qkv.blocks import Tap
from qkv.errors import UsageError
from qkv.inside.facts import (
    FactLocation,
    FactModel,
    FactWorld,
    edit_fact,
    locate_facts,
    make_world,
    measure_edit,
    measure_edits,
    train_fact_model,
)
from qkv.inside.facts.edit import EDIT_TEMPLATES, key_covariance
from qkv.inside.facts.world import TEMPLATES, VALUES


@pytest.fixture(scope="module")
def world() -> FactWorld:
    return make_world(4, 4, ("sport", "city"))


@pytest.fixture(scope="module")
def model(world: FactWorld) -> FactModel:
    return train_fact_model(world, width=48, steps=160, batch_size=160)


@pytest.fixture(scope="module")
def location(model: FactModel, world: FactWorld) -> FactLocation:
    return locate_facts(model, world)


def test_a_world_has_one_fact_for_each_person_and_relation() -> None:
    world = make_world(3, 2)
    assert len(world.facts) == 3 * 2 * 3
    assert len({(fact.person, fact.relation) for fact in world.facts}) == len(world.facts)
    assert len(world.prompts()) == 5 * len(world.facts)
    assert make_world(3, 2).facts == world.facts
    assert make_world(3, 2, seed=1).facts != world.facts
    with pytest.raises(UsageError, match="num_first_names"):
        make_world(100)


def test_the_subject_of_a_prompt_is_found(model: FactModel, world: FactWorld) -> None:
    prompts = world.prompts()
    ids, last, subject, _ = model.encode(prompts)
    for row, prompt in enumerate(prompts):
        words = prompt.text.split()
        assert model.token(words[subject[row]]) == ids[row, subject[row]]
        assert words[subject[row]] == prompt.fact.person.split()[1]
        assert len(words) == last[row] + 1


def test_the_model_learns_all_facts(model: FactModel, world: FactWorld) -> None:
    assert model.accuracy(world.prompts()) == 1.0


def test_patching_finds_the_layer_of_the_facts(location: FactLocation) -> None:
    others = [effect for layer, effect in enumerate(location.effects) if layer != location.layer]
    assert location.effects[location.layer] > 0.05
    assert all(abs(effect) < location.effects[location.layer] / 4 for effect in others)


def test_an_edit_moves_its_fact_and_no_others(model: FactModel, world: FactWorld, location: FactLocation) -> None:
    report = measure_edits(model, world, [location.layer], num_edits=6)
    assert report.success >= 0.95
    assert report.others_changed <= 0.02


def test_an_edit_at_a_random_other_layer_is_worse(model: FactModel, world: FactWorld, location: FactLocation) -> None:
    """The negative control."""
    others = [layer for layer in range(len(location.effects)) if layer != location.layer]
    assert measure_edits(model, world, others, num_edits=6).success < 0.8
    assert measure_edits(model, world, [others[-1]], num_edits=2).success == 0.0


def test_an_edit_changes_one_matrix_by_rank_one(model: FactModel, world: FactWorld, location: FactLocation) -> None:
    fact = world.facts[0]
    value = next(one for one in VALUES[fact.relation] if one != fact.value)
    edited = edit_fact(model, world, fact, value, location.layer, steps=5)
    before, after = model.network.state_dict(), edited.network.state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == [f"decoder.blocks.{location.layer}.ffn.down.weight"]
    sizes = torch.linalg.svdvals((after[changed[0]] - before[changed[0]]).double())
    assert float(sizes[1] / sizes[0]) < 1e-5


def test_a_model_that_is_not_edited_has_no_success(model: FactModel, world: FactWorld) -> None:
    fact = world.facts[3]
    value = next(one for one in VALUES[fact.relation] if one != fact.value)
    report = measure_edit(model, model, world, fact, value)
    assert (report.success, report.others_changed, report.same_person_changed) == (0.0, 0.0, 0.0)


def test_the_covariance_of_the_keys_is_that_of_all_tokens(model: FactModel, world: FactWorld) -> None:
    total, count = torch.zeros(4 * 48, 4 * 48), 0
    for prompt in world.prompts():
        ids, last, _, _ = model.encode([prompt])
        tap = Tap(record=["decoder.1.mlp_post"])
        with torch.no_grad():
            model.answer_logits(ids, last, tap)
        keys: Tensor = tap["decoder.1.mlp_post"][0]
        total += keys.T @ keys
        count += len(keys)
    assert torch.allclose(key_covariance(model, world, 1), total / count, atol=1e-5)


def test_paraphrases_are_not_the_templates_of_the_edit() -> None:
    assert all(len(templates) > EDIT_TEMPLATES for templates in TEMPLATES.values())


def test_an_unknown_value_is_a_usage_error(model: FactModel, world: FactWorld) -> None:
    with pytest.raises(UsageError, match="'bowling'"):
        edit_fact(model, world, world.facts[0], "bowling", 0)
