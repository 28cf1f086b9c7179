"""A language model of Python code, trained on the standard library of the Python that runs it.

Data: the .py files of the standard library, without tests, as the built-in dataset `stdlib` finds them. Each package,
or module outside of packages, is in one split only. A hash of its name chooses one of 50 buckets: two are for the test,
three for validation.
Published: nothing.
Goal: our bits per byte on packages that training has not seen, and the fraction of samples that parse as Python, with
about 10M parameters and 3 minutes on one H200.
"""

import ast
import hashlib
import warnings
from pathlib import Path
from typing import Any

import torch

from qkv.data.builtin.stdlib import Stdlib
from rows import frame

NUM_SAMPLES, SAMPLE_TOKENS = 200, 512
RECIPE = """
[data]
max_length = 1024

[tokenizer]
kind = "byte-bpe"
vocab_size = 6400

[model]
width = 320
heads = 5
ffn_width = 896
layers = 6
max_positions = 1024
dropout = 0.2

[objective]
kind = "causal_lm"
random_offset = true

[train]
steps = 2400
minutes = 3
batch_tokens = 65_536
optimizer = "muon"
lr = 5e-3
weight_decay = 0.1
schedule = "cosine"
num_workers = 2
eval_every = 200
final = "best"
metric = "loss"
"""


def split_of(path: str) -> str:
    """The split of a file, which depends on its package only.

    >>> split_of("json/decoder.py") == split_of("json/encoder.py")
    True
    """
    package = path.split("/")[0].removesuffix(".py")
    bucket = int.from_bytes(hashlib.sha256(package.encode()).digest()[:4], "big") % 50
    return "test" if bucket in (0, 1) else "valid" if bucket in (2, 3, 4) else "train"


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Train, write the loss of each test file, and samples."""
    library = Stdlib()
    files = sorted(path for paths in library.paths.values() for path in paths)
    parts: dict[str, list[dict[str, str]]] = {"train": [], "valid": [], "test": []}
    for path in files:
        parts[split_of(path)].append({"text": (library.folder / path).read_text(encoding="utf-8"), "path": path})
    if quick:
        parts = {name: [{**one, "text": one["text"][:3000]} for one in part[:4]] for name, part in parts.items()}
    changes = frame.write_parts(out, train=parts["train"], valid=parts["valid"])
    trained = frame.train(RECIPE, out, changes, seed=seed, quick=quick)
    lines: list[dict[str, Any]] = frame.text_losses(trained, [one["text"] for one in parts["test"]], max_length=1024)
    losses = [
        {"path": one["path"], "nats": line["nats"], "bytes": line["bytes"]}
        for one, line in zip(parts["test"], lines, strict=True)
    ]
    model = trained.load()
    tokenizer = model.tokenizer
    assert tokenizer is not None
    bos = tokenizer.special_tokens.bos
    options: dict[str, Any] = {"max_tokens": 16 if quick else SAMPLE_TOKENS, "temperature": 0.8, "top_p": 0.95}
    count = 4 if quick else NUM_SAMPLES
    torch.manual_seed(seed)  # the option `seed` would give the same text for each equal prompt
    drawn = model.generate([[bos]] * count, **options)
    samples = [{"sample": one.text, "ended": one.finish_reason != "length"} for one in drawn]
    # The control: real files, cut after as many characters as the samples have on average.
    length = sum(len(one.text) for one in drawn) // count
    samples += [{"control": one["text"][:length], "ended": len(one["text"]) <= length} for one in parts["test"]]
    frame.write_jsonl(out / "predictions.jsonl", losses + samples)
    sizes = {name: sum(len(one["text"].encode()) for one in part) for name, part in parts.items()}
    return {**trained.to_dict(), "bytes": sizes, "files": {name: len(part) for name, part in parts.items()}}


def parses(text: str, ended: bool) -> bool:
    """Whether a text parses as Python. A text that was cut off loses its last top-level statement first.

    >>> parses("x = 1\\ndef f(", ended=False), parses("x = 1\\ndef f(", ended=True)
    (True, False)
    """
    if not ended:
        lines = text.split("\n")
        starts = [i for i, line in enumerate(lines) if line[:1].strip() and line[0] not in ")]}#"]
        text = "\n".join(lines[: starts[-1]] if starts else [])
        if not text.strip():
            return False  # nothing is left to parse
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Bits per byte, which resamples files; the percentage of samples that parse, and of real files cut like them."""
    losses = [line for line in predictions if "nats" in line]
    nats, num_bytes = [line["nats"] for line in losses], [line["bytes"] for line in losses]
    scores = {"bits per byte": frame.interval(nats, num_bytes, scale=1.4426950408889634)}
    for kind, name in (("sample", "samples that parse"), ("control", "real files that parse, cut like samples")):
        texts = [line for line in predictions if kind in line]
        scores[name] = frame.interval([parses(line[kind], line["ended"]) for line in texts], scale=100)
    return scores
