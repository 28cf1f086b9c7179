"""The stack's config: what is filled in, and that every error names the field."""

from collections.abc import Callable

import pytest

from qkv.blocks import RotaryScaling, StackConfig
from qkv.blocks.config import differences

Config = Callable[..., StackConfig]


def test_what_is_not_said_is_filled_in(small: Config) -> None:
    config = small(width=48, heads=6)
    assert (config.head_width, config.kv_heads, config.distinct_layers) == (8, 6, 2)
    assert config.rotary_base_windowed == config.rotary_base
    assert small(rotary_base=500.0).rotary_base_windowed == 500.0


def test_what_is_said_is_kept(small: Config) -> None:
    config = small(head_width=10, kv_heads=2, distinct_layers=1, rotary_base_windowed=20.0)
    assert (config.head_width, config.kv_heads, config.distinct_layers) == (10, 2, 1)
    assert config.rotary_base_windowed == 20.0


def test_a_window_is_for_all_layers_or_for_those_named(small: Config) -> None:
    assert [small(layers=3).window_of(i) for i in range(3)] == [0, 0, 0]
    assert [small(layers=3, window=5).window_of(i) for i in range(3)] == [5, 5, 5]
    named = small(layers=3, window=5, windowed_layers=[2, 0])
    assert named.windowed_layers == (0, 2)
    assert [named.window_of(i) for i in range(3)] == [5, 0, 5]


def test_the_rotary_width_is_a_share_of_the_head(small: Config) -> None:
    assert small(head_width=16, rotary_share=0.25).rotary_width == 4


@pytest.mark.parametrize(
    ("position", "limited"),
    [("learned", True), ("sinusoidal", False), ("rotary", False), ("alibi", False), ("t5", False), ("none", False)],
)
def test_only_a_table_of_positions_ends(small: Config, position: str, limited: bool) -> None:
    assert small(position=position).limited is limited


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        *(({name: 0}, f"{name} = 0 must be at least 1") for name in ("vocab", "width", "layers", "heads", "ffn_width")),
        ({"max_positions": 0}, "max_positions = 0 must be at least 1"),
        *(
            ({name: -1}, f"{name} = -1 must not be negative")
            for name in ("kv_heads", "head_width", "embedding_width", "position_offset", "window", "types")
        ),
        ({"width": 15}, "width = 15 does not divide into heads = 4"),
        ({"kv_heads": 3}, "heads = 4 must be a multiple of kv_heads = 3"),
        ({"distinct_layers": 3}, r"distinct_layers = 3 must lie in 1 … layers = 2"),
        ({"position": "rotery"}, "position = 'rotery' must be one of 'sinusoidal'"),
        ({"norm": "batchnorm"}, "norm = 'batchnorm' must be one of 'layernorm', 'rmsnorm'"),
        ({"feedforward": "mish"}, "feedforward = 'mish' must be one of 'relu'"),
        ({"position": "rotary", "head_width": 5}, "head_width × rotary_share = 5 must be even"),
        ({"position": "rotary", "rotary_share": 0.1}, "head_width × rotary_share = 0 must be even and not 0"),
        ({"rotary_share": 1.5}, "rotary_share = 1.5 must lie in"),
        ({"width": 15, "heads": 3}, "width = 15 must be even"),
        ({"embedding_width": 7}, "embedding_width = 7 must be even"),
        ({"position": "t5", "buckets": 5}, "buckets = 5 must be even and at least 4"),
        ({"position": "t5", "buckets": 2}, "buckets = 2 must be even and at least 4"),
        ({"position": "t5", "bucket_distance": 16}, "bucket_distance = 16 must be above half of buckets = 32"),
        ({"windowed_layers": (2,)}, r"windowed_layers = \(2,\) must lie in 0 … 1"),
        ({"dropout": 1.0}, r"dropout = 1.0 must lie in \[0, 1\)"),
        ({"attention_dropout": -0.1}, "attention_dropout = -0.1 must lie in"),
        ({"ffn_dropout": 2}, "ffn_dropout = 2 must lie in"),
        ({"residual": "parallel", "norm_place": "post"}, 'residual = "parallel" has no place for norm_place = "post"'),
        ({"embedding_norm": "first", "norm_place": "post"}, 'embedding_norm = "first" needs'),
        ({"embedding_norm": "first", "distinct_layers": 1}, 'embedding_norm = "first" needs'),
        ({"width": "16"}, "width = '16' must be a whole number"),
        ({"width": 16.0}, "width = 16.0 must be a whole number"),
        ({"layers": True}, "layers = True must be a whole number"),
        ({"norm_eps": "small"}, "norm_eps = 'small' must be a number"),
        ({"windowed_layers": "all"}, "windowed_layers = 'all' must be a list, each a whole number"),
        ({"windowed_layers": [0.5]}, r"windowed_layers = \(0.5,\) must be a list, each a whole number"),
        ({"rotary_scaling": 2.0}, "rotary_scaling = 2.0 must be a RotaryScaling or null"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused_by_field(small: Config, fields: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        small(**fields)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"kind": "yarn", "factor": 2.0}, "kind = 'yarn' must be one of 'linear', 'llama3'"),
        ({"kind": "linear", "factor": 0.0}, "factor = 0.0 must be above 0"),
        ({"kind": "llama3", "factor": 8.0, "low": 4.0, "high": 4.0}, "high = 4.0 must be above low = 4.0"),
    ],
)
def test_a_scaling_that_makes_no_sense_is_refused_by_field(fields: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        RotaryScaling(**fields)  # type: ignore[arg-type]


def test_whole_numbers_serve_as_numbers(small: Config) -> None:
    """JSON writes 0.0 as 0."""
    assert small(dropout=0, rotary_base=10_000).dropout == 0


def test_differences_name_what_differs(small: Config) -> None:
    assert differences(small(), small()) == []
    assert differences(small(), small(layers=3, norm="rmsnorm")) == [
        "layers: 2 → 3",
        "distinct_layers: 2 → 3",
        "norm: 'layernorm' → 'rmsnorm'",
    ]
