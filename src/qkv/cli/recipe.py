"""`qkv recipe`: check a recipe without training it, and print the JSON schema of recipes for editors."""

import json as json_format
from importlib import resources
from typing import Literal

from qkv.cli.shared import Json, print_json, print_result
from qkv.errors import UsageError


def recipe(action: Literal["check", "schema"], file: str = "", /, *overrides: str, json: Json = False) -> None:
    """Check a recipe without training it, or print the JSON schema of recipes, with which editors complete keys.

    The check reads the recipe only: unknown keys, wrong types, and keys that contradict each other. To check its data
    and model as well, use qkv train FILE --dry-run.

    Examples:
        qkv recipe check my.toml
        qkv recipe schema > recipe.schema.json

    Parameters
    ----------
    action
        check or schema.
    file
        check: a recipe file, a run folder, or the name of a built-in recipe.
    overrides
        check: changes to the recipe: key=value, as in qkv train.
    """
    from qkv.train.recipe import recipe_file

    if action == "schema":
        if file:
            raise UsageError("qkv recipe schema takes no file; it prints the schema of all recipes")
        return print_json(json_format.loads(schema_text()))
    if not file:
        raise UsageError("name the recipe: qkv recipe check FILE")
    recipe_file.import_plugins_of(file, overrides)
    read = recipe_file.read(file, overrides)
    changed = recipe_file.differences(type(read)(), read)
    shown = f"{file}: valid; {len(changed)} keys differ from their defaults. Next: qkv train {file} --dry-run"
    return print_result(json, shown, {"recipe": file, "valid": True, "changed": changed})


def schema_text() -> str:
    """The JSON schema of recipes, as `docs/recipe_schema.py` wrote it."""
    return resources.files("qkv").joinpath("recipes", "schema.json").read_text(encoding="utf-8")
