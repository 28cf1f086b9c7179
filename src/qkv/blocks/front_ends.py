"""Front ends: the configs of the modules that turn images, sounds or other vectors into inputs of a stack.

    register_front_end(SquaresConfig, Squares)
    Config(encoder=…, front_ends=(SquaresConfig(features=12),))
    network(Inputs(ids, payloads={"squares": payload}))

A front end is a module that takes a `Payload` and returns a vector of the model's width for each placeholder, (m, C).
The network writes these vectors over the embeddings of the placeholders. A config says how many placeholders an input
of a given size takes, so batches can be planned before any image is decoded.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from qkv.tables import OpenTable
from qkv.values import Limits, check

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class FrontEndConfig(ABC):
    """The config of a front end. A subclass sets `kind`, adds fields of its own, and implements `length`."""

    kind: ClassVar[str]  # the name of the front end in `FRONT_ENDS` and of its payloads in `Inputs`
    max_value: ClassVar[float] = 1.0  # random payloads, with which the doctor examines a model, have values up to this
    features: Annotated[int, Limits(1)]  # F, the length of a payload vector

    def __post_init__(self) -> None:
        check(self)

    @property
    def example_size(self) -> tuple[int, int] | None:
        """The only size of its inputs; None if they have different sizes."""
        return None

    def flops(self, size: tuple[int, int], width: int) -> int | None:
        """The FLOPs of the front end for an input of this size and a model of this width; None if it does not say."""
        return None

    @abstractmethod
    def length(self, size: tuple[int, int]) -> int:
        """Return the number of placeholders of an input of this size: (rows, columns) of patches, or (frames, 1)."""


class FrontEndKind(NamedTuple):
    """A row of `FRONT_ENDS`: the class of the config, and the module, which is made from a config and the width C."""

    config: type[FrontEndConfig]
    module: "Callable[[Any, int], nn.Module]"


FRONT_ENDS: OpenTable[FrontEndKind] = OpenTable("front end", lazy={"words": "qkv.blocks.words:WORDS"})
"""The kinds of front ends by name."""


def register_front_end(
    config: type[FrontEndConfig], module: "Callable[[Any, int], nn.Module]", *, replace: bool = False
) -> None:
    """Add a front end of your own, built by `module(config, width)`. `replace` allows the `kind` of an earlier call."""
    FRONT_ENDS.register(config.kind, FrontEndKind(config, module), replace=replace)
