"""Choose the sizes of a new recipe from the amount of data, the machine, and the training time that the user has.

Training a model of P parameters (without input embeddings) on N tokens takes about 6·P·N floating-point operations. A
model is too large for its budget if it sees fewer than `MIN_TOKENS_PER_PARAMETER` tokens for each parameter.
"""

import math
import os
from dataclasses import dataclass, replace

import torch

from qkv.errors import count_nouns
from qkv.models.bfloat16 import has_bfloat16_instructions

CORE_FLOPS = {"float32": 6e10, "bfloat16": 1.4e11}
"""FLOP/s of one CPU core in training, about: half of the rate of large matrix products on a current server."""
GPU_FLOPS = 1e14
MIN_TOKENS_PER_PARAMETER = {1: 0.9, 2: 2.0}  # by the number of stacks
MIN_STEPS = 1000  # a smaller batch is better than fewer steps
MIN_LABEL_STEPS = 500  # of a model that learns labels
MIN_BATCH_TOKENS = 1024
CLASSIFIER_BATCH_TOKENS = 1024
TAGGER_BATCH_TOKENS = 1024
BYTES_PER_TOKEN = 4  # of English text, about
BYTES_PER_TAGGED_WORD = 8  # a word and its tag, about
ACTIVATION_BYTES = 136  # per token, layer and dimension of the width, about; in float32


@dataclass(frozen=True)
class Machine:
    """The machine that trains."""

    cores: int
    memory_bytes: float  # of the GPU, if there is one
    gpu: str = ""  # its name
    has_bfloat16: bool = False  # whether the CPU has instructions for it

    @property
    def flops_per_second(self) -> float:
        """The approximate speed of training."""
        return GPU_FLOPS if self.gpu else self.cores * CORE_FLOPS["bfloat16" if self.has_bfloat16 else "float32"]

    def __str__(self) -> str:
        device = self.gpu or f"{self.cores} CPU core{'s' if self.cores > 1 else ''}"
        return f"{device} with {self.memory_bytes / 1e9:.0f} GB"


