"""Triton kernels for a decoding step of one row: all of its time goes into reading weights, and these do little else.

    embed     token and position → the first vector
    product   norm → W x → bias → bend, or gate → + residual          a program makes a few outputs
    attend    turn q and k, keep k and v, mix the filled slots        a program takes a head and a stretch of slots
    merge     the stretches of a head, where there are several
    peaks     the largest logit of each part of the vocabulary        and
    settle    the largest of all: the next token is written down

A step of a few dozen such kernels would wait at each for the last one to end and its own weights to come. So each is
started early (`EARLY`, on GPUs that can): it reads what never changes, waits there for what the last one wrote, and is
itself followed by the next. Vectors between kernels are in float32.

I inputs, O outputs, H heads, KV key/value heads, D head width, S slots
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def embed(
    token_ptr,
    table_ptr,
    position_ptr,
    places_ptr,
    out_ptr,
    scale,
    WIDTH: tl.constexpr,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    token = tl.load(token_ptr)
    x = tl.load(table_ptr + token * WIDTH + columns, mask=inside, other=0.0).to(tl.float32) * scale
    if PLACES:
        position = tl.load(position_ptr)
        x += tl.load(places_ptr + position * WIDTH + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + columns, x, mask=inside)


@triton.jit
def activate(y, BEND: tl.constexpr):
    if BEND == "relu":
        y = tl.maximum(y, 0.0)
    if BEND == "gelu":
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    if BEND == "gelu_tanh":  # (1 + tanh z) / 2 is a sigmoid of 2z
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    if BEND == "silu":
        y = y * tl.sigmoid(y)
    return y


@triton.jit
def fused_linear(
    x_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    gain_ptr,
    shift_ptr,
    add_ptr,
    out_ptr,
    eps,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    FULL: tl.constexpr,  # IN, rounded up to a power of two
    BLOCK: tl.constexpr,  # outputs of a program
    NORM: tl.constexpr,  # "none", "rmsnorm" or "layernorm"
    GAIN: tl.constexpr,
    SHIFT: tl.constexpr,
    SCALE: tl.constexpr,  # weights are whole numbers: a scale for each output
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    BEND: tl.constexpr,
    GATED: tl.constexpr,  # the values that a gate lets through are OUT rows further down
    EARLY: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, FULL)
    there, inside = rows < OUT, columns < IN
    both = there[:, None] & inside[None, :]
    first = rows.to(tl.int64) if OUT * IN >= 2**30 else rows  # with a gate there are twice as many
    place = first[:, None] * IN + columns[None, :]
    if EARLY:
        gdc_launch_dependents()
    weight = tl.load(weight_ptr + place, mask=both, other=0.0, eviction_policy="evict_first")
    if GATED:
        value = tl.load(weight_ptr + OUT * IN + place, mask=both, other=0.0, eviction_policy="evict_first")
    if GAIN:
        gain = tl.load(gain_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if SHIFT:
        shift = tl.load(shift_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()
    x = tl.load(x_ptr + columns, mask=inside, other=0.0)
    if NORM == "layernorm":
        x = tl.where(inside, x - tl.sum(x, axis=0) / IN, 0.0)
    if NORM != "none":
        x = x * tl.rsqrt(tl.sum(x * x, axis=0) / IN + eps)
    if GAIN:
        x = x * gain
    if SHIFT:
        x = x + shift
    y = tl.sum(weight.to(tl.float32) * x[None, :], axis=1)
    if SCALE:
        y = y * tl.load(scale_ptr + rows, mask=there, other=0.0).to(tl.float32)
    if BIAS:
        y = y + tl.load(bias_ptr + rows, mask=there, other=0.0).to(tl.float32)
    y = activate(y, BEND)
    if GATED:
        z = tl.sum(value.to(tl.float32) * x[None, :], axis=1)
        if SCALE:
            z = z * tl.load(scale_ptr + OUT + rows, mask=there, other=0.0).to(tl.float32)
        if BIAS:
            z = z + tl.load(bias_ptr + OUT + rows, mask=there, other=0.0).to(tl.float32)
        y = y * z
    if ADD:
        y = y + tl.load(add_ptr + rows, mask=there, other=0.0)
    tl.store(out_ptr + rows, y, mask=there)


@triton.jit
def attention(
    fused_ptr,  # q, k and v of the new token, (H + 2·KV, D)
    cos_ptr,
    sin_ptr,
    position_ptr,
    slot_ptr,
    key_ptr,
    value_ptr,
    out_ptr,  # (H, D), where there is one stretch; else (H, stretches, D), not yet divided by its weights
    most_ptr,  # (H, stretches) the largest score of each stretch
    weight_ptr,  # (H, stretches) the sum of its weights
    stride,  # between the key/value heads of a cache
    scale,
    stretches,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    TURNED: tl.constexpr,  # how many numbers of a head turn
    BLOCK: tl.constexpr,  # slots of a stretch
    MANY: tl.constexpr,  # whether there is more than one stretch
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    head, stretch = tl.program_id(0), tl.program_id(1)
    kv = head // (H // KV)
    d = tl.arange(0, D)
    slot = tl.load(slot_ptr)  # the new token's
    kind = key_ptr.dtype.element_ty
    keys, values = key_ptr + kv * stride, value_ptr + kv * stride
    q = tl.load(fused_ptr + head * D + d)
    k = tl.load(fused_ptr + (H + kv) * D + d)
    v = tl.load(fused_ptr + (H + KV + kv) * D + d)
    if TURNED > 0:
        half: tl.constexpr = TURNED // 2
        position = tl.load(position_ptr)
        turns = d < TURNED
        cos = tl.load(cos_ptr + position * TURNED + d, mask=turns, other=1.0).to(tl.float32)
        sin = tl.load(sin_ptr + position * TURNED + d, mask=turns, other=0.0).to(tl.float32)
        partner = tl.where(turns, (d + half) % TURNED, d)
        q = q * cos + tl.load(fused_ptr + head * D + partner) * sin
        k = k * cos + tl.load(fused_ptr + (H + kv) * D + partner) * sin
    q = q.to(kind).to(tl.float32) * scale
    k, v = k.to(kind), v.to(kind)
    # The first stretch sees the new token from here, not from memory: another program may still be writing it.
    first = stretch == 0
    if first & (head % (H // KV) == 0):
        tl.store(keys + slot * D + d, k)
        tl.store(values + slot * D + d, v)
    own = tl.where(first, tl.sum(q * k.to(tl.float32), axis=0), float("-inf"))
    s = stretch * BLOCK + tl.arange(0, BLOCK)
    seen = s < slot
    place = s[:, None] * D + d[None, :]
    k_old = tl.load(keys + place, mask=seen[:, None], other=0.0).to(tl.float32)
    v_old = tl.load(values + place, mask=seen[:, None], other=0.0).to(tl.float32)
    score = tl.where(seen, tl.sum(k_old * q[None, :], axis=1), float("-inf"))
    most = tl.maximum(tl.maximum(own, tl.max(score, axis=0)), -1e30)  # not −∞, in a stretch that is still empty
    p, own = tl.exp(score - most), tl.exp(own - most)
    weight = own + tl.sum(p, axis=0)
    mixed = own * v.to(tl.float32) + tl.sum(v_old * p[:, None], axis=0)
    if MANY:
        part = head * stretches + stretch
        tl.store(out_ptr + part * D + d, mixed)
        tl.store(most_ptr + part, most)
        tl.store(weight_ptr + part, weight)
    else:
        tl.store(out_ptr + head * D + d, mixed / weight)


@triton.jit
def merge_splits(
    parts_ptr,
    most_ptr,
    weight_ptr,
    out_ptr,
    stretches,
    D: tl.constexpr,
    FULL: tl.constexpr,  # the stretches, rounded up to a power of two
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0)
    d, s = tl.arange(0, D), tl.arange(0, FULL)
    place, inside = head * stretches + s, s < stretches
    most = tl.load(most_ptr + place, mask=inside, other=float("-inf"))
    fade = tl.exp(most - tl.max(most, axis=0))
    weight = tl.sum(fade * tl.load(weight_ptr + place, mask=inside, other=0.0), axis=0)
    parts = tl.load(parts_ptr + place[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
    tl.store(out_ptr + head * D + d, tl.sum(parts * fade[:, None], axis=0) / weight)


@triton.jit
def partial_argmax(
    logits_ptr, top_ptr, where_ptr, sum_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    part = tl.program_id(0)
    ids = part * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + ids, mask=ids < VOCAB, other=float("-inf"))
    top = tl.max(logits, axis=0)
    tl.store(top_ptr + part, top)
    # Numbers that are none compare with nothing: whatever is chosen then is at least a token.
    tl.store(where_ptr + part, tl.minimum(part * BLOCK + tl.argmax(logits, axis=0), VOCAB - 1))
    tl.store(sum_ptr + part, tl.sum(tl.exp(logits - top), axis=0))


@triton.jit
def finish_greedy_step(
    top_ptr,
    where_ptr,
    sum_ptr,
    ends_ptr,
    token_ptr,
    ended_ptr,
    written_ptr,
    logprob_ptr,
    count_ptr,
    position_ptr,
    slot_ptr,
    PARTS: tl.constexpr,
    FULL: tl.constexpr,  # PARTS, rounded up to a power of two
    ENDS: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    part = tl.arange(0, FULL)
    inside = part < PARTS
    tops = tl.load(top_ptr + part, mask=inside, other=float("-inf"))
    sums = tl.load(sum_ptr + part, mask=inside, other=0.0)
    top = tl.max(tops, axis=0)
    token = tl.load(where_ptr + tl.minimum(tl.argmax(tops, axis=0), PARTS - 1))
    logprob = -tl.log(tl.sum(sums * tl.exp(tops - top), axis=0))
    count, ended = tl.load(count_ptr), tl.load(ended_ptr) != 0
    tl.store(written_ptr + count, tl.where(ended, -1, token))
    tl.store(logprob_ptr + count, tl.where(ended, 0.0, logprob.to(tl.float64)))
    for one in tl.static_range(ENDS):
        ended = ended | (token == tl.load(ends_ptr + one))
    tl.store(ended_ptr, ended)
    tl.store(token_ptr, token)
    tl.store(count_ptr, count + 1)
    tl.store(position_ptr, tl.load(position_ptr) + 1)
    tl.store(slot_ptr, tl.load(slot_ptr) + 1)
