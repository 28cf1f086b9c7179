"""How weights start: the spread of each kind of matrix, biases, norms; no two layers equal; a seed decides all."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from qkv.blocks import Embedding, Head, HeadConfig, Stack, StackConfig, initialise

Config = Callable[..., StackConfig]
WIDTH, FFN, LAYERS, HEADS = 64, 128, 3, 4
KINDS = ["normal", "scaled", "xavier", "t5"]


def make(config: StackConfig, cross: bool = True, seed: int = 0) -> nn.ModuleDict:
    torch.manual_seed(seed)
    parts = nn.ModuleDict(
        {
            "embedding": Embedding(config),
            "stack": Stack(config, name="decoder", causal=True, cross=cross),
            "head": Head(HeadConfig(kind="classify", outputs=50, dense="tanh", bias=True), config),
        }
    )
    for part in parts.values():
        initialise(part, config)
    return parts


@pytest.fixture
def config(small: Config) -> Config:
    def choose(init: str, **choices: object) -> StackConfig:
        sizes = {
            "vocab_size": 200,
            "width": WIDTH,
            "layers": LAYERS,
            "heads": HEADS,
            "ffn_width": FFN,
            "token_types": 50,
        }
        return small(**(sizes | {"position": "learned", "init": init, "init_std": 0.02} | choices))

    return choose


def is_normal(weight: Tensor, std: float) -> bool:
    """Mean 0 and the std, within five standard errors; and a normal's tails, which a uniform's lack."""
    count = weight.numel()
    mean, spread = float(weight.mean()), float(weight.std())
    tail = float((weight.abs() > 2 * std).float().mean())  # 4.6 % of a normal, none of a uniform
    return abs(mean) < 5 * std / math.sqrt(count) and abs(spread / std - 1) < 5 / math.sqrt(2 * count) and tail > 0.02


def is_uniform(weight: Tensor, bound: float) -> bool:
    return float(weight.abs().max()) <= bound and abs(float(weight.std()) / (bound / math.sqrt(3)) - 1) < 0.05


def matrices(parts: nn.ModuleDict) -> dict[str, Tensor]:
    """Every matrix by its kind, fused ones apart."""
    stack, embedding, head = parts["stack"], parts["embedding"], parts["head"]
    out = {
        "token": embedding.token.weight,
        "position": embedding.position.weight,
        "token_types": embedding.types.weight,
    }
    out |= {"dense": head.dense.weight, "head": head.out.weight}
    for i, block in enumerate(stack.blocks):
        q, k, v = block.attention.qkv.weight.split(block.attention.split_sizes)
        out |= {f"{i}.q": q, f"{i}.k": k, f"{i}.v": v, f"{i}.out": block.attention.out.weight}
        if block.cross is not None:
            cross_k, cross_v = block.cross.kv.weight.chunk(2)
            out |= {f"{i}.cross_q": block.cross.q.weight, f"{i}.cross_k": cross_k, f"{i}.cross_v": cross_v}
            out[f"{i}.cross_out"] = block.cross.out.weight
        for part, weight in enumerate(block.ffn.up.weight.chunk(2 if block.ffn.gated else 1)):
            out[f"{i}.up{part}"] = weight
        out[f"{i}.down"] = block.ffn.down.weight
    return {name: weight.detach() for name, weight in out.items()}


def kind_of(name: str) -> str:
    return name.split(".")[-1]


def test_normal_is_one_spread_for_every_matrix(config: Config) -> None:
    for name, weight in matrices(make(config("normal"))).items():
        assert is_normal(weight, 0.02), name


@pytest.mark.parametrize(("cross", "additions"), [(False, 2), (True, 3)])
def test_scaled_divides_what_goes_back_into_the_stream(config: Config, cross: bool, additions: int) -> None:
    back = {"out", "cross_out", "down"}
    for name, weight in matrices(make(config("scaled"), cross)).items():
        shrunk = 0.02 / math.sqrt(additions * LAYERS)
        assert is_normal(weight, shrunk if kind_of(name) in back else 0.02), name


@pytest.mark.parametrize("feedforward", ["relu", "swiglu"])
def test_xavier_bounds_each_matrix_of_a_fused_one_by_its_own_shape(config: Config, feedforward: str) -> None:
    for name, weight in matrices(make(config("xavier", feedforward=feedforward, kv_heads=2))).items():
        if name in ("token", "position", "token_types"):
            assert is_normal(weight, WIDTH**-0.5), name
        else:
            assert is_uniform(weight, math.sqrt(6 / sum(weight.shape))), name


def test_t5_starts_by_fan_in_with_the_scores_scale_in_the_queries(config: Config) -> None:
    stds = {"q": (WIDTH * 16) ** -0.5, "k": WIDTH**-0.5, "v": WIDTH**-0.5, "out": WIDTH**-0.5}
    stds |= {f"cross_{name}": std for name, std in stds.items()}
    stds |= {"up0": WIDTH**-0.5, "up1": WIDTH**-0.5, "down": FFN**-0.5}
    stds |= {"token": 1.0, "token_types": 1.0, "position": 1.0, "dense": 0.02, "head": 0.02}
    for name, weight in matrices(make(config("t5", feedforward="geglu"))).items():
        assert is_normal(weight, stds[kind_of(name)]), name


@pytest.mark.parametrize(("init", "kind", "std"), [("t5", "lm", 1.0), ("t5", "classify", 0.02), ("normal", "lm", 0.02)])
def test_t5_starts_the_matrix_of_a_language_model_with_a_deviation_of_1(
    config: Config, init: str, kind: str, std: float
) -> None:
    stack = config(init)
    head = Head(HeadConfig(kind=kind, outputs=stack.vocab_size), stack)  # type: ignore[arg-type]
    initialise(head, stack)
    assert head.out is not None
    assert is_normal(head.out.weight.detach(), std)


def test_t5_starts_its_position_table_by_the_width(config: Config) -> None:
    stack = make(config("t5", position="t5", token_types=0, heads=16, relative_buckets=64)).stack
    assert is_normal(stack.bias.table.weight.detach(), WIDTH**-0.5)
    other = make(config("normal", position="t5", token_types=0, heads=16, relative_buckets=64)).stack
    assert is_normal(other.bias.table.weight.detach(), 0.02)


def test_t5_fan_in_follows_heads_that_are_wider_than_the_model(config: Config) -> None:
    weights = matrices(make(config("t5", head_dim=48)))
    assert is_normal(weights["0.out"], (HEADS * 48) ** -0.5)
    assert is_normal(weights["0.q"], (WIDTH * 48) ** -0.5)


@pytest.mark.parametrize("init", KINDS)
def test_biases_start_at_zero_and_norms_at_one_and_zero(config: Config, init: str) -> None:
    parts = make(config(init, qk_norm="head", embedding_norm="extra"))
    for module in parts.modules():
        if isinstance(module, nn.Linear):
            assert module.bias is not None
            assert (module.bias == 0).all()
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def test_a_network_that_was_changed_starts_afresh(config: Config) -> None:
    """Nothing keeps its old value, norms and biases included."""
    parts = make(config("normal"))
    with torch.no_grad():
        for parameter in parts.parameters():
            parameter.fill_(123.0)
    for part in parts.values():
        initialise(part, config("normal"))
    assert all(float(p.detach().abs().max()) < 2 for p in parts.parameters())


@pytest.mark.parametrize("init", KINDS)
def test_no_two_layers_start_equal(config: Config, init: str) -> None:
    """Trap 12: nor do two matrices of one shape within a layer."""
    weights = matrices(make(config(init)))
    names = list(weights)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            assert weights[a].shape != weights[b].shape or not torch.equal(weights[a], weights[b]), (a, b)


@pytest.mark.parametrize("init", KINDS)
def test_the_same_seed_gives_the_same_weights_and_another_one_others(config: Config, init: str) -> None:
    first, again, other = (make(config(init), seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    pairs = zip(matrices(first).values(), matrices(other).values(), strict=True)
    assert not any(torch.equal(a, b) for a, b in pairs)
