"""Triton kernels for decoding steps of several sequences. Matrix products between them are library calls.

    add_norm         residual sum and norm of each row
    activate_rows    activation or gate of the feed-forward network
    rotate_rows      rotary embedding of queries and keys, in place
    slot_attention   rotary embedding, cache write, attention; a program takes one key/value head of one sequence
    row_argmax       the largest logit of each part of each row
    finish_rows      the argmax over all parts of a row; writes the next token of greedy decoding
    store_rows       the same for the engine, whose sequences have slots

N sequences, T new tokens of each, H heads, KV key/value heads, G = H / KV heads that share a key, D head dim, S slots
"""

import triton
import triton.language as tl

from qkv.decode.gpu.fused_kernels import activate, combine_parts


@triton.jit
def add_norm(
    x_ptr,
    update_ptr,
    weight_ptr,
    bias_ptr,
    sum_ptr,
    out_ptr,
    eps,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,  # WIDTH, rounded up to a power of two
    NORM: tl.constexpr,  # "rmsnorm" or "layernorm"
    UPDATE: tl.constexpr,  # whether there is an update to add to x
    KEEP_SUM: tl.constexpr,  # whether the sum is stored
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Store norm(x + update), and the sum itself if enabled. A program computes one row."""
    columns = tl.arange(0, PADDED)
    inside = columns < WIDTH
    offsets = tl.program_id(0).to(tl.int64) * WIDTH + columns
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0)
    if UPDATE:
        x = x.to(tl.float32) + tl.load(update_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        x = x.to(x_ptr.dtype.element_ty)  # the residual stream is rounded, as in the reference
    if KEEP_SUM:
        tl.store(sum_ptr + offsets, x, mask=inside)
    y = x.to(tl.float32)
    if NORM == "layernorm":
        y = tl.where(inside, y - tl.sum(y, axis=0) / WIDTH, 0.0)
    y = y * tl.rsqrt(tl.sum(y * y, axis=0) / WIDTH + eps)
    if WEIGHT:
        y = y * tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        y = y + tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + offsets, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def activate_rows(
    x_ptr,  # (rows, WIDTH), or (rows, 2 · WIDTH) with a gate: first the gate, then the values
    out_ptr,  # (rows, WIDTH)
    WIDTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Apply an activation function to each element, and multiply by the values if there is a gate."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    x = x_ptr + row * (2 * WIDTH if GATED else WIDTH) + columns
    y = activate(tl.load(x, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
    if GATED:
        y = y * tl.load(x + WIDTH, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + columns, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rotate_rows(
    x_ptr,  # (rows, row_stride): the heads to rotate are the first ones of each row
    cos_ptr,  # (rows, ROTARY_DIM)
    sin_ptr,
    row_stride,
    HEADS: tl.constexpr,
    PADDED: tl.constexpr,  # HEADS, rounded up to a power of two
    D: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    PADDED_HALF: tl.constexpr,  # ROTARY_DIM / 2, rounded up to a power of two
):
    """Rotate the pairs (x_i, x_{i + ROTARY_DIM/2}) of all heads of one row, as `Rotary.rotate` does."""
    half: tl.constexpr = ROTARY_DIM // 2
    row = tl.program_id(0).to(tl.int64)
    head, i = tl.arange(0, PADDED), tl.arange(0, PADDED_HALF)
    inside = (head < HEADS)[:, None] & (i < half)[None, :]
    first_ptrs = x_ptr + row * row_stride + head[:, None] * D + i[None, :]
    first = tl.load(first_ptrs, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(first_ptrs + half, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + row * ROTARY_DIM + i, mask=i < half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + row * ROTARY_DIM + half + i, mask=i < half, other=0.0).to(tl.float32)[None, :]
    dtype = x_ptr.dtype.element_ty
    tl.store(first_ptrs, (first * cos - second * sin).to(dtype), mask=inside)
    tl.store(first_ptrs + half, (second * cos + first * sin).to(dtype), mask=inside)


@triton.jit
def rotate(x, x_ptrs, tokens_are_valid, d, cos_ptr, sin_ptr, position, ROTARY_DIM: tl.constexpr):
    """Rotate the vectors x (…, D), which `x_ptrs` point to, by the angles of one position."""
    half: tl.constexpr = ROTARY_DIM // 2
    rotated = d < ROTARY_DIM
    cos = tl.load(cos_ptr + position * ROTARY_DIM + d, mask=rotated, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + position * ROTARY_DIM + d, mask=rotated, other=0.0).to(tl.float32)
    shift = tl.where(rotated, (d + half) % ROTARY_DIM, d) - d
    partner = tl.load(x_ptrs + shift[None, :], mask=tokens_are_valid[:, None], other=0.0).to(tl.float32)
    return x * cos[None, :] + partner * sin[None, :]


@triton.jit
def slot_attention(
    q_ptr,  # (N, T, token_stride): the queries of all heads; with WRITES, keys and values follow
    cos_ptr,
    sin_ptr,
    position_ptr,  # (N,) the position of the new tokens
    slot_ptr,  # (T,) the consecutive slots of the new tokens
    key_ptr,  # (N, KV, S, D)
    value_ptr,
    mask_ptr,  # (N, T, S), added to the scores
    out_ptr,  # (N, T, H · D)
    token_stride,
    key_stride,  # between the sequences of keys and values
    head_stride,  # between the heads of keys and values
    mask_stride,  # between the sequences of the mask
    mask_token_stride,  # between the new tokens of the mask; 0: they share one row
    num_slots,
    scale,
    T: tl.constexpr,
    NEW: tl.constexpr,  # T, rounded up to a power of two
    G: tl.constexpr,
    QUERIES: tl.constexpr,  # T · G, rounded up to a power of two of at least 16
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    ROTARY_DIM: tl.constexpr,  # how many coordinates of a head rotate
    WRITES: tl.constexpr,  # self-attention: write the new keys and values; else attend to `num_slots` slots
    HAS_MASK: tl.constexpr,
    BLOCK: tl.constexpr,  # slots that are read at a time
):
    """Attend from all queries that share one key/value head of one sequence."""
    row, kv = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, D)
    query = tl.arange(0, QUERIES)
    token, is_query = query // G, query < T * G
    q_ptrs = q_ptr + (row * T + token)[:, None] * token_stride + (kv * G + query % G)[:, None] * D + d[None, :]
    q = tl.load(q_ptrs, mask=is_query[:, None], other=0.0).to(tl.float32)
    cache_dtype = key_ptr.dtype.element_ty
    keys, values = key_ptr + row * key_stride + kv * head_stride, value_ptr + row * key_stride + kv * head_stride
    end = num_slots
    if WRITES:
        new = tl.arange(0, NEW)
        is_new = new < T
        k_ptrs = q_ptr + (row * T + new)[:, None] * token_stride + (H + kv) * D + d[None, :]
        k = tl.load(k_ptrs, mask=is_new[:, None], other=0.0).to(tl.float32)
        v = tl.load(k_ptrs + KV * D, mask=is_new[:, None], other=0.0)
        if ROTARY_DIM > 0:
            position = tl.load(position_ptr + row)
            q = rotate(q, q_ptrs, is_query, d, cos_ptr, sin_ptr, position, ROTARY_DIM)
            k = rotate(k, k_ptrs, is_new, d, cos_ptr, sin_ptr, position, ROTARY_DIM)
        own = (tl.load(slot_ptr) + new)[:, None] * D + d[None, :]
        tl.store(keys + own, k.to(cache_dtype), mask=is_new[:, None])
        tl.store(values + own, v.to(cache_dtype), mask=is_new[:, None])
        tl.debug_barrier()  # the loop reads the new keys and values again
        end = (tl.load(slot_ptr) + T).to(tl.int32)
    q = q.to(cache_dtype)
    top = tl.full((QUERIES,), -1e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    out = tl.zeros((QUERIES, D), tl.float32)
    for start in range(0, end, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        seen = slot < end
        offsets = slot[:, None] * D + d[None, :]
        k_old = tl.load(keys + offsets, mask=seen[:, None], other=0.0)
        v_old = tl.load(values + offsets, mask=seen[:, None], other=0.0)
        score = tl.dot(q, tl.trans(k_old), input_precision="ieee") * scale
        if HAS_MASK:
            mask_ptrs = mask_ptr + row * mask_stride + token[:, None] * mask_token_stride + slot[None, :]
            score += tl.load(mask_ptrs, mask=is_query[:, None] & seen[None, :], other=0.0).to(tl.float32)
        score = tl.where(seen[None, :], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, axis=1))
        weight, rescale = tl.exp(score - new_top[:, None]), tl.exp(top - new_top)
        out = out * rescale[:, None] + tl.dot(weight.to(cache_dtype), v_old, input_precision="ieee")
        total = total * rescale + tl.sum(weight, axis=1)
        top = new_top
    out_ptrs = out_ptr + (row * T + token)[:, None] * (H * D) + (kv * G + query % G)[:, None] * D + d[None, :]
    tl.store(out_ptrs, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=is_query[:, None])


@triton.jit
def row_argmax(logits_ptr, max_ptr, argmax_ptr, sum_ptr, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the maximum, the argmax and the sum of exponentials of one part of the logits of one row."""
    row, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    ids = part * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * VOCAB + ids, mask=ids < VOCAB, other=float("-inf")).to(tl.float32)
    top = tl.max(logits, axis=0)
    tl.store(max_ptr + row * parts + part, top)
    # NaN compares false with everything; the clamp makes the result a valid token id in that case.
    tl.store(argmax_ptr + row * parts + part, tl.minimum(part * BLOCK + tl.argmax(logits, axis=0), VOCAB - 1))
    total = tl.sum(tl.exp(logits - tl.where(top == float("-inf"), 0.0, top)), axis=0)
    tl.store(sum_ptr + row * parts + part, total)


