"""Traces of a corpus on disk, in files of limited size.

    write_traces("traces", trace_many(network, examples, sites="*.resid_post"))
    for trace in read_traces("traces"): ...

A folder has the files `traces-00000.safetensors`, `traces-00001.safetensors`, … and `index.json`, which is written
last. Each file holds the tensors of several traces. Writing and reading keep at most one file in memory.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.errors import QkvError, UsageError
from qkv.files import read_json_object, write_atomically
from qkv.inside.trace import Trace, describe_trace, open_tensors, read_trace, report_damage, write_tensors

INDEX_FILE = "index.json"
MAX_FILE_BYTES = 256 * 1024**2


def write_traces(folder: str | Path, traces: Iterable[Trace], *, max_file_bytes: int = MAX_FILE_BYTES) -> int:
    """Write traces to a new folder as they come, and return their number. Each file is written atomically."""
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder}: this folder is not empty; give the path of a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    descriptions: list[dict[str, Any]] = []
    counts: list[int] = []
    size = 0

    def write_file() -> None:
        nonlocal tensors, descriptions, size
        write_tensors(folder / _file_name(len(counts)), tensors, {"traces": descriptions})
        counts.append(len(descriptions))
        tensors, descriptions, size = {}, [], 0

    for trace in traces:
        tensors |= {f"{len(descriptions)}/{site}": value for site, value in trace.values.items()}
        descriptions.append(describe_trace(trace))
        size += sum(value.numel() * value.element_size() for value in trace.values.values())
        if size >= max_file_bytes:
            write_file()
    if descriptions:
        write_file()
    write_atomically(folder / INDEX_FILE, json.dumps({"traces_in_file": counts}) + "\n")
    return sum(counts)


def read_traces(folder: str | Path) -> Iterator[Trace]:
    """Yield the traces of a folder in the order in which they were written, one at a time."""
    folder = Path(folder)
    if not (folder / INDEX_FILE).exists():
        raise QkvError(
            f"{folder}: no {INDEX_FILE}, so this is not a folder of traces, or writing was interrupted; "
            "write the traces again"
        )
    counts = read_json_object(folder / INDEX_FILE).get("traces_in_file")
    if not isinstance(counts, list) or not all(type(count) is int for count in counts):
        raise QkvError(f"{folder / INDEX_FILE}: traces_in_file must be a list of whole numbers; write the traces again")
    return _read_files(folder, counts)


def _read_files(folder: Path, counts: list[int]) -> Iterator[Trace]:
    for number in range(len(counts)):
        path = folder / _file_name(number)
        file, description = open_tensors(path)
        for i in range(counts[number]):
            with report_damage(path):
                trace = read_trace(file, description["traces"][i], prefix=f"{i}/")
            yield trace


def _file_name(number: int) -> str:
    return f"traces-{number:05d}.safetensors"
