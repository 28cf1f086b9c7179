"""Greedy steps of one row on a GPU, in the kernels of `one_row_kernels`: five a layer, and one graph for every length.

For plain pre-norm decoders (GPT-2, Llama and their like), with weights as they are or in int8. What else there is runs
the steps of `static.py`, which are also the reference.
"""

from typing import TYPE_CHECKING, Any

import torch
import triton
from torch import Tensor, nn

from qkv.blocks.feedforward import GATED
from qkv.decode import one_row_kernels as kernels
from qkv.decode.static_step import Seen, StaticRun
from qkv.decode.weight_int8 import Int8Weight
from qkv.models import Decoder, Seq2Seq

if TYPE_CHECKING:
    from qkv.decode.static import Greedy

BLOCK = 256
"""Slots of the caches that one program reads."""
PART = 1024
"""Logits that one program looks at."""
MOST = 128
"""Weights that a thread holds: it has 255 registers."""
NONE = "none"


def fits(network: Decoder | Seq2Seq) -> bool:
    """Whether this network is one that the kernels know, and nobody has changed its parts or listens to them."""
    if not isinstance(network, Decoder):
        return False
    config, head, embedding = network.decoder.config, network.head, network.embedding
    plain = (
        config.norm_place == "pre"
        and config.residual == "serial"
        and config.qk_norm == "none"
        and config.position in ("learned", "rotary", "sinusoidal", "sinusoidal_split", "none")
        and not config.window
        and config.head_width & (config.head_width - 1) == 0
        and embedding.norm is None
        and embedding.types is None
        and embedding.project is None
        and head.dense is None
        and head.norm is None
        and head.scale == 1.0
        and not head.config.unit
        and embedding.token.weight.dtype != torch.float64
    )
    return plain and all(_usual(module) for module in network.modules())


def _usual(module: nn.Module) -> bool:
    """Whether a module is what it seems to be, and its tensors lie as the kernels read them."""
    seems = next((kind for kind in (nn.Linear, nn.LayerNorm, nn.RMSNorm) if isinstance(module, kind)), None)
    untouched = not (module._forward_hooks or module._forward_pre_hooks)
    contiguous = all(tensor.is_contiguous() for tensor in module.parameters(recurse=False))
    return (seems is None or type(module) is seems) and untouched and contiguous


class Product:
    """norm → linear → bend → + what was there, of one vector."""

    def __init__(
        self, linear: nn.Module, *, norm: nn.Module | None = None, bend: str = NONE, gated: bool = False
    ) -> None:
        held: Any = linear
        whole = isinstance(linear, Int8Weight)
        self.weight: Tensor = held.whole if whole else held.weight
        self.bias: Tensor | None = held.shift if whole else held.bias
        self.scale: Tensor | None = held.scale if whole else None
        rows, self.inputs = self.weight.shape
        self.outputs = rows // 2 if gated else rows
        self.gated, self.bend = gated, bend
        self.norm = {nn.LayerNorm: "layernorm", nn.RMSNorm: "rmsnorm"}.get(type(norm), NONE)
        self.gain: Tensor | None = getattr(norm, "weight", None)
        self.shift: Tensor | None = getattr(norm, "bias", None)
        self.eps = getattr(norm, "eps", None) or (torch.finfo(torch.float32).eps if self.norm != NONE else 0.0)
        self.out = torch.empty(self.outputs, device=self.weight.device, dtype=torch.float32)
        self.block, self.warps = tile(self.outputs, self.inputs, gated, whole)

    def __call__(self, x: Tensor, add: Tensor | None = None, *, early: bool) -> Tensor:
        pointers = [x if t is None else t for t in (self.scale, self.bias, self.gain, self.shift, add)]
        kernels.product[(triton.cdiv(self.outputs, self.block),)](
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
            ADD=add is not None,
            BEND=self.bend,
            GATED=self.gated,
            EARLY=early,
            num_warps=self.warps,
            **({"launch_pdl": True} if early else {}),
        )
        return self.out


def tile(outputs: int, inputs: int, gated: bool, whole: bool) -> tuple[int, int]:
    """How many outputs a program makes, and with how many warps."""
    block, warps = 2 if gated else 4, 8 if inputs > 4096 and not whole else 4
    weights = triton.next_power_of_2(inputs) * (2 if gated else 1) // (32 * warps)  # of a thread, for one output
    while block > 1 and block * weights > MOST:
        block //= 2
    return block, warps


