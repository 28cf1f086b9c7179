"""How much longer the normaliser or the decoder of a tokenizer.json can make a text.

Thirty steps that each replace "a" by "aa" make a text 2^30 times as long, and the native library would end the process.
"""

import re
from typing import Any

from qkv.errors import QkvError

MAX_GROWTH = 100
"""The largest factor. Real tokenizers replace a space by one other character."""


def check_growth(tokenizer: dict[str, Any], name: str) -> None:
    """Raise an error if the steps of a tokenizer.json that replace text can make it too long. `name` is the file."""
    for part in ("normalizer", "decoder"):
        if (growth := max_growth(list_replacements(tokenizer.get(part)))) > MAX_GROWTH:
            raise QkvError(
                f"{name}: the steps of its {part} that replace text can make a text {growth:,} times as long, and "
                f"qkv allows a factor of {MAX_GROWTH}; use the tokenizer.json of the original model"
            )


def list_replacements(step: Any) -> list[tuple[str | None, str, int]]:
    """List the steps that replace text: the replaced string, its replacement, and the growth of a match.

    The replaced string is None if a regular expression finds it.
    """
    if not isinstance(step, dict):
        return []
    inside = step.get("normalizers") or step.get("decoders") or []
    if step.get("type") == "Sequence" and isinstance(inside, list):
        return [found for inner in inside for found in list_replacements(inner)]
    content, pattern = step.get("content"), step.get("pattern")
    if step.get("type") != "Replace" or not isinstance(content, str) or not isinstance(pattern, dict):
        return []
    text = pattern.get("String")
    if isinstance(text, str) and text:
        return [(text, content, -(-len(content) // len(text)) or 1)]
    return [(None, content, max(1, len(content) + matches_nothing(pattern.get("Regex", ""))))]


def matches_nothing(pattern: Any) -> bool:
    """Whether a regular expression can match the empty string, which keeps the text beside the replacement."""
    try:
        return re.match(pattern, "") is not None
    except (re.error, TypeError, RecursionError, OverflowError):
        return True


def max_growth(replacements: list[tuple[str | None, str, int]]) -> int:
    """Return the growth of the longest chain of replacements, each of which matches characters of the previous
    replacement.

    >>> max_growth([("a", "bb", 2), ("b", "cc", 2), ("x", "yyy", 3)])
    4
    """
    growths: list[int] = []  # the growth of the chains that begin at each replacement, from the last to the first
    for number, (_, content, growth) in reversed(list(enumerate(replacements))):
        later = [
            growths[len(replacements) - 1 - other]
            for other in range(number + 1, len(replacements))
            if (text := replacements[other][0]) is None or set(text) & set(content)
        ]
        growths.append(min(growth * max(later, default=1), 10**9))
    return max(growths, default=1)
