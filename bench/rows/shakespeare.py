"""Character models of tiny Shakespeare, of nanoGPT's size (shakespeare:char) and its laptop settings (char-cpu).

Data: tinyshakespeare/input.txt. Validation is the last tenth, as in nanoGPT; there is no test part, so the score is the
loss on validation.
Published: 1.4697 (10.7M parameters, 3 minutes on an A100) and 1.88 (laptop settings), in the README of
github.com/karpathy/nanoGPT.
Goal: below both.
"""

from pathlib import Path
from typing import Any

from rows import frame

VARIANTS = ("char", "char-cpu")


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Train the built-in recipe. The score is the loss on the validation part."""
    text = frame.read_text(data / "tinyshakespeare/input.txt")[: 20_000 if quick else None]
    file = out / "data/input.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    trained = frame.train(f"shakespeare-{variant}", out, {"data.train": file}, seed=seed, quick=quick)
    return {**trained.to_dict(), "scores": {"loss": trained.metrics["loss"]}}
