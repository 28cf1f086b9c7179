"""Special tokens by role (bos, eos, pad, …): the table of their spellings, and finding and saving a tokenizer's own.

Code uses `tokenizer.special_tokens.eos`, never "</s>". The token of a role is looked up in four places, in this order:

1. the tokenizer's files, `tokenizer_config.json` and `special_tokens_map.json`;
2. the ids in the model's `config.json`;
3. the tokens that the tokenizer's post-processor adds;
4. the spellings in the table below.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from qkv.errors import UsageError, suggest_name
from qkv.text import post_processor


@dataclass(frozen=True)
class SpecialTokens:
    """The id of the special token of each role; None where the tokenizer has no such token.

    >>> SpecialTokens(eos=1, pad=0).eos
    1
    """

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    unk: int | None = None
    mask: int | None = None
    sep: int | None = None
    cls: int | None = None
    sentinels: tuple[int, ...] = ()  # T5's sentinels, in the order in which spans use them


@dataclass(frozen=True)
class RoleSpelling:
    """How a role is written: its key in Hugging Face's files, and its known spellings. New tokenizers use the first."""

    config_key: str
    spellings: tuple[str, ...]


SPELLINGS: dict[str, RoleSpelling] = {
    "pad": RoleSpelling("pad_token", ("<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>")),
    "bos": RoleSpelling(
        "bos_token", ("<s>", "[BOS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>")
    ),
    "eos": RoleSpelling("eos_token", ("</s>", "[EOS]", "<eos>", "<|end_of_text|>", "<|endoftext|>")),
    "unk": RoleSpelling("unk_token", ("<unk>", "[UNK]")),
    "mask": RoleSpelling("mask_token", ("<mask>", "[MASK]")),
    "sep": RoleSpelling("sep_token", ("<sep>", "[SEP]")),
    "cls": RoleSpelling("cls_token", ("<cls>", "[CLS]")),
}
ROLE_NAMES = tuple(SPELLINGS)
SENTINEL_PATTERN = re.compile(r"<extra_id_(\d+)>")


def sentinel_token(number: int) -> str:
    """The spelling of sentinel `number`, counted from 0."""
    return f"<extra_id_{number}>"


def resolve_spellings(special_tokens: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    """Role → spelling for a new tokenizer, in the order given. A role without a spelling gets the default one.

    >>> resolve_spellings(["pad", "eos"])
    {'pad': '<pad>', 'eos': '</s>'}
    >>> resolve_spellings({"eos": "<|endoftext|>"})
    {'eos': '<|endoftext|>'}
    """
    if isinstance(special_tokens, str):
        special_tokens = [special_tokens]
    spellings = dict(special_tokens) if isinstance(special_tokens, Mapping) else dict.fromkeys(special_tokens, "")
    for role, text in spellings.items():
        if role not in SPELLINGS:
            raise UsageError(f"{role!r} is not the role of a special token; {suggest_name(role, ROLE_NAMES)}")
        spellings[role] = text or SPELLINGS[role].spellings[0]
    return spellings


def token_text(token: Any) -> str | None:
    """The text of a token in Hugging Face's files, where it is a string or a mapping with `content`; else None."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def find_special_tokens(
    backend: Backend, config: Mapping[str, Any], model_config: Mapping[str, Any] | None = None
) -> SpecialTokens:
    """Find the special tokens of a tokenizer, in the order of this module's docstring."""
    vocabulary = backend.get_vocab(with_added_tokens=True)
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    ids: dict[str, int | None] = {}
    for role, spelling in SPELLINGS.items():
        if spelling.config_key in config:  # null means that the tokenizer has no such token
            ids[role] = vocabulary.get(token_text(config[spelling.config_key]) or "")
    if not ids:
        for role, spelling in SPELLINGS.items():
            token_id = (model_config or {}).get(f"{spelling.config_key}_id")
            if isinstance(token_id, int) and backend.id_to_token(token_id) in special:
                ids[role] = token_id
    added = post_processor.roles_in_post_processor(backend)
    taken = {token_id for token_id in ids.values() if token_id is not None}
    if not added.keys() & ids.keys() and not taken.intersection(added.values()):
        ids.update(added)
    for role, spelling in SPELLINGS.items():
        if role not in ids:
            ids[role] = next((vocabulary[text] for text in spelling.spellings if text in special), None)
    sentinels = {int(match[1]): vocabulary[text] for text in vocabulary if (match := SENTINEL_PATTERN.fullmatch(text))}
    return SpecialTokens(**ids, sentinels=tuple(sentinels[number] for number in sorted(sentinels)))


def special_tokens_config(special_tokens: SpecialTokens, backend: Backend, config: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `tokenizer_config.json` from which qkv and transformers read the special tokens back."""
    entries: dict[str, Any] = {}
    for role in ROLE_NAMES:
        token_id = getattr(special_tokens, role)
        entries[SPELLINGS[role].config_key] = None if token_id is None else backend.id_to_token(token_id)
    if special_tokens.sentinels and "extra_special_tokens" not in config:
        entries["additional_special_tokens"] = [backend.id_to_token(i) for i in special_tokens.sentinels]
    return entries
