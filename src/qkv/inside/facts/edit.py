"""Edit a fact by a rank-one change of one MLP, as ROME does (Meng et al. 2022), and measure what the edit changes.

An MLP is read as a memory: its hidden activation k at the last token of the name is a key, and its output v = Wk is the
value. A new value v* is found by gradient descent, and a rank-one change of W makes k* yield v*, while it changes the
outputs for other keys as little as possible:

    W* = W + (v* − Wk*) (Σ⁻¹k*)ᵀ / ((Σ⁻¹k*)ᵀ k*)          Σ = E[k kᵀ] over many tokens

C model width, F neurons
"""

import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import Tap
from qkv.inside.facts.model import FactModel
from qkv.inside.facts.world import TEMPLATES, VALUES, Fact, FactPrompt, FactWorld

EDIT_TEMPLATES = 2
VALUE_LR, SIZE_WEIGHT, KEEP_WEIGHT = 0.05, 0.03, 0.5
"""The learning rate of a new value, and the weights of two parts of its loss: the size of the change, and other answers
about the same person."""


def edit_fact(
    model: FactModel, world: FactWorld, fact: Fact, value: str, layer: int, *, steps: int = 100, ridge: float = 1e-6
) -> FactModel:
    """Return a copy of the model in which one fact has another value. One matrix changes, by a matrix of rank one.

    `layer` is the layer whose MLP is changed. The diagonal of the covariance of the keys is raised by `ridge` times its
    mean, so that the covariance can be inverted.
    """
    prompts = world.prompts([fact], range(EDIT_TEMPLATES))
    ids, last, subject, _ = model.encode(prompts)
    tap = Tap(record=[f"decoder.{layer}.mlp_post"])
    with torch.no_grad():
        model.answer_logits(ids, last, tap)
    key = tap[f"decoder.{layer}.mlp_post"][torch.arange(len(ids)), subject].mean(0)  # (F,)
    change = find_value_change(model, world, fact, value, layer, steps)  # (C,)
    covariance = key_covariance(model, world, layer)
    smallest = ridge * covariance.diagonal().mean()
    solved = torch.linalg.solve(covariance + smallest * torch.eye(len(covariance)), key)
    edited = FactModel(deepcopy(model.network), model.tokenizer)
    down = edited.network.output_stack.block_of(layer).ffn.down  # type: ignore[union-attr]
    with torch.no_grad():
        down.weight += torch.outer(change, solved / (solved @ key))  # type: ignore[union-attr, operator]
    return edited


def find_value_change(model: FactModel, world: FactWorld, fact: Fact, value: str, layer: int, steps: int) -> Tensor:
    """Find what to add to the output of an MLP at the last token of the name, so that the model answers `value`.

    The search starts from the mean difference between people with the new value and people with the old one. Answers to
    other questions about the same person are kept: their KL divergence is part of the loss.
    """
    changed = world.prompts([fact], range(EDIT_TEMPLATES))
    kept = [other for other in world.facts if other.person == fact.person and other.relation != fact.relation]
    prompts = changed + world.prompts(kept)
    ids, last, subject, _ = model.encode(prompts)
    rows, target = torch.arange(len(ids)), torch.full((len(changed),), model.token(value))
    with torch.no_grad():
        before = model.answer_logits(ids, last)[len(changed) :].log_softmax(-1)
    site = f"decoder.{layer}.mlp_out"
    change = mean_value(model, world, fact.relation, value, site) - mean_value(
        model, world, fact.relation, fact.value, site
    )
    change.requires_grad_(True)
    optimizer = torch.optim.Adam([change], lr=VALUE_LR)

    def add_change(output: Tensor) -> Tensor:
        added = torch.zeros_like(output)
        added[rows, subject] = change
        return output + added

    for _ in range(steps):
        logits = model.answer_logits(ids, last, Tap(change={site: add_change}))
        loss = F.cross_entropy(logits[: len(changed)], target) + SIZE_WEIGHT * change.square().sum()
        if kept:
            after = logits[len(changed) :].log_softmax(-1)
            loss = loss + KEEP_WEIGHT * F.kl_div(after, before, log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.network.zero_grad()
    return change.detach()


@torch.no_grad()
def mean_value(model: FactModel, world: FactWorld, relation: str, value: str, site: str) -> Tensor:
    """The mean output (C,) of an MLP at the names of the people with a value; zeros if there are no such people."""
    people = [fact for fact in world.facts if (fact.relation, fact.value) == (relation, value)]
    if not people:
        return torch.zeros(model.network.output_stack.config.width)
    ids, last, subject, _ = model.encode(world.prompts(people, range(EDIT_TEMPLATES)))
    tap = Tap(record=[site])
    model.answer_logits(ids, last, tap)
    return tap[site][torch.arange(len(ids)), subject].mean(0)


@torch.no_grad()
def key_covariance(model: FactModel, world: FactWorld, layer: int) -> Tensor:
    """E[k kᵀ] over all tokens of all prompts: how often each direction of the keys is used, (F, F)."""
    ids, last, _, _ = model.encode(world.prompts())
    site = f"decoder.{layer}.mlp_post"
    tap = Tap(record=[site])
    model.answer_logits(ids, last, tap)
    keys = tap[site][torch.arange(ids.shape[1]) <= last[:, None]]
    return keys.T @ keys / len(keys)


@dataclass(frozen=True)
class EditReport:
    """Measurements of what an edit changed."""

    success: float  # the fraction of paraphrases of the edited fact with the new answer
    others_changed: float  # the fraction of prompts for all other facts whose answer has changed
    same_person_changed: float  # the same, for the other facts about the same person


def measure_edit(model: FactModel, edited: FactModel, world: FactWorld, fact: Fact, value: str) -> EditReport:
    """Measure an edit: on paraphrases that the edit has not seen, and on all other facts."""
    paraphrases = world.prompts([fact], range(EDIT_TEMPLATES, len(TEMPLATES[fact.relation])))
    others = [other for other in world.facts if other != fact]
    same_person = [other for other in others if other.person == fact.person]
    return EditReport(
        success=float((edited.answers(paraphrases) == model.token(value)).float().mean()),
        others_changed=changed_fraction(model, edited, world.prompts(others)),
        same_person_changed=changed_fraction(model, edited, world.prompts(same_person)),
    )


def changed_fraction(model: FactModel, edited: FactModel, prompts: Sequence[FactPrompt]) -> float:
    """The fraction of prompts that two models answer differently."""
    if not prompts:
        return 0.0
    return float((edited.answers(prompts) != model.answers(prompts)).float().mean())


def measure_edits(
    model: FactModel, world: FactWorld, layers: Sequence[int], *, num_edits: int = 20, seed: int = 0
) -> EditReport:
    """The mean report of edits of random facts to random other values, each in a random one of the given layers.

    Each edit starts from the original model.
    """
    generator, reports = random.Random(seed), []
    for fact in generator.sample(world.facts, min(num_edits, len(world.facts))):
        value = generator.choice([candidate for candidate in VALUES[fact.relation] if candidate != fact.value])
        edited = edit_fact(model, world, fact, value, generator.choice(layers))
        reports.append(measure_edit(model, edited, world, fact, value))
    return EditReport(
        success=sum(report.success for report in reports) / len(reports),
        others_changed=sum(report.others_changed for report in reports) / len(reports),
        same_person_changed=sum(report.same_person_changed for report in reports) / len(reports),
    )