def find_machine() -> Machine:
    """This machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return Machine(cores, properties.total_memory, properties.name)
    has_sysconf = hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if has_sysconf else 8e9
    return Machine(cores, memory, has_bfloat16=has_bfloat16_instructions())


@dataclass(frozen=True)
class StarterSize:
    """The sizes of a new model and of its batches."""

    vocab_size: int
    width: int
    layers: int
    dropout: float
    batch_tokens: int
    minutes: float
    lr: float
    valid_fraction: float
    max_epochs: int = 0  # 0: no limit
    ema_decay: float = 0.0  # 0: no average of the weights
    optimizer: str = ""  # empty: the default of `train.optimizer`
    embedding_width: int = 0  # 0: the width of the model
    embedding_window: int = 0  # neighbours on each side that the embedding of a token reads
    one_hot_positions: int = 0  # of the one-hot table of a head


@dataclass(frozen=True)
class DataSize:
    """What suits data of up to `max_bytes`, whatever the time."""

    max_bytes: float
    vocab_size: int
    dropout: float
    minutes: float
    valid_fraction: float


@dataclass(frozen=True)
class StackShape:
    """Width and depth of a stack, and what suits them. With less data than `min_bytes`, it would memorise the data."""

    min_bytes: float
    width: int
    layers: int
    vocab_size: int  # at most
    lr: float
    batch_tokens: int

    def num_parameters(self, num_stacks: int, vocab_size: int) -> int:
        """The parameters of the stacks and of the output matrix."""
        per_layer = 12 if num_stacks == 1 else 14  # cross-attention adds a third to the layers of a decoder
        return num_stacks * per_layer * self.layers * self.width**2 + min(vocab_size, self.vocab_size) * self.width


DATA_SIZES = (
    DataSize(2e6, 2000, 0.2, 10, 0.1),
    DataSize(2e8, 8000, 0.1, 60, 0.05),
    DataSize(float("inf"), 32_000, 0.1, 60, 0.01),
)
SHAPES = (
    StackShape(0, 128, 2, 2000, 2e-3, 4096),
    StackShape(4e5, 192, 3, 2000, 2e-3, 4096),
    StackShape(8e5, 256, 4, 8000, 2e-3, 16384),
    StackShape(2e8, 512, 6, 32_000, 6e-4, 65536),
)
"""From small to large; `bench/search_defaults.py` compared the first three."""


def choose_size(data_bytes: float, machine: Machine, minutes: float = 0.0, *, num_stacks: int = 1) -> StarterSize:
    """The largest size that suits the data and that the machine can train in `minutes` (0: the minutes of the data).

    An encoder-decoder has two stacks.

    >>> choose_size(1e9, Machine(cores=2, memory_bytes=24e9)).width
    256
    >>> choose_size(1e9, Machine(cores=2, memory_bytes=24e9), minutes=1).width
    128
    >>> choose_size(1e9, Machine(cores=16, memory_bytes=80e9, gpu="a GPU")).width
    512
    """
    data = find_data_size(data_bytes)
    minutes = minutes or data.minutes
    flops = machine.flops_per_second * 60 * minutes
    shape, parameters = SHAPES[0], SHAPES[0].num_parameters(num_stacks, data.vocab_size)
    for larger in SHAPES[1:]:
        count = larger.num_parameters(num_stacks, data.vocab_size)
        if larger.min_bytes < data_bytes and 6 * count * MIN_TOKENS_PER_PARAMETER[num_stacks] * count <= flops:
            shape, parameters = larger, count
    in_time = flops / (6 * parameters) / MIN_STEPS
    in_memory = machine.memory_bytes / 2 / (ACTIVATION_BYTES * num_stacks * shape.layers * shape.width)
    most = min(shape.batch_tokens, 4096) if data is DATA_SIZES[0] else shape.batch_tokens
    batch_tokens = 2 ** math.floor(math.log2(max(MIN_BATCH_TOKENS, min(most, in_time, in_memory))))
    vocab_size = min(data.vocab_size, shape.vocab_size)
    return StarterSize(
        vocab_size, shape.width, shape.layers, data.dropout, batch_tokens, minutes, shape.lr, data.valid_fraction
    )


def find_data_size(data_bytes: float) -> DataSize:
    """The row of `DATA_SIZES` for this much data."""
    return next(one for one in DATA_SIZES if data_bytes <= one.max_bytes)


def adapt_to_language(size: StarterSize, data_bytes: float) -> StarterSize:
    """The size for a language model, which memorises little data in more than about ten epochs.

    >>> machine = Machine(cores=2, memory_bytes=24e9)
    >>> [adapt_to_language(choose_size(one, machine), one).max_epochs for one in (1e6, 1e9)]
    [10, 0]
    """
    return replace(size, max_epochs=10) if find_data_size(data_bytes) is DATA_SIZES[0] else size


def adapt_to_pairs(size: StarterSize) -> StarterSize:
    """The size for an encoder-decoder of texts: it learns with Muon in fewer steps than with AdamW.

    >>> adapt_to_pairs(choose_size(1e6, Machine(cores=2, memory_bytes=24e9))).optimizer
    'muon'
    """
    return replace(size, optimizer="muon", lr=5e-3)


def adapt_to_classification(size: StarterSize, data_bytes: float) -> StarterSize:
    """The size for a classifier: labelled data is scarce, so the model is shallow, and its tokens are whole words.

    A model soon memorises few labels. So with little data the dropout is high, and the number of epochs is limited to
    ten, or to the epochs that `MIN_LABEL_STEPS` steps take.

    >>> size = choose_size(1e6, Machine(cores=2, memory_bytes=24e9))
    >>> adapt_to_classification(size, 1e6).max_epochs, adapt_to_classification(size, 1e4).max_epochs
    (10, 205)
    """
    is_little = find_data_size(data_bytes) is DATA_SIZES[0]
    epoch_steps = data_bytes / BYTES_PER_TOKEN / CLASSIFIER_BATCH_TOKENS
    return replace(
        size,
        vocab_size=max(size.vocab_size, 16_000),
        width=max(size.width, 256),
        layers=1 if is_little else max(1, size.layers // 2),
        dropout=0.4 if is_little else 0.3,
        batch_tokens=CLASSIFIER_BATCH_TOKENS,
        lr=1e-3,
        max_epochs=max(10, math.ceil(MIN_LABEL_STEPS / max(epoch_steps, 1))),
        ema_decay=0.99,
    )


def adapt_to_words(size: StarterSize, data_bytes: float) -> StarterSize:
    """The size for a tagger that reads words by their hashed features: small, because few tags are soon memorised.

    >>> size = choose_size(1e6, Machine(cores=2, memory_bytes=24e9))
    >>> adapt_to_words(size, 1e6).max_epochs, adapt_to_words(size, 1e4).max_epochs
    (30, 410)
    """
    epoch_steps = data_bytes / BYTES_PER_TAGGED_WORD / TAGGER_BATCH_TOKENS
    return replace(
        size,
        width=128,
        layers=2,
        dropout=0.4,
        batch_tokens=TAGGER_BATCH_TOKENS,
        lr=2e-3,
        max_epochs=max(30, math.ceil(MIN_LABEL_STEPS / max(epoch_steps, 1e-9))),
        ema_decay=0.99,
    )


def adapt_to_proteins(size: StarterSize, data_bytes: float, *, is_encoder: bool = True) -> StarterSize:
    """The size for proteins: a token is a single residue, so an encoder reads it together with its neighbours.

    >>> size = adapt_to_proteins(choose_size(1e5, Machine(2, 24e9)), 1e5)
    >>> size.layers, size.embedding_window
    (2, 8)
    """
    if not is_encoder or find_data_size(data_bytes) is not DATA_SIZES[0]:
        size = replace(size, layers=max(size.layers, 4), dropout=min(size.dropout, 0.2), batch_tokens=4096)
    else:
        size = replace(size, width=128, layers=2, dropout=min(size.dropout, 0.3), lr=1e-3, batch_tokens=2048)
    return replace(size, embedding_width=32, embedding_window=8) if is_encoder else size


def adapt_to_variants(size: StarterSize, num_residues: int) -> StarterSize:
    """The size for variants of one protein: the head also reads which residue is at which position.

    >>> adapt_to_variants(choose_size(1e5, Machine(2, 24e9)), 150).one_hot_positions
    152
    """
    return replace(size, dropout=0.1, valid_fraction=0.05, ema_decay=0.99, one_hot_positions=num_residues + 2)


@dataclass(frozen=True)
class FineTuning:
    """Settings for fine-tuning a trained model."""

    batch_tokens: int
    lr: float
    epochs: int
    epoch_minutes: float  # an estimate of the time that an epoch with all layers takes

    def describe_budget(self, minutes: float, min_epochs: float = 0.0) -> str:
        """What a budget buys on this machine, and whether a task needs more epochs.

        >>> tuning = FineTuning(1024, 3e-4, epochs=3, epoch_minutes=8.0)
        >>> tuning.describe_budget(3, min_epochs=2)
        '3 minutes are about 0.38 epochs on this machine, but the task needs about 2: --minutes 16'
        >>> tuning.describe_budget(0)
        '3 epochs take about 24 minutes on this machine (another time: --minutes)'
        """
        if not minutes:
            taken = f"{self.epochs * self.epoch_minutes:.2g} minutes"
            return f"{count_nouns(self.epochs, 'epoch')} take about {taken} on this machine (another time: --minutes)"
        epochs = minutes / self.epoch_minutes
        bought = f"{minutes:g} minutes are about {epochs:.2g} epochs on this machine"
        needed = f", but the task needs about {min_epochs:g}: --minutes {math.ceil(min_epochs * self.epoch_minutes)}"
        return bought + (needed if epochs < min_epochs else "")


def choose_fine_tuning(width: int, layers: int, tokens: float, machine: Machine) -> FineTuning:
    """Settings that suit a model of this width and depth, and the tokens of an epoch.

    >>> round(choose_fine_tuning(384, 6, 1e6, Machine(cores=2, memory_bytes=24e9)).epoch_minutes, 1)
    8.8
    """
    lr = 3e-4 if width < 512 else 5e-5 if width < 1024 else 2e-5
    epoch_seconds = 6 * 12 * layers * width**2 * tokens / machine.flops_per_second
    epochs = dict(zip(DATA_SIZES, (5, 3, 1), strict=True))[find_data_size(tokens * BYTES_PER_TOKEN)]
    return FineTuning(4096 if machine.gpu else 1024, lr, epochs, epoch_seconds / 60)
