"""A payload in a row: packed equals padded equals alone, and an image sees itself in both directions."""

from dataclasses import replace

import pytest
import torch
from squares import PLACEHOLDER, SquaresConfig, image, make_config, make_network, row
from torch.nn.attention import flex_attention

from qkv.blocks import HeadConfig, Inputs, KernelHints, Mask, Payload, StackConfig, make_layout
from qkv.blocks.inputs import Prompt
from qkv.blocks.kernels.choose import prepare_mask
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network, build
from qkv.models.tables.summary import summarise_model
from qkv.store.config_json import parse_config

FAMILIES = ["encoder", "decoder", "seq2seq"]
ROWS = [row(5, image(2, 2), [6, 7]), row([8, 9], image(1, 2, seed=1), 4, image(2, 1, seed=2), 3)]


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-10, rtol=1e-10)


def batch(rows: list[Inputs], **options: str) -> Inputs:
    return Inputs.from_sequences([Prompt(one) for one in rows], **options)  # type: ignore[arg-type]


def pack(rows: list[Inputs]) -> Inputs:
    """All rows as the documents of one sequence."""
    starts = [0]
    for one in rows:
        starts.append(starts[-1] + one.ids.shape[1])
    payloads = [one.payloads["squares"] for one in rows]
    moved = [payload._replace(rows=payload.rows + start) for payload, start in zip(payloads, starts, strict=False)]
    return Inputs(
        torch.cat([one.ids for one in rows], dim=1),
        document_ids=torch.cat([torch.full_like(one.ids, i) for i, one in enumerate(rows, 1)], dim=1),
        positions=torch.cat([one.positions for one in rows], dim=1),
        payloads={"squares": Payload(*map(torch.cat, zip(*moved, strict=True)))},
    )


def outputs(network: Network, inputs: Inputs) -> torch.Tensor:
    return network(replace(inputs, source=replace(inputs) if network.has_source else None))


