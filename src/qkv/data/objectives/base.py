"""What every objective is: a view of encoded examples as training examples, with lengths known before they are made.

Packing needs only `lengths`; tokens are read when a batch is built. Both are pure functions of the examples' numbers
and of a `Draw` (seed and epoch), for many examples at once.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.ragged import Ints
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError, suggest_name

IGNORE_INDEX = -100  # a label place that is not trained on

TooLongPolicy = Literal["error", "skip", "truncate", "split"]


@dataclass
class FlatExamples:
    """n training examples, each field laid end to end. `source_…` is the encoder's side of pairs.

    `labels[i]` is what the model should say at place i: an id, or `IGNORE`. Per example: a class, a score, and the
    first and last place of an answer counted inside the example.
    """

    lengths: Ints  # (n,)
    ids: Ints  # (sum of lengths,)
    labels: Ints | None = None  # (sum of lengths,)
    token_type_ids: Ints | None = None  # (sum of lengths,) 0 for the first text, 1 for BERT's second
    source_lengths: Ints | None = None  # (n,)
    source_ids: Ints | None = None  # (sum of source_lengths,)
    class_ids: Ints | None = None  # (n,)
    scores: np.ndarray | None = None  # (n,) float32
    answer_spans: Ints | None = None  # (n, 2)


@dataclass
class Tally:
    """What became of the records: nothing is left out or cut without being counted here.

    >>> print(Tally(records=10, examples=12, tokens=5000, split=2))
    10 records give 12 examples of 5,000 tokens an epoch; 2 split
    """

    records: int = 0
    examples: int = 0  # training examples in an epoch
    tokens: int = 0  # the tokens of text in them, source and target together
    split: int = 0  # records that give several examples
    empty: int = 0  # records in which there is nothing to learn from
    skipped: int = 0  # records left out because they are too long
    truncated: int = 0  # records shortened because they are too long
    lost_tokens: int = 0  # tokens not trained on because their records were skipped or cut

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    def __str__(self) -> str:
        text = f"{self.records:,} records give {self.examples:,} examples of {self.tokens:,} tokens an epoch"
        names = {
            "split": "split",
            "empty": "empty",
            "skipped": "skipped",
            "truncated": "truncated",
            "lost_tokens": "tokens lost",
        }
        notes = ", ".join(f"{value:,} {told}" for name, told in names.items() if (value := getattr(self, name)))
        return f"{text}; {notes}" if notes else text


class Objective(Protocol):
    """Encoded examples seen as training examples.

    `capacity` is (row length,), or (target row length, source row length) for pairs. `outputs` names the optional parts
    of `Pieces` that it makes. `count` may differ a little between epochs where windows are shifted.
    """

    @property
    def examples(self) -> EncodedExamples: ...
    @property
    def capacity(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> frozenset[str]: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def pad_token_id(self) -> int: ...

    def num_examples(self, rng: EpochRng) -> int:
        """How many training examples an epoch has."""
        ...

    def lengths(self, examples: Ints, rng: EpochRng) -> Ints:
        """(n,) examples → (n, streams): the places each takes in its rows; all 0 where it is left out."""
        ...

    def build(self, examples: Ints, rng: EpochRng) -> FlatExamples:
        """The examples themselves. Never asked for one whose lengths are 0."""
        ...

    def origin(self, example: int, rng: EpochRng) -> str:
        """Where an example comes from, for messages: "record 12, tokens 1024–2047"."""
        ...


def check_choice(key: str, value: str, allowed: Sequence[str]) -> None:
    """Raise where a named choice is none of the allowed ones."""
    if value not in allowed:
        raise UsageError(f"{key} = {value!r} is not possible here; {suggest_name(value, allowed)}")


def check_length(key: str, value: int, minimum: int) -> None:
    """Raise where a row length cannot hold even the smallest example."""
    if value < minimum:
        raise UsageError(f"{key} = {value} is too short: this objective needs at least {minimum} places in a row")


def require_token(role: str, token_id: int | None, objective: str) -> int:
    """The id of a special token without which an objective cannot work."""
    if token_id is None:
        raise UsageError(
            f"{objective} needs a tokenizer with a token for the role {role!r}; train or load one that has it"
        )
    return token_id


def too_long_error(
    is_too_long: np.ndarray, sizes: Sequence[tuple[str, np.ndarray, int]], allowed: Sequence[str]
) -> QkvError:
    """The error for records that do not fit: how many, which is the worst, and what can be done.

    `sizes` holds, for each kind of row, its name, the places every record needs there, and the places there are.
    """
    name, needed, limit = max(sizes, key=lambda size: float(size[1].max() / size[2]))
    worst = int(needed.argmax())
    choices = " or ".join(f'"{choice}"' for choice in allowed if choice != "error")
    return QkvError(
        f"{int(is_too_long.sum()):,} of {len(is_too_long):,} records are too long; the longest, record {worst:,}, needs "
        f"{int(needed[worst]):,} places and {name} is {limit:,}. Raise {name}, or set too_long = {choices}"
    )


def describe_record(examples: EncodedExamples, record: int, start: int | None = None, length: int = 0) -> str:
    """A record, or some of its tokens, in words; with the file and line where the examples know them."""
    where = getattr(examples, "location", None)
    told = f"record {record}" if where is None else f"record {record} ({where(record)})"
    return told if start is None else f"{told}, tokens {start}–{start + length - 1}"
