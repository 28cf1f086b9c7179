"""Special tokens by role: the one table of their spellings, and how a folder's roles are found and written.

Code asks for `tokenizer.roles.end`, never for "</s>". A role is looked up, in this order, in what the folder says
(`tokenizer_config.json`, `special_tokens_map.json`), in the ids of the model's `config.json`, in what the tokenizer's
own template adds, and last in the table below.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tokenizers import Tokenizer as Backend

from qkv.errors import UsageError, suggest_name
from qkv.text import templates


@dataclass(frozen=True)
class SpecialTokens:
    """The id of each special token by what it is for; None where the tokenizer has no such token.

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
    sentinels: tuple[int, ...] = ()  # T5's span marks, the first one used first


@dataclass(frozen=True)
class TokenSpelling:
    """How one role is written: its key in Hugging Face's files, then the spellings in use, the first one ours."""

    config_key: str
    spellings: tuple[str, ...]


SPELLINGS: dict[str, TokenSpelling] = {
    "pad": TokenSpelling("pad_token", ("<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>")),
    "bos": TokenSpelling(
        "bos_token", ("<s>", "[BOS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>")
    ),
    "eos": TokenSpelling("eos_token", ("</s>", "[EOS]", "<eos>", "<|end_of_text|>", "<|endoftext|>")),
    "unk": TokenSpelling("unk_token", ("<unk>", "[UNK]")),
    "mask": TokenSpelling("mask_token", ("<mask>", "[MASK]")),
    "sep": TokenSpelling("sep_token", ("<sep>", "[SEP]")),
    "cls": TokenSpelling("cls_token", ("<cls>", "[CLS]")),
}
ROLE_NAMES = tuple(SPELLINGS)
SENTINEL_PATTERN = re.compile(r"<extra_id_(\d+)>")


def sentinel_token(number: int) -> str:
    """The spelling of sentinel `number`, counted from 0."""
    return f"<extra_id_{number}>"


def resolve_spellings(special_tokens: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    """Role -> spelling for a new tokenizer, in the order given; plain names get our own spelling.

    >>> resolve_spellings(["pad", "eos"])
    {'pad': '<pad>', 'eos': '</s>'}
    >>> resolve_spellings({"eos": "<|endoftext|>"})
    {'eos': '<|endoftext|>'}
    """
    if isinstance(special_tokens, str):
        special_tokens = [special_tokens]
    given = dict(special_tokens) if isinstance(special_tokens, Mapping) else dict.fromkeys(special_tokens, "")
    for role, text in given.items():
        if role not in SPELLINGS:
            raise UsageError(f"no special token has the role {role!r}; {suggest_name(role, ROLE_NAMES)}")
        given[role] = text or SPELLINGS[role].spellings[0]
    return given


def token_text(token: Any) -> str | None:
    """The text of a token as Hugging Face's files write it: a string, or a mapping with `content`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def find_special_tokens(
    backend: Backend, config: Mapping[str, Any], model_config: Mapping[str, Any] | None = None
) -> SpecialTokens:
    """The roles of a tokenizer, from its folder's files and from itself (in the order of the module's first lines)."""
    vocabulary = backend.get_vocab(with_added_tokens=True)
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    ids: dict[str, int | None] = {}
    for role, spelling in SPELLINGS.items():
        if spelling.config_key in config:  # said, be it null: then the tokenizer has no such role
            ids[role] = vocabulary.get(token_text(config[spelling.config_key]) or "")
    if not ids:
        for role, spelling in SPELLINGS.items():
            number = (model_config or {}).get(f"{spelling.config_key}_id")
            if isinstance(number, int) and backend.id_to_token(number) in special:
                ids[role] = number
    added = templates.roles_in_post_processor(backend)
    taken = {number for number in ids.values() if number is not None}
    if not added.keys() & ids.keys() and not taken.intersection(added.values()):
        ids.update(added)
    for role, spelling in SPELLINGS.items():
        if role not in ids:
            ids[role] = next((vocabulary[text] for text in spelling.spellings if text in special), None)
    marks = {int(found[1]): vocabulary[text] for text in vocabulary if (found := SENTINEL_PATTERN.fullmatch(text))}
    return SpecialTokens(**ids, sentinels=tuple(marks[number] for number in sorted(marks)))


def special_tokens_config(special_tokens: SpecialTokens, backend: Backend, config: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `tokenizer_config.json` from which both we and transformers read the roles back."""
    entries: dict[str, Any] = {}
    for role in ROLE_NAMES:
        number = getattr(special_tokens, role)
        entries[SPELLINGS[role].config_key] = None if number is None else backend.id_to_token(number)
    if special_tokens.sentinels and "extra_special_tokens" not in config:
        entries["additional_special_tokens"] = [backend.id_to_token(number) for number in special_tokens.sentinels]
    return entries


def table(roles: SpecialTokens) -> dict[str, Any]:
    """The roles as a plain mapping, for hashing and for showing."""
    return {field.name: getattr(roles, field.name) for field in fields(roles)}
