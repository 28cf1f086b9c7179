"""An estimate of the memory that training takes, from shapes alone, before anything runs.

Weights, gradients and the optimizer's state are counted exactly, on a network on the meta device, which takes no
memory. Activations are the tensors that the forward pass keeps for the backward pass. They depend on kernels and
compilers, so they are estimated:

    per token and layer   what the parts state (blocks/cost.py); attention kernels keep no scores
    logits                at labelled positions, once in the compute dtype and once in float32
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from qkv.blocks import StackConfig
from qkv.blocks.parts import find_part, part_cost
from qkv.data.load.batch import Batch
from qkv.data.load.loader import Loader
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import UsageError
from qkv.models import Config, build
from qkv.models.tables.summary import count_parameters
from qkv.tasks.prepare.model import apply_adapters
from qkv.train import step
from qkv.train.loss.training_module import MAX_LOGITS
from qkv.train.optim.optimizers import make_optimizer, optimizer_tensors
from qkv.train.recipe.schema import Recipe

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
USABLE_FRACTION = 0.9
"""The fraction of the free memory that a run may plan with: the estimate is not exact."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by purpose. `parameters` and `trainable` are numbers of parameters."""

    parameters: int
    trainable: int
    weights: int
    gradients: int
    optimizer: int
    ema: int  # the moving average of the weights, if the recipe has one
    activations: int
    tokens: int  # tokens of one micro-batch on one rank, for which activations are estimated
    precision: str

    @property
    def fixed(self) -> int:
        """The bytes that do not depend on the size of a micro-batch."""
        return self.weights + self.gradients + self.optimizer + self.ema

    @property
    def total(self) -> int:
        """All bytes."""
        return self.fixed + self.activations

    def to_dict(self) -> dict[str, Any]:
        """The estimate for JSON, with its total."""
        return {**asdict(self), "total": self.total}


