"""A recipe as a table of plain values, as TOML has it: read into a `Recipe`, made from one, changed key by key.

Unknown keys and values of the wrong type are errors that name the file, the line and the key, and what was expected.
The fields of a stack are keys of `[model]`, those of one stack or of the head are in `[model.encoder]`,
`[model.decoder]` and `[model.head]`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, get_type_hints

from qkv.blocks import HeadConfig, RotaryScaling, StackConfig
from qkv.errors import UsageError, suggest_name
from qkv.renamed import describe_old_names, find_old_names
from qkv.train.recipe.schema import DataSection, ModelSection, ObjectiveSection, Recipe, TokenizerSection, TrainSection
from qkv.train.recipe.values import coerce, format_value, parse_value
from qkv.values import describe_type, matches_type

Table = dict[str, Any]

SECTIONS = {
    "data": DataSection,
    "tokenizer": TokenizerSection,
    "model": ModelSection,
    "objective": ObjectiveSection,
    "train": TrainSection,
}
STACKS = ("encoder", "decoder")
STACK_TYPES = get_type_hints(StackConfig)
DERIVED_HEAD_FIELDS = {"kind", "outputs", "labels", "tied", "sentence_outputs"}
"""Fields of a head that the data and [model] decide."""
HEAD_TYPES = {name: kind for name, kind in get_type_hints(HeadConfig).items() if name not in DERIVED_HEAD_FIELDS}
MODEL_TABLES = {**dict.fromkeys(STACKS, STACK_TYPES), "head": HEAD_TYPES}
MIX_TYPES = {"train": DataSection.__annotations__["train"], "weight": float, "format": str, "columns": dict[str, str]}


class RecipeText:
    """The text that a table was read from, to say in error messages where a key is."""

    def __init__(self, where: str, text: str):
        self.where, self.lines = where, text.splitlines()

    def locate(self, *path: str) -> str:
        """`file:line: ` of a key, or `file: ` if a simple search does not find its line."""
        if not self.where:
            return ""
        *tables, key = path
        section, wanted = "", ".".join(tables)
        for number, line in enumerate(self.lines, start=1):
            stripped = line.strip()
            if stripped.startswith("["):
                section = stripped.split("]")[0].strip("[ ")
                if section == ".".join(path):
                    return f"{self.where}:{number}: "
            elif section == wanted and stripped.split("=")[0].strip().strip("\"'") == key:
                return f"{self.where}:{number}: "
        return f"{self.where}: "


def recipe_from_table(table: Table, source: RecipeText) -> Recipe:
    """The recipe that a table from TOML describes; unknown keys and wrong types are errors."""
    if old := find_old_names(table, "recipe"):
        raise UsageError(describe_old_names(source.where or "the command line", old))
    sections: Table = {}
    for name, value in table.items():
        if name == "run":
            sections["run"] = _check_value(value, str, source, "run")
        elif name not in SECTIONS:
            raise UsageError(f"{source.locate(name)}unknown section or key {name!r}; {_hint(name, ['run', *SECTIONS])}")
        elif not isinstance(value, dict):
            raise UsageError(f"{source.locate(name)}{name} is a section: write [{name}] and its keys below")
        elif name == "model":
            sections[name] = _read_model(value, source)
        else:
            sections[name] = _read_section(name, value, source)
    return Recipe(**sections)


def _key_types(section: str) -> dict[str, Any]:
    """The keys of a section as a recipe writes them, with the types of their values."""
    hints = get_type_hints(SECTIONS[section])
    return {name.rstrip("_"): hint for name, hint in hints.items() if name != "overrides"}


def _hint(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """The section that a key belongs in, or the nearest known name."""
    homes = [section for section in SECTIONS if name in _key_types(section)]
    return f"it belongs in [{homes[0]}]" if homes else suggest_name(name, known)


def _read_section(section: str, table: Table, source: RecipeText) -> Any:
    known = _key_types(section)
    values = _read_table(table, known, source, (section,), _hint)
    return SECTIONS[section](**{"from_" if name == "from" else name: value for name, value in values.items()})


def _read_model(table: Table, source: RecipeText) -> ModelSection:
    """[model]: its own keys, fields of every stack, and tables for one stack or the head."""
    own, overrides = _key_types("model"), set(STACK_TYPES) | set(MODEL_TABLES)
    values = _read_table(table, {**STACK_TYPES, **dict.fromkeys(MODEL_TABLES), **own}, source, ("model",), _hint)
    section: ModelSection = _read_section("model", {k: v for k, v in table.items() if k in own}, source)
    return replace(section, overrides={k: v for k, v in values.items() if k in overrides - set(own)})


def _read_table(
    table: Any,
    known: Mapping[str, Any],
    source: RecipeText,
    path: tuple[str, ...],
    hint: Callable[[str, Mapping[str, Any]], str] = suggest_name,
) -> Table:
    """The values of a table, whose keys must be among the `known` ones and whose values must have their types."""
    key = ".".join(path)
    if not isinstance(table, dict):
        raise UsageError(f"{source.locate(*path)}{key} must be a table of {', '.join(known)}: write [{key}]")
    values: Table = {}
    for name, value in table.items():
        here = (*path, name)
        if name not in known:
            shown = f"[{key}]" if path[0] != "data" or len(path) == 1 else key
            raise UsageError(f"{source.locate(*here)}unknown key {name!r} in {shown}; {hint(name, known)}")
        if path == ("model",) and name in MODEL_TABLES:
            values[name] = _read_table(value, MODEL_TABLES[name], source, here)
        elif path[0] == "model" and name == "rotary_scaling":
            values[name] = _read_table(value, get_type_hints(RotaryScaling), source, here)
        elif here == ("data", "mix") and isinstance(value, dict):
            values[name] = {one: _read_table(entry, MIX_TYPES, source, (*here, one)) for one, entry in value.items()}
        else:
            if name == "columns" and isinstance(value, dict):  # by number, in a table without a header
                value = {field: str(column) if type(column) is int else column for field, column in value.items()}
            values[name] = _check_value(value, known[name], source, *here)
    return values


def _check_value(value: Any, expected: Any, source: RecipeText, *path: str) -> Any:
    """The value in the form of its field, or an error that says what was expected."""
    found = coerce(value, expected)
    if matches_type(found, expected):
        return found
    shown = format_value(value) if isinstance(value, str | int | float | list | dict) else str(value)
    choices = [choice for choice in getattr(expected, "__args__", ()) if isinstance(choice, str)]
    hint = f"; {suggest_name(value, choices)}" if isinstance(value, str) and choices else ""
    hint = hint if "did you mean" in hint else ""
    raise UsageError(f"{source.locate(*path)}{'.'.join(path)} = {shown} must be {describe_type(expected)}{hint}")


# -------------------------------------------------------------------- overrides from a command line


def apply_overrides(table: Table, overrides: Sequence[str]) -> Table:
    """Apply `key=value` overrides to a recipe's table.

    >>> apply_overrides({"train": {"lr": 0.1, "steps": 9}}, ["train.lr=0.2", "train={steps=3}", "run=runs/a"])
    {'train': {'lr': 0.2, 'steps': 3}, 'run': 'runs/a'}
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        path = [part.strip() for part in key.split(".")]
        if not equals or not all(path):
            raise UsageError(f"{override!r} is not an override of a recipe: write key=value, such as train.lr=1e-3")
        here = table
        for part in path[:-1]:
            if not isinstance(here.get(part), dict):
                here[part] = {}
            here = here[part]
        here[path[-1]] = _merge(here.get(path[-1]), parse_value(text.strip(), _type_of_key(path)), path)
    return table


