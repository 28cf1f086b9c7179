"""Published models. A preset has the keys of the model's `config.json` that differ from its architecture's defaults.

find_preset("bert-base")                                  a Config
find_preset("gpt2", n_embd=384, n_layer=6, n_head=6)      the same architecture at another size
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from qkv.blocks import HeadConfig, StackConfig
from qkv.errors import UsageError, suggest_name
from qkv.models.config import Config
from qkv.models.tables import find_architecture, read_config


def transformer(
    *, vocab_size: int = 37_000, width: int = 512, layers: int = 6, heads: int = 8, dropout: float = 0.1
) -> Config:
    """The encoder-decoder of "Attention Is All You Need" (2017): post-norm, sinusoids, ReLU.

    Source, target and output layer share one embedding matrix.
    """
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
    head = HeadConfig(kind="lm", outputs=vocab_size, tied=True)
    return Config(encoder=stack, decoder=stack, head=head, share_embeddings=True)


def _published(model_type: str, class_name: str, **keys: Any) -> Config:
    return read_config(find_architecture(model_type), {"architectures": [class_name], **keys})


def _bert(width: int, layers: int, heads: int) -> Callable[..., Config]:
    """BERT (2018), with the heads for masked tokens and for the next sentence."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return partial(_published, "bert", "BertForPreTraining", **sizes, intermediate_size=4 * width, pad_token_id=0)


def _gpt2(width: int, layers: int, heads: int, **keys: Any) -> Callable[..., Config]:
    """GPT-2 (2019)."""
    keys = {"n_embd": width, "n_layer": layers, "n_head": heads, "bos_token_id": 50_256, "eos_token_id": 50_256, **keys}
    return partial(_published, "gpt2", "GPT2LMHeadModel", **keys)


def _t5(width: int, layers: int, heads: int, ffn_width: int, **keys: Any) -> Callable[..., Config]:
    """T5 (2019)."""
    sizes = {"d_model": width, "num_layers": layers, "num_heads": heads, "d_ff": ffn_width}
    return partial(_published, "t5", "T5ForConditionalGeneration", **sizes, pad_token_id=0, eos_token_id=1, **keys)


def _llama(
    class_prefix: str, width: int, layers: int, heads: tuple[int, int], ffn_width: int, **keys: Any
) -> Callable[..., Config]:
    """Llama (2023) and the models with its blocks; `heads` are the query heads and the key/value heads."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": ffn_width}
    sizes |= {"num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    return partial(_published, class_prefix.lower(), f"{class_prefix}ForCausalLM", **sizes, **keys)


def _esm2(width: int, layers: int, heads: int) -> Callable[..., Config]:
    """ESM-2 (2022), an encoder of proteins. It has no dropout."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return partial(
        _published,
        "esm",
        "EsmForMaskedLM",
        **sizes,
        intermediate_size=4 * width,
        position_embedding_type="rotary",
        layer_norm_eps=1e-5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        token_dropout=True,
        mask_token_id=32,
        pad_token_id=1,
        eos_token_id=2,
    )


V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
"""T5 v1.1 has a gated feed-forward and a separate output matrix."""
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
QWEN = {"rope_theta": 1_000_000.0, "bos_token_id": 151_643}
QWEN2 = {**QWEN, "max_position_embeddings": 131_072, "eos_token_id": 151_643}
QWEN3 = {**QWEN, "max_position_embeddings": 40_960, "eos_token_id": 151_645, "head_dim": 128}  # the id of <|im_end|>

PRESETS: dict[str, Callable[..., Config]] = {
    "transformer-base": transformer,
    "transformer-big": partial(transformer, width=1024, heads=16, dropout=0.3),
    "bert-tiny": _bert(128, 2, 2),
    "bert-base": _bert(768, 12, 12),
    "bert-large": _bert(1024, 24, 16),
    "roberta-base": partial(
        _published,
        "roberta",
        "RobertaForMaskedLM",
        type_vocab_size=1,
        max_position_embeddings=514,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    ),
    "distilbert": partial(_published, "distilbert", "DistilBertForMaskedLM", pad_token_id=0),
    "modernbert-base": partial(
        _published,
        "modernbert",
        "ModernBertForMaskedLM",
        pad_token_id=50_283,
        bos_token_id=50_281,
        eos_token_id=50_282,
    ),
    "esm2-8m": _esm2(320, 6, 20),
    "esm2-35m": _esm2(480, 12, 20),
    "esm2-150m": _esm2(640, 30, 20),
    "esm2-650m": _esm2(1280, 33, 20),
    "esm2-3b": _esm2(2560, 36, 40),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    # GPT-3 (2020). Its weights are not public, so this preset only serves to compute its cost.
    "gpt3-175b": _gpt2(12_288, 96, 96, n_positions=2048, resid_pdrop=0.0, attn_pdrop=0.0),
    "t5-small": _t5(512, 6, 8, 2048),
    "t5-base": _t5(768, 12, 12, 3072),
    "t5-v1.1-small": _t5(512, 8, 6, 1024, **V1_1),
    "t5-v1.1-base": _t5(768, 12, 12, 2048, **V1_1),
    "bart-base": partial(
        _published,
        "bart",
        "BartForConditionalGeneration",
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        attention_dropout=0.1,
        activation_dropout=0.1,
        pad_token_id=1,
        decoder_start_token_id=2,
        eos_token_id=2,
    ),
    # Marian as in the OPUS-MT translation models: the 2017 base model with SiLU.
    "marian": partial(
        _published,
        "marian",
        "MarianMTModel",
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=58_100,
        decoder_start_token_id=58_100,
        eos_token_id=0,
    ),
    "llama-1.1b": _llama("Llama", 2048, 22, (32, 4), 5632, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2),
    "llama-3.1-8b": _llama(
        "Llama",
        4096,
        32,
        (32, 8),
        14_336,
        vocab_size=128_256,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        rope_parameters=LLAMA3_ROPE,
        bos_token_id=128_000,
        eos_token_id=128_001,
    ),
    # Mistral 7B v0.1 (2023): each token attends to itself and the 4,095 tokens before it.
    "mistral-7b": _llama(
        "Mistral",
        4096,
        32,
        (32, 8),
        14_336,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "qwen2-0.5b": _llama("Qwen2", 896, 24, (14, 2), 4864, **QWEN2, tie_word_embeddings=True),
    "qwen2-7b": _llama("Qwen2", 3584, 28, (28, 4), 18_944, **QWEN2, vocab_size=152_064),
    "qwen3-0.6b": _llama("Qwen3", 1024, 28, (16, 8), 3072, **QWEN3, tie_word_embeddings=True),
    "qwen3-8b": _llama("Qwen3", 4096, 36, (32, 8), 12_288, **QWEN3),
}


def find_preset(name: str, **keys: Any) -> Config:
    """The config of a published model by its name. `keys` replace keys of its `config.json`.

    >>> find_preset("gpt3-175b").decoder.layers
    96
    """
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}; {suggest_name(name, PRESETS)}")
    return PRESETS[name](**keys)
