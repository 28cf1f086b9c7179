"""The base class of objectives: an objective turns encoded records into training examples.

Packing needs only the lengths of the examples. Their tokens are read when a batch is built. Both methods, `lengths` and
`build`, are pure functions of the numbers of the examples and of an `EpochRng` (seed and epoch).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.payloads import FlatPayloads, PayloadSlot
from qkv.data.ragged import IntArray
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError, suggest_name
from qkv.text import Tokenizer

IGNORE_INDEX = -100  # the label of a position that the loss ignores

TooLongPolicy = Literal["error", "skip", "truncate", "split"]


@dataclass(frozen=True)
class Label:
    """A kind of label that the examples of an objective have. The loss is divided by the number of labels.

    A label belongs to a token, or to a document, which is an example in a sequence. Where there is nothing to learn, an
    integer is `IGNORE_INDEX`, and a float is NaN.
    """

    name: str
    per: Literal["token", "document"]
    dtype: Literal["int32", "float32"] = "int32"
    width: int = 0  # the label is a vector with this number of values; 0: it is one number
    is_position: bool = False  # a position in the example; in a batch, the position in the sequence
    is_counted: bool = True  # False if another label of the same token or document is counted
    counts_values: bool = False  # the label is a sequence of up to `width` labels, and each of them is counted

    @property
    def fill_value(self) -> float:
        """The value where there is no label."""
        return IGNORE_INDEX if self.dtype == "int32" else float("nan")

    def count(self, values: np.ndarray) -> IntArray:
        """The number of labels in each sequence of a batch: (B, T or E, …) → (B,)."""
        is_label = np.isfinite(values) & (values != self.fill_value)
        if self.width and not self.counts_values:
            is_label = is_label.any(axis=-1)
        counts: IntArray = is_label.reshape(len(values), -1).sum(axis=1)
        return counts


TOKEN_LABELS = Label("tokens", "token")
"""The class of each token: the id to predict, or its tag. Logits are computed only where there is a label."""


@dataclass
class FlatExamples:
    """n training examples. Each field is concatenated over the examples. `source_…` is the input of an encoder.

    `labels` has the labels that the objective declares: (sum of lengths, …) for tokens, (n, …) for documents.
    """

    lengths: IntArray  # (n,)
    ids: IntArray  # (sum of lengths,)
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    token_type_ids: IntArray | None = None  # (sum of lengths,) 0 for the first text, 1 for the second in BERT
    source_lengths: IntArray | None = None  # (n,)
    source_ids: IntArray | None = None  # (sum of source_lengths,)
    positions: IntArray | None = None  # (sum of lengths,); None: 0, 1, 2, … in each example
    payloads: Sequence[FlatPayloads] = ()  # one for each slot that the objective declares


@dataclass
class ExampleCounts:
    """Counts of records, examples and tokens, including everything that was left out or truncated.

    >>> print(ExampleCounts(records=10, examples=12, tokens=5000, split=2))
    10 records give 12 examples of 5,000 tokens an epoch; 2 split
    """

    records: int = 0
    examples: int = 0  # the number of training examples in an epoch
    tokens: int = 0  # tokens of the examples without special tokens, source and target together
    split: int = 0  # the number of records that give several examples
    empty: int = 0  # the number of records with nothing to learn from
    skipped: int = 0  # the number of records left out because they are too long
    truncated: int = 0  # the number of records shortened because they are too long
    lost_tokens: int = 0  # tokens of skipped and truncated records that are not used

    def to_dict(self) -> dict[str, int]:
        """The counts by name, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        records = "1 record gives" if self.records == 1 else f"{self.records:,} records give"
        examples = "1 example" if self.examples == 1 else f"{self.examples:,} examples"
        text = f"{records} {examples} of {self.tokens:,} tokens an epoch"
        counts = [
            f"{getattr(self, name):,} {name}"
            for name in ("split", "empty", "skipped", "truncated")
            if getattr(self, name)
        ]
        if self.lost_tokens:
            counts.append(f"{self.lost_tokens:,} tokens lost")
        return f"{text}; {', '.join(counts)}" if counts else text


