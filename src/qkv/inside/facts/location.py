"""Find the MLP that stores the facts of a world, by patching.

B batch
"""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.blocks import Tap
from qkv.errors import UsageError
from qkv.inside.facts.model import FactModel
from qkv.inside.facts.world import FactPrompt, FactWorld


@dataclass(frozen=True)
class FactLocation:
    """How much of the answer each MLP carries at the last token of the name.

    An effect of 1 means that its output alone, copied from the run about one person into the run about another, moves
    the whole logit difference between the two answers; 0 means that it moves nothing.
    """

    effects: tuple[float, ...]  # by layer

    @property
    def layer(self) -> int:
        """The layer with the largest effect."""
        return max(range(len(self.effects)), key=lambda layer: self.effects[layer])


@torch.no_grad()
def locate_facts(model: FactModel, world: FactWorld, *, max_pairs: int = 256, seed: int = 0) -> FactLocation:
    """Find the MLP that stores the facts, by patching.

    The same template is run about two people with different answers. The output of one MLP at the last token of the
    name is copied from the first run into the second.
    """
    clean, other = pair_prompts(world, max_pairs, seed)
    ids, last, subject, answers = model.encode(clean)
    other_ids, _, _, other_answers = model.encode(other)
    rows, layers = torch.arange(len(ids)), model.network.output_stack.config.layers
    tap = Tap(record=["decoder.*.mlp_out"])
    difference = logit_difference(model.answer_logits(ids, last, tap), answers, other_answers)
    base = logit_difference(model.answer_logits(other_ids, last), answers, other_answers)
    effects = []
    for layer in range(layers):
        site = f"decoder.{layer}.mlp_out"

        def copy_output(value: Tensor, site: str = site) -> Tensor:
            patched = value.clone()
            patched[rows, subject] = tap[site][rows, subject]
            return patched

        logits = model.answer_logits(other_ids, last, Tap(change={site: copy_output}))
        moved = logit_difference(logits, answers, other_answers)
        effects.append(float(((moved - base) / (difference - base)).median()))
    return FactLocation(tuple(effects))


def pair_prompts(world: FactWorld, max_pairs: int, seed: int) -> tuple[list[FactPrompt], list[FactPrompt]]:
    """Pairs of prompts with the same template about two people with different answers."""
    generator, pairs = random.Random(seed), []
    prompts = world.prompts()
    by_template: dict[tuple[str, int], list[FactPrompt]] = {}
    for prompt in prompts:
        by_template.setdefault((prompt.fact.relation, prompt.template), []).append(prompt)
    for prompt in generator.sample(prompts, min(max_pairs, len(prompts))):
        others = by_template[prompt.fact.relation, prompt.template]
        others = [other for other in others if other.fact.value != prompt.fact.value]
        if others:
            pairs.append((prompt, generator.choice(others)))
    if not pairs:
        raise UsageError("all people of this world have the same facts, so there is nothing to compare; add people")
    return [clean for clean, _ in pairs], [other for _, other in pairs]


def logit_difference(logits: Tensor, answers: Tensor, other_answers: Tensor) -> Tensor:
    """The difference of the logits of two answers, (B,)."""
    rows = torch.arange(len(logits))
    return logits[rows, answers] - logits[rows, other_answers]