def estimate_memory(
    recipe: Recipe,
    config: Config,
    sequence_lengths: tuple[int, ...],
    labelled_fraction: float = 1.0,
    max_source_length: int = 0,
) -> MemoryEstimate:
    """Estimate the memory of a single-process run.

    `sequence_lengths` are the lengths of target and source. `labelled_fraction` is the fraction of target positions
    that have a label. No source is longer than `max_source_length` tokens (0: unknown); sequences may pack several.
    """
    section = recipe.train
    network = build(config, device="meta")
    parameters = sum(parameter.numel() for parameter in network.parameters())
    network = apply_adapters(network, recipe, config)
    named = [(name, one) for name, one in network.named_parameters() if one.requires_grad]
    trainable = sum(one.numel() for _, one in named)
    state = optimizer_tensors(make_optimizer(named, section), named)
    precision = resolve_precision(recipe)
    micro_batch = section.micro_batch_tokens if isinstance(section.micro_batch_tokens, int) else 0
    batch_size = max(1, (micro_batch or section.batch_tokens) // sum(sequence_lengths))
    return MemoryEstimate(
        parameters=parameters,
        trainable=trainable,
        weights=4 * sum(parameter.numel() for parameter in network.parameters()),
        gradients=4 * trainable,
        optimizer=sum(one.numel() * one.element_size() for one in state.values()),
        ema=4 * trainable if section.ema_decay else 0,
        activations=activation_bytes(
            config,
            batch_size,
            sequence_lengths,
            labelled_fraction,
            precision,
            section.gradient_checkpointing,
            max_source_length,
        ),
        tokens=batch_size * sum(sequence_lengths),
        precision=precision,
    )


def check_fixed_memory(recipe: Recipe, config: Config, free: int | None) -> None:
    """Raise an error if weights, gradients and the optimizer's state alone do not fit into `free` bytes."""
    if free is None:
        return
    usable = USABLE_FRACTION * free
    needed, bound = min_weight_bytes(config), "more than"  # the exact estimate takes seconds for thousands of layers
    if needed <= usable:
        needed, bound = estimate_memory(recipe, config, (1,)).fixed, "about"
    if needed > usable:
        raise UsageError(
            f"this model needs {bound} {needed / 1e9:,.1f} GB of memory for weights, gradients and optimizer, and only "
            f"{free / 1e9:,.1f} GB are free. Train a smaller one (model.width, model.layers), adapt a trained one with "
            "model.lora_rank = 8, or use a machine with more memory"
        )


def min_weight_bytes(config: Config) -> int:
    """The bytes of the weights, without building the network."""
    return 4 * sum(count_parameters(config).values())


def choose_micro_batch(
    recipe: Recipe, config: Config, data: SequenceStream, free: int | None, *, can_split: bool = True, shards: int = 1
) -> tuple[int, str]:
    """Return the tokens of a micro-batch that fits into `free` bytes (0: the batch fits), and a note for the user.

    If a run needs more memory than is free, an error says what change helps. `can_split` is False if a batch must not
    be split. `shards` is the number of ranks that share the weights.
    """
    if free is None:
        return 0, ""
    section, sequence, usable = recipe.train, sum(data.max_lengths), int(USABLE_FRACTION * free)
    batch = next(iter(Loader(data)))
    fraction, max_source = labelled_fraction(batch), longest_source(batch)
    estimate = estimate_memory(recipe, config, data.max_lengths, fraction)

    def needed(tokens: int, checkpointing: bool = section.gradient_checkpointing) -> int:
        batch_size = max(1, tokens // sequence)
        return estimate.fixed // shards + activation_bytes(
            config, batch_size, data.max_lengths, fraction, estimate.precision, checkpointing, max_source
        )

    def describe(tokens: int) -> str:
        needs = f"a step needs about {needed(tokens) / 1e9:,.1f} GB of memory for {tokens:,} tokens at a time"
        return f"{needs}, and only {free / 1e9:,.1f} GB are free"

    is_auto = section.micro_batch_tokens == "auto"
    first = section.batch_tokens if is_auto else int(section.micro_batch_tokens) or section.batch_tokens
    size = first
    while can_split and size > sequence and needed(size) > usable:
        size = max(size // 2 // sequence, 1) * sequence
    if needed(size) <= usable:
        if size == first:
            return 0, ""
        if is_auto:
            return size, f"{describe(first)}: it is computed in micro-batches of {size:,} tokens"
        raise UsageError(
            f"train.micro_batch_tokens = {section.micro_batch_tokens}: {describe(first)}, so the system would end the "
            f'run. Set train.micro_batch_tokens = "auto", which takes {size:,} tokens at a time'
        )
    if not section.gradient_checkpointing and needed(size, checkpointing=True) <= usable:
        change = "Set train.gradient_checkpointing = true, which computes a third more"
    else:
        change = f"Lower {'data.max_length' if can_split else 'train.batch_tokens'}, or train a smaller model"
    raise UsageError(f"{describe(size)}, so the system would end the run. {change}")


def longest_source(batch: Batch) -> int:
    """An upper bound on the length of the sources of a batch; 0 if it has none."""
    return 0 if batch.inputs.source is None else batch.inputs.source.max_document_length


def labelled_fraction(batch: Batch) -> float:
    """The fraction of a batch's target positions that have a label."""
    labels = batch.token_labels
    return 0.0 if labels is None else batch.num_token_labels / labels.numel()


def resolve_precision(recipe: Recipe) -> str:
    """The compute dtype. A GPU that is requested but not in this machine is assumed to support bfloat16."""
    section, has_gpu = recipe.train, torch.cuda.is_available()
    wants_gpu = section.device.startswith("cuda")
    if section.precision == "auto" and wants_gpu and not has_gpu:
        return "bfloat16"
    gpu = wants_gpu or (section.device == "auto" and has_gpu)
    return step.resolve_precision(section, torch.device("cuda" if gpu else "cpu"))


def activation_bytes(
    config: Config,
    batch_size: int,
    sequence_lengths: tuple[int, ...],
    labelled_fraction: float,
    precision: str,
    gradient_checkpointing: bool,
    max_source_length: int = 0,
) -> int:
    """The bytes of the activations of one micro-batch."""
    size = DTYPE_BYTES[precision]
    target, source = sequence_lengths[0], sequence_lengths[-1]
    total = 0
    if config.decoder is not None:
        has_source = config.encoder is not None
        total += stack_bytes(
            config.decoder,
            batch_size * target,
            size,
            gradient_checkpointing,
            source_tokens=batch_size * source if has_source else 0,
            source_length=min(max_source_length or source, source) if has_source else 0,
        )
    if config.encoder is not None:
        both = len(sequence_lengths) > 1 and config.decoder is None  # one encoder reads both texts of a pair
        total += stack_bytes(
            config.encoder,
            batch_size * (sum(sequence_lengths) if both else source),
            size,
            gradient_checkpointing,
        )
    if config.head.kind in ("lm", "mlm", "tag"):
        logits = min(int(batch_size * target * labelled_fraction) * config.head.outputs, MAX_LOGITS["cuda"])
        total += logits * (size + 4)
    return total


def stack_bytes(
    stack: StackConfig,
    tokens: int,
    dtype_bytes: int,
    gradient_checkpointing: bool,
    *,
    source_tokens: int = 0,
    source_length: int = 0,
) -> int:
    """The bytes of the activations of one stack, which attends to `source_tokens`, at most `source_length` at once."""
    part, cross = find_part("block", stack), source_tokens > 0
    if part.activations is not None:  # they are float32
        sizes = (stack, tokens, source_tokens, source_length, gradient_checkpointing)
        return 4 * part.activations(*sizes, **part.options)
    cost = part_cost("block", stack, cross=cross, **({} if stack.has_blocks else {"name": "", "causal": True}))
    kept = stack.width * stack.layers + cost.activations if gradient_checkpointing else cost.activations * stack.layers
    return dtype_bytes * (tokens * kept + source_tokens * cost.cached_of_source * stack.layers)
