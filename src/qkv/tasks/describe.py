"""What a recipe would do, without doing it: what `qkv train RECIPE --dry-run` shows.

The data is read and tokenised, as training would (and finds it done), so what is told of it is measured. Memory is an
estimate.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qkv.data.batch import Batch
from qkv.data.fill import fill
from qkv.data.objectives import IGNORE
from qkv.models.account import Account, account
from qkv.tasks.prepare import Prepared, prepare
from qkv.tasks.prepare_data import Progress
from qkv.tasks.prepare_memory import Memory, memory
from qkv.text import Tokenizer
from qkv.train.recipe import Recipe
from qkv.train.recipe_file import to_toml
from qkv.train.world import own_device

WINDOWS = 4  # of the data's order, that shares and counts are measured on
EXAMPLES = 3
SHOWN = 400  # characters of an example


@dataclass(frozen=True)
class Example:
    """A training example as the model will see it: what stands in its rows, as text, special tokens spelt out."""

    origin: str
    parts: dict[str, str]  # source, input, target (what is to be said), class, score, answer


@dataclass(frozen=True)
class Description:
    """Everything `--dry-run` shows."""

    recipe: str  # TOML, every key with its value
    family: str
    head: str
    labels: tuple[str, ...]
    account: Account
    memory: Memory
    tokenizer: int  # pieces
    records: int
    examples: int  # in an epoch
    tokens: int  # of text, in an epoch
    rows: tuple[int, ...]  # the length of a row: target, source
    rows_a_step: float
    steps_an_epoch: int | None  # about; None for a mixture, whose sources have epochs of their own
    padding: float  # the share of places without a token
    validation: int  # examples
    budget: dict[str, float]
    first: tuple[Example, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        plain = {name: value for name, value in asdict(self).items() if name not in ("account", "memory")}
        return {**plain, "account": self.account.to_dict(), "memory": self.memory.to_dict()}


def describe(recipe: Recipe, progress: Progress | None = None) -> Description:
    """What training by a recipe would be."""
    own_device(recipe.train.device, local_rank=0, size=1)  # refused here as it would be then
    return description_of(prepare(recipe, progress))


def description_of(prepared: Prepared) -> Description:
    """What training with all this would be."""
    recipe, rows, config = prepared.recipe, prepared.rows, prepared.config
    batch = first_batch(prepared)
    units, rows_in_units, real, places = _measured(prepared)
    windows = None if recipe.data.mix else rows.order.windows(1)
    steps = None
    if windows is not None:
        a_step = rows.batch_rows if rows.layout == "packed" else 1
        steps = max(1, round(windows * units / WINDOWS / a_step))
    share = batch.label_count / batch.labels.numel() if batch.labels is not None else 0.0
    tallies = [objective.tally for objective in rows.objectives]
    valid = prepared.valid_rows
    return Description(
        recipe=to_toml(recipe),
        family=config.family,
        head=config.head.kind,
        labels=config.head.labels,
        account=account(config, max(rows.capacity)),
        memory=memory(recipe, config, rows.capacity, share),
        tokenizer=prepared.tokenizer.size,
        records=sum(tally.records for tally in tallies),
        examples=sum(tally.examples for tally in tallies),
        tokens=sum(tally.tokens for tally in tallies),
        rows=rows.capacity,
        rows_a_step=rows.batch_rows if rows.layout == "packed" else rows_in_units / units,
        steps_an_epoch=steps,
        padding=1 - real / places,
        validation=sum(one.tally.examples for one in valid.objectives) if valid is not None else 0,
        budget={
            name: value
            for name, value in (
                ("steps", recipe.train.steps),
                ("minutes", recipe.train.minutes),
                ("epochs", recipe.train.epochs),
            )
            if value
        },
        first=tuple(shown(prepared, batch)),
        notes=tuple(prepared.notes),
    )


def _measured(prepared: Prepared) -> tuple[int, int, int, int]:
    """Over the first windows of the data: units that are dealt, rows in them, places with a token, places."""
    units = rows = real = places = 0
    for window in range(WINDOWS):
        plan = prepared.rows.plan(window)
        counts = np.diff(plan.first_row)
        units += len(counts)
        rows += int(counts.sum())
        real += int(plan.lengths.sum())
        places += int((counts * plan.widths.sum(axis=1)).sum())
    return units, rows, real, max(places, 1)


def first_batch(prepared: Prepared) -> Batch:
    """The batch that training begins with."""
    step, _ = next(prepared.rows.steps())
    return Batch.of(fill(prepared.rows, step), prepared.rows.texts, step.epoch)


def shown(prepared: Prepared, batch: Batch, count: int = EXAMPLES) -> list[Example]:
    """The first examples of a batch, as the model will see them."""
    found = []
    inside: dict[int, int] = {}  # how many examples of a row came by
    for row, number, epoch in zip(batch.example_row, batch.example, batch.example_epoch, strict=True):
        text = inside[int(row)] = inside.get(int(row), 0) + 1
        parts = parts_of(batch, prepared.tokenizer, int(row), text, prepared.config.head.labels)
        found.append(Example(prepared.rows.origin(int(number), int(epoch)), parts))
        if len(found) == count:
            break
    return found


def parts_of(batch: Batch, tokenizer: Tokenizer, row: int, text: int, labels: tuple[str, ...]) -> dict[str, str]:
    """One example: text `text` (from 1) of a row."""

    def read(ids: Any, side: Tokenizer) -> str:
        told = side.decode(ids, skip_special=False)
        return told if len(told) <= SHOWN else told[:SHOWN] + "…"

    parts = {}
    if batch.source_ids is not None and batch.source_segment is not None:
        parts["source"] = read(batch.source_ids[row][batch.source_segment[row] == text], tokenizer)
    here = batch.segment[row] == text
    parts["input"] = read(batch.ids[row][here], tokenizer.target)
    if batch.labels is not None:
        said = [one for one in batch.labels[row][here].tolist() if one != IGNORE]
        parts["target"] = " ".join(labels[one] for one in said) if labels else read(said, tokenizer.target)
    if batch.class_labels is not None and (number := int(batch.class_labels[row, text - 1])) != IGNORE:
        names = labels or ("the second text follows the first", "it does not")
        parts["class"] = names[number]
    if batch.scores is not None:
        parts["score"] = f"{float(batch.scores[row, text - 1]):g}"
    if batch.span_starts is not None and batch.span_ends is not None:
        first, last = int(batch.span_starts[row, text - 1]), int(batch.span_ends[row, text - 1])
        begin = int(here.int().argmax())
        parts["answer"] = read(batch.ids[row][first : last + 1], tokenizer) if first > begin else "none in this part"
    return parts
