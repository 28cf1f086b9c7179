"""Datasets that come with qkv, for the quick start, the tests and the docs: `dates`, `stdlib` and `scenes`.

>>> find_dataset("stdlib").description
"the sources of Python's standard library, one file a document"
"""

from qkv.data.builtin.dataset import BuiltinDataset
from qkv.data.builtin.dates import Dates
from qkv.data.builtin.stdlib import Stdlib
from qkv.errors import UsageError, suggest_name
from qkv.tables import OpenTable

__all__ = ["DATASETS", "BuiltinDataset", "Dates", "Stdlib", "find_dataset"]

DATASETS = OpenTable[type[BuiltinDataset]](
    "built-in dataset",
    {dataset.name: dataset for dataset in (Dates, Stdlib)},
    lazy={
        "scenes": "qkv.data.builtin.scenes:Scenes",
        "scene-pairs": "qkv.data.builtin.scenes:ScenePairs",
        "scene-objects": "qkv.data.builtin.scenes:SceneObjects",
        "spoken-digits": "qkv.data.builtin.spoken_digits:SpokenDigits",
        "digit-voices": "qkv.data.builtin.spoken_digits:DigitVoices",
        "scene-drawings": "qkv.data.builtin.scenes:SceneDrawings",
    },
)


def find_dataset(name: str) -> BuiltinDataset:
    """Return the dataset with this name. Its tables are made when its first example is read.

    >>> find_dataset("date")
    Traceback (most recent call last):
    qkv.errors.UsageError: there is no built-in dataset 'date'; did you mean 'dates'?
    """
    if name not in DATASETS:
        raise UsageError(f"there is no built-in dataset {name!r}; {suggest_name(name, DATASETS)}")
    return DATASETS[name]()
