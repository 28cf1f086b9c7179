"""A step's rows as arrays: examples are built, and each is written to the place that the layout gave it."""

import numpy as np

from qkv.data.objectives import IGNORE, Pieces
from qkv.data.ragged import Ints, ragged_index
from qkv.data.rows import Rows, Step

Arrays = dict[str, np.ndarray]


def fill(rows: Rows, step: Step) -> Arrays:
    """All arrays of a batch, int32 (scores float32): those of rows are (B, T) or (B, S), those of examples (B, E).

    `example`, `example_row` and `example_epoch` (n,) say which examples the batch holds, and where.
    """
    arrays = empty(rows, step)
    for entries, objective, draw in rows.groups(step.picks):
        pieces = objective.build(step.picks.example[entries], draw)
        check_lengths(pieces, step.lengths[entries], objective)
        place(arrays, pieces, step.row[entries], step.segment[entries], step.offset[entries])
    arrays["example"] = step.picks.example * len(rows.names) + step.picks.source
    arrays["example_row"] = step.row
    arrays["example_epoch"] = step.picks.epoch
    return arrays


def empty(rows: Rows, step: Step) -> Arrays:
    """Rows of padding."""
    shape = (step.rows, step.width[0])
    arrays = {
        "ids": np.full(shape, rows.pad, np.int32),
        "segment": np.zeros(shape, np.int32),
        "position": np.zeros(shape, np.int32),
    }
    if "labels" in rows.outputs:
        arrays["labels"] = np.full(shape, IGNORE, np.int32)
    if "types" in rows.outputs:
        arrays["types"] = np.zeros(shape, np.int32)
    if "source" in rows.outputs:
        source_shape = (step.rows, step.width[1])
        arrays["source_ids"] = np.full(source_shape, rows.pad, np.int32)
        arrays["source_segment"] = np.zeros(source_shape, np.int32)
        arrays["source_position"] = np.zeros(source_shape, np.int32)
    each = (step.rows, rows.texts)
    if "classes" in rows.outputs:
        arrays["class_labels"] = np.full(each, IGNORE, np.int32)
    if "scores" in rows.outputs:
        arrays["scores"] = np.full(each, np.nan, np.float32)
    if "spans" in rows.outputs:
        arrays["span_starts"] = np.full(each, IGNORE, np.int32)
        arrays["span_ends"] = np.full(each, IGNORE, np.int32)
    return arrays


def place(arrays: Arrays, pieces: Pieces, row: Ints, segment: Ints, offset: Ints) -> None:
    """Write examples to their places: row (n,), segment (n,), offset (n, streams)."""
    where = spread(arrays, "", pieces.ids, pieces.lengths, row, segment, offset[:, 0])
    for name, values in (("labels", pieces.labels), ("types", pieces.types)):
        if values is not None:
            arrays[name].reshape(-1)[where] = values
    if pieces.source_ids is not None and pieces.source_lengths is not None:
        spread(arrays, "source_", pieces.source_ids, pieces.source_lengths, row, segment, offset[:, 1])
    if pieces.classes is not None:
        arrays["class_labels"][row, segment - 1] = pieces.classes
    if pieces.scores is not None:
        arrays["scores"][row, segment - 1] = pieces.scores
    if pieces.spans is not None:
        arrays["span_starts"][row, segment - 1] = pieces.spans[:, 0] + offset[:, 0]
        arrays["span_ends"][row, segment - 1] = pieces.spans[:, 1] + offset[:, 0]


def spread(arrays: Arrays, side: str, ids: Ints, lengths: Ints, row: Ints, segment: Ints, offset: Ints) -> Ints:
    """Write ids, segments and positions of one side; returns the flat places that were written to."""
    width = arrays[f"{side}ids"].shape[1]
    where = ragged_index(row * width + offset, lengths)
    arrays[f"{side}ids"].reshape(-1)[where] = ids
    arrays[f"{side}segment"].reshape(-1)[where] = np.repeat(segment, lengths)
    arrays[f"{side}position"].reshape(-1)[where] = ragged_index(np.zeros_like(lengths), lengths)
    return where


def check_lengths(pieces: Pieces, planned: Ints, objective: object) -> None:
    """Raise if an objective built other lengths than it had said: its examples would overwrite each other."""
    sides = [pieces.lengths, *([] if pieces.source_lengths is None else [pieces.source_lengths])]
    if not np.array_equal(np.stack(sides, axis=1), planned):
        raise AssertionError(f"{type(objective).__name__} built examples of other lengths than it had announced")
