"""Special tokens by role (bos, eos, pad, …): their spellings, a tokenizer's own, its template, and literal text.

Code uses `tokenizer.special_tokens.eos`, never "</s>". The token of a role is looked up in four places, in this order:

1. the tokenizer's files, `tokenizer_config.json` and `special_tokens_map.json`;
2. the ids in the model's `config.json`;
3. the tokens that the tokenizer's post-processor adds;
4. the spellings in the table below.

The post-processor of a tokenizer adds special tokens around texts, such as `[CLS] A [SEP]`. It is made from a named
template and stored in tokenizer.json, so other readers of this file apply it, too.

Texts are encoded literally: the spelling of a special token inside a text is encoded as ordinary characters. If "</s>"
in a document became the end token, data could inject special tokens. The backend's `encode_special_tokens` stops its
search for special tokens, but a Unigram, WordPiece or word-level vocabulary also contains them and matches them like
any other token. So texts are encoded by a copy of the backend in which those vocabulary entries keep their ids and get
names that cannot occur in a text.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import processors

from qkv.errors import UsageError, suggest_name


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
    added = roles_in_post_processor(backend)
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


# Name → (template of one text, template of a pair). `A` and `B` are the texts, other words are roles of special tokens,
# and `:1` sets token type 1.
TEMPLATES: dict[str, tuple[str, str]] = {
    "none": ("A", "A B"),
    "eos": ("A eos", "A eos B eos"),
    "bos": ("bos A", "bos A bos B:1"),
    "bos-eos": ("bos A eos", "bos A eos B eos"),
    "bert": ("cls A sep", "cls A sep B:1 sep:1"),
    "roberta": ("bos A eos", "bos A eos eos B eos"),
    "cls-eos": ("cls A eos", "cls A eos B eos"),  # ESM
    "eos-language": ("A eos language", "A B eos language"),  # mBART
    "language-eos": ("language A eos", "language A B eos"),  # mBART-50
}


def make_post_processor(name: str, tokens: Mapping[str, tuple[str, int]]) -> processors.TemplateProcessing | None:
    """The post-processor of a named template. `tokens` has the spelling and id of each role.

    >>> make_post_processor("none", {}) is None
    True
    """
    if name not in TEMPLATES:
        raise UsageError(f"unknown template {name!r}; {suggest_name(name, TEMPLATES)}")
    if name == "none":
        return None
    single, pair = (spell_template(text, name, tokens) for text in TEMPLATES[name])
    used = {word.split(":")[0] for word in f"{single} {pair}".split()}
    special = sorted({spelling: token_id for spelling, token_id in tokens.values() if spelling in used}.items())
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def template_roles(name: str) -> set[str]:
    """The roles of the special tokens in a template.

    >>> sorted(template_roles("bert"))
    ['cls', 'sep']
    """
    return {word.split(":")[0] for template in TEMPLATES[name] for word in template.split()} - {"A", "B"}


def spell_template(template: str, name: str, tokens: Mapping[str, tuple[str, int]]) -> str:
    """A template in the syntax of `tokenizers`, with spellings for roles."""
    words = []
    for word in template.split():
        role, _, token_type = word.partition(":")
        if role in ("A", "B"):
            role = f"${role}"
        elif role in tokens:
            role = tokens[role][0]
        else:
            raise UsageError(
                f"the template {name!r} needs a token for the role {role!r}, which this tokenizer does not have; "
                f"add {role!r} to special_tokens, or choose another template"
            )
        words.append(f"{role}:{token_type or 0}")
    return " ".join(words)


def roles_in_post_processor(backend: Backend) -> dict[str, int]:
    """The roles (and ids) of the tokens that a tokenizer's post-processor adds before and after a single text."""
    if backend.post_processor is None:
        return {}
    processor = json.loads(backend.post_processor.__getstate__())
    for part in processor["processors"] if processor["type"] == "Sequence" else [processor]:
        if part["type"] == "BertProcessing":
            return {"cls": part["cls"][1], "sep": part["sep"][1]}
        if part["type"] == "RobertaProcessing":
            return {"bos": part["cls"][1], "eos": part["sep"][1]}
        if part["type"] == "TemplateProcessing":
            first_and_last = {"bos": part["single"][:1], "eos": part["single"][-1:]}
            names = {
                role: item["SpecialToken"]["id"]
                for role, items in first_and_last.items()
                for item in items
                if "SpecialToken" in item
            }
            ids = {role: part["special_tokens"][name]["ids"] for role, name in names.items()}
            return {role: token_ids[0] for role, token_ids in ids.items() if token_ids}
    return {}


# The new name of a token: its id between Unicode noncharacters, which do not occur in texts, and a random number, so
# that nobody can write the name into a text on purpose.
RENAMED_TOKEN_FORMAT = f"\U0010ffff{token_hex(8)}\U0010fffe{{}}\U0010ffff\U0010fffe"


def make_literal_backend(backend: Backend) -> Backend:
    """A copy of `backend` that encodes the spellings of special tokens as ordinary text. All ids are the same."""
    parts = json.loads(backend.to_str())
    special = {token["content"]: token["id"] for token in parts["added_tokens"] if token["special"]}
    if special:
        rename_special_tokens(parts, special)
    literal = Backend.from_str(json.dumps(parts))
    literal.encode_special_tokens = True
    return literal


def rename_special_tokens(parts: dict[str, Any], special: dict[str, int]) -> None:
    """Rename the special tokens that the model's vocabulary contains, in a parsed tokenizer.json."""
    model = parts["model"]
    vocabulary = model["vocab"]
    is_unigram = model["type"] == "Unigram"
    tokens = {token for token, _ in vocabulary} if is_unigram else vocabulary.keys()
    names = {token: RENAMED_TOKEN_FORMAT.format(special[token]) for token in tokens & special.keys()}
    if is_unigram:
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    else:
        model["vocab"] = {names.get(token, token): token_id for token, token_id in vocabulary.items()}
        model["unk_token"] = names.get(model.get("unk_token"), model.get("unk_token"))
    if "merges" in model:  # drop merges that produce or contain a special token
        model["merges"] = [pair for pair in model["merges"] if not names.keys() & {pair[0], pair[1], pair[0] + pair[1]}]
    for token in parts["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
