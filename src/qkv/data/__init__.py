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

from qkv.data.cache.examples import EncodedExamples, InMemoryExamples
from qkv.data.cache.token_cache import TokenCache, token_cache
from qkv.data.encode.chat import ChatTemplate, EncodeChat
from qkv.data.encode.encoders import EncodeAnswer, EncodeClass, EncodePair, EncodeTags, EncodeText, find_classes
from qkv.data.objectives import (
    IGNORE_INDEX,
    CausalLM,
    Classification,
    Contrastive,
    Denoising,
    MaskedLM,
    NextSentence,
    Objective,
    QuestionAnswering,
    Seq2SeqLM,
    SpanCorruption,
    SpecialTokenTemplate,
    Tagging,
)
from qkv.data.problems import InvalidRecord, Problems
from qkv.data.readers import DataFiles, read
from qkv.data.records import FileLocation, Record
from qkv.data.split import ValidationSplit
from qkv.data.stream.sequences import SequenceStream

if TYPE_CHECKING:
    from qkv.data.load.batch import Batch
    from qkv.data.load.loader import Loader

NEED_TORCH = {"Batch": "qkv.data.load.batch", "Loader": "qkv.data.load.loader"}

__all__ = [
    "IGNORE_INDEX",
    "Batch",
    "CausalLM",
    "ChatTemplate",
    "Classification",
    "Contrastive",
    "DataFiles",
    "Denoising",
    "EncodeAnswer",
    "EncodeChat",
    "EncodeClass",
    "EncodePair",
    "EncodeTags",
    "EncodeText",
    "EncodedExamples",
    "FileLocation",
    "InMemoryExamples",
    "InvalidRecord",
    "Loader",
    "MaskedLM",
    "NextSentence",
    "Objective",
    "Problems",
    "QuestionAnswering",
    "Record",
    "Seq2SeqLM",
    "SequenceStream",
    "SpanCorruption",
    "SpecialTokenTemplate",
    "Tagging",
    "TokenCache",
    "ValidationSplit",
    "find_classes",
    "read",
    "token_cache",
]


def __getattr__(name: str) -> Any:
    if name in NEED_TORCH:
        return getattr(import_module(NEED_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
