"""A text means the same alone, in a batch, padded on either side, packed with others, in any order.

And what must not hold without a reason does not: without positions an encoder sees a set, with them a sequence.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

POSITIONS = ["sinusoidal", "sinusoidal_split", "learned", "rotary", "alibi", "t5", "none"]
FAMILIES = ["encoder", "decoder", "seq2seq"]
LENGTHS = (3, 6, 1)
SOURCE_LENGTHS = (5, 2, 4)
Make = Callable[..., Any]


def lay(texts: list[Tensor], side: str, extra: int = 0) -> tuple[Tensor, Tensor]:
    """Texts as rows, padded on one side or both with tokens that are not to be read."""
    length = max(len(text) for text in texts) + extra
    ids, segment = torch.full((len(texts), length), 7), torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in enumerate(texts):
        room = length - len(text)
        start = {"left": room, "right": 0, "both": room // 2}[side]
        ids[row, start : start + len(text)] = text
        segment[row, start : start + len(text)] = 1
    return ids, segment


def pack(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Texts end to end in one row, and some padding."""
    ids = torch.cat([*texts, torch.tensor([7, 7])])[None]
    segment = torch.cat([torch.full((len(text),), n) for n, text in enumerate(texts, 1)] + [torch.zeros(2).long()])
    return ids, segment[None]


def draw(lengths: tuple[int, ...], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 40, (n,), generator=generator) for n in lengths]


def alone(network: Any, run: Make, texts: list[Tensor], sources: list[Tensor]) -> list[Tensor]:
    return [run(network, t[None], None, s[None])[0] for t, s in zip(texts, sources, strict=True)]


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_alone_is_the_prompt_in_a_padded_batch(
    network: Make, run: Make, family: str, position: str, side: str
) -> None:
    """Trap 3."""
    small = network(family, position=position)
    texts, sources = draw(LENGTHS, 0), draw(SOURCE_LENGTHS, 1)
    (ids, segment), (source, source_segment) = lay(texts, side, extra=2), lay(sources, side, extra=1)
    together = run(small, ids, segment, source, source_segment)
    for row, expected in enumerate(alone(small, run, texts, sources)):
        assert close(together[row][segment[row] != 0], expected)


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_alone_is_the_text_packed_with_others(
    network: Make, run: Make, family: str, position: str, kernel: str
) -> None:
    small = network(family, position=position, kernel=kernel)
    texts, sources = draw(LENGTHS, 0), draw(SOURCE_LENGTHS, 1)
    (ids, segment), (source, source_segment) = pack(texts), pack(sources)
    packed = run(small, ids, segment, source, source_segment)
    for number, expected in enumerate(alone(small, run, texts, sources), 1):
        assert close(packed[segment == number], expected)


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batch_padding_and_order_do_not_matter(network: Make, run: Make, family: str, data: st.DataObject) -> None:
    """Any number of texts of any lengths, in any order, with any padding on any side."""
    position = data.draw(st.sampled_from(POSITIONS))
    small = network(family, position=position, norm_placement=data.draw(st.sampled_from(["pre", "post"])))
    lengths = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    source_lengths = tuple(data.draw(st.integers(1, 5)) for _ in lengths)
    texts, sources = draw(lengths, 2), draw(source_lengths, 3)
    order = data.draw(st.permutations(range(len(texts))))
    side, extra = data.draw(st.sampled_from(["left", "right", "both"])), data.draw(st.integers(0, 3))
    ids, segment = lay([texts[i] for i in order], side, extra)
    source, source_segment = lay([sources[i] for i in order], data.draw(st.sampled_from(["left", "right"])))
    together = run(small, ids, segment, source, source_segment)
    expected = alone(small, run, texts, sources)
    for row, i in enumerate(order):
        assert close(together[row][segment[row] != 0], expected[i])


