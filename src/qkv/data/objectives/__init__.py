"""Objectives turn encoded records into training examples, and have the loss.

Each objective is one file: how its records are encoded, its examples, the labels that it declares, its loss, and its
row in the table (`table.py`). `base.py` has the base class of objectives, `record_objective.py` the base class of
objectives whose examples are whole records, and `windows.py` the base classes of objectives that cut documents into
windows.
"""

from qkv.data.objectives.base import IGNORE_INDEX, ExampleCounts, FlatExamples, Label, Objective
from qkv.data.objectives.template import SpecialTokenTemplate

__all__ = ["IGNORE_INDEX", "ExampleCounts", "FlatExamples", "Label", "Objective", "SpecialTokenTemplate"]
