"""A recipe as a table of plain values, as TOML has it: made from one, turned into one, changed key by key.

What is misspelt or of the wrong kind is an error that names the file, the line and the key, and what was expected. The
fields of a stack and of a head may stand in `[model]`, since that is where one looks for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
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
DERIVED_HEAD_FIELDS = {
    "kind",
    "outputs",
    "labels",
    "tied",
    "sentence_outputs",
}  # of a head: the data and [model] decide


class RecipeText:
    """Where a table came from, for messages: the file, and the line that a key stands on."""

    def __init__(self, where: str, text: str):
        self.where, self.lines = where, text.splitlines()

    def locate(self, *path: str) -> str:
        """`file:line: ` of a key, as far as it is easily found."""
        if not self.where:
            return ""
        *tables, key = path
        section, wanted = "", ".".join(tables)
        for number, line in enumerate(self.lines, start=1):
            bare = line.strip()
            if bare.startswith("["):
                section = bare.split("]")[0].strip("[ ")
                if section == ".".join(path):
                    return f"{self.where}:{number}: "
            elif section == wanted and bare.split("=")[0].strip().strip("\"'") == key:
                return f"{self.where}:{number}: "
        return f"{self.where}: "


def recipe_from_table(table: Table, source: RecipeText) -> Recipe:
    """A recipe from what TOML gave; unknown names and wrong kinds are errors."""
    if old := find_old_names(table, "recipe"):
        raise UsageError(describe_old_names(source.where or "the command line", old))
    parts: Table = {}
    for name, value in table.items():
        if name == "run":
            parts["run"] = _check_value(value, str, source, "run")
        elif name not in SECTIONS:
            home = [section for section, kind in SECTIONS.items() if name in _key_types(kind)]
            hint = f"it belongs in [{home[0]}]" if len(home) == 1 else suggest_name(name, ["run", *SECTIONS])
            raise UsageError(f"{source.locate(name)}unknown section or key {name!r}; {hint}")
        elif not isinstance(value, dict):
            raise UsageError(f"{source.locate(name)}{name} is a section: write [{name}] and its keys below")
        elif name == "model":
            parts[name] = _model(value, source)
        else:
            parts[name] = _section(SECTIONS[name], name, value, source)
    return Recipe(**parts)


def _key_types(kind: type) -> dict[str, Any]:
    """The keys of a section as a recipe writes them, each with the kind of its value."""
    return {name.rstrip("_"): hint for name, hint in get_type_hints(kind).items() if name != "overrides"}


def _section(kind: type, section: str, table: Table, source: RecipeText) -> Any:
    known = _key_types(kind)
    values = {}
    for name, value in table.items():
        if name not in known:
            raise UsageError(
                f"{source.locate(section, name)}unknown key {name!r} in [{section}]; {_hint_for(name, known)}"
            )
        if name == "columns" and isinstance(value, dict):  # by number, of a table without a header
            value = {field: str(column) if type(column) is int else column for field, column in value.items()}
        if name == "mix":
            value = _mix(value, source)
        values[_field(name)] = _check_value(value, known[name], source, section, name)
    return kind(**values)


def _field(name: str) -> str:
    return "from_" if name == "from" else name


def _hint_for(name: str, known: Mapping[str, Any]) -> str:
    """The nearest key, or the section that has this one."""
    for section, kind in SECTIONS.items():
        if name in _key_types(kind):
            return f"it belongs in [{section}]"
    return suggest_name(name, known)


MIX_TYPES = {"train": DataSection.__annotations__["train"], "weight": float, "format": str, "columns": dict[str, str]}


def _mix(value: Any, source: RecipeText) -> Any:
    """The sources of a mixture: each a table of `train`, `weight`, and how its files are read."""
    for name, table in value.items() if isinstance(value, dict) else ():
        if not isinstance(table, dict):
            raise UsageError(
                f"{source.locate('data', 'mix', name)}mix.{name} must be a table: {{train = …, weight = …}}"
            )
        for key in table:
            if key not in MIX_TYPES:
                raise UsageError(
                    f"{source.locate('data', 'mix', name, key)}unknown key {key!r} in mix; {suggest_name(key, MIX_TYPES)}"
                )
        value = value | {
            name: {k: _check_value(v, MIX_TYPES[k], source, "data", "mix", name, k) for k, v in table.items()}
        }
    return value


def _check_value(value: Any, kind: Any, source: RecipeText, *path: str) -> Any:
    """A value of its field's kind, or the error that says what was expected."""
    found = coerce(value, kind)
    if not matches_type(found, kind):
        shown = format_value(value) if isinstance(value, str | int | float | list | dict) else str(value)
        hint = f"; {suggest_name(value, choices)}" if isinstance(value, str) and (choices := _choices(kind)) else ""
        hint = hint if "did you mean" in hint else ""
        raise UsageError(f"{source.locate(*path)}{'.'.join(path)} = {shown} must be {describe_type(kind)}{hint}")
    return found


def _choices(kind: Any) -> list[str]:
    return [choice for choice in getattr(kind, "__args__", ()) if isinstance(choice, str)]


