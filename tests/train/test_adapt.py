"""Training a part: frozen weights do not change, LoRA starts at the given network, merging keeps all outputs."""

import pytest
import torch
from torch import nn

from qkv.blocks import HeadConfig, Inputs, StackConfig, Tap
from qkv.errors import UsageError
from qkv.models import Config, build
from qkv.train.adapt import LoraLinear, add_lora, freeze, merge_lora
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.recipe.schema import ModelSection, TrainSection

ON = ModelSection().lora_targets


def network(family: str = "decoder", tied: bool = True, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    stack = StackConfig(vocab_size=20, width=16, layers=2, heads=4, kv_heads=2, ffn_width=32, position="rotary")
    head = HeadConfig(kind="mlm" if family == "encoder" else "lm", outputs=20, tied=tied)
    stacks = {"encoder": stack, "decoder": stack} if family == "seq2seq" else {family: stack}
    return build(Config(**stacks, head=head, share_embeddings=family == "seq2seq"), dtype=dtype).eval()


def answer(net: nn.Module, family: str) -> torch.Tensor:
    ids = torch.arange(12).view(2, 6)
    return net(Inputs(ids + 3, source=Inputs(ids))) if family == "seq2seq" else net(ids)


def learn(net: nn.Module, family: str = "decoder", steps: int = 3) -> None:
    optimizer = make_optimizer(net.named_parameters(), TrainSection(lr=0.05))
    for _ in range(steps):
        optimizer.zero_grad()
        answer(net, family).logsumexp(-1).sum().backward()
        optimizer.step()


# Frozen


def test_what_is_frozen_stays_and_the_rest_moves():
    net = network("seq2seq")
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    frozen = freeze(net, ["encoder.*", "*norm.weight"])
    learn(net, "seq2seq")
    for name, p in net.named_parameters():
        assert torch.equal(p, before[name]) == (name in frozen), name
    assert "encoder.blocks.0.ffn.up.weight" in frozen
    assert "decoder.blocks.1.ffn_sub.norm.weight" in frozen
    assert "decoder.blocks.1.ffn.up.weight" not in frozen


def test_a_shared_matrix_is_frozen_by_either_name():
    net = network("seq2seq")
    assert "target_embedding.token.weight" not in dict(net.named_parameters())
    assert freeze(net, ["target_embedding.*"]) == ["source_embedding.token.weight"]


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("decodr.*", "did you mean 'decoder.*'"),
        ("decoder", "did you mean 'decoder.*'"),
        ("%", "names look like embedding"),
    ],
)
def test_a_pattern_for_nothing_is_refused_with_the_nearest(pattern, hint):
    with pytest.raises(UsageError, match=r"no parameter matches") as caught:
        freeze(network(), ["embedding.*", pattern])
    assert hint in str(caught.value)


def test_a_refused_pattern_freezes_nothing():
    net = network()
    with pytest.raises(UsageError):
        freeze(net, ["embedding.*", "nothing.*"])
    assert all(p.requires_grad for p in net.parameters())


# LoRA


@pytest.mark.parametrize("family", ["encoder", "decoder", "seq2seq"])
def test_it_starts_exactly_where_the_network_was(family):
    net = network(family)
    before = answer(net, family)
    add_lora(net, 4, 8.0, ON)
    assert torch.equal(answer(net, family), before)


@pytest.mark.parametrize("family", ["encoder", "decoder", "seq2seq"])
def test_only_the_additions_learn(family):
    net = network(family)
    add_lora(net, 4, 8.0, ON)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    learn(net, family)
    for name, p in net.named_parameters():
        assert torch.equal(p, before[name]) == (".lora_" not in name), name


