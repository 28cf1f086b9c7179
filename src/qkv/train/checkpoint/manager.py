"""What a checkpoint holds, and how it comes back: weights, the optimizer's state, averages, the place in the data."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data.load.loader import Loader
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import QkvError
from qkv.train.checkpoint.folder import CheckpointFolder
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.optim.averages import Ema
from qkv.train.optim.optimizers import optimizer_tensors
from qkv.train.parallel.parallelize import load_slices, local_slices
from qkv.train.progress import Progress
from qkv.train.step import Stepper

WEIGHTS_PREFIX, OPTIMIZER_PREFIX, EMA_PREFIX = "model.", "optimizer.", "average."


class CheckpointManager:
    """Saves a run and brings it back. `same` is what must not have changed in between, by name."""

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
        self.validation_identity = {} if valid_data is None else valid_data.invariants()
        self.notes: list[str] = []  # what was found changed, and no matter

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that a run cannot do without, alive."""
        named = list(self.network.named_parameters())
        trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        held = {WEIGHTS_PREFIX + name: parameter.detach() for name, parameter in named}
        held |= {OPTIMIZER_PREFIX + name: t for name, t in optimizer_tensors(self.stepper.optimizer, trained).items()}
        if self.ema is not None:
            held |= {EMA_PREFIX + name: t for name, t in self.ema.state_tensors().items()}
        return held

    def save(self, progress: Progress, *, temporary: bool = False) -> None:
        """Write a checkpoint, in the background; the best so far is marked as such."""
        scaler = self.stepper.scaler
        state = {
            "progress": progress.to_dict(),
            "data": self.loader.state_dict(),
            "scaler": {} if scaler is None else scaler.state_dict(),
            "parts": self.stepper.num_micro_batches,
            "same": self.invariants,
            "held_out": self.validation_identity,
            "passing": temporary,
        }
        pieces = {name: local_slices(name, tensor, self.stepper.world) for name, tensor in self.tensors().items()}
        best = progress.best_step == progress.step
        self.checkpoints.save(progress.step, pieces, state, best=best, temporary=temporary)

    def restore(self, checkpoint: Checkpoint) -> Progress:
        """Put everything back as it was; refused where the model, tokenizer or data is another."""
        was = checkpoint.state["same"]
        changed = [
            f"{name}: was {was.get(name)!r}, is {self.invariants.get(name)!r}"
            for name in sorted({*was, *self.invariants})
            if was.get(name) != self.invariants.get(name)
        ]
        if changed:
            raise QkvError(
                "this run cannot be continued, something that it depends on has changed:\n  "
                + "\n  ".join(changed)
                + "\nPut it back, or start a new run with run=…"
            )
        live = self.tensors()
        names = set(checkpoint.tensor_names())
        if names != set(live):
            missing, unknown = sorted(set(live) - names), sorted(names - set(live))
            raise QkvError(
                f"checkpoint {checkpoint.step}: its tensors are not those of this recipe "
                f"(missing {missing[:3]}, unknown {unknown[:3]}); was the optimizer, ema or model changed?"
            )
        with torch.no_grad():
            for name, tensor in live.items():
                load_slices(tensor, checkpoint, name, self.stepper.world)
        if self.stepper.scaler is not None and checkpoint.state["scaler"]:
            self.stepper.scaler.load_state_dict(checkpoint.state["scaler"])
        if self.stepper.section.micro_batch_tokens == "auto":
            self.stepper.num_micro_batches = int(checkpoint.state["parts"])
        if checkpoint.state.get("passing"):
            self.checkpoints.temporary_step = checkpoint.step
        self.loader.load_state_dict(checkpoint.state["data"])
        progress = Progress.from_dict(checkpoint.state["progress"])
        if checkpoint.state.get("held_out", self.validation_identity) != self.validation_identity:
            self.notes.append("the held-out data is not what it was: which weights are the best is found out anew")
            progress.best_value = progress.best_loss = None
        return progress
