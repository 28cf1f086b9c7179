"""Recipes as nested tables of plain values, as in TOML: convert to and from `Recipe`, apply overrides.

Unknown keys and values of the wrong type are errors. The message names the key and the expected value. It also names
the recipe file, if there is one, and the line if the key is found there. Fields for all stacks are keys of `[model]`.
Fields for one stack or for the head are keys of `[model.encoder]`, `[model.decoder]` and `[model.head]`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, get_type_hints

from qkv.blocks import HeadConfig, RotaryScaling, StackConfig
from qkv.errors import UsageError, shorten, suggest_name
from qkv.train.recipe.schema import DataSection, ModelSection, ObjectiveSection, Recipe, TokenizerSection, TrainSection
from qkv.train.recipe.values import coerce, format_value, parse_value
from qkv.values.old import describe_type, matches_type

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
DERIVED_HEAD_FIELDS = {"kind", "outputs", "labels", "tied", "next_sentence_classes"}
"""Fields of a head that follow from the data and from [model], so that a recipe cannot set them."""
HEAD_TYPES = {name: kind for name, kind in get_type_hints(HeadConfig).items() if name not in DERIVED_HEAD_FIELDS}
MODEL_TABLES = {**dict.fromkeys(STACKS, STACK_TYPES), "head": HEAD_TYPES}
MIX_TYPES = {"train": DataSection.__annotations__["train"], "weight": float, "format": str, "columns": dict[str, str]}


class RecipeText:
    """The text of a recipe file, to find the line of a key for error messages."""

    def __init__(self, where: str, text: str):
        self.where, self.lines = where, text.splitlines()

    def locate(self, *path: str) -> str:
        """Return `file:line: ` of a key, or `file: ` if a simple search does not find the line."""
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
    """Make a recipe from a table. Unknown keys and wrong types are errors."""
    sections: Table = {}
    for name, value in table.items():
        if name == "run":
            sections["run"] = _check_value(value, str, source, "run")
        elif name not in SECTIONS:
            hint = _hint(name, ["run", *SECTIONS])
            raise UsageError(f"{source.locate(name)}unknown section or key {shorten(repr(name))}; {hint}")
        elif not isinstance(value, dict):
            raise UsageError(f"{source.locate(name)}{name} is a section: write [{name}] and its keys below")
        elif name == "model":
            sections[name] = _read_model(value, source)
        else:
            sections[name] = _read_section(name, value, source)
    return Recipe(**sections)


def _key_types(section: str) -> dict[str, Any]:
    """Return the keys of a section as they are in a recipe file, with the types of their values."""
    hints = get_type_hints(SECTIONS[section])
    return {name.rstrip("_"): hint for name, hint in hints.items() if name != "overrides"}


def _hint(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """Return a hint for an unknown key: the section that it belongs in, or the most similar known name."""
    homes = [section for section in SECTIONS if name in _key_types(section)]
    return f"it belongs in [{homes[0]}]" if homes else suggest_name(name, known)


def _read_section(section: str, table: Table, source: RecipeText) -> Any:
    known = _key_types(section)
    values = _read_table(table, known, source, (section,), _hint)
    return SECTIONS[section](**{"from_" if name == "from" else name: value for name, value in values.items()})


def _read_model(table: Table, source: RecipeText) -> ModelSection:
    """Read [model]: its own keys, fields for all stacks, and tables for one stack or the head."""
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
    """Return the values of a table, converted to the types in `known`. Raise for other keys and for wrong types."""
    key = ".".join(path)
    if not isinstance(table, dict):
        raise UsageError(f"{source.locate(*path)}{key} must be a table of {', '.join(known)}: write [{key}]")
    values: Table = {}
    for name, value in table.items():
        here = (*path, name)
        if name not in known:
            shown = f"[{key}]" if path[0] != "data" or len(path) == 1 else key
            raise UsageError(f"{source.locate(*here)}unknown key {shorten(repr(name))} in {shown}; {hint(name, known)}")
        if path == ("model",) and name in MODEL_TABLES:
            values[name] = _read_table(value, MODEL_TABLES[name], source, here)
        elif path[0] == "model" and name == "rotary_scaling":
            values[name] = _read_table(value, get_type_hints(RotaryScaling), source, here)
        elif here == ("data", "mix") and isinstance(value, dict):
            values[name] = {one: _read_table(entry, MIX_TYPES, source, (*here, one)) for one, entry in value.items()}
        else:
            if name == "columns" and isinstance(value, dict):  # without a header, columns have numbers
                value = {field: str(column) if type(column) is int else column for field, column in value.items()}
            values[name] = _check_value(value, known[name], source, *here)
    return values


def _check_value(value: Any, expected: Any, source: RecipeText, *path: str) -> Any:
    """Return the value, converted to the type of its field. Raise an error if it has another type."""
    found = coerce(value, expected)
    if matches_type(found, expected):
        return found
    shown = shorten(format_value(value) if isinstance(value, str | int | float | list | dict) else str(value))
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
            shown = shorten(repr(override))
            raise UsageError(f"{shown} is not an override of a recipe: write key=value, such as train.lr=1e-3")
        here = table
        for part in path[:-1]:
            if not isinstance(here.get(part), dict):
                here[part] = {}
            here = here[part]
        here[path[-1]] = _merge(here.get(path[-1]), parse_value(text.strip(), _type_of_key(path)), path)
    return table


def _merge(old: Any, new: Any, path: Sequence[str]) -> Any:
    """Return the new value. A new table for a section, a stack or the head is merged into the old table."""
    is_section = len(path) == 1 and path[0] in SECTIONS
    is_model_table = len(path) == 2 and path[0] == "model" and path[1] in MODEL_TABLES
    if not ((is_section or is_model_table) and isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{name: _merge(old.get(name), value, [*path, name]) for name, value in new.items()}}


def _type_of_key(path: Sequence[str]) -> Any:
    """Return the type of a dotted key's value. It is `Any` for an unknown key, which is an error later."""
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
    """Return the recipe as a table of all fields, in the order of the sections."""
    table: Table = {"run": recipe.run}
    for section in SECTIONS:
        values = asdict(getattr(recipe, section))
        if section == "model":
            values |= values.pop("overrides")
        table[section] = {name.rstrip("_"): value for name, value in values.items()}
    return table
