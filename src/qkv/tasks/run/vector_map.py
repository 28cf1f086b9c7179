"""A map of texts, such as the proteins of a family: their embeddings, projected to two dimensions.

The two axes are the first principal components of the vectors, the directions in which they vary most. `explained` is
the fraction of the variance along each. Two points that are near each other may still differ in other dimensions.

N texts, C width of a vector
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from qkv.data import Problems
from qkv.data.modalities import load_texts
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.readers.columns import common_names, get_nested, is_number
from qkv.errors import UsageError
from qkv.tasks.prepare.columns import known_columns
from qkv.tasks.prepare.sources import open_files
from qkv.tasks.text_model import TextModel
from qkv.tasks.verbs.embed import embed_texts
from qkv.train.recipe.schema import DataSection

MAX_POINTS = 2000


@dataclass(frozen=True)
class VectorMap:
    """Texts as points (N, 2), their labels if the file has some, and the variance that each axis explains."""

    points: Tensor
    labels: tuple[str, ...]
    explained: tuple[float, float]

    @property
    def scores(self) -> tuple[float, ...] | None:
        """The labels as numbers, if all of them are numbers and they are too many for classes."""
        are_numbers = bool(self.labels) and all(map(is_number, self.labels)) and len(set(self.labels)) > MAX_CLASSES
        return tuple(map(float, self.labels)) if are_numbers else None


MAX_CLASSES = 6
"""More labels than this share a colour, except numbers, which become shades."""


def map_texts(model: TextModel, path: Path, notes: list[str]) -> VectorMap:
    """Embed the texts of a file, at most `MAX_POINTS`, and project the vectors. `notes` says what was read."""
    texts, labels = read_labelled_texts(path, bool(model.tokenizer.reads_residues), notes)
    if len(texts) < 3:
        raise UsageError(f"{path}: {len(texts)} texts, but a map needs at least 3")
    has_head = model.config.head.kind == "embed"
    vectors, _ = embed_texts(model, texts, pooling=None if has_head else "mean")
    points, explained = project(vectors.detach().float().cpu())
    return VectorMap(points, tuple(labels), explained)


def read_labelled_texts(path: Path, are_proteins: bool, notes: list[str]) -> tuple[list[str], list[str]]:
    """The texts of a file and, if it has a column of labels or scores, their labels."""
    problems = Problems(max_invalid_fraction=1)
    records = list(islice(open_files(str(path), DataSection()).records(problems), MAX_POINTS))
    fields = {one.name: one for one in OBJECTIVES["classification"].fields}
    names = common_names(records)
    found = {name: known_columns(fields[name], names) for name in ("text", "label", "score")}
    if not found["text"]:
        raise UsageError(
            f"{path}: no column is recognised as the text; the columns are {', '.join(names)}; name one of them "
            "text, or sequence"
        )
    text, label = found["text"][0], next(iter([*found["label"], *found["score"]]), "")
    loaded = list(load_texts(records, "protein" if are_proteins else "text", [text], problems))
    kept = [one for one in loaded if isinstance(get_nested(one.fields, text), str)]
    notes.append(f"{len(kept):,} texts from the column {text}" + (f", coloured by {label}" if label else ""))
    labels = [str(get_nested(one.fields, label)) for one in kept] if label else []
    return [str(get_nested(one.fields, text)) for one in kept], labels


def project(vectors: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """Project vectors (N, C) to their first two principal components: points (N, 2), and the fractions of variance.

    >>> points, explained = project(torch.tensor([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0], [4.0, 0.0, 1.0]]))
    >>> [round(abs(float(x)), 3) for x in points[:, 0]], [round(one, 3) for one in explained]
    ([2.0, 0.0, 2.0], [1.0, 0.0])
    """
    centred = vectors.double() - vectors.double().mean(0)
    left, singular, _ = torch.linalg.svd(centred, full_matrices=False)
    variance = singular.square() / singular.square().sum().clamp(min=1e-30)
    first, second = (float(one) for one in torch.nn.functional.pad(variance, (0, 2))[:2])
    points = torch.nn.functional.pad(left * singular, (0, 2))[:, :2]
    return points.float(), (first, second)
