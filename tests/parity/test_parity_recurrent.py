"""Recurrent stacks against torch.nn.RNN, GRU and LSTM, which read one document at a time: outputs and gradients."""

import pytest
import torch
from torch import Tensor, nn

from qkv.blocks import SequenceLayout, Stack, StackConfig, make_layout, make_stack

WIDTH = 12
TORCH = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
DOCUMENT_IDS = torch.tensor([[1, 1, 1, 2, 2, 3], [0, 0, 1, 1, 1, 1], [2, 2, 2, 1, 0, 0], [0, 0, 0, 0, 0, 0]])


def make_pair(kind: str, layers: int, *, causal: bool) -> tuple[Stack, nn.Module]:
    """A stack in float64, and torch's module with the same weights."""
    torch.manual_seed(0)
    config = StackConfig(vocab_size=5, width=WIDTH, layers=layers, block=kind)  # type: ignore[arg-type]
    stack = make_stack(config, name="decoder" if causal else "encoder", causal=causal).double()
    width = WIDTH if causal else WIDTH // 2
    theirs = TORCH[kind](WIDTH, width, layers, bidirectional=not causal, batch_first=True).double()
    with torch.no_grad():
        for number, layer in enumerate(stack.layers):
            for name, weight in layer.rnn.named_parameters():  # type: ignore[union-attr]
                getattr(theirs, name.replace("_l0", f"_l{number}")).copy_(weight)
    return stack, theirs


def read_documents(theirs: nn.Module, x: Tensor, document_ids: Tensor) -> Tensor:
    """Torch's outputs, one document at a time. Padding has zeros."""
    out = torch.zeros_like(x)
    for row in range(len(x)):
        for one in set(document_ids[row].tolist()) - {0}:
            where = (document_ids[row] == one).nonzero()[:, 0]
            out = out.index_put((torch.full_like(where, row), where), theirs(x[row, where][None])[0][0])
    return out


@pytest.mark.parametrize("causal", [True, False], ids=["one direction", "both directions"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", TORCH)
def test_packed_documents_are_read_as_torch_reads_each_alone(kind: str, layers: int, causal: bool) -> None:
    stack, theirs = make_pair(kind, layers, causal=causal)
    x = torch.randn(4, 6, WIDTH, dtype=torch.float64)
    ours_x, their_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = torch.randn(4, 6, WIDTH, dtype=torch.float64)
    found = stack(ours_x, make_layout(x, DOCUMENT_IDS))
    expected = read_documents(theirs, their_x, DOCUMENT_IDS)
    assert torch.allclose(found, expected, atol=1e-13)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    assert ours_x.grad is not None
    assert torch.allclose(ours_x.grad, their_x.grad, atol=1e-12)
    for number, layer in enumerate(stack.layers):
        for name, weight in layer.rnn.named_parameters():  # type: ignore[union-attr]
            other = getattr(theirs, name.replace("_l0", f"_l{number}"))
            assert torch.allclose(weight.grad, other.grad, atol=1e-12), name


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", TORCH)
def test_sequences_without_padding_are_torch_s_batch(kind: str, causal: bool) -> None:
    stack, theirs = make_pair(kind, 2, causal=causal)
    x = torch.randn(3, 5, WIDTH, dtype=torch.float64)
    assert torch.allclose(stack(x, make_layout(x)), theirs(x)[0], atol=1e-13)


def test_without_resets_the_result_differs() -> None:
    """The negative control: a stack that carries its state from document to document."""
    stack, theirs = make_pair("gru", 1, causal=True)
    x = torch.randn(4, 6, WIDTH, dtype=torch.float64)
    carried = stack(x, SequenceLayout((DOCUMENT_IDS != 0).long(), make_layout(x).positions))
    assert not torch.allclose(carried[0], read_documents(theirs, x, DOCUMENT_IDS)[0], atol=1e-3)
