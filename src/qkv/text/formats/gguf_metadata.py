"""A byte-level BPE tokenizer as the metadata of a GGUF file: the inverse of `qkv.text.formats.gguf`."""

import json
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Backend

from qkv.errors import QkvError
from qkv.text.formats.gguf import PRE_TOKENIZERS, ROLES, build_gguf_tokenizer
from qkv.text.formats.sentencepiece import CONTROL, NORMAL, UNUSED, USER_DEFINED

if TYPE_CHECKING:
    from qkv.text.tokenizer import Tokenizer

PROBE = "It's 1234.5 OK, DON'T  stop!\n\n  Çafé ｆｕ\u0301 日本語 x_1\t<|a|> 🙂 'S\r\n  ?!"
"""Words, contractions, digits, spaces, line breaks and accents, which kinds of pre-tokenizers split differently."""
REASON = "so llama.cpp has no tokenizer that gives the same tokens; export the model with --format hf"


def gguf_tokenizer_metadata(tokenizer: "Tokenizer", vocab_size: int) -> dict[str, Any]:
    """The metadata that describes a tokenizer. Ids that only the model has become unused tokens."""
    backend = tokenizer.backend
    stored = json.loads(backend.to_str())
    model = stored["model"]
    if (
        model["type"] != "BPE"
        or (stored["decoder"] or {}).get("type") != "ByteLevel"
        or tokenizer.target is not tokenizer
    ):
        raise QkvError(f"the tokenizer is not byte-level BPE ({model['type']}), {REASON}")
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens = [f"[UNUSED{number}]" for number in range(vocab_size)]
    types = [UNUSED] * vocab_size
    for token, number in vocabulary.items():
        tokens[number], types[number] = token, NORMAL
    for added in stored["added_tokens"]:
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    first = tokenizer.encode("a")[:1]
    ids = {f"tokenizer.ggml.{name}_token_id": getattr(tokenizer.special_tokens, role) for role, name in ROLES.items()}
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        **{key: value for key, value in ids.items() if value is not None},
        "tokenizer.ggml.add_bos_token": first == [tokenizer.special_tokens.bos],
        "tokenizer.ggml.add_eos_token": False,  # a prompt is continued
    }
    template = tokenizer.config.get("chat_template")
    if isinstance(template, str):
        metadata["tokenizer.chat_template"] = template
    return {**metadata, "tokenizer.ggml.pre": find_pre_tokenizer(backend, metadata)}


def find_pre_tokenizer(backend: Backend, metadata: dict[str, Any]) -> str:
    """The name of the pre-tokenizer that normalizes and splits texts in the same way."""
    for name in PRE_TOKENIZERS:
        candidate, _ = build_gguf_tokenizer({**metadata, "tokenizer.ggml.pre": name})
        if split_words(candidate) == split_words(backend):
            return name
    raise QkvError(f"the tokenizer splits texts in its own way, {REASON}")


def split_words(backend: Backend) -> list[str]:
    """The words of the probe."""
    text = backend.normalizer.normalize_str(PROBE) if backend.normalizer else PROBE
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] if backend.pre_tokenizer else [text]
