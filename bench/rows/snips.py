"""Requests to an assistant: their intents and slots (SNIPS).

Data: atis_snips/snips.*: 13,084/700/700 requests. Models and recipes are those of the row atis.
Published: BERT (base), one model for both, intents 99.1, slot F1 96.9; DistilBERT 98.0 and 96.1 (README of
github.com/monologg/JointBERT).
Goal: at least the scores of DistilBERT.
"""

from pathlib import Path
from typing import Any

from rows import atis

VARIANTS = atis.VARIANTS
score = atis.score


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Train a model for intents or slots, and predict those of the test requests."""
    return atis.run(data, out, seed, quick, variant, dataset="snips")
