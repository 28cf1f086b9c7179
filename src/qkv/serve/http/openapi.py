"""The OpenAPI document of the endpoints, and a page that shows it without any script or network."""

import json
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from typing import Any

from qkv import __version__
from qkv.serve.http.api_error import STATUSES
from qkv.serve.http.endpoint import Endpoint
from qkv.values import json_schema


@dataclass(frozen=True)
class ErrorBody:
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


@dataclass(frozen=True)
class ErrorAnswer:
    """The body of every response whose status is 400 or above."""

    error: ErrorBody


def build_openapi(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The OpenAPI document."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = describe_endpoint(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "qkv",
            "version": __version__,
            "description": "Transformer models over HTTP. Routes that begin with /v1 follow OpenAI's API.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def describe_endpoint(endpoint: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    """The operation object of an endpoint."""
    content: dict[str, Any] = {endpoint.media_type: {"schema": {"type": "string"}}}
    if endpoint.answer is not None:
        content = {"application/json": {"schema": json_schema(endpoint.answer, schemas)}}
    if endpoint.has_stream:
        content["text/event-stream"] = {}
    error = {"application/json": {"schema": json_schema(ErrorAnswer, schemas)}}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    for status in endpoint.statuses:
        responses[str(status)] = {"description": STATUSES[status][1], "content": error}
        if status in (429, 503):
            responses[str(status)]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    described: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()}{endpoint.path}").strip("_"),
        "responses": responses,
    }
    names = re.findall(r"{(\w+)}", endpoint.path)
    if names:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if endpoint.body is not None:
        schema = json_schema(endpoint.body, schemas)
        media_type = "multipart/form-data" if endpoint.is_form else "application/json"
        described["requestBody"] = {"required": True, "content": {media_type: {"schema": schema}}}
    if endpoint.needs_key:
        described["security"] = [{}, {"key": []}]
    return described


STYLE = """:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;
padding:0 1rem}code,pre{font-family:ui-monospace,monospace}summary{cursor:pointer;padding:.3rem 0}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0;
border-bottom:1px solid #8884}b.method{display:inline-block;width:4rem}.wide{overflow-x:auto}"""
STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
DOCS_POLICY = (
    f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def render_docs(document: dict[str, Any]) -> str:
    """The document as an HTML page."""
    operations = [
        f"<details><summary><b class=method>{method.upper()}</b> <code>{escape(path)}</code> — "
        f"{escape(operation['summary'])}</summary>{_render_operation(operation)}</details>"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [
        f"<details id='{escape(name)}'><summary><code>{escape(name)}</code> — {escape(schema['description'])}</summary>"
        f"{_render_fields(schema)}</details>"
        for name, schema in sorted(document["components"]["schemas"].items())
    ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>qkv: HTTP API</title><style>{STYLE}</style><main><h1>qkv {escape(document['info']['version'])}: "
        f"HTTP API</h1><p>{escape(document['info']['description'])} The machine-readable form of this page is "
        f"<a href='/openapi.json'>openapi.json</a>.</p><h2>Paths</h2>{''.join(operations)}<h2>Types</h2>"
        f"{''.join(schemas)}</main></html>"
    )


def _render_operation(operation: dict[str, Any]) -> str:
    rows = []
    if "requestBody" in operation:
        rows.append(("Body", _render_type(next(iter(operation["requestBody"]["content"].values()))["schema"])))
    for status, response in operation["responses"].items():
        content = response["content"].items()
        answers = [_render_type(one["schema"]) if one else f"<code>{kind}</code>" for kind, one in content]
        rows.append((escape(status), f"{escape(response['description'])} {' or '.join(answers)}"))
    return _render_table(rows)


def _render_fields(schema: dict[str, Any]) -> str:
    rows = []
    for name, field in schema["properties"].items():
        is_required = " (required)" if name in schema["required"] else ""
        default = f" Default: <code>{escape(repr(field['default']))}</code>." if "default" in field else ""
        about = f"{escape(field.get('description', ''))}{default}"
        rows.append((f"<code>{escape(name)}</code>{is_required}", f"{_render_type(field)}<br>{about}"))
    return _render_table(rows)


def _render_type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#{name}'><code>{name}</code></a>"
    if "anyOf" in schema:
        return " or ".join(map(_render_type, schema["anyOf"]))
    if "enum" in schema:
        names = [value if isinstance(value, str) else json.dumps(value) for value in schema["enum"]]
        return " or ".join(f"<code>{escape(name)}</code>" for name in names)
    if schema.get("type") == "array":
        return f"list of {_render_type(schema['items'])}"
    limits = [f"{name} {schema[name]:,}" for name in schema if name.startswith(("min", "max"))]
    return escape(schema.get("type", "any value")) + (f" ({', '.join(limits)})" if limits else "")


def _render_table(rows: Sequence[tuple[str, str]]) -> str:
    return "<div class=wide><table>" + "".join(f"<tr><th>{a}<td>{b}" for a, b in rows) + "</table></div>"
