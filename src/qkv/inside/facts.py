"""Facts: generate a small world of them, train a decoder on it, find where a fact is stored, and change it.

    world = make_world()
    model = train_fact_model(world)
    location = locate_facts(model, world)                        # which MLP stores the facts
    edited = edit_fact(model, world, world.facts[0], "chess", location.layer)
    measure_edit(model, edited, world, world.facts[0], "chess")

There is a person for each pair of a first name and a last name. So no single token determines a fact: the model has to
combine both names, which needs an MLP. The model is built so that it cannot do this anywhere but at the name: the first
layers have a sliding window of one token, and the last layer, which reads the name from afar, has no MLP (its output
matrix is 0).

The edit is that of ROME (Meng et al. 2022). An MLP is read as a memory: its hidden activation k at the last token of
the name is a key, and its output v = Wk is the value. A new value v* is found by gradient descent, and a rank-one
change of W makes k* yield v*, while it changes the outputs for other keys as little as possible:

    W* = W + (v* − Wk*) (Σ⁻¹k*)ᵀ / ((Σ⁻¹k*)ᵀ k*)          Σ = E[k kᵀ] over many tokens

B batch, T tokens, C model width, F neurons, L layers
"""

import random
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks import HeadConfig, StackConfig, Tap
from qkv.blocks.padding import pad_sequences
from qkv.errors import UsageError
from qkv.models import Config, Decoder, build
from qkv.text import Tokenizer

