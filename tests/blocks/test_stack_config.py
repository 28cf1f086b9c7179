"""The stack's config: what is filled in, and that every error names the field."""

from collections.abc import Callable

import pytest

from qkv.blocks import RotaryScaling, StackConfig
from qkv.values import list_differences

Config = Callable[..., StackConfig]
RECURRENT = {"block": "lstm", "heads": 0, "ffn_width": 0}


def test_what_is_not_said_is_filled_in(small: Config) -> None:
    config = small(width=48, heads=6)
    assert (config.head_dim, config.kv_heads, config.num_layer_groups) == (8, 6, 2)
    assert config.rotary_base_sliding == config.rotary_base
    assert small(rotary_base=500.0).rotary_base_sliding == 500.0


def test_a_recurrent_stack_needs_no_heads_and_no_positions(small: Config) -> None:
    config = small(**RECURRENT)
    assert (config.heads, config.kv_heads, config.head_dim, config.ffn_width) == (1, 1, 16, 16)
    assert config.position == "none"
    assert small(**{field: getattr(config, field) for field in config.__dataclass_fields__}) == config


def test_what_is_said_is_kept(small: Config) -> None:
    config = small(head_dim=10, kv_heads=2, num_layer_groups=1, rotary_base_sliding=20.0)
    assert (config.head_dim, config.kv_heads, config.num_layer_groups) == (10, 2, 1)
    assert config.rotary_base_sliding == 20.0


def test_a_window_is_for_all_layers_or_for_those_named(small: Config) -> None:
    assert [small(layers=3).window_of(i) for i in range(3)] == [0, 0, 0]
    assert [small(layers=3, sliding_window=5).window_of(i) for i in range(3)] == [5, 5, 5]
    named = small(layers=3, sliding_window=5, sliding_window_layers=[2, 0])
    assert named.sliding_window_layers == (0, 2)
    assert [named.window_of(i) for i in range(3)] == [5, 0, 5]


def test_the_rotary_width_is_a_share_of_the_head(small: Config) -> None:
    assert small(head_dim=16, rotary_fraction=0.25).rotary_dim == 4


@pytest.mark.parametrize(
    ("position", "limited"),
    [("learned", True), ("sinusoidal", False), ("rotary", False), ("alibi", False), ("t5", False), ("none", False)],
)
def test_only_a_table_of_positions_ends(small: Config, position: str, limited: bool) -> None:
    assert small(position=position).has_max_positions is limited


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        *(({name: 0}, f"{name} = 0 must be at least 1") for name in ("width", "layers", "heads", "ffn_width")),
        ({"max_positions": 0}, "max_positions = 0 must be at least 1"),
        *(
            ({name: -1}, f"{name} = -1 must be at least 0")
            for name in ("kv_heads", "head_dim", "embedding_width", "position_offset", "sliding_window", "token_types")
        ),
        ({"width": 15}, "width = 15 does not divide into heads = 4"),
        ({"kv_heads": 3}, "heads = 4 must be a multiple of kv_heads = 3"),
        ({"num_layer_groups": 3}, r"num_layer_groups = 3 must lie in 1 … layers = 2"),
        ({"position": "rotery"}, "position = 'rotery' is unknown; did you mean 'rotary'"),
        ({"norm": "batchnorm"}, "norm = 'batchnorm' is unknown; known: layernorm, none, rmsnorm"),
        ({"feedforward": "mish"}, "feedforward = 'mish' is unknown; known: geglu"),
        ({"position": "rotary", "head_dim": 5}, "head_dim × rotary_fraction = 5 must be even"),
        ({"position": "rotary", "rotary_fraction": 0.1}, "head_dim × rotary_fraction = 0 must be even and not 0"),
        ({"rotary_fraction": 1.5}, "rotary_fraction = 1.5 must be at most 1"),
        ({"width": 15, "heads": 3}, "width = 15 must be even"),
        ({"embedding_width": 7}, "embedding_width = 7 must be even"),
        ({"position": "t5", "relative_buckets": 5}, "buckets = 5 must be even and at least 4"),
        ({"position": "t5", "relative_buckets": 2}, "buckets = 2 must be even and at least 4"),
        (
            {"position": "t5", "relative_max_distance": 16},
            "relative_max_distance = 16 must be above half of relative_buckets = 32",
        ),
        ({"sliding_window_layers": (2,)}, r"sliding_window_layers = \(2,\) must lie in 0 … 1"),
        ({"dropout": 1.0}, r"dropout = 1.0 must be below 1"),
        ({"attention_dropout": -0.1}, "attention_dropout = -0.1 must be at least 0"),
        ({"ffn_dropout": 2}, "ffn_dropout = 2 must be below 1"),
        (
            {"residual": "parallel", "norm_placement": "post"},
            'residual = "parallel" needs norm_placement = "pre" or "sandwich", not "post"',
        ),
        ({"embedding_norm": "replaces_first", "norm_placement": "post"}, 'embedding_norm = "replaces_first" needs'),
        ({"embedding_norm": "replaces_first", "num_layer_groups": 1}, 'embedding_norm = "replaces_first" needs'),
        ({"width": "16"}, "width = '16' must be an integer"),
        ({"width": 16.0}, "width = 16.0 must be an integer"),
        ({"layers": True}, "layers = True must be an integer"),
        ({"norm_eps": "small"}, "norm_eps = 'small' must be a number"),
        ({"sliding_window_layers": "all"}, "sliding_window_layers = 'all' must be a list of integers"),
        ({"sliding_window_layers": [0.5]}, r"sliding_window_layers\[0\] = 0.5 must be an integer"),
        ({"rotary_scaling": 2.0}, "rotary_scaling = 2.0 must be a RotaryScaling or None"),
        ({"block": "lstm"}, 'heads = 4 does not apply to block = "lstm"'),
        ({**RECURRENT, "position": "rotary"}, "position = 'rotary' does not apply"),
        ({**RECURRENT, "norm_placement": "post"}, "norm_placement = 'post' does not apply"),
        ({**RECURRENT, "embedding_norm": "replaces_first"}, 'embedding_norm = "replaces_first" does not apply'),
        ({"recurrent_attention": "none"}, 'is for block = "rnn" or "gru" or "lstm", not for "transformer"'),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_by_field(small: Config, fields: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        small(**fields)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"kind": "longrope", "factor": 2.0}, "kind = 'longrope' must be one of 'linear', 'llama3', 'yarn'"),
        ({"kind": "linear", "factor": 2.0, "attention_factor": 1.5}, 'attention_factor is for kind = "yarn"'),
        ({"kind": "yarn", "factor": 2.0, "beta_slow": 40.0}, "beta_fast = 32.0 must be above beta_slow = 40.0"),
        ({"kind": "linear", "factor": 0.0}, "factor = 0.0 must be at least 0.001"),
        (
            {"kind": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
            "high_freq_factor = 4.0 must be above low_freq_factor = 4.0",
        ),
    ],
)
def test_a_scaling_that_makes_no_sense_is_refused_by_field(fields: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        RotaryScaling(**fields)  # type: ignore[arg-type]


def test_whole_numbers_serve_as_numbers(small: Config) -> None:
    """JSON writes 0.0 as 0."""
    assert small(dropout=0, rotary_base=10_000).dropout == 0


def test_differences_name_what_differs(small: Config) -> None:
    assert list_differences(small(), small()) == []
    assert list_differences(small(), small(layers=3, norm="rmsnorm")) == [
        "layers: 2 → 3",
        "num_layer_groups: 2 → 3",
        "norm: 'layernorm' → 'rmsnorm'",
    ]