# -------------------------------------------------------------------- [model] and what it changes of a stack


STACK_TYPES = get_type_hints(StackConfig)
HEAD_TYPES = {name: kind for name, kind in get_type_hints(HeadConfig).items() if name not in DERIVED_HEAD_FIELDS}


def _model(table: Table, source: RecipeText) -> ModelSection:
    """[model]: its own keys, fields of every stack, and the tables of one stack or of the head."""
    own, change = {}, {}
    for name, value in table.items():
        if name in _key_types(ModelSection):
            own[name] = value
        elif name in STACK_TYPES:
            change[name] = _stack_value(name, value, source, "model", name)
        elif name in (*STACKS, "head"):
            if not isinstance(value, dict):
                raise UsageError(f"{source.locate('model', name)}model.{name} is a table: write [model.{name}]")
            known = STACK_TYPES if name in STACKS else HEAD_TYPES
            for key in value:
                if key not in known:
                    where = source.locate("model", name, key)
                    raise UsageError(f"{where}unknown key {key!r} in [model.{name}]; {suggest_name(key, known)}")
            change[name] = {
                key: _stack_value(key, one, source, "model", name, key)
                if name in STACKS
                else _check_value(one, HEAD_TYPES[key], source, "model", name, key)
                for key, one in value.items()
            }
        else:
            known = {**_key_types(ModelSection), **STACK_TYPES}
            raise UsageError(f"{source.locate('model', name)}unknown key {name!r} in [model]; {_hint_for(name, known)}")
    section: ModelSection = _section(ModelSection, "model", own, source)
    return ModelSection(**{**{f.name: getattr(section, f.name) for f in fields(section)}, "overrides": change})


def _stack_value(name: str, value: Any, source: RecipeText, *path: str) -> Any:
    if name != "rotary_scaling":
        return _check_value(value, STACK_TYPES[name], source, *path)
    known = get_type_hints(RotaryScaling)
    if not isinstance(value, dict):
        raise UsageError(f"{source.locate(*path)}{'.'.join(path)} must be a table of {', '.join(known)}")
    for key in value:
        if key not in known:
            raise UsageError(
                f"{source.locate(*path, key)}unknown key {key!r} in {'.'.join(path)}; {suggest_name(key, known)}"
            )
    return {key: _check_value(one, known[key], source, *path, key) for key, one in value.items()}


# -------------------------------------------------------------------- changes from a command line


def apply_overrides(table: Table, overrides: Sequence[str]) -> Table:
    """A recipe's table with `key=value` changes made.

    >>> apply_overrides({"train": {"lr": 0.1, "steps": 9}}, ["train.lr=0.2", "train={steps=3}", "run=runs/a"])
    {'train': {'lr': 0.2, 'steps': 3}, 'run': 'runs/a'}
    """
    for override in overrides:
        key, equals, text = override.partition("=")
        path = [part.strip() for part in key.split(".")]
        if not equals or not all(path):
            raise UsageError(f"{override!r} is no change of a recipe: write key=value, as train.lr=1e-3")
        here = table
        for part in path[:-1]:
            if not isinstance(here.get(part), dict):
                here[part] = {}
            here = here[part]
        here[path[-1]] = _merge(here.get(path[-1]), parse_value(text.strip(), _type_of_key(path)), path)
    return table


def _merge(old: Any, new: Any, path: Sequence[str]) -> Any:
    """A new value in the place of an old one; of a section, a stack or the head, what is not named stays as it was."""
    match path:
        case [section] if section in SECTIONS:
            keyed = True
        case ["model", name]:
            keyed = name in (*STACKS, "head")
        case _:
            keyed = False  # files, columns, a mixture: the table is the value
    if not (keyed and isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{name: _merge(old.get(name), one, [*path, name]) for name, one in new.items()}}


def _type_of_key(path: Sequence[str]) -> Any:
    """The kind of value that a dotted key has, `Any` where the key is not known (which is refused later)."""
    match path:
        case ["run"]:
            return str
        case ["model", name] if name in STACK_TYPES:
            return STACK_TYPES[name]
        case ["model", side, name] if side in STACKS and name in STACK_TYPES:
            return STACK_TYPES[name]
        case ["model", "head", name] if name in HEAD_TYPES:
            return HEAD_TYPES[name]
        case ["data", "mix", _, name] if name in MIX_TYPES:
            return MIX_TYPES[name]
        case ["data", "train" | "valid" | "test" | "columns", _]:
            return str
        case [section, name] if section in SECTIONS:
            return _key_types(SECTIONS[section]).get(name, Any)
    return Any


# -------------------------------------------------------------------- a recipe as a table


def to_table(recipe: Recipe) -> Table:
    """The recipe as plain nested values, every field with its value, in the order of the sections."""
    table: Table = {"run": recipe.run}
    for section in SECTIONS:
        values = asdict(getattr(recipe, section))
        if section == "model":
            values |= values.pop("overrides")
        table[section] = {name.rstrip("_"): value for name, value in values.items()}
    return table
