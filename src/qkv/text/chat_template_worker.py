"""Render chat templates. `qkv.sandbox` runs this file in a process with limits on time and memory.

A template comes with a model, so it is not trusted. The sandbox of jinja2 keeps it from Python's objects.
"""

import json
from datetime import datetime
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=8)
def compile_template(template: str) -> Any:
    """A jinja2 template with the settings and functions that chat templates expect."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment.from_string(template)


def answer(shared: dict[str, Any], variables: dict[str, Any]) -> str:
    """Render `shared["template"]` with the variables of a chat, up to `shared["max_characters"]`."""
    parts, num_characters, max_characters = [], 0, shared["max_characters"]
    for part in compile_template(shared["template"]).generate(**variables):
        num_characters += len(part)
        if num_characters > max_characters:
            raise ValueError(f"its output has more than {max_characters:,} characters")
        parts.append(part)
    return "".join(parts)
