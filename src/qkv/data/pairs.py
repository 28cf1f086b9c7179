"""Pairs of texts from single texts with a label or a score, so that embeddings can be learned from such data.

The score of a pair is 1 if both texts have the same label, else 0; or, for texts with scores, 1 minus the difference of
their scores as a fraction of the range of all scores. The first text then has the lower score. The pairs are always the
same. They are made after the data is split, so a text of the validation data is in no pair of the training data.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from random import Random

from qkv.data.labels import label_text
from qkv.data.modalities import parse_number
from qkv.data.problems import InvalidRecord, Problems
from qkv.data.records import Record

PARTNERS = 8  # of each text
MAX_TEXTS = 100_000  # texts in memory: partners are among them


def pair_records(records: Iterable[Record], by: str, problems: Problems) -> Iterator[Record]:
    """Pairs of records with the field `first` and the field `by` ("label" or "score"): `first`, `second` and `score`.

    Every text has `PARTNERS` partners at random. By label, every second one has the same label, if there is one.
    """
    remaining = iter(records)
    while chunk := list(islice(remaining, MAX_TEXTS)):
        texts, values = [], []
        for record in chunk:
            try:
                values.append(label_text(record.fields.get(by)) if by == "label" else parse_number(record, by))
                texts.append(record)
            except InvalidRecord as invalid:
                problems.leave_out(invalid, record.location)
        numbers = [value for value in values if isinstance(value, float)]
        scale = max(numbers, default=0.0) - min(numbers, default=0.0) or 1.0
        rng = Random(0)
        for turn in range(PARTNERS):
            groups = values if by == "label" and turn % 2 else [""] * len(values)
            for i, j in zip(range(len(texts)), shuffle_within(groups, rng), strict=True):
                if i == j:
                    continue
                a, b = values[i], values[j]
                is_number = isinstance(a, float) and isinstance(b, float)
                score = 1 - abs(a - b) / scale if is_number else float(a == b)  # type: ignore[operator]
                if is_number and a > b:  # type: ignore[operator]
                    i, j = j, i
                fields = {"first": texts[i].fields["first"], "second": texts[j].fields["first"], "score": score}
                yield Record(fields, texts[i].location)


def shuffle_within(groups: Sequence[object], rng: Random) -> list[int]:
    """A random partner of the same group for each index; the index itself if it is alone.

    >>> shuffle_within(["a", "b", "a"], Random(0))
    [2, 1, 0]
    """
    members: defaultdict[object, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    partner = [0] * len(groups)
    for indices in members.values():
        rng.shuffle(indices)
        for index, following in zip(indices, [*indices[1:], indices[0]], strict=True):
            partner[index] = following
    return partner
