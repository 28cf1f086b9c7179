"""What a checkpoint holds, and how it comes back: weights, the optimizer's state, averages, the place in the data."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data.loader import Loader
from qkv.data.rows import Rows
from qkv.errors import QkvError
from qkv.train.average import Ema
from qkv.train.checkpoint import Checkpoints
from qkv.train.checkpoint_read import Checkpoint
from qkv.train.optimizer import optimizer_tensors
from qkv.train.progress import Progress
from qkv.train.scale import fill, pieces_of
from qkv.train.step import Stepper

WEIGHTS, OPTIMIZER, AVERAGE = "model.", "optimizer.", "average."


class Keeper:
    """Saves a run and brings it back. `same` is what must not have changed in between, by name."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        network: nn.Module,
        stepper: Stepper,
        ema: Ema | None,
        loader: Loader,
        same: Mapping[str, Any],
        held_out: Rows | None = None,
    ) -> None:
        self.checkpoints, self.network, self.stepper = checkpoints, network, stepper
        self.ema, self.loader, self.same = ema, loader, dict(same)
        self.held_out = {} if held_out is None else held_out.identity()
        self.notes: list[str] = []  # what was found changed, and no matter

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that a run cannot do without, alive."""
        named = list(self.network.named_parameters())
        trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        held = {WEIGHTS + name: parameter.detach() for name, parameter in named}
        held |= {OPTIMIZER + name: t for name, t in optimizer_tensors(self.stepper.optimizer, trained).items()}
        if self.ema is not None:
            held |= {AVERAGE + name: t for name, t in self.ema.tensors().items()}
        return held

    def save(self, progress: Progress, *, passing: bool = False) -> None:
        """Write a checkpoint, in the background; the best so far is marked as such."""
        scaler = self.stepper.scaler
        state = {
            "progress": progress.to_dict(),
            "data": self.loader.state(),
            "scaler": {} if scaler is None else scaler.state_dict(),
            "parts": self.stepper.parts,
            "same": self.same,
            "held_out": self.held_out,
            "passing": passing,
        }
        pieces = {name: pieces_of(name, tensor, self.stepper.world) for name, tensor in self.tensors().items()}
        best = progress.best_step == progress.step
        self.checkpoints.save(progress.step, pieces, state, best=best, passing=passing)

    def restore(self, found: Checkpoint) -> Progress:
        """Put everything back as it was; refused where the model, tokenizer or data is another."""
        was = found.state["same"]
        changed = [
            f"{name}: was {was.get(name)!r}, is {self.same.get(name)!r}"
            for name in sorted({*was, *self.same})
            if was.get(name) != self.same.get(name)
        ]
        if changed:
            raise QkvError(
                "this run cannot be continued, something that it depends on has changed:\n  "
                + "\n  ".join(changed)
                + "\nPut it back, or start a new run with run=…"
            )
        live = self.tensors()
        names = set(found.names())
        if names != set(live):
            missing, unknown = sorted(set(live) - names), sorted(names - set(live))
            raise QkvError(
                f"checkpoint {found.step}: its tensors are not those of this recipe "
                f"(missing {missing[:3]}, unknown {unknown[:3]}); was the optimizer, ema or model changed?"
            )
        with torch.no_grad():
            for name, tensor in live.items():
                fill(tensor, found, name, self.stepper.world)
        if self.stepper.scaler is not None and found.state["scaler"]:
            self.stepper.scaler.load_state_dict(found.state["scaler"])
        if self.stepper.section.micro_batch == "auto":
            self.stepper.parts = int(found.state["parts"])
        if found.state.get("passing"):
            self.checkpoints.passing = found.step
        self.loader.load(found.state["data"])
        progress = Progress.from_dict(found.state["progress"])
        if found.state.get("held_out", self.held_out) != self.held_out:
            self.notes.append("the held-out data is not what it was: which weights are the best is found out anew")
            progress.best = progress.best_loss = None
        return progress