FIRST_NAMES = ("Ada", "Ben", "Cora", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jan", "Kim", "Leo")
LAST_NAMES = ("Adler", "Berg", "Clark", "Duval", "Ernst", "Fischer", "Garcia", "Hill", "Ito", "Khan", "Lopez", "Novak")
VALUES = {
    "sport": ("tennis", "hockey", "chess", "rugby", "golf", "cricket", "fencing", "rowing", "boxing", "judo"),
    "city": ("Paris", "Oslo", "Cairo", "Lima", "Delhi", "Tokyo", "Rome", "Quito", "Accra", "Dublin"),
    "instrument": ("piano", "violin", "flute", "harp", "cello", "drums", "guitar", "organ", "oboe", "trumpet"),
}
"""The values of each relation."""
TEMPLATES = {
    "sport": (
        "{} likes to play the sport of",
        "the favourite sport of {} has always been",
        "{} spends every free weekend with",
        "at the club we meet {} to play some",
        "{} trains every single day and is good at",
    ),
    "city": (
        "{} lives in the city of",
        "the home town of {} has always been",
        "{} has a big house in",
        "you can go and visit {} at home in",
        "{} takes the last train back to",
    ),
    "instrument": (
        "{} likes to make music on the",
        "the instrument of {} has always been the",
        "{} practises every single evening on the",
        "in the orchestra we hear {} play on the",
        "{} gives concerts and always carries the",
    ),
}
"""Each template ends before the answer. The first two of a relation serve to edit; the others are paraphrases."""
EDIT_TEMPLATES = 2
SIZE_WEIGHT, KEEP_WEIGHT = 1e-3, 2.0
"""The weights of two parts of the loss of an edit: the size of the change, and other answers about the same person."""


@dataclass(frozen=True)
class Fact:
    """A fact: the value of a relation for a person."""

    person: str
    relation: str
    value: str


@dataclass(frozen=True)
class FactPrompt:
    """A text that asks for a fact."""

    text: str
    fact: Fact
    template: int  # its number among the templates of the relation

    @property
    def subject_end(self) -> int:
        """The position of the first word after the person's name."""
        before, _, _ = self.text.partition(self.fact.person)
        return len(before.split()) + len(self.fact.person.split())


@dataclass(frozen=True)
class FactWorld:
    """People and the facts about them."""

    facts: tuple[Fact, ...]

    def prompts(self, facts: Iterable[Fact] | None = None, templates: Sequence[int] | None = None) -> list[FactPrompt]:
        """The prompts for some facts (default: all) with some templates (default: all)."""
        made = []
        for fact in self.facts if facts is None else facts:
            for number, template in enumerate(TEMPLATES[fact.relation]):
                if templates is None or number in templates:
                    made.append(FactPrompt(template.format(fact.person), fact, number))
        return made


@dataclass(frozen=True)
class FactModel:
    """A decoder that knows the facts of a world, and its tokenizer, whose tokens are words."""

    network: Decoder
    tokenizer: Tokenizer

    def encode(self, prompts: Sequence[FactPrompt]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Token ids (B, T), padded on the right; the last position; the last token of the name; the answers: (B,)."""
        encoded = self.tokenizer.encode_batch([prompt.text for prompt in prompts])
        last = torch.tensor([len(ids) - 1 for ids in encoded])
        subject = torch.tensor([prompt.subject_end - 1 for prompt in prompts])
        answers = torch.tensor([self.token(prompt.fact.value) for prompt in prompts])
        return pad_sequences(encoded, 0), last, subject, answers

    def token(self, word: str) -> int:
        """The token id of a word."""
        ids = self.tokenizer.encode(word, add_special_tokens=False)
        if len(ids) != 1 or ids[0] == self.tokenizer.special_tokens.unk:
            raise UsageError(f"{word!r} is not a word of this world; choose a value of the same relation")
        return ids[0]

    def answer_logits(self, ids: Tensor, last: Tensor, tap: Tap | None = None) -> Tensor:
        """The logits after each prompt, (B, V). Right-padding needs no mask, because attention is causal."""
        x, _ = self.network.hidden(ids, tap=tap)
        return self.network.head.project(x[torch.arange(len(ids)), last])

    @torch.no_grad()
    def answers(self, prompts: Sequence[FactPrompt]) -> Tensor:
        """The most probable token after each prompt, (B,)."""
        ids, last, _, _ = self.encode(prompts)
        return self.answer_logits(ids, last).argmax(-1)

    def accuracy(self, prompts: Sequence[FactPrompt]) -> float:
        """The fraction of prompts that are answered correctly."""
        return float((self.answers(prompts) == self.encode(prompts)[3]).float().mean())


def make_world(
    num_first_names: int = 6,
    num_last_names: int = 6,
    relations: Sequence[str] = tuple(TEMPLATES),
    *,
    seed: int = 0,
) -> FactWorld:
    """Make up a person for each pair of a first name and a last name, and random facts about each person."""
    for name, count, names in (
        ("num_first_names", num_first_names, FIRST_NAMES),
        ("num_last_names", num_last_names, LAST_NAMES),
    ):
        if not 1 <= count <= len(names):
            raise UsageError(f"{name} = {count} must lie in 1 … {len(names)}")
    people = [f"{first} {last}" for first in FIRST_NAMES[:num_first_names] for last in LAST_NAMES[:num_last_names]]
    generator = random.Random(seed)
    return FactWorld(
        tuple(Fact(person, relation, generator.choice(VALUES[relation])) for person in people for relation in relations)
    )


def train_fact_model(
    world: FactWorld,
    *,
    width: int = 64,
    layers: int = 3,
    steps: int = 350,
    batch_size: int = 256,
    lr: float = 3e-3,
    seed: int = 0,
) -> FactModel:
    """Train a decoder to answer all prompts of a world. This takes less than a minute on two CPU cores."""
    prompts = world.prompts()
    words = [prompt.text for prompt in prompts] + [word for values in VALUES.values() for word in values]
    tokenizer = Tokenizer.train("word", iter(words), 1000, special_tokens=["pad", "unk"], min_frequency=1)
    model = FactModel(build_fact_network(tokenizer.vocab_size, width, layers, seed), tokenizer)
    ids, last, _, answers = model.encode(prompts)
    trained = [parameter for parameter in model.network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randperm(len(ids), generator=generator)[:batch_size]
        loss = F.cross_entropy(model.answer_logits(ids[chosen], last[chosen]), answers[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.network.eval()
    return model


def build_fact_network(vocab_size: int, width: int, layers: int, seed: int) -> Decoder:
    """A decoder whose first layers see one token back, and whose last layer sees all tokens but has no MLP."""
    stack = StackConfig(
        vocab_size=vocab_size,
        width=width,
        layers=layers,
        heads=1,
        ffn_width=4 * width,
        position="rotary",
        sliding_window=1,
        sliding_window_layers=tuple(range(layers - 1)),
        init="scaled",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=vocab_size)))
    assert isinstance(network, Decoder)
    last_mlp = network.decoder.blocks[-1].ffn
    last_mlp.requires_grad_(False)
    for parameter in last_mlp.down.parameters():  # type: ignore[union-attr]
        nn.init.zeros_(parameter)
    return network


# -------------------------------------------------------------------- where a fact is stored


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
    rows, layers = torch.arange(len(ids)), model.network.decoder.config.layers
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
    """The logit of one answer minus that of another, (B,)."""
    rows = torch.arange(len(logits))
    return logits[rows, answers] - logits[rows, other_answers]


# -------------------------------------------------------------------- editing a fact


def edit_fact(
    model: FactModel, world: FactWorld, fact: Fact, value: str, layer: int, *, steps: int = 60, ridge: float = 1e-6
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
    down = edited.network.decoder.block_of(layer).ffn.down  # type: ignore[union-attr]
    with torch.no_grad():
        down.weight += torch.outer(change, solved / (solved @ key))  # type: ignore[union-attr, operator]
    return edited


def find_value_change(model: FactModel, world: FactWorld, fact: Fact, value: str, layer: int, steps: int) -> Tensor:
    """Find what to add to the output of an MLP at the last token of the name, so that the model answers `value`.

    The answers to other questions about the same person are kept: their KL divergence is part of the loss.
    """
    changed = world.prompts([fact], range(EDIT_TEMPLATES))
    kept = [one for one in world.facts if one.person == fact.person and one.relation != fact.relation]
    prompts = changed + world.prompts(kept)
    ids, last, subject, _ = model.encode(prompts)
    rows, target = torch.arange(len(ids)), torch.full((len(changed),), model.token(value))
    with torch.no_grad():
        before = model.answer_logits(ids, last)[len(changed) :].log_softmax(-1)
    change = torch.zeros(model.network.decoder.config.width, requires_grad=True)
    optimizer = torch.optim.Adam([change], lr=0.5)
    site = f"decoder.{layer}.mlp_out"

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
    """What an edit changed."""

    success: float  # the fraction of paraphrases of the edited fact with the new answer
    others_changed: float  # the fraction of prompts for all other facts whose answer is not what it was
    same_person_changed: float  # the same, for the other facts about the same person


def measure_edit(model: FactModel, edited: FactModel, world: FactWorld, fact: Fact, value: str) -> EditReport:
    """Measure an edit: on paraphrases that the edit has not seen, and on all other facts."""
    paraphrases = world.prompts([fact], range(EDIT_TEMPLATES, len(TEMPLATES[fact.relation])))
    others = [one for one in world.facts if one != fact]
    same_person = [one for one in others if one.person == fact.person]
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
        value = generator.choice([one for one in VALUES[fact.relation] if one != fact.value])
        edited = edit_fact(model, world, fact, value, generator.choice(layers))
        reports.append(measure_edit(model, edited, world, fact, value))
    return EditReport(
        success=sum(one.success for one in reports) / len(reports),
        others_changed=sum(one.others_changed for one in reports) / len(reports),
        same_person_changed=sum(one.same_person_changed for one in reports) / len(reports),
    )
