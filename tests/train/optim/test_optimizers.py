"""Optimizers: each equals torch's class or its formula; resuming from a copy of the state is exact."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from qkv.blocks import HeadConfig, StackConfig
from qkv.errors import UsageError
from qkv.models import Config, build
from qkv.models.tables.presets import PRESETS, find_preset
from qkv.train.optim import muon
from qkv.train.optim.lamb import Lamb
from qkv.train.optim.muon import Muon, orthogonalize
from qkv.train.optim.optimizers import make_optimizer, optimizer_tensors, parameter_kind, set_lr
from qkv.train.recipe.schema import TrainSection

OPTIMIZERS = ("adamw", "adam", "sgd", "lamb", "muon")
HAS_FUSED = ("adamw", "adam", "sgd", "muon")


def section(**changes) -> TrainSection:
    return TrainSection(**({"lr": 0.01, "weight_decay": 0.1} | changes))


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    stack = StackConfig(vocab_size=20, width=8, layers=2, heads=2, ffn_width=16, position="learned", max_positions=16)
    return build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=20, tied=True)))


def give_gradients(net: nn.Module, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for p in net.parameters():
        p.grad = torch.randn(p.shape, generator=random, dtype=p.dtype)


def run(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        give_gradients(net, step)
        set_lr(optimizer, 0.01 / (1 + step))
        optimizer.step()


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# Groups


@pytest.mark.parametrize("preset", ["transformer-base", "t5-small", "bert-base", "gpt2", "llama-1.1b"])
def test_what_shrinks_is_what_is_multiplied_with(preset):
    net = build(find_preset(preset), device="meta")
    linears = {id(m.weight) for m in net.modules() if isinstance(m, nn.Linear)}
    tables = {id(m.weight) for m in net.modules() if isinstance(m, nn.Embedding)}
    for name, p in net.named_parameters():
        expected = "table" if id(p) in tables else "matrix" if id(p) in linears else "vector"
        assert parameter_kind(name, p) == expected, name


def test_the_presets_above_have_tables_of_every_kind():
    names = {name for preset in PRESETS for name, _ in build(find_preset(preset), device="meta").named_parameters()}
    for ending in (
        "embedding.token.weight",
        "embedding.position.weight",
        "embedding.types.weight",
        "bias.table.weight",
    ):
        assert any(name.endswith(ending) for name in names)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "lamb"])
def test_norms_biases_and_embeddings_do_not_shrink(optimizer):
    net = network()
    made = make_optimizer(net.named_parameters(), section(optimizer=optimizer))
    shrink = {id(p): group["weight_decay"] for group in made.param_groups for p in group["params"]}
    for name, p in net.named_parameters():
        assert shrink[id(p)] == (0.1 if parameter_kind(name, p) == "matrix" else 0.0), name


def test_everything_may_shrink():
    made = make_optimizer(network().named_parameters(), section(weight_decay_on="all"))
    assert [group["weight_decay"] for group in made.param_groups] == [0.1]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lamb", "muon"])
def test_the_head_has_its_own_learning_rate(optimizer):
    net = build(replace(find_preset("bert-tiny"), head=HeadConfig(kind="classify", outputs=3, bias=True)))
    made = make_optimizer(net.named_parameters(), section(optimizer=optimizer, head_lr_factor=10.0))
    set_lr(made, 2e-4)
    rates = {id(p): group["lr"] for group in made.param_groups for p in group["params"]}
    for name, p in net.named_parameters():
        assert rates[id(p)] == pytest.approx(2e-3 if name.startswith("head.") else 2e-4), name
    assert any(name.startswith("head.") for name, _ in net.named_parameters())


def test_a_learning_rate_that_is_a_tensor_is_not_shared_with_the_head():
    net = build(replace(find_preset("bert-tiny"), head=HeadConfig(kind="classify", outputs=3)))
    made = make_optimizer(net.named_parameters(), section(head_lr_factor=10.0), capturable=True)
    set_lr(made, 2e-4)
    assert sorted({round(float(group["lr"]), 6) for group in made.param_groups}) == [2e-4, 2e-3]


def test_frozen_parameters_are_left_out():
    net = network()
    for p in net.embedding.parameters():
        p.requires_grad_(False)
    made = make_optimizer(net.named_parameters(), section())
    held = {id(p) for group in made.param_groups for p in group["params"]}
    assert held == {id(p) for p in net.parameters() if p.requires_grad}
    assert not any("embedding" in name for name in optimizer_tensors(made, net.named_parameters()))


def test_a_network_that_is_frozen_whole_is_refused():
    with pytest.raises(UsageError, match=r"matches every parameter"):
        make_optimizer(network().requires_grad_(False).named_parameters(), section())


# Parity


def by_hand(net: nn.Module, name: str) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in net.named_parameters() if parameter_kind(name, p) == "matrix"]
    rest = [p for name, p in net.named_parameters() if parameter_kind(name, p) != "matrix"]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    if name == "sgd":
        return [torch.optim.SGD(groups, lr=0.01, momentum=0.9)]
    if name == "muon":
        inner = [p for name, p in net.named_parameters() if ".blocks." in name and p.dim() == 2]
        rest = [p for p in net.parameters() if p.dim() != 2] + [
            net.embedding.token.weight,
            net.embedding.position.weight,
        ]
        return [
            Muon(inner, lr=0.01, weight_decay=0.1),
            torch.optim.AdamW(rest, lr=0.01, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.0),
        ]
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    return [kind(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-8)]


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "muon"])
def test_equals_torch_by_hand(name):
    ours, theirs = network(), network()
    start = weights(ours)
    run(ours, make_optimizer(ours.named_parameters(), section(optimizer=name)), range(5))
    others = by_hand(theirs, name)
    for step in range(5):
        give_gradients(theirs, step)
        for other in others:
            set_lr(other, 0.01 / (1 + step))
            other.step()
    assert same(weights(ours), weights(theirs))
    assert not any(torch.equal(start[n], p) for n, p in ours.named_parameters())


@pytest.mark.parametrize("name", HAS_FUSED)
def test_fused_is_the_same_rule(name):
    plain, fused = network(), network()
    run(plain, make_optimizer(plain.named_parameters(), section(optimizer=name)), range(5))
    run(fused, make_optimizer(fused.named_parameters(), section(optimizer=name), fused=True), range(5))
    for (n, a), b in zip(plain.named_parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=n)


@pytest.mark.parametrize(
    ("name", "fused"), [(n, f) for n, f in product(OPTIMIZERS, (False, True)) if not f or n in HAS_FUSED]
)
def test_a_tensor_for_a_rate_is_the_same_rule(name, fused):
    plain, captured = network(), network()
    run(plain, make_optimizer(plain.named_parameters(), section(optimizer=name), fused=fused), range(5))
    optimizer = make_optimizer(captured.named_parameters(), section(optimizer=name), fused=fused, capturable=True)
    rates = [group["lr"] for group in optimizer.param_groups]
    run(captured, optimizer, range(5))
    assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, rates, strict=True))
    for (n, a), b in zip(plain.named_parameters(), captured.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=n)


def test_muon_for_graphs_makes_matrices_nearly_orthogonal():
    matrix = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    for one in (matrix, matrix.T):
        near = orthogonalize(one[None], 1e-7)[0].float()
        spread = torch.linalg.svdvals(near)
        assert 0.4 < spread.min() <= spread.max() < 1.4  # Newton–Schulz with these numbers ends near 1, not at it
    assert (
        torch.nn.functional.cosine_similarity(orthogonalize(matrix[None], 1e-7).float().flatten(), (u @ v).flatten(), 0)
        > 0.95
    )


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5)])
def test_muon_equals_torchs(shape, monkeypatch):
    """To the last digit that bfloat16 has; in float32, as it runs here, it is close to that."""
    torch.manual_seed(0)
    start = torch.randn(shape)
    a, b, c = (nn.Parameter(start.clone()) for _ in range(3))
    theirs = torch.optim.Muon([a], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    ours = Muon([b], lr=torch.tensor(0.01), weight_decay=0.1)
    exact = Muon([c], lr=0.01, weight_decay=0.1)
    for step in range(4):
        for p in (a, b, c):
            p.grad = torch.randn(shape, generator=torch.Generator().manual_seed(step))
        theirs.step()
        exact.step()
        with monkeypatch.context() as patch:
            patch.setattr(
                muon, "orthogonalize", lambda matrices, eps, work: orthogonalize(matrices, eps, torch.bfloat16)
            )
            ours.step()
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(a, c, rtol=0, atol=1e-3)
    assert (a - start).abs().max() > 0.01


def test_muon_updates_matrices_together_as_it_does_alone():
    torch.manual_seed(0)
    shapes = [(4, 6), (6, 4), (4, 6), (5, 5), (4, 6)]
    together = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    alone = [nn.Parameter(parameter.detach().clone()) for parameter in together]
    optimizers = [Muon(together, lr=0.01, weight_decay=0.1), *(Muon([p], lr=0.01, weight_decay=0.1) for p in alone)]
    for step in range(3):
        for number, (a, b) in enumerate(zip(together, alone, strict=True)):
            a.grad = torch.randn(a.shape, generator=torch.Generator().manual_seed(10 * step + number))
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("skip", [0.0, 1.0])
def test_muon_and_its_adamw_skip_an_update_on_the_device(skip: float):
    net = network()
    optimizer = make_optimizer(net.named_parameters(), section(optimizer="muon"), fused=True)
    give_gradients(net, 0)
    optimizer.step()
    start, state = weights(net), optimizer_tensors(optimizer, net.named_parameters())
    before = {name: value.clone() for name, value in state.items()}
    for parameter in net.parameters():
        parameter.grad.fill_(float("nan") if skip else 0.1)
    optimizer.found_inf, optimizer.grad_scale = torch.tensor(skip), None
    optimizer.step()
    assert same(weights(net), start) == bool(skip)
    assert all(torch.equal(state[name], before[name]) for name in before) == bool(skip)


def lamb_written_out(x: list[list[float]], grads: list[list[list[float]]], decay: float) -> list[list[float]]:
    """You et al. 2019, algorithm 2, a number at a time. A row of one is a bias: Adam's step."""
    lr, b1, b2, eps = 0.05, 0.9, 0.98, 1e-6
    rows, columns = range(len(x)), range(len(x[0]))
    m = [[0.0 for _ in columns] for _ in rows]
    v = [[0.0 for _ in columns] for _ in rows]
    for t, g in enumerate(grads, start=1):
        r = [[0.0 for _ in columns] for _ in rows]
        for i, j in product(rows, columns):
            m[i][j] = b1 * m[i][j] + (1 - b1) * g[i][j]
            v[i][j] = b2 * v[i][j] + (1 - b2) * g[i][j] ** 2
            r[i][j] = m[i][j] / (1 - b1**t) / (math.sqrt(v[i][j] / (1 - b2**t)) + eps) + decay * x[i][j]
        large = math.sqrt(sum(x[i][j] ** 2 for i, j in product(rows, columns)))
        long = math.sqrt(sum(r[i][j] ** 2 for i, j in product(rows, columns)))
        ratio = large / long if len(x) > 1 and large > 0 and long > 0 else 1.0
        x = [[x[i][j] - lr * ratio * r[i][j] for j in columns] for i in rows]
    return x


