"""From the user's files to batches of packed sequences, in an order that survives any interruption.

    files → records → (encode) → token cache → (objective) → examples → (pack) → sequences → batches

    readers/       reads files of any format as records
    problems.py    counts invalid data and reports its file and line
    split.py       splits off validation records
    dataset_stats  computes what `qkv data` shows
    ragged.py      indexes many short sequences in one flat array
    builtin/       the datasets that come with qkv
    encode/        turns records into integers
    cache/         stores encoded records in memory-mapped files, or in memory
    objectives/    turns encoded records into training examples, one file for each objective
    stream/        orders and packs the examples, and builds the arrays of a batch
    load/          the iterator that training uses, and its worker processes

Only `load` imports torch. It is imported when `Batch` or `Loader` is first used.
"""

from typing import TYPE_CHECKING

from qkv.lazy import lazy_names

if TYPE_CHECKING:
    from qkv.data.cache.examples import EncodedExamples, InMemoryExamples
    from qkv.data.cache.token_cache import TokenCache, token_cache
    from qkv.data.encode.chat import EncodeChat
    from qkv.data.encode.encoders import EncodeClass, EncodeText, find_classes
    from qkv.data.load.batch import Batch
    from qkv.data.load.loader import Loader
    from qkv.data.objectives import IGNORE_INDEX, Objective, SpecialTokenTemplate
    from qkv.data.problems import InvalidRecord, Problems
    from qkv.data.readers import DataFiles, read
    from qkv.data.records import FileLocation, Record
    from qkv.data.split import ValidationSplit
    from qkv.data.stream.sequences import SequenceStream
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "cache.examples": "EncodedExamples InMemoryExamples",
            "cache.token_cache": "TokenCache token_cache",
            "encode.chat": "EncodeChat",
            "encode.encoders": "EncodeClass EncodeText find_classes",
            "load.batch": "Batch",
            "load.loader": "Loader",
            "objectives": "IGNORE_INDEX Objective SpecialTokenTemplate",
            "problems": "InvalidRecord Problems",
            "readers": "DataFiles read",
            "records": "FileLocation Record",
            "split": "ValidationSplit",
            "stream.sequences": "SequenceStream",
        },
    )

__all__ = [
    "IGNORE_INDEX",
    "Batch",
    "DataFiles",
    "EncodeChat",
    "EncodeClass",
    "EncodeText",
    "EncodedExamples",
    "FileLocation",
    "InMemoryExamples",
    "InvalidRecord",
    "Loader",
    "Objective",
    "Problems",
    "Record",
    "SequenceStream",
    "SpecialTokenTemplate",
    "TokenCache",
    "ValidationSplit",
    "find_classes",
    "read",
    "token_cache",
]
