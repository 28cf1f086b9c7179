"""Hugging Face `datasets`: a folder written by `save_to_disk`, or a dataset of the hub.

Used only when asked for with `format = "datasets"`, because a hub id goes to the network. No code of a dataset's
repository is run.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv.data.problems import InvalidRecord
from qkv.data.readers.columns import FieldSelector
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.jsonl import check_text
from qkv.data.readers.options import ReadContext, ReadOptions
from qkv.data.records import FileLocation, Record
from qkv.errors import QkvError, UsageError


def read_hf_dataset(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """Rows of a dataset as records; `options.split` and `options.config` choose among several."""
    problems = context.problems
    name = str(group.paths[0])
    picker = FieldSelector(context.options.columns, name)
    for number, row in enumerate(load_hf_dataset(name, context.options.split, context.options.config), start=1):
        problems.num_seen += 1
        try:
            check_text(row)
            yield Record(picker.select(row), FileLocation(name, number))
        except InvalidRecord as bad:
            problems.skip(bad.category, FileLocation(name, number), bad.reason)
    picker.finish()


def load_hf_dataset(name: str, split: str | None, config: str | None) -> Any:
    """The dataset itself; errors name the splits there are."""
    try:
        import datasets
    except ImportError:
        raise QkvError('reading Hugging Face datasets needs a package: pip install "qkv[datasets]"') from None
    try:
        if Path(name).is_dir():
            found = datasets.load_from_disk(name)
        else:
            found = datasets.load_dataset(name, config)
    except Exception as error:  # the library has dozens of kinds of its own; none should reach a person as a traceback
        reason = str(error).partition("\n")[0]
        raise QkvError(f"the dataset {name} could not be loaded: {type(error).__name__}: {reason}") from error
    if not isinstance(found, dict):  # one split only
        return found
    if split is None and len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        asked = "is split into several parts" if split is None else f"has no split {split!r}"
        raise UsageError(f"the dataset {name} {asked}; give split = one of: {', '.join(found)}")
    return found[split]


def hf_dataset_fingerprint(name: str, options: ReadOptions) -> str:
    """What changes when the dataset does: the fingerprint that the library itself caches by."""
    return str(load_hf_dataset(name, options.split, options.config)._fingerprint)
