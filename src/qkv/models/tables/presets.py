"""Published models as functions that return their configs.

    find("bert-base")                    a Config
    gpt2(width=384, layers=6, heads=6)   the same architecture at another size

Each family of models has one function; `PRESETS` maps published names to them.
"""

from collections.abc import Callable
from functools import partial

from qkv.blocks import HeadConfig, RotaryScaling, StackConfig
from qkv.errors import UsageError, suggest_name
from qkv.models.config import Config


def transformer(
    *, vocab_size: int = 37_000, width: int = 512, layers: int = 6, heads: int = 8, dropout: float = 0.1
) -> Config:
    """The encoder-decoder of "Attention Is All You Need" (2017): post-norm, sinusoids, ReLU, one embedding for all."""
    stack = StackConfig(
        vocab_size=vocab_size,
        width=width,
        layers=layers,
        heads=heads,
        ffn_width=4 * width,
        position="sinusoidal",
        max_positions=1024,
        norm_placement="post",
        feedforward="relu",
        embedding_scale="sqrt",
        dropout=dropout,
        init="xavier",
    )
    return Config(
        encoder=stack, decoder=stack, head=HeadConfig(kind="lm", outputs=vocab_size, tied=True), share_embeddings=True
    )


def bert(*, vocab_size: int = 30_522, width: int = 768, layers: int = 12, heads: int = 12) -> Config:
    """BERT (2018): a post-norm encoder with masked-word and next-sentence heads."""
    stack = StackConfig(
        vocab_size=vocab_size,
        width=width,
        layers=layers,
        heads=heads,
        ffn_width=4 * width,
        position="learned",
        norm_placement="post",
        norm_eps=1e-12,
        embedding_norm="added",
        token_types=2,
        dropout=0.1,
        attention_dropout=0.1,
    )
    head = HeadConfig(
        kind="mlm", outputs=vocab_size, dense="gelu", dense_norm=True, tied=True, bias=True, sentence_outputs=2
    )
    return Config(encoder=stack, head=head, pad_token_id=0, architecture="bert")


def roberta_base() -> Config:
    """RoBERTa base (2019): BERT's shape, positions from row 2 on, one token type, no next-sentence head."""
    stack = StackConfig(
        vocab_size=50_265,
        width=768,
        layers=12,
        heads=12,
        ffn_width=3072,
        position="learned",
        position_offset=2,
        norm_placement="post",
        embedding_norm="added",
        token_types=1,
        dropout=0.1,
        attention_dropout=0.1,
    )
    head = HeadConfig(kind="mlm", outputs=50_265, dense="gelu", dense_norm=True, tied=True, bias=True)
    return Config(
        encoder=stack, head=head, pad_token_id=1, decoder_start_token_id=0, eos_token_ids=(2,), architecture="roberta"
    )


def distilbert() -> Config:
    """DistilBERT (2019): half of BERT base's layers, no token types."""
    stack = StackConfig(
        vocab_size=30_522,
        width=768,
        layers=6,
        heads=12,
        ffn_width=3072,
        position="learned",
        norm_placement="post",
        norm_eps=1e-12,
        embedding_norm="added",
        dropout=0.1,
        attention_dropout=0.1,
    )
    head = HeadConfig(kind="mlm", outputs=30_522, dense="gelu", dense_norm=True, tied=True, bias=True)
    return Config(encoder=stack, head=head, pad_token_id=0, architecture="distilbert")


def modernbert_base() -> Config:
    """ModernBERT base (2024): rotary, gated, and a window of 64 to each side on two layers of three."""
    stack = StackConfig(
        vocab_size=50_368,
        width=768,
        layers=22,
        heads=12,
        ffn_width=1152,
        position="rotary",
        max_positions=8192,
        rotary_base=160_000.0,
        rotary_base_sliding=10_000.0,
        sliding_window=64,
        sliding_window_layers=tuple(i for i in range(22) if i % 3),
        norm_affine="gain",
        embedding_norm="first",
        feedforward="geglu",
        bias="none",
        init="scaled",
    )
    head = HeadConfig(kind="mlm", outputs=50_368, dense="gelu", dense_bias=False, dense_norm=True, tied=True, bias=True)
    return Config(
        encoder=stack,
        head=head,
        pad_token_id=50_283,
        decoder_start_token_id=50_281,
        eos_token_ids=(50_282,),
        architecture="modernbert",
    )


