"""Hugging Face `datasets`: a folder written by `save_to_disk`, or a dataset of the hub.

Used only with an explicit `format = "datasets"`, because a hub id needs the network. No code of a dataset's
repository is run.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkv.data.readers.columns import select_records
from qkv.data.readers.find_files import FileGroup
from qkv.data.readers.options import ReadContext, ReadOptions
from qkv.data.records import Record
from qkv.errors import QkvError, UsageError


def read_hf_dataset(group: FileGroup, context: ReadContext) -> Iterator[Record]:
    """The rows of a dataset as records; `options.split` and `options.config` choose among several."""
    name = str(group.paths[0])
    return select_records(load_hf_dataset(name, context.options), name, context)


def load_hf_dataset(name: str, options: ReadOptions) -> Any:
    """The dataset itself; errors list its splits."""
    try:
        import datasets
    except ImportError:
        raise QkvError('reading Hugging Face datasets needs a package: pip install "qkv[datasets]"') from None
    try:
        if Path(name).is_dir():
            loaded = datasets.load_from_disk(name)
        else:
            loaded = datasets.load_dataset(name, options.config)
    except Exception as error:  # the library has dozens of exception types; none should reach the user as a traceback
        reason = str(error).partition("\n")[0]
        raise QkvError(f"the dataset {name} could not be loaded: {type(error).__name__}: {reason}") from error
    if not isinstance(loaded, dict):  # a single split
        return loaded
    if options.split is None and len(loaded) == 1:
        return next(iter(loaded.values()))
    if options.split not in loaded:
        problem = "has several splits" if options.split is None else f"has no split {options.split!r}"
        raise UsageError(f"the dataset {name} {problem}; set split to one of: {', '.join(loaded)}")
    return loaded[options.split]


def hf_dataset_fingerprint(name: str, options: ReadOptions) -> str:
    """A string that changes when the dataset does: the fingerprint that the library itself caches by."""
    return str(load_hf_dataset(name, options)._fingerprint)
