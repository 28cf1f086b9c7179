"""`StaticRunner` and greedy steps with the kernels of `batch_kernels`, for several sequences and for beams.

Their steps are as fast as compiled steps, without the wait for the compiler. The kernels count the filled slots
themselves, so that one CUDA graph serves all lengths. `StaticRunner` and `GreedyState` are the reference.

N sequences, T new tokens of each, H heads, KV key/value heads, G heads that share a key, D head dim, V vocabulary
"""

from typing import Any, cast

import torch
import triton
from torch import Tensor

from qkv.blocks.attention import Attention
from qkv.blocks.block import Block
from qkv.decode.gpu import batch_kernels as kernels
from qkv.decode.gpu import batched_blocks
from qkv.decode.gpu.batched_blocks import AlignedOutput, BatchedBlocks
from qkv.decode.gpu.greedy import GreedyState
from qkv.decode.gpu.static_runner import CacheView, StaticRunner
from qkv.decode.support import Choices, supports
from qkv.models import Network

SLOTS_PER_BLOCK = 64
LOGITS_PER_PROGRAM = 4096
MIN_DOT_SIZE = 16
"""The smallest side of a matrix product in Triton."""

CHOICES: Choices = {
    **batched_blocks.CHOICES,
    "position": frozenset({"learned", "rotary", "sinusoidal", "sinusoidal_split", "none"}),
    "qk_norm": frozenset({"none"}),
}
"""The config values that these kernels implement."""


def is_supported(network: Network) -> bool:
    """Return whether the kernels implement the decoder of this network."""
    config, head = network.output_stack.config, network.head
    is_power_of_two = config.head_dim & (config.head_dim - 1) == 0
    return (
        supports(CHOICES, config)
        and batched_blocks.is_supported(network.output_stack)
        and not config.sliding_window
        and is_power_of_two
        and config.head_dim >= MIN_DOT_SIZE
        and head.out is not None
        and not (head.config.normalize or head.config.logit_cap)
        and next(network.parameters()).dtype != torch.float64
    )


class BatchedRunner(StaticRunner):
    """A `StaticRunner` whose blocks run in the batch kernels."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.blocks, self.output = BatchedBlocks(self.stack), AlignedOutput(self.head)

    def logits(self, token: Tensor, view: CacheView) -> Tensor:
        """Read the newest tokens (N, T), and return the logits (N·T, V). Columns beyond the vocabulary are −∞."""
        view.mask.scatter_(2, self.next_slots[None, :, None].expand(self.batch_size, -1, 1), 0.0)
        positions = None if self.position_table is None else self.position_table[self.next_positions]
        x = self.embedding.combine(token, positions)  # (N, T, C)

        def attend(layer: int, block: Block, h: Tensor) -> Tensor:
            keys, values = view.keys[layer], view.values[layer]
            return self._attend_slots(block.attention, block.attention.qkv(h), keys, values, view.mask, writes=True)

        def attend_source(layer: int, block: Block, h: Tensor) -> Tensor:
            assert block.cross is not None
            assert self.cross_cache is not None
            keys, values = self.cross_cache.keys[layer], self.cross_cache.values[layer]
            mask = None if self.source_mask is None else self.source_mask[:, 0]
            return self._attend_slots(block.cross, block.cross.q(h), keys, values, mask, writes=False)

        x = self.blocks(x, attend, None if self.cross_cache is None else attend_source)
        self.next_positions.add_(1)
        self.next_slots.add_(self.num_beams)
        return self.output(x.flatten(0, 1))

    def _attend_slots(
        self, attention: Attention, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, *, writes: bool
    ) -> Tensor:
        """q (N, T, H · D), with keys and values if `writes` → the output of the attention (N, T, C)."""
        num_new, heads, kv_heads = q.shape[1], attention.heads, attention.kv_heads
        table: Any = self.rotaries.get(0) if writes else None
        out = q.new_empty(len(q), num_new, heads * attention.head_dim)
        kernels.slot_attention[(len(q), kv_heads)](
            q,
            q if table is None else table.cos,
            q if table is None else table.sin,
            self.next_positions,
            self.next_slots,
            keys,
            values,
            q if mask is None else mask,
            out,
            q.stride(1),
            keys.stride(0),
            keys.stride(1),
            0 if mask is None else mask.stride(0),
            0 if mask is None or mask.shape[1] == 1 else mask.stride(1),
            keys.shape[2],
            attention.scale,
            T=num_new,
            NEW=triton.next_power_of_2(num_new),
            G=heads // kv_heads,
            QUERIES=max(MIN_DOT_SIZE, triton.next_power_of_2(num_new * heads // kv_heads)),
            H=heads,
            KV=kv_heads,
            D=attention.head_dim,
            ROTARY_DIM=0 if table is None else table.cos.shape[-1],
            WRITES=writes,
            HAS_MASK=mask is not None,
            BLOCK=SLOTS_PER_BLOCK,
            num_warps=4,
        )
        return cast(Tensor, attention.out(out))


class BatchedGreedyStep:
    """A greedy step: run the model on the newest tokens, and choose the next ones."""

    def __init__(self, runner: BatchedRunner, greedy: GreedyState) -> None:
        self.runner, self.greedy = runner, greedy
        self.eos = torch.tensor(greedy.eos_token_ids or (-1,), device=runner.mask.device, dtype=torch.long)

    def __call__(self, view: CacheView) -> None:
        self.choose(self.runner.logits(self.greedy.token, view))

    def choose(self, logits: Tensor) -> None:
        """Append the argmax of the logits (N, V) to each sequence that has not ended, as `GreedyState.choose` does."""
        greedy, parts = self.greedy, argmax_of_parts(logits)
        kernels.finish_rows[(len(logits),)](
            *parts,
            self.eos,
            greedy.token,
            greedy.ended,
            greedy.written,
            greedy.logprobs,
            greedy.num_written,
            greedy.written.shape[1],
            PARTS=parts[0].shape[1],
            PADDED=triton.next_power_of_2(parts[0].shape[1]),
            NUM_EOS=len(greedy.eos_token_ids),
            num_warps=1,
        )
        greedy.num_written.add_(1)


def argmax_of_parts(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split each row of the logits (R, V) into parts. Returns the maximum, argmax and sum of exponentials of each."""
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, LOGITS_PER_PROGRAM)
    largest, sums = (logits.new_empty(rows, parts, dtype=torch.float32) for _ in range(2))
    argmax = logits.new_empty(rows, parts, dtype=torch.long)
    kernels.row_argmax[(rows, parts)](logits, largest, argmax, sums, VOCAB=vocab, BLOCK=LOGITS_PER_PROGRAM, num_warps=8)
    return largest, argmax, sums
