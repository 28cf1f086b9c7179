"""Recipes as nested tables of plain values, as in TOML: convert to and from `Recipe`, apply overrides.

Unknown keys and values of the wrong type are errors. The message names the key and the expected value. It also names
the recipe file, if there is one, and the line if the key is found there. Fields for all stacks are keys of `[model]`.
Fields for one stack, for the head or for the front end of words are keys of `[model.encoder]`, `[model.decoder]`,
`[model.head]` and `[model.words]`.
`[model.image]` and `[model.audio]` say how images and sounds are read.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from qkv.blocks import HeadConfig, StackConfig
from qkv.blocks.words import WordsConfig
from qkv.errors import UsageError, shorten, suggest_name
from qkv.images.config import PatchesConfig
from qkv.sounds.config import LogMelConfig
from qkv.train.recipe.schema import MixSource, ModelSection, Recipe
from qkv.train.recipe.toml import parse_value
from qkv.values import TOML, Partial, Reader, find_fields

T = TypeVar("T")
Table = dict[str, Any]
Path = tuple[str | int, ...]

STACKS = ("encoder", "decoder")
SECTIONS = ("data", "tokenizer", "model", "objective", "train")
DERIVED_HEAD_FIELDS = frozenset({"kind", "outputs", "labels", "tied", "next_sentence_classes"})
"""Fields of a head that follow from the data and from [model], so that a recipe cannot set them."""
FRONT_END_TABLES = {
    "image": Partial(PatchesConfig, frozenset({"features"})),
    "audio": Partial(LogMelConfig, frozenset({"features"})),
}
"""The tables of [model] for what the records have besides texts, by modality."""
MODEL_TABLES = {
    **dict.fromkeys(STACKS, Partial(StackConfig)),
    "head": Partial(HeadConfig, DERIVED_HEAD_FIELDS),
    **FRONT_END_TABLES,
    "words": Partial(WordsConfig, frozenset({"features"})),
}


class RecipeText:
    """The text of a recipe file, to find the line of a key for error messages."""

    def __init__(self, where: str, text: str):
        self.where, self.lines = where, text.splitlines()

    def locate(self, path: Path) -> str:
        """Return `file:line: ` of a key, or `file: ` if a simple search does not find the line."""
        if not self.where:
            return ""
        names = [str(part) for part in path]
        *tables, key = names or [""]
        section, wanted = "", ".".join(tables)
        for number, line in enumerate(self.lines, start=1):
            stripped = line.strip()
            if stripped.startswith("["):
                section = stripped.split("]")[0].strip("[ ")
                if section == ".".join(names):
                    return f"{self.where}:{number}: "
            elif section == wanted and stripped.split("=")[0].strip().strip("\"'") == key:
                return f"{self.where}:{number}: "
        return f"{self.where}: "


class RecipeReader(Reader):
    """Reads a recipe. Its errors have the line of a key and, for a misplaced key, the section in which it belongs."""

    def __init__(self, text: RecipeText) -> None:
        super().__init__(TOML)
        self.text = text

    def locate(self, path: Path) -> str:
        return self.text.locate(path)

    def suggest(self, path: Path, name: str, known: Collection[str]) -> str:
        homes = [section for section in SECTION_KEYS if name in SECTION_KEYS[section]] if len(path) < 2 else []
        return f"it belongs in [{homes[0]}]" if homes else suggest_name(name, known)

    def read(self, expected: Any, value: Any, path: Path = ()) -> Any:
        if path and path[-1] == "columns" and isinstance(value, dict):  # without a header, columns have numbers
            value = {field: str(column) if type(column) is int else column for field, column in value.items()}
        return super().read(expected, value, path)

    def read_dataclass(self, expected: type[T], value: Any, path: Path = ()) -> T:
        if expected is not ModelSection:
            return super().read_dataclass(expected, value, path)
        values = self.read_table(SECTION_KEYS["model"], value, path)
        own = {field.key: field.name for field in find_fields(ModelSection) if field.key in values}
        overrides = {key: item for key, item in values.items() if key not in own}
        given = {name: values[key] for key, name in own.items()}
        return expected(**given, overrides=overrides)  # type: ignore[call-arg]


def _find_section_keys() -> dict[str, dict[str, Any]]:
    """Return the sections with the types of their keys. [model] has the fields of its stacks and head, too."""
    sections = {field.key: field.type for field in find_fields(Recipe) if field.key in SECTIONS}
    keys = {name: {field.key: field.type for field in find_fields(kind)} for name, kind in sections.items()}
    del keys["model"]["overrides"]
    tables = {name: Annotated[dict[str, Any], partial] for name, partial in MODEL_TABLES.items()}
    return {**keys, "model": {**Partial(StackConfig).find_types(), **tables, **keys["model"]}}


SECTION_KEYS = _find_section_keys()


def recipe_from_table(table: Table, source: RecipeText) -> Recipe:
    """Make a recipe from a table. Unknown keys, wrong types and numbers out of range are errors."""
    recipe: Recipe = RecipeReader(source).read(Recipe, table)
    return recipe


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
    is_section = len(path) == 1 and path[0] in SECTION_KEYS
    is_model_table = len(path) == 2 and path[0] == "model" and path[1] in MODEL_TABLES
    if not ((is_section or is_model_table) and isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{name: _merge(old.get(name), value, [*path, name]) for name, value in new.items()}}


def _type_of_key(path: Sequence[str]) -> Any:
    """Return the type of a dotted key's value. It is `Any` for an unknown key, which is an error later."""
    match path:
        case ["run"]:
            return str
        case ["plugins"]:
            return tuple[str, ...]
        case ["model", table, name] if table in MODEL_TABLES:
            return MODEL_TABLES[table].find_types().get(name, Any)
        case ["data", "mix", _, name]:
            return Partial(MixSource).find_types().get(name, Any)
        case ["data", "train" | "valid" | "test" | "columns", _]:
            return str
        case [section, name] if section in SECTION_KEYS:
            return SECTION_KEYS[section].get(name, Any)
    return Any


# -------------------------------------------------------------------- a recipe as a table


def to_table(recipe: Recipe) -> Table:
    """Return the recipe as a table of all fields, in the order of the sections."""
    table: Table = {"run": recipe.run, "plugins": recipe.plugins}
    for section in SECTION_KEYS:
        values = asdict(getattr(recipe, section))
        if section == "model":
            values |= values.pop("overrides")
        table[section] = {name.rstrip("_"): value for name, value in values.items()}
    return table
