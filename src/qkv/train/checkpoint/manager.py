"""Save and restore the state of a run: weights, optimizer state, averages, position in the data."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data.load.loader import Loader
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import QkvError
from qkv.train.checkpoint.files import EMA_PREFIX, OPTIMIZER_PREFIX, WEIGHTS_PREFIX, raise_as_damaged
from qkv.train.checkpoint.folder import CheckpointFolder
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.optim.averages import Ema
from qkv.train.optim.optimizers import optimizer_tensors
from qkv.train.parallel.shards import load_slices, local_slices
from qkv.train.progress import Progress
from qkv.train.step import Stepper

UNCHECKED = ("model.reads_sentences", "model.reads_pairs", "model.text_processor", "model.plugins")
"""Values that training does not depend on, and that the checkpoints of older runs lack."""


class CheckpointManager:
    """Collects the state of a run for a checkpoint, and restores it. The `invariants` of a run must never change."""

    def __init__(
        self,
        checkpoints: CheckpointFolder,
        network: nn.Module,
        stepper: Stepper,
        ema: Ema | None,
        loader: Loader,
        invariants: Mapping[str, Any],
        valid_data: SequenceStream | None = None,
    ) -> None:
        self.checkpoints, self.network, self.stepper = checkpoints, network, stepper
        self.ema, self.loader, self.invariants = ema, loader, dict(invariants)
        self.validation_identity = {} if valid_data is None else valid_data.resume_state()
        self.notes: list[str] = []  # notes on harmless changes that `restore` found

    def tensors(self, saved: Collection[str] | None = None) -> dict[str, Tensor]:
        """Return every tensor of the run's state. `restore` copies into these tensors, which were `saved` before."""
        named = list(self.network.named_parameters())
        trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        tensors = {WEIGHTS_PREFIX + name: parameter.detach() for name, parameter in named}
        tensors |= {
            OPTIMIZER_PREFIX + name: t for name, t in optimizer_tensors(self.stepper.optimizer, trained, saved).items()
        }
        if self.ema is not None:
            tensors |= {EMA_PREFIX + name: t for name, t in self.ema.state_tensors().items()}
        return tensors

    def save(self, progress: Progress, *, temporary: bool = False) -> None:
        """Save a checkpoint in the background. Mark it as the best if it is the best so far."""
        scaler = self.stepper.scaler
        state = {
            "progress": asdict(progress),
            "data": self.loader.state_dict(),
            "scaler": {} if scaler is None else scaler.state_dict(),
            "num_micro_batches": self.stepper.num_micro_batches,
            "invariants": self.invariants,
            "validation_data": self.validation_identity,
            "temporary": temporary,
        }
        slices = {name: local_slices(name, tensor, self.stepper.world) for name, tensor in self.tensors().items()}
        best = progress.best_step == progress.step
        self.checkpoints.save(progress.step, slices, state, best=best, temporary=temporary)

    def restore(self, checkpoint: Checkpoint) -> Progress:
        """Restore the run's state. Raise if the checkpoint is of another model, tokenizer or data."""
        with raise_as_damaged(checkpoint.folder):
            saved = dict(checkpoint.state["invariants"])
        changed = [
            f"{name}: was {saved.get(name)!r}, is {self.invariants.get(name)!r}"
            for name in sorted({*saved, *self.invariants})
            if name not in UNCHECKED and _has_changed(name, saved, self.invariants)
        ]
        if changed:
            raise QkvError(
                "this run cannot be resumed, because these have changed since it was saved:\n  "
                + "\n  ".join(changed)
                + "\nUndo the changes, or start a new run with run=…"
            )
        names = set(checkpoint.tensor_names())
        tensors = self.tensors(names)
        if names != set(tensors):
            missing, unknown = sorted(set(tensors) - names), sorted(names - set(tensors))
            raise QkvError(
                f"{checkpoint.folder}: its tensors do not match this recipe (missing {missing[:3]}, unknown "
                f"{unknown[:3]}). Undo changes of the optimizer, EMA or model, or start a new run with run=…"
            )
        with torch.no_grad():
            for name, tensor in tensors.items():
                load_slices(tensor, checkpoint, name, self.stepper.world)
        with raise_as_damaged(checkpoint.folder):
            if self.stepper.scaler is not None and checkpoint.state["scaler"]:
                self.stepper.scaler.load_state_dict(checkpoint.state["scaler"])
            if self.stepper.section.micro_batch_tokens == "auto":
                self.stepper.num_micro_batches = int(checkpoint.state["num_micro_batches"])
            if checkpoint.state["temporary"]:
                self.checkpoints.temporary_step = checkpoint.step
            self.loader.load_state_dict(checkpoint.state["data"])
            progress = Progress.from_dict(checkpoint.state["progress"])
            if checkpoint.state["validation_data"] != self.validation_identity:
                self.notes.append("the validation data has changed: the best metric so far is forgotten")
                progress.best_value = progress.best_loss = None
        return progress


def _has_changed(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a value has changed. A setting that only one version of qkv has must be off there."""
    if name in before and name in now:
        return bool(before[name] != now[name])
    return bool(before.get(name) or now.get(name))
