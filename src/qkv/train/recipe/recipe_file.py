"""Recipe files (TOML): read them with overrides from a command line, write them, compare two recipes.

    recipe = read("translate.toml", ["train.lr=3e-4", "model.encoder.layers=3"])
    write(recipe, "runs/a/recipe.toml")

Unknown keys, wrong types and impossible combinations are errors, before anything starts. The error names the file, the
line, the key and the expected value. Relative paths are resolved against the working directory.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path

from qkv.errors import QkvError, UsageError, suggest_name, suggest_path
from qkv.files import read_text, report_write_errors, to_path, write_atomically
from qkv.plugins import check_imported, import_plugins
from qkv.train.recipe.check import check_recipe
from qkv.train.recipe.schema import BUDGETS, Recipe
from qkv.train.recipe.table import MODEL_TABLES, RecipeText, Table, apply_overrides, recipe_from_table, to_table
from qkv.train.recipe.toml import format_key, format_value, parse_toml

MAX_RECIPE_BYTES = 2**20

CHANGEABLE_ON_RESUME = frozenset(
    {"run", "plugins", "data.cache_dir", "data.test"}
    | {
        f"train.{name}"
        for name in (
            *BUDGETS,
            *("patience", "final", "average_checkpoints"),
            *("micro_batch_tokens", "gradient_checkpointing", "device", "num_threads", "num_workers"),
            *("parallel", "tensor_parallel"),
            *("log_every", "eval_every", "eval_examples", "max_eval_fraction", "metric", "eval_beam", "trackers"),
            *("save_every", "keep_checkpoints", "on_nonfinite"),
        )
    }
)
"""The keys that may change when a run is resumed: those for budget, hardware, logging and checkpoints."""


def read(name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe (a file, a run folder or a built-in name), apply `key=value` overrides, and check it.

    Its plugins must be imported, as `import_plugins_of` does.

    >>> read("mine.toml", ["train.minutes=5", "data.train=x.tsv"]).train.minutes      # doctest: +SKIP
    5.0
    """
    text, where = find_recipe(name)
    recipe = loads(text, where)
    if overrides:
        recipe = recipe_from_table(apply_overrides(to_table(recipe), overrides), RecipeText("", ""))
    check_recipe(recipe, where)
    return recipe


def loads(text: str, where: str = "the recipe") -> Recipe:
    """Parse a recipe from TOML. This does not check for impossible combinations of keys."""
    try:
        table = parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{where}: not valid TOML: {error}") from None
    check_imported(_named_plugins(table), where)
    return recipe_from_table(table, RecipeText(where, text))


def import_plugins_of(name: str | Path, overrides: Sequence[str] = ()) -> None:
    """Import the plugins that a recipe and an override name. Only a command that trains the recipe does this."""
    text, _ = find_recipe(name)
    named: list[str] = []
    with suppress(ValueError, UsageError):  # `read` raises the error
        named += _named_plugins(parse_toml(text))
        ours = [override for override in overrides if override.partition("=")[0] == "plugins"]
        named += _named_plugins(apply_overrides(parse_toml(text), ours))
    import_plugins(named)


def _named_plugins(table: Table) -> list[str]:
    """Return the plugins of a recipe whose values are not checked yet."""
    listed = table.get("plugins", ())
    return [one for one in listed if isinstance(one, str)] if isinstance(listed, list | tuple) else []


def builtin_recipes() -> list[str]:
    """Return the names of the built-in recipes."""
    folder = resources.files("qkv").joinpath("recipes")
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def find_recipe(name: str | Path) -> tuple[str, str]:
    """Return the text and the origin of a recipe. `name` is a file, a run folder or a built-in recipe."""
    path = to_path(name)
    if path.is_dir() and (path / "recipe.toml").is_file():
        path = path / "recipe.toml"
    if os.path.lexists(path) and not path.is_dir():  # `read_text` raises the error for a pipe or a broken link
        return read_text(path, MAX_RECIPE_BYTES, may_be_empty=True), str(path)
    known = builtin_recipes()
    if str(name) in known:
        file = resources.files("qkv").joinpath("recipes", f"{name}.toml")
        return file.read_text(encoding="utf-8"), f"the built-in recipe {name}"
    if path.is_dir():
        raise UsageError(f"{path}: this folder has no recipe.toml, so it is not a run folder; give a recipe file")
    here = suggest_path(path, "*.toml" if len(path.parts) == 1 else "*").removeprefix("; ")
    hint = suggest_name(str(name), known)
    if not hint.startswith("did you mean") or (here and path.suffix):  # a name with an extension means a file
        hint = here or f"built-in recipes: {', '.join(known)}"
    raise UsageError(f"{name}: no such recipe file; {hint}")


# -------------------------------------------------------------------- writing


def to_toml(recipe: Recipe) -> str:
    """Return the recipe as TOML, with every field. `loads` is the inverse."""
    lines = [f"{name} = {format_value(getattr(recipe, name))}" for name in ("run", "plugins")]
    for section, values in to_table(recipe).items():
        if isinstance(values, dict):
            lines += ["", f"[{format_key(section)}]", *_lines(values, section)]
    return "\n".join(lines) + "\n"


def _lines(values: Table, path: str) -> Iterator[str]:
    """Yield the TOML lines of a table. Stacks, the head and the sources of a mixture become tables of their own."""
    tables: Table = {}
    for name, value in values.items():
        if path == "data" and name == "mix":
            tables |= {f"{path}.mix.{format_key(source)}": table for source, table in value.items()}
        elif path == "model" and name in MODEL_TABLES:
            tables[f"{path}.{name}"] = value
        elif value is not None:
            yield f"{format_key(name)} = {format_value(value)}"
    for name, table in tables.items():
        yield from ("", f"[{name}]", *_lines(table, name))


def write(recipe: Recipe, path: str | os.PathLike[str]) -> None:
    """Write a recipe to a file, atomically."""
    with report_write_errors(Path(path)):
        write_atomically(Path(path), to_toml(recipe))


# -------------------------------------------------------------------- comparing


def differences(old: Recipe, new: Recipe) -> list[str]:
    """Return the differences between two recipes, such as `train.lr: 0.001 → 0.01`."""
    one, other = dict(_flatten(to_table(old))), dict(_flatten(to_table(new)))
    return [
        f"{key}: {one.get(key, 'not set')} → {other.get(key, 'not set')}"
        for key in dict.fromkeys([*one, *other])
        if one.get(key) != other.get(key)
    ]


def check_resumable(old: Recipe, new: Recipe) -> None:
    """Raise if a run cannot be resumed with a changed recipe. Only keys in CHANGEABLE_ON_RESUME may differ."""
    changed = [line for line in differences(old, new) if not _is_changeable(line.split(":")[0])]
    if changed:
        raise QkvError(
            "this run was started with another recipe:\n  "
            + "\n  ".join(changed)
            + "\nTo resume it, undo these changes; or start a new run in another folder (run=…)"
        )


def _is_changeable(key: str) -> bool:
    return key in CHANGEABLE_ON_RESUME or key.startswith("data.test.")  # data.test may be a table of files


def _flatten(table: Table, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every dotted key with its value as TOML."""
    for name, value in table.items():
        key = f"{path}.{name}" if path else name
        if isinstance(value, dict) and value:
            yield from _flatten(value, key)
        elif value is not None:
            yield key, format_value(value)
