"""The tap that applies edits: which heads, positions and neurons of a value an edit replaces.

`edits.py` makes edits, and defines what positions mean while generating.

B batch, T tokens or queries, H heads
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.blocks import SequenceLayout, Tap
from qkv.blocks.parts import find_part
from qkv.errors import UsageError
from qkv.inside.sites import PER_HEAD_SITES, activation_of, check_sites, list_sites
from qkv.inside.trace import LOGITS
from qkv.models import Config


class SiteContext(NamedTuple):
    """Where a value was computed."""

    name: str  # the full name of the site, such as "decoder.3.z"
    positions: Tensor  # the position of each token along the token axis of the value, (B or 1, T)
    lengths: tuple[int, int]  # of the shortest and the longest sequence; while generating, of the prompts
    has_padding: bool  # whether some sequence of the batch has padding

    @property
    def activation(self) -> str:
        """The last part of the name, without "cross_"."""
        return activation_of(self.name)


Replacement = Callable[[Tensor, SiteContext], Tensor]
"""A function of a value and its context that returns the new value, which has the same shape."""


@dataclass(frozen=True)
class Edit:
    """A change of an activation. The functions in `edits.py` make edits.

    `heads` are heads of the site's own axis: of k and v, the key/value heads. `neurons` are indices of the last axis.
    None means all.
    """

    site: str
    replacement: Replacement
    heads: Sequence[int] | None = None
    positions: Sequence[int] | slice | None = None
    neurons: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.positions, slice) and (self.positions.step or 1) < 1:
            raise UsageError(f"positions = {self.positions}: the step must be at least 1")
        for name in ("heads", "positions", "neurons"):
            chosen = getattr(self, name)
            if chosen is not None and not isinstance(chosen, slice):
                object.__setattr__(self, name, tuple(chosen))


class EditTap(Tap):
    """A tap that applies edits, in their order, and records sites. Make a new one for each run or `generate` call."""

    def __init__(self, edits: Iterable[Edit] = (), record: Iterable[str] = (), heads: Iterable[int] | None = None):
        self.edits = tuple(edits)
        super().__init__(record, {edit.site: lambda value: value for edit in self.edits}, heads)
        self._lengths: dict[str, tuple[int, int]] = {}  # of each stack, in its first forward pass
        self._has_padding = False
        self._applied = [False] * len(self.edits)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        for number, edit in enumerate(self.edits):
            if fnmatchcase(name, edit.site):
                value = self._apply(number, edit, name, value)
        return super().__call__(name, value)

    def unapplied(self) -> list[str]:
        """Return a message for each edit that was never applied, because its positions did not occur in the run."""
        return [
            f"the edit of {edit.site!r} was never applied: no token had one of its positions {edit.positions}"
            for edit, applied in zip(self.edits, self._applied, strict=True)
            if not applied
        ]

    def _apply(self, number: int, edit: Edit, name: str, value: Tensor) -> Tensor:
        context = self._context(name, value)
        mask = _selection_mask(edit, context, value)
        if mask is not None and edit.positions is not None and not bool(mask.any()):
            return value
        self._applied[number] = True
        new = edit.replacement(value, context)
        if new.shape != value.shape:
            raise UsageError(
                f"the edit of {name} returned shape {tuple(new.shape)}, but the value has {tuple(value.shape)}; "
                "return a value of the same shape"
            )
        return new.to(value.dtype) if mask is None else torch.where(mask, new.to(value.dtype), value)

    def _context(self, name: str, value: Tensor) -> SiteContext:
        stack, _, activation = name.partition(".")
        is_source = activation.endswith(("cross_k", "cross_v"))
        layout = self.layouts["source" if is_source else stack]
        for read in (layout, self.layouts["source"]) if "cross_" in name else (layout,):
            self._has_padding = self._has_padding or (read.padding is not None and bool(read.padding.any()))
        lengths = self._lengths.setdefault("source" if is_source else stack, _sequence_lengths(layout))
        if value.dim() < 3:
            raise UsageError(f"{name}: an edit needs all positions of a sequence; run the network without `selected`")
        num_beams = value.shape[-2] // layout.positions.shape[1]
        if num_beams > 1:  # cross-attention has the beams of a source on the query axis
            layout = layout.fold_beams(num_beams)
        return SiteContext(name, layout.positions, lengths, self._has_padding)


def check_edits(config: Config, edits: Edit | Iterable[Edit]) -> list[Edit]:
    """Return the edits as a list, and raise an error if the site of one of them matches no site of the model."""
    listed = [edits] if isinstance(edits, Edit) else list(edits)
    for edit in listed:
        if not isinstance(edit, Edit):
            raise UsageError(f"edits: {str(edit)[:80]} is not an edit; make edits with qkv.inside.zero_ablate, …")
        if edit.site == LOGITS:
            raise UsageError("edits: the logits are not in a stack; edit the site 'final', or use logits_processors")
        check_sites(config, edit.site)
        read_only = [site for site in _read_only_sites(config) if fnmatchcase(site, edit.site)]
        if read_only:
            raise UsageError(
                f"edits: {read_only[0]} is read-only, because all later states depend on it, so it cannot be edited; "
                "edit the states: *.state"
            )
    return listed


def _read_only_sites(config: Config) -> list[str]:
    names = {site for stack in config.stacks.values() for site in find_part("block", stack).read_only_sites}
    return [site for site in list_sites(config) if site.rsplit(".", 1)[-1] in names]


def _selection_mask(edit: Edit, context: SiteContext, value: Tensor) -> Tensor | None:
    """Return a mask that broadcasts to the value: True for the chosen heads, positions and neurons. None: all."""
    mask = None
    if edit.positions is not None:
        mask = expand_token_mask(_selected_positions(edit.positions, context), context)
    if edit.heads is not None:
        if context.activation not in PER_HEAD_SITES:
            raise UsageError(f"heads: {context.name} has no head axis; use one of {', '.join(PER_HEAD_SITES)}")
        chosen = _index_mask(edit.heads, value.shape[1], "heads", context)[:, None, None].to(value.device)
        mask = chosen if mask is None else mask & chosen
    if edit.neurons is not None:
        chosen = _index_mask(edit.neurons, value.shape[-1], "neurons", context).to(value.device)
        mask = chosen if mask is None else mask & chosen
    return mask


def _index_mask(indices: Sequence[int], size: int, name: str, context: SiteContext) -> Tensor:
    wrong = [i for i in indices if not 0 <= i < size]
    if wrong:
        raise UsageError(f"{name}: there is no {wrong[0]}; {context.name} has {name} 0 … {size - 1}")
    mask = torch.zeros(size, dtype=torch.bool)
    mask[list(indices)] = True
    return mask


def _selected_positions(chosen: Sequence[int] | slice, context: SiteContext) -> Tensor:
    """Return which tokens are chosen, (B or 1, T). Slices follow Python's rules, but may go beyond the prompt."""
    positions = context.positions
    if isinstance(chosen, slice):
        start = max(_from_start(chosen.start or 0, context), 0)
        selected = (positions >= start) & ((positions - start) % (chosen.step or 1) == 0)
        return selected if chosen.stop is None else selected & (positions < _from_start(chosen.stop, context))
    listed = [_from_start(position, context) for position in chosen]
    if min(listed, default=0) < 0:
        raise UsageError(f"position {min(chosen)}: the sequence has only {context.lengths[1]} tokens")
    return torch.isin(positions, torch.tensor(listed, device=positions.device))


def _from_start(position: int, context: SiteContext) -> int:
    """Convert a negative position, which counts from the end of the sequence. The result may be negative."""
    if position >= 0:
        return position
    shortest, longest = context.lengths
    if shortest != longest:
        raise UsageError(
            f"position {position} counts from the end, but the sequences of this batch have {shortest} to {longest} "
            "tokens; run them one by one, or give positions from 0"
        )
    return position + longest


def _sequence_lengths(layout: SequenceLayout) -> tuple[int, int]:
    """Return the lengths of the shortest and the longest sequence, without padding."""
    ends = layout.positions + 1
    if layout.document_ids is not None:
        ends = torch.where(layout.document_ids != 0, ends, 0)
    lengths = ends.amax(dim=1)
    return int(lengths.min()), int(lengths.max())


def expand_token_mask(mask: Tensor, context: SiteContext) -> Tensor:
    """Give a mask of tokens (B, T) the axes of the value: (B, T, 1), or (B, 1, T, 1) for values per head."""
    return mask[:, None, :, None] if context.activation in PER_HEAD_SITES else mask[:, :, None]
