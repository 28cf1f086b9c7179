"""Describe what training a recipe would do, for `qkv train RECIPE --dry-run`.

The data is read, tokenised and cached as in training, so all numbers about the data are exact or measured. Memory is an
estimate.
"""

from collections import Counter
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from qkv.blocks.inputs import Inputs
from qkv.data.load.batch import Batch
from qkv.data.objectives.base import Objective
from qkv.data.stream.collate import collate
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import UsageError, count_nouns
from qkv.models.runtime import free_memory
from qkv.models.tables.summary import ModelSummary, summarise_model
from qkv.progress import OnStage
from qkv.tasks.prepare.memory import (
    MemoryEstimate,
    choose_micro_batch,
    estimate_memory,
    labelled_fraction,
    longest_source,
)
from qkv.tasks.prepare.prepare import PreparedRun, prepare, uses_in_batch_negatives
from qkv.text import Tokenizer
from qkv.train.parallel.world import select_device
from qkv.train.recipe.recipe_file import to_toml
from qkv.train.recipe.schema import BUDGETS, Recipe

MEASURED_POOLS = 4  # pools of examples on which packing is measured
SHOWN_EXAMPLES = 3
MAX_SHOWN_CHARS = 400  # characters that are shown of each part of an example


@dataclass(frozen=True)
class RecipeExample:
    """A training example as the model reads it: each sequence as text, with special tokens."""

    origin: str
    parts: dict[str, str]  # source, input, target (what is predicted), class, score, answer


