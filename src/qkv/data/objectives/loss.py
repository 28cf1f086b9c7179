"""What a loss is computed from, and the loss that most objectives share.

A loss is a function of a forward pass. It returns sums; the trainer divides each sum by the number of labels in the
global batch, over all micro-batches and ranks. So the gradients of any split of a batch add up to the gradient of the
whole batch.

This module does not import torch, and no objective does: torch is imported when a loss is computed.

B batch, T positions, E documents in a sequence, C model width, V outputs, N positions with a label
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from qkv.blocks import SequenceLayout
    from qkv.blocks.head import Head
    from qkv.blocks.inputs import Inputs


class LossSums(NamedTuple):
    """The losses of a batch, summed over the labels of tokens and over the labels of documents; None: no such label."""

    tokens: "Tensor | None" = None
    documents: "Tensor | None" = None


class ForwardPass(Protocol):
    """The network and a batch. Each method runs as much of the network as it needs."""

    inputs: "Inputs"
    labels: "Mapping[str, Tensor]"  # by the names that the objective declares
    head: "Head"
    options: Any  # the recipe's [objective] section
    label_smoothing: float  # 0 in evaluation

    def hidden(self, inputs: "Inputs | None" = None) -> "tuple[Tensor, SequenceLayout]":
        """The input of the head at all positions (B, T, C), and its layout. The default is the input of the batch."""
        ...

    def token_losses(self, x: "Tensor | None" = None) -> "Tensor":
        """The summed cross-entropy of the labels `tokens`.

        Without `x` (B, T, C), the last block computes only the positions that have a label.
        """
        ...

    def document_outputs(self) -> "Tensor":
        """The outputs of a head that pools, (B, E, V)."""
        ...

    def cross_entropy(self, logits: "Tensor", targets: "Tensor", label_smoothing: float = 0.0) -> "Tensor":
        """The summed cross-entropy of logits (N, V) and targets (N,), without targets that are `IGNORE_INDEX`."""
        ...


def token_loss(run: ForwardPass) -> LossSums:
    """The loss of objectives that predict a class for each token, such as the next token or a tag."""
    return LossSums(tokens=run.token_losses())
