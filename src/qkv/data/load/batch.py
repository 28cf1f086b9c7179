"""A batch: sequences as torch tensors, ready for a model.

B is the batch size, T and S the target and source length, E the maximum number of examples in a sequence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from qkv.blocks.inputs import Inputs, Payload
from qkv.data.objectives.base import TOKEN_LABELS, Label
from qkv.data.stream.collate import EXAMPLE_ARRAYS, PAYLOAD_PARTS, BatchArrays, payload_array
from qkv.data.stream.sequences import SequenceStream

KERNEL_BLOCK_TOKENS = 128
"""Maximum document lengths are rounded up to at least this, the block size of attention kernels."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B sequences with up to E examples in each. Integers are int64.

    In `inputs`, the document ids number the examples of a sequence from 1 (0 is padding), positions start at 0 in each
    example, and E is `max_documents`. `labels` are (B, T, …) for tokens and (B, E, …) for documents. Where there is
    nothing to learn, an integer label is `IGNORE_INDEX`, and a float is NaN.
    """

    objective: str  # the row in the table of objectives, which has the loss
    inputs: Inputs
    labels: Mapping[str, Tensor]  # by the names in `declared`
    declared: tuple[Label, ...]
    epoch: int
    one_document_each: bool = False  # whether each sequence has exactly one document
    unpadded: bool = False  # whether one_document_each holds and there is no padding
    source_unpadded: bool = False  # the same as `unpadded`, for the source
    # Counts stay on the CPU, so that reading them never waits for a device.
    tokens_per_sequence: np.ndarray  # (B,) source and target together
    token_labels_per_sequence: np.ndarray  # (B,) the number of labels of tokens
    document_labels_per_sequence: np.ndarray  # (B,) the number of labels of documents
    example_ids: np.ndarray  # (n,)
    example_sequences: np.ndarray  # (n,) the index of each example's sequence
    example_epochs: np.ndarray  # (n,) the epoch of each example's dataset

    @classmethod
    def from_arrays(
        cls, arrays: BatchArrays, stream: SequenceStream, epoch: int, *, pin_memory: bool = False
    ) -> "Batch":
        """A batch from the arrays that `collate` made. With `pin_memory`, its tensors are in page-locked memory."""

        def make_tensor(name: str) -> Tensor:
            values = arrays[name]
            dtype = {"f": torch.float32, "i": torch.int64, "u": torch.uint8}[values.dtype.kind]
            tensor = torch.empty(values.shape, dtype=dtype, pin_memory=pin_memory)
            tensor.numpy()[...] = values  # a copy, because workers reuse their memory
            return tensor

        def make_inputs(prefix: str, source: Inputs | None = None) -> Inputs:
            slots = [slot for slot in stream.payloads if slot.is_source == bool(prefix)]
            payloads = {
                slot.format.kind: Payload(*(make_tensor(payload_array(slot, part)) for part in PAYLOAD_PARTS))
                for slot in slots
            }
            has_types = f"{prefix}token_type_ids" in arrays
            positions = arrays[f"{prefix}positions"]
            return Inputs(
                make_tensor(f"{prefix}ids"),
                document_ids=make_tensor(f"{prefix}document_ids"),
                positions=make_tensor(f"{prefix}positions"),
                token_type_ids=make_tensor(f"{prefix}token_type_ids") if has_types else None,
                payloads=payloads,
                source=source,
                max_documents=stream.max_documents,
                # Placeholders of a payload may share their position, so positions are less than the length.
                max_document_length=positions.shape[1] if payloads else rounded_max_length(positions),
            )

        tokens = np.count_nonzero(arrays["document_ids"], axis=1)
        has_source = "source_ids" in arrays
        if has_source:
            tokens = tokens + np.count_nonzero(arrays["source_document_ids"], axis=1)
        sequences = arrays["example_sequences"]
        counts = {"token": np.zeros_like(tokens), "document": np.zeros_like(tokens)}
        for label in stream.labels:
            if label.is_counted:
                counts[label.per] = counts[label.per] + label.count(arrays[f"labels.{label.name}"])
        if not stream.labels:
            counts["document"] = np.bincount(sequences, minlength=len(tokens))
        one_each = len(sequences) == len(tokens) and len(np.unique(sequences)) == len(tokens)
        return cls(
            objective=stream.objective,
            inputs=make_inputs("", make_inputs("source_") if has_source else None),
            labels={label.name: make_tensor(f"labels.{label.name}") for label in stream.labels},
            declared=stream.labels,
            epoch=epoch,
            one_document_each=one_each,
            unpadded=one_each and bool((arrays["document_ids"] > 0).all()),
            source_unpadded=one_each and has_source and bool((arrays["source_document_ids"] > 0).all()),
            tokens_per_sequence=tokens,
            token_labels_per_sequence=counts["token"],
            document_labels_per_sequence=counts["document"],
            **{name: arrays[name].astype(np.int64) for name in EXAMPLE_ARRAYS},
        )

    @property
    def batch_size(self) -> int:
        """The number of sequences."""
        return self.inputs.batch_size

    @property
    def token_labels(self) -> Tensor | None:
        """The class of each token (B, T), if the objective declares it."""
        return self.labels.get(TOKEN_LABELS.name)

    @property
    def has_document_labels(self) -> bool:
        """Whether documents have labels, such as a class."""
        return any(label.per == "document" for label in self.declared)

    @property
    def has_payloads(self) -> bool:
        """Whether a sequence can have payloads, whose number differs between batches."""
        return any(side is not None and side.payloads for side in (self.inputs, self.inputs.source))

    @property
    def examples(self) -> list[list[int]]:
        """The ids of the examples in each sequence."""
        listed: list[list[int]] = [[] for _ in range(self.batch_size)]
        for sequence, example in zip(self.example_sequences.tolist(), self.example_ids.tolist(), strict=True):
            listed[sequence].append(example)
        return listed

    @property
    def num_tokens(self) -> int:
        """The number of tokens without padding, source and target together."""
        return int(self.tokens_per_sequence.sum())

    @property
    def num_token_labels(self) -> int:
        """The number of labels of tokens."""
        return int(self.token_labels_per_sequence.sum())

    @property
    def num_document_labels(self) -> int:
        """The number of labels of documents; if the objective declares no labels, the number of documents."""
        return int(self.document_labels_per_sequence.sum())

    @property
    def label_counts(self) -> tuple[int, int]:
        """The numbers of labels of tokens and of documents. The two sums of the loss are divided by them."""
        return self.num_token_labels, self.num_document_labels

    @property
    def padding_fraction(self) -> float:
        """The fraction of positions that are padding."""
        positions = self.inputs.ids.numel() + (0 if self.inputs.source is None else self.inputs.source.ids.numel())
        return 1 - self.num_tokens / positions

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        found: list[Tensor] = []
        self.map_tensors(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return found

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Batch":
        """The same batch on a device."""
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory, which can be copied to a GPU asynchronously."""
        return self.map_tensors(lambda tensor: tensor.pin_memory())

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with `function` of each tensor."""
        labels = {name: function(tensor) for name, tensor in self.labels.items()}
        return replace(self, inputs=self.inputs.map_tensors(function), labels=labels)

    def split(self, num_parts: int) -> list["Batch"]:
        """Split the sequences evenly into `num_parts` micro-batches, or fewer if there are fewer sequences."""
        edges = np.linspace(0, self.batch_size, min(num_parts, self.batch_size) + 1).round().astype(int).tolist()
        return [self._slice(first, last) for first, last in pairwise(edges)]

    def _slice(self, first: int, last: int) -> "Batch":
        mine = (self.example_sequences >= first) & (self.example_sequences < last)
        return replace(
            self,
            inputs=self.inputs[first:last],
            labels={name: tensor[first:last] for name, tensor in self.labels.items()},
            tokens_per_sequence=self.tokens_per_sequence[first:last],
            token_labels_per_sequence=self.token_labels_per_sequence[first:last],
            document_labels_per_sequence=self.document_labels_per_sequence[first:last],
            example_ids=self.example_ids[mine],
            example_sequences=self.example_sequences[mine] - first,
            example_epochs=self.example_epochs[mine],
        )


def rounded_max_length(positions: np.ndarray) -> int:
    """The maximum document length, rounded up to a power of two and limited to the sequence length."""
    longest = int(positions.max(initial=0)) + 1
    return int(min(max(KERNEL_BLOCK_TOKENS, 1 << (longest - 1).bit_length()), positions.shape[1]))
