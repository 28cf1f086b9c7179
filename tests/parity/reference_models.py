"""The reference models that parity is measured against: tiny random ones, made with transformers.

A *variant* is one way to set up an architecture (grouped heads, a window, tied or not, …). A *pair* is one model class
of a variant twice: as transformers builds it, and as `qkv.load` reads it from the folder that transformers saved. All
weights are disturbed, norms and biases too, so that nothing stays at 0 or 1 where a mistake would not show.

Sizes are odd where they may be, and windows and buckets shorter than the texts.
"""

import copy
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import qkv
from qkv.models.tables import ARCHITECTURES
from qkv.models.tables.architecture import HeadTable

transformers = pytest.importorskip(
    "transformers", reason="parity is measured against transformers, which is not installed"
)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

FLOAT32, FLOAT64 = 1e-4, 1e-10
"""How far outputs may lie apart."""

VOCAB, TARGET_VOCAB = 41, 37
LENGTHS = (9, 5, 7)  # tokens of the three texts; for pairs, of the sources
TARGET_LENGTHS = (8, 6, 4)
PAD, END = 1, 2
FIRST = 4  # ids below are special
SPECIAL = {"pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": END}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 0.5,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": 64,
}
"""With heads of width 6, one frequency is left alone, one is blended and one is slowed down."""
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 128}
"""With heads of width 16 and the default rotations of 1 and 32, two frequencies are left alone and two blended."""


# ── Variants ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _bert_like(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 37,
        "max_position_embeddings": 31,
        "layer_norm_eps": 1e-5,
        **SPECIAL,
        **more,
    }


def _llama_like(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": 20,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "intermediate_size": 27,
        "max_position_embeddings": 64,
        **SPECIAL,
        **more,
    }


MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": True}


def _t5_like(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "d_model": 20,
        "num_layers": 2,
        "num_decoder_layers": 3,
        "num_heads": 3,
        "d_kv": 7,
        "d_ff": 27,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "decoder_start_token_id": 0,
        **SPECIAL,
        **more,
    }


def _bart_like(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "d_model": 20,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 5,
        "encoder_ffn_dim": 27,
        "decoder_ffn_dim": 23,
        "max_position_embeddings": 31,
        "decoder_start_token_id": 0,
        **SPECIAL,
        **more,
    }


@dataclass(frozen=True)
class Variant:
    """One way to set up an architecture; `classes` says which of its heads are tried (): all of them."""

    architecture: str
    settings: dict[str, Any]
    classes: tuple[str, ...] = ()
    untie: bool = False  # T5: give the head a matrix of its own, as published v1.1 and mT5 weights have

    def config(self, cls: str) -> Any:
        labels = 2 if "QuestionAnswering" in cls or "NextSentence" in cls else 3
        kind: Any = transformers.CONFIG_MAPPING[self.architecture]
        return kind(**copy.deepcopy(self.settings), num_labels=labels)


