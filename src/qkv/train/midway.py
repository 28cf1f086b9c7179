"""A model from a run's checkpoint: a run is tried before its end, or an earlier step of it is gone back to.

read("runs/a")                                a run that has no model yet: its newest checkpoint
read("runs/a/checkpoints/step-000000400")     this checkpoint
read("models/b")                              anything else, as the store reads it
"""

from pathlib import Path
from typing import Any

import torch

from qkv import store
from qkv.errors import QkvError
from qkv.models import Config, build
from qkv.store import Stored
from qkv.store.folder import place
from qkv.text import Tokenizer
from qkv.train import recipe_file
from qkv.train.adapt import LoraLinear, merge_lora, put
from qkv.train.checkpoint_files import MANIFEST
from qkv.train.checkpoint_read import Checkpoint
from qkv.train.keeper import AVERAGE, WEIGHTS
from qkv.train.run_folder import MODEL, RunFolder


def read(
    name: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None, **options: Any
) -> Stored:
    """What a folder holds, be it a model's, an unfinished run's or a checkpoint's; `options` are for models'."""
    path = Path(name).expanduser()
    if (path / MANIFEST).is_file():
        run, found = RunFolder(path.resolve().parent.parent), Checkpoint(path)
        found.verify()
        notes = [f"these are the weights of step {found.step:,}"]
    else:
        run, newest = RunFolder(path), None
        if run.begun and not (path / MODEL).exists():
            newest = run.checkpoints.newest()
        if newest is None:
            return store.read(name, device=device, dtype=dtype, **options)
        found = newest
        go_on = f"go on with: qkv train {path}"
        notes = [
            *found.passed_over,
            f"this run has not come to its end, these are the weights of step {found.step:,}; {go_on}",
        ]
    if options.get("head") is not None:
        raise QkvError(
            f"{name}: a fresh head needs a model, and this is a checkpoint of a run; go on with the run first"
        )
    config = config_of(found)
    network = build(config, device="meta")
    kept = set(found.names())
    for tensor in kept:
        if tensor.startswith(WEIGHTS) and tensor.endswith(".lora_a"):
            _widen(network, tensor.removeprefix(WEIGHTS).removesuffix(".lora_a"), found, run)
    tensors = {}
    for parameter, _ in network.named_parameters():
        averaged = AVERAGE + parameter
        tensors[parameter] = found.whole(averaged if averaged in kept else WEIGHTS + parameter)
    place(network, tensors, torch.device(device), dtype or torch.float32)
    merge_lora(network)
    return Stored(config, network.eval(), Tokenizer.load(run.path), notes)


def config_of(checkpoint: Checkpoint) -> Config:
    """The shape of the model that a checkpoint is of, which the run wrote down to know it again."""
    values: dict[str, Any] = {}
    for name, value in checkpoint.state["same"].items():
        *way, last = name.split(".")
        if way[:1] == ["model"]:
            inner = values
            for step in way[1:]:
                inner = inner.setdefault(step, {})
            inner[last] = value
    return Config.from_dict(values, str(checkpoint.folder / MANIFEST))


def _widen(network: torch.nn.Module, name: str, checkpoint: Checkpoint, run: RunFolder) -> None:
    """Give a linear map the low-rank addition that it has in the checkpoint."""
    alpha = recipe_file.loads(run.recipe(), str(run.path)).model.lora_alpha
    linear = network.get_submodule(name)
    assert isinstance(linear, torch.nn.Linear)
    put(network, name, LoraLinear(linear, checkpoint.shape(f"{WEIGHTS}{name}.lora_a")[0], alpha))
