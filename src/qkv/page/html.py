"""One HTML page that needs no network: the style, the scripts and a document, inlined.

The content security policy allows this script and this style only, by their hashes, and no connection to anywhere. All
texts of the document are inside one JSON element, where "<" is escaped, and the scripts insert them with `textContent`.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([\w.]+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?function|const) (\w+)", re.MULTILINE)
ENTRY = "main.js"
DOCUMENT_VERSION = 1
"""The version of the documents that the scripts draw; `main.js` has the same number."""


def build_page(document: Mapping[str, Any]) -> str:
    """The page of a document as a text."""
    style, script = read_static("style.css"), bundle_scripts()
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:"
    policy += "; base-uri 'none'; form-action 'none'"
    data = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    title = escape(f"{document['title']} · qkv look")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<div id="look"><noscript><p>This page draws its pictures with JavaScript. Switch it on to see them.</p>'
        "</noscript></div>\n"
        f'<script type="application/json" id="look-data">{data}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


@cache
def bundle_scripts() -> str:
    """All scripts as one: each file becomes a function that returns its exports, after the files that it imports.

    This needs imports of the form `import {names} from "./file.js";`, and exports of the form `export function` or
    `export const`.
    """
    parts = ["", "const modules = {};"]
    for name in _in_order():
        code = read_static(name)
        exported = ", ".join(found[1] for found in EXPORT.findall(code))
        code = EXPORT.sub(r"\1 \2", IMPORT.sub(r'const \1 = modules["\2"];', code))
        parts.append(f'modules["{name}"] = (() => {{\n{code}return {{{exported}}};\n}})();')
    return "\n".join(parts) + "\n"


def read_static(name: str) -> str:
    """The text of a file of the front end."""
    return files("qkv.page").joinpath("static", name).read_text(encoding="utf-8")


def _in_order() -> list[str]:
    done: list[str] = []

    def visit(name: str) -> Iterator[str]:
        if name not in done:
            for _, imported in IMPORT.findall(read_static(name)):
                yield from visit(imported)
            done.append(name)
            yield name

    return list(visit(ENTRY))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
