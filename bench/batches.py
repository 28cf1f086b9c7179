"""Batches from the token cache: tokens per second of one process, padding, and the rate of training steps with images.

    python bench/batches.py [--multi30k train.en train.de] [--seconds 2] [--json FILE]

The documents are the standard library of Python; the pairs are Multi30k's (also searched in $QKV_SHARED), or generated
ones of similar lengths. Padding is not counted as tokens; batches are complete torch tensors. On one H200 the fastest
training step consumes about 0.55M tokens/s for a 124M decoder and 1.5M (source and target together) for a base
encoder-decoder: batches must be built faster than that.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from qkv.blocks import HeadConfig, Payload, StackConfig
from qkv.blocks.front_ends import FRONT_ENDS, FrontEndConfig, FrontEndKind
from qkv.data import EncodeClass, EncodeText, Objective, Problems, SequenceStream, TokenCache, read
from qkv.data.builtin import find_dataset
from qkv.data.cache.writer import FieldStorage
from qkv.data.encode.payloads import EncodePayloads
from qkv.data.load.loader import Loader
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.classification import ClassificationObjective
from qkv.data.objectives.denoising import DenoisingObjective
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.objectives.seq2seq import EncodePair, Seq2SeqObjective
from qkv.data.objectives.span_corruption import SpanCorruptionObjective
from qkv.data.payloads import PayloadFormat
from qkv.data.records import FileLocation, Record
from qkv.data.stream.pack import group_by_length, pack
from qkv.models import Config, build
from qkv.text import Tokenizer
from qkv.train.loss.training_module import TrainingModule
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.parallel.world import World
from qkv.train.recipe.schema import ObjectiveSection, TrainSection
from qkv.train.step import Stepper

SHARED = Path(os.environ.get("QKV_SHARED", Path(__file__).parents[2] / "shared")) / "data" / "multi30k"
SPECIAL_TOKENS = ("pad", "bos", "eos", "mask", "sep", "cls")


def documents(folder: Path) -> tuple[TokenCache, Tokenizer]:
    """A cache of the standard library, one file a document."""
    texts = [example["text"] for example in find_dataset("stdlib").examples("train")]
    tokenizer = Tokenizer.train(
        "byte-bpe", iter(texts[::8]), vocab_size=8192, special_tokens=SPECIAL_TOKENS, num_sentinels=100, template="bert"
    )
    made = [Record({"text": text}, FileLocation("stdlib", number)) for number, text in enumerate(texts)]
    return TokenCache.build(made, EncodeText(tokenizer), folder / "stdlib"), tokenizer


def pairs(files: list[str] | None, folder: Path) -> tuple[TokenCache, Tokenizer, str]:
    """A cache of Multi30k, English to German; without the files, generated pairs of similar lengths."""
    if files is None and SHARED.exists():
        files = [str(SHARED / "train.en.gz"), str(SHARED / "train.de.gz")]
    if files is not None:
        corpus = "Multi30k"
        records = list(read({"source": files[0], "target": files[1]}, problems=Problems()))
    else:
        corpus = "generated pairs"
        random = np.random.default_rng(0)
        source = np.clip(random.lognormal(2.55, 0.35, 29_000), 3, 45).astype(int)
        target = np.maximum(3, source + random.integers(-4, 4, len(source)))
        sides = zip(source.tolist(), target.tolist(), strict=True)
        records = [
            Record({"source": "a " * one, "target": "b " * two}, FileLocation("generated")) for one, two in sides
        ]
    texts = [record.fields[side] for record in records[::2] for side in ("source", "target")]
    tokenizer = Tokenizer.train("byte-bpe", iter(texts), vocab_size=8192, special_tokens=SPECIAL_TOKENS)
    return TokenCache.build(records, EncodePair(tokenizer), folder / "pairs"), tokenizer, corpus


@dataclass(frozen=True, kw_only=True)
class PatchesConfig(FrontEndConfig):
    """Patches of 16 × 16 pixels with 3 colours."""

    kind: ClassVar[str] = "patches"
    features: int = 768

    def length(self, size: tuple[int, int]) -> int:
        return size[0] * size[1]


class Patches(nn.Module):
    """One linear layer for each patch."""

    def __init__(self, config: PatchesConfig, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(config.features, width)

    def forward(self, payload: Payload) -> Tensor:
        vectors: Tensor = self.project(payload.values.to(self.project.weight.dtype) / 255)
        return vectors


class PatchArrays(PayloadFormat):
    """Images of 14 × 14 patches, which are mirrored at random."""

    fingerprint = "patches"
    dtype = "uint8"
    storage = FieldStorage("uint8", (768,))

    def store(self, value: Any) -> tuple[np.ndarray, tuple[int, int]]:
        return value, (14, 14)

    def decode(self, stored: np.ndarray, size: tuple[int, int], key: int) -> np.ndarray:
        if not key % 2:
            return stored
        pixels = stored.reshape(*size, 16, 16, 3)[:, ::-1, :, ::-1]
        return np.ascontiguousarray(pixels).reshape(-1, 768)


def images(folder: Path, tokenizer: Tokenizer, count: int = 600) -> Objective:
    """The classification of images with random pixels."""
    random, format = np.random.default_rng(0), PatchArrays(PatchesConfig())
    made = (
        Record({"image": random.integers(0, 256, (196, 768), np.uint8), "label": str(n % 9)}, FileLocation("images", n))
        for n in range(count)
    )
    labels = EncodeClass(tokenizer, None, label="label", classes=[str(n) for n in range(9)])
    cache = TokenCache.build(made, EncodePayloads(labels, {"first": ("image", format)}), folder / "images")
    return ClassificationObjective(cache, tokenizer, max_length=198, num_classes=9, first_format=format)


def share_of_step_rate(objective: Objective, steps: int = 30) -> dict[str, Any]:
    """The rate of training steps with batches from workers, as a fraction of the rate with one fixed batch."""
    FRONT_ENDS.register("patches", FrontEndKind(PatchesConfig, Patches), replace=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    width, layers = (768, 12) if device.type == "cuda" else (192, 4)
    size = {"width": width, "layers": layers, "heads": width // 64, "ffn_width": 4 * width}
    stack = StackConfig(vocab_size=8192, max_positions=256, **size)
    config = Config(encoder=stack, head=HeadConfig(kind="classify", outputs=9), front_ends=(PatchesConfig(),))
    network = build(config, device=device)
    section = TrainSection(device=device.type, compile="no")
    module = TrainingModule(network, ObjectiveSection(kind="classification"))
    optimizer = make_optimizer(list(network.named_parameters()), section)
    stepper = Stepper(module, optimizer, section, World(device=device))
    stream = SequenceStream(objective, batch_tokens=32_768 if device.type == "cuda" else 2_048)
    is_gpu = device.type == "cuda"
    loader = Loader(stream, num_workers=2 if is_gpu else 1, pin_memory=is_gpu)
    batches = iter(loader)
    fixed, rates = next(batches), {}
    for name, source in (("warm-up", repeat(fixed)), ("fixed", repeat(fixed)), ("loader", batches)):
        stepper.pop_loss()
        begin = time.perf_counter()
        for step, batch in enumerate(islice(source, steps)):
            stepper(batch, step, 1e-4)
        stepper.pop_loss()  # waits for the GPU
        rates[name] = steps / (time.perf_counter() - begin)
    loader.close()
    return {
        "steps/s": str(device),
        "one fixed batch": rates["fixed"],
        "from workers": rates["loader"],
        "share %": 100 * rates["loader"] / rates["fixed"],
    }


def speed(name: str, objective: Objective, seconds: float, workers: int = 0, **choices: Any) -> dict[str, Any]:
    """Build batches of 32k tokens for this many seconds, after the first one."""
    begin = time.perf_counter()
    stream = SequenceStream(objective, batch_tokens=32_768, **choices)
    loader = Loader(stream, num_workers=workers)
    batches = iter(loader)
    next(batches)
    ready = time.perf_counter() - begin
    tokens = count = num_sequences = 0
    padding = 0.0
    begin = time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        batch = next(batches)
        tokens += batch.num_tokens
        padding += batch.padding_fraction
        num_sequences += batch.batch_size
        count += 1
    loader.close()
    return {
        "batches": name,
        "workers": workers,
        "shape": " + ".join(map(str, stream.max_lengths)),
        "sequences/s": num_sequences / passed,
        "M tokens/s": tokens / passed / 1e6,
        "padding %": 100 * padding / count,
        "first batch, ms": 1e3 * ready,
    }


def unsorted_padding(lengths: np.ndarray, batch: int = 32) -> float:
    """Batches of examples in random order, padded to the longest of each."""
    lengths = lengths[np.random.default_rng(0).permutation(len(lengths))]
    positions = sum(
        int(part.max(axis=0).sum()) * len(part)
        for part in (lengths[i : i + batch] for i in range(0, len(lengths), batch))
    )
    return 1 - lengths.sum() / positions


def padding(name: str, objective: Objective) -> dict[str, Any]:
    """The fraction of padding with three ways to form batches, over all examples of the data."""
    stream = SequenceStream(objective, batch_tokens=32 * sum(objective.max_lengths))
    rng = stream.order.epoch_orders[0].rng(0)
    lengths = objective.lengths(np.arange(objective.num_examples(rng)), rng)
    begin = time.perf_counter()
    pool = lengths[: stream.order.pool(0).example.size]
    pack(pool, objective.max_lengths, stream.max_documents)
    took = (time.perf_counter() - begin) / len(pool)
    _, first, widths = group_by_length(lengths, 32 * sum(objective.max_lengths))
    return {
        "examples of": name,
        "length": " + ".join(map(str, objective.max_lengths)),
        "examples": len(lengths),
        "packed %": 100 * stream.padding_fraction(stream.order.num_pools(1)),
        "by length %": 100 * (1 - lengths.sum() / (np.diff(first)[:, None] * widths).sum()),
        "unsorted %": 100 * unsorted_padding(lengths),
        "packing, µs each": 1e6 * took,
    }


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    shown = Table(title=title, title_justify="left")
    for number, name in enumerate(rows[0]):
        shown.add_column(name, justify="right" if number else "left")
    for row in rows:
        shown.add_row(*map(format_cell, row.values()))
    return shown


def format_cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.2f}" if isinstance(value, float) and value < 100 else f"{value:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--multi30k", nargs=2, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        text, tokenizer = documents(Path(temporary))
        pair, pair_tokenizer, corpus = pairs(arguments.multi30k, Path(temporary))
        causal = CausalLMObjective(text, tokenizer, max_length=1024)
        translation = Seq2SeqObjective(pair, pair_tokenizer, max_length=1024)
        timed = [
            ("causal_lm", causal, {}),
            ("causal_lm", causal, {"workers": 1}),
            ("causal_lm, random offset", CausalLMObjective(text, tokenizer, max_length=1024, random_offset=True), {}),
            (f"seq2seq: {corpus}", translation, {}),
            (f"seq2seq: {corpus}", translation, {"workers": 1}),
            (f"seq2seq: {corpus}", Seq2SeqObjective(pair, pair_tokenizer, max_length=256), {}),
            (
                f"seq2seq: {corpus}, padded",
                Seq2SeqObjective(pair, pair_tokenizer, max_length=256),
                {"layout": "padded"},
            ),
            ("masked_lm", MaskedLMObjective(text, tokenizer, max_length=512), {}),
            ("span_corruption", SpanCorruptionObjective(text, tokenizer, max_source_length=512), {}),
            ("denoising", DenoisingObjective(text, tokenizer, max_length=512), {}),
        ]
        pictures = images(Path(temporary), tokenizer)
        timed += [("images", pictures, {}), ("images", pictures, {"workers": 1})]
        shares = [share_of_step_rate(pictures)]
        speeds = [speed(name, objective, arguments.seconds, **choices) for name, objective, choices in timed]
        paddings = [
            padding(corpus, Seq2SeqObjective(pair, pair_tokenizer, max_length=length)) for length in (256, 512, 1024)
        ]
        paddings += [
            padding("stdlib", CausalLMObjective(text, tokenizer, max_length=length)) for length in (256, 1024, 2048)
        ]
    about = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }
    console = Console(width=110)
    console.print(table("Batches from the cache, one process (and its workers)", speeds))
    console.print(table("Training steps with images", shares))
    console.print(table("Padding", paddings))
    console.print(about)
    if arguments.json:
        found = {"about": about, "speed": speeds, "images": shares, "padding": paddings}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
