"""Load the model of a checkpoint: with averaged weights and merged adapters, verified against the checksums."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv import store
from qkv.blocks import HeadConfig
from qkv.errors import QkvError
from qkv.files import to_path
from qkv.models import Config
from qkv.store import StoredModel
from qkv.store.config_json import parse_config
from qkv.store.model_folder import assign_parameters, build_on_meta, initialise_missing, replace_head
from qkv.text import Tokenizer
from qkv.train.adapt import LoraLinear, merge_lora, replace_module
from qkv.train.checkpoint.files import (
    EMA_PREFIX,
    MANIFEST_FILE,
    WEIGHTS_PREFIX,
    DamagedCheckpoint,
    is_checkpoint,
    raise_as_damaged,
    run_path,
    step_folder_name,
)
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.recipe import recipe_file
from qkv.train.run.folder import MODEL_CONFIG, RunFolder, resume_command

MAX_ATTEMPTS = 500
"""The number of attempts to read a checkpoint of a running job, which may delete it at the same time."""


def load_run(
    name: str | Path,
    device: torch.device | str,
    dtype: torch.dtype | None,
    head: HeadConfig | None,
    unfinished: bool,
) -> StoredModel:
    """Load a model from the folder of a run or of a checkpoint. `load.load_model` has the same arguments."""
    path = to_path(name)
    run = RunFolder(path)
    if unfinished and run.is_run and not (path / MODEL_CONFIG).exists() and run.checkpoints.steps():
        if head is not None:
            raise QkvError(
                f"{name}: this run has not finished; to put a new head on it, give one of its checkpoints "
                f"({run.checkpoints.folder}/step-…)"
            )
        return load_newest(run, device, dtype)
    if not is_checkpoint(path):
        stored = store.read_model(name, device=device, dtype=dtype, head=head)
        stored.notes += newer_weights_notes(run) if unfinished else []
        return stored
    try:
        return load_checkpoint(Checkpoint(path.resolve()), run_path(path), device, dtype, head)
    except DamagedCheckpoint as error:
        raise DamagedCheckpoint(f"{error}. Use another checkpoint of this run, or restore it from a backup") from error


def load_newest(run: RunFolder, device: torch.device | str, dtype: torch.dtype | None) -> StoredModel:
    """Load the newest readable checkpoint. A running job may delete checkpoints at the same time."""
    skipped: list[str] = []
    damaged: set[int] = set()
    for _ in range(MAX_ATTEMPTS):
        steps = [step for step in run.checkpoints.steps() if step not in damaged]
        if not steps:
            if damaged:
                break
            time.sleep(0.01)  # the job is about to complete the next one
            continue
        folder = run.checkpoints.folder / step_folder_name(steps[-1])
        try:
            stored = load_checkpoint(Checkpoint(folder), run.path, device, dtype)
        except DamagedCheckpoint as error:
            if folder.exists():
                skipped.append(str(error))
                damaged.add(steps[-1])
            continue
        unfinished = f"this run has not finished (resume it with {resume_command(run.path)})"
        stored.notes = [*skipped, f"{unfinished}; {stored.notes[0]}"]
        return stored
    why = skipped or ["the run deletes them before they are read; try again when it saves less often, or is finished"]
    hint = "\nRestore one from a backup, or train again" if skipped else ""
    raise QkvError(f"{run.path}: no checkpoint of this run can be read:\n  " + "\n  ".join(why) + hint)


def newer_weights_notes(run: RunFolder) -> list[str]:
    """Return a note if a finished run was continued, so that its newest checkpoint is newer than its model."""
    steps = run.checkpoints.steps() if run.is_run else []
    if not steps:
        return []
    ends = [
        int(line["step"]) for line in run.log_records() if line.get("kind") == "end" and line.get("reason") != "signal"
    ]
    if not ends or steps[-1] <= ends[-1]:
        return []
    newest = run.checkpoints.folder / step_folder_name(steps[-1])
    return [
        f"this is the model of step {ends[-1]:,}, and the run was continued since: its newest weights are in {newest}"
    ]


def load_checkpoint(
    found: Checkpoint,
    run: Path,
    device: torch.device | str,
    dtype: torch.dtype | None,
    head: HeadConfig | None = None,
) -> StoredModel:
    """Load the model of a checkpoint. Every tensor of the model is verified; the optimizer's state is not read."""
    tokenizer = Tokenizer.load(run)
    with raise_as_damaged(found.folder):
        fingerprint = found.state["invariants"].get("tokenizer")
    if tokenizer.fingerprint != fingerprint:
        raise QkvError(
            f"{found.folder}: this checkpoint was trained with another tokenizer than the one in {run}; restore the "
            "run's tokenizer.json or, if the checkpoint is of another run, move it back there"
        )
    config = read_config(found)
    new_head = head is not None and head != config.head
    if new_head and head is not None:
        config = replace_head(config, head)
    network = build_on_meta(config, len(found.tensor_names()), found.folder / MANIFEST_FILE)
    saved = set(found.tensor_names())
    adapted = [tensor.removesuffix(".lora_a") for tensor in saved if tensor.endswith(".lora_a")]
    alpha = recipe_file.loads(RunFolder(run).read_recipe(), str(run)).model.lora_alpha if adapted else 0.0
    for tensor in adapted:
        if tensor.startswith(WEIGHTS_PREFIX):
            _add_lora(network, tensor.removeprefix(WEIGHTS_PREFIX), found, alpha)
    device = torch.device(device)
    tensors: dict[str, Tensor] = {}
    shapes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    for name, shape in shapes.items():
        if new_head and name.startswith("head."):
            continue
        held = EMA_PREFIX + name if EMA_PREFIX + name in saved else WEIGHTS_PREFIX + name
        if found.shape(held) != shape:
            raise DamagedCheckpoint(
                f"{found.folder}: {held} has the shape {found.shape(held)}, the model needs {shape}"
            )
        tensors[name] = (
            torch.empty(found.shape(held), device=device) if device.type == "meta" else found.read_tensor(held)
        )
    averaged = "moving average of the " if any(name.startswith(EMA_PREFIX) for name in saved) else ""
    notes = [f"these are the {averaged}weights of step {found.step:,}"]
    if new_head:
        initialise_missing(config, tensors, [name for name in shapes if name not in tensors], notes, device)
    assign_parameters(network, tensors, device, torch.float32)
    merge_lora(network)
    return StoredModel(config, network.to(dtype or torch.float32).eval(), tokenizer, notes)


def read_config(checkpoint: Checkpoint) -> Config:
    """Return the config of a checkpoint's model. The checkpoint stores it among the invariants of its run."""
    values: dict[str, Any] = {}
    with raise_as_damaged(checkpoint.folder):
        for name, value in checkpoint.state["invariants"].items():
            *way, last = name.split(".")
            if way[:1] == ["model"]:
                inner = values
                for step in way[1:]:
                    inner = inner.setdefault(step, {})
                inner[last] = value
    return parse_config(values, str(checkpoint.folder / MANIFEST_FILE))


def _add_lora(network: torch.nn.Module, name: str, checkpoint: Checkpoint, alpha: float) -> None:
    """Add an empty LoRA adapter to a linear layer, with the rank that it has in the checkpoint."""
    linear = network.get_submodule(name)
    assert isinstance(linear, torch.nn.Linear)
    replace_module(network, name, LoraLinear(linear, checkpoint.shape(f"{WEIGHTS_PREFIX}{name}.lora_a")[0], alpha))