@pytest.mark.parametrize("kind", ["matrix", "zeros", "bias"])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lamb_is_the_papers_formula(kind, decay):
    random = torch.Generator().manual_seed(1)
    shape = (1, 4) if kind == "bias" else (3, 4)
    x = torch.zeros(shape).double() if kind == "zeros" else torch.randn(shape, generator=random, dtype=torch.float64)
    grads = [torch.randn(shape, generator=random, dtype=torch.float64) for _ in range(6)]
    parameter = nn.Parameter(x[0].clone() if kind == "bias" else x.clone())
    optimizer = Lamb([parameter], lr=0.05, betas=(0.9, 0.98), eps=1e-6, weight_decay=decay)
    for g in grads:
        parameter.grad = g.view(parameter.shape).clone()
        optimizer.step()
    expected = torch.tensor(lamb_written_out(x.tolist(), [g.tolist() for g in grads], decay), dtype=torch.float64)
    torch.testing.assert_close(parameter.detach().view(shape), expected, rtol=1e-12, atol=1e-14)


def test_lamb_steps_in_proportion_to_the_matrix():
    """Matrices ten times as large take a step ten times as long: what Adam does not do."""
    moved = []
    for size in (1.0, 10.0):
        start = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * size
        p = nn.Parameter(start.clone())
        p.grad = torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        Lamb([p], lr=0.1, weight_decay=0.0).step()
        moved.append((p.detach() - start).norm())
    torch.testing.assert_close(moved[1], 10 * moved[0])