class Objective(ABC):
    """Turns encoded records into training examples. A subclass sets the attributes that are declared here."""

    name: str  # the name of its row in the table of objectives, which has the loss
    max_lengths: tuple[int, ...]  # the maximum length: (max_length,), or (max_length, max_source_length)
    labels: tuple[Label, ...] = (TOKEN_LABELS,)  # the kinds of labels; empty: each example counts
    has_token_types: bool = False
    payloads: tuple[PayloadSlot, ...] = ()  # payloads in the sequences
    counts: ExampleCounts

    def __init__(self, examples: EncodedExamples, tokenizer: Tokenizer, *fields: str):
        """`fields` are the encoded fields that the objective reads."""
        require_fields(examples, *fields)
        self.examples = examples
        self.pad_token_id = tokenizer.special_tokens.pad or 0

    @abstractmethod
    def num_examples(self, rng: EpochRng) -> int:
        """The number of training examples in an epoch. It may vary if windows have a random offset."""

    @abstractmethod
    def lengths(self, examples: IntArray, rng: EpochRng) -> IntArray:
        """(n,) examples → (n, sides): the lengths of target and source (if any), 0 for examples that are left out."""

    @abstractmethod
    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Build the examples. It is never called with an example that is left out."""

    def describe_labels(
        self, ids: IntArray, labels: Mapping[str, np.ndarray], decode: Callable[[Any], str], classes: Sequence[str]
    ) -> dict[str, str]:
        """The labels of one example as texts, for `--dry-run`. Positions are counted from the start of the example."""
        return {"target": decode(labels["tokens"][labels["tokens"] != IGNORE_INDEX])}

    @abstractmethod
    def origin(self, example: int, rng: EpochRng) -> str:
        """Describe the record of an example, for messages: "record 12, tokens 1024–2047"."""


def check_choice(key: str, value: str, allowed: Sequence[str]) -> None:
    """Raise an error if a named choice is not one of the allowed values."""
    if value not in allowed:
        raise UsageError(f"{key} = {value!r} is not a valid choice; {suggest_name(value, allowed)}")


def check_length(key: str, value: int, minimum: int) -> None:
    """Raise an error if a sequence length is too short for the smallest possible example."""
    if value < minimum:
        raise UsageError(
            f"{key} = {value} is too small: a sequence of this objective needs at least {minimum} tokens; raise {key}"
        )


def require_token(role: str, token_id: int | None, objective: str) -> int:
    """Return the id of a special token, or raise if the tokenizer has no such token."""
    if token_id is None:
        raise UsageError(
            f"{objective} needs a {role!r} token, which this tokenizer lacks; train or load a tokenizer that has one"
        )
    return token_id


def too_long_error(
    is_too_long: np.ndarray, lengths: Sequence[tuple[str, np.ndarray, int]], allowed: Sequence[str]
) -> QkvError:
    """The error for records that are too long. It has their number, the longest of them, and what to change.

    `lengths` has one entry for the target and, if there is one, the source: (name of the limit, length of each record,
    limit).
    """
    name, needed, limit = max(lengths, key=lambda side: float(side[1].max() / side[2]))
    longest = int(needed.argmax())
    choices = " or ".join(f'"{choice}"' for choice in allowed if choice != "error")
    return QkvError(
        f"{int(is_too_long.sum()):,} of {len(is_too_long):,} records are too long: the longest, record {longest:,}, "
        f"needs {int(needed[longest]):,} tokens, and {name} is {limit:,}. Raise {name}, or set too_long = {choices}"
    )


def describe_record(examples: EncodedExamples, record: int, start: int | None = None, length: int = 0) -> str:
    """Describe a record, or a range of its tokens, with its file and line if they are known."""
    location = getattr(examples, "location", None)
    name = f"record {record}" if location is None else f"record {record} ({location(record)})"
    return name if start is None else f"{name}, tokens {start}–{start + length - 1}"
