"""Load models from the checkpoints of a run: from an unfinished run, or from an earlier step.

load_model("runs/a")                                an unfinished run: its newest checkpoint
load_model("runs/a/checkpoints/step-000000400")     this checkpoint
load_model("en-fr")                                 a model that comes with qkv
load_model("models/b")                              anything else that `store.read_model` can load
"""

from pathlib import Path

import torch

from qkv import store
from qkv.blocks import HeadConfig
from qkv.files import to_path
from qkv.store import StoredModel
from qkv.store.hub import bundled_notes
from qkv.store.model_folder import RECIPE_FILE
from qkv.train.checkpoint.files import is_checkpoint


def load_model(
    name: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    head: HeadConfig | None = None,
    unfinished: bool = True,
) -> StoredModel:
    """Load a model from an unfinished run, a checkpoint, or anything that `store.read_model` can load.

    With `unfinished=False`, the newest checkpoint of an unfinished run is not loaded, only a checkpoint that `name`
    gives. This is for `model.from`, which must not change its meaning while that run trains.
    """
    path = to_path(name)
    if is_checkpoint(path) or (path / RECIPE_FILE).is_file():
        from qkv.train.run.load_checkpoint import load_run

        stored = load_run(name, device, dtype, head, unfinished)
    else:
        stored = store.read_model(name, device=device, dtype=dtype, head=head)
    stored.notes += bundled_notes(name)
    return stored
