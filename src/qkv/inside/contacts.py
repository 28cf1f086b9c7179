"""Which residues of a protein attend to each other: a map that resembles its contacts.

Residues that touch in the folded protein mutate together, so heads of a masked language model attend from one to the
other. Each pattern is made symmetric, and the product of the means of its row and column is subtracted ("average
product correction"). A logistic regression on all heads turns them into probabilities (Rao et al. 2021). ESM-2 comes
with its weights; without such weights the map is the mean of chosen heads, which is no probability.

T residues, H heads of all layers
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from qkv.errors import UsageError
from qkv.inside.attention import attention_pattern
from qkv.inside.record import trace
from qkv.models import Network
from qkv.text import Tokenizer
from qkv.text.residues import RESIDUES

LONG_RANGE = 24
"""Residues this far apart in the sequence are called a long-range pair."""


class ContactWeights(NamedTuple):
    """The logistic regression of an ESM checkpoint."""

    weight: Tensor  # (H,), all heads of the first layer, then those of the second, …
    bias: Tensor  # ()


class Contact(NamedTuple):
    """Two residues, counted from 1, and their score."""

    first: int
    second: int
    score: float


@dataclass(frozen=True)
class ContactMap:
    """A score for each pair of residues, (T, T)."""

    sequence: str
    scores: Tensor
    are_probabilities: bool

    def top(self, count: int = 0, min_separation: int = LONG_RANGE) -> list[Contact]:
        """The pairs with the highest scores at this distance in the sequence; by default as many as residues."""
        first, second = torch.triu_indices(len(self.scores), len(self.scores), offset=min_separation)
        values = self.scores[first, second]
        chosen = values.argsort(descending=True, stable=True)[: count or len(self.sequence)]
        return [Contact(int(first[n]) + 1, int(second[n]) + 1, float(values[n])) for n in chosen]

    def precision(
        self, contacts: Collection[tuple[int, int]], count: int = 0, min_separation: int = LONG_RANGE
    ) -> float:
        """The fraction of the top pairs that are in `contacts`, which are counted from 1."""
        known = {(min(pair), max(pair)) for pair in contacts}
        found = self.top(count, min_separation)
        return sum((one.first, one.second) in known for one in found) / max(len(found), 1)


def read_contact_weights(folder: str | Path) -> ContactWeights:
    """The weights of the contact head in an ESM folder of transformers."""
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            name = next((one for one in list(file.keys()) if one.endswith("contact_head.regression.weight")), "")
            if name:
                bias = file.get_tensor(name.removesuffix("weight") + "bias")
                return ContactWeights(file.get_tensor(name)[0].float(), bias[0].float())
    raise UsageError(f"{folder}: no safetensors file there has a contact head; ESM-2 folders of transformers have one")


@torch.no_grad()
def map_contacts(
    network: Network,
    tokenizer: Tokenizer,
    text: str,
    weights: ContactWeights | None = None,
    heads: Sequence[tuple[int, int]] = (),
) -> ContactMap:
    """The contact map of a protein: with the weights of a contact head, or the mean of heads (layer, head).

    Without `weights` and `heads`, it is the mean of all heads.
    """
    if not tokenizer.reads_residues or network.config.family != "encoder":
        raise UsageError("contacts need an encoder of proteins, such as ESM-2")
    ids = tokenizer.encode(text)
    letters = [tokenizer.id_to_token(one) or "" for one in ids]
    positions = [t for t, letter in enumerate(letters) if letter in RESIDUES]
    if len(positions) < 2:
        raise UsageError(f"{text[:40]!r} has fewer than two residues; give a protein")
    stack = network.config.stack
    found = trace(network, ids, sites="*.pattern", tokenizer=tokenizer)
    patterns = torch.cat([attention_pattern(network, found, f"encoder.{i}.pattern") for i in range(stack.layers)])
    maps = correct(patterns[:, positions][:, :, positions].float())  # (H, T, T)
    if weights is not None and len(weights.weight) != len(maps):
        raise UsageError(f"the contact head has {len(weights.weight)} weights, but the model has {len(maps)} heads")
    chosen = [layer * stack.heads + head for layer, head in heads] or list(range(len(maps)))
    if weights is None:
        scores = maps[chosen].mean(0)
    else:
        scores = torch.sigmoid(torch.einsum("h,hij->ij", weights.weight.to(maps), maps) + weights.bias.to(maps))
    return ContactMap("".join(letters[t] for t in positions), scores.cpu(), weights is not None)


def correct(patterns: Tensor) -> Tensor:
    """Patterns (H, T, T) made symmetric, without what the means of row and column explain."""
    maps = patterns + patterns.mT
    rows, columns = maps.sum(-1, keepdim=True), maps.sum(-2, keepdim=True)
    return maps - rows * columns / maps.sum((-1, -2), keepdim=True)
