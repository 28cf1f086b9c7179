"""A recipe as a table of plain values, as TOML has it: made from one, turned into one, changed key by key.

What is misspelt or of the wrong kind is an error that names the file, the line and the key, and what was expected. The
fields of a stack and of a head may stand in `[model]`, since that is where one looks for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, get_type_hints

from qkv.blocks import HeadConfig, RotaryScaling, StackConfig
from qkv.errors import UsageError, nearest
from qkv.train.recipe import DataSection, ModelSection, ObjectiveSection, Recipe, TokenizerSection, TrainSection
from qkv.train.recipe_value import fits, in_words, parsed, settled, toml_of

Table = dict[str, Any]

SECTIONS = {
    "data": DataSection,
    "tokenizer": TokenizerSection,
    "model": ModelSection,
    "objective": ObjectiveSection,
    "train": TrainSection,
}
STACKS = ("encoder", "decoder")
OBJECTIVES_OWN = {"kind", "outputs", "labels", "tied", "sentence_outputs"}  # of a head: the data and [model] decide


class Source:
    """Where a table came from, for messages: the file, and the line that a key stands on."""

    def __init__(self, where: str, text: str):
        self.where, self.lines = where, text.splitlines()

    def at(self, *path: str) -> str:
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


def recipe_of(table: Table, source: Source) -> Recipe:
    """A recipe from what TOML gave; unknown names and wrong kinds are errors."""
    parts: Table = {}
    for name, value in table.items():
        if name == "run":
            parts["run"] = _checked(value, str, source, "run")
        elif name not in SECTIONS:
            home = [section for section, kind in SECTIONS.items() if name in _keys(kind)]
            hint = f"it belongs in [{home[0]}]" if len(home) == 1 else nearest(name, ["run", *SECTIONS])
            raise UsageError(f"{source.at(name)}unknown section or key {name!r}; {hint}")
        elif not isinstance(value, dict):
            raise UsageError(f"{source.at(name)}{name} is a section: write [{name}] and its keys below")
        elif name == "model":
            parts[name] = _model(value, source)
        else:
            parts[name] = _section(SECTIONS[name], name, value, source)
    return Recipe(**parts)


def _keys(kind: type) -> dict[str, Any]:
    """The keys of a section as a recipe writes them, each with the kind of its value."""
    return {name.rstrip("_"): hint for name, hint in get_type_hints(kind).items() if name != "change"}


def _section(kind: type, section: str, table: Table, source: Source) -> Any:
    known = _keys(kind)
    values = {}
    for name, value in table.items():
        if name not in known:
            raise UsageError(f"{source.at(section, name)}unknown key {name!r} in [{section}]; {_near(name, known)}")
        if name == "columns" and isinstance(value, dict):  # by number, of a table without a header
            value = {field: str(column) if type(column) is int else column for field, column in value.items()}
        if name == "mix":
            value = _mix(value, source)
        values[_field(name)] = _checked(value, known[name], source, section, name)
    return kind(**values)


def _field(name: str) -> str:
    return "from_" if name == "from" else name


def _near(name: str, known: Mapping[str, Any]) -> str:
    """The nearest key, or the section that has this one."""
    for section, kind in SECTIONS.items():
        if name in _keys(kind):
            return f"it belongs in [{section}]"
    return nearest(name, known)


MIX = {"train": DataSection.__annotations__["train"], "weight": float, "format": str, "columns": dict[str, str]}


def _mix(value: Any, source: Source) -> Any:
    """The sources of a mixture: each a table of `train`, `weight`, and how its files are read."""
    for name, table in value.items() if isinstance(value, dict) else ():
        if not isinstance(table, dict):
            raise UsageError(f"{source.at('data', 'mix', name)}mix.{name} must be a table: {{train = …, weight = …}}")
        for key in table:
            if key not in MIX:
                raise UsageError(
                    f"{source.at('data', 'mix', name, key)}unknown key {key!r} in mix; {nearest(key, MIX)}"
                )
        value = value | {name: {k: _checked(v, MIX[k], source, "data", "mix", name, k) for k, v in table.items()}}
    return value


def _checked(value: Any, kind: Any, source: Source, *path: str) -> Any:
    """A value of its field's kind, or the error that says what was expected."""
    found = settled(value, kind)
    if not fits(found, kind):
        shown = toml_of(value) if isinstance(value, str | int | float | list | dict) else str(value)
        hint = f"; {nearest(value, choices)}" if isinstance(value, str) and (choices := _choices(kind)) else ""
        hint = hint if "did you mean" in hint else ""
        raise UsageError(f"{source.at(*path)}{'.'.join(path)} = {shown} must be {in_words(kind)}{hint}")
    return found


