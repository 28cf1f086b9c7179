"""Text that every machine has: the sources of Python's standard library, cut to a size."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from qkv import Tokenizer
from qkv.data.builtin import Stdlib
from qkv_lab.experiment import Experiment

BYTE_MODEL: dict[str, Any] = {
    "objective.kind": "causal_lm",
    "tokenizer.kind": "byte",
    "data.max_length": 64,
    "model.width": 32,
    "model.layers": 2,
    "model.dropout": 0.0,
    "train.batch_tokens": 1024,
    "train.lr": 3e-3,
}
"""The recipe keys of a small language model of bytes. A CPU core takes about a hundred of its steps in a second."""


@cache
def standard_library() -> Stdlib:
    """The standard library's sources. Finding them reads every file, so it is done once."""
    return Stdlib()


def write_corpus(experiment: Experiment, train_bytes: int, valid_bytes: int) -> dict[str, str]:
    """Write training and validation text of given sizes, and return the recipe keys that name them.

    Files come in a fixed order, so a larger corpus contains a smaller one. The text differs between versions of Python.
    """
    keys = {}
    for split, size in (("train", train_bytes), ("valid", valid_bytes)):
        documents, left = [], size
        for example in standard_library().examples(split):
            text = example["text"][: min(left, 20_000)]
            documents.append(text)
            left -= len(text)
            if left <= 0:
                break
        keys[f"data.{split}"] = experiment.write_texts(f"{split}-{size}.jsonl", documents)
    return keys


def read_passages(path: str, tokenizer: Tokenizer, num_passages: int, length: int) -> list[list[int]]:
    """Token ids of passages of a file that `write_corpus` wrote, all of one length, spread over the file."""
    passages: list[list[int]] = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        ids = tokenizer.encode(json.loads(line)["text"], add_special_tokens=False)
        passages += [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]
    return passages[:: max(len(passages) // num_passages, 1)][:num_passages]
