"""Bounds of constraints, checked before a native library reads them."""

import re
from collections.abc import Iterator
from typing import Any

from qkv.errors import UsageError, shorten

MAX_PARTS = 500
"""The largest number of rules of a grammar, and of references and combined schemas of a JSON schema."""
MAX_REPETITIONS = 20_000
"""The largest size of a regular expression in which repetitions are written out: `(ab{3}){2}` has the size 8."""
PATTERN_PART = re.compile(
    r"\\[pPxuU]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]"  # characters and classes of characters
    r'|"(?:\\.|[^"\\])*"'  # a string of a grammar
    r"|(?P<open>\()|(?P<close>\))|\{\s*(?P<low>\d+)\s*(?P<comma>,?)\s*(?P<high>\d*)\s*\}|.",
    re.DOTALL,
)
RULE = re.compile(r"^[ \t]*[?!]?\w[\w.-]*[^:\n\"/]*:", re.MULTILINE)


def check_repetitions(name: str, pattern: str) -> None:
    """Raise an error if a pattern is too large after its repetitions are written out."""
    sizes, last = [0], 0  # the lengths of each open group, and of the last part
    for part in PATTERN_PART.finditer(pattern):
        if part["open"]:
            sizes.append(0)
            last = 0
        elif part["close"]:
            last = sizes.pop() if len(sizes) > 1 else 0
            sizes[-1] += last
        elif part["low"]:
            count = int((part["high"] or part["low"])[:9])
            sizes[-1] += last * (count - 1)
            last *= count
        elif part[0] != "|":
            last = 1
            sizes[-1] += 1
        if sizes[-1] > max(MAX_REPETITIONS, len(pattern)):
            raise UsageError(
                f"{shorten(name)}: its repetitions, such as {{100}} inside a group that is repeated, make it longer "
                f"than {MAX_REPETITIONS:,} characters; use smaller counts, or * and +"
            )


def check_grammar(lark_grammar: str) -> None:
    """Raise an error if a grammar has too many rules or repetitions."""
    _check_parts("the grammar", "rules", len(RULE.findall(lark_grammar)))
    check_repetitions("the grammar", lark_grammar)


def check_schema(schema: Any) -> None:
    """Raise an error if a JSON schema has too many references, or a pattern with too many repetitions."""
    num_references = num_combined = 0
    for part in _walk(schema):
        num_references += "$ref" in part
        for key in ("allOf", "anyOf", "oneOf"):
            num_combined += len(part[key]) if isinstance(part.get(key), list) else 0
        for pattern in (part.get("pattern"), *_keys(part.get("patternProperties"))):
            if isinstance(pattern, str):
                check_repetitions(f"the pattern {pattern} of the JSON schema", pattern)
    _check_parts("the JSON schema", "references ($ref)", num_references)
    _check_parts("the JSON schema", "schemas in allOf, anyOf and oneOf", num_combined)


def _check_parts(name: str, parts: str, count: int) -> None:
    if count > MAX_PARTS:
        raise UsageError(f"{name} has {count:,} {parts}, and at most {MAX_PARTS} are allowed; make it smaller")


def _keys(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _walk(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a JSON value."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
