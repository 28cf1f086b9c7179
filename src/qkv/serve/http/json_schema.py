"""The JSON schemas of dataclasses, for the OpenAPI document.

describe_schema(Point, {})       # {"$ref": "#/components/schemas/Point"}
"""

from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from qkv.serve.http.typed_json import Limits, find_hints, is_required

SCHEMA_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def describe_schema(expected: Any, components: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of a type. Dataclasses are added to `components`, and referred to by their names."""
    origin, arguments = get_origin(expected), get_args(expected)
    if origin is Annotated:
        schema = describe_schema(arguments[0], components)
        for note in arguments[1:]:
            schema = note.to_schema(schema) if isinstance(note, Limits) else {**schema, "description": note}
        return schema
    if expected is Any:
        return {}
    if origin in (Union, UnionType):
        return {"anyOf": [describe_schema(one, components) for one in arguments]}
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": describe_schema(arguments[0], components)}
    if origin is dict:
        return {"type": "object", "additionalProperties": describe_schema(arguments[1], components)}
    if not is_dataclass(expected):
        return {"type": SCHEMA_TYPES[expected]}
    name: str = expected.__name__  # type: ignore[union-attr]
    if name not in components:
        components[name] = {}  # a type may refer to itself
        components[name] = _describe_dataclass(expected, components)
    return {"$ref": f"#/components/schemas/{name}"}


def _describe_dataclass(expected: Any, components: dict[str, Any]) -> dict[str, Any]:
    hints = find_hints(expected)
    properties, required = {}, []
    for field in fields(expected):
        schema = describe_schema(hints[field.name], components)
        if is_required(field):
            required.append(field.name)
        else:
            schema = _allow_null(schema)
            if field.default is not MISSING and field.default is not None:
                schema["default"] = field.default
        properties[field.name] = schema
    described = {"type": "object", "description": (expected.__doc__ or "").strip(), "properties": properties}
    return {**described, "required": required, "additionalProperties": False}


def _allow_null(schema: dict[str, Any]) -> dict[str, Any]:
    description = {key: schema[key] for key in ("description",) if key in schema}
    plain = {key: value for key, value in schema.items() if key not in description}
    alternatives = plain.pop("anyOf", None) or [plain]
    if {"type": "null"} not in alternatives and {} not in alternatives:
        alternatives = [*alternatives, {"type": "null"}]
    return {**description, "anyOf": alternatives}