@pytest.mark.parametrize("kernel", ["sdpa", "eager", "flex"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_equals_padded_equals_alone(family: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    network = make_network(family)
    for stack in network.stacks.values():
        stack.kernel = kernel  # type: ignore[assignment]
    alone = [outputs(network, one)[0] for one in ROWS]
    assert close(outputs(network, pack(ROWS))[0], torch.cat(alone))
    for side in ("left", "right"):
        padded = batch(ROWS, side=side)
        found = outputs(network, padded)
        for number, expected in enumerate(alone):
            assert close(found[number][padded.document_ids[number] != 0], expected)
        part = outputs(network, padded[1:2])
        assert close(part[0][padded.document_ids[1] != 0], alone[1])
    other = replace(ROWS[0], payloads=row(5, image(2, 2, seed=9), [6, 7]).payloads)
    assert not torch.allclose(outputs(network, other)[0], alone[0], atol=1e-3), "the payload matters"


def test_an_image_is_read_in_both_directions_under_the_causal_mask() -> None:
    network, first = make_network("decoder"), image(2, 2)
    changed = first._replace(values=first.values.clone())
    changed.values[-1] += 1.0  # the last square
    before, after = (network(row([5, 6], one, [7, 8]))[0] for one in (first, changed))
    differs = (before - after).abs().amax(dim=-1) > 1e-6
    assert differs.tolist() == [False, False, True, True, True, True, True, True]
    assert row([5, 6], first, [7, 8]).positions.tolist() == [[0, 1, 2, 2, 2, 2, 3, 4]]


@pytest.mark.parametrize("steps", [[3, 4, 2], [7, 1, 1], [9], [1, 1, 1, 4, 1, 1]], ids=str)
@pytest.mark.parametrize("position", ["rotary", "learned", "alibi", "t5", "sinusoidal"])
def test_a_cache_continues_after_the_highest_position(position: str, steps: list[int]) -> None:
    network = make_network("decoder", position=position)
    text = row([5, 6, 4], image(2, 2), [7, 8])
    expected, cache, first, found = network(text)[0], network.new_cache(1, 4), 0, []
    for step in steps:
        chunk = text.columns(first, first + step)
        if not chunk.payloads and first > 3:
            chunk = Inputs(chunk.ids)  # the cache knows the position
        found.append(network(chunk, cache=cache)[0])
        first += step
    assert close(torch.cat(found), expected)
    assert cache.next_positions(torch.tensor([[9]]), None).tolist() == [[6]]


@pytest.mark.parametrize("merge", [1, 2])
def test_batches_are_split_between_items(merge: int) -> None:
    """Also if a front end makes fewer vectors than it reads."""
    text = row([5, 6], image(2, 2, merge=merge), 4, image(1, 4, seed=1, merge=merge), 7)
    network = make_network("decoder", merge=merge)
    cache = network.new_cache(1, 20)
    ranges = text.split_columns(3)
    assert [end - first for first, end in ranges] == ([2, 4, 1, 4, 1] if merge == 1 else [2, 3, 3])
    found = torch.cat([network(text.columns(*one), cache=cache)[0] for one in ranges])
    assert close(found, network(text)[0])


def test_kernels_that_compare_indices_decline() -> None:
    layout = make_layout(torch.zeros(1, 8), torch.ones(1, 8, dtype=torch.long), torch.arange(8)[None])
    x = torch.zeros(1, 8, 4)
    for repeats in (False, True):
        hints = KernelHints(1, 8, repeats_positions=repeats)
        found = prepare_mask(Mask(layout, layout, causal=True), x, kernel="varlen", query_hints=hints, key_hints=hints)
        assert found.kernel == ("sdpa" if repeats else "varlen")


def test_a_stack_needs_no_vocabulary() -> None:
    """An image classifier: a row is patches alone."""
    config = make_config("encoder", vocab_size=0, head=HeadConfig(kind="classify", outputs=3, pool="mean"))
    torch.manual_seed(0)
    network = build(config, dtype=torch.float64).eval()
    rows = [row(image(2, 2, seed=seed)) for seed in (0, 1)]
    found = network(batch(rows))
    assert found.shape == (2, 3)
    assert close(found[1:], network(rows[1]))
    network(batch(rows)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert all(gradient is not None for gradient in gradients.values())
    assert "front_ends.squares.project.weight" in gradients


@pytest.mark.parametrize(("kind", "outputs"), [("ctc", 30), ("frames", 12)])
def test_heads_of_every_position(kind: str, outputs: int) -> None:
    network = make_network("encoder", head=HeadConfig(kind=kind, outputs=outputs))  # type: ignore[arg-type]
    assert network(ROWS[0]).shape == (1, 7, outputs)


def test_a_config_keeps_its_front_ends() -> None:
    config = make_config("decoder", merge=2)
    values = config.to_dict()
    assert values["front_ends"] == [{"kind": "squares", "features": 3, "merge": 2}]
    assert parse_config(values) == config
    assert "front_ends" not in replace(config, front_ends=()).to_dict()
    assert config.front_ends[0].length((2, 4)) == 4
    with pytest.raises(QkvError, match="did you mean 'squares'"):
        parse_config({**values, "front_ends": [{"kind": "square"}]})
    with pytest.raises(QkvError, match=r"front_ends.squares: unknown field 'merged'"):
        parse_config({**values, "front_ends": [{"kind": "squares", "merged": 2}]})
    with pytest.raises(ValueError, match="occurs 2 times"):
        replace(config, front_ends=(SquaresConfig(), SquaresConfig()))


@pytest.mark.parametrize("family", FAMILIES)
def test_its_parameters_are_counted(family: str) -> None:
    summary = summarise_model(make_config(family))
    assert summary.parameters["front ends"] > 0
    assert summary.total == sum(parameter.numel() for parameter in make_network(family).parameters())
    assert summary.unstated_flops == ("front end = 'squares'",)


def test_a_payload_without_its_front_end_is_refused() -> None:
    stack = StackConfig(vocab_size=30, width=16, layers=1, heads=2, ffn_width=8)
    network = build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=30)))
    with pytest.raises(UsageError, match="front ends of this model are: none"):
        network(ROWS[0])
    assert ROWS[0].ids[0, 1] == PLACEHOLDER