def starts_early(device: torch.device) -> bool:
    """Whether a kernel can start before the last one has ended: on NVIDIA's GPUs from Hopper on."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9


class OneRow:
    """The network's part of a step of a `StaticRun` of one row."""

    def __init__(self, run: StaticRun, token: Tensor) -> None:
        self.run, self.token = run, token  # (1, 1) the newest
        stack, device = run.stack, run.sight.device
        config = stack.config
        self.early = starts_early(device)
        bend = GATED.get(config.feedforward, config.feedforward)
        gated = config.feedforward in GATED
        self.layers = []
        for layer in range(config.layers):
            block: Any = stack.block_of(layer)
            self.layers.append(
                (
                    Product(block.attention.qkv, norm=block.attention_sub.norm),
                    block.attention,
                    Product(block.attention.out),
                    Product(block.ffn.up, norm=block.ffn_sub.norm, bend=bend, gated=gated),
                    Product(block.ffn.down),
                )
            )
        assert run.head.out is not None
        self.read = Product(run.head.out, norm=stack.norm)
        table = run.rotaries.get(0)
        self.turned = 0 if table is None else table.cos.shape[-1]
        self.cos, self.sin = (run.sight, run.sight) if table is None else (table.cos[0, 0], table.sin[0, 0])
        self.stretches = -(-run.length // BLOCK)
        self.x, self.mixed = self._empty(config.width), self._empty(config.heads * config.head_width)
        many = self.stretches > 1
        self.parts = self._empty(config.heads, self.stretches, config.head_width) if many else self.mixed
        self.most, self.weights = (self._empty(config.heads, self.stretches) for _ in range(2))

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*shape, device=self.run.sight.device, dtype=dtype)

    def logits(self) -> Tensor:
        """Read the newest token: (V,), in memory that the next step writes over.

        How much of the caches is filled is known on the device. Whoever calls moves on to the next position and slot.
        """
        x = self.embed()
        for layer, (qkv, attention, out, up, down) in enumerate(self.layers):
            mixed = self.attend(qkv(x, early=self.early), attention, layer)
            x = out(mixed, x, early=self.early)
            x = down(up(x, early=self.early), x, early=self.early)
        return self.read(x, early=self.early)

    def embed(self) -> Tensor:
        embedding, width = self.run.embedding, self.run.stack.config.width
        table, places = embedding.token.weight, self.run.places
        kernels.embed[(triton.cdiv(width, 256),)](
            self.token, table, self.run.position, table if places is None else places, self.x, embedding.scale,
            WIDTH=width, PLACES=places is not None, BLOCK=256, num_warps=1, **self._early,
        )  # fmt: skip
        return self.x

    def attend(self, fused: Tensor, attention: Any, layer: int) -> Tensor:
        run, heads, width = self.run, attention.heads, attention.width
        keys, values = run.keys[layer], run.values[layer]
        kernels.attend[(heads, self.stretches)](
            fused, self.cos, self.sin, run.position, run.slots, keys, values, self.parts, self.most, self.weights,
            keys.stride(1), attention.scale, self.stretches, H=heads, KV=attention.kv_heads, D=width,
            TURNED=self.turned, BLOCK=BLOCK, MANY=self.stretches > 1, num_warps=8, **self._early,
        )  # fmt: skip
        if self.stretches > 1:
            kernels.merge[(heads,)](
                self.parts, self.most, self.weights, self.mixed, self.stretches, D=width,
                FULL=triton.next_power_of_2(self.stretches), num_warps=4, **self._early,
            )  # fmt: skip
        return self.mixed

    @property
    def _early(self) -> dict[str, bool]:
        return {"EARLY": True, "launch_pdl": True} if self.early else {"EARLY": False}


class OneRowStep(OneRow):
    """A greedy step: read the newest token, choose the next."""

    def __init__(self, run: StaticRun, greedy: "Greedy") -> None:
        super().__init__(run, greedy.token)
        self.greedy = greedy
        self.vocabulary_parts = -(-self.read.outputs // PART)
        self.top, self.sums = (self._empty(self.vocabulary_parts) for _ in range(2))
        self.where = self._empty(self.vocabulary_parts, dtype=torch.long)
        self.ends = torch.tensor(greedy.end or (-1,), device=run.sight.device, dtype=torch.long)

    def __call__(self, seen: Seen | None = None) -> None:
        self.choose(self.logits())

    def choose(self, logits: Tensor) -> None:
        greedy, run = self.greedy, self.run
        kernels.peaks[(self.vocabulary_parts,)](
            logits, self.top, self.where, self.sums, VOCAB=self.read.outputs, BLOCK=PART, num_warps=4, **self._early
        )
        kernels.settle[(1,)](
            self.top, self.where, self.sums, self.ends, greedy.token, greedy.ended, greedy.written, greedy.logprobs,
            greedy.count, run.position, run.slots, PARTS=self.vocabulary_parts,
            FULL=triton.next_power_of_2(self.vocabulary_parts), ENDS=len(greedy.end), num_warps=4, **self._early,
        )  # fmt: skip