VARIANTS = {
    "bert": Variant("bert", _bert_like()),
    "bert-tanh-untied": Variant(
        "bert", _bert_like(hidden_act="gelu_new", tie_word_embeddings=False), ("BertForMaskedLM", "BertForPreTraining")
    ),
    "roberta": Variant("roberta", _bert_like(type_vocab_size=1)),
    "roberta-relu-pad3": Variant(
        "roberta", _bert_like(hidden_act="relu", pad_token_id=3, type_vocab_size=2), ("RobertaForMaskedLM",)
    ),
    "distilbert": Variant(
        "distilbert",
        {
            "vocab_size": VOCAB,
            "dim": 24,
            "n_layers": 3,
            "n_heads": 3,
            "hidden_dim": 37,
            "max_position_embeddings": 31,
            **SPECIAL,
        },
    ),
    "albert": Variant("albert", _bert_like(embedding_size=10, num_hidden_layers=4, num_hidden_groups=1)),
    "albert-2-groups": Variant(
        "albert",
        _bert_like(embedding_size=10, num_hidden_layers=4, num_hidden_groups=2),
        ("AlbertModel", "AlbertForMaskedLM"),
    ),
    "electra": Variant("electra", _bert_like(embedding_size=10)),
    "electra-no-projection": Variant(
        "electra", _bert_like(embedding_size=24, hidden_act="silu"), ("ElectraForMaskedLM", "ElectraForPreTraining")
    ),
    "esm": Variant(
        "esm", _bert_like(position_embedding_type="rotary", token_dropout=True, mask_token_id=6, rope_theta=500.0)
    ),
    "esm-1b": Variant(
        "esm",
        _bert_like(emb_layer_norm_before=True, token_dropout=True, mask_token_id=6),
        ("EsmForMaskedLM", "EsmForTokenClassification"),
    ),
    "modernbert": Variant(
        "modernbert",
        {
            "vocab_size": VOCAB,
            "hidden_size": 24,
            "num_hidden_layers": 4,
            "num_attention_heads": 3,
            "intermediate_size": 19,
            "global_attn_every_n_layers": 3,
            "local_attention": 4,
            "cls_token_id": 0,
            "sep_token_id": END,
            **SPECIAL,
        },
    ),
    "modernbert-biased": Variant(
        "modernbert",
        {
            "vocab_size": VOCAB,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "intermediate_size": 19,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "local_attention": 5,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "classifier_bias": True,
            "classifier_pooling": "mean",
            "classifier_activation": "relu",
            "decoder_bias": False,
            "tie_word_embeddings": False,
            "cls_token_id": 0,
            "sep_token_id": END,
            **SPECIAL,
        },
        ("ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
    ),
    "gpt2": Variant(
        "gpt2", {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 3, "n_head": 3, "n_positions": 31, **SPECIAL}
    ),
    "gpt2-unscaled-untied": Variant(
        "gpt2",
        {
            "vocab_size": VOCAB,
            "n_embd": 24,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 31,
            "n_inner": 27,
            "scale_attn_weights": False,
            "tie_word_embeddings": False,
            **SPECIAL,
        },
        ("GPT2LMHeadModel",),
    ),
    "gpt_neox": Variant(
        "gpt_neox",
        _bert_like(rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}),
    ),
    "gpt_neox-serial": Variant(
        "gpt_neox",
        _bert_like(
            hidden_act="relu2",
            use_parallel_residual=False,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
        ),
        ("GPTNeoXForCausalLM",),
    ),
    "llama": Variant("llama", _llama_like(rope_parameters=LLAMA3)),
    "llama-biased-tied": Variant(
        "llama",
        _llama_like(
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
            num_key_value_heads=1,
            rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.5},
        ),
        ("LlamaForCausalLM",),
    ),
    "llama-relu2": Variant("llama", _llama_like(hidden_act="relu2"), ("LlamaForCausalLM",)),
    "mistral": Variant("mistral", _llama_like(sliding_window=4)),
    "mistral-yarn": Variant(
        "mistral", _llama_like(sliding_window=None, head_dim=16, rope_parameters=YARN), ("MistralForCausalLM",)
    ),
    "mistral-no-window": Variant("mistral", _llama_like(sliding_window=None), ("MistralForCausalLM",)),
    "qwen2": Variant(
        "qwen2",
        {
            **{k: v for k, v in _llama_like().items() if k != "head_dim"},
            "hidden_size": 24,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
        },
    ),
    "qwen2-tied-no-window": Variant(
        "qwen2",
        {**{k: v for k, v in _llama_like().items() if k != "head_dim"}, "hidden_size": 24, "tie_word_embeddings": True},
        ("Qwen2ForCausalLM",),
    ),
    "qwen3": Variant("qwen3", _llama_like()),
    "qwen3-biased-windowed": Variant(
        "qwen3",
        _llama_like(
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=4,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        ("Qwen3ForCausalLM",),
    ),
    "mixtral": Variant("mixtral", _llama_like(num_local_experts=5, sliding_window=4, intermediate_size=28)),
    "qwen3_moe": Variant("qwen3_moe", _llama_like(**MOE)),
    "qwen3_moe-unnormed": Variant(
        "qwen3_moe", _llama_like(**{**MOE, "norm_topk_prob": False}), ("Qwen3MoeForCausalLM",)
    ),
    "gemma2": Variant(
        "gemma2",
        _llama_like(
            hidden_size=36,  # whose root, by which embeddings are multiplied, is exact in any dtype
            query_pre_attn_scalar=6,
            sliding_window=4,
            attn_logit_softcapping=0.5,
            final_logit_softcapping=0.6,
        ),
    ),
    "gemma2-uncapped-untied": Variant(
        "gemma2",
        _llama_like(
            hidden_size=36,
            query_pre_attn_scalar=6,
            sliding_window=4,
            layer_types=["full_attention", "full_attention", "sliding_attention"],
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            attention_bias=True,
            tie_word_embeddings=False,
        ),
        ("Gemma2ForCausalLM",),
    ),
    "t5": Variant("t5", _t5_like(feed_forward_proj="relu")),
    "t5-v1.1": Variant(
        "t5",
        _t5_like(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        ("T5Model", "T5ForConditionalGeneration"),
        untie=True,
    ),
    "mt5": Variant("mt5", _t5_like(), untie=True),
    "bart": Variant("bart", _bart_like()),
    "bart-scaled": Variant(
        "bart", _bart_like(scale_embedding=True, activation_function="relu"), ("BartForConditionalGeneration",)
    ),
    "mbart": Variant("mbart", _bart_like(scale_embedding=True)),
    "mbart-unscaled": Variant("mbart", _bart_like(), ("MBartForConditionalGeneration",)),
    "marian": Variant("marian", _bart_like(scale_embedding=True)),
    "marian-two-vocabularies": Variant(
        "marian",
        _bart_like(
            share_encoder_decoder_embeddings=False, decoder_vocab_size=TARGET_VOCAB, activation_function="swish"
        ),
    ),
}


def cases(*, kinds: tuple[str, ...] = (), families: tuple[str, ...] = (), first_only: bool = False) -> list[str]:
    """`variant:class` names: of all variants, of those kinds of heads and families alone where they are given."""
    out = []
    for name, variant in VARIANTS.items():
        if first_only and name != variant.architecture:
            continue
        for table in ARCHITECTURES[variant.architecture].heads:
            if variant.classes and table.class_name not in variant.classes:
                continue
            if kinds and table.fields.get("kind", "none") not in kinds:
                continue
            stacks = table.stacks or tuple(ARCHITECTURES[variant.architecture].stacks)
            family = "seq2seq" if len(stacks) == 2 else stacks[0]
            if not families or family in families:
                out.append(f"{name}:{table.class_name}")
    return out


def lookup(case: str) -> tuple[Variant, HeadTable]:
    """The variant and the head that a case names."""
    name, cls = case.split(":")
    variant = VARIANTS[name]
    return variant, next(table for table in ARCHITECTURES[variant.architecture].heads if table.class_name == cls)


# ── transformers in float64 ──────────────────────────────────────────────────────────────────────────────────────


class Exact(TorchFunctionMode):
    """Inside, what the reference would round to float32 stays in float64.

    transformers keeps rotary tables, RMSNorm statistics and some products in float32 whatever a model's type, which
    holds any comparison to 1e-7. Here its own formulas are evaluated in float64. Only `.float()` of whole numbers is
    left alone: T5 finds its buckets that way, and at a bucket's edge the rounding decides.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.float:
            return args[0] if args[0].dtype == torch.float64 else func(*args, **kwargs)
        args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@contextmanager
def exact(on: bool = True) -> Iterator[None]:
    """transformers' own code in float64 throughout."""
    if not on:
        yield
        return
    narrow = torch.FloatTensor  # Marian's sinusoids are rounded with it
    try:
        torch.FloatTensor = torch.DoubleTensor
        with Exact():
            yield
    finally:
        torch.FloatTensor = narrow


def in_float64(model: nn.Module) -> nn.Module:
    """A copy in float64, with its tables of positions evaluated anew by its own formulas in float64."""
    model = copy.deepcopy(model).double()
    model.config._experts_implementation = "eager"  # the faster ones have no float64
    with exact():
        for module in model.modules():
            if any("inv_freq" in name for name, _ in module.named_buffers(recurse=False)):
                module.__init__(module.config)
            if hasattr(module, "create_weight"):
                module.weight = nn.Parameter(module.create_weight(), requires_grad=False)
    return model.eval()


# ── Pairs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def disturb(model: nn.Module) -> None:
    """Move every weight away from where it starts, but for Marian's fixed sinusoids."""
    fixed = {id(m.weight) for m in model.modules() if hasattr(m, "create_weight")}
    for parameter in model.parameters():
        if id(parameter) not in fixed:
            parameter.add_(torch.randn_like(parameter) * 0.15)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()


@dataclass
class Text:
    """One text, or a source and a target."""

    ids: Tensor  # (T,) what the head reads: a seq2seq's target
    source: Tensor | None = None  # (S,)
    types: Tensor | None = None  # (T,)


@dataclass
class Pair:
    """One model class of a variant, theirs and ours."""

    name: str
    variant: Variant
    cls: str
    folder: Path
    theirs: Any  # transformers' model, float32
    _ours: dict[torch.dtype, qkv.Model] = field(default_factory=dict)

    @cached_property
    def theirs64(self) -> Any:
        return in_float64(self.theirs)

    def ours(self, dtype: torch.dtype = torch.float64) -> qkv.Model:
        if dtype not in self._ours:
            self._ours[dtype] = qkv.load(self.folder, dtype=dtype)
        return self._ours[dtype]

    @property
    def config(self) -> qkv.Config:
        return self.ours().config

    @property
    def seq2seq(self) -> bool:
        return self.config.family == "seq2seq"

    @property
    def pooled(self) -> bool:
        """Whether the head gives one answer for a whole text."""
        return self.config.head.kind in ("classify", "choice", "embed")

    @property
    def pad(self) -> int:
        return int(self.theirs.config.pad_token_id)

    @cached_property
    def texts(self) -> list[Text]:
        """Three texts of different lengths without special tokens inside; a source ends with the end token."""
        generator = torch.Generator().manual_seed(7)

        def draw(length: int, vocab: int) -> Tensor:
            return torch.randint(FIRST, vocab, (length,), generator=generator)

        if not self.seq2seq:
            types = self.config.stack.token_types
            return [
                Text(draw(n, VOCAB), types=torch.randint(0, types, (n,), generator=generator) if types else None)
                for n in LENGTHS
            ]
        vocab = self.config.stack.vocab_size
        out = []
        for length, target in zip(LENGTHS, TARGET_LENGTHS, strict=True):
            source = draw(length, VOCAB)
            source[-1] = END
            # transformers finds a text's class at the target's place where the source has its end token.
            out.append(Text(draw(length if self.pooled else target, vocab), source))
        return out

    def ask(self, dtype: torch.dtype = torch.float64, **inputs: Tensor) -> Tensor:
        """What transformers says, laid out as ours: (B, T, V) or, for a head that reads whole texts, (B, V)."""
        model = self.theirs64 if dtype == torch.float64 else self.theirs
        if self.config.head.kind == "choice":
            inputs = {name: value[:, None] for name, value in inputs.items()}  # a question of one choice
        with torch.no_grad(), exact(dtype == torch.float64):
            said = model(**inputs)
        if "start_logits" in said:
            return torch.stack([said.start_logits, said.end_logits], dim=-1)
        if "prediction_logits" in said:
            return said.prediction_logits
        if "logits" in said:
            logits = said.logits
            return logits[..., None] if self.config.head.kind == "tag" and logits.dim() == 2 else logits
        return said.pooler_output if self.config.head.kind == "embed" else said.last_hidden_state

    def ask_one(self, text: Text, dtype: torch.dtype = torch.float64) -> Tensor:
        """What transformers says of one text alone: (T, V) or (V,)."""
        if text.source is not None:
            return self.ask(dtype, input_ids=text.source[None], decoder_input_ids=text.ids[None])[0]
        more = {} if text.types is None else {"token_type_ids": text.types[None]}
        return self.ask(dtype, input_ids=text.ids[None], **more)[0]

    @cached_property
    def truth(self) -> list[Tensor]:
        """What transformers says of each text alone, in float64: what every way of feeding ours must give."""
        out = [self.ask_one(text) for text in self.texts]
        numbers = torch.cat([t.flatten() for t in out])
        assert numbers.isfinite().all()
        assert numbers.std() > 0.02, "a reference that always says the same proves nothing"
        return out


@cache
def _folders() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="qkv-parity-")


