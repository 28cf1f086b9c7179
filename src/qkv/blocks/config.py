"""What a stack of blocks is made of: one flat list of named choices.

A researcher changes a part here; nothing in `blocks/` ever asks for a model's name. Adding a field is a decision:
`tests/test_frozen.py` holds the list.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_type_hints

from qkv.values import describe_type, matches_type

PositionKind = Literal["sinusoidal", "sinusoidal_split", "learned", "rotary", "alibi", "t5", "none"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]
FeedForwardKind = Literal["relu", "gelu", "gelu_tanh", "silu", "reglu", "geglu", "geglu_tanh", "swiglu"]
AttentionKernel = Literal["auto", "eager", "sdpa", "flex", "varlen"]
"""Which implementation of attention runs: never part of a config, since all give the same numbers."""


def check_fields(config: Any, list_fields: tuple[str, ...] = ()) -> None:
    """Refuse a value that is not of its field's kind, or not among its named choices; the error names both.

    The fields of a frozen dataclass that are named in `lists` may be given as lists, and become tuples.
    """
    for name in list_fields:
        if isinstance(getattr(config, name), list):
            object.__setattr__(config, name, tuple(getattr(config, name)))
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if not matches_type(value, kind):
            raise ValueError(f"{name} = {value!r} must be {describe_type(kind)}")


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """How rotary frequencies are stretched to reach beyond the length that a model was trained on.

    `linear` divides every frequency by `factor`. `llama3` divides only the slow ones, leaves the fast ones alone and
    blends in between; its limits are wavelengths, as fractions of `original_positions`.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192

    def __post_init__(self) -> None:
        check_fields(self)
        if self.factor <= 0:
            raise ValueError(f"factor = {self.factor} must be above 0")
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor = {self.high_freq_factor} must be above low_freq_factor = {self.low_freq_factor}"
            )


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """One tower: its embedding, its blocks, and what each of them is made of.

    >>> tiny = StackConfig(vocab_size=100, width=64, layers=2, heads=4, ffn_width=256)
    >>> tiny.head_dim, tiny.kv_heads
    (16, 4)
    """

    # Size
    vocab_size: int
    width: int
    layers: int
    heads: int
    ffn_width: int
    kv_heads: int = 0  # grouped key/value heads; 0: as many as query heads
    head_dim: int = 0  # 0: width / heads
    embedding_width: int = 0  # a narrower embedding with a projection to `width` (ALBERT, ELECTRA); 0: none
    num_layer_groups: int = 0  # how many different sets of weights the layers share (ALBERT: 1); 0: one each

    # Positions
    position: PositionKind = "sinusoidal"
    max_positions: int = 512
    position_offset: int = 0  # learned: position p reads row p + offset (BART 2, RoBERTa pad + 1)
    rotary_base: float = 10_000.0
    rotary_base_sliding: float = 0.0  # another base for windowed layers (ModernBERT); 0: the same
    rotary_fraction: float = 1.0  # the share of each head that turns (GPT-NeoX 0.25)
    rotary_scaling: RotaryScaling | None = None
    relative_buckets: int = 32  # t5
    relative_max_distance: int = 128  # t5

    # Who sees whom, beyond padding and causality
    sliding_window: int = 0  # the farthest distance |i − j| that is seen; 0: no limit
    sliding_window_layers: tuple[int, ...] = ()  # which layers have the window; (): all

    # Parts
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_placement: Literal["pre", "post", "sandwich"] = "pre"
    norm_affine: Literal["gain_bias", "gain", "none"] = "gain_bias"
    norm_eps: float = 1e-5
    embedding_norm: Literal["none", "added", "first"] = "none"  # "first": it stands in for block 0's own first norm
    qk_norm: Literal["none", "head"] = "none"  # normalise each head's query and key (Qwen3)
    feedforward: FeedForwardKind = "gelu"
    bias: Literal["all", "attention", "qkv", "none"] = "all"  # which linear maps of a block have one
    residual: Literal["serial", "parallel"] = "serial"  # parallel: attention and feed-forward read the same input
    score_scale: Literal["sqrt", "none"] = "sqrt"  # softmax(QKᵀ/√D) or, as T5 has it, softmax(QKᵀ)
    embedding_scale: Literal["none", "sqrt"] = "none"  # multiply token vectors by √width
    token_types: int = 0  # sentence-type embeddings (BERT: 2)

    # Training
    dropout: float = 0.0  # after the embedding and after each sublayer
    attention_dropout: float = 0.0  # on the attention weights
    ffn_dropout: float = 0.0  # inside the feed-forward
    init: Literal["normal", "scaled", "xavier", "t5"] = "normal"
    init_std: float = 0.02

    def __post_init__(self) -> None:
        check_fields(self, list_fields=("sliding_window_layers",))
        object.__setattr__(self, "sliding_window_layers", tuple(sorted(self.sliding_window_layers)))
        for name in ("vocab_size", "width", "layers", "heads", "ffn_width", "max_positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        for name in ("norm_eps", "rotary_base"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)} must be above 0")
        for name in (
            "init_std",
            "rotary_base_sliding",
            "kv_heads",
            "head_dim",
            "embedding_width",
            "position_offset",
            "sliding_window",
            "token_types",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)} must not be negative")
        if not self.head_dim:
            if self.width % self.heads:
                raise ValueError(
                    f"width = {self.width} does not divide into heads = {self.heads}; "
                    "set head_dim, or choose a width that is a multiple of heads"
                )
            object.__setattr__(self, "head_dim", self.width // self.heads)
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.heads % self.kv_heads:
            raise ValueError(f"heads = {self.heads} must be a multiple of kv_heads = {self.kv_heads}")
        if not self.num_layer_groups:
            object.__setattr__(self, "num_layer_groups", self.layers)
        if not 1 <= self.num_layer_groups <= self.layers:
            raise ValueError(f"num_layer_groups = {self.num_layer_groups} must lie in 1 … layers = {self.layers}")
        if not self.rotary_base_sliding:
            object.__setattr__(self, "rotary_base_sliding", self.rotary_base)
        if not 0.0 < self.rotary_fraction <= 1.0:
            raise ValueError(f"rotary_fraction = {self.rotary_fraction} must lie in (0, 1]")
        if self.position == "rotary" and (self.rotary_dim % 2 or not self.rotary_dim):
            raise ValueError(
                f"rotary positions turn pairs: head_dim × rotary_fraction = {self.rotary_dim} must be even and not 0"
            )
        if self.position.startswith("sinusoidal") and (self.embedding_width or self.width) % 2:
            name = "embedding_width" if self.embedding_width else "width"
            raise ValueError(f"sinusoidal positions come in pairs: {name} = {getattr(self, name)} must be even")
        if self.position == "t5" and (self.relative_buckets < 4 or self.relative_buckets % 2):
            raise ValueError(f"relative_buckets = {self.relative_buckets} must be even and at least 4")
        if self.position == "t5" and self.relative_max_distance <= self.relative_buckets // 2:
            raise ValueError(
                f"relative_max_distance = {self.relative_max_distance} must be above half of "
                f"relative_buckets = {self.relative_buckets}"
            )
        if self.residual == "parallel" and self.norm_placement == "post":
            raise ValueError('residual = "parallel" has no place for norm_placement = "post": nothing would be normed')
        if self.embedding_norm == "first" and (self.norm_placement == "post" or self.num_layer_groups < self.layers):
            raise ValueError('embedding_norm = "first" needs norms before the parts, and a block 0 that is not shared')
        if any(not 0 <= layer < self.layers for layer in self.sliding_window_layers):
            raise ValueError(f"sliding_window_layers = {self.sliding_window_layers} must lie in 0 … {self.layers - 1}")
        for name in ("dropout", "attention_dropout", "ffn_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} = {getattr(self, name)} must lie in [0, 1)")

    @property
    def rotary_dim(self) -> int:
        """How many of a head's coordinates turn."""
        return int(self.head_dim * self.rotary_fraction)

    @property
    def has_max_positions(self) -> bool:
        """Whether positions beyond `max_positions` have no meaning (a table that ends)."""
        return self.position == "learned"

    def window_of(self, layer: int) -> int:
        """The window of one layer, 0 where it sees everything."""
        return self.sliding_window if not self.sliding_window_layers or layer in self.sliding_window_layers else 0


def list_differences(a: Any, b: Any) -> list[str]:
    """The fields in which two configs of one kind differ, as `name: this → that`."""
    return [
        f"{f.name}: {getattr(a, f.name)!r} → {getattr(b, f.name)!r}"
        for f in fields(a)
        if getattr(a, f.name) != getattr(b, f.name)
    ]