def gpt2(
    *,
    vocab_size: int = 50_257,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    positions: int = 1024,
    dropout: float = 0.1,
) -> Config:
    """GPT-2 (2019): a pre-norm decoder with learned positions and a tied head."""
    stack = StackConfig(
        vocab_size=vocab_size,
        width=width,
        layers=layers,
        heads=heads,
        ffn_width=4 * width,
        position="learned",
        max_positions=positions,
        feedforward="gelu_tanh",
        dropout=dropout,
        attention_dropout=dropout,
        init="scaled",
    )
    head = HeadConfig(kind="lm", outputs=vocab_size, tied=True)
    last = vocab_size - 1
    return Config(decoder=stack, head=head, decoder_start_token_id=last, eos_token_ids=(last,), architecture="gpt2")


def gpt3_175b() -> Config:
    """GPT-3 (2020), to compute its cost: 96 layers of 96 heads, dense attention. Its weights are not public."""
    return gpt2(width=12_288, layers=96, heads=96, positions=2048, dropout=0.0)


def t5(*, width: int = 512, layers: int = 6, heads: int = 8, ffn_width: int = 2048, gated: bool = False) -> Config:
    """T5 (2019); `gated` means v1.1: a gated feed-forward and a separate output matrix."""
    stack = StackConfig(
        vocab_size=32_128,
        width=width,
        layers=layers,
        heads=heads,
        head_dim=64,
        ffn_width=ffn_width,
        position="t5",
        norm="rmsnorm",
        norm_affine="gain",
        norm_eps=1e-6,
        feedforward="geglu_tanh" if gated else "relu",
        bias="none",
        score_scale="none",
        dropout=0.1,
        attention_dropout=0.1,
        ffn_dropout=0.1,
        init="t5",
    )
    head = HeadConfig(kind="lm", outputs=32_128, tied=not gated, scale="none" if gated else "rsqrt")
    return Config(
        encoder=stack,
        decoder=stack,
        head=head,
        share_embeddings=True,
        pad_token_id=0,
        decoder_start_token_id=0,
        eos_token_ids=(1,),
        architecture="t5",
    )


def bart_base() -> Config:
    """BART base (2019): post-norm, learned positions from row 2 on, a norm after the embedding."""
    stack = StackConfig(
        vocab_size=50_265,
        width=768,
        layers=6,
        heads=12,
        ffn_width=3072,
        position="learned",
        max_positions=1024,
        position_offset=2,
        norm_placement="post",
        embedding_norm="added",
        dropout=0.1,
        attention_dropout=0.1,
        ffn_dropout=0.1,
    )
    head = HeadConfig(kind="lm", outputs=50_265, tied=True, bias=True)
    return Config(
        encoder=stack,
        decoder=stack,
        head=head,
        share_embeddings=True,
        pad_token_id=1,
        decoder_start_token_id=2,
        eos_token_ids=(2,),
        architecture="bart",
    )


def marian() -> Config:
    """Marian, as in the OPUS-MT translation models: the 2017 base model with SiLU."""
    stack = StackConfig(
        vocab_size=58_101,
        width=512,
        layers=6,
        heads=8,
        ffn_width=2048,
        position="sinusoidal_split",
        norm_placement="post",
        feedforward="silu",
        embedding_scale="sqrt",
        dropout=0.1,
    )
    head = HeadConfig(kind="lm", outputs=58_101, tied=True, bias=True)
    return Config(
        encoder=stack,
        decoder=stack,
        head=head,
        share_embeddings=True,
        pad_token_id=58_100,
        decoder_start_token_id=58_100,
        eos_token_ids=(0,),
        architecture="marian",
    )


def llama(
    *,
    vocab_size: int = 32_000,
    width: int = 2048,
    layers: int = 22,
    heads: int = 32,
    kv_heads: int = 4,
    ffn_width: int = 5632,
    max_positions: int = 2048,
    rotary_base: float = 10_000.0,
    rotary_scaling: RotaryScaling | None = None,
    bos_eos_ids: tuple[int, int] = (1, 2),
) -> Config:
    """Llama (2023–24): RMSNorm, rotary, SwiGLU, grouped key/value heads. The defaults are TinyLlama 1.1B."""
    stack = StackConfig(
        vocab_size=vocab_size,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        ffn_width=ffn_width,
        position="rotary",
        max_positions=max_positions,
        rotary_base=rotary_base,
        rotary_scaling=rotary_scaling,
        norm="rmsnorm",
        norm_affine="gain",
        feedforward="swiglu",
        bias="none",
    )
    start, end = bos_eos_ids
    return Config(
        decoder=stack,
        head=HeadConfig(kind="lm", outputs=vocab_size),
        decoder_start_token_id=start,
        eos_token_ids=(end,),
        architecture="llama",
    )


LLAMA3_SCALING = RotaryScaling(
    kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192
)


