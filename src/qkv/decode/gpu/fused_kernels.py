"""Triton kernels for a decoding step of one sequence. Most of the time of such a step goes into reading the weights.

    embed                token and position embedding → the first vector
    fused_linear         norm → W x → bias → activation or gate → + residual; a program computes a few outputs
    attention            rotary embedding, cache write, attention; a program takes a head and a split of the slots
    merge_splits         combines the splits of a head, where there are several
    partial_argmax       the largest logit of each part of the vocabulary
    finish_greedy_step   the argmax over all parts; writes the next token

A step launches five or six of these kernels per layer. Normally a kernel starts, and loads its weights, after the
previous kernel has ended. `EARLY` turns on programmatic dependent launch, on GPUs that support it. Then a kernel starts
before the previous one ends: it loads its weights, and waits for the output of the previous kernel only after that.
Vectors that are passed between kernels are float32.

H heads, KV key/value heads, D head dim
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def embed(
    token_ptr,
    table_ptr,
    position_ptr,
    position_table_ptr,
    out_ptr,
    scale,
    WIDTH: tl.constexpr,
    HAS_POSITIONS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Look up the embedding of one token, scale it, and add its position embedding if there is one."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column_mask = columns < WIDTH
    token = tl.load(token_ptr)
    x = tl.load(table_ptr + token * WIDTH + columns, mask=column_mask, other=0.0).to(tl.float32) * scale
    if HAS_POSITIONS:
        position = tl.load(position_ptr)
        x += tl.load(position_table_ptr + position * WIDTH + columns, mask=column_mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + columns, x, mask=column_mask)


@triton.jit
def activate(y, ACTIVATION: tl.constexpr):
    """Apply an activation function, which `ACTIVATION` names, to each element."""
    if ACTIVATION == "relu":
        y = tl.maximum(y, 0.0)
    if ACTIVATION == "relu2":
        y = tl.maximum(y, 0.0) * tl.maximum(y, 0.0)
    if ACTIVATION == "gelu":
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    if ACTIVATION == "gelu_tanh":  # (1 + tanh z) / 2 is a sigmoid of 2z
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    if ACTIVATION == "silu":
        y = y * tl.sigmoid(y)
    return y


@triton.jit
def fused_linear(
    x_ptr,
    weight_ptr,
    bias_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    residual_ptr,
    out_ptr,
    eps,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    PADDED: tl.constexpr,  # IN, rounded up to a power of two
    BLOCK: tl.constexpr,  # outputs of a program
    NORM: tl.constexpr,  # "none", "rmsnorm" or "layernorm"
    NORM_WEIGHT: tl.constexpr,
    NORM_BIAS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,  # rows 0 to OUT − 1 of the weight compute the gate, the next OUT rows the values
    EARLY: tl.constexpr,
):
    """Apply a norm, a linear layer, an activation and a residual addition to one vector, each only if enabled."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, PADDED)
    row_mask, column_mask = rows < OUT, columns < IN
    tile_mask = row_mask[:, None] & column_mask[None, :]
    # With a gate the weight has 2 · OUT · IN elements. int32 offsets must stay below 2**31.
    first = rows.to(tl.int64) if OUT * IN >= 2**30 else rows
    offsets = first[:, None] * IN + columns[None, :]
    if EARLY:
        gdc_launch_dependents()
    weight = tl.load(weight_ptr + offsets, mask=tile_mask, other=0.0, eviction_policy="evict_first")
    if GATED:
        value = tl.load(weight_ptr + OUT * IN + offsets, mask=tile_mask, other=0.0, eviction_policy="evict_first")
    if NORM_WEIGHT:
        norm_weight = tl.load(norm_weight_ptr + columns, mask=column_mask, other=0.0).to(tl.float32)
    if NORM_BIAS:
        norm_bias = tl.load(norm_bias_ptr + columns, mask=column_mask, other=0.0).to(tl.float32)
    if EARLY:
        gdc_wait()
    x = tl.load(x_ptr + columns, mask=column_mask, other=0.0)
    if NORM == "layernorm":
        x = tl.where(column_mask, x - tl.sum(x, axis=0) / IN, 0.0)
    if NORM != "none":
        x = x * tl.rsqrt(tl.sum(x * x, axis=0) / IN + eps)
    if NORM_WEIGHT:
        x = x * norm_weight
    if NORM_BIAS:
        x = x + norm_bias
    y = tl.sum(weight.to(tl.float32) * x[None, :], axis=1)
    if BIAS:
        y = y + tl.load(bias_ptr + rows, mask=row_mask, other=0.0).to(tl.float32)
    y = activate(y, ACTIVATION)
    if GATED:
        z = tl.sum(value.to(tl.float32) * x[None, :], axis=1)
        if BIAS:
            z = z + tl.load(bias_ptr + OUT + rows, mask=row_mask, other=0.0).to(tl.float32)
        y = y * z
    if RESIDUAL:
        y = y + tl.load(residual_ptr + rows, mask=row_mask, other=0.0)
    tl.store(out_ptr + rows, y, mask=row_mask)


