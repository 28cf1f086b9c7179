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
DOCUMENT_VERSION = 1
"""The version of the documents that the scripts draw; `main.js` has the same number."""


def build_page(document: Mapping[str, Any]) -> str:
    """The page of a document of `qkv look` as a text."""
    return _build("look", "main.js", f"{document['title']} · qkv look", document)


def build_report_page(document: Mapping[str, Any]) -> str:
    """The page of a report of `qkv report` as a text."""
    return _build("report", "report.js", f"{document['run']} · qkv report", document)


def _build(name: str, entry: str, title: str, document: Mapping[str, Any]) -> str:
    """A page whose element `name` is filled by the script `entry`."""
    style, script = read_static("style.css"), bundle_scripts(entry)
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:"
    policy += "; base-uri 'none'; form-action 'none'"
    data = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<div id="{name}"><noscript><p>This page draws its pictures with JavaScript. Switch it on to see them.</p>'
        "</noscript></div>\n"
        f'<script type="application/json" id="{name}-data">{data}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


@cache
def bundle_scripts(entry: str = "main.js") -> str:
    """A script and the files that it imports as one script: each file becomes a function that returns its exports.

    This needs imports of the form `import {names} from "./file.js";`, and exports of the form `export function` or
    `export const`.
    """
    parts = ["", "const modules = {};"]
    for name in _in_order(entry):
        code = read_static(name)
        exported = ", ".join(found[1] for found in EXPORT.findall(code))
        code = EXPORT.sub(r"\1 \2", IMPORT.sub(r'const \1 = modules["\2"];', code))
        parts.append(f'modules["{name}"] = (() => {{\n{code}return {{{exported}}};\n}})();')
    return "\n".join(parts) + "\n"


def read_static(name: str) -> str:
    """The text of a file of the front end."""
    return files("qkv.page").joinpath("static", name).read_text(encoding="utf-8")


def _in_order(entry: str) -> list[str]:
    done: list[str] = []

    def visit(name: str) -> Iterator[str]:
        if name not in done:
            for _, imported in IMPORT.findall(read_static(name)):
                yield from visit(imported)
            done.append(name)
            yield name

    return list(visit(entry))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
