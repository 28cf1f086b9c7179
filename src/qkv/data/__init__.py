"""From the user's files to packed rows: exactly, fast, and in an order that survives any interruption.

    files → records → (encode) → token cache → (objective) → examples → (pack) → rows → batches

    readers, records, problems, split      files of any format as records; bad data is counted and named
    encode, chat, align                    records → integers
    cache                                  tokenised once, read back from memory-mapped files (`examples`: in memory)
    objectives/                            integers → training examples, one file for each thing a model can learn
    draw, order, mixture                   random choices and orders that are computed, not stored
    pack, rows, fill, batch                examples → rows of fixed length → tensors
    loader, workers                        the iterator that training uses, and its processes

Nothing here imports torch but `batch` and `loader`, which are imported when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qkv.data.cache import TokenCache, token_cache
from qkv.data.chat import ChatTemplate, EncodeChat
from qkv.data.encode import EncodeAnswer, EncodeClass, EncodePair, EncodeTags, EncodeText, classes_of
from qkv.data.examples import Examples, MemoryExamples
from qkv.data.objectives import (
    IGNORE,
    Answers,
    Classify,
    Contrast,
    Denoise,
    Frame,
    MaskedLM,
    NextSentence,
    NextToken,
    Objective,
    Pairs,
    SpanCorruption,
    Tags,
)
from qkv.data.problems import BadRecord, Problems
from qkv.data.readers import Files, read
from qkv.data.records import Record, Where
from qkv.data.rows import Rows
from qkv.data.split import Split

if TYPE_CHECKING:
    from qkv.data.batch import Batch
    from qkv.data.loader import Loader

NEED_TORCH = {"Batch": "qkv.data.batch", "Loader": "qkv.data.loader"}

__all__ = [
    "IGNORE",
    "Answers",
    "BadRecord",
    "Batch",
    "ChatTemplate",
    "Classify",
    "Contrast",
    "Denoise",
    "EncodeAnswer",
    "EncodeChat",
    "EncodeClass",
    "EncodePair",
    "EncodeTags",
    "EncodeText",
    "Examples",
    "Files",
    "Frame",
    "Loader",
    "MaskedLM",
    "MemoryExamples",
    "NextSentence",
    "NextToken",
    "Objective",
    "Pairs",
    "Problems",
    "Record",
    "Rows",
    "SpanCorruption",
    "Split",
    "Tags",
    "TokenCache",
    "Where",
    "classes_of",
    "read",
    "token_cache",
]


def __getattr__(name: str) -> Any:
    if name in NEED_TORCH:
        return getattr(import_module(NEED_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
