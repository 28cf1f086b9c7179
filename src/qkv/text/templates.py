"""What is laid around a text for the model: the named templates of trained tokenizers, and reading the ones of others.

A template lives in the tokenizer's post-processor, so that tokenizer.json carries it and every reader of it agrees.
"""

import json
from collections.abc import Mapping

from tokenizers import Tokenizer as Backend
from tokenizers import processors

from qkv.errors import UsageError, suggest_name

# Each: for one text, for a pair. `A` and `B` are the texts, other words are roles, `:1` is the second sentence type.
TEMPLATES: dict[str, tuple[str, str]] = {
    "none": ("A", "A B"),
    "eos": ("A eos", "A eos B eos"),
    "bos": ("bos A", "bos A bos B:1"),
    "bos-eos": ("bos A eos", "bos A eos B eos"),
    "bert": ("cls A sep", "cls A sep B:1 sep:1"),
    "roberta": ("bos A eos", "bos A eos eos B eos"),
    "eos-language": ("A eos language", "A B eos language"),  # mBART: both sides end so
    "language-eos": ("language A eos", "language A B eos"),  # mBART-50
}


def make_post_processor(name: str, tokens: Mapping[str, tuple[str, int]]) -> processors.TemplateProcessing | None:
    """The post-processor of the named template; `tokens` gives the spelling and id of each role.

    >>> make_post_processor("none", {}) is None
    True
    """
    if name not in TEMPLATES:
        raise UsageError(f"no template is called {name!r}; {suggest_name(name, TEMPLATES)}")
    if name == "none":
        return None
    single, pair = (spell_template(text, name, tokens) for text in TEMPLATES[name])
    used = {word.split(":")[0] for word in f"{single} {pair}".split()}
    special = sorted({spelling: number for spelling, number in tokens.values() if spelling in used}.items())
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def template_roles(name: str) -> set[str]:
    """The roles that a template needs.

    >>> sorted(template_roles("bert"))
    ['cls', 'sep']
    """
    return {word.split(":")[0] for template in TEMPLATES[name] for word in template.split()} - {"A", "B"}


def spell_template(template: str, name: str, tokens: Mapping[str, tuple[str, int]]) -> str:
    """A template with its roles replaced by spellings, as `tokenizers` writes templates."""
    words = []
    for word in template.split():
        role, _, kind = word.partition(":")
        if role in ("A", "B"):
            role = f"${role}"
        elif role in tokens:
            role = tokens[role][0]
        else:
            raise UsageError(f"the template {name!r} needs a token for the role {role!r}, which this tokenizer lacks")
        words.append(f"{role}:{kind or 0}")
    return " ".join(words)


def roles_in_post_processor(backend: Backend) -> dict[str, int]:
    """The roles that a tokenizer's own post-processor shows: what it lays before and after a single text."""
    if backend.post_processor is None:
        return {}
    part = json.loads(backend.post_processor.__getstate__())
    parts = part["processors"] if part["type"] == "Sequence" else [part]
    for part in parts:
        if part["type"] == "BertProcessing":
            return {"cls": part["cls"][1], "sep": part["sep"][1]}
        if part["type"] == "RobertaProcessing":
            return {"bos": part["cls"][1], "eos": part["sep"][1]}
        if part["type"] == "TemplateProcessing":
            names = [next(iter(item.values()))["id"] for item in part["single"] if "SpecialToken" in item]
            kinds = ["SpecialToken" in item for item in part["single"]]
            ids = [part["special_tokens"][name]["ids"][0] for name in names]
            roles = {}
            if kinds[0]:
                roles["bos"] = ids[0]
            if kinds[-1]:
                roles["eos"] = ids[-1]
            return roles
    return {}