@pytest.mark.parametrize("kernel", ["eager", "flex", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_kernels_agree_on_whole_networks(network: Make, run: Make, family: str, kernel: str) -> None:
    """With grouped heads, a window on one layer, packed rows, padding."""
    choices = {"position": "rotary", "kv_heads": 2, "sliding_window": 2, "sliding_window_layers": (1,)}
    texts, sources = draw(LENGTHS, 0), draw(SOURCE_LENGTHS, 1)
    (ids, segment), (source, source_segment) = pack(texts), pack(sources)
    rows = [t.repeat(2, 1) for t in (ids, segment, source, source_segment)]
    rows[1][1] = rows[1][1].clamp(max=1)
    with torch.no_grad():
        found = run(network(family, kernel=kernel, **choices), *rows)
        expected = run(network(family, kernel="eager", **choices), *rows)
    assert close(found[rows[1] != 0], expected[rows[1] != 0])


# ── Sets and sequences ───────────────────────────────────────────────────────────────────────────────────────────


def moved(network: Any, run: Make) -> tuple[Tensor, Tensor]:
    """What an encoder makes of six tokens, and of the same tokens in another order, put back."""
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    order = torch.tensor([2, 0, 5, 4, 1, 3])
    with torch.no_grad():
        here, there = run(network, ids), run(network, ids[:, order])
    return here[:, order], there


def test_an_encoder_without_positions_sees_a_set(network: Make, run: Make) -> None:
    here, there = moved(network("encoder", position="none"), run)
    assert close(here, there)


@pytest.mark.parametrize(
    ("family", "position"), [*(("encoder", p) for p in POSITIONS if p != "none"), ("decoder", "none")]
)
def test_positions_or_a_causal_mask_make_it_a_sequence(network: Make, run: Make, family: str, position: str) -> None:
    here, there = moved(network(family, position=position), run)
    assert float((here - there).abs().max()) > 1e-3


# ── Trap 1 on whole networks ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_of_padding_alone_is_finite_forward_and_backward(
    network: Make, run: Make, family: str, position: str, kernel: str
) -> None:
    small = network(family, position=position, kernel=kernel).train()
    ids = draw((4, 4), 0)
    segment = torch.tensor([[0, 0, 0, 0], [1, 1, 0, 0]])
    out = run(small, torch.stack(ids), segment, torch.stack(ids), segment)
    assert out.isfinite().all()
    out.square().sum().backward()
    for name, parameter in small.named_parameters():
        if not name.startswith("head."):
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_targets_of_a_source_that_is_padding_alone_see_nothing_there(network: Make, run: Make) -> None:
    """Whatever the padded source holds, the target's vectors are the same."""
    small = network("seq2seq")
    ids, empty = torch.tensor([[3, 1, 4]]), torch.zeros(1, 4, dtype=torch.long)
    one, other = (run(small, ids, None, torch.full((1, 4), token), empty) for token in (5, 6))
    assert one.isfinite().all()
    assert torch.equal(one, other)
    assert not torch.equal(one, run(small, ids, None, torch.full((1, 4), 5), empty + 1))


# ── Trap 2 on whole networks ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_poison_in_the_vector_of_padding_reaches_no_text(
    network: Make, run: Make, family: str, kernel: str, side: str
) -> None:
    """The padding token's embedding is NaN, and so is its stream through all layers: nobody else's is."""
    small = network(family, kernel=kernel)
    texts, sources = ([8 + text % 30 for text in draw(n, s)] for n, s in ((LENGTHS, 0), (SOURCE_LENGTHS, 1)))
    (ids, segment), (source, source_segment) = lay(texts, side, extra=1), lay(sources, side, extra=1)
    with torch.no_grad():
        clean = run(small, ids, segment, source, source_segment)
        for name, parameter in small.named_parameters():
            if name.endswith("embedding.token.weight"):
                parameter[7] = float("nan")
        poisoned = run(small, ids, segment, source, source_segment)
    assert torch.equal(poisoned[segment != 0], clean[segment != 0])
    assert poisoned[segment == 0].isnan().all(), "the poison was there"
