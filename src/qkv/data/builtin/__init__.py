"""Datasets that come with qkv, for the quick start, the tests and the docs: `dates`, `numbers`, `stdlib`.

>>> find_dataset("numbers").description
'whole numbers below a million in words ↔ digits, in several languages'
"""

from qkv.data.builtin.dataset import BuiltinDataset
from qkv.data.builtin.dates import Dates
from qkv.data.builtin.numbers import Numbers
from qkv.data.builtin.stdlib import Stdlib
from qkv.errors import UsageError, suggest_name

DATASETS: dict[str, type[BuiltinDataset]] = {kind.name: kind for kind in (Dates, Numbers, Stdlib)}


def find_dataset(name: str) -> BuiltinDataset:
    """The dataset of that name; its tables are made when its first example is asked for.

    >>> find_dataset("date")
    Traceback (most recent call last):
    qkv.errors.UsageError: no built-in dataset is called 'date'; did you mean 'dates'?
    """
    if name not in DATASETS:
        raise UsageError(f"no built-in dataset is called {name!r}; {suggest_name(name, DATASETS)}")
    return DATASETS[name]()


__all__ = ["DATASETS", "BuiltinDataset", "Dates", "Numbers", "Stdlib", "find_dataset"]
