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

from qkv.blocks import Inputs, Tap
from qkv.blocks.head import POOLED_KINDS
from qkv.data.load.batch import Batch
from qkv.data.objectives import IGNORE_INDEX
from qkv.models import Config, Network
from qkv.text import Tokenizer
from qkv.train.loss.training_module import TrainingModule, count_labels, make_labelled_batch
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
        return next(self.network.parameters()).device

    @property
    def has_loss(self) -> bool:
        """Whether the batch has labels, so that a loss can be computed."""
        return sum(count_labels(self.batch)) > 0

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
        labels = torch.tensor([1 / max(count, 1) for count in count_labels(batch)], device=self.device)
        loss: Tensor = module(make_labelled_batch(batch, self.device), labels[0], labels[1])
        return loss


def hidden_states(network: Network, batch: Batch, tap: Tap | None = None) -> Tensor:
    """The input of the head for each position of a batch, (B, T, C)."""
    source = None
    if batch.source_ids is not None:
        source = Inputs(batch.source_ids, document_ids=batch.source_document_ids, positions=batch.source_positions)
    inputs = Inputs(
        batch.ids,
        document_ids=batch.document_ids,
        positions=batch.positions,
        token_type_ids=batch.token_type_ids,
        source=source,
    )
    return network.hidden(inputs, tap=tap)[0]


def token_outputs(network: Network, inputs: Inputs) -> Tensor:
    """The output for each token: the head's, or the hidden state if the head pools documents. (B, T, V or C)."""
    return project_tokens(network, network.hidden(inputs)[0])


def project_tokens(network: Network, x: Tensor) -> Tensor:
    """Apply the head to each token, unless it pools documents: (B, T, C) → (B, T, V or C)."""
    return x if network.head.config.kind in POOLED_KINDS else network.head.project(x)


def take_sequences(batch: Batch, max_positions: int = MAX_POSITIONS) -> Batch:
    """The first sequences of a batch, with at most `max_positions` positions, but at least one sequence."""
    source_length = 0 if batch.source_ids is None else batch.source_ids.shape[1]
    count = max(1, max_positions // (batch.ids.shape[1] + source_length))
    return batch if count >= batch.batch_size else batch.split(-(-batch.batch_size // count))[0]


def keep_labels(batch: Batch, max_labels: int) -> Batch:
    """The batch with only its first `max_labels` token labels. Other batches are returned as they are."""
    if batch.labels is None or batch.num_labels <= max_labels:
        return batch
    is_label = batch.labels != IGNORE_INDEX
    number = is_label.flatten().cumsum(0).view_as(batch.labels)
    labels = batch.labels.masked_fill(number > max_labels, IGNORE_INDEX)
    return replace(batch, labels=labels, labels_per_sequence=(labels != IGNORE_INDEX).sum(1).numpy())


def random_ids(vocab_size: int, *shape: int, seed: int = 0) -> Tensor:
    """Random token ids."""
    return torch.randint(0, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def random_batch(config: Config, seed: int = 0) -> Batch:
    """A batch of random tokens, with labels for the head of a config.

    Each sequence has two documents, and padding after them.
    """
    size, stack, head = RANDOM_SEQUENCES, config.stack, config.head
    length = min(RANDOM_DOCUMENT_LENGTH, stack.max_positions)
    document_ids = torch.tensor([1] * length + [2] * length + [0] * 2).repeat(size, 1)  # (B, T)
    positions = torch.tensor([*range(length), *range(length), 0, 0]).repeat(size, 1)
    ids = random_ids(stack.vocab_size, size, 2 * length + 2, seed=seed)
    if config.pad_token_id is not None:
        ids = ids.masked_fill(document_ids == 0, config.pad_token_id)
    generator = torch.Generator().manual_seed(seed + 1)
    values: dict[str, Any] = {}

    def random_labels(num_outputs: int, *shape: int) -> Tensor:
        return torch.randint(0, max(num_outputs, 1), shape, generator=generator)

    if head.kind in ("lm", "mlm", "tag"):
        labels = random_labels(head.outputs, *ids.shape)
        if head.kind == "mlm":
            labels = labels.masked_fill(torch.rand(ids.shape, generator=generator) > 0.3, IGNORE_INDEX)
        values["labels"] = labels.masked_fill(document_ids == 0, IGNORE_INDEX)
    if head.next_sentence_classes:
        values["class_labels"] = random_labels(head.next_sentence_classes, size, 2)
    elif head.kind == "classify" and head.outputs > 1:
        values["class_labels"] = random_labels(head.outputs, size, 2)
    elif head.kind in ("classify", "choice"):
        values["scores"] = torch.rand(size, 2, generator=generator)
    elif head.kind == "span":
        values["span_starts"] = random_labels(length // 2, size, 2) + torch.tensor([0, length])
        values["span_ends"] = values["span_starts"] + 1
    if config.family == "seq2seq" or (head.kind == "embed" and config.family == "encoder"):
        assert config.encoder is not None
        values["source_ids"] = random_ids(config.encoder.vocab_size, *ids.shape, seed=seed + 2)
        values["source_document_ids"], values["source_positions"] = document_ids.clone(), positions.clone()
    label_count = (values["labels"] != IGNORE_INDEX).sum(1).numpy() if "labels" in values else np.zeros(size, int)
    documents = any(name in values for name in ("class_labels", "scores", "span_starts"))
    return Batch(
        ids=ids,
        document_ids=document_ids,
        positions=positions,
        **values,
        max_documents=2,
        epoch=0,
        max_document_length=length,
        source_max_document_length=length,
        tokens_per_sequence=np.full(size, 2 * length * (2 if "source_ids" in values else 1)),
        labels_per_sequence=label_count,
        example_labels_per_sequence=np.full(size, 2 if documents else 0),
        example_ids=np.arange(2 * size),
        example_sequences=np.arange(2 * size) // 2,
        example_epochs=np.zeros(2 * size, int),
    )
