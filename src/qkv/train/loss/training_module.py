"""The loss of a network on a batch.

    loss = Σ token losses / token labels  +  Σ document losses / document labels

Both sums are divided by the number of labels in the global batch, over all micro-batches and ranks. So the gradients of
any split of a batch add up to the gradient of the whole batch. (An exception is the contrastive InfoNCE loss, which
compares all documents of a micro-batch.) If fewer than 90 % of the positions have a token label, logits are computed
only there.

B batch, T positions, E documents in a sequence, C model width, V outputs, N positions with a label
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from qkv.blocks import Inputs, SequenceLayout
from qkv.blocks.head import document_membership, pooled_index
from qkv.blocks.kernels.linear_gelu import install_fused_gelu
from qkv.blocks.kernels.selection import MIN_QUERY_REDUCTION, gather_positions
from qkv.data.load.batch import Batch
from qkv.data.objectives import IGNORE_INDEX
from qkv.models import Network
from qkv.train.loss import fused_cross_entropy as fused
from qkv.train.loss.fused_cross_entropy import VOCAB_MULTIPLE, compute_dtype, fused_cross_entropy
from qkv.train.recipe.schema import ObjectiveSection

DENSE_THRESHOLD = 0.9
"""If at least this fraction of the positions has a label, all are computed: selecting would cost more than it saves."""
MAX_PADDING_RATIO, POSITIONS_MULTIPLE = 1.1, 4
"""If sequences have similar numbers of labels, the same number Q of positions is selected in each. This is done only if
B·Q is at most MAX_PADDING_RATIO × the number of labels. If N is rounded, Q is a multiple of POSITIONS_MULTIPLE."""
MAX_LOGITS = {"cpu": 2**24, "cuda": 2**30}
"""With more logits than this, the loss is computed in chunks."""


@dataclass(frozen=True)
class LabelledBatch:
    """A batch on the network's device, and its positions that have labels."""

    batch: Batch
    positions: Tensor | None  # flat indices (N,), or (B, Q) if Q positions of each sequence are selected; None: all
    targets: Tensor | None  # (N,) the label of each position; IGNORE_INDEX for padding


def make_labelled_batch(batch: Batch, device: torch.device, round_to: int = 1) -> LabelledBatch:
    """Move a batch to a device, and find its labels.

    N is rounded up to a multiple of `round_to`, so that the shapes seldom change.
    """
    positions = targets = None
    if batch.labels is not None:
        flat = batch.labels.flatten()
        if batch.num_labels < DENSE_THRESHOLD * flat.numel():
            indices, is_label = find_labelled_positions(batch.labels.numpy(), round_to)
            positions = torch.from_numpy(indices)
            targets = torch.where(torch.from_numpy(is_label), flat[positions], IGNORE_INDEX).flatten()
        else:
            targets = flat
    if device.type == "cuda":
        batch = batch.pin_memory()
        positions, targets = (None if t is None else t.pin_memory() for t in (positions, targets))
    positions, targets = (None if t is None else t.to(device, non_blocking=True) for t in (positions, targets))
    return LabelledBatch(batch.to(device, non_blocking=True), positions, targets)