@triton.jit
def attention(
    qkv_ptr,  # q, k and v of the new token, (H + 2·KV, D)
    cos_ptr,
    sin_ptr,
    position_ptr,
    slot_ptr,
    key_ptr,
    value_ptr,
    out_ptr,  # (H, D) if there is one split; else (H, num_splits, D), unnormalized: `merge_splits` normalizes it
    max_ptr,  # (H, num_splits) the largest score of each split
    weight_ptr,  # (H, num_splits) the sum of the softmax weights of each split
    stride,  # between the key/value heads of a cache
    scale,
    num_splits,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    ROTARY_DIM: tl.constexpr,  # how many coordinates of a head rotate
    BLOCK: tl.constexpr,  # slots of a split
    IS_SPLIT: tl.constexpr,  # whether there is more than one split
    EARLY: tl.constexpr,
):
    """Write the new token's key and value to the cache, and attend to one split of the cached tokens."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    head, split = tl.program_id(0), tl.program_id(1)
    kv = head // (H // KV)
    d = tl.arange(0, D)
    slot = tl.load(slot_ptr)  # the new token's
    cache_dtype = key_ptr.dtype.element_ty
    keys, values = key_ptr + kv * stride, value_ptr + kv * stride
    q = tl.load(qkv_ptr + head * D + d)
    k = tl.load(qkv_ptr + (H + kv) * D + d)
    v = tl.load(qkv_ptr + (H + KV + kv) * D + d)
    if ROTARY_DIM > 0:
        half: tl.constexpr = ROTARY_DIM // 2
        position = tl.load(position_ptr)
        rotated = d < ROTARY_DIM
        cos = tl.load(cos_ptr + position * ROTARY_DIM + d, mask=rotated, other=1.0).to(tl.float32)
        sin = tl.load(sin_ptr + position * ROTARY_DIM + d, mask=rotated, other=0.0).to(tl.float32)
        partner = tl.where(rotated, (d + half) % ROTARY_DIM, d)
        q = q * cos + tl.load(qkv_ptr + head * D + partner) * sin
        k = k * cos + tl.load(qkv_ptr + (H + kv) * D + partner) * sin
    q = q.to(cache_dtype).to(tl.float32) * scale
    k, v = k.to(cache_dtype), v.to(cache_dtype)
    # The first split uses the new key and value in registers, because another program may still be writing them.
    first = split == 0
    if first & (head % (H // KV) == 0):
        tl.store(keys + slot * D + d, k)
        tl.store(values + slot * D + d, v)
    own_score = tl.where(first, tl.sum(q * k.to(tl.float32), axis=0), float("-inf"))
    s = split * BLOCK + tl.arange(0, BLOCK)
    seen = s < slot
    offsets = s[:, None] * D + d[None, :]
    k_old = tl.load(keys + offsets, mask=seen[:, None], other=0.0).to(tl.float32)
    v_old = tl.load(values + offsets, mask=seen[:, None], other=0.0).to(tl.float32)
    score = tl.where(seen, tl.sum(k_old * q[None, :], axis=1), float("-inf"))
    max_score = tl.maximum(tl.maximum(own_score, tl.max(score, axis=0)), -1e30)  # finite for an empty split
    p, own_score = tl.exp(score - max_score), tl.exp(own_score - max_score)
    weight = own_score + tl.sum(p, axis=0)
    weighted = own_score * v.to(tl.float32) + tl.sum(v_old * p[:, None], axis=0)
    if IS_SPLIT:
        part = head * num_splits + split
        tl.store(out_ptr + part * D + d, weighted)
        tl.store(max_ptr + part, max_score)
        tl.store(weight_ptr + part, weight)
    else:
        tl.store(out_ptr + head * D + d, weighted / weight)


@triton.jit
def merge_splits(
    partial_ptr,
    max_ptr,
    weight_ptr,
    out_ptr,
    num_splits,
    D: tl.constexpr,
    PADDED: tl.constexpr,  # num_splits, rounded up to a power of two
    EARLY: tl.constexpr,
):
    """Combine the partial results of the splits into the attention output of one head."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0)
    d, s = tl.arange(0, D), tl.arange(0, PADDED)
    offsets, column_mask = head * num_splits + s, s < num_splits
    max_score = tl.load(max_ptr + offsets, mask=column_mask, other=float("-inf"))
    rescale = tl.exp(max_score - tl.max(max_score, axis=0))
    weight = tl.sum(rescale * tl.load(weight_ptr + offsets, mask=column_mask, other=0.0), axis=0)
    parts = tl.load(partial_ptr + offsets[:, None] * D + d[None, :], mask=column_mask[:, None], other=0.0)
    tl.store(out_ptr + head * D + d, tl.sum(parts * rescale[:, None], axis=0) / weight)