@pytest.mark.parametrize("family", ["encoder", "decoder", "seq2seq"])
def test_merging_keeps_every_answer_and_leaves_a_plain_network(family):
    net, plain = network(family, dtype=torch.float64), network(family, dtype=torch.float64)
    start = answer(net, family)
    add_lora(net, 4, 8.0, ON)
    learn(net, family)
    before = answer(net, family)
    assert (before - start).abs().max() > 0.1
    merge_lora(net)
    torch.testing.assert_close(answer(net, family), before, rtol=1e-12, atol=1e-12)
    assert [(n, p.shape) for n, p in net.named_parameters()] == [(n, p.shape) for n, p in plain.named_parameters()]
    plain.load_state_dict(net.state_dict())
    assert torch.equal(answer(plain, family), answer(net, family))


def test_merging_in_float32():
    net = network()
    add_lora(net, 4, 8.0, ON)
    learn(net)
    before = answer(net, "decoder")
    merge_lora(net)
    torch.testing.assert_close(answer(net, "decoder"), before, rtol=1e-5, atol=1e-5)


def test_the_formula():
    torch.manual_seed(0)
    linear = nn.Linear(5, 7)
    lora = LoraLinear(linear, rank=2, alpha=6.0)
    nn.init.normal_(lora.lora_b)
    x = torch.randn(3, 5)
    expected = x @ linear.weight.T + linear.bias + 3.0 * (x @ lora.lora_a.T @ lora.lora_b.T)
    torch.testing.assert_close(lora(x), expected)
    torch.testing.assert_close(x @ lora.weight.T + lora.bias, expected)


def test_the_usual_choice_is_the_attention_of_every_layer():
    assert add_lora(network("seq2seq"), 2, 4.0, ON) == [
        f"{stack}.blocks.{layer}.{part}"
        for stack, parts in (
            ("encoder", ("attention.out", "attention.qkv")),
            ("decoder", ("attention.out", "attention.qkv", "cross.out", "cross.q", "cross.kv")),
        )
        for layer in (0, 1)
        for part in parts
    ]


def test_a_matrix_shared_with_an_embedding_is_left_alone():
    assert "head.out" not in add_lora(network(tied=True), 2, 4.0, ["*.out", "head.out"])
    assert "head.out" in add_lora(network(tied=False), 2, 4.0, ["head.out"])


def test_a_new_head_is_trained_whole():
    net = network(tied=False)
    chosen = add_lora(net, 2, 4.0, ["*.qkv", "head.out"], also_train=["head.*"])
    assert "head.out" not in chosen
    trained = [name for name, p in net.named_parameters() if p.requires_grad]
    assert "head.out.weight" in trained
    assert all(name.startswith("head.") or ".lora_" in name for name in trained)


def test_what_is_frozen_gets_no_addition():
    net = network("seq2seq")
    freeze(net, ["encoder.*", "head.*"])
    assert all(name.startswith("decoder.") for name in add_lora(net, 2, 4.0, ON, also_train=["*norm.weight"]))
    trained = [name for name, p in net.named_parameters() if p.requires_grad]
    assert any(name.endswith("norm.weight") for name in trained)
    assert all(name.startswith("decoder.") for name in trained)


def test_a_tap_sees_the_additions():
    net = network()
    ids = torch.arange(6).view(1, 6)
    add_lora(net, 4, 8.0, ON)
    learn(net)
    seen, after = Tap(["decoder.0.pattern", "decoder.1.q"]), Tap(["decoder.0.pattern", "decoder.1.q"])
    tapped = net(ids, tap=seen)
    assert torch.equal(tapped, net(ids))
    merge_lora(net)
    net(ids, tap=after)
    for site in ("decoder.0.pattern", "decoder.1.q"):
        torch.testing.assert_close(seen[site], after[site], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rank", "targets", "frozen", "message"),
    [
        (2, ["*.qvk"], [], r"no linear layer matches '\*.qvk'; there are .*\*.attention.qkv"),
        (2, ON, ["*"], "all layers are frozen"),
        (0, ON, [], "lora_rank = 0"),
    ],
)
def test_additions_to_nothing_or_of_no_rank_are_refused(rank, targets, frozen, message):
    net = network()
    freeze(net, frozen)
    with pytest.raises(UsageError, match=message):
        add_lora(net, rank, 4.0, targets)
