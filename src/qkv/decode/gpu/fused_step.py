"""Decoding steps of one sequence on a GPU with the kernels of `fused_kernels`.

A layer is five kernels, or six if the slots are in several splits, which a kernel then merges.

They support plain pre-norm decoders such as GPT-2 and Llama. All other networks run the steps of `static_runner`, which
are the reference for these steps.
"""

from typing import Any

import torch
import triton
from torch import Tensor, nn

from qkv.blocks.norm import RMSNorm
from qkv.decode.gpu import fused_kernels as kernels
from qkv.decode.gpu.greedy import GreedyState
from qkv.decode.gpu.static_runner import CacheView, StaticRunner
from qkv.decode.support import CALLABLE, EVERY_CHOICE, REPLICATED, Choices, is_unmodified, supports
from qkv.models import Network

SLOTS_PER_PROGRAM = 256
LOGITS_PER_PROGRAM = 1024
COLUMNS_PER_PROGRAM = 256
MAX_WEIGHTS_PER_THREAD = 128  # a thread has 255 registers

CHOICES: Choices = {
    **EVERY_CHOICE,
    "position": frozenset({"learned", "rotary", "sinusoidal", "sinusoidal_split", "none"}),
    "norm_placement": frozenset({"pre"}),
    "embedding_norm": frozenset({"none"}),
    "qk_norm": frozenset({"none"}),
    "residual": frozenset({"serial"}),
}
"""The config values that these kernels implement."""


def is_supported(network: Network) -> bool:
    """Return whether the kernels implement this network, and none of its modules was replaced or has a hook."""
    if network.has_source or not supports(CHOICES, network.output_stack.config):
        return False
    config, head, embedding = network.output_stack.config, network.head, network.output_embedding
    is_plain = (
        not config.sliding_window
        and config.head_dim & (config.head_dim - 1) == 0
        and embedding.norm is None
        and embedding.types is None
        and embedding.project is None
        and head.dense is None
        and head.norm is None
        and head.scale == 1.0
        and not (head.config.normalize or head.config.logit_cap)
        and embedding.token.weight.dtype != torch.float64
    )
    parts = (embedding, network.output_stack, head)
    return is_plain and is_unmodified(network) and all(_is_readable(one) for part in parts for one in part.modules())


def _is_readable(module: nn.Module) -> bool:
    """Return whether the kernels, which read the parameters themselves, know the module, and they are contiguous."""
    is_known = type(module) in (*REPLICATED, *CALLABLE)
    return is_known and all(tensor.is_contiguous() for tensor in module.parameters(recurse=False))


class FusedLinear:
    """Runs norm, linear map, activation and residual sum on one vector, in one kernel."""

    def __init__(
        self, linear: Any, *, norm: nn.Module | None = None, activation: str = "none", gated: bool = False
    ) -> None:
        self.weight: Tensor = linear.weight
        self.bias: Tensor | None = linear.bias
        rows, self.inputs = self.weight.shape
        self.outputs = rows // 2 if gated else rows
        self.gated, self.activation = gated, activation
        self.norm = {nn.LayerNorm: "layernorm", RMSNorm: "rmsnorm"}.get(type(norm), "none")
        self.norm_weight: Tensor | None = getattr(norm, "weight", None)
        self.norm_bias: Tensor | None = getattr(norm, "bias", None)
        self.eps = getattr(norm, "eps", None) or (torch.finfo(torch.float32).eps if self.norm != "none" else 0.0)
        self.out = torch.empty(self.outputs, device=self.weight.device, dtype=torch.float32)
        self.block, self.warps = choose_tile(self.outputs, self.inputs, gated)

    def __call__(self, x: Tensor, residual: Tensor | None = None, *, launch: dict[str, bool]) -> Tensor:
        """Return the outputs, in memory that the next call overwrites. `launch` are the kernel's launch options."""
        optional = (self.bias, self.norm_weight, self.norm_bias, residual)
        kernels.fused_linear[(triton.cdiv(self.outputs, self.block),)](
            x,
            self.weight,
            *(x if tensor is None else tensor for tensor in optional),
            self.out,
            self.eps,
            IN=self.inputs,
            OUT=self.outputs,
            PADDED=triton.next_power_of_2(self.inputs),
            BLOCK=self.block,
            NORM=self.norm,
            NORM_WEIGHT=self.norm_weight is not None,
            NORM_BIAS=self.norm_bias is not None,
            BIAS=self.bias is not None,
            RESIDUAL=residual is not None,
            ACTIVATION=self.activation,
            GATED=self.gated,
            num_warps=self.warps,
            **launch,
        )
        return self.out


def choose_tile(outputs: int, inputs: int, gated: bool) -> tuple[int, int]:
    """Return the number of outputs that a program computes, and its number of warps."""
    block, warps = 2 if gated else 4, 8 if inputs > 4096 else 4
    weights_per_thread = triton.next_power_of_2(inputs) * (2 if gated else 1) // (32 * warps)  # for one output
    while block > 1 and block * weights_per_thread > MAX_WEIGHTS_PER_THREAD:
        block //= 2
    return block, warps


