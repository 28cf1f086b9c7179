"""The loss: what a network says about a batch against what it should have said.

    loss = Σ token losses / token labels  +  Σ losses of whole texts / such labels

The sums are over the whole batch of all micro-batches and processes, so a micro-batch's share of the loss is its own
sum divided by everybody's count: adding up the gradients of any split gives the gradient of the whole. Logits are
computed where there is a label and nowhere else.

B rows, T places in a row, E texts in a row, C width, V outputs, N places with a label
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from qkv.blocks import SequenceLayout
from qkv.blocks.attention import gather_positions
from qkv.blocks.head import document_membership, pooled_index
from qkv.blocks.stack import MIN_QUERY_REDUCTION
from qkv.data.load.batch import Batch
from qkv.data.objectives import IGNORE_INDEX
from qkv.models import Encoder, Network, Seq2Seq
from qkv.train.loss import fused_cross_entropy as fused
from qkv.train.loss.fused_cross_entropy import VOCAB_MULTIPLE, compute_dtype, fused_cross_entropy
from qkv.train.recipe.schema import ObjectiveSection

DENSE_THRESHOLD = 0.9
"""From this share of labelled places on, all places are read: choosing would cost more than it saves."""
MAX_PADDING_RATIO, POSITIONS_MULTIPLE = 1.1, 4
"""As many places are read in each row if they are at most so many times those with labels; a multiple of so many."""
MAX_LOGITS = {"cpu": 2**24, "cuda": 2**30}
"""Above so many logits they are made a part at a time."""


@dataclass(frozen=True)
class LabelledBatch:
    """What a batch teaches: its tensors on the network's device, and which places have labels."""

    batch: Batch
    positions: Tensor | None  # (N,) places in the flattened rows, or (B, Q): as many in each; None: all
    targets: Tensor | None  # (N,) what to say there, IGNORE where a place only fills up


def to_device(batch: Batch, device: torch.device, round_to: int = 1) -> LabelledBatch:
    """A batch on a device. N is rounded up to a multiple, so that shapes seldom change where that is dear."""
    places = targets = None
    if batch.labels is not None:
        flat = batch.labels.flatten()
        if batch.num_labels < DENSE_THRESHOLD * flat.numel():
            chosen, counts = find_labelled_positions(batch.labels.numpy(), round_to)
            places = torch.from_numpy(chosen)
            targets = torch.where(torch.from_numpy(counts), flat[places], IGNORE_INDEX).flatten()
        else:
            targets = flat
    if device.type == "cuda":
        batch = batch.pin_memory()
        places, targets = (None if t is None else t.pin_memory() for t in (places, targets))
    places, targets = (None if t is None else t.to(device, non_blocking=True) for t in (places, targets))
    return LabelledBatch(batch.to(device, non_blocking=True), places, targets)


