"""English sentences of a small grammar, with the part of speech, the relation and the head of each word.

    the guards near the old tower watch the cook .

Verbs agree with their subjects. Other nouns may stand between a subject and its verb, in a prepositional phrase or in a
relative clause. Many words are nouns and verbs (`guards`, `watch`, `cook`), so that only the context tells which. Tags
and relations follow Universal Dependencies.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

NOUNS = (
    "dog",
    "girl",
    "bird",
    "teacher",
    "car",
    "king",
    "tree",
    "book",
    "house",
    "city",
    "doctor",
    "river",
    "horse",
    "boat",
    "garden",
    "tower",
)
VERBS = ("see", "know", "hear", "find", "like", "want", "keep", "follow", "bring", "choose")
NOUNS_AND_VERBS = (
    "guard",
    "cook",
    "guide",
    "love",
    "walk",
    "help",
    "watch",
    "visit",
    "answer",
    "call",
    "judge",
    "farm",
)
ADJECTIVES = ("old", "young", "small", "big", "happy", "tired", "green", "clever", "quiet", "strange")
PREPOSITIONS = ("near", "behind", "with", "in", "beside", "without")
ADVERBS = ("often", "never", "always", "rarely")
ROOT = -1


class GrammarWord(NamedTuple):
    """A word: its part of speech, its relation to its head, and the position of its head (`ROOT`: it has none)."""

    text: str
    tag: str
    relation: str
    head: int


@dataclass(frozen=True)
class Lexicon:
    """The words of some sentences. Function words are in every lexicon."""

    nouns: tuple[str, ...] = NOUNS + NOUNS_AND_VERBS
    verbs: tuple[str, ...] = VERBS + NOUNS_AND_VERBS
    adjectives: tuple[str, ...] = ADJECTIVES


def split_lexicon() -> tuple[Lexicon, Lexicon]:
    """Two lexicons without a common noun, verb or adjective: a probe cannot know the words of the second by heart."""
    halves = ([words[start::2] for words in (NOUNS, VERBS, NOUNS_AND_VERBS, ADJECTIVES)] for start in (0, 1))
    first, second = (Lexicon(nouns + both, verbs + both, adjectives) for nouns, verbs, both, adjectives in halves)
    return first, second


def make_sentences(count: int, seed: int, lexicon: Lexicon | None = None) -> list[list[GrammarWord]]:
    """Random sentences."""
    generator = random.Random(seed)
    return [list(_SentenceWriter(generator, lexicon or Lexicon()).write()) for _ in range(count)]


def join_words(words: Sequence[GrammarWord]) -> str:
    """The text of a sentence."""
    return " ".join(word.text for word in words)


def inflect(stem: str, has_s: bool) -> str:
    """A noun in the plural, or a verb in the third person singular.

    >>> inflect("dog", True), inflect("watch", True), inflect("city", True), inflect("see", False)
    ('dogs', 'watches', 'cities', 'see')
    """
    if not has_s:
        return stem
    if stem.endswith("y") and stem[-2] not in "aeiou":
        return stem[:-1] + "ies"
    return stem + ("es" if stem.endswith(("ch", "sh", "s", "x")) else "s")


def change_number(verb: str) -> str:
    """The other form of a verb.

    >>> change_number("watches"), change_number("see")
    ('watch', 'sees')
    """
    forms = {inflect(stem, True): stem for stem in Lexicon().verbs}
    return forms.get(verb) or inflect(verb, True)


@dataclass
class _SentenceWriter:
    """A sentence that is being written."""

    generator: random.Random
    lexicon: Lexicon
    words: list[list[object]] = field(default_factory=list)  # text, tag, relation, head

    def write(self) -> Iterator[GrammarWord]:
        """Subject, verb, object or adverb, full stop."""
        subject, is_plural = self.add_noun_phrase("nsubj", depth=0)
        verb = self.add_verb(is_plural, "root", ROOT)
        self.words[subject][3] = verb
        if self.generator.random() < 0.75:
            found, _ = self.add_noun_phrase("obj", depth=1)
            self.words[found][3] = verb
        self.add(".", "PUNCT", "punct", verb)
        return (GrammarWord(*word) for word in self.words)  # type: ignore[arg-type]

    def add(self, text: str, tag: str, relation: str, head: int) -> int:
        self.words.append([text, tag, relation, head])
        return len(self.words) - 1

    def add_verb(self, is_plural: bool, relation: str, head: int) -> int:
        """A verb that agrees with its subject, often with an adverb before it."""
        adverb = None
        if self.generator.random() < 0.25:
            adverb = self.add(self.generator.choice(ADVERBS), "ADV", "advmod", ROOT)
        verb = self.add(inflect(self.generator.choice(self.lexicon.verbs), not is_plural), "VERB", relation, head)
        if adverb is not None:
            self.words[adverb][3] = verb
        return verb

    def add_noun_phrase(self, relation: str, depth: int) -> tuple[int, bool]:
        """A noun with a determiner, sometimes an adjective, and a phrase or clause after it: its position, its number.

        The head of the noun is set later, when the position of the verb is known.
        """
        generator, is_plural = self.generator, self.generator.random() < 0.5
        before = [self.add("the", "DET", "det", ROOT)]
        if generator.random() < 0.3:
            before.append(self.add(generator.choice(self.lexicon.adjectives), "ADJ", "amod", ROOT))
        noun = self.add(inflect(generator.choice(self.lexicon.nouns), is_plural), "NOUN", relation, ROOT)
        for word in before:
            self.words[word][3] = noun
        if depth < 2 and generator.random() < 0.4:
            add_modifier = self.add_prepositional_phrase if generator.random() < 0.6 else self.add_relative_clause
            add_modifier(noun, is_plural, depth)
        return noun, is_plural

    def add_prepositional_phrase(self, noun: int, is_plural: bool, depth: int) -> None:
        """`near the tower`."""
        preposition = self.add(self.generator.choice(PREPOSITIONS), "ADP", "case", ROOT)
        inner, _ = self.add_noun_phrase("nmod", depth + 1)
        self.words[preposition][3], self.words[inner][3] = inner, noun

    def add_relative_clause(self, noun: int, is_plural: bool, depth: int) -> None:
        """`that the cook sees` or `that sees the cook`: the pronoun is the object or the subject of the clause."""
        pronoun = self.add("that", "PRON", "obj", ROOT)
        if self.generator.random() < 0.5:
            inner, inner_plural = self.add_noun_phrase("nsubj", depth=2)
            verb = self.add_verb(inner_plural, "acl", noun)
        else:
            self.words[pronoun][2] = "nsubj"
            verb = self.add_verb(is_plural, "acl", noun)
            inner, _ = self.add_noun_phrase("obj", depth=2)
        self.words[pronoun][3], self.words[inner][3] = verb, verb