def supports_early_launch(device: torch.device) -> bool:
    """Return whether a kernel can start before the previous one ends: on NVIDIA GPUs since Hopper."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9


class FusedDecoder:
    """Computes the logits of a step with the fused kernels, for a `StaticRunner` with one sequence."""

    def __init__(self, runner: StaticRunner, token: Tensor) -> None:
        self.runner, self.token = runner, token  # (1, 1), the newest token
        stack, config = runner.stack, runner.stack.config
        early = supports_early_launch(runner.mask.device)
        self.launch = {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}
        blocks: list[Any] = [stack.block_of(layer) for layer in range(config.layers)]
        self.layers = [
            (
                FusedLinear(block.attention.qkv, norm=block.attention_sub.norm),
                block.attention,
                FusedLinear(block.attention.out),
                FusedLinear(
                    block.ffn.up,
                    norm=block.ffn_sub.norm,
                    activation=block.ffn.activation_name,
                    gated=block.ffn.gated,
                ),
                FusedLinear(block.ffn.down),
            )
            for block in blocks
        ]
        assert runner.head.out is not None
        self.output_linear = FusedLinear(runner.head.out, norm=stack.norm)
        table = runner.rotaries.get(0)
        self.rotary_dim = 0 if table is None else table.cos.shape[-1]
        self.cos, self.sin = (runner.mask, runner.mask) if table is None else (table.cos[0, 0], table.sin[0, 0])
        heads, dim, self.num_splits = config.heads, config.head_dim, -(-runner.num_slots // SLOTS_PER_PROGRAM)
        self.x, self.attention_out = self._empty(config.width), self._empty(heads * dim)
        self.partial_outputs = self._empty(heads, self.num_splits, dim) if self.num_splits > 1 else self.attention_out
        self.partial_max, self.partial_sums = (self._empty(heads, self.num_splits) for _ in range(2))

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(*shape, device=self.runner.mask.device, dtype=dtype)

    def logits(self) -> Tensor:
        """Return the logits (V,) after the newest token, in memory that the next step overwrites.

        The kernels read the number of filled slots from GPU memory. The caller increases the position and the slot.
        """
        x, launch = self.embed(), self.launch
        for layer, (qkv, attention, out, up, down) in enumerate(self.layers):
            x = out(self.attend(qkv(x, launch=launch), attention, layer), x, launch=launch)
            x = down(up(x, launch=launch), x, launch=launch)
        return self.output_linear(x, launch=launch)

    def embed(self) -> Tensor:
        """Return the embedding (C,) of the newest token at its position."""
        embedding, width, positions = self.runner.embedding, self.runner.stack.config.width, self.runner.position_table
        table = embedding.token.weight
        kernels.embed[(triton.cdiv(width, COLUMNS_PER_PROGRAM),)](
            self.token,
            table,
            self.runner.next_positions,
            table if positions is None else positions,
            self.x,
            embedding.scale,
            WIDTH=width,
            HAS_POSITIONS=positions is not None,
            BLOCK=COLUMNS_PER_PROGRAM,
            num_warps=1,
            **self.launch,
        )
        return self.x

    def attend(self, qkv: Tensor, attention: Any, layer: int) -> Tensor:
        """Return one layer's attention output (H · D,) over the filled slots, and store the new key and value."""
        runner, partial = self.runner, (self.partial_outputs, self.partial_max, self.partial_sums)
        keys, values = runner.keys[layer], runner.values[layer]
        kernels.attention[(attention.heads, self.num_splits)](
            qkv,
            self.cos,
            self.sin,
            runner.next_positions,
            runner.next_slots,
            keys,
            values,
            *partial,
            keys.stride(1),
            attention.scale,
            self.num_splits,
            H=attention.heads,
            KV=attention.kv_heads,
            D=attention.head_dim,
            ROTARY_DIM=self.rotary_dim,
            BLOCK=SLOTS_PER_PROGRAM,
            IS_SPLIT=self.num_splits > 1,
            num_warps=8,
            **self.launch,
        )
        if self.num_splits > 1:
            kernels.merge_splits[(attention.heads,)](
                *partial,
                self.attention_out,
                self.num_splits,
                D=attention.head_dim,
                PADDED=triton.next_power_of_2(self.num_splits),
                num_warps=4,
                **self.launch,
            )
        return self.attention_out


class FusedGreedyStep(FusedDecoder):
    """A greedy step: run the model on the newest token, and choose the next one."""

    def __init__(self, runner: StaticRunner, greedy: GreedyState) -> None:
        super().__init__(runner, greedy.token)
        self.greedy = greedy
        self.num_parts = -(-self.output_linear.outputs // LOGITS_PER_PROGRAM)
        self.part_max, self.part_sums = (self._empty(self.num_parts) for _ in range(2))
        self.part_argmax = self._empty(self.num_parts, dtype=torch.long)
        self.eos = torch.tensor(greedy.eos_token_ids or (-1,), device=runner.mask.device, dtype=torch.long)

    def __call__(self, view: CacheView | None = None) -> None:
        self.choose(self.logits())

    def choose(self, logits: Tensor) -> None:
        """Store the argmax of the logits (V,) as the next token, and increase the counters."""
        greedy, runner = self.greedy, self.runner
        kernels.partial_argmax[(self.num_parts,)](
            logits,
            self.part_max,
            self.part_argmax,
            self.part_sums,
            VOCAB=self.output_linear.outputs,
            BLOCK=LOGITS_PER_PROGRAM,
            num_warps=4,
            **self.launch,
        )
        kernels.finish_greedy_step[(1,)](
            self.part_max,
            self.part_argmax,
            self.part_sums,
            self.eos,
            greedy.token,
            greedy.ended,
            greedy.written,
            greedy.logprobs,
            greedy.num_written,
            runner.next_positions,
            runner.next_slots,
            PARTS=self.num_parts,
            PADDED=triton.next_power_of_2(self.num_parts),
            NUM_EOS=len(greedy.eos_token_ids),
            num_warps=4,
            **self.launch,
        )