def mistral_7b() -> Config:
    """Mistral 7B v0.1 (2023): each token attends to itself and the 4,095 tokens before it."""
    stack = StackConfig(
        vocab_size=32_000,
        width=4096,
        layers=32,
        heads=32,
        kv_heads=8,
        ffn_width=14_336,
        position="rotary",
        max_positions=32_768,
        sliding_window=4095,
        norm="rmsnorm",
        norm_affine="gain",
        feedforward="swiglu",
        bias="none",
    )
    return Config(
        decoder=stack,
        head=HeadConfig(kind="lm", outputs=32_000),
        decoder_start_token_id=1,
        eos_token_ids=(2,),
        architecture="mistral",
    )


def qwen(
    *,
    version: int,
    width: int,
    layers: int,
    heads: int,
    kv_heads: int,
    ffn_width: int,
    head_dim: int = 0,
    tied: bool = False,
    max_positions: int = 32_768,
    vocab_size: int = 151_936,
) -> Config:
    """Qwen2 (2024) has biases on queries, keys and values. Qwen3 (2025) has a norm on each query and key instead."""
    stack = StackConfig(
        vocab_size=vocab_size,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_width=ffn_width,
        position="rotary",
        max_positions=max_positions,
        rotary_base=1_000_000.0,
        norm="rmsnorm",
        norm_affine="gain",
        norm_eps=1e-6,
        qk_norm="head" if version == 3 else "none",
        feedforward="swiglu",
        bias="none" if version == 3 else "qkv",
    )
    head = HeadConfig(kind="lm", outputs=vocab_size, tied=tied)
    end = 151_645 if version == 3 else 151_643  # the Qwen3 presets are chat models: <|im_end|>
    return Config(
        decoder=stack, head=head, decoder_start_token_id=151_643, eos_token_ids=(end,), architecture=f"qwen{version}"
    )


PRESETS: dict[str, Callable[[], Config]] = {
    "transformer-base": transformer,
    "transformer-big": partial(transformer, width=1024, heads=16, dropout=0.3),
    "bert-tiny": partial(bert, width=128, layers=2, heads=2),
    "bert-base": bert,
    "bert-large": partial(bert, width=1024, layers=24, heads=16),
    "roberta-base": roberta_base,
    "distilbert": distilbert,
    "modernbert-base": modernbert_base,
    "gpt2": gpt2,
    "gpt2-medium": partial(gpt2, width=1024, layers=24, heads=16),
    "gpt2-large": partial(gpt2, width=1280, layers=36, heads=20),
    "gpt2-xl": partial(gpt2, width=1600, layers=48, heads=25),
    "gpt3-175b": gpt3_175b,
    "t5-small": t5,
    "t5-base": partial(t5, width=768, layers=12, heads=12, ffn_width=3072),
    "t5-v1.1-small": partial(t5, layers=8, heads=6, ffn_width=1024, gated=True),
    "t5-v1.1-base": partial(t5, width=768, layers=12, heads=12, ffn_width=2048, gated=True),
    "bart-base": bart_base,
    "marian": marian,
    "llama-1.1b": llama,
    "llama-3.1-8b": partial(
        llama,
        vocab_size=128_256,
        width=4096,
        layers=32,
        kv_heads=8,
        ffn_width=14_336,
        max_positions=131_072,
        rotary_base=500_000.0,
        rotary_scaling=LLAMA3_SCALING,
        bos_eos_ids=(128_000, 128_001),
    ),
    "mistral-7b": mistral_7b,
    "qwen2-0.5b": partial(
        qwen, version=2, width=896, layers=24, heads=14, kv_heads=2, ffn_width=4864, tied=True, max_positions=131_072
    ),
    "qwen2-7b": partial(
        qwen,
        version=2,
        width=3584,
        layers=28,
        heads=28,
        kv_heads=4,
        ffn_width=18_944,
        max_positions=131_072,
        vocab_size=152_064,
    ),
    "qwen3-0.6b": partial(
        qwen,
        version=3,
        width=1024,
        layers=28,
        heads=16,
        kv_heads=8,
        ffn_width=3072,
        head_dim=128,
        tied=True,
        max_positions=40_960,
    ),
    "qwen3-8b": partial(
        qwen,
        version=3,
        width=4096,
        layers=36,
        heads=32,
        kv_heads=8,
        ffn_width=12_288,
        head_dim=128,
        max_positions=40_960,
    ),
}


def find_preset(name: str) -> Config:
    """The config of a published model by its name.

    >>> find("gpt3-175b").decoder.layers
    96
    """
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}; {suggest_name(name, PRESETS)}")
    return PRESETS[name]()