def find_labelled_positions(labels: np.ndarray, round_to: int) -> tuple[np.ndarray, np.ndarray]:
    """Places with a label in the flattened rows of labels (B, T), and which of them are more than filling.

    (B, Q) where the rows have few and about as many each, as texts with hidden tokens do; else (N,).
    """
    rows, length = labels.shape
    chosen = np.flatnonzero(labels != IGNORE_INDEX)
    row = chosen // length
    each = np.bincount(row, minlength=rows)
    multiple = POSITIONS_MULTIPLE if round_to > 1 else 1
    most = -(-int(each.max(initial=1)) // multiple) * multiple
    if MIN_QUERY_REDUCTION * most > length or rows * most > MAX_PADDING_RATIO * len(chosen):
        fill = -len(chosen) % round_to if len(chosen) else round_to
        return np.pad(chosen, (0, fill)), np.arange(len(chosen) + fill) < len(chosen)
    places = np.repeat(np.arange(rows) * length, most).reshape(rows, most)
    places[row, np.arange(len(chosen)) - np.repeat(np.cumsum(each) - each, each)] = chosen
    return places, np.arange(most) < each[:, None]


class TrainingModule(nn.Module):
    """A network and what it learns. Called with a lesson, it gives the loss; this is what is compiled and sharded."""

    def __init__(self, network: Network, section: ObjectiveSection) -> None:
        super().__init__()
        self.network = network
        self.smoothing = section.label_smoothing
        self.temperature = section.temperature

    def forward(self, labelled_batch: LabelledBatch, per_label: Tensor, per_answer: Tensor) -> Tensor:
        """The loss of a batch: sums times `per_label` and `per_answer`, one over the number of each in all."""
        batch = labelled_batch.batch
        if batch.labels is None and batch.source_ids is not None:
            return self.contrastive_loss(batch) * per_answer
        only = self.selected_positions(labelled_batch)
        x, place = self.hidden_states(batch, only)
        loss = x.new_zeros((), dtype=torch.float32)
        if labelled_batch.targets is not None:
            labelled = (
                x if only is not None else gather_positions(x, labelled_batch.positions)
            )  # all places, where all have labels
            loss = loss + self.token_loss(labelled.reshape(-1, x.shape[-1]), labelled_batch.targets) * per_label
        if batch.span_starts is not None:
            loss = loss + self.span_loss(x, batch) * per_answer
        elif batch.class_labels is not None or batch.scores is not None:
            loss = loss + self.document_loss(x, place, batch) * per_answer
        return loss

    def selected_positions(self, labelled_batch: LabelledBatch) -> Tensor | None:
        """The places, (N,) or (B, Q), that the last block must answer for, where the loss does not read all of them."""
        batch, how = labelled_batch.batch, self.network.head.config.pool
        if isinstance(self.network, Seq2Seq) or batch.span_starts is not None:
            return None
        answers = batch.class_labels is not None or batch.scores is not None
        if batch.labels is not None:
            return None if answers else labelled_batch.positions
        if how == "mean":
            return None
        index = pooled_index(document_membership(batch.document_ids, batch.max_documents), how)  # (B, E)
        begin = torch.arange(len(index), device=index.device)[:, None] * batch.document_ids.shape[1]
        return begin + index

    def hidden_states(self, batch: Batch, selected: Tensor | None = None) -> tuple[Tensor, SequenceLayout]:
        """What the head reads, (B, T, C), or (N, C) at the places `only`."""
        network, texts, longest = self.network, batch.max_documents, batch.max_document_length
        if isinstance(network, Seq2Seq):
            assert batch.source_ids is not None
            if self.can_skip_source_mask(batch):
                memory = network.encode(batch.source_ids)
            else:
                source = (batch.source_ids, batch.source_document_ids, batch.source_positions)
                memory = network.encode(
                    *source, max_documents=texts, max_document_length=batch.source_max_document_length
                )
            if self.can_skip_mask(batch):
                return network.hidden(batch.ids, memory)
            return network.hidden(
                batch.ids, memory, batch.document_ids, batch.positions, max_documents=texts, max_document_length=longest
            )
        if isinstance(network, Encoder):
            if self.can_skip_mask(batch):
                return network.hidden(batch.ids, token_type_ids=batch.token_type_ids, selected=selected)
            places = (batch.document_ids, batch.positions, batch.token_type_ids)
            return network.hidden(
                batch.ids, *places, max_documents=texts, max_document_length=longest, selected=selected
            )
        if self.can_skip_mask(batch):
            return network.hidden(batch.ids, selected=selected)
        return network.hidden(
            batch.ids,
            batch.document_ids,
            batch.positions,
            max_documents=texts,
            max_document_length=longest,
            selected=selected,
        )

    def can_skip_mask(self, batch: Batch) -> bool:
        """Whether each row may be taken for one text without padding, for which the plainest kernel is the fastest.

        To what looks back only, padding at the end is nothing: no token sees it, and what it says is not asked for.
        """
        stack = self.network.config.stack
        if batch.labels is None or batch.class_labels is not None or batch.ids.shape[1] > stack.max_positions:
            return False
        return batch.unpadded or (batch.one_document_each and self.network.config.family != "encoder")

    def can_skip_source_mask(self, batch: Batch) -> bool:
        """The same of the source rows, which see all of themselves: there must be no padding."""
        stack, source = self.network.config.encoder, batch.source_ids
        return (
            batch.source_unpadded
            and stack is not None
            and source is not None
            and source.shape[1] <= stack.max_positions
        )

    def token_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The summed cross-entropy of the vectors (N, C) at labelled places."""
        out = self.network.head.out
        most = MAX_LOGITS.get(x.device.type, MAX_LOGITS["cuda"])
        parts = max(1, -(-x.shape[0] * self.network.head.config.outputs // most))
        # On a GPU the compiler fuses it nearly as well; float16 has no sum over places that could hold it.
        pays = parts > 1 or not x.is_cuda or (fused.triton_kernels is not None and compute_dtype(x) != torch.float16)
        if type(out) is nn.Linear and type(out.weight) is nn.Parameter and pays:
            x, smoothing = self.network.head.features(x), self.smoothing if self.training else 0.0
            return fused_cross_entropy(x.to(out.weight.dtype), out.weight, out.bias, targets, smoothing, parts)
        if parts == 1:
            return self.token_cross_entropy(x, targets)
        pairs = zip(x.chunk(parts), targets.chunk(parts), strict=True)
        losses: list[Tensor] = [checkpoint(self.token_cross_entropy, *pair, use_reentrant=False) for pair in pairs]
        return torch.stack(losses).sum()

    def token_cross_entropy(self, x: Tensor, targets: Tensor) -> Tensor:
        """Vectors (N, C) and what they should be read as → the summed loss."""
        smoothing = self.smoothing if self.training else 0.0
        head = self.network.head
        uneven = -head.config.outputs % VOCAB_MULTIPLE
        if not uneven or not x.is_cuda or head.out is None:
            return cross_entropy(head.project(x), targets, smoothing)
        # A GPU multiplies matrices of even sizes faster, and the logits are the largest of all.
        weight = F.pad(head.out.weight, (0, 0, 0, uneven))
        bias = None if head.out.bias is None else F.pad(head.out.bias, (0, uneven))
        logits = F.linear(head.features(x), weight, bias)[:, : head.config.outputs]
        return cross_entropy(logits, targets, smoothing)

    def document_loss(self, x: Tensor, layout: SequenceLayout, batch: Batch) -> Tensor:
        """The summed loss of what is said about whole texts: a class, or a score."""
        head = self.network.head if self.network.head.sentence is None else self.network.head.sentence
        alone = x.dim() == 2  # the vectors that the head would choose
        out: Tensor = (
            head.project(x.view(batch.batch_size, batch.max_documents, -1))
            if alone
            else head(x, layout, batch.max_documents)
        )
        if batch.scores is not None:
            wanted = batch.scores
            known = wanted.isfinite()
            error = out[..., 0].float() - wanted.nan_to_num()
            squares: Tensor = (error.square() * known).sum()
            return squares
        assert batch.class_labels is not None
        return cross_entropy(out.flatten(0, 1), batch.class_labels.flatten(), self.smoothing if self.training else 0.0)

    def span_loss(self, x: Tensor, batch: Batch) -> Tensor:
        """The summed loss of where answers begin and end, each chosen among the places of its own text."""
        assert batch.span_starts is not None
        assert batch.span_ends is not None
        out = self.network.head.project(x).float()  # (B, T, 2)
        text = torch.arange(1, batch.max_documents + 1, device=x.device)
        own = batch.document_ids[:, None, :] == text[None, :, None]  # (B, E, T)
        own = own | ~own.any(-1, keepdim=True)  # a text that is not there: its label is ignored, it must not be NaN
        total = x.new_zeros((), dtype=torch.float32)
        for side, labels in enumerate((batch.span_starts, batch.span_ends)):
            logits = out[:, None, :, side].masked_fill(~own, float("-inf"))  # (B, E, T)
            total = total + cross_entropy(logits.flatten(0, 1), labels.flatten(), 0.0) / 2
        return total

    def contrastive_loss(self, batch: Batch) -> Tensor:
        """Pairs of texts: the summed loss of finding each one's partner among all of the batch, both ways.

        With scores, how far the cosine is from them instead.
        """
        network = self.network
        assert isinstance(network, Encoder)
        assert batch.source_ids is not None
        assert batch.source_document_ids is not None
        sides = []
        for ids, segment, position in (
            (batch.source_ids, batch.source_document_ids, batch.source_positions),
            (batch.ids, batch.document_ids, batch.positions),
        ):
            x, place = network.hidden(ids, segment, position, max_documents=batch.max_documents)
            sides.append(
                F.normalize(network.head(x, place, batch.max_documents).flatten(0, 1).float(), dim=-1)
            )  # (B·E, C)
        one, other = sides
        if batch.scores is not None:
            wanted = batch.scores.flatten()
            return (((one * other).sum(-1) - wanted.nan_to_num()).square() * wanted.isfinite()).sum()
        text = torch.arange(1, batch.max_documents + 1, device=one.device)
        there = (batch.document_ids[:, :, None] == text).any(1).flatten()  # (B·E,) which places hold a pair
        with torch.autocast(one.device.type, enabled=False):  # divided by a small number, rounding would count
            logits = (one @ other.T) / self.temperature
        labels = torch.arange(len(one), device=one.device).masked_fill(~there, IGNORE_INDEX)
        forth = cross_entropy(logits.masked_fill(~there[None], -1e9), labels, 0.0)
        back = cross_entropy(logits.T.masked_fill(~there[None], -1e9), labels, 0.0)
        return (forth + back) / 2


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Summed over the targets that are not IGNORE, in float32 at least. Smoothing spreads its share over all outputs.

    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([1, IGNORE]), 0.1)
    tensor(1.3863)
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(
        logits.to(exact), targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing
    )


def count_labels(batch: Batch) -> tuple[int, int]:
    """How many token labels a batch has, and how many labels of whole texts (or pairs)."""
    if batch.labels is None and batch.source_ids is not None and batch.scores is None:
        return 0, len(batch.example_ids)
    return batch.num_labels, batch.num_answers
