"""Build the arrays of a planned batch: each example is built and written at its planned position.

B is the batch size, T and S the target and source length, E the maximum number of examples in a sequence.
"""

import numpy as np

from qkv.data.objectives.base import FlatExamples, Label
from qkv.data.payloads import PayloadSlot
from qkv.data.ragged import IntArray, ragged_index
from qkv.data.stream.sequences import BatchPlan, SequenceStream

BatchArrays = dict[str, np.ndarray]
PayloadArrays = tuple[np.ndarray, IntArray, IntArray, IntArray]
PAYLOAD_PARTS = ("values", "rows", "sizes", "lengths")
EXAMPLE_ARRAYS = ("example_ids", "example_sequences", "example_epochs")


def collate(stream: SequenceStream, plan: BatchPlan) -> BatchArrays:
    """Build all arrays of a batch, int32 or float32: (B, T) or (B, S) for tokens, (B, E) for documents.

    The labels that the objective declares are arrays named `labels.NAME`; the four parts of payloads are named
    `payloads.KIND.PART` or `source_payloads.KIND.PART`. `example_ids`, `example_sequences` and
    `example_epochs` (n,) list the examples of the batch.
    """
    arrays = empty_arrays(stream, plan)
    payloads: list[list[PayloadArrays]] = [[empty_payloads(slot)] for slot in stream.payloads]
    for entries, objective, rng in stream.group_by_epoch(plan.refs):
        examples = objective.build(plan.refs.example[entries], rng)
        check_planned_lengths(examples, plan.lengths[entries], objective)
        positions = plan.sequence[entries], plan.document[entries], plan.offset[entries]
        written = write_examples(arrays, stream.labels, examples, *positions)
        for slot, found, parts in zip(stream.payloads, examples.payloads, payloads, strict=True):
            parts.append((found.values, written[slot.is_source][found.positions], found.sizes, found.lengths))
    for slot, parts in zip(stream.payloads, payloads, strict=True):
        for name, values in zip(PAYLOAD_PARTS, zip(*parts, strict=True), strict=True):
            filled = [part for part in values if len(part)] or values[:1]
            arrays[payload_array(slot, name)] = filled[0] if len(filled) == 1 else np.concatenate(filled)
    arrays["example_ids"] = plan.refs.example * len(stream.dataset_names) + plan.refs.dataset
    arrays["example_sequences"] = plan.sequence
    arrays["example_epochs"] = plan.refs.epoch
    return arrays


def empty_arrays(stream: SequenceStream, plan: BatchPlan) -> BatchArrays:
    """A batch of padding only."""
    arrays = {}
    for prefix, length in zip(("", "source_"), plan.sequence_lengths, strict=False):
        shape = (plan.num_sequences, length)
        arrays[f"{prefix}ids"] = np.full(shape, stream.pad_token_id, np.int32)
        arrays[f"{prefix}document_ids"] = np.zeros(shape, np.int32)
        arrays[f"{prefix}positions"] = np.zeros(shape, np.int32)
    if stream.has_token_types:
        arrays["token_type_ids"] = np.zeros_like(arrays["ids"])
    for label in stream.labels:
        length = plan.sequence_lengths[0] if label.per == "token" else stream.max_documents
        label_shape = (plan.num_sequences, length, *([label.width] if label.width else []))
        arrays[f"labels.{label.name}"] = np.full(label_shape, label.fill_value, label.dtype)
    return arrays


def write_examples(
    arrays: BatchArrays,
    labels: tuple[Label, ...],
    examples: FlatExamples,
    sequence: IntArray,
    document: IntArray,
    offset: IntArray,
) -> list[IntArray]:
    """Write n examples into the batch: sequence (n,), document (n,), offset (n, 1 or 2).

    Returns the flat indices of the tokens that were written, for each side.
    """
    written = write_tokens(arrays, "", examples.ids, examples.lengths, sequence, document, offset[:, 0])
    sides = [written]
    if examples.positions is not None:
        arrays["positions"].reshape(-1)[written] = examples.positions
    if examples.token_type_ids is not None:
        arrays["token_type_ids"].reshape(-1)[written] = examples.token_type_ids
    if examples.source_ids is not None and examples.source_lengths is not None:
        source = (examples.source_ids, examples.source_lengths)
        sides.append(write_tokens(arrays, "source_", *source, sequence, document, offset[:, 1]))
    for label in labels:
        array, values = arrays[f"labels.{label.name}"], examples.labels[label.name]
        if label.per == "token":
            array.reshape(-1, *array.shape[2:])[written] = values
        else:
            array[sequence, document - 1] = values + offset[:, 0] if label.is_position else values
    return sides


def empty_payloads(slot: PayloadSlot) -> PayloadArrays:
    """The four parts of no payload."""
    none = np.zeros(0, np.int64)
    return np.zeros((0, slot.format.width), slot.format.dtype), none, none.reshape(0, 2), none


def payload_array(slot: PayloadSlot, part: str) -> str:
    """The name of an array with one part of the payloads of a slot."""
    return f"{'source_' * slot.is_source}payloads.{slot.format.kind}.{part}"


def write_tokens(
    arrays: BatchArrays,
    prefix: str,
    ids: IntArray,
    lengths: IntArray,
    sequence: IntArray,
    document: IntArray,
    offset: IntArray,
) -> IntArray:
    """Write the ids, document ids and positions of one side; returns the flat indices that were written."""
    width = arrays[f"{prefix}ids"].shape[1]
    written = ragged_index(sequence * width + offset, lengths)
    arrays[f"{prefix}ids"].reshape(-1)[written] = ids
    arrays[f"{prefix}document_ids"].reshape(-1)[written] = np.repeat(document, lengths)
    arrays[f"{prefix}positions"].reshape(-1)[written] = ragged_index(np.zeros_like(lengths), lengths)
    return written


def check_planned_lengths(examples: FlatExamples, planned: IntArray, objective: object) -> None:
    """Raise if the built examples do not have their planned lengths, because they would overwrite each other."""
    sides = [examples.lengths, *([] if examples.source_lengths is None else [examples.source_lengths])]
    if not np.array_equal(np.stack(sides, axis=1), planned):
        raise AssertionError(f"{type(objective).__name__} built examples of other lengths than `lengths` returned")
