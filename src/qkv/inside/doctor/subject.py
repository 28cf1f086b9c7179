"""What the checks examine: a network, its tokenizer, a batch of training data, and how it is trained.

No check changes the network. A check that trains, or that needs float64, takes a copy.

B batch, T target length, S source length, E documents in a sequence, C model width
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.blocks import HeadConfig, Inputs, Tap
from qkv.blocks.head import POOLED_KINDS
from qkv.data.load.batch import Batch
from qkv.data.objectives.base import IGNORE_INDEX, TOKEN_LABELS, Label
from qkv.data.objectives.table import find_objective
from qkv.models import Config, Network
from qkv.text import Tokenizer
from qkv.train.loss.training_module import TrainingModule, make_labelled_batch
from qkv.train.recipe.schema import ObjectiveSection, TrainSection

MAX_POSITIONS = 512
"""A batch for the checks has at most this many positions (source and target together), or one sequence."""
RANDOM_SEQUENCES, RANDOM_DOCUMENT_LENGTH = 8, 24
"""The size of a batch of random tokens: each sequence has two documents and some padding."""


@dataclass(frozen=True)
class Subject:
    """A network with everything that the checks need."""

    network: Network
    tokenizer: Tokenizer | None
    batch: Batch
    objective: ObjectiveSection = field(default_factory=ObjectiveSection)
    train: TrainSection | None = None  # the recipe's optimizer and learning rate; None: there is no recipe
    is_new: bool = False  # whether the weights are newly initialised
    has_random_batch: bool = False  # whether the batch has random tokens instead of data

    @property
    def config(self) -> Config:
        """The config of the network."""
        return self.network.config

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self.network.device

    @property
    def has_loss(self) -> bool:
        """Whether the batch has labels, so that a loss can be computed."""
        return sum(self.batch.label_counts) > 0

    def copy(self, dtype: torch.dtype = torch.float32) -> Network:
        """A copy of the network without dropout. A check may train it or change it."""
        network = deepcopy(self.network).to(dtype).eval()
        for stack in network.stacks.values():
            stack.gradient_checkpointing = False
        return network

    def loss(self, network: Network, batch: Batch | None = None) -> Tensor:
        """The mean loss of a network on the batch, without label smoothing if the network is in eval mode."""
        batch = batch or self.batch
        module = TrainingModule(network, self.objective).train(network.training)
        labels = torch.tensor([1 / max(count, 1) for count in batch.label_counts], device=self.device)
        loss: Tensor = module(make_labelled_batch(batch, self.device), labels[0], labels[1])
        return loss


def hidden_states(network: Network, batch: Batch, tap: Tap | None = None) -> Tensor:
    """The input of the head for each position of a batch, (B, T, C)."""
    return network.hidden(batch.inputs, tap=tap)[0]


def token_outputs(network: Network, inputs: Inputs) -> Tensor:
    """The output for each token: the head's, or the hidden state if the head pools documents. (B, T, V or C)."""
    return project_tokens(network, network.hidden(inputs)[0])


def project_tokens(network: Network, x: Tensor) -> Tensor:
    """Apply the head to each token, unless it pools documents: (B, T, C) → (B, T, V or C)."""
    return x if network.head.config.kind in POOLED_KINDS else network.head.project(x)


