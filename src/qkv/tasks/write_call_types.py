"""Write `call_types.py`, the types of the calls of the built-in tasks, from the table of tasks.

Type checkers and editors cannot read the table, so the options and results of `m.translate` and the others are written
out. `python docs/task_pages.py` writes the file; a test checks that it is current.
"""

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from qkv.tasks.table import TASKS
from qkv.tasks.task import Task
from qkv.values import find_fields

TEXT_TASKS = ("translate", "summarise", "complete", "fill", "classify", "tag", "answer")
"""The tasks whose inputs are texts; pictures have many types."""
HEADER = '''"""The types of the calls of a model, such as `m.translate`: one result for a text, a list for a list.

Written by `python docs/task_pages.py`; do not edit.
"""

from collections.abc import Iterator
from typing import Any, Literal, Protocol, overload

from qkv.progress import OnProgress
'''


def render_call_types() -> str:
    """The text of the file."""
    tasks = [TASKS[name] for name in TEXT_TASKS]
    results = sorted({(task.results[0].__module__, task.results[0].__name__) for task in tasks})
    imports = "".join(f"from {module} import {name}\n" for module, name in results)
    return HEADER + imports + "".join(f"\n\n{_render_call(task)}" for task in tasks)


def call_type_name(task: str) -> str:
    """The name of the type of a call.

    >>> call_type_name("translate")
    'TranslateCall'
    """
    return f"{task.capitalize()}Call"


def _render_call(task: Task) -> str:
    """The type of the calls of a task: an overload for each kind of input."""
    result, names = task.results[0].__name__, task.parameters
    word = "str | tuple[str, ...]"
    if len(names) == 1:
        (name,) = names
        several = "list[str] | list[tuple[str, str]]"
        if task.name == "tag":  # whose texts can be words
            several = "list[str] | list[tuple[str, ...]] | list[list[str]]"
        inputs = [
            ({name: word}, result),
            ({name: several}, f"list[{result}]"),
            ({name: f"Iterator[str] | Iterator[{word}]"}, f"Iterator[{result}]"),
            ({name: "Any"}, "Any"),
        ]
    else:
        first, second = names
        inputs = [
            ({first: "str", second: "str"}, result),
            ({first: "str", second: "list[str]"}, f"list[{result}]"),
            ({first: "list[str]", second: "str | list[str]"}, f"list[{result}]"),
            ({first: "list[tuple[str, str]]"}, f"list[{result}]"),
            ({first: "Any", second: "Any"}, "Any"),
        ]
    calls = "".join(_render_overload(task, given, returned) for given, returned in inputs)
    docstring = f'"""`m.{task.name}`: a model that {task.description}."""'
    return f"class {call_type_name(task.name)}(Protocol):\n    {docstring}\n{calls}"


def _render_overload(task: Task, given: dict[str, str], returned: str) -> str:
    hints = get_type_hints(task.Options)
    options = {one.key: (hints[one.key], one.default) for one in find_fields(task.Options) if not one.is_hidden}
    lines = ["self", *(f"{name}: {kind}" for name, kind in given.items()), "*"]
    lines += [f"{name}: {format_type(kind)} = {_quoted(default)}" for name, (kind, default) in options.items()]
    lines += [f"batch_size: int = {task.batch_size}", "progress: OnProgress | None = None"]
    listed = "".join(f"        {line},\n" for line in lines)
    return f"\n    @overload\n    def __call__(\n{listed}    ) -> {returned}: ...\n"


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def format_type(kind: Any) -> str:
    """A type as it is written.

    >>> format_type(list[str] | None), format_type(Literal["split", "error"]), format_type(int)
    ('list[str] | None', 'Literal["split", "error"]', 'int')
    """
    arguments: Sequence[Any] = get_args(kind)
    if kind is NoneType:
        return "None"
    if get_origin(kind) is Literal:
        return f"Literal[{', '.join(map(_quoted, arguments))}]"
    if get_origin(kind) in (UnionType, Union):
        return " | ".join(map(format_type, arguments))
    if arguments:
        return f"{get_origin(kind).__name__}[{', '.join(map(format_type, arguments))}]"
    return str(kind.__name__)
