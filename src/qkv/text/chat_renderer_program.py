"""Render chat templates in a sandbox. This file is a program of its own, run by `qkv.text.chat_renderer`.

A template comes with a model, so it is not trusted. The sandbox of jinja2 keeps it from Python's objects. This process
limits its time and memory: a hostile template cannot slow down or crash any other process.

A line of stdin is {"template", "chats", "max_characters", "max_seconds", "max_bytes"} as JSON, where `chats` has the
variables of each chat; stdout gets a line with a list of {"text"} or {"error"}, one for each chat.
"""

import json
import sys
import time
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any


def limit_process(max_seconds: int, max_bytes: int) -> None:
    """Limit the CPU time from now on and the memory of this process, on systems that can."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + max_seconds, hard_limit))
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))


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


def render(template: str, variables: dict[str, Any], max_characters: int) -> str:
    """Render a template, up to a limit of characters."""
    parts, num_characters = [], 0
    for part in compile_template(template).generate(**variables):
        num_characters += len(part)
        if num_characters > max_characters:
            raise ValueError(f"its output has more than {max_characters:,} characters")
        parts.append(part)
    return "".join(parts)


def main() -> None:
    """Read requests from stdin, and write their answers to stdout."""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answers = []
        for variables in request["chats"]:
            limit_process(request["max_seconds"], request["max_bytes"])
            try:
                answers.append({"text": render(request["template"], variables, request["max_characters"])})
            except Exception as error:  # a template can raise anything
                answers.append({"error": f"{type(error).__name__}: {str(error)[:500]}"})
        sys.stdout.buffer.write(json.dumps(answers).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
