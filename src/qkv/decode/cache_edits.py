"""Changes to the caches between decoding steps: copy, remove or shorten sequences."""

from torch import Tensor

from qkv.blocks import CrossCache, SelfCache, SequenceLayout


def reorder_cache(cache: SelfCache, rows: Tensor, start: int = 0) -> None:
    """Make sequence r of the batch a copy of sequence `rows[r]`: in beam search, surviving beams replace others.

    Slots before `start` are not copied. They must already be equal in sequences r and `rows[r]`, as they are in the
    common prefix of beams.
    """
    if not isinstance(cache, SelfCache):  # the cache of a stack that is one part
        cache.reorder(rows)
        return
    if len(rows) != cache.batch_size:
        start = 0  # the batch size changes, so every sequence is copied from its first slot on

    def reordered(tensor: Tensor, dim: int) -> Tensor:
        part = tensor.narrow(dim, start, cache.filled - start)
        chosen = part.index_select(0, rows)
        if len(rows) == len(tensor):
            part.copy_(chosen)
            return tensor
        resized = tensor.new_zeros(len(rows), *tensor.shape[1:])
        resized.narrow(dim, 0, cache.filled).copy_(chosen)
        return resized

    cache.states = [{name: state[rows] for name, state in states.items()} for states in cache.states]
    cache.keys = [reordered(tensor, 2) for tensor in cache.keys]
    cache.values = [reordered(tensor, 2) for tensor in cache.values]
    cache.document_ids, cache.positions = reordered(cache.document_ids, 1), reordered(cache.positions, 1)


def crop_cache(cache: SelfCache, filled: int) -> None:
    """Keep the first `filled` slots and empty the others; speculative decoding removes rejected tokens this way."""
    if not 0 <= filled <= cache.filled:
        raise ValueError(f"cannot crop to {filled} slots: it must lie in 0 … {cache.filled}")
    if any(cache.states):
        raise ValueError("a cache with a state cannot be cropped, because the state depends on all tokens")
    cache.filled = filled
    cache.document_ids[:, filled:] = 0


def select_sources(cache: CrossCache, rows: Tensor) -> CrossCache:
    """Return a new cross cache with only these sources."""
    document_ids, positions = cache.layout
    document_ids = None if document_ids is None else document_ids[rows]
    positions = positions if len(positions) == 1 else positions[rows]
    keys, values = ([t.index_select(0, rows) for t in tensors] for tensors in (cache.keys, cache.values))
    return CrossCache(keys, values, SequenceLayout(document_ids, positions))
