"""The one rule of who may see whom, and its four renderings: dense, SDPA, FlexAttention, variable-length offsets.

The rule is stated a second time here, in plain Python loops; everything else is held against that.
"""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention

from qkv.blocks.config import AttentionKernel
from qkv.blocks.kernels.choose import KERNELS, prepare_mask
from qkv.blocks.kernels.flex import make_block_mask
from qkv.blocks.kernels.prepared import DocumentOffsets, KernelHints
from qkv.blocks.kernels.sdpa import sdpa
from qkv.blocks.kernels.varlen import make_offsets
from qkv.blocks.mask import Mask, SequenceLayout, make_layout, positions_in_documents

EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True)


def may_see(mask: Mask, rows: int, queries: int, keys: int) -> list[list[list[bool]]]:
    """The rule in words: same document, no padding, nothing later, nothing farther than the window."""

    def at(layout: SequenceLayout, row: int, i: int) -> tuple[int, int]:
        segment = 1 if layout.document_ids is None else int(layout.document_ids[row % len(layout.document_ids), i])
        return segment, int(layout.positions[row % len(layout.positions), i])

    table = [[[False] * keys for _ in range(queries)] for _ in range(rows)]
    for row in range(rows):
        for i in range(queries):
            for j in range(keys):
                mine, here = at(mask.query, row, i)
                theirs, there = at(mask.key, row, j)
                seen = mine == theirs and theirs != 0
                if mask.causal and there > here:
                    seen = False
                if mask.window > 0 and abs(here - there) > mask.window:
                    seen = False
                table[row][i][j] = seen
    return table


@st.composite
def places(draw: st.DrawFn, rows: int, length: int) -> SequenceLayout:
    """Any segments at all, none, or one text a row; positions counted or arbitrary, of each row or of all."""
    kind = draw(st.sampled_from(["none", "any", "counted"]))
    numbers = st.lists(st.integers(0, 3), min_size=rows * length, max_size=rows * length)
    segment = None if kind == "none" else torch.tensor(draw(numbers)).view(rows, length)
    if kind == "counted":
        return make_layout(torch.zeros(rows, length), segment)
    alike = draw(st.booleans())
    count = length * (1 if alike else rows)
    position = torch.tensor(draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))).view(-1, length)
    return SequenceLayout(segment, position)


@st.composite
def masks(draw: st.DrawFn) -> tuple[Mask, int]:
    rows, queries, keys = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 6))
    query = draw(places(rows, queries))
    key = query if draw(st.booleans()) else draw(places(rows, keys))
    return Mask(query, key, draw(st.booleans()), draw(st.integers(0, 3))), rows


@st.composite
def packed(draw: st.DrawFn) -> tuple[Mask, int]:
    """Rows as packing lays them: segments rise along the row, padding comes last; source rows share the numbers."""
    rows = draw(st.integers(1, 3))

    def lay(length: int) -> Tensor:
        out = []
        for _ in range(rows):
            counts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
            row = [n + 1 for n, count in enumerate(counts) for _ in range(count)][:length]
            out.append(row + [0] * (length - len(row)))
        return torch.tensor(out)

    query = lay(draw(st.integers(1, 7)))
    itself = draw(st.booleans())
    key = query if itself else lay(draw(st.integers(1, 7)))
    layouts = [SequenceLayout(document_ids, positions_in_documents(document_ids)) for document_ids in (query, key)]
    return Mask(layouts[0], layouts[0] if itself else layouts[1]), rows


def implied(offsets: DocumentOffsets, rows: int, queries: int, keys: int) -> Tensor:
    """The mask that a variable-length kernel sees: documents of the flattened tokens, and nothing between them."""
    flat = torch.zeros(rows * queries, rows * keys, dtype=torch.bool)
    for n in range(len(offsets.query) - 1):
        flat[offsets.query[n] : offsets.query[n + 1], offsets.key[n] : offsets.key[n + 1]] = True
    blocks = flat.view(rows, queries, rows, keys)
    for a in range(rows):
        for b in range(rows):
            assert a == b or not blocks[a, :, b].any(), "a document reaches from one row into another"
    return torch.stack([blocks[row, :, row] for row in range(rows)])


# ── The four renderings ──────────────────────────────────────────────────────────────────────────────────────────


@given(masks())
@EXAMPLES
def test_dense_is_the_rule(case: tuple[Mask, int]) -> None:
    mask, rows = case
    queries, keys = mask.query.positions.shape[1], mask.key.positions.shape[1]
    dense = mask.dense().expand(rows, 1, queries, keys)
    assert dense[:, 0].tolist() == may_see(mask, rows, queries, keys)