def _choices(kind: Any) -> list[str]:
    return [choice for choice in getattr(kind, "__args__", ()) if isinstance(choice, str)]


# -------------------------------------------------------------------- [model] and what it changes of a stack


STACK = get_type_hints(StackConfig)
HEAD = {name: kind for name, kind in get_type_hints(HeadConfig).items() if name not in OBJECTIVES_OWN}


def _model(table: Table, source: Source) -> ModelSection:
    """[model]: its own keys, fields of every stack, and the tables of one stack or of the head."""
    own, change = {}, {}
    for name, value in table.items():
        if name in _keys(ModelSection):
            own[name] = value
        elif name in STACK:
            change[name] = _stack_value(name, value, source, "model", name)
        elif name in (*STACKS, "head"):
            if not isinstance(value, dict):
                raise UsageError(f"{source.at('model', name)}model.{name} is a table: write [model.{name}]")
            known = STACK if name in STACKS else HEAD
            for key in value:
                if key not in known:
                    where = source.at("model", name, key)
                    raise UsageError(f"{where}unknown key {key!r} in [model.{name}]; {nearest(key, known)}")
            change[name] = {
                key: _stack_value(key, one, source, "model", name, key)
                if name in STACKS
                else _checked(one, HEAD[key], source, "model", name, key)
                for key, one in value.items()
            }
        else:
            known = {**_keys(ModelSection), **STACK}
            raise UsageError(f"{source.at('model', name)}unknown key {name!r} in [model]; {_near(name, known)}")
    section: ModelSection = _section(ModelSection, "model", own, source)
    return ModelSection(**{**{f.name: getattr(section, f.name) for f in fields(section)}, "change": change})


def _stack_value(name: str, value: Any, source: Source, *path: str) -> Any:
    if name != "rotary_scaling":
        return _checked(value, STACK[name], source, *path)
    known = get_type_hints(RotaryScaling)
    if not isinstance(value, dict):
        raise UsageError(f"{source.at(*path)}{'.'.join(path)} must be a table of {', '.join(known)}")
    for key in value:
        if key not in known:
            raise UsageError(f"{source.at(*path, key)}unknown key {key!r} in {'.'.join(path)}; {nearest(key, known)}")
    return {key: _checked(one, known[key], source, *path, key) for key, one in value.items()}


# -------------------------------------------------------------------- changes from a command line


def changed(table: Table, overrides: Sequence[str]) -> Table:
    """A recipe's table with `key=value` changes made.

    >>> changed({"train": {"lr": 0.1, "steps": 9}}, ["train.lr=0.2", "train={steps=3}", "run=runs/a"])
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
        here[path[-1]] = _merged(here.get(path[-1]), parsed(text.strip(), _kind_at(path)), path)
    return table


def _merged(old: Any, new: Any, path: Sequence[str]) -> Any:
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
    return {**old, **{name: _merged(old.get(name), one, [*path, name]) for name, one in new.items()}}


def _kind_at(path: Sequence[str]) -> Any:
    """The kind of value that a dotted key has, `Any` where the key is not known (which is refused later)."""
    match path:
        case ["run"]:
            return str
        case ["model", name] if name in STACK:
            return STACK[name]
        case ["model", side, name] if side in STACKS and name in STACK:
            return STACK[name]
        case ["model", "head", name] if name in HEAD:
            return HEAD[name]
        case ["data", "mix", _, name] if name in MIX:
            return MIX[name]
        case ["data", "train" | "valid" | "test" | "columns", _]:
            return str
        case [section, name] if section in SECTIONS:
            return _keys(SECTIONS[section]).get(name, Any)
    return Any


# -------------------------------------------------------------------- a recipe as a table


def to_table(recipe: Recipe) -> Table:
    """The recipe as plain nested values, every field with its value, in the order of the sections."""
    table: Table = {"run": recipe.run}
    for section in SECTIONS:
        values = asdict(getattr(recipe, section))
        if section == "model":
            values |= values.pop("change")
        table[section] = {name.rstrip("_"): value for name, value in values.items()}
    return table
