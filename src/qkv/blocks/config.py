"""The configs of a stack of blocks and of a head: flat lists of named choices.

The kinds of attention, feed-forward, norm, position and block are the names in the table in `parts.py`. Nothing in
`blocks/` depends on the name of a model. Add a field only after review: `tests/test_frozen.py` fails until its list of
fields is changed too.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from qkv.blocks.checks.config import (
    check_fields,
    check_head,
    check_part_names,
    check_scaling,
    check_stack_combinations,
    check_stack_values,
)
from qkv.blocks.parts import PARTS, state_shapes
from qkv.values import Limits, OneOf

MAX_LENGTH = 2**27  # of a sequence, in tokens
Length = Annotated[int, Limits(1, MAX_LENGTH)]
Rate = Annotated[float, Limits(0, below=1)]
Cap = Annotated[float, Limits(0, 1e6)]  # 0: no cap

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]
HeadKind = Literal["none", "lm", "mlm", "classify", "choice", "tag", "span", "embed", "ctc", "frames"]
AttentionKernel = Literal["auto", "eager", "sdpa", "flex", "varlen"]
"""The implementation of attention. It is not part of a config, because every kernel gives the same result."""


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """How rotary frequencies are lowered, so that a model can read longer texts than it was trained on.

    `linear` divides every frequency by `factor`. `llama3` counts the full rotations of a frequency over
    `original_max_positions` tokens. With fewer than `low_freq_factor` rotations, the frequency is divided; with more
    than `high_freq_factor`, it is kept; in between, it is interpolated. `yarn` (Peng et al. 2023) does the same with
    `beta_slow` and `beta_fast` rotations, but interpolates by the index of the frequency. It also multiplies queries
    and keys by `attention_factor`, so that the softmax of a longer text is as sharp.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: Annotated[float, Limits(1e-3, 1e6)]
    low_freq_factor: Annotated[float, Limits(0, 1e6)] = 1.0
    high_freq_factor: Annotated[float, Limits(0, 1e6)] = 4.0
    original_max_positions: Length = 8192
    beta_slow: Annotated[float, Limits(1e-3, 1e6)] = 1.0
    beta_fast: Annotated[float, Limits(1e-3, 1e6)] = 32.0
    attention_factor: Annotated[float, Limits(0, 1e3)] = 0.0  # yarn; 0: 0.1 · ln(factor) + 1

    def __post_init__(self) -> None:
        check_scaling(self)


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """One stack: its embedding, its blocks, and their parts.

    >>> tiny = StackConfig(vocab_size=100, width=64, layers=2, heads=4, ffn_width=256)
    >>> tiny.head_dim, tiny.kv_heads
    (16, 4)
    >>> StackConfig(vocab_size=100, width=64, layers=2, block="lstm").position
    'none'
    """

    # Size
    # 0: the stack has no vocabulary, and reads only what front ends give it
    vocab_size: Annotated[int, Limits(0, 2**24)]
    width: Annotated[int, Limits(1, 2**20)]
    layers: Annotated[int, Limits(1, 4096)]
    heads: Annotated[int, Limits(1, 2**16)] = 0  # at least 1; a recurrent stack needs no value
    ffn_width: Annotated[int, Limits(1, 2**22)] = 0  # the same
    # the number of key/value heads (grouped-query attention); 0: the same as `heads`
    kv_heads: Annotated[int, Limits(0, 2**16)] = 0
    head_dim: Annotated[int, Limits(0, 2**16)] = 0  # 0: width / heads
    # a narrower embedding with a projection to `width` (ALBERT, ELECTRA); 0: `width`
    embedding_width: Annotated[int, Limits(0, 2**20)] = 0
    # encoder-only: the embedding of a token is a linear map of its own vector and those of its neighbours up to this
    # distance (a convolution inside the document); 0: no neighbours
    embedding_window: Annotated[int, Limits(0, 64)] = 0
    # number of distinct blocks; consecutive layers share one (ALBERT: 1); 0: one per layer
    num_layer_groups: Annotated[int, Limits(0, 4096)] = 0

    # Positions
    position: Annotated[str, OneOf(PARTS["position"])] = "sinusoidal"
    max_positions: Length = 512
    # learned: position p reads row p + offset of the table (BART 2, RoBERTa pad + 1)
    position_offset: Annotated[int, Limits(0, 2**20)] = 0
    rotary_base: Annotated[float, Limits(1e-3, 1e15)] = 10_000.0
    # the base in layers with a sliding window (ModernBERT); 0: `rotary_base`
    rotary_base_sliding: Annotated[float, Limits(0, 1e15)] = 0.0
    # the fraction of each head that is rotated (GPT-NeoX 0.25)
    rotary_fraction: Annotated[float, Limits(1e-6, 1)] = 1.0
    rotary_scaling: RotaryScaling | None = None
    relative_buckets: Annotated[int, Limits(1, 2**20)] = 32  # t5: the number of buckets of distances
    relative_max_distance: Length = 128  # t5: larger distances share the last bucket

    # Sliding window. Query i attends to key j only if |i − j| ≤ sliding_window. With a causal mask, a query
    # sees sliding_window + 1 keys, itself included. Hugging Face counts these keys, so its value is ours + 1.
    sliding_window: Annotated[int, Limits(0, MAX_LENGTH)] = 0  # 0: no limit
    sliding_window_layers: tuple[int, ...] = ()  # the layers that have the window; (): all layers

    # Parts
    block: Annotated[str, OneOf(PARTS["block"])] = "transformer"  # or a stack of recurrent layers (blocks/recurrent.py)
    attention: Annotated[str, OneOf(PARTS["attention"])] = "softmax"
    norm: Annotated[str, OneOf(PARTS["norm"])] = "layernorm"
    norm_placement: Literal["pre", "post", "sandwich"] = "pre"
    norm_affine: Literal["gain_bias", "gain", "none"] = "gain_bias"
    norm_eps: Annotated[float, Limits(1e-30, 1)] = 1e-5
    embedding_norm: Literal["none", "extra", "replaces_first"] = "none"
    # A norm after the embedding: "extra" to the norms of the blocks, or "replaces_first": block 0 then has no norm
    # before attention (ModernBERT).
    qk_norm: Literal["none", "head"] = "none"  # normalise each head's query and key (Qwen3)
    feedforward: Annotated[str, OneOf(PARTS["feedforward"])] = "gelu"
    # feedforward = "moe" (blocks/experts.py): the number of SwiGLU networks of width ffn_width, how many a token uses,
    # whether their weights are a softmax over the chosen or over all of them, and the coefficients of two losses
    experts: Annotated[int, Limits(1, 4096)] = 8
    experts_per_token: Annotated[int, Limits(1, 4096)] = 2
    router_softmax: Literal["chosen", "all"] = "chosen"
    balance_loss: Annotated[float, Limits(0, 1e3)] = 0.01
    router_z_loss: Annotated[float, Limits(0, 1e3)] = 0.001
    bias: Literal["all", "attention", "qkv", "none"] = "all"
    # Linear maps with a bias: all; q, k, v and the output of attention ("attention"); q, k and v ("qkv"); none.
    residual: Literal["serial", "parallel", "none"] = "serial"
    # "parallel": attention and feed-forward read the same input (GPT-NeoX). "none": no skip connections; each part
    # replaces its input by its output, for experiments on why a deep Transformer needs them.
    score_scale: Literal["sqrt", "none"] = "sqrt"  # softmax(QKᵀ/√D) or, in T5, softmax(QKᵀ)
    score_cap: Cap = 0.0  # softcapping (Gemma 2): scores become cap · tanh(scores / cap), before a bias and the mask
    attention_sinks: Literal["none", "learned"] = "none"
    # "learned": each head has a score for no key at all, so that a query may attend to nothing (gpt-oss).
    value_residual: Literal["none", "first"] = "none"
    # "first": each layer mixes its values with those of layer 0, in a learned proportion that starts at one half
    # (Zhou et al. 2024).
    layer_scale: Annotated[float, Limits(0, 1)] = 0.0  # 0: none; else the first value of a learned gain of each update
    embedding_scale: Literal["none", "sqrt", "unmasked"] = "none"
    # "sqrt": × √embedding_width (√width if it is not set). "unmasked": the vectors of mask tokens are 0, and the others
    # are scaled by the fraction of a document that is not masked, in training divided by here (ESM's token dropout).
    mask_token_id: Annotated[int, Limits(0, 2**24)] | None = None  # unmasked: the id of the mask token
    # the number of token types (BERT: 2); 0: there is no token type embedding
    token_types: Annotated[int, Limits(0, 2**16)] = 0

    # Of the fields above, recurrent layers have only the sizes and the fields of the embedding; all others keep their
    # defaults, and `position` is "none".
    recurrent_attention: Literal["additive", "none"] = "additive"
    # How a recurrent decoder reads the source: additive attention (Bahdanau et al. 2015), or only through its initial
    # state (Sutskever et al. 2014).

    # Training
    dropout: Rate = 0.0  # after the embedding, and after each attention, feed-forward or recurrent layer
    attention_dropout: Rate = 0.0  # on the attention weights
    ffn_dropout: Rate = 0.0  # inside the feed-forward
    drop_path: Rate = 0.0  # stochastic depth: how often an update of the residual stream is left out for a sequence
    init: Literal["normal", "scaled", "xavier", "t5"] = "normal"
    init_std: Annotated[float, Limits(0, 1000)] = 0.02

    def __post_init__(self) -> None:
        check_part_names(self)
        if not self.has_blocks:
            plain: dict[str, object] = {"heads": self.heads or 1, "ffn_width": self.ffn_width or self.width}
            if self.position == "sinusoidal":  # the default
                plain["position"] = "none"
            for name, filled in plain.items():
                object.__setattr__(self, name, filled)
        check_stack_values(self)
        derived = {
            "head_dim": self.head_dim or self.width // self.heads,
            "kv_heads": self.kv_heads or self.heads,
            "num_layer_groups": self.num_layer_groups or self.layers,
            "rotary_base_sliding": self.rotary_base_sliding or self.rotary_base,
            "sliding_window_layers": tuple(sorted(self.sliding_window_layers)),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        check_stack_combinations(self)
        check_fields(self)

    @property
    def has_blocks(self) -> bool:
        """Whether the stack consists of blocks with attention and a feed-forward; else one part replaces them all."""
        return not PARTS["block"][self.block].is_stack

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether batches of one shape have tensors of the same shapes in all parts, as CUDA graphs need."""
        return all(PARTS[slot][getattr(self, slot)].fixed_shapes for slot in PARTS)

    @property
    def keeps_state(self) -> bool:
        """Whether decoding keeps more than keys and values: a state, which cannot forget its last tokens."""
        return not self.has_blocks or bool(state_shapes(self))

    @property
    def rotary_dim(self) -> int:
        """The number of dimensions of a head that are rotated."""
        return int(self.head_dim * self.rotary_fraction)

    @property
    def has_max_positions(self) -> bool:
        """Whether `max_positions` is a hard limit, because positions are a learned table, for instance."""
        return PARTS["position"][self.position].is_limited

    def window_of(self, layer: int) -> int:
        """Return the sliding window of a layer, or 0 if the layer has none."""
        return self.sliding_window if not self.sliding_window_layers or layer in self.sliding_window_layers else 0


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The config of a head.

    >>> HeadConfig(kind="classify", labels=("bad", "good")).outputs
    2
    """

    kind: HeadKind = "none"
    # V. lm, mlm: the vocabulary size; ctc: also the blank; frames: numbers of a frame; embed: numbers of a vector (0:
    # there is no projection). 0: number of labels
    outputs: Annotated[int, Limits(0, 2**24)] = 0
    labels: tuple[str, ...] = ()  # the names of the classes or tags
    pool: Literal["first", "last", "mean"] = "first"  # POOLED_KINDS: how the tokens of a document become one vector
    dense: Activation | Literal["none"] = "none"  # the activation of a dense layer before the output; "none": no layer
    dense_bias: bool = True
    dense_norm: bool = False
    tied: bool = False  # lm, mlm: the output matrix is the token embedding matrix
    bias: bool = False
    scale: Literal["none", "rsqrt"] = "none"  # "rsqrt": multiply hidden states by 1/√C, as T5 does if tied
    logit_cap: Cap = 0.0  # lm, mlm: softcapping (Gemma 2): logits become cap · tanh(logits / cap)
    normalize: bool = False  # embed: scale each vector to length 1
    tags_in_order: bool = False  # tag: an I- tag is only predicted after a B- or I- tag of its type
    multi_label: bool = False  # classify: a document may have several labels, so outputs are sigmoids, not a softmax
    # classify: divides the logits before softmax or sigmoid, to calibrate the probabilities
    temperature: Annotated[float, Limits(1e-3, 1e3)] = 1.0
    threshold: Rate = 0.0  # classify: a text is out of scope if no class reaches this probability
    out_of_scope: str = ""  # classify: the label of texts out of scope in the data that the threshold was fitted on
    # mlm: outputs of a second head on the first token (next-sentence prediction: 2)
    next_sentence_classes: Annotated[int, Limits(0, 2**24)] = 0
    # lm: outputs for the tokens after the next one, which only training uses (multi-token prediction)
    future_tokens: Annotated[int, Limits(0, 64)] = 0
    # classify, embed with pool = "mean": the head also reads a vector for each token at each of the first positions, so
    # that it includes a linear model of one-hot features (blocks/one_hot.py); 0: none
    one_hot_positions: Annotated[int, Limits(0, 2**16)] = 0
    dropout: Rate = 0.0

    def __post_init__(self) -> None:
        check_head(self)
        if not self.outputs:
            object.__setattr__(self, "outputs", len(self.labels))

    @property
    def is_regression(self) -> bool:
        """Whether a classification head predicts a number, because it has a single output."""
        return self.kind == "classify" and self.outputs == 1 and not self.multi_label
