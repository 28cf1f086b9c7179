"""A small world: people, the facts about them, and prompts that ask for a fact."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qkv.errors import UsageError

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


def make_world(
    num_first_names: int = 6,
    num_last_names: int = 6,
    relations: Sequence[str] = tuple(TEMPLATES),
    *,
    seed: int = 0,
) -> FactWorld:
    """Make up a person for each pair of a first name and a last name, and random facts about each person.

    The values of a relation are equally frequent, so that a model learns to say each of them.
    """
    for name, count, names in (
        ("num_first_names", num_first_names, FIRST_NAMES),
        ("num_last_names", num_last_names, LAST_NAMES),
    ):
        if not 1 <= count <= len(names):
            raise UsageError(f"{name} = {count} must lie in 1 … {len(names)}")
    people = [f"{first} {last}" for first in FIRST_NAMES[:num_first_names] for last in LAST_NAMES[:num_last_names]]
    generator, facts = random.Random(seed), []
    for relation in relations:
        values = [VALUES[relation][number % len(VALUES[relation])] for number in range(len(people))]
        generator.shuffle(values)
        facts += [Fact(person, relation, value) for person, value in zip(people, values, strict=True)]
    return FactWorld(tuple(facts))