@triton.jit
def partial_argmax(
    logits_ptr, part_max_ptr, argmax_ptr, part_sum_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """Compute the maximum, the argmax and the sum of exponentials of one part of the logits."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    part = tl.program_id(0)
    ids = part * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + ids, mask=ids < VOCAB, other=float("-inf"))
    top = tl.max(logits, axis=0)
    tl.store(part_max_ptr + part, top)
    # NaN compares false with everything; the clamp makes the result a valid token id in that case.
    tl.store(argmax_ptr + part, tl.minimum(part * BLOCK + tl.argmax(logits, axis=0), VOCAB - 1))
    tl.store(part_sum_ptr + part, tl.sum(tl.exp(logits - top), axis=0))


@triton.jit
def combine_parts(max_ptr, argmax_ptr, sum_ptr, row, PARTS: tl.constexpr, PADDED: tl.constexpr):
    """Return the argmax of a row, its log-probability and its logit, from the results of its parts."""
    part = tl.arange(0, PADDED)
    inside = part < PARTS
    tops = tl.load(max_ptr + row * PARTS + part, mask=inside, other=float("-inf"))
    sums = tl.load(sum_ptr + row * PARTS + part, mask=inside, other=0.0)
    top = tl.max(tops, axis=0)
    token = tl.load(argmax_ptr + row * PARTS + tl.minimum(tl.argmax(tops, axis=0), PARTS - 1))
    return token, -tl.log(tl.sum(sums * tl.exp(tops - top), axis=0)), top


@triton.jit
def finish_greedy_step(
    part_max_ptr,
    argmax_ptr,
    part_sum_ptr,
    eos_ptr,
    token_ptr,
    ended_ptr,
    written_ptr,
    logprob_ptr,
    count_ptr,
    position_ptr,
    slot_ptr,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,  # PARTS, rounded up to a power of two
    NUM_EOS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Choose the token from the partial argmaxes, store it with its log-probability, and advance the position."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    token, logprob, _ = combine_parts(part_max_ptr, argmax_ptr, part_sum_ptr, 0, PARTS, PADDED)
    count, ended = tl.load(count_ptr), tl.load(ended_ptr) != 0
    tl.store(written_ptr + count, tl.where(ended, -1, token))
    tl.store(logprob_ptr + count, tl.where(ended, 0.0, logprob.to(tl.float64)))
    for one in tl.static_range(NUM_EOS):
        ended = ended | (token == tl.load(eos_ptr + one))
    tl.store(ended_ptr, ended)
    tl.store(token_ptr, token)
    tl.store(count_ptr, count + 1)
    tl.store(position_ptr, tl.load(position_ptr) + 1)
    tl.store(slot_ptr, tl.load(slot_ptr) + 1)
