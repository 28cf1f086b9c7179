"""A model from a run's checkpoint: a run is tried before its end, or an earlier step of it is gone back to.

read("runs/a")                                a run that has no model yet: its newest checkpoint
read("runs/a/checkpoints/step-000000400")     this checkpoint
read("models/b")                              anything else, as the store reads it
"""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv import store
from qkv.blocks import HeadConfig
from qkv.errors import QkvError
from qkv.models import Config, build
from qkv.store import Stored
from qkv.store.folder import place, start_afresh
from qkv.store.foreign import with_head
from qkv.text import Tokenizer
from qkv.train import recipe_file
from qkv.train.adapt import LoraLinear, merge_lora, put
from qkv.train.checkpoint_files import MANIFEST, DamagedCheckpoint, folder_name, step_of
from qkv.train.checkpoint_read import Checkpoint
from qkv.train.keeper import AVERAGE, WEIGHTS
from qkv.train.run_folder import MODEL, RunFolder, command

PATIENCE = 500
"""How many checkpoints may vanish as they are looked at, while a run goes on, before it is given up."""


def read(
    name: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    head: HeadConfig | None = None,
) -> Stored:
    """What a folder holds, be it a model's, an unfinished run's or a checkpoint's; otherwise as `store.read`."""
    path = Path(name).expanduser()
    run = RunFolder(path)
    if run.begun and not (path / MODEL).exists() and run.checkpoints.steps():
        if head is not None:
            raise QkvError(f"{name}: this run has not come to its end; put a fresh head on one of its checkpoints")
        return newest_of(run, device, dtype)
    stored = read_fixed(name, device=device, dtype=dtype, head=head)
    stored.notes += gone_on(run)
    return stored


def is_checkpoint(path: Path) -> bool:
    """Whether a path is the folder of a checkpoint, by its name and what is in it."""
    return step_of(path.resolve().name) is not None and (path / MANIFEST).is_file()


def run_of(path: Path) -> Path:
    """The folder of the run that a checkpoint belongs to; any other path as it is."""
    return path.resolve().parent.parent if is_checkpoint(path) else path


def read_fixed(
    name: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    head: HeadConfig | None = None,
) -> Stored:
    """The same but for unfinished runs, whose newest checkpoint is another one tomorrow: what training goes on from."""
    path = Path(name).expanduser()
    if not is_checkpoint(path):
        return store.read(name, device=device, dtype=dtype, head=head)
    return model_of(Checkpoint(path.resolve()), run_of(path), device, dtype, head)


def newest_of(run: RunFolder, device: torch.device | str, dtype: torch.dtype | None) -> Stored:
    """The newest checkpoint that can be read. While the run goes on, some vanish as they are looked at."""
    passed_over: list[str] = []
    broken: set[int] = set()
    for _ in range(PATIENCE):
        left = [step for step in run.checkpoints.steps() if step not in broken]
        if not left:
            if broken:
                break
            time.sleep(0.01)  # the next one is about to be there
            continue
        place = run.checkpoints.folder / folder_name(left[-1])
        try:
            stored = model_of(Checkpoint(place), run.path, device, dtype)
        except DamagedCheckpoint as error:
            if place.exists():
                passed_over.append(str(error))
                broken.add(left[-1])
            continue
        go_on = f"this run has not come to its end ({command(run.path)} goes on with it)"
        stored.notes = [*passed_over, f"{go_on}; {stored.notes[0]}"]
        return stored
    why = passed_over or ["they are gone before they are read; try again when the run saves less often, or is over"]
    raise QkvError(f"{run.path}: no checkpoint of this run can be read:\n  " + "\n  ".join(why))


def gone_on(run: RunFolder) -> list[str]:
    """A note where a run that had come to its end has gone on since: its model is not of its newest weights."""
    steps = run.checkpoints.steps() if run.begun else []
    if not steps:
        return []
    ends = [int(line["step"]) for line in run.records() if line.get("kind") == "end" and line.get("reason") != "signal"]
    if not ends or steps[-1] <= ends[-1]:
        return []
    newest = run.checkpoints.folder / folder_name(steps[-1])
    return [f"this is the model of step {ends[-1]:,}, and the run has gone on since: its newest weights are {newest}"]


def model_of(
    found: Checkpoint,
    run: Path,
    device: torch.device | str,
    dtype: torch.dtype | None,
    head: HeadConfig | None = None,
) -> Stored:
    """The model that a checkpoint is of. Every tensor is checked as it is read; the optimizer's state is not."""
    tokenizer = Tokenizer.load(run)
    if tokenizer.fingerprint != found.state["same"].get("tokenizer"):
        raise QkvError(f"{found.folder}: the tokenizer in {run} is not that of this checkpoint: put it in its own run")
    config = config_of(found)
    fresh = head is not None and head != config.head
    if fresh and head is not None:
        config = with_head(config, head)
    network = build(config, device="meta")
    kept = set(found.names())
    adapted = [tensor.removesuffix(".lora_a") for tensor in kept if tensor.endswith(".lora_a")]
    alpha = recipe_file.loads(RunFolder(run).recipe(), str(run)).model.lora_alpha if adapted else 0.0
    for tensor in adapted:
        if tensor.startswith(WEIGHTS):
            _widen(network, tensor.removeprefix(WEIGHTS), found, alpha)
    device = torch.device(device)
    tensors: dict[str, Tensor] = {}
    names = [name for name, _ in network.named_parameters()]
    for name in names:
        if fresh and name.startswith("head."):
            continue
        held = AVERAGE + name if AVERAGE + name in kept else WEIGHTS + name
        tensors[name] = torch.empty(found.shape(held), device=device) if device.type == "meta" else found.whole(held)
    averaged = "moving average of the " if any(name.startswith(AVERAGE) for name in kept) else ""
    notes = [f"these are the {averaged}weights of step {found.step:,}"]
    if fresh:
        start_afresh(config, tensors, [name for name in names if name not in tensors], notes, device)
    place(network, tensors, device, torch.float32)
    merge_lora(network)
    return Stored(config, network.to(dtype or torch.float32).eval(), tokenizer, notes)


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


def _widen(network: torch.nn.Module, name: str, checkpoint: Checkpoint, alpha: float) -> None:
    """Give a linear map the low-rank addition that it has in the checkpoint."""
    linear = network.get_submodule(name)
    assert isinstance(linear, torch.nn.Linear)
    put(network, name, LoraLinear(linear, checkpoint.shape(f"{WEIGHTS}{name}.lora_a")[0], alpha))