def check_weights(kernel: AttentionKernel, mask: Mask, rows: int, biased: bool) -> None:
    """With values that are one-hot by key, what comes out of a kernel are the weights themselves."""
    queries, keys = mask.query.positions.shape[1], mask.key.positions.shape[1]
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(rows, 2, n, 8, dtype=torch.float64, generator=generator) for n in (queries, keys))
    bias = torch.randn(1, 2, queries, keys, dtype=torch.float64, generator=generator) if biased else None
    v = torch.eye(keys, dtype=torch.float64).expand(rows, 2, keys, keys)
    x = torch.zeros(rows, queries, 16, dtype=torch.float64)
    prepared = prepare_mask(mask, x, kernel=kernel, bias=bias)
    assert prepared.kernel == kernel
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # not traced anew for each mask
        weights = KERNELS[kernel](q, k, v, prepared, 0.5)
    table = may_see(mask, rows, queries, keys)
    for row, head, i in product(range(rows), range(2), range(queries)):
        scores = 0.5 * k[row, head] @ q[row, head, i] + (0.0 if bias is None else bias[0, head, i])
        parts = [math.exp(s) if seen else 0.0 for s, seen in zip(scores.tolist(), table[row][i], strict=True)]
        expected = [part / (sum(parts) or 1.0) for part in parts]
        assert weights[row, head, i].tolist() == pytest.approx(expected, abs=1e-12)


@given(masks(), st.booleans())
@EXAMPLES
def test_sdpa_looks_where_the_rule_allows(case: tuple[Mask, int], biased: bool) -> None:
    check_weights("sdpa", *case, biased)


@given(masks(), st.booleans())
@settings(EXAMPLES, max_examples=30)
def test_flex_looks_where_the_rule_allows(case: tuple[Mask, int], biased: bool) -> None:
    check_weights("flex", *case, biased)


@given(masks())
@EXAMPLES
def test_flex_blocks_hold_the_rule(case: tuple[Mask, int]) -> None:
    """The function that FlexAttention calls for each pair, asked for each pair, whatever row it asks for."""
    mask, rows = case
    queries, keys = mask.query.positions.shape[1], mask.key.positions.shape[1]
    rule = make_block_mask(mask).mask_mod
    table = may_see(mask, rows, queries, keys)
    for row in range(rows):
        for i in range(queries):
            asked = [rule(torch.tensor(row), torch.tensor(0), torch.tensor(i), torch.tensor(j)) for j in range(keys)]
            assert [bool(a) for a in asked] == table[row][i]


@given(packed(), st.sampled_from([KernelHints(), KernelHints(max_documents=4)]))
@EXAMPLES
def test_offsets_imply_the_rule(case: tuple[Mask, int], hints: KernelHints) -> None:
    """Between tokens; what padding sees is thrown away, and tokens never see it."""
    mask, rows = case
    queries, keys = mask.query.positions.shape[1], mask.key.positions.shape[1]
    seen = implied(make_offsets(mask, rows, hints, hints), rows, queries, keys)
    real = (mask.query.document_ids != 0)[:, :, None]
    table = torch.tensor(may_see(mask, rows, queries, keys))
    assert torch.equal(seen & real, table)


def test_offsets_of_rows_without_segments_are_the_rows() -> None:
    layout = make_layout(torch.zeros(3, 4))
    offsets = make_offsets(Mask(layout, layout), 3, KernelHints(), KernelHints())
    assert torch.equal(implied(offsets, 3, 4, 4), torch.ones(3, 4, 4, dtype=torch.bool))
    assert (offsets.max_query_length, offsets.max_key_length) == (4, 4)


def test_offsets_agree_whether_the_number_of_texts_is_known_or_looked_up() -> None:
    segment = torch.tensor([[1, 1, 2, 0], [1, 0, 0, 0]])
    layout = SequenceLayout(segment, positions_in_documents(segment))
    known, unknown = (make_offsets(Mask(layout, layout), 2, hints, hints) for hints in (KernelHints(2), KernelHints()))
    assert torch.equal(known.query, unknown.query)


# ── What is known without a look ─────────────────────────────────────────────────────────────────────────────────


@given(masks())
@EXAMPLES
def test_shortcuts_are_true_when_they_are_taken(case: tuple[Mask, int]) -> None:
    mask, _ = case
    if mask.allows_all:
        assert mask.dense().all()


