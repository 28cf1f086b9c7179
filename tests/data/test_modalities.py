"""Modalities: what is wrong with a value, and how it is shown."""

import pytest

from qkv.data.modalities import MODALITIES, Modality, get_field
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.problems import InvalidRecord
from qkv.data.records import FileLocation, Record
from qkv.errors import UsageError

MESSAGE = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("modality", "value", "shown"),
    [
        ("text", "a text", "a text"),
        ("texts", ["one", "two"], "one\ntwo"),
        ("words", ["a", 1], "a 1"),
        ("label", " yes ", "yes"),
        ("label", 1.0, "1"),
        ("label", True, "true"),
        ("number", " 2.50", "2.5"),
        ("number", 3, "3"),
        ("tags", ["B-X", 0], "B-X 0"),
        ("messages", [MESSAGE, MESSAGE], "user: hi\nuser: hi"),
        ("numbers", [3, 14], "3, 14"),
    ],
)
def test_valid_values_are_shown(modality, value, shown):
    row = MODALITIES.find(modality)
    assert row.check(value) == ""
    assert row.show(value) == shown


@pytest.mark.parametrize(
    ("modality", "value", "problem"),
    [
        ("text", 3, "must be a text, not a number"),
        ("text", None, "must be a text, not null"),
        ("texts", "one", "must be a list of texts, not a text"),
        ("texts", ["one", 2], "has a wrong entry: number 1 must be a text, not a number"),
        ("words", {"a": 1}, "must be a list of words, not an object"),
        ("label", [], "must be a text or a number, not a list"),
        ("label", " ", "is empty"),
        ("number", "much", "must be a finite number, not a text"),
        ("number", True, "must be a finite number, not true or false"),
        ("number", float("inf"), "must be a finite number, not a number"),
        ("tags", ["x", ""], "has a wrong entry: number 1 is empty"),
        ("messages", [{"role": "user"}], "has a wrong entry: number 0 must be an object with the texts"),
        ("numbers", [True], "has a wrong entry: number 0 must be an integer, not true or false"),
    ],
)
def test_wrong_values_are_described(modality, value, problem):
    assert MODALITIES.find(modality).check(value).startswith(problem)
    with pytest.raises(InvalidRecord, match="the field 'x' "):
        get_field(Record({"x": value}, FileLocation("a.jsonl", 1)), "x", modality)


def test_every_field_of_an_objective_has_a_modality():
    fields = [field for spec in OBJECTIVES.values() for field in spec.fields]
    assert {field.modality for field in fields} == {*MODALITIES} - {"protein"}, "a text is a protein if the data is"


def test_a_modality_can_be_added():
    def check(value: object) -> str:
        return "" if value in ("red", "blue") else "must be red or blue"

    MODALITIES.register("colour", Modality(check, str))
    try:
        assert get_field(Record({"x": "red"}, FileLocation("a")), "x", "colour") == "red"
        with pytest.raises(InvalidRecord, match="the field 'x' must be red or blue"):
            get_field(Record({"x": "green"}, FileLocation("a")), "x", "colour")
    finally:
        MODALITIES.unregister("colour")
    with pytest.raises(UsageError, match="modality = 'colour' is unknown"):
        MODALITIES.find("colour")
