"""The reference of a task in Markdown, made from its declaration: inputs, options, results, metrics and baselines."""

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, is_dataclass
from inspect import cleandoc
from typing import get_args

from qkv.tasks.task import Task
from qkv.values import JSON, FieldInfo, describe_type, find_fields
from qkv.values.types import show_json, strip_notes

BEGIN, END = "<!-- reference: written by docs/task_pages.py -->", "<!-- end of the reference -->"


def render_page(task: Task) -> str:
    """A page about a task: what it does, the command that starts a recipe, and the reference."""
    lines = [f"# {task.name.capitalize()}", "", f"A model that {task.description}.", ""]
    return "\n".join([*lines, insert_reference(f"{BEGIN}\n{END}", task)]) + "\n"


def insert_reference(page: str, task: Task) -> str:
    """The page with the reference of a task between its two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n\n{render_reference(task)}\n\n{end}{after}" if end else page


def render_reference(task: Task) -> str:
    """How a task is called, and tables of its options, results, metrics and baselines.

    >>> from qkv.tasks.table import TASKS
    >>> print(render_reference(TASKS["tag"]).splitlines()[2])
    | Python | `m.tag(texts)` |
    """
    options = [one for one in find_fields(task.Options) if not one.is_hidden]
    baselines = dict.fromkeys(name for scorer in task.scorers for name in scorer.baselines)
    required = set(task.spec.required_fields)
    fields = dict.fromkeys([*task.inputs, task.target])
    calls = [
        ("Python", f"`m.{task.name}({', '.join(task.parameters)})`"),
        ("command line", f"`qkv run MODEL`: {describe_line(task)}"),
        ("HTTP", f"`POST /{task.name}`"),
        *([("recipe", f"`qkv init {task.starter_name or task.name} FILE`")] if task.starter else []),
        ("fields of a record", ", ".join(f"`{one}`{'' if one in required else ' (optional)'}" for one in fields)),
        ("metrics", ", ".join(f"`{name}`" for name in task.list_metrics())),
        *([("baselines", "; ".join(baselines))] if baselines else []),
    ]
    tables = [table(("", "call"), calls)]
    if options:
        rows = [(f"`{one.key}`", show_type(one), show_default(one), one.description) for one in options]
        tables.append(table(("option", "type", "default", "meaning"), rows))
    for result in task.results:
        meaning = cleandoc(result.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        tables.append(f"`{result.__name__}`: {meaning}")
        tables.append(table(("field", "type", "meaning"), list(result_rows(result))))
    return "\n\n".join(tables)


def describe_line(task: Task) -> str:
    """The format of an input line."""
    if task.needs_all_inputs:
        return f"a line has the {' and the '.join(task.inputs)}, with a tab between them"
    return "a line is a text, or two texts with a tab between them" if task.accepts_pairs else "a line is a text"


def show_type(one: FieldInfo) -> str:
    """The type of a field, with its limits."""
    shown = (
        describe_type(one.type, JSON).removeprefix("an ").removeprefix("a ").replace(", each an object", " of objects")
    )
    if one.limits is None:
        return shown
    limits = f"{one.limits.minimum:,} to {one.limits.maximum:,}"
    return f"{shown}, {limits}{' characters' if shown == 'string' else ''}"


def show_default(option: FieldInfo) -> str:
    """The default value of an option."""
    return "" if option.default is MISSING else f"`{show_json(option.default)}`"


def result_rows(result: type, path: str = "") -> Iterator[tuple[str, ...]]:
    """A row for each field of a result, and for each field of the objects in its lists."""
    for one in find_fields(result):
        if one.is_hidden:
            continue
        bare = strip_notes(one.type)[0]
        yield f"`{path}{one.key}`", show_type(one), one.description
        for item in get_args(bare):
            if is_dataclass(item) and item is not result:
                yield from result_rows(item, f"{path}{one.key}[].")  # type: ignore[arg-type]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