@dataclass(frozen=True)
class Description:
    """Everything that `--dry-run` shows."""

    recipe: str  # TOML with every key
    family: str
    head: str
    labels: tuple[str, ...]
    model_summary: ModelSummary
    memory: MemoryEstimate
    vocab_size: int
    records: int
    examples: int  # number in an epoch
    tokens: int  # number in an epoch, without special tokens
    sequence_lengths: tuple[int, ...]  # target, source
    sequences_per_step: float
    steps_per_epoch: int | None  # approximate; None for a mixture, because each source has its own epochs
    padding_fraction: float  # fraction of all positions that are padding
    validation_examples: int
    budget: dict[str, float]  # steps, minutes and epochs after which training stops
    first_examples: tuple[RecipeExample, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The description for `--json`."""
        plain = {name: value for name, value in asdict(self).items() if name not in ("model_summary", "memory")}
        return {**plain, "model_summary": self.model_summary.to_dict(), "memory": self.memory.to_dict()}


def describe(recipe: Recipe, progress: OnStage | None = None) -> Description:
    """Describe what training a recipe would do."""
    select_device(recipe.train.device, local_rank=0, world_size=1)  # raises the same error as training
    return describe_prepared(prepare(recipe, progress))


def describe_prepared(prepared: PreparedRun) -> Description:
    """Describe what training with prepared data and model would do."""
    recipe, stream, config = prepared.recipe, prepared.train_data, prepared.config
    batch = first_batch(stream)
    items, sequences, tokens, positions = _count_items_and_tokens(stream)
    is_packed = stream.layout == "packed"
    steps = None
    if not recipe.data.mix:
        items_per_epoch = stream.order.num_pools(1) * items / MEASURED_POOLS
        steps = max(1, round(items_per_epoch / (stream.sequences_per_batch if is_packed else 1)))
    micro_batch, memory_note = _fit_into_memory(prepared)
    all_counts = [objective.counts for objective in stream.objectives]
    valid = prepared.valid_data
    budget = {name: getattr(recipe.train, name) for name in BUDGETS}
    return Description(
        recipe=to_toml(recipe),
        family=config.family,
        head=config.head.kind,
        labels=config.head.labels,
        model_summary=summarise_model(config, max(stream.max_lengths)),
        memory=estimate_memory(
            micro_batch, config, stream.max_lengths, labelled_fraction(batch), longest_source(batch)
        ),
        vocab_size=prepared.tokenizer.vocab_size,
        records=sum(counts.records for counts in all_counts),
        examples=sum(counts.examples for counts in all_counts),
        tokens=sum(counts.tokens for counts in all_counts),
        sequence_lengths=stream.max_lengths,
        sequences_per_step=stream.sequences_per_batch if is_packed else sequences / items,
        steps_per_epoch=steps,
        padding_fraction=1 - tokens / positions,
        validation_examples=sum(one.counts.examples for one in valid.objectives) if valid is not None else 0,
        budget={name: value for name, value in budget.items() if value},
        first_examples=tuple(preview_examples(prepared, batch)),
        notes=(*prepared.notes, *memory_note),
    )


def _fit_into_memory(prepared: PreparedRun) -> tuple[Recipe, list[str]]:
    """The recipe with the size of a micro-batch that this machine takes, and a note about it."""
    recipe = prepared.recipe
    free = free_memory(select_device(recipe.train.device, local_rank=0, world_size=1))
    can_split = not uses_in_batch_negatives(recipe, prepared.fields)
    try:
        tokens, note = choose_micro_batch(recipe, prepared.config, prepared.train_data, free, can_split=can_split)
    except UsageError as error:
        return recipe, [f"this machine cannot train the recipe: {error}"]
    if tokens:
        recipe = replace(recipe, train=replace(recipe.train, micro_batch_tokens=tokens))
    return recipe, [note] if note else []


def _count_items_and_tokens(stream: SequenceStream) -> tuple[int, int, int, int]:
    """Count (items, sequences, tokens, positions with padding) in the first pools of examples.

    An item is one packed sequence or, without packing, one batch.
    """
    items = sequences = tokens = positions = 0
    for pool in range(MEASURED_POOLS):
        plan = stream.plan_pool(pool)
        counts = np.diff(plan.item_starts)
        items += len(counts)
        sequences += int(counts.sum())
        tokens += int(plan.lengths.sum())
        positions += int((counts * plan.sequence_lengths.sum(axis=1)).sum())
    return items, sequences, tokens, max(positions, 1)


def first_batch(stream: SequenceStream) -> Batch:
    """The batch that training begins with."""
    plan, _ = next(stream.batch_plans())
    return Batch.from_arrays(collate(stream, plan), stream, plan.epoch)


def preview_examples(prepared: PreparedRun, batch: Batch, count: int = SHOWN_EXAMPLES) -> list[RecipeExample]:
    """The first examples of a batch, as the model reads them."""
    previews = []
    seen: Counter[int] = Counter()  # number of examples of each sequence so far
    examples = zip(batch.example_sequences, batch.example_ids, batch.example_epochs, strict=True)
    for sequence, number, epoch in islice(examples, count):
        seen[int(sequence)] += 1
        objective = prepared.train_data.objective_of(int(number))
        position = int(sequence), seen[int(sequence)]
        parts = example_parts(batch, objective, prepared.tokenizer, *position, prepared.config.head.labels)
        previews.append(RecipeExample(prepared.train_data.origin(int(number), int(epoch)), parts))
    return previews


def example_parts(
    batch: Batch, objective: Objective, tokenizer: Tokenizer, sequence: int, document: int, classes: tuple[str, ...]
) -> dict[str, str]:
    """The parts of one example as text: document number `document` (from 1) of a sequence."""

    def decode(ids: Any, side: Tokenizer = tokenizer.target) -> str:
        text = side.decode(ids, skip_special_tokens=False)
        return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"

    def find(inputs: Inputs) -> np.ndarray:
        assert inputs.document_ids is not None
        found: np.ndarray = np.flatnonzero(inputs.document_ids[sequence].numpy() == document)
        return found

    inputs, parts = batch.inputs, {}
    if inputs.source is not None:
        parts["source"] = decode(inputs.source.ids[sequence][find(inputs.source)], tokenizer)
    positions = find(inputs)
    ids = inputs.ids[sequence].numpy()[positions]
    labels = {}
    for label in batch.declared:
        values = batch.labels[label.name][sequence].numpy()
        values = values[positions] if label.per == "token" else values[document - 1]
        labels[label.name] = values - positions[0] if label.is_position else values
    shown = decode(ids)
    if tokenizer.hashes_words:
        num_words = sum(int(one) not in tokenizer.special_ids for one in ids)
        shown = f"{count_nouns(num_words, 'word')}, which the model reads by their letters"
    return {**parts, "input": shown, **objective.describe_labels(ids, labels, decode, classes)}