@triton.jit
def finish_rows(
    max_ptr,
    argmax_ptr,
    sum_ptr,
    eos_ptr,
    token_ptr,
    ended_ptr,
    written_ptr,  # (N, max_tokens)
    logprob_ptr,
    count_ptr,  # how many tokens are written
    max_tokens,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,  # PARTS, rounded up to a power of two
    NUM_EOS: tl.constexpr,
):
    """Choose the token of one row from its partial argmaxes, and store it with its log-probability."""
    row = tl.program_id(0).to(tl.int64)
    token, logprob, _ = combine_parts(max_ptr, argmax_ptr, sum_ptr, row, PARTS, PADDED)
    count, ended = tl.load(count_ptr), tl.load(ended_ptr + row) != 0
    tl.store(written_ptr + row * max_tokens + count, tl.where(ended, -1, token))
    tl.store(logprob_ptr + row * max_tokens + count, tl.where(ended, 0.0, logprob.to(tl.float64)))
    for one in tl.static_range(NUM_EOS):
        ended = ended | (token == tl.load(eos_ptr + one))
    tl.store(ended_ptr + row, ended)
    tl.store(token_ptr + row, token)


@triton.jit
def store_rows(
    max_ptr,
    argmax_ptr,
    sum_ptr,
    slot_ptr,
    token_ptr,  # by slot
    output_ptr,  # (R, 3)
    slot_stride,  # between the slots of two rows
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,  # PARTS, rounded up to a power of two
):
    """Store the token of one row at its slot, and the token, its log-probability and its logit in the output."""
    row = tl.program_id(0).to(tl.int64)
    token, logprob, logit = combine_parts(max_ptr, argmax_ptr, sum_ptr, row, PARTS, PADDED)
    tl.store(token_ptr + tl.load(slot_ptr + row * slot_stride), token)
    tl.store(output_ptr + row * 3, token.to(tl.float64))
    tl.store(output_ptr + row * 3 + 1, logprob.to(tl.float64))
    tl.store(output_ptr + row * 3 + 2, logit.to(tl.float64))
