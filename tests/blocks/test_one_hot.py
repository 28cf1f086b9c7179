"""The one-hot table of a head: a linear model beside the stack."""

from dataclasses import replace

import pytest
import torch

from qkv.blocks import HeadConfig, Inputs, StackConfig
from qkv.models import Config, build
from qkv.models.tables.summary import summarise_model

STACK = StackConfig(vocab_size=12, width=16, layers=1, heads=2, ffn_width=24, position="rotary", max_positions=64)
HEAD = HeadConfig(kind="classify", outputs=1, pool="mean", bias=True, one_hot_positions=4)
IDS = torch.tensor([[3, 7, 5, 1, 9, 2], [3, 4, 2, 0, 0, 0]])
DOCUMENTS = torch.tensor([[1, 1, 1, 2, 2, 2], [1, 1, 1, 0, 0, 0]])


def test_the_table_adds_a_vector_for_each_token_at_each_position_of_a_document() -> None:
    network = build(Config(encoder=STACK, head=HEAD)).eval()
    plain = build(Config(encoder=STACK, head=replace(HEAD, one_hot_positions=0))).eval()
    plain.load_state_dict(network.state_dict(), strict=False)
    inputs = Inputs(IDS, document_ids=DOCUMENTS, max_documents=2)
    table = network.head.one_hot
    assert table is not None
    assert torch.equal(network(inputs), plain(inputs)), "the table starts at 0"
    with torch.no_grad():
        table.table.weight.normal_()
        table.gain.zero_()
    rows = table.table.weight.view(4, 12, 16)
    means = torch.stack([rows[[0, 1, 2], list(ids)].mean(0) for ids in ((3, 7, 5), (1, 9, 2), (3, 4, 2))])
    expected = network.head.project(means)[:, 0]
    assert torch.allclose(network(inputs)[..., 0].flatten()[:3], expected, atol=1e-6)


def test_positions_after_the_table_have_no_vector() -> None:
    network = build(Config(encoder=STACK, head=HEAD))
    table = network.head.one_hot
    assert table is not None
    x = torch.randn(1, 6, 16)
    with torch.no_grad():
        table.table.weight.normal_()
    found = table(x, IDS[:1], torch.arange(6)[None])
    assert torch.equal(found[:, 4:], x[:, 4:])
    assert not torch.equal(found[:, :4], x[:, :4])


def test_the_table_counts_as_parameters_of_the_head() -> None:
    made = Config(encoder=STACK, head=HEAD)
    assert summarise_model(made).total == sum(one.numel() for one in build(made).parameters())


@pytest.mark.parametrize("change", [{"kind": "tag", "outputs": 3}, {"pool": "first"}])
def test_a_head_that_does_not_take_the_mean_has_no_table(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="one_hot_positions is for a classify or embed head"):
        replace(HEAD, **change)  # type: ignore[arg-type]
