"""Pages: a stack that reads its keys from pages anywhere in memory says what it says of the whole text at once."""

from dataclasses import replace
from typing import cast

import pytest
import torch
from engine_schedules import small
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.blocks import Inputs, SelfCache
from qkv.decode.engine import sources
from qkv.decode.engine.pages import PagedCache, PagePool
from qkv.models import Decoder, Seq2Seq

VOCAB = 14


def scattered(network: Decoder | Seq2Seq, size: int, count: int = 30) -> PagePool:
    """Pages full of what other texts left there; the blank one is blank."""
    pages = PagePool(network.new_cache(1, 1), count, size)
    for tensor in (*pages.keys, *pages.values):
        tensor[1:] = torch.randn_like(tensor[1:])
    return pages


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["decoder", "decoder-learned", "decoder-grouped-window", "decoder-alibi", "seq2seq-t5"]),
    size=st.integers(1, 5),
    chunks=st.lists(st.lists(st.integers(1, 4), min_size=3, max_size=3), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_paged_equals_the_whole_text_at_once(kind: str, size: int, chunks: list[list[int]], seed: int) -> None:
    network = small(kind)
    torch.manual_seed(seed)
    pages = scattered(network, size, 3 * 12)
    lengths = [sum(chunk[row] for chunk in chunks) for row in range(3)]
    texts = [torch.randint(0, VOCAB, (n,)).tolist() for n in lengths]
    read = [torch.randint(0, VOCAB, (n,)).tolist() for n in (2, 5, 3)]
    order = (1 + torch.randperm(pages.num_pages)).tolist()
    tables = [[order.pop() for _ in range(pages.pages_for(n))] for n in lengths]
    filled = [0, 0, 0]
    with torch.inference_mode():
        crosses = sources.encode_sources(network, read) if network.has_source else []
        for chunk in chunks:
            fresh = [text[at : at + n] for text, at, n in zip(texts, filled, chunk, strict=True)]
            cache = cast(SelfCache, PagedCache.from_page_tables(pages, tables, filled))
            memory = sources.batch_sources(crosses) if crosses else None
            inputs = Inputs.from_sequences(fresh, side="left")
            inputs = replace(inputs, positions=cache.next_positions(inputs.ids, inputs.document_ids))
            out, _ = network.hidden(inputs, memory=memory, cache=cache)
            for row, text in enumerate(texts):
                filled[row] += chunk[row]
                source = Inputs(torch.tensor([read[row]])) if network.has_source else None
                whole, _ = network.hidden(Inputs(torch.tensor([text[: filled[row]]]), source=source))
                torch.testing.assert_close(out[row, -chunk[row] :], whole[0, -chunk[row] :], rtol=0, atol=1e-10)
    assert all((t[0] == 0).all() for t in (*pages.keys, *pages.values))


def test_sources_read_together_are_as_if_read_alone() -> None:
    network = small("seq2seq")
    texts = [[4, 5, 6], [7], [8, 9, 10, 11, 12]]
    with torch.inference_mode():
        together, alone = (
            sources.encode_sources(network, texts),
            [sources.encode_sources(network, [text])[0] for text in texts],
        )
    for one, other in zip(together, alone, strict=True):
        for a, b in zip((*one.keys, *one.values), (*other.keys, *other.values), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
        assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in one.keys)


def test_taking_and_giving_back() -> None:
    pages = PagePool(small("decoder").new_cache(1, 1), 3, 4)
    taken = pages.allocate(2)
    assert (pages.num_available, len(set(taken))) == (1, 2)
    assert 0 not in taken
    pages.free_pages(taken)
    assert pages.num_available == 3
    assert pages.pages_for(8) == 2
    assert pages.pages_for(9) == 3
    assert pages.num_bytes == 2 * 2 * (4 * 4) * 8 * 8  # keys and values, layers, slots (one page blank), width, float64


def test_pages_have_a_size() -> None:
    with pytest.raises(ValueError, match="num_pages = 0, page_size = 4"):
        PagePool(small("decoder").new_cache(1, 1), 0, 4)