@cache
def pair(case: str) -> Pair:
    """The pair that a case names; made once, then shared."""
    variant, table = lookup(case)
    cls = table.class_name
    torch.manual_seed(zlib.crc32(case.encode()))
    model = getattr(transformers, cls)(variant.config(cls)).eval()
    if variant.untie and hasattr(model, "lm_head"):
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.2)
    disturb(model)
    if variant.architecture == "gemma2":
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:  # a gain w, which is 1 + w in our folders: exact in float32 with 12 digits
                    parameter.copy_((parameter * 2**12).round() / 2**12)
    folder = Path(_folders().name) / case.replace(":", "_")
    model.save_pretrained(folder)
    return Pair(case, variant, cls, folder, model)


# ── Laying texts in rows ─────────────────────────────────────────────────────────────────────────────────────────


def padded(rows: list[Tensor], pad: int, side: str) -> tuple[Tensor, Tensor]:
    """Rows as one batch (B, T) padded on one side, and its mask."""
    longest = max(len(row) for row in rows) + 1  # one more, so that the longest row is padded too
    ids, mask = torch.full((len(rows), longest), pad), torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        here = slice(0, len(row)) if side == "right" else slice(longest - len(row), longest)
        ids[i, here], mask[i, here] = row, 1
    return ids, mask


def packed(rows: list[Tensor], pad: int, first: int = 1) -> tuple[Tensor, Tensor]:
    """Rows laid end to end in one (1, T), with two places of padding after them, and their segment numbers."""
    ids = torch.cat([*rows, torch.full((2,), pad)])
    numbers = [torch.full((len(row),), first + i) for i, row in enumerate(rows)]
    return ids[None], torch.cat([*numbers, torch.zeros(2, dtype=torch.long)])[None]


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The farthest that two answers of one shape lie apart."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    assert ours.dtype == theirs.dtype, (ours.dtype, theirs.dtype)
    return (ours - theirs).abs().max().item()
