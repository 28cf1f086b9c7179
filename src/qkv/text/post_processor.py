"""The post-processor of a tokenizer: the special tokens that encoding adds around texts, such as `[CLS] A [SEP]`.

It is made from a named template and stored in tokenizer.json, so other readers of this file apply it, too.
"""

import json
from collections.abc import Mapping

from tokenizers import Tokenizer as Backend
from tokenizers import processors

from qkv.errors import UsageError, suggest_name

# Name → (template of one text, template of a pair). `A` and `B` are the texts, other words are roles of special tokens,
# and `:1` sets token type 1.
TEMPLATES: dict[str, tuple[str, str]] = {
    "none": ("A", "A B"),
    "eos": ("A eos", "A eos B eos"),
    "bos": ("bos A", "bos A bos B:1"),
    "bos-eos": ("bos A eos", "bos A eos B eos"),
    "bert": ("cls A sep", "cls A sep B:1 sep:1"),
    "roberta": ("bos A eos", "bos A eos eos B eos"),
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
