"""Greedy steps of one row on a GPU, in the kernels of `one_row_kernels`: five a layer, and one graph for every length.

For plain pre-norm decoders (GPT-2, Llama and their like), with weights as they are or in int8. What else there is runs
the steps of `static.py`, which are also the reference.
"""

from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor, nn

from qkv.blocks.feedforward import GATED_ACTIVATIONS
from qkv.decode.gpu import fused_kernels as kernels
from qkv.decode.gpu.int8_weights import Int8Weight
from qkv.decode.gpu.static_runner import CacheView, StaticRunner
from qkv.models import Decoder, Seq2Seq

if TYPE_CHECKING:
    from qkv.decode.gpu.graphs import GreedyState

SLOTS_PER_PROGRAM = 256
"""Slots of the caches that one program reads."""
LOGITS_PER_PROGRAM = 1024
"""Logits that one program looks at."""
MAX_WEIGHTS_PER_THREAD = 128
"""Weights that a thread holds: it has 255 registers."""
NONE = "none"


def is_supported(network: Decoder | Seq2Seq) -> bool:
    """Whether this network is one that the kernels know, and nobody has changed its parts or listens to them."""
    if not isinstance(network, Decoder):
        return False
    config, head, embedding = network.decoder.config, network.head, network.embedding
    plain = (
        config.norm_placement == "pre"
        and config.residual == "serial"
        and config.qk_norm == "none"
        and config.position in ("learned", "rotary", "sinusoidal", "sinusoidal_split", "none")
        and not config.sliding_window
        and config.head_dim & (config.head_dim - 1) == 0
        and embedding.norm is None
        and embedding.types is None
        and embedding.project is None
        and head.dense is None
        and head.norm is None
        and head.scale == 1.0
        and not head.config.normalize
        and embedding.token.weight.dtype != torch.float64
    )
    return plain and all(_is_unmodified(module) for module in network.modules())


def _is_unmodified(module: nn.Module) -> bool:
    """Whether a module is what it seems to be, and its tensors lie as the kernels read them."""
    seems = next((kind for kind in (nn.Linear, nn.LayerNorm, nn.RMSNorm) if isinstance(module, kind)), None)
    untouched = not (module._forward_hooks or module._forward_pre_hooks)
    contiguous = all(tensor.is_contiguous() for tensor in module.parameters(recurse=False))
    return (seems is None or type(module) is seems) and untouched and contiguous


class FusedLinear:
    """norm → linear → bend → + what was there, of one vector."""

    def __init__(
        self, linear: nn.Module, *, norm: nn.Module | None = None, activation: str = NONE, gated: bool = False
    ) -> None:
        held: Any = linear
        whole = isinstance(linear, Int8Weight)
        self.weight: Tensor = held.whole if whole else held.weight
        self.bias: Tensor | None = held.shift if whole else held.bias
        self.scale: Tensor | None = held.scale if whole else None
        rows, self.inputs = self.weight.shape
        self.outputs = rows // 2 if gated else rows
        self.gated, self.activation = gated, activation
        self.norm = {nn.LayerNorm: "layernorm", nn.RMSNorm: "rmsnorm"}.get(type(norm), NONE)
        self.gain: Tensor | None = getattr(norm, "weight", None)
        self.shift: Tensor | None = getattr(norm, "bias", None)
        self.eps = getattr(norm, "eps", None) or (torch.finfo(torch.float32).eps if self.norm != NONE else 0.0)
        self.out = torch.empty(self.outputs, device=self.weight.device, dtype=torch.float32)
        self.block, self.warps = choose_tile(self.outputs, self.inputs, gated, whole)

    def __call__(self, x: Tensor, residual: Tensor | None = None, *, early_launch: bool) -> Tensor:
        pointers = [x if t is None else t for t in (self.scale, self.bias, self.gain, self.shift, residual)]
        kernels.fused_linear[(triton.cdiv(self.outputs, self.block),)](
            x,
            self.weight,
            *pointers,
            self.out,
            self.eps,
            IN=self.inputs,
            OUT=self.outputs,
            FULL=triton.next_power_of_2(self.inputs),
            BLOCK=self.block,
            NORM=self.norm,
            GAIN=self.gain is not None,
            SHIFT=self.shift is not None,
            SCALE=self.scale is not None,
            BIAS=self.bias is not None,
            ADD=residual is not None,
            BEND=self.activation,
            GATED=self.gated,
            EARLY=early_launch,
            num_warps=self.warps,
            **({"launch_pdl": True} if early_launch else {}),
        )
        return self.out


def choose_tile(outputs: int, inputs: int, gated: bool, whole: bool) -> tuple[int, int]:
    """How many outputs a program makes, and with how many warps."""
    block, warps = 2 if gated else 4, 8 if inputs > 4096 and not whole else 4
    weights = triton.next_power_of_2(inputs) * (2 if gated else 1) // (32 * warps)  # of a thread, for one output
    while block > 1 and block * weights > MAX_WEIGHTS_PER_THREAD:
        block //= 2
    return block, warps


