"""The Triton kernel of a decoding step over a paged cache: rotary embedding, cache write and attention.

A program computes one head of one sequence. It reads the pages of the sequence where they are, up to the newest token,
so that neither a copy of the keys nor a mask is needed.

R sequences, H heads, KV key/value heads, D head dim, P pages, G slots in a page
"""

import triton
import triton.language as tl


@triton.jit
def paged_attention(
    qkv_ptr,  # q, k and v of the newest tokens, (R, (H + 2·KV) · D)
    cos_ptr,
    sin_ptr,
    position_ptr,
    page_table_ptr,
    key_ptr,  # (P, G, KV, D)
    value_ptr,
    out_ptr,  # (R, H · D)
    input_stride,  # between the rows of the positions and of the page tables
    scale,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    ROTARY_DIM: tl.constexpr,  # how many coordinates of a head rotate
    PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,  # the sliding window; 0: none
    BLOCK: tl.constexpr,  # slots that are read at a time
):
    """Write the newest token's key and value to its page, and attend to all tokens of its sequence."""
    row, head = tl.program_id(0), tl.program_id(1)
    kv = head // (H // KV)
    d = tl.arange(0, D)
    position = tl.load(position_ptr + row * input_stride).to(tl.int32)
    pages = page_table_ptr + row * input_stride
    qkv = qkv_ptr + row * (H + 2 * KV) * D
    cache_dtype = key_ptr.dtype.element_ty
    q = tl.load(qkv + head * D + d).to(tl.float32)
    k = tl.load(qkv + (H + kv) * D + d).to(tl.float32)
    v = tl.load(qkv + (H + KV + kv) * D + d).to(cache_dtype)
    if ROTARY_DIM > 0:
        half: tl.constexpr = ROTARY_DIM // 2
        rotated = d < ROTARY_DIM
        cos = tl.load(cos_ptr + position * ROTARY_DIM + d, mask=rotated, other=1.0).to(tl.float32)
        sin = tl.load(sin_ptr + position * ROTARY_DIM + d, mask=rotated, other=0.0).to(tl.float32)
        partner = tl.where(rotated, (d + half) % ROTARY_DIM, d)
        q = q * cos + tl.load(qkv + head * D + partner).to(tl.float32) * sin
        k = k * cos + tl.load(qkv + (H + kv) * D + partner).to(tl.float32) * sin
    q = q.to(cache_dtype).to(tl.float32) * scale
    k = k.to(cache_dtype)
    own_page = tl.load(pages + position // PAGE_SIZE)
    if (head % (H // KV) == 0) & (own_page > 0):  # page 0 is the null page, which a row of padding has
        own = ((own_page * PAGE_SIZE + position % PAGE_SIZE) * KV + kv) * D
        tl.store(key_ptr + own + d, k)
        tl.store(value_ptr + own + d, v)
    # Each of the BLOCK rows below keeps the softmax of its own slots, so that rows are combined only once, at the end.
    top = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    out = tl.zeros((BLOCK, D), tl.float32)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(position - WINDOW, 0)
    for start in range(begin, position, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        seen = slot < position
        page = tl.load(pages + slot // PAGE_SIZE, mask=seen, other=0)
        offsets = ((page * PAGE_SIZE + slot % PAGE_SIZE) * KV + kv) * D
        keys = tl.load(key_ptr + offsets[:, None] + d[None, :], mask=seen[:, None], other=0.0).to(tl.float32)
        values = tl.load(value_ptr + offsets[:, None] + d[None, :], mask=seen[:, None], other=0.0).to(tl.float32)
        score = tl.where(seen, tl.sum(keys * q[None, :], axis=1), float("-inf"))
        new_top = tl.maximum(top, score)
        weight, rescale = tl.exp(score - new_top), tl.exp(top - new_top)
        out = out * rescale[:, None] + values * weight[:, None]
        total = total * rescale + weight
        top = new_top
    # The newest token's key and value are used from registers, because another program may still be writing them.
    own_score = tl.sum(q * k.to(tl.float32), axis=0)
    max_score = tl.maximum(tl.max(top, axis=0), own_score)
    rescale, own_weight = tl.exp(top - max_score), tl.exp(own_score - max_score)
    z = tl.sum(out * rescale[:, None], axis=0) + own_weight * v.to(tl.float32)
    z = z / (tl.sum(total * rescale, axis=0) + own_weight)
    tl.store(out_ptr + (row * H + head) * D + d, z.to(out_ptr.dtype.element_ty))
