"""Examples of an objective as padded batches of similar lengths, with their token types.

The objective lays out the examples, so that the texts of an evaluation are laid out exactly as in training.

B batch, T sequence length, C model width, V outputs
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from qkv.blocks import Inputs, SequenceLayout
from qkv.blocks.inputs import Payload, pad_sequences
from qkv.data.cache.examples import InMemoryExamples
from qkv.data.objectives import IGNORE_INDEX, FlatExamples
from qkv.data.objectives.classification import ClassificationObjective
from qkv.data.payloads import FlatPayloads
from qkv.data.ragged import IntArray, ragged_starts
from qkv.errors import UsageError
from qkv.models import Config, Network
from qkv.progress import OnProgress
from qkv.tasks.text_model import TextModel

TextOrPair = str | tuple[str, str]
"""A text, or two texts that are read together."""

LOGITS_CHUNK = 4096  # positions whose logits are in memory at a time


def batches(
    lengths: Sequence[int] | np.ndarray,
    batch_size: int,
    progress: OnProgress | None = None,
    *,
    longest_first: bool = True,
) -> Iterator[list[int]]:
    """Yield the indices of all sequences in batches of similar lengths.

    By default the longest sequences come first, so that a batch that does not fit into memory fails at the start.

    >>> list(batches([3, 9, 1], 2))
    [[1, 0], [2]]
    """
    if batch_size < 1:
        raise UsageError(f"batch_size = {batch_size}: a batch needs at least 1 sequence; raise it")
    sign = -1 if longest_first else 1
    order = sorted(range(len(lengths)), key=lambda i: sign * int(lengths[i]))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
        if progress is not None:
            progress(min(start + batch_size, len(order)), len(order))


class ExampleBatches:
    """Runs a network on examples, batch by batch. Call its methods inside `eval_mode(network)`.

    With `exact`, all numbers are computed in the dtype of the weights. Otherwise the hidden states of many texts may be
    computed in bfloat16.
    """

    def __init__(
        self,
        model: TextModel,
        examples: FlatExamples,
        pad_token_id: int,
        *,
        exact: bool = False,
        payloads: Mapping[str, FlatPayloads] | None = None,
    ) -> None:
        self.model, network = model, model.network
        if network.has_source:
            raise UsageError(
                "this model is an encoder-decoder, but the task needs an encoder-only or decoder-only model; use "
                "another model"
            )
        self.network, self.exact = network, exact or model.tap is not None
        self.lengths = examples.lengths
        self.pad_token_id = pad_token_id
        self.ids = self._split(examples.ids)
        self.labels = self._split(examples.labels["tokens"]) if "tokens" in examples.labels else None
        types = examples.token_type_ids
        has_types = network.config.stack.token_types > 1
        self.token_type_ids = self._split(types) if has_types and types is not None else None
        starts = ragged_starts(self.lengths)
        self.payloads = {kind: split_payloads(one, starts) for kind, one in (payloads or {}).items()}

    def _split(self, flat: np.ndarray) -> list[np.ndarray]:
        return np.split(flat, np.cumsum(self.lengths)[:-1])

    def batches(self, *, longest_first: bool = True) -> Iterator[list[int]]:
        """Yield the numbers of the examples in batches, and report the progress."""
        return batches(self.lengths, self.model.batch_size, self.model.progress, longest_first=longest_first)

    def inputs(self, chosen: Sequence[int]) -> Inputs:
        """The chosen examples as a batch, right-padded."""
        inputs = Inputs.from_sequences(
            [self.ids[i] for i in chosen],
            pad_token_id=self.pad_token_id,
            token_type_ids=None if self.token_type_ids is None else [self.token_type_ids[i] for i in chosen],
            always_document_ids=True,
        )
        width = inputs.ids.shape[1]
        payloads = {kind: join_payloads([items[i] for i in chosen], width) for kind, items in self.payloads.items()}
        return replace(inputs, payloads=payloads).to(self.network.device)

    def hidden(self, chosen: Sequence[int], selected: Tensor | None = None) -> tuple[Tensor, SequenceLayout]:
        """The hidden states (B, T, C) of the chosen examples, or (N, C) of `selected` positions, and the layout."""
        x, layout = self.fast_network.hidden(self.inputs(chosen), selected=selected, tap=self.model.tap)
        return (x if self.fast_network is self.network else x.float()), layout

    @cached_property
    def fast_network(self) -> Network:
        """The network that computes hidden states: the model's own, or a faster copy."""
        if self.exact:
            return self.network
        from qkv.tasks.run.fast_network import choose_fast_network

        middle = np.argsort(self.lengths, kind="stable")[len(self.lengths) // 2 :][: self.model.batch_size]
        inputs = self.inputs([int(i) for i in middle])
        return choose_fast_network(self.network, int(self.lengths.sum()), lambda network: network.hidden(inputs))

    def outputs(self, chosen: Sequence[int]) -> Tensor:
        """The outputs of the head in float32 or better: (B, V) for a head that pools, else (B, T, V)."""
        x, layout = self.hidden(chosen)
        return at_least_float32(self.network.head(x, layout))

    def labelled_logits(self, chosen: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """The logits (n, V) and labels (n,) of the labelled positions, at most `LOGITS_CHUNK` at a time."""
        assert self.labels is not None
        labels = pad_sequences([self.labels[i] for i in chosen], IGNORE_INDEX).flatten().to(self.network.device)
        selected = (labels != IGNORE_INDEX).nonzero()[:, 0]
        x, _ = self.hidden(chosen, selected)
        for vectors, targets in zip(x.split(LOGITS_CHUNK), labels[selected].split(LOGITS_CHUNK), strict=True):
            yield at_least_float32(self.network.head.project(vectors)), targets


def split_payloads(payloads: FlatPayloads, starts: IntArray) -> list[Payload]:
    """The payload of each example, with rows that count from the start of the example, whose tokens are at `starts`."""
    values = np.split(payloads.values, np.cumsum(payloads.sizes.prod(axis=1))[:-1])
    rows = np.split(payloads.positions, np.cumsum(payloads.lengths)[:-1])
    items = zip(values, rows, starts, payloads.sizes[:, None], payloads.lengths[:, None], strict=True)
    return [
        Payload(*map(torch.from_numpy, (value, row - start, size, length))) for value, row, start, size, length in items
    ]


def join_payloads(items: Sequence[Payload], width: int) -> Payload:
    """The payloads of the sequences of a batch, which are padded on the right to `width` tokens."""
    moved = [item._replace(rows=item.rows + number * width) for number, item in enumerate(items)]
    return Payload(*map(torch.cat, zip(*moved, strict=True)))


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32, or in float64 if they are in float64."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def max_sequence_length(config: Config, limit: int = 0) -> int:
    """The maximum sequence length: the model's number of positions, or `limit` if it is lower and not 0."""
    positions = config.stack.max_positions
    return min(positions, limit) if limit else positions


def build_unlabelled_examples(model: TextModel, texts: Sequence[tuple[str, ...]]) -> ClassificationObjective:
    """Texts and pairs as unlabelled examples, truncated to the model's positions."""
    tokenizer = model.tokenizer
    sides = [tokenizer.encode_batch([text[0] for text in texts])]
    if any(len(text) > 1 for text in texts):
        sides.append(tokenizer.encode_batch([text[1] if len(text) > 1 else "" for text in texts]))
    fields = ("first", "second")[: len(sides)]
    encoded = [dict(zip(fields, ids, strict=True)) | {"label": 0} for ids in zip(*sides, strict=True)]
    examples = InMemoryExamples(encoded, (*fields, "label"))
    return ClassificationObjective(
        examples, tokenizer, max_length=max_sequence_length(model.config), too_long="truncate"
    )


def as_tuple(text: TextOrPair) -> tuple[str, ...]:
    """A text as a tuple of one, or a pair."""
    return (text,) if isinstance(text, str) else text
