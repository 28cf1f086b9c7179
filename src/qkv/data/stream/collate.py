"""A step's rows as arrays: examples are built, and each is written to the place that the layout gave it."""

import numpy as np

from qkv.data.objectives import IGNORE_INDEX, FlatExamples
from qkv.data.ragged import Ints, ragged_index
from qkv.data.stream.sequences import BatchPlan, SequenceStream

BatchArrays = dict[str, np.ndarray]


def collate(stream: SequenceStream, plan: BatchPlan) -> BatchArrays:
    """All arrays of a batch, int32 (scores float32): those of rows are (B, T) or (B, S), those of examples (B, E).

    `example`, `example_row` and `example_epoch` (n,) say which examples the batch holds, and where.
    """
    arrays = empty_arrays(stream, plan)
    for entries, objective, draw in stream.group_by_epoch(plan.refs):
        pieces = objective.build(plan.refs.example[entries], draw)
        check_planned_lengths(pieces, plan.lengths[entries], objective)
        write_examples(arrays, pieces, plan.sequence[entries], plan.document[entries], plan.offset[entries])
    arrays["example_ids"] = plan.refs.example * len(stream.dataset_names) + plan.refs.dataset
    arrays["example_sequences"] = plan.sequence
    arrays["example_epochs"] = plan.refs.epoch
    return arrays


def empty_arrays(stream: SequenceStream, plan: BatchPlan) -> BatchArrays:
    """Rows of padding."""
    shape = (plan.num_sequences, plan.sequence_lengths[0])
    arrays = {
        "ids": np.full(shape, stream.pad_token_id, np.int32),
        "document_ids": np.zeros(shape, np.int32),
        "positions": np.zeros(shape, np.int32),
    }
    if "labels" in stream.outputs:
        arrays["labels"] = np.full(shape, IGNORE_INDEX, np.int32)
    if "token_type_ids" in stream.outputs:
        arrays["token_type_ids"] = np.zeros(shape, np.int32)
    if "source" in stream.outputs:
        source_shape = (plan.num_sequences, plan.sequence_lengths[1])
        arrays["source_ids"] = np.full(source_shape, stream.pad_token_id, np.int32)
        arrays["source_document_ids"] = np.zeros(source_shape, np.int32)
        arrays["source_positions"] = np.zeros(source_shape, np.int32)
    each = (plan.num_sequences, stream.max_documents)
    if "class_ids" in stream.outputs:
        arrays["class_labels"] = np.full(each, IGNORE_INDEX, np.int32)
    if "scores" in stream.outputs:
        arrays["scores"] = np.full(each, np.nan, np.float32)
    if "answer_spans" in stream.outputs:
        arrays["span_starts"] = np.full(each, IGNORE_INDEX, np.int32)
        arrays["span_ends"] = np.full(each, IGNORE_INDEX, np.int32)
    return arrays


def write_examples(arrays: BatchArrays, pieces: FlatExamples, sequence: Ints, document: Ints, offset: Ints) -> None:
    """Write examples to their places: row (n,), segment (n,), offset (n, streams)."""
    where = write_tokens(arrays, "", pieces.ids, pieces.lengths, sequence, document, offset[:, 0])
    for name, values in (("labels", pieces.labels), ("token_type_ids", pieces.token_type_ids)):
        if values is not None:
            arrays[name].reshape(-1)[where] = values
    if pieces.source_ids is not None and pieces.source_lengths is not None:
        write_tokens(arrays, "source_", pieces.source_ids, pieces.source_lengths, sequence, document, offset[:, 1])
    if pieces.class_ids is not None:
        arrays["class_labels"][sequence, document - 1] = pieces.class_ids
    if pieces.scores is not None:
        arrays["scores"][sequence, document - 1] = pieces.scores
    if pieces.answer_spans is not None:
        arrays["span_starts"][sequence, document - 1] = pieces.answer_spans[:, 0] + offset[:, 0]
        arrays["span_ends"][sequence, document - 1] = pieces.answer_spans[:, 1] + offset[:, 0]


def write_tokens(
    arrays: BatchArrays, prefix: str, ids: Ints, lengths: Ints, sequence: Ints, document: Ints, offset: Ints
) -> Ints:
    """Write ids, segments and positions of one side; returns the flat places that were written to."""
    width = arrays[f"{prefix}ids"].shape[1]
    where = ragged_index(sequence * width + offset, lengths)
    arrays[f"{prefix}ids"].reshape(-1)[where] = ids
    arrays[f"{prefix}document_ids"].reshape(-1)[where] = np.repeat(document, lengths)
    arrays[f"{prefix}positions"].reshape(-1)[where] = ragged_index(np.zeros_like(lengths), lengths)
    return where


def check_planned_lengths(pieces: FlatExamples, planned: Ints, objective: object) -> None:
    """Raise if an objective built other lengths than it had said: its examples would overwrite each other."""
    sides = [pieces.lengths, *([] if pieces.source_lengths is None else [pieces.source_lengths])]
    if not np.array_equal(np.stack(sides, axis=1), planned):
        raise AssertionError(f"{type(objective).__name__} built examples of other lengths than it had announced")
