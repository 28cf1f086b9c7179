"""The loss of a network on a batch.

    loss = Σ token losses / token labels  +  Σ document losses / document labels

Both sums are divided by the number of labels in the global batch, over all micro-batches and ranks. So the gradients of
any split of a batch add up to the gradient of the whole batch. (An exception is the contrastive InfoNCE loss, which
compares all documents of a micro-batch.) If fewer than 90 % of the positions have a token label, logits are computed
only there.

B batch, T positions, E documents in a sequence, C model width, V outputs, N positions with a label
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from qkv.blocks import Inputs, SequenceLayout
from qkv.blocks.head import Head, document_membership, pool, pooled_index
from qkv.blocks.kernels.linear_gelu import install_fused_gelu
from qkv.blocks.kernels.selection import MIN_QUERY_REDUCTION, gather_positions
from qkv.data.load.batch import Batch
from qkv.data.objectives.base import IGNORE_INDEX
from qkv.data.objectives.loss import ForwardPass, LossSums
from qkv.data.objectives.table import OBJECTIVES
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
CACHED_LOGITS, MIN_CHUNK = 2**20, 256
"""On a CPU, the logits of a chunk stay in the processor's cache: at most `CACHED_LOGITS`, or `MIN_CHUNK` positions."""


@dataclass(frozen=True)
class LabelledBatch:
    """A batch on the network's device, and its positions that have labels."""

    batch: Batch
    positions: Tensor | None  # flat indices (N,), or (B, Q) if Q positions of each sequence are selected; None: all
    targets: Tensor | None  # (N,) the label of each position; IGNORE_INDEX for padding
    loss: Callable[[ForwardPass], LossSums]  # the loss of the batch's objective; looked up here, outside compiled code