def supports_early_launch(device: torch.device) -> bool:
    """Whether a kernel can start before the last one has ended: on NVIDIA's GPUs from Hopper on."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9


class FusedDecoder:
    """The network's part of a step of a `StaticRun` of one row."""

    def __init__(self, runner: StaticRunner, token: Tensor) -> None:
        self.runner, self.token = runner, token  # (1, 1) the newest
        stack, device = runner.stack, runner.mask.device
        config = stack.config
        self.early_launch = supports_early_launch(device)
        bend = GATED_ACTIVATIONS.get(config.feedforward, config.feedforward)
        gated = config.feedforward in GATED_ACTIVATIONS
        self.layers = []
        for layer in range(config.layers):
            block: Any = stack.block_of(layer)
            self.layers.append(
                (
                    FusedLinear(block.attention.qkv, norm=block.attention_sub.norm),
                    block.attention,
                    FusedLinear(block.attention.out),
                    FusedLinear(block.ffn.up, norm=block.ffn_sub.norm, activation=bend, gated=gated),
                    FusedLinear(block.ffn.down),
                )
            )
        assert runner.head.out is not None
        self.output_linear = FusedLinear(runner.head.out, norm=stack.norm)
        table = runner.rotaries.get(0)
        self.rotary_dim = 0 if table is None else table.cos.shape[-1]
        self.cos, self.sin = (runner.mask, runner.mask) if table is None else (table.cos[0, 0], table.sin[0, 0])
        self.num_splits = -(-runner.num_slots // SLOTS_PER_PROGRAM)
        self.x, self.attention_out = self._empty(config.width), self._empty(config.heads * config.head_dim)
        many = self.num_splits > 1
        self.partial_outputs = (
            self._empty(config.heads, self.num_splits, config.head_dim) if many else self.attention_out
        )
        self.partial_max, self.partial_sums = (self._empty(config.heads, self.num_splits) for _ in range(2))

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*shape, device=self.runner.mask.device, dtype=dtype)

    def logits(self) -> Tensor:
        """Read the newest token: (V,), in memory that the next step writes over.

        How much of the caches is filled is known on the device. Whoever calls moves on to the next position and slot.
        """
        x = self.embed()
        for layer, (qkv, attention, out, up, down) in enumerate(self.layers):
            mixed = self.attend(qkv(x, early_launch=self.early_launch), attention, layer)
            x = out(mixed, x, early_launch=self.early_launch)
            x = down(up(x, early_launch=self.early_launch), x, early_launch=self.early_launch)
        return self.output_linear(x, early_launch=self.early_launch)

    def embed(self) -> Tensor:
        embedding, width = self.runner.embedding, self.runner.stack.config.width
        table, places = embedding.token.weight, self.runner.position_table
        kernels.embed[(triton.cdiv(width, 256),)](
            self.token, table, self.runner.next_positions, table if places is None else places, self.x, embedding.scale,
            WIDTH=width, PLACES=places is not None, BLOCK=256, num_warps=1, **self._launch_options,
        )  # fmt: skip
        return self.x

    def attend(self, fused: Tensor, attention: Any, layer: int) -> Tensor:
        run, heads, width = self.runner, attention.heads, attention.head_dim
        keys, values = run.keys[layer], run.values[layer]
        kernels.attention[(heads, self.num_splits)](
            fused, self.cos, self.sin, run.next_positions, run.next_slots, keys, values, self.partial_outputs, self.partial_max, self.partial_sums,
            keys.stride(1), attention.scale, self.num_splits, H=heads, KV=attention.kv_heads, D=width,
            TURNED=self.rotary_dim, BLOCK=SLOTS_PER_PROGRAM, MANY=self.num_splits > 1, num_warps=8, **self._launch_options,
        )  # fmt: skip
        if self.num_splits > 1:
            kernels.merge_splits[(heads,)](
                self.partial_outputs, self.partial_max, self.partial_sums, self.attention_out, self.num_splits, D=width,
                FULL=triton.next_power_of_2(self.num_splits), num_warps=4, **self._launch_options,
            )  # fmt: skip
        return self.attention_out

    @property
    def _launch_options(self) -> dict[str, bool]:
        return {"EARLY": True, "launch_pdl": True} if self.early_launch else {"EARLY": False}


class FusedGreedyStep(FusedDecoder):
    """A greedy step: read the newest token, choose the next."""

    def __init__(self, runner: StaticRunner, greedy: "GreedyState") -> None:
        super().__init__(runner, greedy.token)
        self.greedy = greedy
        self.num_vocab_parts = -(-self.output_linear.outputs // LOGITS_PER_PROGRAM)
        self.part_max, self.part_sums = (self._empty(self.num_vocab_parts) for _ in range(2))
        self.part_argmax = self._empty(self.num_vocab_parts, dtype=torch.long)
        self.eos_tensor = torch.tensor(greedy.eos_token_ids or (-1,), device=runner.mask.device, dtype=torch.long)

    def __call__(self, seen: CacheView | None = None) -> None:
        self.choose(self.logits())

    def choose(self, logits: Tensor) -> None:
        greedy, run = self.greedy, self.runner
        kernels.partial_argmax[(self.num_vocab_parts,)](
            logits,
            self.part_max,
            self.part_argmax,
            self.part_sums,
            VOCAB=self.output_linear.outputs,
            BLOCK=LOGITS_PER_PROGRAM,
            num_warps=4,
            **self._launch_options,
        )
        kernels.finish_greedy_step[(1,)](
            self.part_max, self.part_argmax, self.part_sums, self.eos_tensor, greedy.token, greedy.ended, greedy.written, greedy.logprobs,
            greedy.num_written, run.next_positions, run.next_slots, PARTS=self.num_vocab_parts,
            FULL=triton.next_power_of_2(self.num_vocab_parts), ENDS=len(greedy.eos_token_ids), num_warps=4, **self._launch_options,
        )  # fmt: skip
