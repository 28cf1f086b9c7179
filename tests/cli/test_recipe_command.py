"""`qkv recipe`: the check of a recipe, and the JSON schema that editors read."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from qkv.cli.recipe import schema_text
from qkv.train.recipe.recipe_file import builtin_recipes, find_recipe, to_toml
from qkv.train.recipe.schema import Recipe
from qkv.train.recipe.table import SECTION_KEYS


def test_every_key_is_described_or_a_field_of_a_part() -> None:
    sections = json.loads(schema_text())["properties"]
    for name, keys in SECTION_KEYS.items():
        found = sections[name]["properties"]
        assert found.keys() == keys.keys()
        assert name == "model" or all(one["description"] for one in found.values())
    assert sections["model"]["properties"]["kv_heads"]["description"].startswith("the number of key/value heads")


def test_the_schema_accepts_recipes_and_refuses_mistakes() -> None:
    checker = pytest.importorskip("jsonschema_rs", reason="checks values against a JSON schema")
    is_valid = checker.validator_for(json.loads(schema_text())).is_valid
    for name in builtin_recipes():
        assert is_valid(tomllib.loads(find_recipe(name)[0])), name
    assert is_valid(tomllib.loads(to_toml(Recipe())))
    assert is_valid({"objective": {"kind": "of-a-plugin"}, "data": {"mix": {"a": {"train": "x", "weight": 2}}}})
    for wrong in (
        {"train": {"stepz": 1}},
        {"train": {"steps": "1"}},
        {"train": {"steps": -1}},
        {"data": {"layout": "loose"}},
        {"model": {"decoder": {"widht": 3}}},
        {"data": {"mix": {"a": {"wieght": 2}}}},
    ):
        assert not is_valid(wrong), wrong


def test_check_finds_mistakes_without_the_data(tmp_path: Path, run_qkv: Any) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[data]\ntrain = "nothere.tsv"\n[train]\nsteps = 3\n')
    assert "valid; 2 keys" in run_qkv(["recipe", "check", str(path)]).out
    assert json.loads(run_qkv(["recipe", "check", "dates", "--json"]).out)["valid"]
    path.write_text('[data]\ntrain = "a.tsv"\n[train]\nstepz = 3\n')
    assert f"{path}:4" in run_qkv(["recipe", "check", str(path)], 2).err
    assert "did you mean 'steps'" in run_qkv(["recipe", "check", str(path)], 2).err
    assert "qkv recipe check FILE" in run_qkv(["recipe", "check"], 2).err
    assert json.loads(run_qkv(["recipe", "schema"]).out) == json.loads(schema_text())
