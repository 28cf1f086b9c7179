"""Open tables: rows can be added later, names are checked, and rows are imported on demand."""

import sys

import pytest

from qkv.errors import UsageError
from qkv.tables import OpenTable


def make_table() -> OpenTable[object]:
    return OpenTable("colour", {"red": 1, "dark-red": 2}, lazy={"encodings": "encodings.koi8_t:getregentry"})


def test_rows_that_are_registered_later_come_after_the_built_in_rows() -> None:
    table = make_table()
    names = iter(table)
    assert table.register("blue", 3) == 3
    assert list(table) == ["red", "dark-red", "encodings", "blue"]
    assert len(table) == 4
    assert list(names) == ["red", "dark-red", "encodings"], "a table may grow while it is read"
    assert table["blue"] == table.find("blue") == 3
    table.unregister("blue")
    assert "blue" not in table
    assert table.get("blue") is None
    assert table != make_table()


def test_a_lazy_row_is_imported_when_it_is_used_and_not_when_it_is_named() -> None:
    sys.modules.pop("encodings.koi8_t", None)
    table = make_table()
    assert "encodings" in table
    assert list(table)
    assert "encodings.koi8_t" not in sys.modules
    row = table["encodings"]
    assert callable(row)
    assert "encodings.koi8_t" in sys.modules
    assert table["encodings"] is row


def test_unknown_names_are_errors_with_a_suggestion() -> None:
    table = make_table()
    table.register("blue", 3)
    with pytest.raises(UsageError, match=r"^paint\.colour = 'blu' is unknown; did you mean 'blue'\?$"):
        table.find("blu", "paint.colour")
    with pytest.raises(UsageError, match="colour = 'xyz' is unknown; known: blue, dark-red, encodings, red"):
        table.find("xyz")
    with pytest.raises(KeyError):
        table["xyz"]


@pytest.mark.parametrize("name", ["", "Blue", "1st", "a b", "a.b", "é", "x" * 65, 3])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a kind of colour: use lower-case letters"):
        make_table().register(name, 3)


def test_names_that_are_taken_are_refused() -> None:
    table, row = make_table(), object()
    table.register("blue", row)
    table.register("blue", row)
    with pytest.raises(UsageError, match=r"another colour named 'blue' is registered; .*replace=True"):
        table.register("blue", object())
    table.register("blue", 5, replace=True)
    assert table["blue"] == 5
    with pytest.raises(UsageError, match="'red' is built in and cannot be replaced"):
        table.register("red", 3, replace=True)
    with pytest.raises(UsageError, match="'red' is built in and cannot be removed"):
        table.unregister("red")
    assert table["red"] == 1