def make_labelled_batch(batch: Batch, device: torch.device, round_to: int = 1) -> LabelledBatch:
    """Move a batch to a device, and find its labels.

    N is rounded up to a multiple of `round_to`, so that the shapes seldom change.
    """
    positions = targets = None
    if batch.token_labels is not None:
        flat = batch.token_labels.flatten()
        if batch.num_token_labels < DENSE_THRESHOLD * flat.numel():
            indices, is_label = find_labelled_positions(batch.token_labels.numpy(), round_to)
            positions = torch.from_numpy(indices)
            targets = torch.where(torch.from_numpy(is_label), flat[positions], IGNORE_INDEX).flatten()
        else:
            targets = flat
    if device.type == "cuda":
        batch = batch.pin_memory()
        positions, targets = (None if t is None else t.pin_memory() for t in (positions, targets))
    positions, targets = (None if t is None else t.to(device, non_blocking=True) for t in (positions, targets))
    loss = OBJECTIVES.find(batch.objective).loss
    return LabelledBatch(batch.to(device, non_blocking=True), positions, targets, loss)


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

    torch.compile and the parallel wrappers apply to this module.
    """

    def __init__(self, network: Network, section: ObjectiveSection) -> None:
        super().__init__()
        network.check_methods()
        self.network = network
        self.options = section
        # In an encoder-decoder, the last block computes all positions.
        self.can_select = not network.has_source
        self.notes: list[str] = []
        self.auxiliary = find_auxiliary_losses(network)

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
        """The loss of a batch. `per_token` is 1 / the number of token labels of all ranks, and `per_document` is 1 /
        the number of document labels.
        """
        sums = labelled_batch.loss(BatchPass(self, labelled_batch))
        weighted = zip(sums, (per_token, per_document), strict=True)
        losses = [loss * weight for loss, weight in weighted if loss is not None]
        total = losses[0] if len(losses) == 1 else losses[0] + losses[1]
        if self.training and self.auxiliary:
            # The mean over micro-batches and ranks, each weighted by its labels.
            counts = labelled_batch.batch.label_counts
            fraction = counts[0] * per_token if counts[0] else counts[1] * per_document
            total = total + fraction * sum(aux_loss(module) for module, aux_loss in self.auxiliary)
        return total

    def normalize_padding_flags(self, batch: Batch) -> Batch:
        """Set the padding flags of a batch to `can_skip_mask`: batches with the same kernels share a CUDA graph."""
        can_skip = self.can_skip_mask(batch)
        return replace(batch, one_document_each=can_skip, unpadded=can_skip)

    def can_skip_mask(self, batch: Batch) -> bool:
        """Whether each sequence may be treated as one document without padding, for which the fastest kernels apply.

        Under a causal mask, right-padding is harmless: no real token attends to it, and its outputs are ignored.
        """
        if batch.token_labels is None or batch.has_document_labels or batch.inputs.payloads:
            return False
        if batch.inputs.ids.shape[1] > self.network.config.stack.max_positions:
            return False
        return batch.unpadded or (batch.one_document_each and self.network.is_causal)

    def can_skip_source_mask(self, batch: Batch) -> bool:
        """The same for source sequences. Their mask is not causal, so there must be no padding."""
        stack, source = self.network.config.encoder, batch.inputs.source
        if stack is None or source is None:
            return False
        return batch.source_unpadded and source.ids.shape[1] <= stack.max_positions

    def network_inputs(self, batch: Batch) -> Inputs:
        """The inputs of a batch, without the layout of sides that need no mask."""
        inputs, source = batch.inputs, batch.inputs.source
        if source is not None and self.can_skip_source_mask(batch):
            source = without_layout(source)
        return replace(without_layout(inputs) if self.can_skip_mask(batch) else inputs, source=source)

    def token_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """The summed cross-entropy of the hidden states (N, C) at labelled positions."""
        head, out = self.network.head, self.network.head.out
        num_chunks = count_chunks(x.shape[0], head.config.outputs, x.device.type)
        # Fuse only if it pays: on a GPU without the Triton kernel, torch.compile is nearly as fast. The kernel is not
        # used for float16, in which sums over positions would overflow.
        has_kernel = fused.triton_kernels is not None and compute_dtype(x) != torch.float16
        pays = num_chunks > 1 or not x.is_cuda or has_kernel
        if pays and self.can_fuse_output():
            assert out is not None
            x = head.transform(x).to(out.weight.dtype)
            return fused_cross_entropy(x, out.weight, out.bias, targets, self.smoothing, num_chunks)
        if num_chunks == 1:
            return self.token_cross_entropy(x, targets)
        pairs = zip(x.chunk(num_chunks), targets.chunk(num_chunks), strict=True)
        losses: list[Tensor] = [checkpoint(self.token_cross_entropy, *pair, use_reentrant=False) for pair in pairs]
        return torch.stack(losses).sum()

    def can_fuse_output(self) -> bool:
        """Whether the logits are nothing but a product with the output matrix: no cap, and no other class or hook."""
        head, out = self.network.head, self.network.head.out
        if type(head) is not Head or type(out) is not nn.Linear or type(out.weight) is not nn.Parameter:
            return False
        return not (head.config.logit_cap or out._forward_hooks or out._forward_pre_hooks)

    def token_cross_entropy(self, x: Tensor, targets: Tensor) -> Tensor:
        """The same without fusing: hidden states (N, C), labels (N,) → the summed loss."""
        head = self.network.head
        padding = -head.config.outputs % VOCAB_MULTIPLE
        if not padding or not x.is_cuda or not self.can_fuse_output():
            return cross_entropy(head.project(x), targets, self.smoothing)
        assert head.out is not None
        # Pad the vocabulary to a multiple of VOCAB_MULTIPLE: a GPU then computes this large product faster.
        weight = F.pad(head.out.weight, (0, 0, 0, padding))
        bias = None if head.out.bias is None else F.pad(head.out.bias, (0, padding))
        logits = F.linear(head.transform(x), weight, bias)[:, : head.config.outputs]
        return cross_entropy(logits, targets, self.smoothing)

    @property
    def smoothing(self) -> float:
        """The label smoothing: none in evaluation."""
        return self.options.label_smoothing if self.training else 0.0


def count_chunks(positions: int, outputs: int, device_type: str) -> int:
    """Return the number of chunks in which the loss of this number of positions is computed.

    >>> count_chunks(2048, 32_000, "cuda"), count_chunks(2048, 5_000, "cpu"), count_chunks(2048, 50_000, "cpu")
    (1, 8, 8)
    """
    logits = positions * outputs
    num_chunks = -(-logits // MAX_LOGITS.get(device_type, MAX_LOGITS["cuda"]))
    if device_type == "cpu":
        num_chunks = max(num_chunks, min(-(-logits // CACHED_LOGITS), -(-positions // MIN_CHUNK)))
    return max(1, num_chunks)


class BatchPass:
    """The network and a labelled batch, from which a loss is computed (`ForwardPass`)."""

    def __init__(self, module: TrainingModule, labelled_batch: LabelledBatch) -> None:
        self.module, self.labelled, self.batch = module, labelled_batch, labelled_batch.batch
        self.inputs, self.labels = self.batch.inputs, self.batch.labels
        self.head, self.options, self.label_smoothing = module.network.head, module.options, module.smoothing

    def hidden(self, inputs: Inputs | None = None) -> tuple[Tensor, SequenceLayout]:
        """The input of the head at all positions, (B, T, C), and its layout. The default input is the input of the
        batch.
        """
        network = self.module.network
        return network.hidden(self.module.network_inputs(self.batch) if inputs is None else inputs)

    def token_losses(self, x: Tensor | None = None) -> Tensor:
        """The summed cross-entropy of the labels of tokens, from the hidden states `x` (B, T, C).

        Without `x`, the last block computes only the positions that have a label.
        """
        targets = self.labelled.targets
        assert targets is not None
        x = self.labelled_positions(x)
        loss = self.module.token_loss(x, targets)
        if self.module.training:
            for distance, future in enumerate(self.head.future, start=1):
                loss = loss + self.module.token_loss(future(x), self._later_targets(distance, targets))
        return loss

    def labelled_positions(self, x: Tensor | None = None) -> Tensor:
        """The hidden states of the positions that have a label, (N, C)."""
        network, positions = self.module.network, self.labelled.positions
        if x is None and self.module.can_select:
            x = network.hidden(self.module.network_inputs(self.batch), selected=positions)[0]
        else:
            x = gather_positions(self.hidden()[0] if x is None else x, positions)
        return x.reshape(-1, x.shape[-1])

    def _later_targets(self, distance: int, targets: Tensor) -> Tensor:
        """The labels of later tokens of the same documents, (N,). Where `targets` is padding, so is the result."""
        labels, positions, documents = self.labels["tokens"], self.labelled.positions, self.inputs.document_ids
        later = F.pad(labels[:, distance:], (0, distance), value=IGNORE_INDEX)
        if documents is not None:
            is_same = documents == F.pad(documents[:, distance:], (0, distance))
            later = torch.where(is_same, later, IGNORE_INDEX)
        later = later.flatten() if positions is None else later.flatten()[positions.flatten()]
        return torch.where(targets == IGNORE_INDEX, IGNORE_INDEX, later)

    def document_outputs(self) -> Tensor:
        """The outputs of a head that pools, (B, E, V)."""
        return self.head.project(self.pooled())

    def pooled(self) -> Tensor:
        """The vectors of documents that the head projects, (B, E, C). The last block computes only what is pooled."""
        inputs, pooling = self.inputs, self.head.config.pool
        assert inputs.document_ids is not None
        if pooling == "mean" or not self.module.can_select:
            x, layout = self.hidden()
            return pool(x, layout, pooling, inputs.max_documents or 1)
        index = pooled_index(document_membership(inputs.document_ids, inputs.max_documents), pooling)  # (B, E)
        start = torch.arange(len(index), device=index.device)[:, None] * inputs.ids.shape[1]
        x, _ = self.module.network.hidden(self.module.network_inputs(self.batch), selected=start + index)
        return x.view(inputs.batch_size, inputs.max_documents, -1)

    def cross_entropy(self, logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """The summed cross-entropy of logits (N, V) and targets (N,), without targets that are `IGNORE_INDEX`."""
        return cross_entropy(logits, targets, label_smoothing)


def find_auxiliary_losses(network: nn.Module) -> list[tuple[nn.Module, Callable[[Any], Any]]]:
    """The modules whose part states an auxiliary loss, such as the balance of experts, and the functions that return
    it.
    """
    rows = [(module, getattr(module, "part_row", None)) for module in network.modules()]
    return [(module, row.aux_loss) for module, row in rows if row is not None and row.aux_loss is not None]


def without_layout(inputs: Inputs) -> Inputs:
    """The inputs as one document per sequence, without padding. Payloads keep their positions."""
    positions = inputs.positions if inputs.payloads else None
    return replace(inputs, document_ids=None, positions=positions, max_documents=0, max_document_length=0)


def cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Return the sum of the cross-entropies of all targets that are not IGNORE_INDEX, in at least float32.

    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([1, IGNORE_INDEX]), 0.1)
    tensor(1.3863)
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    options: dict[str, Any] = {"ignore_index": IGNORE_INDEX, "reduction": "sum", "label_smoothing": label_smoothing}
    return F.cross_entropy(logits.to(dtype), targets, **options)
