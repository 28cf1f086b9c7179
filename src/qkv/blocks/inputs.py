"""The input of a network: a batch of token ids, where documents begin and end, and payloads of other modalities.

    network(ids)                                              each sequence is one document
    network(Inputs(ids, document_ids=document_ids))           padded sequences, or several documents in a sequence
    network(Inputs(target_ids, source=Inputs(source_ids)))    an encoder-decoder

A payload holds vectors that are not in the vocabulary, such as patches of images. Each image or sound occupies a span
of placeholder ids in its sequence; a front end computes the vectors that replace the embeddings of these placeholders.

B batch, T tokens, S tokens of the source, F numbers of a payload vector
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor


class Payload(NamedTuple):
    """The images or sounds of a batch for one front end: k items, one after the other."""

    values: Tensor  # (n, F) patches of pixels, frames of a spectrogram; item i has sizes[i, 0] · sizes[i, 1] of them
    rows: Tensor  # (m,) the flat index b·T + t of each placeholder
    sizes: Tensor  # (k, 2) the height and width of an image in patches; the length of a sound, and 1
    lengths: Tensor  # (k,) the number of placeholders of each item; m in total

    @property
    def starts(self) -> Tensor:
        """The flat index of the first placeholder of each item, (k,)."""
        return self.rows[self.lengths.cumsum(0) - self.lengths]

    def select(self, is_selected: Tensor, move: Callable[[Tensor], Tensor]) -> "Payload":
        """Return the items of `is_selected` (k,). `move` converts the flat indices of placeholders to new ones."""
        values = self.values[is_selected.repeat_interleave(self.sizes.prod(1))]
        rows = self.rows[is_selected.repeat_interleave(self.lengths)]
        return Payload(values, move(rows), self.sizes[is_selected], self.lengths[is_selected])


class PayloadItem(NamedTuple):
    """One image or sound: a part of a text in `Inputs.from_parts`."""

    kind: str  # the name of the front end
    values: Tensor  # (n, F)
    size: tuple[int, int]
    length: int  # the number of placeholders: `length(size)` of the front end's config


@dataclass(frozen=True)
class Inputs:
    """A batch of sequences for a network of any family.

    `document_ids` are 1, 2, … for the documents of a sequence, and 0 for padding, which may be left or right. None
    means one document per sequence and no padding. By default, positions count from 0 in each document. They never
    decrease, and only the placeholders of one payload item may share a position: under the causal mask, they then
    attend to each other. `source` is the input of the encoder of an encoder-decoder; a document of `ids` reads the
    source document with the same id.

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
    max_documents: int = 0  # an upper bound on the documents of a sequence; 0: unknown
    max_document_length: int = 0  # an upper bound on the tokens of a document; 0: unknown

    @classmethod
    def from_sequences(
        cls,
        sequences: Sequence["Sequence[int] | Prompt | Any"],
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
            document_ids = pad_sequences([[1] * length for length in lengths], 0, side=side)
        types = None if token_type_ids is None else pad_sequences(token_type_ids, 0, side=side)
        ids = pad_sequences(sequences, pad_token_id, side=side)
        inputs = cls(ids, document_ids=document_ids, token_type_ids=types)
        if not any(isinstance(sequence, Prompt) for sequence in sequences):
            return inputs.to(device)
        prompts = [one if isinstance(one, Prompt) else Prompt(cls(pad_sequences([one], 0))) for one in sequences]
        starts = [ids.shape[1] - length if side == "left" else 0 for length in lengths]
        moved: dict[str, list[Payload]] = {}
        for row, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
            for name, payload in prompt.inputs.payloads.items():
                moved.setdefault(name, []).append(payload._replace(rows=payload.rows + row * ids.shape[1] + start))
        payloads = {name: Payload(*map(torch.cat, zip(*parts, strict=True))) for name, parts in moved.items()}
        positions = None
        if any(prompt.inputs.positions is not None for prompt in prompts):
            positions = pad_sequences([prompt.positions for prompt in prompts], 0, side=side)
        return replace(inputs, positions=positions, payloads=payloads).to(device)

    @classmethod
    def from_parts(
        cls, parts: Sequence[Sequence[int] | PayloadItem], *, placeholder_id: int = 0, share_positions: bool = True
    ) -> "Inputs":
        """Return one sequence of token ids and images or sounds, in this order.

        With `share_positions`, all placeholders of an item have the same position, so that a causal stack reads the
        item in both directions.

        >>> square = PayloadItem("squares", torch.rand(4, 3), (2, 2), 4)
        >>> inputs = Inputs.from_parts([[5], square, [6, 7]])
        >>> inputs.ids.tolist(), inputs.positions.tolist()
        ([[5, 0, 0, 0, 0, 6, 7]], [[0, 1, 1, 1, 1, 2, 3]])
        """
        ids: list[int] = []
        positions: list[int] = []
        items: dict[str, list[Payload]] = {}
        for part in parts:
            following = positions[-1] + 1 if positions else 0
            if not isinstance(part, PayloadItem):
                ids += part
                positions += range(following, following + len(part))
                continue
            rows = torch.arange(len(ids), len(ids) + part.length)
            payload = Payload(part.values, rows, torch.tensor([part.size]), torch.tensor([part.length]))
            items.setdefault(part.kind, []).append(payload)
            ids += [placeholder_id] * part.length
            step = 0 if share_positions else 1
            positions += [following + step * i for i in range(part.length)]
        payloads = {name: Payload(*map(torch.cat, zip(*found, strict=True))) for name, found in items.items()}
        return cls(torch.tensor([ids]), positions=torch.tensor([positions]) if items else None, payloads=payloads)

    @property
    def batch_size(self) -> int:
        """The number of sequences."""
        return self.ids.shape[0]

    @property
    def device(self) -> torch.device:
        """The device of the ids."""
        return self.ids.device

    @property
    def is_token(self) -> Tensor:
        """A mask (B, T) that is True at tokens and False at padding."""
        if self.document_ids is None:
            return torch.ones_like(self.ids, dtype=torch.bool)
        return self.document_ids != 0

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Inputs":
        """Move all tensors to a device."""
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Inputs":
        """Apply `function` to each tensor, including payloads and the source."""
        payloads = {name: Payload(*map(function, payload)) for name, payload in self.payloads.items()}
        source = None if self.source is None else self.source.map_tensors(function)
        return replace(self._map_tokens(function), payloads=payloads, source=source)

    def __getitem__(self, rows: slice) -> "Inputs":
        """Return some of the sequences, with their sources. The slice has no step."""
        first, end, step = rows.indices(self.batch_size)
        if step != 1:
            raise ValueError(f"{rows}: a slice of inputs must have step 1")
        length = self.ids.shape[1]
        payloads = self._select_items(
            lambda start: (start >= first * length) & (start < end * length), lambda index: index - first * length
        )
        taken = self._map_tokens(lambda tensor: tensor if len(tensor) < self.batch_size else tensor[first:end])
        return replace(taken, payloads=payloads, source=None if self.source is None else self.source[first:end])

    def columns(self, first: int, end: int) -> "Inputs":
        """Return the tokens `first` to `end` − 1 of each sequence. The span of a payload must not be split."""
        length = self.ids.shape[1]
        payloads = self._select_items(
            lambda start: (start % length >= first) & (start % length < end),
            lambda index: index // length * (end - first) + index % length - first,
        )
        return replace(self._map_tokens(lambda tensor: tensor[:, first:end]), payloads=payloads)

    def _select_items(
        self, is_selected: Callable[[Tensor], Tensor], move: Callable[[Tensor], Tensor]
    ) -> dict[str, Payload]:
        """Select payload items by the flat index of their first placeholder, and move them to other flat indices."""
        chosen = {name: is_selected(payload.starts) for name, payload in self.payloads.items()}
        return {name: self.payloads[name].select(mask, move) for name, mask in chosen.items() if bool(mask.any())}

    def _map_tokens(self, function: Callable[[Tensor], Tensor]) -> "Inputs":
        """Apply `function` to each tensor that has one value per token."""
        names = ("ids", "document_ids", "positions", "token_type_ids")
        values = {name: getattr(self, name) for name in names}
        mapped: dict[str, Any] = {name: None if value is None else function(value) for name, value in values.items()}
        return replace(self, **mapped)

    def split_columns(self, max_length: int) -> list[tuple[int, int]]:
        """Split the columns into ranges of at most `max_length` tokens that split no payload item.

        A range is longer only if an item is.
        """
        length = self.ids.shape[1]
        is_inside = [False] * (length + 1)  # whether a cut before this column would split an item
        for payload in self.payloads.values():
            for start, count in zip((payload.starts % length).tolist(), payload.lengths.tolist(), strict=True):
                is_inside[start + 1 : start + count] = [True] * (count - 1)
        ranges, first = [], 0
        while first < length:
            end = latest = min(first + max_length, length)
            while is_inside[end]:
                end -= 1
            if end <= first:
                end = next(column for column in range(latest, length + 1) if not is_inside[column])
            ranges.append((first, end))
            first = end
        return ranges


class Prompt(Sequence[int]):
    """One sequence with payloads, as the sequence of its ids. `texts` show the tokens, if their ids cannot."""

    def __init__(self, inputs: Inputs, texts: Sequence[str] = ()) -> None:
        if inputs.batch_size != 1:
            raise ValueError(
                f"a prompt is one sequence, and these inputs have {inputs.batch_size}: give inputs[i : i + 1]"
            )
        self.inputs, self.texts = inputs.to("cpu"), tuple(texts)
        self.ids: list[int] = inputs.ids[0].tolist()

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self.ids[index]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def positions(self) -> list[int]:
        """The position of each token."""
        given = self.inputs.positions
        return list(range(len(self))) if given is None else given[0].tolist()

    def extend(self, token_ids: Sequence[int]) -> "Prompt":
        """Return the prompt with more tokens after it. Their positions continue after the highest one."""
        first = max(self.positions, default=-1) + 1
        positions = torch.tensor([[*self.positions, *range(first, first + len(token_ids))]])
        ids = torch.tensor([[*self.ids, *token_ids]])
        return Prompt(replace(self.inputs, ids=ids, positions=None if self.inputs.positions is None else positions))

    def digest(self) -> bytes:
        """Return a hash of the payloads and positions. Prompts with equal ids and digests are equal for the model.

        More text at the end does not change it.
        """
        positions = self.positions
        while len(positions) > 1 and positions[-1] == positions[-2] + 1:
            positions.pop()
        found = hashlib.blake2b(repr(positions).encode(), digest_size=16)
        for name, payload in sorted(self.inputs.payloads.items()):
            for tensor in payload:
                found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return found.digest()


def extend_prompt(prompt: Sequence[int], token_ids: Sequence[int]) -> Sequence[int]:
    """Return a prompt with more tokens after it."""
    return prompt.extend(token_ids) if isinstance(prompt, Prompt) else [*prompt, *token_ids]


def as_prompt(prompt: "Sequence[int] | Inputs") -> Sequence[int]:
    """Return a prompt as a sequence of ids; `Inputs` of one sequence become a `Prompt`."""
    return Prompt(prompt) if isinstance(prompt, Inputs) else prompt


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
