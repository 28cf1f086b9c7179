"""Build the arrays of a planned batch: each example is built and written at its planned position.

B is the batch size, T and S the target and source length, E the maximum number of examples in a sequence.
"""

import numpy as np

from qkv.data.objectives import IGNORE_INDEX, FlatExamples
from qkv.data.ragged import IntArray, ragged_index
from qkv.data.stream.sequences import BatchPlan, SequenceStream

BatchArrays = dict[str, np.ndarray]


def collate(stream: SequenceStream, plan: BatchPlan) -> BatchArrays:
    """Build all arrays of a batch, int32 (scores float32): (B, T) or (B, S) for tokens, (B, E) for labels of examples.

    `example_ids`, `example_sequences` and `example_epochs` (n,) list the examples of the batch.
    """
    arrays = empty_arrays(stream, plan)
    for entries, objective, rng in stream.group_by_epoch(plan.refs):
        examples = objective.build(plan.refs.example[entries], rng)
        check_planned_lengths(examples, plan.lengths[entries], objective)
        write_examples(arrays, examples, plan.sequence[entries], plan.document[entries], plan.offset[entries])
    arrays["example_ids"] = plan.refs.example * len(stream.dataset_names) + plan.refs.dataset
    arrays["example_sequences"] = plan.sequence
    arrays["example_epochs"] = plan.refs.epoch
    return arrays


def empty_arrays(stream: SequenceStream, plan: BatchPlan) -> BatchArrays:
    """A batch of padding only."""
    arrays = {}
    sides = ("", "source_") if "source" in stream.optional_fields else ("",)
    for prefix, length in zip(sides, plan.sequence_lengths, strict=True):
        shape = (plan.num_sequences, length)
        arrays[f"{prefix}ids"] = np.full(shape, stream.pad_token_id, np.int32)
        arrays[f"{prefix}document_ids"] = np.zeros(shape, np.int32)
        arrays[f"{prefix}positions"] = np.zeros(shape, np.int32)
    shape = (plan.num_sequences, plan.sequence_lengths[0])
    if "labels" in stream.optional_fields:
        arrays["labels"] = np.full(shape, IGNORE_INDEX, np.int32)
    if "token_type_ids" in stream.optional_fields:
        arrays["token_type_ids"] = np.zeros(shape, np.int32)
    shape = (plan.num_sequences, stream.max_documents)
    if "class_ids" in stream.optional_fields:
        arrays["class_labels"] = np.full(shape, IGNORE_INDEX, np.int32)
    if "label_sets" in stream.optional_fields:
        num_classes = max(getattr(objective, "num_classes", 0) for objective in stream.objectives)
        arrays["label_sets"] = np.full((shape[0], shape[1] * num_classes), IGNORE_INDEX, np.int32)
    if "scores" in stream.optional_fields:
        arrays["scores"] = np.full(shape, np.nan, np.float32)
    if "answer_spans" in stream.optional_fields:
        arrays["span_starts"] = np.full(shape, IGNORE_INDEX, np.int32)
        arrays["span_ends"] = np.full(shape, IGNORE_INDEX, np.int32)
    return arrays


def write_examples(
    arrays: BatchArrays, examples: FlatExamples, sequence: IntArray, document: IntArray, offset: IntArray
) -> None:
    """Write n examples into the batch: sequence (n,), document (n,), offset (n, 1 or 2)."""
    written = write_tokens(arrays, "", examples.ids, examples.lengths, sequence, document, offset[:, 0])
    for name, values in (("labels", examples.labels), ("token_type_ids", examples.token_type_ids)):
        if values is not None:
            arrays[name].reshape(-1)[written] = values
    if examples.source_ids is not None and examples.source_lengths is not None:
        source = (examples.source_ids, examples.source_lengths)
        write_tokens(arrays, "source_", *source, sequence, document, offset[:, 1])
    if examples.class_ids is not None:
        arrays["class_labels"][sequence, document - 1] = examples.class_ids
    if examples.label_sets is not None:
        sets = arrays["label_sets"].reshape(len(arrays["ids"]), -1, examples.label_sets.shape[1])
        sets[sequence, document - 1] = examples.label_sets
    if examples.scores is not None:
        arrays["scores"][sequence, document - 1] = examples.scores
    if examples.answer_spans is not None:
        arrays["span_starts"][sequence, document - 1] = examples.answer_spans[:, 0] + offset[:, 0]
        arrays["span_ends"][sequence, document - 1] = examples.answer_spans[:, 1] + offset[:, 0]


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
