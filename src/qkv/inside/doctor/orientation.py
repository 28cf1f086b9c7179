"""Are images read as in training? A model that reads them upside down, or with red and blue swapped, has a lower loss
on images that are changed in the same way.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qkv.blocks import Inputs
from qkv.images.config import PatchesConfig
from qkv.inside.doctor.finding import Finding, failed, passed, skipped
from qkv.inside.doctor.subject import Subject

KIND = PatchesConfig.kind
MAX_GAIN = 0.1
"""How much lower the loss of changed images may be: where images look alike from all sides, the losses are equal."""


def flip_rows(pixels: Tensor) -> Tensor:
    """Turn images upside down: (k, rows, columns, P, P, 3)."""
    return pixels.flip(1, 3)


def swap_channels(pixels: Tensor) -> Tensor:
    """Swap red and blue."""
    return pixels.flip(5)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {"upside down": flip_rows, "with red and blue swapped": swap_channels}


def check_orientation(subject: Subject) -> Finding:
    """The loss must not be lower on images that are upside down or have swapped channels."""
    config: Any = next((one for one in subject.config.front_ends if one.kind == KIND), None)
    if config is None:
        return skipped("the model reads no images")
    if subject.is_new or subject.has_random_batch or not subject.has_loss:
        return skipped("it needs trained weights and data: give the folder of a run")
    network = subject.copy()
    with torch.no_grad():
        before = float(subject.loss(network))
        losses = {
            name: float(subject.loss(network, replace(subject.batch, inputs=change_images(subject, config, change))))
            for name, change in CHANGES.items()
        }
    name = min(losses, key=lambda one: losses[one])
    values = {"loss": before, **{f"loss {one}": loss for one, loss in losses.items()}}
    if losses[name] < before - MAX_GAIN:
        return failed(
            f"the loss is {before:.3g}, and {losses[name]:.3g} with images {name}",
            "images are read in another way than in training; check the code that reads them, and the order of the "
            "channels",
            **values,
        )
    return passed(f"the loss is {before:.3g}, and at least {losses[name]:.3g} with changed images", **values)


def change_images(subject: Subject, config: PatchesConfig, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The inputs of the batch with changed images."""
    inputs = subject.batch.inputs
    side = inputs if KIND in inputs.payloads else inputs.source
    assert side is not None
    payload, patch = side.payloads[KIND], config.patch
    pixels = payload.values.view(-1, *config.grid, patch, patch, 3)
    values = change(pixels).reshape(payload.values.shape)
    changed = replace(side, payloads={**side.payloads, KIND: payload._replace(values=values)})
    return changed if side is inputs else replace(inputs, source=changed)
