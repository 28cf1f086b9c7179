"""Write the JSON schema of recipes, with which editors complete keys and show what they mean:

python docs/recipe_schema.py

Types, limits and defaults come from the code. What a key means comes from the tables of docs/training.md and, for the
fields of a stack, a head or a front end, from the comments beside them.
"""

import inspect
import json
import re
from pathlib import Path
from typing import Any, get_args

from qkv.train.recipe.schema import MixSource, Recipe
from qkv.train.recipe.table import MODEL_TABLES, SECTION_KEYS
from qkv.values import OneOf, Partial, json_schema, to_json
from qkv.values.types import strip_notes

DOCS = Path(__file__).parent
SCHEMA = DOCS.parent / "src/qkv/recipes/schema.json"
COMMENTED = re.compile(r"^    (\w+): .*?(?:  # (.*))?$")


def render_schema() -> str:
    """The schema as JSON."""
    sections = {name: section_schema(name, keys) for name, keys in SECTION_KEYS.items()}
    run = {"type": "string", "description": "The folder of the run. Default: runs/ followed by the name of the recipe."}
    plugins = {
        "type": "array",
        "items": {"type": "string"},
        "description": "Python modules that register what the recipe names, such as a feed-forward of your own.",
    }
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A recipe of qkv",
        **table_schema({"run": run, "plugins": plugins, **sections}),
    }
    text = json.dumps(schema, indent=1, ensure_ascii=False)
    return text.replace("prefixItems", "items") + "\n"  # the name of a list with fixed places in draft 7


def section_schema(name: str, keys: dict[str, Any]) -> dict[str, Any]:
    """The schema of a section, such as [train]."""
    documented, defaults = read_table(name), getattr(Recipe(), name)
    properties = {}
    for key, expected in keys.items():
        if name == "model" and key in MODEL_TABLES:
            partial = MODEL_TABLES[key]
            properties[key] = table_schema(describe_fields(partial), f"Fields of [model.{key}].")
            continue
        schema = mix_schema() if (name, key) == ("data", "mix") else value_schema(expected)
        if key in documented:
            schema = {**schema, "description": documented[key]}
            schema["default"] = to_json(getattr(defaults, key if hasattr(defaults, key) else f"{key}_"))
        properties[key] = schema
    if name == "model":
        properties |= {
            key: one for key, one in describe_fields(MODEL_TABLES["decoder"]).items() if key not in documented
        }
    return table_schema(properties, inspect.getdoc(type(defaults)) or "")


def read_table(section: str) -> dict[str, str]:
    """What each key of a section means, by docs/training.md, without marks of Markdown."""
    text = (DOCS / "training.md").read_text(encoding="utf-8").split(f"### [{section}]")[1].split("###")[0]
    rows = re.findall(r"^\| `(\w+)` \| `.*?` \| (.*) \|$", text, re.MULTILINE)
    return {key: re.sub(r"\[(.*?)\]\(.*?\)", r"\1", meaning).replace("`", "") for key, meaning in rows}


def describe_fields(partial: Partial) -> dict[str, Any]:
    """The fields of a dataclass of which a recipe may give some, with the comments beside them."""
    comments, above = dict[str, str](), ""
    for line in inspect.getsource(partial.of).splitlines():
        if match := COMMENTED.match(line):
            comments[match[1]] = match[2] or above
        comment = line.strip().removeprefix("# ") if line.startswith("    # ") else ""
        above = f"{above} {comment}".strip() if comment and not comment[0].isupper() and comment[0] != '"' else ""
    described = {name: value_schema(expected) for name, expected in partial.find_types().items()}
    return {
        name: {**one, **({"description": comments[name]} if comments.get(name) else {})}
        for name, one in described.items()
    }


def mix_schema() -> dict[str, Any]:
    """The schema of [data.mix]: any names, each with the keys of a source."""
    return {"type": "object", "additionalProperties": table_schema(describe_fields(Partial(MixSource)))}


def value_schema(expected: Any) -> dict[str, Any]:
    """The schema of a value. Names of an open table, to which plugins add, are suggestions only."""
    schema = {key: value for key, value in json_schema(expected).items() if key != "default"}
    members = [expected, *get_args(strip_notes(expected)[0])]
    if any(isinstance(note, OneOf) for member in members for note in strip_notes(member)[1]):
        schema = {"anyOf": [*schema.get("anyOf", [schema]), {"type": "string"}]}
    return schema


def table_schema(properties: dict[str, Any], description: str = "") -> dict[str, Any]:
    """The schema of a table with these keys and no others."""
    described = {"description": description} if description else {}
    return {"type": "object", **described, "properties": properties, "additionalProperties": False}


if __name__ == "__main__":
    SCHEMA.write_text(render_schema(), encoding="utf-8")