def test_shortcuts_are_taken_for_plain_rows() -> None:
    layout = make_layout(torch.zeros(2, 5))
    assert Mask(layout, layout).allows_all
    mask, x, hints = Mask(layout, layout, causal=True), torch.zeros(2, 5, 8), KernelHints(is_default=True)
    assert torch.equal(mask.dense()[0, 0], torch.ones(5, 5).tril().bool())
    assert prepare_mask(mask, x, query_hints=hints).attn_mask is None
    assert prepare_mask(mask._replace(window=2), x, query_hints=hints).attn_mask is not None
    assert prepare_mask(mask._replace(key=make_layout(x)), x, query_hints=hints).attn_mask is not None


def test_positions_of_the_callers_own_are_no_triangle() -> None:
    """Positions that start again are not a look-ahead mask by index: only the rule may decide."""
    layout = make_layout(torch.zeros(1, 4), positions=torch.tensor([[0, 1, 0, 1]]))
    mask = Mask(layout, layout, causal=True)
    q = torch.randn(1, 1, 4, 8, dtype=torch.float64)
    x = torch.zeros(1, 4, 8, dtype=torch.float64)
    v = torch.eye(4, dtype=torch.float64)[None, None]
    assert torch.equal(sdpa(q, q, v, prepare_mask(mask, x), 1.0) > 0, mask.dense())


# ── Positions and places ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("segment", "position"),
    [
        ([1, 1, 1, 1], [0, 1, 2, 3]),
        ([1, 1, 1, 0, 0], [0, 1, 2, 0, 0]),
        ([0, 0, 1, 1, 1], [0, 0, 0, 1, 2]),
        ([1, 1, 2, 2, 2, 3], [0, 1, 0, 1, 2, 0]),
        ([0, 1, 1, 0, 2, 0], [0, 0, 1, 0, 0, 0]),
        ([0, 0, 0], [0, 0, 0]),
        ([1], [0]),
        ([], []),
    ],
    ids=["alone", "right", "left", "packed", "holes", "padding", "one", "empty"],
)
def test_positions_count_from_each_start(segment: list[int], position: list[int]) -> None:
    found = positions_in_documents(torch.tensor([segment], dtype=torch.long))
    assert found.tolist() == [position]


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4))
@EXAMPLES
def test_positions_of_rows_do_not_depend_on_each_other(rows: list[list[int]]) -> None:
    together = positions_in_documents(torch.tensor(rows))
    for row, positions in zip(rows, together, strict=True):
        expected = [0] * len(row)
        for i in range(1, len(row)):
            expected[i] = expected[i - 1] + 1 if row[i] == row[i - 1] and row[i] else 0
        assert positions.tolist() == expected


def test_place_of_ids_alone_is_one_document_a_row() -> None:
    layout = make_layout(torch.zeros(3, 4))
    assert layout.document_ids is None
    assert layout.padding is None
    assert layout.positions.tolist() == [[0, 1, 2, 3]]


def test_place_of_segments_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"document_ids has shape \(2, 3\) but ids has \(2, 4\)"):
        make_layout(torch.zeros(2, 4), torch.ones(2, 3))


def test_padding_is_segment_zero() -> None:
    layout = make_layout(torch.zeros(1, 3), torch.tensor([[0, 1, 2]]))
    assert layout.padding is not None
    assert layout.padding.tolist() == [[True, False, False]]


@pytest.mark.parametrize("alike", [True, False], ids=["positions of all", "positions of each"])
@pytest.mark.parametrize("segmented", [True, False])
def test_fold_lays_the_beams_of_a_source_end_to_end(alike: bool, segmented: bool) -> None:
    """What beam b of source s may see is unchanged by laying the beams in one row."""
    sources, beams, length = 2, 3, 2
    segment = torch.tensor([[1, 1], [1, 2], [2, 2], [0, 1], [1, 0], [1, 1]]) if segmented else None
    position = torch.arange(length)[None] if alike else torch.arange(length) + torch.arange(sources * beams)[:, None]
    key = SequenceLayout(torch.tensor([[1, 1, 2, 0], [0, 1, 1, 2]]), torch.arange(4)[None])
    apart = SequenceLayout(segment, position)
    folded = Mask(apart.fold_beams(beams), key).dense().expand(sources, 1, beams * length, 4)
    many = SequenceLayout(key.document_ids.repeat_interleave(beams, dim=0), key.positions)
    one_by_one = Mask(apart, many).dense().expand(sources * beams, 1, length, 4)
    assert torch.equal(folded.reshape(one_by_one.shape), one_by_one)
    assert torch.equal(
        apart.fold_beams(beams).positions.expand(sources, -1).reshape(-1, length).expand(6, 2), position.expand(6, 2)
    )