def find_labelled_positions(labels: np.ndarray, round_to: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the flat indices of the labelled positions in `labels` (B, T), padded, and a mask: False for padding.

    If the sequences have few labels and about the same number each, as in masked language modelling, both have the
    shape (B, Q), with Q positions of each sequence. Otherwise they have the shape (N,).
    """
    batch_size, length = labels.shape
    indices = np.flatnonzero(labels != IGNORE_INDEX)
    row = indices // length
    counts = np.bincount(row, minlength=batch_size)
    multiple = POSITIONS_MULTIPLE if round_to > 1 else 1
    max_count = -(-int(counts.max(initial=1)) // multiple) * multiple
    if MIN_QUERY_REDUCTION * max_count > length or batch_size * max_count > MAX_PADDING_RATIO * len(indices):
        padding = -len(indices) % round_to if len(indices) else round_to
        return np.pad(indices, (0, padding)), np.arange(len(indices) + padding) < len(indices)
    positions = np.repeat(np.arange(batch_size) * length, max_count).reshape(batch_size, max_count)
    positions[row, np.arange(len(indices)) - np.repeat(np.cumsum(counts) - counts, counts)] = indices
    return positions, np.arange(max_count) < counts[:, None]


class TrainingModule(nn.Module):
    """A network and its objective. Called with a labelled batch, it returns the loss.

    This is what is compiled and parallelized.
    """

    def __init__(self, network: Network, section: ObjectiveSection) -> None:
        super().__init__()
        self.network = network
        self.label_smoothing = section.label_smoothing
        self.temperature = section.temperature
        self.notes: list[str] = []

    def install_kernels(self, precision: str) -> None:
        """Use fused kernels on a GPU. A kernel that approximates is reported in `notes`.

        Call it before the module is compiled: the compiler cannot trace the import of a kernel.
        """
        fused.load_kernels()
        num_layers = install_fused_gelu(self.network)
        if num_layers and precision != "float32":
            self.notes.append(
                f"the GELU of {num_layers} feed-forward layers is fused with its bias while training: it differs from "
                "the exact function by at most 1.2e-4, less than half precision rounds"
            )

    def forward(self, labelled_batch: LabelledBatch, per_token: Tensor, per_document: Tensor) -> Tensor:
        """The loss of a batch. `per_token` is 1 / the number of token labels of all ranks, `per_document` likewise."""
        batch = labelled_batch.batch
        if batch.labels is None and batch.source_ids is not None:
            return self.contrastive_loss(batch) * per_document
        selected = self.selected_positions(labelled_batch)
        x, layout = self.hidden_states(batch, selected)
        loss = x.new_zeros((), dtype=torch.float32)
        if labelled_batch.targets is not None:
            labelled = x if selected is not None else gather_positions(x, labelled_batch.positions)
            loss = loss + self.token_loss(labelled.reshape(-1, x.shape[-1]), labelled_batch.targets) * per_token
        if batch.span_starts is not None:
            loss = loss + self.span_loss(x, batch) * per_document
        elif batch.has_document_labels:
            loss = loss + self.document_loss(x, layout, batch) * per_document
        return loss

    def selected_positions(self, labelled_batch: LabelledBatch) -> Tensor | None:
        """The positions, (N,) or (B, Q), that the last block must compute; None: all of them."""
        batch, pooling = labelled_batch.batch, self.network.head.config.pool
        if self.network.has_source or batch.span_starts is not None:
            return None
        if batch.labels is not None:
            return None if batch.has_document_labels else labelled_batch.positions
        if pooling == "mean":
            return None
        index = pooled_index(document_membership(batch.document_ids, batch.max_documents), pooling)  # (B, E)
        start = torch.arange(len(index), device=index.device)[:, None] * batch.document_ids.shape[1]
        return start + index

    def hidden_states(self, batch: Batch, selected: Tensor | None = None) -> tuple[Tensor, SequenceLayout]:
        """Return the input of the head and its layout: (B, T, C), or (N, C) if positions are selected."""
        layout: dict[str, Any] = {}
        if not self.can_skip_mask(batch):
            layout = {"document_ids": batch.document_ids, "positions": batch.positions}
            layout |= {"max_documents": batch.max_documents, "max_document_length": batch.max_document_length}
        source = self._source_inputs(batch)
        inputs = Inputs(batch.ids, token_type_ids=batch.token_type_ids, source=source, **layout)
        return self.network.hidden(inputs, selected=selected)

    def _source_inputs(self, batch: Batch) -> Inputs | None:
        if batch.source_ids is None:
            return None
        if self.can_skip_source_mask(batch):
            return Inputs(batch.source_ids)
        return Inputs(
            batch.source_ids,
            document_ids=batch.source_document_ids,
            positions=batch.source_positions,
            max_documents=batch.max_documents,
            max_document_length=batch.source_max_document_length,
        )

    def normalize_padding_flags(self, batch: Batch) -> Batch:
        """Set the padding flags of a batch to `can_skip_mask`: batches with the same kernels share a CUDA graph."""
        can_skip = self.can_skip_mask(batch)
        return replace(batch, one_document_each=can_skip, unpadded=can_skip)

    def can_skip_mask(self, batch: Batch) -> bool:
        """Whether each sequence may be treated as one document without padding, for which the fastest kernels apply.

        Under a causal mask, right-padding is harmless: no real token attends to it, and its outputs are ignored.
        """
        stack = self.network.config.stack
        if batch.labels is None or batch.class_labels is not None or batch.ids.shape[1] > stack.max_positions:
            return False
        return batch.unpadded or (batch.one_document_each and self.network.config.family != "encoder")

    def can_skip_source_mask(self, batch: Batch) -> bool:
        """The same for source sequences. Their mask is not causal, so there must be no padding."""
        stack, source = self.network.config.encoder, batch.source_ids
        if stack is None or source is None:
            return False
        return batch.source_unpadded and source.shape[1] <= stack.max_positions

    def token_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The summed cross-entropy of the hidden states (N, C) at labelled positions."""
        head, out = self.network.head, self.network.head.out
        max_logits = MAX_LOGITS.get(x.device.type, MAX_LOGITS["cuda"])
        num_chunks = max(1, -(-x.shape[0] * head.config.outputs // max_logits))
        # Fuse only if it pays: on a GPU without the Triton kernel, torch.compile is nearly as fast. The kernel is not
        # used for float16, in which sums over positions would overflow.
        has_kernel = fused.triton_kernels is not None and compute_dtype(x) != torch.float16
        pays = num_chunks > 1 or not x.is_cuda or has_kernel
        if type(out) is nn.Linear and type(out.weight) is nn.Parameter and pays:
            x = head.transform(x).to(out.weight.dtype)
            return fused_cross_entropy(x, out.weight, out.bias, targets, self._smoothing, num_chunks)
        if num_chunks == 1:
            return self.token_cross_entropy(x, targets)
        pairs = zip(x.chunk(num_chunks), targets.chunk(num_chunks), strict=True)
        losses: list[Tensor] = [checkpoint(self.token_cross_entropy, *pair, use_reentrant=False) for pair in pairs]
        return torch.stack(losses).sum()

    def token_cross_entropy(self, x: Tensor, targets: Tensor) -> Tensor:
        """The same without fusing: hidden states (N, C), labels (N,) → the summed loss."""
        head = self.network.head
        padding = -head.config.outputs % VOCAB_MULTIPLE
        if not padding or not x.is_cuda or head.out is None:
            return cross_entropy(head.project(x), targets, self._smoothing)
        # Pad the vocabulary to a multiple of VOCAB_MULTIPLE: a GPU then computes this large product faster.
        weight = F.pad(head.out.weight, (0, 0, 0, padding))
        bias = None if head.out.bias is None else F.pad(head.out.bias, (0, padding))
        logits = F.linear(head.transform(x), weight, bias)[:, : head.config.outputs]
        return cross_entropy(logits, targets, self._smoothing)

    def document_loss(self, x: Tensor, layout: SequenceLayout, batch: Batch) -> Tensor:
        """The summed loss of document labels: cross-entropy of classes or label sets, or squared error of scores."""
        head = self.network.head if self.network.head.sentence is None else self.network.head.sentence
        if x.dim() == 2:  # the last block has computed only what the head would pool
            out: Tensor = head.project(x.view(batch.batch_size, batch.max_documents, -1))
        else:
            out = head(x, layout, batch.max_documents)
        if batch.scores is not None:
            error = out[..., 0].float() - batch.scores.nan_to_num()
            squares: Tensor = (error.square() * batch.scores.isfinite()).sum()
            return squares
        if batch.label_sets is not None:  # one binary cross-entropy for each label
            sets = batch.label_sets.view(out.shape)
            targets = sets.clamp(min=0) * (1 - self._smoothing) + self._smoothing / 2
            losses = F.binary_cross_entropy_with_logits(out.float(), targets.float(), reduction="none")
            return (losses * (sets != IGNORE_INDEX)).sum()
        assert batch.class_labels is not None
        return cross_entropy(out.flatten(0, 1), batch.class_labels.flatten(), self._smoothing)

    def span_loss(self, x: Tensor, batch: Batch) -> Tensor:
        """The summed loss of the start and the end of answers, each a softmax over the positions of its document."""
        assert batch.span_starts is not None
        assert batch.span_ends is not None
        out = self.network.head.project(x).float()  # (B, T, 2)
        member = document_membership(batch.document_ids, batch.max_documents)  # (B, E, T)
        member = member | ~member.any(-1, keepdim=True)  # a missing document has no label, but must not give NaN
        total = x.new_zeros((), dtype=torch.float32)
        for side, labels in enumerate((batch.span_starts, batch.span_ends)):
            logits = out[:, None, :, side].masked_fill(~member, float("-inf"))  # (B, E, T)
            total = total + cross_entropy(logits.flatten(0, 1), labels.flatten(), 0.0) / 2
        return total

    def contrastive_loss(self, batch: Batch) -> Tensor:
        """Return the summed InfoNCE loss of pairs of documents, or their squared error if they have scores.

        InfoNCE: each source must find its target among all targets of the micro-batch, and each target its source. The
        loss of a pair is the mean of both. The squared error is that of the cosine against the score.
        """
        network = self.network
        assert batch.source_ids is not None
        assert batch.source_document_ids is not None
        embeddings = []
        for ids, document_ids, positions in (
            (batch.source_ids, batch.source_document_ids, batch.source_positions),
            (batch.ids, batch.document_ids, batch.positions),
        ):
            x, layout = network.hidden(
                Inputs(ids, document_ids=document_ids, positions=positions, max_documents=batch.max_documents)
            )
            pooled = network.head(x, layout, batch.max_documents).flatten(0, 1)  # (B·E, C)
            embeddings.append(F.normalize(pooled.float(), dim=-1))
        source, target = embeddings
        if batch.scores is not None:
            scores = batch.scores.flatten()
            return (((source * target).sum(-1) - scores.nan_to_num()).square() * scores.isfinite()).sum()
        number = torch.arange(1, batch.max_documents + 1, device=source.device)
        exists = (batch.document_ids[:, :, None] == number).any(1).flatten()  # (B·E,) which slots hold a pair
        with torch.autocast(source.device.type, enabled=False):  # dividing by a small number magnifies rounding
            logits = (source @ target.T) / self.temperature
        labels = torch.arange(len(source), device=source.device).masked_fill(~exists, IGNORE_INDEX)
        forward = cross_entropy(logits.masked_fill(~exists[None], -1e9), labels, 0.0)
        backward = cross_entropy(logits.T.masked_fill(~exists[None], -1e9), labels, 0.0)
        return (forward + backward) / 2

    @property
    def _smoothing(self) -> float:
        return self.label_smoothing if self.training else 0.0


def cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Return the sum of the cross-entropies of all targets that are not IGNORE_INDEX, in at least float32.

    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([1, IGNORE_INDEX]), 0.1)
    tensor(1.3863)
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    options: dict[str, Any] = {"ignore_index": IGNORE_INDEX, "reduction": "sum", "label_smoothing": label_smoothing}
    return F.cross_entropy(logits.to(dtype), targets, **options)


def count_labels(batch: Batch) -> tuple[int, int]:
    """The numbers of token labels and of document labels (or pairs) in a batch."""
    if batch.labels is None and batch.source_ids is not None and batch.scores is None:
        return 0, len(batch.example_ids)
    return batch.num_labels, batch.num_example_labels
