"""The tokenizer in the metadata of a GGUF file: byte-level BPE with merges, or SentencePiece's BPE with scores."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from qkv.errors import QkvError, suggest_name
from qkv.text.formats.sentencepiece import BPE, BYTE, CONTROL, UNKNOWN, USER_DEFINED, Piece, SentencePieceModel
from qkv.text.formats.sentencepiece_backend import build_backend
from qkv.text.special_tokens import make_post_processor

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"


@dataclass(frozen=True)
class PreTokenizer:
    """How a text is split before merges apply. An empty pattern is GPT-2's own."""

    pattern: str = ""
    digits: bool = False  # whether each digit is on its own
    nfc: bool = False  # whether texts are normalized to NFC
    ignore_merges: bool = False  # whether a word that is in the vocabulary becomes that token without merges
    adds_bos: bool = False  # whether BOS is added if the file does not say so


PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "llama-bpe": PreTokenizer(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}", ignore_merges=True, adds_bos=True),
    "qwen2": PreTokenizer(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}", nfc=True),
    "smollm": PreTokenizer(digits=True),
}
PRE_TOKENIZERS |= {"llama3": PRE_TOKENIZERS["llama-bpe"], "llama-v3": PRE_TOKENIZERS["llama-bpe"]}
PRE_TOKENIZERS |= {"deepseek-r1-qwen": PRE_TOKENIZERS["qwen2"], "starcoder": PRE_TOKENIZERS["smollm"]}
"""By the value of `tokenizer.ggml.pre`."""
MAX_TOKEN_CHARACTERS = 1024
"""The time to find the merges of a token is quadratic in its length."""
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator", "mask": "mask"}
"""Role → its name in the metadata ("seperator" is spelt like that)."""


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> tuple[Backend, dict[str, Any]]:
    """The backend, and the values of tokenizer_config.json, among them the chat template."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens):
        raise QkvError("tokenizer.ggml.token_type does not have one entry for each token")
    if max(map(len, tokens)) > MAX_TOKEN_CHARACTERS:
        raise QkvError(f"tokenizer.ggml.tokens has a token of more than {MAX_TOKEN_CHARACTERS:,} characters")
    if len(set(tokens)) != len(tokens):
        raise QkvError("tokenizer.ggml.tokens has the same token twice")
    if kind == "gpt2":
        pre = _find_pre_tokenizer(metadata.get("tokenizer.ggml.pre", "gpt-2"))
        backend = _byte_level_bpe(tokens, types, _strings(metadata, "tokenizer.ggml.merges"), pre)
        adds_bos = pre.adds_bos
    elif kind == "llama":
        backend = _sentencepiece_bpe(tokens, types, metadata)
        adds_bos = True
    else:
        raise QkvError(f"tokenizer.ggml.model = {kind!r} is not supported; known: gpt2, llama")
    config: dict[str, Any] = {}
    ids: dict[str, tuple[str, int]] = {}
    for role, name in ROLES.items():
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        config[f"{role}_token"] = None
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            config[f"{role}_token"] = tokens[token_id]
            ids[role] = (tokens[token_id], token_id)
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    added = {"bos": metadata.get("tokenizer.ggml.add_bos_token", adds_bos) is True and "bos" in ids}
    added["eos"] = metadata.get("tokenizer.ggml.add_eos_token", False) is True and "eos" in ids
    name = "-".join(role for role, is_added in added.items() if is_added) or "none"
    if (processor := make_post_processor(name, ids)) is not None:
        backend.post_processor = processor
    return backend, config


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise QkvError(f"no {key}, so the file has no complete tokenizer")
    return values


def _find_pre_tokenizer(name: Any) -> PreTokenizer:
    if name not in PRE_TOKENIZERS:
        raise QkvError(f"tokenizer.ggml.pre = {name!r} is not supported; {suggest_name(str(name), PRE_TOKENIZERS)}")
    return PRE_TOKENIZERS[name]


def _byte_level_bpe(tokens: list[str], types: list[int], merges: list[str], pre: PreTokenizer) -> Backend:
    pairs = []
    for merge in merges:
        first, _, second = merge.partition(" ")
        pairs.append((first, second))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocabulary, pairs, ignore_merges=pre.ignore_merges))
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    splits: list[pre_tokenizers.PreTokenizer] = []
    if pre.digits:
        splits.append(pre_tokenizers.Digits(individual_digits=True))
    if pre.pattern:
        splits.append(pre_tokenizers.Split(Regex(pre.pattern), "isolated"))
    splits.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pre.pattern))
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    backend.decoder = decoders.ByteLevel()
    special = [token for token, number in zip(tokens, types, strict=True) if number in (CONTROL, UNKNOWN)]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    defined = [token for token, number in zip(tokens, types, strict=True) if number == USER_DEFINED]
    backend.add_tokens([AddedToken(token, normalized=False) for token in defined])
    return backend


def _sentencepiece_bpe(tokens: list[str], types: list[int], metadata: Mapping[str, Any]) -> Backend:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise QkvError("tokenizer.ggml.scores does not have one number for each token")
    if UNKNOWN not in types:
        raise QkvError("tokenizer.ggml.token_type has no unknown token, which a SentencePiece model needs")
    pieces = [Piece(*values) for values in zip(tokens, map(float, scores), types, strict=True)]
    model = SentencePieceModel(
        pieces=pieces,
        model_type=BPE,
        byte_fallback=BYTE in types,
        add_dummy_prefix=metadata.get("tokenizer.ggml.add_space_prefix", True) is True,
        remove_extra_whitespaces=False,
    )
    return build_backend(model)
