"""Entities in tagged words: an entity counts only if its whole span and its type are right, as in CoNLL's conlleval.

Tags are `O`, or a prefix and a type: `B-PER` begins an entity and `I-PER` continues it. Some datasets also have `E-`
(or `L-`) for the last word of an entity and `S-` (or `U-`) for an entity of one word.

Models also predict tags in an impossible order, such as an `I-` that does not follow an entity of its type. There are
two ways to count them, and for a weak model they differ by a few points of F1:

    default    such an `I-` begins an entity, as if it were `B-`: CoNLL's conlleval, and seqeval's default
    strict     only entities whose tags follow the scheme (IOB2, IOBES or BILOU) count: seqeval with mode="strict"
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter

from qkv.tasks.metrics.bootstrap import Score
from qkv.tasks.metrics.labels import ClassCounts

Entity = tuple[int, int, str]  # index of the first word, index one past the last word, type

PREFIXES = "BIESLU"
BEGIN_PREFIXES, END_PREFIXES = "BSU", "ESLU"
SINGLE_PREFIXES = "SU"


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


def extract_strict_entities(tags: Sequence[str], marks_ends: bool) -> list[Entity]:
    """The entities of a sentence whose tags follow the scheme. With `marks_ends`, an entity needs an end tag.

    >>> extract_strict_entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"], marks_ends=False)
    [(0, 2, 'PER'), (4, 5, 'LOC')]
    """
    found: list[Entity] = []
    for begin, end, kind in extract_entities(tags):
        first, last = tags[begin][0], tags[end - 1][0]
        if marks_ends and end - begin == 1:
            follows_scheme = first in SINGLE_PREFIXES
        else:
            follows_scheme = first == "B" and (last in END_PREFIXES or not marks_ends)
        if follows_scheme:
            found.append((begin, end, kind))
    return found


def entity_counts(
    predictions: Sequence[Sequence[str]], expected: Sequence[Sequence[str]], *, strict: bool = False
) -> ClassCounts:
    """The counts of each type of entity; `strict` is explained at the top of this file."""
    for number, (tags, wanted) in enumerate(zip(predictions, expected, strict=True), 1):
        if len(tags) != len(wanted):
            raise ValueError(f"sentence {number}: {len(tags)} predicted tags, but {len(wanted)} expected tags")
    # Tags that mark the last word of an entity (IOBES, BILOU): an entity without such a tag is incomplete.
    marks_ends = any(tag[0] in END_PREFIXES and tag[1:2] == "-" for tags in (*expected, *predictions) for tag in tags)

    def extract(tags: Sequence[str]) -> list[Entity]:
        return extract_strict_entities(tags, marks_ends) if strict else extract_entities(tags)

    return ClassCounts(list(map(extract, predictions)), list(map(extract, expected)), class_of=itemgetter(2))


def entity_scores(predictions: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> dict[str, Score]:
    """Precision, recall and F1 of the entities of all sentences, and F1 as seqeval counts it with mode="strict".

    >>> entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O"]])["f1"]
    0.0
    """
    counts = entity_counts(predictions, expected)
    return {
        "f1": counts.micro_f1(),
        "precision": counts.precision(),
        "recall": counts.recall(),
        "strict_f1": entity_counts(predictions, expected, strict=True).micro_f1(),
    }
