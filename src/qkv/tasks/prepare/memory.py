"""How much memory training will take, reckoned from shapes: an estimate, for deciding before anything runs.

Weights, gradients and the optimizer's state are counted exactly, on a network that has shapes alone. Activations are
what the backward pass needs of the forward pass; they depend on kernels and compilers and are worked out roughly:

    for each place and layer   (7 or 9) C + 4 H·D + (2 or 4) F numbers, with attention in kernels that keep no scores
    logits                     at the labelled places: in the precision of the arithmetic, and again in float32

C width, H·D width of all heads, F inner width of the feed-forward, V outputs
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from qkv.blocks import StackConfig
from qkv.models import Config, build
from qkv.tasks.prepare.model import apply_adapters
from qkv.train import step
from qkv.train.loss.training_module import MAX_LOGITS
from qkv.train.optim.optimizers import make_optimizer, optimizer_tensors
from qkv.train.recipe.schema import Recipe

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes, by what they are for. `parameters` is how many there are, `trained` how many of them change."""

    parameters: int
    trainable: int
    weights: int
    gradients: int
    optimizer: int
    ema: int  # of the weights, where the recipe keeps any
    activations: int
    tokens: int  # that the activations are reckoned for: one micro-batch of one process
    precision: str

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.ema + self.activations

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "total": self.total}


def estimate_memory(
    recipe: Recipe, config: Config, sequence_lengths: tuple[int, ...], labelled_fraction: float = 1.0
) -> MemoryEstimate:
    """An estimate for one process on its own; `rows` are the lengths of a row's sides, `labels` the share of target
    places with a label."""
    section = recipe.train
    network = build(config, device="meta")
    parameters = sum(one.numel() for one in network.parameters())
    network = apply_adapters(network, recipe, config)
    named = [(name, one) for name, one in network.named_parameters() if one.requires_grad]
    trained = sum(one.numel() for _, one in named)
    state = optimizer_tensors(make_optimizer(named, section), named)
    precision = resolve_precision(recipe)
    micro = section.micro_batch_tokens if isinstance(section.micro_batch_tokens, int) else 0
    micro = micro or section.batch_tokens
    count = max(1, micro // sum(sequence_lengths))  # rows of a micro-batch
    return MemoryEstimate(
        parameters=parameters,
        trainable=trained,
        weights=4 * sum(one.numel() for one in network.parameters()),
        gradients=4 * trained,
        optimizer=sum(one.numel() * one.element_size() for one in state.values()),
        ema=4 * trained if section.ema_decay else 0,
        activations=activation_bytes(
            config, count, sequence_lengths, labelled_fraction, precision, section.gradient_checkpointing
        ),
        tokens=count * sum(sequence_lengths),
        precision=precision,
    )


def resolve_precision(recipe: Recipe) -> str:
    """What the arithmetic is done in. A GPU that is asked for and not here is taken for one that has bfloat16."""
    section, here = recipe.train, torch.cuda.is_available()
    asked = section.device.startswith("cuda")
    if section.precision == "auto" and asked and not here:
        return "bfloat16"
    gpu = asked or (section.device == "auto" and here)
    return step.resolve_precision(section, torch.device("cuda" if gpu else "cpu"))


def activation_bytes(
    config: Config,
    batch_size: int,
    sequence_lengths: tuple[int, ...],
    labelled_fraction: float,
    precision: str,
    gradient_checkpointing: bool,
) -> int:
    """Bytes that the backward pass of one micro-batch needs."""
    size = DTYPE_BYTES[precision]
    target, source = sequence_lengths[0], sequence_lengths[-1]
    total = 0
    if config.decoder is not None:
        total += stack_bytes(
            config.decoder, batch_size * target, config.encoder is not None, size, gradient_checkpointing
        )
        if config.encoder is not None:
            read = 2 * config.decoder.layers * config.decoder.kv_heads * config.decoder.head_dim
            total += read * batch_size * source * size
    if config.encoder is not None:
        both = len(sequence_lengths) > 1 and config.decoder is None  # pairs of texts through one encoder
        total += stack_bytes(
            config.encoder,
            batch_size * (sum(sequence_lengths) if both else source),
            False,
            size,
            gradient_checkpointing,
        )
    if config.head.kind in ("lm", "mlm", "tag"):
        logits = min(int(batch_size * target * labelled_fraction) * config.head.outputs, MAX_LOGITS["cuda"])
        total += logits * (size + 4)
    return total


def stack_bytes(stack: StackConfig, tokens: int, cross: bool, dtype_bytes: int, gradient_checkpointing: bool) -> int:
    """Bytes kept of one stack's forward pass."""
    inner = stack.heads * stack.head_dim
    gates = 4 if "glu" in stack.feedforward else 2
    streams = 9 if stack.dropout else 7
    layer = streams * stack.width + 4 * inner + gates * stack.ffn_width
    if cross:
        layer += 4 * stack.width + 2 * inner
    kept = stack.width * stack.layers + layer if gradient_checkpointing else layer * stack.layers
    return tokens * kept * dtype_bytes
