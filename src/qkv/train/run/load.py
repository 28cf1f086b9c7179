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
from qkv.store import StoredModel
from qkv.store.huggingface import replace_head
from qkv.store.model_folder import assign_parameters, initialise_missing
from qkv.text import Tokenizer
from qkv.train.adapt import LoraLinear, merge_lora, replace_module
from qkv.train.checkpoint.files import MANIFEST, DamagedCheckpoint, parse_step, step_folder_name
from qkv.train.checkpoint.manager import EMA_PREFIX, WEIGHTS_PREFIX
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.recipe import recipe_file
from qkv.train.run.folder import MODEL, RunFolder, resume_command

MAX_ATTEMPTS = 500
"""How many checkpoints may vanish as they are looked at, while a run goes on, before it is given up."""


def load_model(
    name: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    head: HeadConfig | None = None,
) -> StoredModel:
    """What a folder holds, be it a model's, an unfinished run's or a checkpoint's; otherwise as `store.read`."""
    path = Path(name).expanduser()
    run = RunFolder(path)
    if run.is_run and not (path / MODEL).exists() and run.checkpoints.steps():
        if head is not None:
            raise QkvError(f"{name}: this run has not come to its end; put a fresh head on one of its checkpoints")
        return load_newest(run, device, dtype)
    stored = load_saved_model(name, device=device, dtype=dtype, head=head)
    stored.notes += newer_weights_notes(run)
    return stored


def is_checkpoint(path: Path) -> bool:
    """Whether a path is the folder of a checkpoint, by its name and what is in it."""
    return parse_step(path.resolve().name) is not None and (path / MANIFEST).is_file()


def run_path(path: Path) -> Path:
    """The folder of the run that a checkpoint belongs to; any other path as it is."""
    return path.resolve().parent.parent if is_checkpoint(path) else path


def load_saved_model(
    name: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    head: HeadConfig | None = None,
) -> StoredModel:
    """The same but for unfinished runs, whose newest checkpoint is another one tomorrow: what training goes on from."""
    path = Path(name).expanduser()
    if not is_checkpoint(path):
        return store.read_model(name, device=device, dtype=dtype, head=head)
    return load_checkpoint(Checkpoint(path.resolve()), run_path(path), device, dtype, head)


def load_newest(run: RunFolder, device: torch.device | str, dtype: torch.dtype | None) -> StoredModel:
    """The newest checkpoint that can be read. While the run goes on, some vanish as they are looked at."""
    passed_over: list[str] = []
    broken: set[int] = set()
    for _ in range(MAX_ATTEMPTS):
        left = [step for step in run.checkpoints.steps() if step not in broken]
        if not left:
            if broken:
                break
            time.sleep(0.01)  # the next one is about to be there
            continue
        place = run.checkpoints.folder / step_folder_name(left[-1])
        try:
            stored = load_checkpoint(Checkpoint(place), run.path, device, dtype)
        except DamagedCheckpoint as error:
            if place.exists():
                passed_over.append(str(error))
                broken.add(left[-1])
            continue
        go_on = f"this run has not come to its end ({resume_command(run.path)} goes on with it)"
        stored.notes = [*passed_over, f"{go_on}; {stored.notes[0]}"]
        return stored
    why = passed_over or ["they are gone before they are read; try again when the run saves less often, or is over"]
    raise QkvError(f"{run.path}: no checkpoint of this run can be read:\n  " + "\n  ".join(why))


def newer_weights_notes(run: RunFolder) -> list[str]:
    """A note where a run that had come to its end has gone on since: its model is not of its newest weights."""
    steps = run.checkpoints.steps() if run.is_run else []
    if not steps:
        return []
    ends = [
        int(line["step"]) for line in run.log_records() if line.get("kind") == "end" and line.get("reason") != "signal"
    ]
    if not ends or steps[-1] <= ends[-1]:
        return []
    newest = run.checkpoints.folder / step_folder_name(steps[-1])
    return [f"this is the model of step {ends[-1]:,}, and the run has gone on since: its newest weights are {newest}"]


def load_checkpoint(
    found: Checkpoint,
    run: Path,
    device: torch.device | str,
    dtype: torch.dtype | None,
    head: HeadConfig | None = None,
) -> StoredModel:
    """The model that a checkpoint is of. Every tensor is checked as it is read; the optimizer's state is not."""
    tokenizer = Tokenizer.load(run)
    if tokenizer.fingerprint != found.state["invariants"].get("tokenizer"):
        raise QkvError(f"{found.folder}: the tokenizer in {run} is not that of this checkpoint: put it in its own run")
    config = read_config(found)
    fresh = head is not None and head != config.head
    if fresh and head is not None:
        config = replace_head(config, head)
    network = build(config, device="meta")
    kept = set(found.tensor_names())
    adapted = [tensor.removesuffix(".lora_a") for tensor in kept if tensor.endswith(".lora_a")]
    alpha = recipe_file.loads(RunFolder(run).read_recipe(), str(run)).model.lora_alpha if adapted else 0.0
    for tensor in adapted:
        if tensor.startswith(WEIGHTS_PREFIX):
            _add_lora(network, tensor.removeprefix(WEIGHTS_PREFIX), found, alpha)
    device = torch.device(device)
    tensors: dict[str, Tensor] = {}
    names = [name for name, _ in network.named_parameters()]
    for name in names:
        if fresh and name.startswith("head."):
            continue
        held = EMA_PREFIX + name if EMA_PREFIX + name in kept else WEIGHTS_PREFIX + name
        tensors[name] = (
            torch.empty(found.shape(held), device=device) if device.type == "meta" else found.read_tensor(held)
        )
    averaged = "moving average of the " if any(name.startswith(EMA_PREFIX) for name in kept) else ""
    notes = [f"these are the {averaged}weights of step {found.step:,}"]
    if fresh:
        initialise_missing(config, tensors, [name for name in names if name not in tensors], notes, device)
    assign_parameters(network, tensors, device, torch.float32)
    merge_lora(network)
    return StoredModel(config, network.to(dtype or torch.float32).eval(), tokenizer, notes)


def read_config(checkpoint: Checkpoint) -> Config:
    """The shape of the model that a checkpoint is of, which the run wrote down to know it again."""
    values: dict[str, Any] = {}
    for name, value in checkpoint.state["invariants"].items():
        *way, last = name.split(".")
        if way[:1] == ["model"]:
            inner = values
            for step in way[1:]:
                inner = inner.setdefault(step, {})
            inner[last] = value
    return Config.from_dict(values, str(checkpoint.folder / MANIFEST))


def _add_lora(network: torch.nn.Module, name: str, checkpoint: Checkpoint, alpha: float) -> None:
    """Give a linear map the low-rank addition that it has in the checkpoint."""
    linear = network.get_submodule(name)
    assert isinstance(linear, torch.nn.Linear)
    replace_module(network, name, LoraLinear(linear, checkpoint.shape(f"{WEIGHTS_PREFIX}{name}.lora_a")[0], alpha))
