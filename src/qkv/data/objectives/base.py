"""What every objective provides: encoded records seen as training examples whose lengths are known in advance.

Packing needs only `lengths`; tokens are read when a batch is built. Both are pure functions of the examples' numbers
and of an `EpochRng` (seed and epoch), for many examples at once.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.ragged import IntArray
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError, suggest_name

IGNORE_INDEX = -100  # the label of a position that the loss ignores

TooLongPolicy = Literal["error", "skip", "truncate", "split"]


@dataclass
class FlatExamples:
    """n training examples, each field concatenated over them. `source_…` is what an encoder reads for a decoder.

    `labels[i]` is the token id to predict at position i, or `IGNORE_INDEX`. Each example may also have a class, a
    score, or the first and last position of an answer, counted from the start of the example.
    """

    lengths: IntArray  # (n,)
    ids: IntArray  # (sum of lengths,)
    labels: IntArray | None = None  # (sum of lengths,)
    token_type_ids: IntArray | None = None  # (sum of lengths,) 0 for the first text, 1 for BERT's second
    source_lengths: IntArray | None = None  # (n,)
    source_ids: IntArray | None = None  # (sum of source_lengths,)
    class_ids: IntArray | None = None  # (n,)
    scores: np.ndarray | None = None  # (n,) float32
    answer_spans: IntArray | None = None  # (n, 2)


@dataclass
class Tally:
    """What became of the records: everything that is left out or truncated is counted here.

    >>> print(Tally(records=10, examples=12, tokens=5000, split=2))
    10 records give 12 examples of 5,000 tokens an epoch; 2 split
    """

    records: int = 0
    examples: int = 0  # training examples in an epoch
    tokens: int = 0  # their tokens without special tokens, source and target together
    split: int = 0  # records that give several examples
    empty: int = 0  # records without anything to learn from
    skipped: int = 0  # records left out because they are too long
    truncated: int = 0  # records shortened because they are too long
    lost_tokens: int = 0  # tokens of skipped and truncated records that are not trained on

    def to_dict(self) -> dict[str, int]:
        """The counts by name, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        text = f"{self.records:,} records give {self.examples:,} examples of {self.tokens:,} tokens an epoch"
        counts = [
            f"{getattr(self, name):,} {name}"
            for name in ("split", "empty", "skipped", "truncated")
            if getattr(self, name)
        ]
        if self.lost_tokens:
            counts.append(f"{self.lost_tokens:,} tokens lost")
        return f"{text}; {', '.join(counts)}" if counts else text


class Objective(Protocol):
    """Encoded records seen as training examples."""

    @property
    def examples(self) -> EncodedExamples:
        """The encoded records."""
        ...

    @property
    def capacity(self) -> tuple[int, ...]:
        """The longest sequence: (max_length,), or (max_length, max_source_length) where there is a source."""
        ...

    @property
    def optional_fields(self) -> frozenset[str]:
        """The optional fields of `FlatExamples` that are set; "source" stands for both source fields."""
        ...

    @property
    def tally(self) -> Tally:
        """What became of the records."""
        ...

    @property
    def pad_token_id(self) -> int:
        """The id that fills up sequences."""
        ...

    def num_examples(self, rng: EpochRng) -> int:
        """The number of training examples in an epoch; with a random offset of windows it varies a little."""
        ...

    def lengths(self, examples: IntArray, rng: EpochRng) -> IntArray:
        """(n,) examples → (n, sides): the lengths of target and source (if any); 0 for one that is left out."""
        ...

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """The examples themselves; never called with one whose lengths are 0."""
        ...

    def origin(self, example: int, rng: EpochRng) -> str:
        """Where an example comes from, for messages: "record 12, tokens 1024–2047"."""
        ...


def check_choice(key: str, value: str, allowed: Sequence[str]) -> None:
    """Raise an error if a named choice is not one of the allowed values."""
    if value not in allowed:
        raise UsageError(f"{key} = {value!r} is not possible here; {suggest_name(value, allowed)}")


def check_length(key: str, value: int, minimum: int) -> None:
    """Raise an error if a sequence length is too short for the smallest possible example."""
    if value < minimum:
        raise UsageError(f"{key} = {value} is too short: this objective needs at least {minimum} tokens in a sequence")


def require_token(role: str, token_id: int | None, objective: str) -> int:
    """The id of a special token that an objective cannot work without."""
    if token_id is None:
        raise UsageError(f"{objective} needs a tokenizer with a {role!r} token; train or load one that has it")
    return token_id


def too_long_error(
    is_too_long: np.ndarray, lengths: Sequence[tuple[str, np.ndarray, int]], allowed: Sequence[str]
) -> QkvError:
    """The error for records that do not fit: how many, the longest of them, and what to change.

    `lengths` holds, for each side of the sequences, the name of its limit, every record's length, and the limit.
    """
    name, needed, limit = max(lengths, key=lambda side: float(side[1].max() / side[2]))
    longest = int(needed.argmax())
    choices = " or ".join(f'"{choice}"' for choice in allowed if choice != "error")
    return QkvError(
        f"{int(is_too_long.sum()):,} of {len(is_too_long):,} records are too long: the longest, record {longest:,}, "
        f"needs {int(needed[longest]):,} tokens, and {name} is {limit:,}. Raise {name}, or set too_long = {choices}"
    )


def describe_record(examples: EncodedExamples, record: int, start: int | None = None, length: int = 0) -> str:
    """A record, or a range of its tokens, in words; with its file and line where these are known."""
    location = getattr(examples, "location", None)
    name = f"record {record}" if location is None else f"record {record} ({location(record)})"
    return name if start is None else f"{name}, tokens {start}–{start + length - 1}"
