"""Entities in tagged words: whole spans with their type, counted strictly, as CoNLL's conlleval does.

Tags are `O`, or a prefix and a type: `B-PER` begins an entity and `I-PER` continues it. Some data sets also have `E-`
(or `L-`) for the last word of an entity and `S-` (or `U-`) for an entity of one word. An `I-` without an entity of its
type before it begins an entity, as if it were `B-`: so does conlleval, and it makes a few points of difference for
models that are not well trained.
"""

from collections.abc import Iterable, Sequence

Entity = tuple[int, int, str]  # first word, one past the last, kind

PREFIXES = "BIESLU"
BEGIN_PREFIXES, END_PREFIXES = "BSU", "ESLU"


def is_entity_tagging(tags: Iterable[str]) -> bool:
    """Whether these are BIO tags, not plain classes such as parts of speech.

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
    for place, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        going_on = (
            before != "O"
            and before not in END_PREFIXES
            and mark not in BEGIN_PREFIXES
            and mark != "O"
            and kind == kind_before
        )
        if before != "O" and not going_on:
            found.append((begin, place, kind_before))
        if mark != "O" and not going_on:
            begin = place
        before, kind_before = mark, kind
    return found


def entity_scores(predictions: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of entities over all sentences: an entity is right if its span and its type are.

    >>> entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O"]])["f1"]
    0.0
    """
    right = found = there = 0
    for tags, wanted in zip(predictions, expected, strict=True):
        if len(tags) != len(wanted):
            raise ValueError(f"{len(tags)} tags for {len(wanted)} words")
        ours, theirs = set(extract_entities(tags)), set(extract_entities(wanted))
        right, found, there = right + len(ours & theirs), found + len(ours), there + len(theirs)
    return {
        "f1": 2 * right / (found + there) if found + there else 0.0,
        "precision": right / found if found else 0.0,
        "recall": right / there if there else 0.0,
    }
