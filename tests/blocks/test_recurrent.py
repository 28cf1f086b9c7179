"""Recurrent stacks: documents do not affect each other; additive attention against a slow loop; taps, dropout."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from qkv.blocks import EncoderMemory, RecurrentStack, StackConfig, Tap, initialise, make_layout, make_stack
from qkv.blocks.recurrent import AttentiveLayer

KINDS = ["rnn", "gru", "lstm"]
WIDTH = 8


def make(kind: str = "lstm", *, causal: bool = True, cross: bool = False, **choices: Any) -> RecurrentStack:
    torch.manual_seed(0)
    config = StackConfig(vocab_size=5, width=WIDTH, block=kind, **{"layers": 2, **choices})  # type: ignore[arg-type]
    stack = make_stack(config, name="decoder" if causal else "encoder", causal=causal, cross=cross).double()
    initialise(stack, config)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.mul_(2.0)  # so that every part matters
    return stack.eval()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-12)


# ── Documents ────────────────────────────────────────────────────────────────────────────────────────────────────────

LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=4)
STACKS = {causal: make("gru", causal=causal) for causal in (True, False)}


@given(LENGTHS, st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_a_document_is_the_same_packed_padded_and_alone(
    lengths: list[int], left: int, right: int, causal: bool
) -> None:
    stack, documents = STACKS[causal], [draw(n, WIDTH, seed=i) for i, n in enumerate(lengths)]
    alone = [stack(one[None], make_layout(one[None]))[0] for one in documents]
    noise = [draw(left, WIDTH, seed=9), draw(right, WIDTH, seed=10)]
    packed = torch.cat([noise[0], *documents, noise[1]])[None]
    numbers = [0] * left + [n + 1 for n, length in enumerate(lengths) for _ in range(length)] + [0] * right
    out = stack(packed, make_layout(packed, torch.tensor([numbers])))[0]
    assert close(out[left : len(out) - right], torch.cat(alone))
    assert not out[:left].any()
    width = left + max(lengths) + right
    padded, ids = draw(len(lengths), width, WIDTH, seed=11), torch.zeros(len(lengths), width).long()
    for row, one in enumerate(documents):
        padded[row, left : left + len(one)], ids[row, left : left + len(one)] = one, 1
    out = stack(padded, make_layout(padded, ids))
    assert all(close(out[row][ids[row] != 0], alone[row]) for row in range(len(lengths)))


def test_without_resets_packed_documents_would_differ() -> None:
    """The negative control: the two documents as one."""
    x = draw(1, 5, WIDTH)
    ids = torch.tensor([[1, 1, 2, 2, 2]])
    for stack in STACKS.values():
        assert not torch.allclose(stack(x, make_layout(x, ids)), stack(x, make_layout(x)), atol=1e-3)


def test_padding_only_gives_zeros() -> None:
    x = draw(2, 3, WIDTH)
    assert not make()(x, make_layout(x, torch.zeros(2, 3).long())).any()


def test_selected_positions() -> None:
    stack, x = make(causal=False), draw(2, 4, WIDTH)
    chosen = torch.tensor([[3, 1], [4, 7]])
    assert torch.equal(stack(x, make_layout(x), selected=chosen), stack(x, make_layout(x)).flatten(0, 1)[[3, 1, 4, 7]])


# ── Additive attention ───────────────────────────────────────────────────────────────────────────────────────────────


def slow_cell(cell: nn.Module, kind: str, x: Tensor, state: list[Tensor], suffix: str = "") -> list[Tensor]:
    """One step of one document, written out from the equations."""
    gates_x = getattr(cell, f"weight_ih{suffix}") @ x + getattr(cell, f"bias_ih{suffix}")
    gates_h = getattr(cell, f"weight_hh{suffix}") @ state[0] + getattr(cell, f"bias_hh{suffix}")
    if kind == "rnn":
        return [torch.tanh(gates_x + gates_h)]
    if kind == "gru":
        (r, z, n), (hr, hz, hn) = gates_x.chunk(3), gates_h.chunk(3)
        reset, update = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
        return [(1 - update) * torch.tanh(n + reset * hn) + update * state[0]]
    i, f, g, o = (gates_x + gates_h).chunk(4)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return [torch.sigmoid(o) * torch.tanh(c), c]


def slow_decoder(stack: RecurrentStack, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs (T, C) and the attention weights (T, S) of one document, token by token."""
    kind, layers = stack.config.block, stack.config.layers
    count = 2 if kind == "lstm" else 1
    summary = torch.cat([source[-1, : WIDTH // 2], source[0, WIDTH // 2 :]])
    assert stack.initial is not None
    start = torch.tanh(stack.initial.weight @ summary + stack.initial.bias).view(layers, count, WIDTH)
    states = [[start[layer, one] for one in range(count)] for layer in range(layers)]
    outputs, patterns = [], []
    for token in x:
        h = token
        for number, layer in enumerate(stack.layers):
            if isinstance(layer, AttentiveLayer):
                query = layer.query.weight @ states[0][0]
                energies = [torch.tanh(query + layer.key.weight @ s + layer.key.bias) for s in source]
                scores = torch.stack([(layer.score.weight[0] * e).sum() for e in energies])
                weights = scores.exp() / scores.exp().sum()
                patterns.append(weights)
                h = torch.cat([h, sum(w * s for w, s in zip(weights, source, strict=True))])  # type: ignore[list-item]
                states[number] = slow_cell(layer.cell, kind, h, states[number])
            else:
                states[number] = slow_cell(layer.rnn, kind, h, states[number], "_l0")  # type: ignore[arg-type]
            h = states[number][0]
        outputs.append(h)
    return torch.stack(outputs), torch.stack(patterns) if patterns else torch.zeros(0)


TARGET_IDS = torch.tensor([[1, 1, 1, 2, 2, 0], [0, 1, 1, 1, 1, 1], [3, 3, 1, 1, 1, 2]])
SOURCE_IDS = torch.tensor([[1, 1, 2, 2, 2], [0, 0, 0, 1, 1], [1, 2, 2, 3, 3]])


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("attention", ["additive", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_reads_its_source_as_the_slow_loop(kind: str, attention: str, layers: int) -> None:
    stack = make(kind, cross=True, recurrent_attention=attention, layers=layers)
    x, vectors = draw(3, 6, WIDTH), draw(3, 5, WIDTH, seed=1)
    memory = EncoderMemory(vectors, make_layout(vectors, SOURCE_IDS))
    tap = Tap(record=["*.cross_pattern"])
    out = stack(x, make_layout(x, TARGET_IDS), None, memory, tap)
    for row in range(3):
        for one in set(TARGET_IDS[row].tolist()) - {0}:
            target, source = TARGET_IDS[row] == one, SOURCE_IDS[row] == one
            expected, weights = slow_decoder(stack, x[row][target], vectors[row][source])
            assert close(out[row][target], expected)
            if attention == "additive":
                found = tap["decoder.0.cross_pattern"][row, 0][target]
                assert close(found[:, source], weights)
                assert not found[:, ~source].any()
    assert (attention == "none") == (not tap.values)


def test_a_target_without_a_source_gets_no_context() -> None:
    stack, x, vectors = make("gru", cross=True), draw(1, 2, WIDTH), draw(1, 2, WIDTH, seed=1)
    memory = EncoderMemory(vectors, make_layout(vectors, torch.tensor([[2, 2]])))
    out = stack(x, make_layout(x), None, memory)
    empty = EncoderMemory(torch.zeros_like(vectors), make_layout(vectors, torch.tensor([[1, 1]])))
    assert close(out, stack(x, make_layout(x), None, empty))
    assert out.isfinite().all()


def test_gradients_reach_the_source_and_every_weight_also_with_checkpointing() -> None:
    found = []
    for checkpointing in (False, True):
        stack, x = make("lstm", cross=True).train(), draw(3, 6, WIDTH)
        stack.gradient_checkpointing = checkpointing
        vectors = draw(3, 5, WIDTH, seed=1).requires_grad_()
        memory = EncoderMemory(vectors, make_layout(vectors, SOURCE_IDS))
        stack(x, make_layout(x, TARGET_IDS), None, memory).square().sum().backward()
        gradients = [vectors.grad, *(parameter.grad for parameter in stack.parameters())]
        assert all(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)
        found.append(gradients)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))  # type: ignore[arg-type]


# ── Taps, dropout, precision, start ──────────────────────────────────────────────────────────────────────────────────


def test_a_tap_records_and_changes_states() -> None:
    stack, x = make(), draw(2, 4, WIDTH)
    ids = torch.tensor([[1, 1, 2, 2], [0, 1, 1, 1]])
    tap = Tap(record=["*"])
    out = stack(x, make_layout(x, ids), tap=tap)
    assert list(tap.values) == ["decoder.0.state", "decoder.1.state", "decoder.final"]
    assert torch.equal(tap["decoder.1.state"], out)
    same = stack(x, make_layout(x, ids), tap=Tap(change={"decoder.0.state": lambda h: h.clone()}))
    other = stack(x, make_layout(x, ids), tap=Tap(change={"decoder.0.state": torch.zeros_like}))
    assert torch.equal(same, out)
    assert not torch.allclose(other[ids != 0], out[ids != 0], atol=1e-3)


def test_a_pattern_cannot_be_changed() -> None:
    stack, x = make(cross=True), draw(1, 2, WIDTH)
    memory = EncoderMemory(x, make_layout(x))
    with pytest.raises(ValueError, match=r"decoder.0.cross_pattern cannot be edited.*decoder.\*.state"):
        stack(x, make_layout(x), None, memory, Tap(change={"*.cross_pattern": torch.zeros_like}))


def test_dropout_acts_on_outputs_and_not_on_the_carried_state() -> None:
    stack, x = make(dropout=0.5), draw(2, 30, WIDTH)
    quiet, noisy = Tap(record=["*.0.state"]), Tap(record=["*.0.state"])
    stack(x, make_layout(x), tap=quiet)
    out = stack.train()(x, make_layout(x), tap=noisy)
    assert torch.equal(quiet["decoder.0.state"], noisy["decoder.0.state"])
    assert 0.3 < float((out == 0).double().mean()) < 0.7


@pytest.mark.parametrize("cross", [True, False])
def test_autocast_leaves_recurrent_layers_in_their_own_dtype(cross: bool) -> None:
    stack, x = make("gru", cross=cross).float(), draw(2, 3, WIDTH).float()
    memory = EncoderMemory(x, make_layout(x)) if cross else None
    expected = stack(x, make_layout(x), None, memory)
    with torch.autocast("cpu", torch.bfloat16):
        found = stack(x.bfloat16().float(), make_layout(x), None, memory)
        rounded = stack(x.bfloat16(), make_layout(x), None, memory)
    assert found.dtype == rounded.dtype == torch.float32
    assert torch.equal(found, rounded)
    assert torch.allclose(found, expected, atol=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_start_as_torch_s_and_forget_gates_open(kind: str, small: Callable[..., StackConfig]) -> None:
    stack = make_stack(small(block=kind, heads=0, ffn_width=0, width=64), name="decoder", causal=True, cross=True)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.fill_(9.0)
    initialise(stack, stack.config)
    for name, parameter in stack.named_parameters():
        values = parameter.detach().clone()
        if kind == "lstm" and ".bias_" in name:
            forget = values[64:128]
            assert (forget == (1.0 if ".bias_ih" in name else 0.0)).all()
            values[64:128] = 0.1
        limit = 64**-0.5
        assert limit * 0.8 < float(values.abs().max()) <= limit, name
