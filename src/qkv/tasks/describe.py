"""What a recipe would do, without doing it: what `qkv train RECIPE --dry-run` shows.

The data is read and tokenised, as training would (and finds it done), so what is told of it is measured. Memory is an
estimate.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qkv.data.load.batch import Batch
from qkv.data.objectives import IGNORE_INDEX
from qkv.data.stream.collate import collate
from qkv.models.tables.summary import ModelSummary, summarise_model
from qkv.progress import OnStage
from qkv.tasks.prepare.memory import MemoryEstimate, estimate_memory
from qkv.tasks.prepare.prepare import PreparedRun, prepare
from qkv.text import Tokenizer
from qkv.train.parallel.world import select_device
from qkv.train.recipe.recipe_file import to_toml
from qkv.train.recipe.schema import Recipe

MEASURED_WINDOWS = 4  # of the data's order, that shares and counts are measured on
SHOWN_EXAMPLES = 3
MAX_SHOWN_CHARS = 400  # characters of an example


@dataclass(frozen=True)
class ExamplePreview:
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
    account: ModelSummary
    memory: MemoryEstimate
    vocab_size: int  # pieces
    records: int
    examples: int  # in an epoch
    tokens: int  # of text, in an epoch
    sequence_lengths: tuple[int, ...]  # the length of a row: target, source
    sequences_per_step: float
    steps_per_epoch: int | None  # about; None for a mixture, whose sources have epochs of their own
    padding_fraction: float  # the share of places without a token
    validation_examples: int  # examples
    budget: dict[str, float]
    first_examples: tuple[ExamplePreview, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        plain = {name: value for name, value in asdict(self).items() if name not in ("account", "memory")}
        return {**plain, "account": self.account.to_dict(), "memory": self.memory.to_dict()}


def describe(recipe: Recipe, progress: OnStage | None = None) -> Description:
    """What training by a recipe would be."""
    select_device(recipe.train.device, local_rank=0, world_size=1)  # refused here as it would be then
    return describe_prepared(prepare(recipe, progress))


def describe_prepared(prepared: PreparedRun) -> Description:
    """What training with all this would be."""
    recipe, rows, config = prepared.recipe, prepared.train_data, prepared.config
    batch = first_batch(prepared)
    units, rows_in_units, real, places = _measure_padding(prepared)
    windows = None if recipe.data.mix else rows.order.num_pools(1)
    steps = None
    if windows is not None:
        a_step = rows.sequences_per_batch if rows.layout == "packed" else 1
        steps = max(1, round(windows * units / MEASURED_WINDOWS / a_step))
    share = batch.num_labels / batch.labels.numel() if batch.labels is not None else 0.0
    tallies = [objective.tally for objective in rows.objectives]
    valid = prepared.valid_data
    return Description(
        recipe=to_toml(recipe),
        family=config.family,
        head=config.head.kind,
        labels=config.head.labels,
        account=summarise_model(config, max(rows.capacity)),
        memory=estimate_memory(recipe, config, rows.capacity, share),
        vocab_size=prepared.tokenizer.vocab_size,
        records=sum(tally.records for tally in tallies),
        examples=sum(tally.examples for tally in tallies),
        tokens=sum(tally.tokens for tally in tallies),
        sequence_lengths=rows.capacity,
        sequences_per_step=rows.sequences_per_batch if rows.layout == "packed" else rows_in_units / units,
        steps_per_epoch=steps,
        padding_fraction=1 - real / places,
        validation_examples=sum(one.tally.examples for one in valid.objectives) if valid is not None else 0,
        budget={
            name: value
            for name, value in (
                ("steps", recipe.train.steps),
                ("minutes", recipe.train.minutes),
                ("epochs", recipe.train.epochs),
            )
            if value
        },
        first_examples=tuple(preview_examples(prepared, batch)),
        notes=tuple(prepared.notes),
    )


def _measure_padding(prepared: PreparedRun) -> tuple[int, int, int, int]:
    """Over the first windows of the data: units that are dealt, rows in them, places with a token, places."""
    units = rows = real = places = 0
    for window in range(MEASURED_WINDOWS):
        plan = prepared.train_data.plan_pool(window)
        counts = np.diff(plan.first_sequence)
        units += len(counts)
        rows += int(counts.sum())
        real += int(plan.lengths.sum())
        places += int((counts * plan.widths.sum(axis=1)).sum())
    return units, rows, real, max(places, 1)


def first_batch(prepared: PreparedRun) -> Batch:
    """The batch that training begins with."""
    step, _ = next(prepared.train_data.batch_plans())
    return Batch.from_arrays(collate(prepared.train_data, step), prepared.train_data.max_documents, step.epoch)


def preview_examples(prepared: PreparedRun, batch: Batch, count: int = SHOWN_EXAMPLES) -> list[ExamplePreview]:
    """The first examples of a batch, as the model will see them."""
    found = []
    inside: dict[int, int] = {}  # how many examples of a row came by
    for row, number, epoch in zip(batch.example_sequences, batch.example_ids, batch.example_epochs, strict=True):
        text = inside[int(row)] = inside.get(int(row), 0) + 1
        parts = example_parts(batch, prepared.tokenizer, int(row), text, prepared.config.head.labels)
        found.append(ExamplePreview(prepared.train_data.origin(int(number), int(epoch)), parts))
        if len(found) == count:
            break
    return found


def example_parts(
    batch: Batch, tokenizer: Tokenizer, sequence: int, document: int, labels: tuple[str, ...]
) -> dict[str, str]:
    """One example: text `text` (from 1) of a row."""

    def read(ids: Any, side: Tokenizer) -> str:
        told = side.decode(ids, skip_special_tokens=False)
        return told if len(told) <= MAX_SHOWN_CHARS else told[:MAX_SHOWN_CHARS] + "…"

    parts = {}
    if batch.source_ids is not None and batch.source_document_ids is not None:
        parts["source"] = read(batch.source_ids[sequence][batch.source_document_ids[sequence] == document], tokenizer)
    here = batch.document_ids[sequence] == document
    parts["input"] = read(batch.ids[sequence][here], tokenizer.target)
    if batch.labels is not None:
        said = [one for one in batch.labels[sequence][here].tolist() if one != IGNORE_INDEX]
        parts["target"] = " ".join(labels[one] for one in said) if labels else read(said, tokenizer.target)
    if batch.class_labels is not None and (number := int(batch.class_labels[sequence, document - 1])) != IGNORE_INDEX:
        names = labels or ("the second text follows the first", "it does not")
        parts["class"] = names[number]
    if batch.scores is not None:
        parts["score"] = f"{float(batch.scores[sequence, document - 1]):g}"
    if batch.span_starts is not None and batch.span_ends is not None:
        first, last = int(batch.span_starts[sequence, document - 1]), int(batch.span_ends[sequence, document - 1])
        begin = int(here.int().argmax())
        parts["answer"] = (
            read(batch.ids[sequence][first : last + 1], tokenizer) if first > begin else "none in this part"
        )
    return parts
