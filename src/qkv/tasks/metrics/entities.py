"""Entities in tagged words: an entity counts only if its whole span and its type are right, as in CoNLL's conlleval.

Tags are `O`, or a prefix and a type: `B-PER` begins an entity and `I-PER` continues it. Some data sets also have `E-`
(or `L-`) for the last word of an entity and `S-` (or `U-`) for an entity of one word. An `I-` that does
not follow an entity of its type begins an entity, as if it were `B-`. conlleval does the same; for a weak model this
rule changes F1 by a few points.
"""

from collections.abc import Iterable, Sequence

Entity = tuple[int, int, str]  # index of the first word, index one past the last word, type

PREFIXES = "BIESLU"
BEGIN_PREFIXES, END_PREFIXES = "BSU", "ESLU"


def is_entity_tagging(tags: Iterable[str]) -> bool:
    """Whether the tags are BIO tags, and not plain classes such as parts of speech.

    >>> is_entity_tagging(["O", "B-PER", "I-PER"]), is_entity_tagging(["NOUN", "VERB"]), is_entity_tagging(["O"])
    (True, False, False)
    """
    marked = [tag for tag in tags if tag != "O"]
    return bool(marked) and all(len(tag) > 2 and tag[0] in PREFIXES and tag[1] == "-" for tag in marked)


def extract_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, in order.

    >>> extract_entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [(0, 2, 'PER'), (3, 4, 'LOC'), (4, 5, 'LOC')]
    """
    found: list[Entity] = []
    begin, before, kind_before = 0, "O", ""
    for position, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        continues = (
            before != "O"
            and before not in END_PREFIXES
            and mark not in BEGIN_PREFIXES
            and mark != "O"
            and kind == kind_before
        )
        if before != "O" and not continues:
            found.append((begin, position, kind_before))
        if mark != "O" and not continues:
            begin = position
        before, kind_before = mark, kind
    return found


def entity_scores(predictions: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of the entities of all sentences. An entity is right if its span and its type are right.

    >>> entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O"]])["f1"]
    0.0
    """
    right = num_predicted = num_expected = 0
    for number, (tags, wanted) in enumerate(zip(predictions, expected, strict=True), 1):
        if len(tags) != len(wanted):
            raise ValueError(f"sentence {number}: {len(tags)} predicted tags, but {len(wanted)} expected tags")
        ours, theirs = set(extract_entities(tags)), set(extract_entities(wanted))
        right += len(ours & theirs)
        num_predicted += len(ours)
        num_expected += len(theirs)
    total = num_predicted + num_expected
    return {
        "f1": 2 * right / total if total else 0.0,
        "precision": right / num_predicted if num_predicted else 0.0,
        "recall": right / num_expected if num_expected else 0.0,
    }