def take_sequences(batch: Batch, max_positions: int = MAX_POSITIONS) -> Batch:
    """The first sequences of a batch, with at most `max_positions` positions, but at least one sequence."""
    sides = [side for side in (batch.inputs, batch.inputs.source) if side is not None]
    count = max(1, max_positions // sum(side.ids.shape[1] for side in sides))
    return batch if count >= batch.batch_size else batch.split(-(-batch.batch_size // count))[0]


def keep_labels(batch: Batch, max_labels: int) -> Batch:
    """The batch with only its first `max_labels` token labels. Other batches are returned as they are."""
    labels = batch.token_labels
    if labels is None or batch.num_token_labels <= max_labels:
        return batch
    number = (labels != IGNORE_INDEX).flatten().cumsum(0).view_as(labels)
    labels = labels.masked_fill(number > max_labels, IGNORE_INDEX)
    counts = (labels != IGNORE_INDEX).sum(1).numpy()
    return replace(batch, labels={**batch.labels, TOKEN_LABELS.name: labels}, token_labels_per_sequence=counts)


def random_ids(vocab_size: int, *shape: int, seed: int = 0) -> Tensor:
    """Random token ids."""
    return torch.randint(0, max(vocab_size, 1), shape, generator=torch.Generator().manual_seed(seed))


def random_batch(config: Config, seed: int = 0) -> Batch:
    """A batch of random tokens, with labels of the objective that suits the config.

    Each sequence has two documents, and padding after them.
    """
    size, stack, head = RANDOM_SEQUENCES, config.stack, config.head
    length = min(RANDOM_DOCUMENT_LENGTH, stack.max_positions)
    document_ids = torch.tensor([1] * length + [2] * length + [0] * 2).repeat(size, 1)  # (B, T)
    positions = torch.tensor([*range(length), *range(length), 0, 0]).repeat(size, 1)
    ids = random_ids(stack.vocab_size, size, 2 * length + 2, seed=seed)
    if config.pad_token_id is not None:
        ids = ids.masked_fill(document_ids == 0, config.pad_token_id)
    spec = find_objective(head, config.family)
    declared = spec.labels(head) if spec is not None else ()
    generator = torch.Generator().manual_seed(seed + 1)
    labels = {label.name: random_labels(label, head, document_ids, generator) for label in declared}
    counts = {"token": np.zeros(size, int), "document": np.zeros(size, int)}
    for label in declared:
        counts[label.per] += label.count(labels[label.name].numpy()) * label.is_counted
    has_source = config.family == "seq2seq" or (spec is not None and not declared)  # the latter learns from pairs
    if has_source and not declared:
        counts["document"] += 2
    layout: dict[str, Any] = {"document_ids": document_ids, "positions": positions}
    layout |= {"max_documents": 2, "max_document_length": length}
    source = None
    if has_source:
        assert config.encoder is not None
        source = Inputs(random_ids(config.encoder.vocab_size, *ids.shape, seed=seed + 2), **layout)
    return Batch(
        objective="" if spec is None else spec.name,
        inputs=Inputs(ids, **layout, source=source),
        labels=labels,
        declared=declared,
        epoch=0,
        tokens_per_sequence=np.full(size, 2 * length * (2 if has_source else 1)),
        token_labels_per_sequence=counts["token"],
        document_labels_per_sequence=counts["document"],
        example_ids=np.arange(2 * size),
        example_sequences=np.arange(2 * size) // 2,
        example_epochs=np.zeros(2 * size, int),
    )


def random_labels(label: Label, head: HeadConfig, document_ids: Tensor, generator: torch.Generator) -> Tensor:
    """Random labels for the two documents of each sequence: (B, T) for tokens, (B, 2, …) for documents."""
    size, length = len(document_ids), int((document_ids[0] == 1).sum())
    if label.per == "token" and label.dtype == "float32":  # vectors, such as the frames of a sound
        vectors = torch.rand((*document_ids.shape, max(label.width, 1)), generator=generator)
        return vectors.masked_fill(document_ids[:, :, None] == 0, label.fill_value)
    if label.per == "token":
        labels = torch.randint(0, max(head.outputs, 1), document_ids.shape, generator=generator)
        if head.kind == "mlm":
            labels = labels.masked_fill(torch.rand(labels.shape, generator=generator) > 0.3, IGNORE_INDEX)
        return labels.masked_fill(document_ids == 0, IGNORE_INDEX)
    shape = (size, 2, *([label.width] if label.width else []))
    if label.dtype == "float32":
        return torch.rand(shape, generator=generator)
    if label.is_position:
        return torch.randint(0, length, shape, generator=generator) + torch.tensor([0, length])
    num_values = 2 if label.width else head.next_sentence_classes or head.outputs
    return torch.randint(0, num_values, shape, generator=generator)
