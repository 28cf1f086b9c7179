"""The input of a network: a batch of token ids, where documents begin and end, and payloads of other modalities.

    network(ids)                                              each sequence is one document
    network(Inputs(ids, document_ids=document_ids))           padded sequences, or several documents in a sequence
    network(Inputs(target_ids, source=Inputs(source_ids)))    an encoder-decoder

A payload holds vectors that are not in the vocabulary, such as patches of images. Each image or sound occupies a span
of placeholder ids in its sequence; a front end computes the vectors that replace the embeddings of these placeholders.

B batch, T tokens, S tokens of the source, F numbers of a payload vector
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor


class Payload(NamedTuple):
    """The images or sounds of a batch for one front end: k items, one after the other."""

    values: Tensor  # (n, F) patches of pixels, frames of a spectrogram; item i has the product of sizes[i]
    rows: Tensor  # (m,) the flat index b·T + t of each placeholder
    sizes: Tensor  # (k, 2) the height and width of an image in patches; the length of a sound, and 1
    lengths: Tensor  # (k,) the number of placeholders of each item; m in total

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Payload":
        """Move the tensors to a device."""
        return Payload(*(tensor.to(device, non_blocking=non_blocking) for tensor in self))

    @property
    def starts(self) -> Tensor:
        """The flat index of the first placeholder of each item, (k,)."""
        return self.rows[self.lengths.cumsum(0) - self.lengths]

    def select(self, is_selected: Tensor, move: Callable[[Tensor], Tensor]) -> "Payload":
        """Return the items of `is_selected` (k,). `move` converts the flat indices of placeholders to new ones."""
        values = self.values[is_selected.repeat_interleave(self.sizes.prod(1))]
        rows = self.rows[is_selected.repeat_interleave(self.lengths)]
        return Payload(values, move(rows), self.sizes[is_selected], self.lengths[is_selected])


@dataclass(frozen=True)
class Inputs:
    """A batch of sequences for a network of any family.

    `document_ids` are 1, 2, … for the documents of a sequence, and 0 for padding, which may be left or right. None
    means one document per sequence and no padding. By default, positions count from 0 in each document. `source` is
    the input of the encoder of an encoder-decoder; a document of `ids` reads the source document with the same id.

    The two limits are optional and make packed sequences faster. If `max_documents` is given, heads that pool return
    one vector per document, (B, max_documents, V), instead of (B, V).
    """

    ids: Tensor  # (B, T)
    _: KW_ONLY
    document_ids: Tensor | None = None  # (B, T)
    positions: Tensor | None = None  # (B, T), or (1, T) if they are the same in all sequences
    token_type_ids: Tensor | None = None  # (B, T); None: all 0
    payloads: Mapping[str, Payload] = field(default_factory=dict)  # by the name of the front end
    source: "Inputs | None" = None
    max_documents: int = 0  # no sequence has more documents; 0: unknown
    max_document_length: int = 0  # no document has more tokens; 0: unknown

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence[Sequence[int] | Any],
        *,
        pad_token_id: int = 0,
        side: Literal["left", "right"] = "right",
        token_type_ids: Sequence[Sequence[int] | Any] | None = None,
        always_document_ids: bool = False,
        device: torch.device | str = "cpu",
    ) -> "Inputs":
        """Return token sequences (lists, arrays or tensors) as one batch, padded to the length of the longest.

        If nothing is padded, document ids are None, for which the fastest kernels apply, unless `always_document_ids`.

        >>> inputs = Inputs.from_sequences([[5, 6, 7], [8]])
        >>> inputs.ids.tolist(), inputs.document_ids.tolist()
        ([[5, 6, 7], [8, 0, 0]], [[1, 1, 1], [1, 0, 0]])
        """
        lengths = [len(sequence) for sequence in sequences]
        document_ids = None
        if always_document_ids or any(length < max([1, *lengths]) for length in lengths):
            document_ids = pad_sequences([[1] * length for length in lengths], 0, side=side).to(device)
        types = None if token_type_ids is None else pad_sequences(token_type_ids, 0, side=side).to(device)
        ids = pad_sequences(sequences, pad_token_id, side=side).to(device)
        return cls(ids, document_ids=document_ids, token_type_ids=types)

    @property
    def batch_size(self) -> int:
        """The number of sequences."""
        return self.ids.shape[0]

    @property
    def device(self) -> torch.device:
        """The device of the ids."""
        return self.ids.device

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Inputs":
        """Move all tensors to a device."""
        moved = self._map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        payloads = {name: payload.to(device, non_blocking=non_blocking) for name, payload in self.payloads.items()}
        source = None if self.source is None else self.source.to(device, non_blocking=non_blocking)
        return replace(moved, payloads=payloads, source=source)

    def __getitem__(self, rows: slice) -> "Inputs":
        """Return some of the sequences, with their sources. The slice has no step."""
        first, end, step = rows.indices(self.batch_size)
        if step != 1:
            raise ValueError(f"{rows}: a slice of inputs has no step")
        length = self.ids.shape[1]
        payloads = {}
        for name, payload in self.payloads.items():
            row = payload.starts // length
            payloads[name] = payload.select((row >= first) & (row < end), lambda index: index - first * length)
        taken = self._map_tensors(lambda tensor: tensor if len(tensor) < self.batch_size else tensor[first:end])
        return replace(taken, payloads=payloads, source=None if self.source is None else self.source[first:end])

    def columns(self, first: int, end: int) -> "Inputs":
        """Return the tokens `first` to `end` − 1 of each sequence. The span of a payload must not be split."""
        length, payloads = self.ids.shape[1], {}
        for name, payload in self.payloads.items():
            column = payload.starts % length
            payloads[name] = payload.select(
                (column >= first) & (column < end),
                lambda index: index // length * (end - first) + index % length - first,
            )
        return replace(self._map_tensors(lambda tensor: tensor[:, first:end]), payloads=payloads)

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Inputs":
        names = ("ids", "document_ids", "positions", "token_type_ids")
        values = {name: getattr(self, name) for name in names}
        mapped: dict[str, Any] = {name: None if value is None else function(value) for name, value in values.items()}
        return replace(self, **mapped)


def as_inputs(inputs: Inputs | Tensor) -> Inputs:
    """Return `inputs`; a tensor of ids (B, T) becomes a batch of documents without padding."""
    return Inputs(inputs) if isinstance(inputs, Tensor) else inputs


def pad_sequences(
    sequences: Sequence[Sequence[int] | Any], value: int, *, side: Literal["left", "right"] = "right"
) -> Tensor:
    """Sequences (lists, arrays or tensors of integers) as one tensor (B, T), padded with `value` on one side.

    >>> pad_sequences([[5, 6, 7], [8]], 0).tolist()
    [[5, 6, 7], [8, 0, 0]]
    """
    length = max([1, *map(len, sequences)])  # a batch of empty sequences still has one position
    out = torch.full((len(sequences), length), value, dtype=torch.long)
    for i, sequence in enumerate(sequences):
        start = length - len(sequence) if side == "left" else 0
        out[i, start : start + len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
    return out
