"""JSON schemas of types, and dataclasses as JSON values."""

import math
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from qkv.values.types import FieldInfo, Limits, OneOf, find_fields, is_union, strip_notes

SCHEMA_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null", None: "null"}
OPENAPI_PREFIX = "#/components/schemas/"


def json_schema(expected: Any, components: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON schema of a type.

    Dataclasses are added to `components`, and referred to by their names as in an OpenAPI document. Without
    `components`, the schema is complete: its dataclasses are in "$defs".

    >>> json_schema(list[int] | None)
    {'anyOf': [{'type': 'array', 'items': {'type': 'integer'}}, {'type': 'null'}]}
    """
    if components is not None:
        return _describe(expected, components, OPENAPI_PREFIX)
    definitions: dict[str, Any] = {}
    schema = _describe(expected, definitions, "#/$defs/")
    return {**schema, "$defs": definitions} if definitions else schema


def _describe(expected: Any, components: dict[str, Any], prefix: str) -> dict[str, Any]:
    expected, notes = strip_notes(expected)
    schema = _describe_bare(expected, components, prefix)
    for note in notes:
        if isinstance(note, Limits):
            schema = _add_limits(schema, note)
        elif isinstance(note, OneOf):
            schema = {**schema, "enum": ([""] if note.optional else []) + list(note.names)}
        elif isinstance(note, str):
            schema = {**schema, "description": note}
    return schema


def _describe_bare(expected: Any, components: dict[str, Any], prefix: str) -> dict[str, Any]:
    origin, arguments = get_origin(expected), get_args(expected)
    if expected is Any:
        return {}
    if is_union(expected):
        return {"anyOf": [_describe(member, components, prefix) for member in arguments]}
    if origin is Literal:
        types = {SCHEMA_TYPES[type(choice)] for choice in arguments}
        return {**({"type": types.pop()} if len(types) == 1 else {}), "enum": list(arguments)}
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [_describe(kind, components, prefix) for kind in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (list, tuple):
        return {"type": "array", "items": _describe(arguments[0], components, prefix)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _describe(arguments[1], components, prefix)}
    if not is_dataclass(expected):
        return {"type": SCHEMA_TYPES[expected]}
    name: str = expected.__name__  # type: ignore[union-attr]
    if name not in components:
        components[name] = {}  # a type may refer to itself
        components[name] = _describe_dataclass(expected, components, prefix)
    return {"$ref": f"{prefix}{name}"}


def _describe_dataclass(expected: Any, components: dict[str, Any], prefix: str) -> dict[str, Any]:
    shown = [field for field in find_fields(expected) if not field.is_hidden]
    return {
        "type": "object",
        "description": (expected.__doc__ or "").strip(),
        "properties": {field.key: _describe_field(field, components, prefix) for field in shown},
        "required": [field.key for field in shown if field.is_required and not field.omits_empty],
        "additionalProperties": False,
    }


def _describe_field(field: FieldInfo, components: dict[str, Any], prefix: str) -> dict[str, Any]:
    schema = _describe(field.type, components, prefix)
    if field.is_required:
        return schema
    schema = _allow_null(schema)
    default = to_json(field.default)
    return {**schema, "default": default} if default is not None and not is_dataclass(field.default) else schema


def _allow_null(schema: dict[str, Any]) -> dict[str, Any]:
    description = {key: schema[key] for key in ("description",) if key in schema}
    plain = {key: value for key, value in schema.items() if key not in description}
    alternatives = plain.pop("anyOf", None) or [plain]
    if {"type": "null"} not in alternatives and {} not in alternatives:
        alternatives = [*alternatives, {"type": "null"}]
    return {**description, "anyOf": alternatives}


def _add_limits(schema: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Add limits as keywords of JSON schema, in every alternative that they apply to."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_add_limits(member, limits) for member in schema["anyOf"]]}
    if schema.get("type") in (None, "boolean", "null"):
        return schema
    suffix = {"string": "Length", "array": "Items", "object": "Properties"}.get(schema["type"], "imum")
    keywords = {f"min{suffix}": limits.minimum, f"max{suffix}": limits.maximum, "exclusiveMaximum": limits.below}
    return {**schema, **{name: limit for name, limit in keywords.items() if limit is not None}}


def to_json(value: Any) -> Any:
    """Return values as JSON has them: dataclasses as dictionaries, and numbers that are not finite as None.

    >>> to_json({"a": (1, float("nan"))})
    {'a': [1, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        pairs = [(field, getattr(value, field.name)) for field in find_fields(type(value)) if not field.is_hidden]
        return {field.key: to_json(item) for field, item in pairs if not (field.omits_empty and _is_empty(item))}
    return value


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple | dict) and not value)
