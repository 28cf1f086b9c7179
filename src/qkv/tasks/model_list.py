"""The models that can be used by name here: the bundled models, and the runs in a folder. For `qkv models`."""

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, count_nouns
from qkv.store.hub import bundled_folders
from qkv.store.model_card import read_card
from qkv.train.run.folder import RunFolder

LOSS = "loss"


@dataclass(frozen=True)
class ListedModel:
    """A model that can be used by name."""

    name: str
    place: str  # "bundled" or "runs"
    task: str
    scores: str
    bytes: int = 0  # the size of its weights; 0 if it has no weights yet
    licence: str = ""
    state: str = "finished"  # for a run: "finished", or the step that it has reached

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, for JSON."""
        return asdict(self)


def list_models(runs: Path = Path("runs")) -> list[ListedModel]:
    """The bundled models, and the runs in the folder `runs`."""
    found = [box_model(name, folder) for name, folder in bundled_folders().items()]
    folders = sorted(path for path in runs.iterdir() if path.is_dir()) if runs.is_dir() else []
    # A run that failed before its first step is not listed, because it can be neither used nor resumed.
    return found + [run_model(RunFolder(folder)) for folder in folders if RunFolder(folder).has_progress]


def box_model(name: str, folder: Path) -> ListedModel:
    """A bundled model, as its card describes it."""
    card = read_card(folder)
    card_fields = {field: card.get(field, "") for field in ("task", "scores", "licence")}
    return ListedModel(name, "bundled", bytes=weight_bytes(folder), **card_fields)


def run_model(run: RunFolder) -> ListedModel:
    """A run: its objective, the metrics of its last evaluation, and its progress. Unreadable parts are left out."""
    try:
        recipe = tomllib.loads(run.read_recipe())
        records = run.log_records()
    except (QkvError, ValueError):
        return ListedModel(str(run.path), "runs", "", "", weight_bytes(run.path), state="not readable")
    evaluations = [record for record in records if record.get("kind") == "eval"]
    step = max((int(record.get("step", 0)) for record in records), default=0)
    task = str(recipe.get("objective", {}).get("kind", "seq2seq"))
    state = "finished" if run.has_model else f"step {step:,}"
    scores = format_scores(evaluations[-1]) if evaluations else ""
    return ListedModel(str(run.path), "runs", task, scores, weight_bytes(run.path), state=state)


def format_scores(evaluation: dict[str, Any]) -> str:
    """The main metric of an evaluation and the loss, and how much of the validation data they use, in one line.

    >>> format_scores({"kind": "eval", "step": 9, "seconds": 1.5, "bleu": 41.257, "chrf": 60.0, "loss": 2.0})
    'bleu 41.26, loss 2.000'
    >>> format_scores({"kind": "eval", "loss": 2.0, "subset": "the loss uses about 9.0% of the validation data"})
    'loss 2.000; the loss uses about 9.0% of the validation data'
    >>> format_scores({"accuracy": 0.9, "final": {"num_examples": 500, "intervals": {"accuracy": [0.871, 0.924]}}})
    'accuracy 0.9 [0.871, 0.924] of 500 examples'
    """
    metrics = {k: v for k, v in evaluation.items() if k not in ("kind", "step", "seconds") and isinstance(v, float)}
    main = next((name for name in ("bleu", *metrics) if name in metrics and name != LOSS), None)
    final = evaluation.get("final") or {}
    interval = final.get("intervals", {}).get(main)
    bounds = f" [{interval[0]:.4g}, {interval[1]:.4g}]" if interval else ""
    examples = f" of {count_nouns(final['num_examples'], 'example')}" if "num_examples" in final else ""
    parts = [] if main is None else [f"{main} {metrics[main]:.4g}{bounds}{examples}"]
    scores = ", ".join(parts + ([f"loss {metrics[LOSS]:.3f}"] if LOSS in metrics else []))
    return "; ".join(filter(None, (scores, evaluation.get("subset", ""))))


def weight_bytes(folder: Path) -> int:
    """The size of a folder's weight files."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
