"""An experiment for `bench/decode_profile.py`: a decoding step of one row in two Triton kernels, five launches a layer.

    matvec    norm → W x → scale, bias, bend or gate, residual      each program norms x anew: it is in the cache anyway
    attend    turn q and k, write k and v, softmax over the filled slots: its cost follows them without buckets

For pre-norm decoders without windows, biases of scores or normed queries (GPT-2, Llama). Weights in bfloat16 or int8.

I inputs, O outputs, H heads, KV key/value heads, D head width, S slots
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from qkv.decode.static_step import Seen, StaticRun
from qkv.decode.weight_int8 import Int8Weight


@triton.jit
def matvec_kernel(
    x_ptr,
    w_ptr,
    scale_ptr,
    bias_ptr,
    add_ptr,
    gain_ptr,
    shift_ptr,
    out_ptr,
    eps,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
    NORM: tl.constexpr,  # 0: none, 1: RMSNorm, 2: LayerNorm
    SHIFT: tl.constexpr,
    SCALE: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    BEND: tl.constexpr,  # 0: none, 1: GELU (tanh), 2: SiLU gate, whose values are OUT rows further down
):
    rows = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    there = rows < OUT
    mean = 0.0
    spread = 1.0
    if NORM != 0:
        every = tl.arange(0, FULL)
        whole = tl.load(x_ptr + every, mask=every < IN, other=0.0).to(tl.float32)
        if NORM == 2:
            mean = tl.sum(whole, axis=0) / IN
            whole = tl.where(every < IN, whole - mean, 0.0)
        spread = 1.0 / tl.sqrt(tl.sum(whole * whole, axis=0) / IN + eps)
    total = tl.zeros((BLOCK_O, BLOCK_I), dtype=tl.float32)
    other = tl.zeros((BLOCK_O, BLOCK_I), dtype=tl.float32)
    for i in tl.static_range(0, IN, BLOCK_I):
        columns = i + tl.arange(0, BLOCK_I)
        inside = columns < IN
        x = tl.load(x_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        if NORM != 0:
            gain = tl.load(gain_ptr + columns, mask=inside, other=0.0).to(tl.float32)
            x = (x - mean) * spread * gain
            if SHIFT:
                x += tl.load(shift_ptr + columns, mask=inside, other=0.0).to(tl.float32)
        place = rows[:, None] * IN + columns[None, :]
        both = there[:, None] & inside[None, :]
        w = tl.load(w_ptr + place, mask=both, other=0, eviction_policy="evict_first").to(tl.float32)
        total += w * x[None, :]
        if BEND == 2:
            w = tl.load(w_ptr + OUT * IN + place, mask=both, other=0, eviction_policy="evict_first").to(tl.float32)
            other += w * x[None, :]
    y = tl.sum(total, axis=1)
    if SCALE:
        y *= tl.load(scale_ptr + rows, mask=there, other=0.0).to(tl.float32)
    if BIAS:
        y += tl.load(bias_ptr + rows, mask=there, other=0.0).to(tl.float32)
    if BEND == 1:
        z = 0.7978845608028654 * (y + 0.044715 * y * y * y)
        y = y * tl.sigmoid(2.0 * z)  # (1 + tanh z) / 2
    if BEND == 2:
        value = tl.sum(other, axis=1)
        if SCALE:
            value *= tl.load(scale_ptr + OUT + rows, mask=there, other=0.0).to(tl.float32)
        if BIAS:
            value += tl.load(bias_ptr + OUT + rows, mask=there, other=0.0).to(tl.float32)
        y = y * tl.sigmoid(y) * value
    if ADD:
        y += tl.load(add_ptr + rows, mask=there, other=0.0).to(tl.float32)
    tl.store(out_ptr + rows, y.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def attend_kernel(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    position_ptr,
    slot_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    stride,  # between the key/value heads of a cache
    scale,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    TURN: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    head = tl.program_id(0)
    kv = head // (H // KV)
    d = tl.arange(0, D)
    kind = key_ptr.dtype.element_ty
    q = tl.load(qkv_ptr + head * D + d).to(tl.float32)
    k = tl.load(qkv_ptr + (H + kv) * D + d).to(tl.float32)
    v = tl.load(qkv_ptr + (H + KV + kv) * D + d)
    slot = tl.load(slot_ptr)
    if TURN:
        half: tl.constexpr = D // 2
        position = tl.load(position_ptr)
        cos = tl.load(cos_ptr + position * half + d % half)
        sin = tl.load(sin_ptr + position * half + d % half)
        partner = (d + half) % D
        sign = tl.where(d < half, -1.0, 1.0)
        q = q * cos + sign * sin * tl.load(qkv_ptr + head * D + partner).to(tl.float32)
        k = k * cos + sign * sin * tl.load(qkv_ptr + (H + kv) * D + partner).to(tl.float32)
    q = q.to(kind).to(tl.float32) * scale
    k = k.to(kind)
    keys = key_ptr + kv * stride
    values = value_ptr + kv * stride
    if head % (H // KV) == 0:
        tl.store(keys + slot * D + d, k)
        tl.store(values + slot * D + d, v.to(kind))
    # The new token is seen from here, not from memory: another program may still be writing it.
    most = tl.sum(q * k.to(tl.float32), axis=0)
    weight = tl.exp(most - most)  # 1, as a tensor: it changes in the loop
    mixed = v.to(tl.float32)
    for begin in range(0, slot, BLOCK_S):
        s = begin + tl.arange(0, BLOCK_S)
        seen = s < slot
        place = s[:, None] * D + d[None, :]
        k_old = tl.load(keys + place, mask=seen[:, None], other=0.0).to(tl.float32)
        v_old = tl.load(values + place, mask=seen[:, None], other=0.0).to(tl.float32)
        score = tl.where(seen, tl.sum(k_old * q[None, :], axis=1), float("-inf"))
        larger = tl.maximum(most, tl.max(score, axis=0))
        fade = tl.exp(most - larger)
        p = tl.exp(score - larger)
        weight = weight * fade + tl.sum(p, axis=0)
        mixed = mixed * fade + tl.sum(v_old * p[:, None], axis=0)
        most = larger
    tl.store(out_ptr + head * D + d, (mixed / weight).to(kind))


def matvec(
    x: Tensor, linear: nn.Module, *, norm: nn.Module | None = None, add: Tensor | None = None, bend: int = 0
) -> Tensor:
    """norm → linear → bend → + add, for one vector."""
    int8 = isinstance(linear, Int8Weight)
    weight: Any = linear.whole if int8 else linear.weight
    bias: Any = linear.shift if int8 else linear.bias
    scale: Any = linear.scale if int8 else None
    outputs, inputs = weight.shape
    outputs //= 2 if bend == 2 else 1
    out = torch.empty(outputs, device=x.device, dtype=x.dtype)
    gain = shift = None
    kind = 0
    if norm is not None:
        kind = 2 if isinstance(norm, nn.LayerNorm) else 1
        gain, shift = norm.weight, getattr(norm, "bias", None)
    block_o = 2 if bend == 2 else 4
    block_i = min(1024, max(128, inputs & -inputs))  # a power of two that divides the inputs, where there is one
    matvec_kernel[(triton.cdiv(outputs, block_o),)](
        x,
        weight,
        x if scale is None else scale,
        x if bias is None else bias,
        x if add is None else add,
        x if gain is None else gain,
        x if shift is None else shift,
        out,
        0.0 if norm is None else norm.eps,
        IN=inputs,
        OUT=outputs,
        FULL=triton.next_power_of_2(inputs),
        BLOCK_O=block_o,
        BLOCK_I=block_i,
        NORM=kind,
        SHIFT=shift is not None,
        SCALE=scale is not None,
        BIAS=bias is not None,
        ADD=add is not None,
        BEND=bend,
        num_warps=4,
    )
    return out


class HandStep:
    """The step of a `StaticRun` of one row, with the kernels above."""

    def __init__(self, run: StaticRun) -> None:
        self.run = run
        config = run.stack.config
        plain = config.norm_place == "pre" and config.residual == "serial" and config.qk_norm == "none"
        known = config.feedforward in ("swiglu", "gelu_tanh") and run.stack.bias is None and not config.window
        if run.rows != 1 or run.cross is not None or not plain or not known or config.rotary_share != 1.0:
            raise ValueError("these kernels are for one row of a plain pre-norm decoder")
        self.bend = 2 if config.feedforward == "swiglu" else 1
        table = run.rotaries.get(0)
        self.turn = table is not None
        self.cos = run.sight if table is None else table.cos[0, 0].float().contiguous()
        self.sin = run.sight if table is None else table.sin[0, 0].float().contiguous()

    def logits(self, token: Tensor, seen: Seen) -> Tensor:
        run, config = self.run, self.run.stack.config
        where = None if run.places is None else run.places[run.position]
        x = run.embedding.join(token, where).view(-1)
        for layer in range(config.layers):
            block: Any = run.stack.block_of(layer)
            attention, ffn = block.attention, block.ffn
            fused = matvec(x, attention.qkv, norm=block.attention_sub.norm)
            x = matvec(self.attend(fused, layer, attention), attention.out, add=x)
            h = matvec(x, ffn.up, norm=block.ffn_sub.norm, bend=self.bend)
            x = matvec(h, ffn.down, add=x)
        assert run.head.out is not None
        out = matvec(x, run.head.out, norm=run.stack.norm)
        run.position.add_(1)
        run.slots.add_(1)
        return out[None]

    def attend(self, fused: Tensor, layer: int, attention: Any) -> Tensor:
        keys, values = self.run.keys[layer], self.run.values[layer]
        out = torch.empty(attention.heads * attention.width, device=fused.device, dtype=fused.dtype)
        attend_kernel[(attention.heads,)](
            fused,
            self.cos,
            self.sin,
            self.run.position,
            self.run.slots,
            keys,
            values,
            out,
            keys.stride(1),
            attention.scale,
            H=attention.heads,
            KV=attention.kv_heads,
            D=attention.width,
            TURN=self.turn,
            BLOCK_S=64,
            num_warps=4,
        )
        return out
