"""Back ends: the configs of the modules that draw the images or sounds that a model generates.

    register_back_end(TilesConfig, Tiles)
    Config(decoder=…, back_ends=(TilesConfig(first_id=30, num_codes=8),))
    decode.draw(network, result.ids)

A generated image or sound is a sequence of codes, which are a range of the ids of the vocabulary, or a sequence of
frames, which a regression head computes. A back end is a module that takes codes (n,), counted from 0, or frames (n,
F), and returns the pixels or samples of the image or sound. It is trained on its own: the losses of the network do not
change it.
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
class BackEndConfig(ABC):
    """The config of a back end. A subclass sets `kind`, adds fields of its own, and implements `length`."""

    kind: ClassVar[str]  # the name of the back end in `BACK_ENDS`
    first_id: Annotated[int, Limits(0)] = 0  # the id of code 0
    num_codes: Annotated[int, Limits(0)] = 0  # the ids first_id … first_id + num_codes − 1; 0: it draws frames

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def length(self, size: tuple[int, int]) -> int:
        """Return the number of codes or frames of an output of this size: (rows, columns), or (frames, 1)."""

    @property
    def ids(self) -> range:
        """The ids that are codes."""
        return range(self.first_id, self.first_id + self.num_codes)


class BackEndKind(NamedTuple):
    """A row of `BACK_ENDS`: the class of the config, and the module, which is made from a config."""

    config: type[BackEndConfig]
    module: "Callable[[Any], nn.Module]"


BACK_ENDS: OpenTable[BackEndKind] = OpenTable("back end")
"""The kinds of back ends by name."""


def register_back_end(
    config: type[BackEndConfig], module: "Callable[[Any], nn.Module]", *, replace: bool = False
) -> None:
    """Add a back end of your own, built by `module(config)`. `replace` allows the `kind` of an earlier call."""
    BACK_ENDS.register(config.kind, BackEndKind(config, module), replace=replace)