def _merge(old: Any, new: Any, path: Sequence[str]) -> Any:
    """The new value; but a table for a section, a stack or the head changes only the keys that it has."""
    is_section = len(path) == 1 and path[0] in SECTIONS
    is_model_table = len(path) == 2 and path[0] == "model" and path[1] in MODEL_TABLES
    if not ((is_section or is_model_table) and isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{name: _merge(old.get(name), value, [*path, name]) for name, value in new.items()}}


def _type_of_key(path: Sequence[str]) -> Any:
    """The type of a dotted key's value; `Any` for an unknown key, which is refused later."""
    match path:
        case ["run"]:
            return str
        case ["model", name] if name in STACK_TYPES:
            return STACK_TYPES[name]
        case ["model", table, name] if table in MODEL_TABLES:
            return MODEL_TABLES[table].get(name, Any)
        case ["data", "mix", _, name] if name in MIX_TYPES:
            return MIX_TYPES[name]
        case ["data", "train" | "valid" | "test" | "columns", _]:
            return str
        case [section, name] if section in SECTIONS:
            return _key_types(section).get(name, Any)
    return Any


# -------------------------------------------------------------------- a recipe as a table


def to_table(recipe: Recipe) -> Table:
    """The recipe as plain nested values: every field, in the order of the sections."""
    table: Table = {"run": recipe.run}
    for section in SECTIONS:
        values = asdict(getattr(recipe, section))
        if section == "model":
            values |= values.pop("overrides")
        table[section] = {name.rstrip("_"): value for name, value in values.items()}
    return table
