"""What is laid around a text for the model: the named templates of trained tokenizers, and reading the ones of others.

A template lives in the tokenizer's post-processor, so that tokenizer.json carries it and every reader of it agrees.
"""

import json
from collections.abc import Mapping

from tokenizers import Tokenizer as Backend
from tokenizers import processors

from qkv.errors import UsageError, nearest

# Each: for one text, for a pair. `A` and `B` are the texts, other words are roles, `:1` is the second sentence type.
TEMPLATES: dict[str, tuple[str, str]] = {
    "none": ("A", "A B"),
    "end": ("A end", "A end B end"),
    "start": ("start A", "start A start B:1"),
    "start-end": ("start A end", "start A end B end"),
    "bert": ("classify A separator", "classify A separator B:1 separator:1"),
    "roberta": ("start A end", "start A end end B end"),
    "end-language": ("A end language", "A B end language"),  # mBART: both sides end so
    "language-end": ("language A end", "language A B end"),  # mBART-50
}


def processor(name: str, tokens: Mapping[str, tuple[str, int]]) -> processors.TemplateProcessing | None:
    """The post-processor of the named template; `tokens` gives the spelling and id of each role.

    >>> processor("none", {}) is None
    True
    """
    if name not in TEMPLATES:
        raise UsageError(f"no template is called {name!r}; {nearest(name, TEMPLATES)}")
    if name == "none":
        return None
    single, pair = (laid_out(text, name, tokens) for text in TEMPLATES[name])
    used = {word.split(":")[0] for word in f"{single} {pair}".split()}
    special = sorted({spelling: number for spelling, number in tokens.values() if spelling in used}.items())
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def roles_of(name: str) -> set[str]:
    """The roles that a template needs.

    >>> sorted(roles_of("bert"))
    ['classify', 'separator']
    """
    return {word.split(":")[0] for template in TEMPLATES[name] for word in template.split()} - {"A", "B"}


def laid_out(template: str, name: str, tokens: Mapping[str, tuple[str, int]]) -> str:
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


def added(backend: Backend) -> dict[str, int]:
    """The roles that a tokenizer's own post-processor shows: what it lays before and after a single text."""
    if backend.post_processor is None:
        return {}
    part = json.loads(backend.post_processor.__getstate__())
    parts = part["processors"] if part["type"] == "Sequence" else [part]
    for part in parts:
        if part["type"] == "BertProcessing":
            return {"classify": part["cls"][1], "separator": part["sep"][1]}
        if part["type"] == "RobertaProcessing":
            return {"start": part["cls"][1], "end": part["sep"][1]}
        if part["type"] == "TemplateProcessing":
            names = [next(iter(item.values()))["id"] for item in part["single"] if "SpecialToken" in item]
            kinds = ["SpecialToken" in item for item in part["single"]]
            ids = [part["special_tokens"][name]["ids"][0] for name in names]
            roles = {}
            if kinds[0]:
                roles["start"] = ids[0]
            if kinds[-1]:
                roles["end"] = ids[-1]
            return roles
    return {}
