"""Datasets that come with qkv, for the quick start, the tests and the docs: `dates`, `numbers`, `stdlib`.

>>> find("numbers").description
'whole numbers below a million in words ↔ digits, in several languages'
"""

from qkv.data.builtin.dataset import Dataset
from qkv.data.builtin.dates import Dates
from qkv.data.builtin.numbers import Numbers
from qkv.data.builtin.stdlib import Stdlib
from qkv.errors import UsageError, nearest

DATASETS: dict[str, type[Dataset]] = {kind.name: kind for kind in (Dates, Numbers, Stdlib)}


def find(name: str) -> Dataset:
    """The dataset of that name; its tables are made when its first example is asked for.

    >>> find("date")
    Traceback (most recent call last):
    qkv.errors.UsageError: no built-in dataset is called 'date'; did you mean 'dates'?
    """
    if name not in DATASETS:
        raise UsageError(f"no built-in dataset is called {name!r}; {nearest(name, DATASETS)}")
    return DATASETS[name]()


__all__ = ["DATASETS", "Dataset", "Dates", "Numbers", "Stdlib", "find"]