# What is kept


CASES = [(n, f, c) for n, f, c in product(OPTIMIZERS, (False, True), (False, True)) if not f or n in HAS_FUSED]


@pytest.mark.parametrize(("name", "fused", "capturable"), CASES)
def test_going_on_from_a_copy_is_exact(name, fused, capturable):
    def make(net):
        return make_optimizer(net.named_parameters(), section(optimizer=name), fused=fused, capturable=capturable)

    whole = network()
    optimizer = make(whole)
    run(whole, optimizer, range(3))
    kept = {n: t.clone() for n, t in optimizer_tensors(optimizer, whole.named_parameters()).items()}
    kept_weights = weights(whole)
    run(whole, optimizer, range(3, 6))

    second = network(seed=1)
    with torch.no_grad():
        for n, p in second.named_parameters():
            p.copy_(kept_weights[n])
    again = make(second)
    alive = optimizer_tensors(again, second.named_parameters())
    assert alive.keys() == kept.keys()
    for n, tensor in alive.items():
        tensor.copy_(kept[n])
    run(second, again, range(3, 6))
    assert same(weights(whole), weights(second))
    then = optimizer_tensors(again, second.named_parameters())
    assert all(then[n] is alive[n] for n in alive)
    assert same(then, optimizer_tensors(optimizer, whole.named_parameters()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_what_it_remembers_it_goes_elsewhere(name):
    whole = network()
    optimizer = make_optimizer(whole.named_parameters(), section(optimizer=name))
    run(whole, optimizer, range(3))
    second = network()
    second.load_state_dict(whole.state_dict())
    run(whole, optimizer, range(3, 5))
    run(second, make_optimizer(second.named_parameters(), section(optimizer=name)), range(3, 5))
    assert not same(weights(whole), weights(second))


@pytest.mark.parametrize(("name", "fused", "capturable"), CASES)
def test_state_made_ahead_is_what_the_first_step_would_make(name, fused, capturable):
    def make(net):
        return make_optimizer(net.named_parameters(), section(optimizer=name), fused=fused, capturable=capturable)

    ahead, usual = network(), network()
    first, second = make(ahead), make(usual)
    made = optimizer_tensors(first, ahead.named_parameters())
    assert all(not tensor.any() for tensor in made.values())
    run(ahead, first, range(2))
    run(usual, second, range(2))
    assert same(weights(ahead), weights(usual))
    for (n, a), b in zip(
        optimizer_tensors(first, ahead.named_parameters()).items(),
        optimizer_tensors(second, usual.named_parameters()).values(),
        strict=True,
    ):
        assert a is made[n]
        assert (a.dtype, a.device, a.shape, a.stride()) == (b.dtype, b.device, b.shape, b.stride())
        assert torch.equal(a, b)


def test_names_of_what_is_kept():
    net = network()
    names = set(optimizer_tensors(make_optimizer(net.named_parameters(), section()), net.named_parameters()))
    parameters = [name for name, _ in net.named_parameters()]
    assert names == {f"{kind}.{name}" for kind in ("step", "exp_avg", "exp_avg_sq") for name in parameters}


def test_muon_keeps_momentum_for_matrices_and_adams_averages_for_the_rest():
    net = network()
    made = make_optimizer(net.named_parameters(), section(optimizer="muon"))
    names = set(optimizer_tensors(made, net.named_parameters()))
    assert "momentum_buffer.decoder.blocks.0.attention.qkv.weight" in names
    assert {"exp_avg.embedding.token.weight", "exp_avg.decoder.blocks.0.ffn_sub.norm.weight"} <= names
    assert not any(name.startswith("exp_avg") and name.endswith("qkv.weight") for name in names)


def test_sgd_without_momentum_keeps_nothing():
    net = network()
    made = make_optimizer(net.named_parameters(), section(optimizer="sgd", momentum=0.0))
    run(net, made, range(1))
    assert optimizer_tensors(made, net.named_parameters()) == {}


def test_a_parameter_without_a_gradient_stays():
    for name in OPTIMIZERS:
        net = network()
        made = make_optimizer(net.named_parameters(), section(optimizer=name))
        give_gradients(net, 0)
        idle = net.decoder.blocks[0].attention.qkv.weight
        idle.grad = None
        before = idle.detach().clone()
        made.step()
        assert torch.equal(idle, before), name


def test_muon_updates_sharded_matrices_as_it_does_whole_ones():
    """On a mesh of one process, where a shard is the whole matrix."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        whole = [nn.Parameter(torch.randn(4, 6)) for _ in range(2)]
        sharded = [nn.Parameter(distribute_tensor(p.detach().clone(), mesh, [Shard(0)])) for p in whole]
        for parameters in (whole, sharded):
            for number, parameter in enumerate(parameters):
                grad = torch.full((4, 6), number + 1.0).tril()
                parameter.grad = distribute_tensor(grad, mesh, [Shard(0)]) if parameters is sharded else grad
            Muon(parameters, lr=0.1, weight_decay=0.01).step()
        for one, other in zip(whole, sharded, strict=True):
            torch.testing.assert_close(one.detach(), other.to_local().detach())
    finally:
        dist.destroy_process_group()
