"""Fit the one-hot table of a new head (blocks/one_hot.py) before the first step of training.

The mean over a document of table[position, token] is a linear function of one-hot features. So the best table for
labels or scores is the minimum of a convex loss, as for the output matrix in `head_fit.py`. Like there, L-BFGS finds it
for weight decays from strong to weak. Cross-validation inside the training data chooses one.

Weight decay says that the effects of two amino acids at a position are independent. Alike amino acids have alike
effects, however, so the table is also tried as W + s · U Pᵀ, where the rows of P are the properties of the tokens.
Cross-validation chooses s, too; s = 0 is ridge regression on one-hot features.

After the fit, the head reads the table alone: the gain of the hidden states becomes 0, and training raises it as far as
the stack improves on the table.

An embedding is learned from pairs. In the data, the first text of a pair has the lower score, and the score of the pair
is 1 minus the difference. The table is then fitted to these differences, and the vector turns with the score.

N positions of the table, V tokens, K fitted numbers for each document, C model width
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks import Inputs
from qkv.blocks.one_hot import OneHotTable
from qkv.data.load.batch import Batch
from qkv.data.load.loader import Loader
from qkv.data.objectives.loss import LossSums
from qkv.data.stream.sequences import SequenceStream
from qkv.models import Network
from qkv.train.head_fit import (
    MAX_FIT_FRACTION,
    WEIGHT_DECAYS,
    Clock,
    count_examples,
    mean_loss,
    minimise,
    padded_stream,
)
from qkv.train.loss.training_module import cross_entropy, make_labelled_batch
from qkv.train.setup import Job, TrainingRun

PROPERTY_SCALES = (0.0, 0.3, 0.6)
"""The values of s that are tried: how much of a token's effect may follow from its properties."""
FOLDS = 5
"""Of cross-validation. With more than `MAX_CROSS_VALIDATED` tokens, only one of them is held out."""
MAX_CROSS_VALIDATED = 5_000_000
MAX_BATCH_TOKENS = 2**18
MAX_TOKENS = 2**25
"""Of all examples together; more are not read."""
MIN_GAIN = 0.01
"""The table is kept if it lowers the validation loss by this fraction of the loss of a constant."""
ANGLE = 2.0
"""Of an embedding: the tangent of the angle by which the whole range of scores turns a vector."""


def can_fit_table(network: Network, fields: Collection[str]) -> bool:
    """Whether the head has a table, nothing between the mean and the output matrix, and the records single labels."""
    head = network.head
    is_plain = head.one_hot is not None and head.dense is None and head.norm is None and head.scale == 1.0
    return is_plain and (head.config.kind == "classify" or "score" in fields)


class EffectTable:
    """What is fitted: numbers of each document from one-hot features, (E, K)."""

    def __init__(self, module: OneHotTable, outputs: int, properties: Tensor, target_scale: float) -> None:
        rows = module.positions * module.vocab_size
        self.shape = (module.positions, module.vocab_size, outputs)
        self.weight = torch.zeros(rows, outputs, device=properties.device, requires_grad=True)
        self.bias = torch.zeros(outputs, device=properties.device, requires_grad=True)
        self.mean = torch.zeros(rows, device=properties.device)  # of the features
        self.properties, self.target_scale = properties, target_scale
        self.mix = torch.eye(module.vocab_size, device=properties.device)  # (V, V)

    @property
    def parameters(self) -> list[Tensor]:
        """The weight and the bias."""
        return [self.weight, self.bias]

    def copy(self) -> list[Tensor]:
        """A copy of the parameters."""
        return [one.detach().clone() for one in self.parameters]

    @torch.no_grad()
    def load(self, values: list[Tensor]) -> None:
        """Copy values into the parameters."""
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)

    def use_properties(self, scale: float) -> None:
        """Set the covariance of the effects of two tokens to 1 + s² PPᵀ, and start from 0."""
        covariance = (
            torch.eye(len(self.properties)).double() + scale**2 * (self.properties @ self.properties.T).cpu().double()
        )
        values, vectors = torch.linalg.eigh(covariance)
        self.mix = (vectors * values.sqrt() @ vectors.T).to(self.mix)
        with torch.no_grad():
            self.weight.zero_()
            self.bias.zero_()

    def effects(self) -> Tensor:
        """The effect of each token at each position, (N·V, K)."""
        return torch.einsum("uv,nvk->nuk", self.mix, self.weight.view(self.shape)).flatten(0, 1)

    def project(self, features: "Features") -> Tensor:
        """The numbers of documents, (B, K)."""
        effects = self.effects()
        found = F.embedding_bag(features.rows, effects, per_sample_weights=features.weights, mode="sum")
        return self.target_scale * (found - self.mean @ effects + self.bias)


@dataclass
class Features:
    """The one-hot features of a batch with one document in each sequence: rows of the table and their weights."""

    rows: Tensor  # (B, T)
    weights: Tensor  # (B, T), 0 for padding; of a document of the mean length, each token has 1

    @classmethod
    def read(cls, inputs: Inputs, module: OneHotTable, length: float) -> "Features":
        """The features of a batch, with the mean length of a document."""
        positions = inputs.positions
        if positions is None:
            positions = torch.arange(inputs.ids.shape[1], device=inputs.ids.device)[None]
        rows, has_row = module.rows(inputs.ids, positions)
        is_token = torch.ones_like(rows) if inputs.document_ids is None else (inputs.document_ids > 0).long()
        weights = (has_row * is_token) * (length / is_token.sum(1, keepdim=True).clamp(min=1))
        return cls(rows, weights)


class TablePass:
    """A batch whose loss is computed from the table (`ForwardPass`)."""

    label_smoothing = 0.0

    def __init__(self, batch: Batch, network: Network, table: EffectTable, length: float, options: Any) -> None:
        module = network.head.one_hot
        assert module is not None
        labelled = make_labelled_batch(batch, network.device)
        self.run, self.batch, self.table, self.options = self, labelled.batch, table, options
        self.inputs, self.labels, self.loss = labelled.batch.inputs, labelled.batch.labels, labelled.loss
        self.sides = [Features.read(side, module, length) for side in (self.inputs, self.inputs.source) if side]

    def sums(self) -> LossSums:
        """The loss of the objective, of scores with variance 1; of pairs, the squared error of the difference."""
        if len(self.sides) == 1:
            documents = self.loss(self).documents  # type: ignore[arg-type]
            assert documents is not None
            return LossSums(documents=documents / self.table.target_scale**2)
        high, low = (self.table.project(side)[:, 0] for side in self.sides)
        scores = self.labels["scores"].flatten()
        error = (high - low) - (1 - scores.nan_to_num())
        return LossSums(documents=(error.square() * scores.isfinite()).sum())

    def document_outputs(self) -> Tensor:
        """The outputs of documents (B, 1, K)."""
        return self.table.project(self.sides[0])[:, None]

    def cross_entropy(self, logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """The summed cross-entropy of logits (N, V) and targets (N,)."""
        return cross_entropy(logits, targets, label_smoothing)


def fit_table(job: Job, run: TrainingRun, clock: Clock, properties: Sequence[Sequence[float]]) -> str:
    """Fit the one-hot table of the head. Return a note on the result. `properties` are those of each token."""
    network, head = run.network, run.network.head
    module = head.one_hot
    assert module is not None
    batches = read_batches(job.train_data)
    scores = torch.cat([one.labels["scores"].flatten() for one in batches if "scores" in one.labels] or [torch.ones(1)])
    is_number = head.config.is_regression
    scale = float(scores[scores.isfinite()].double().std()) if is_number and scores.isfinite().sum() > 1 else 1.0
    length = sum(one.num_tokens for one in batches) / sum(map(count_documents, batches))
    outputs = 1 if head.out is None else head.config.outputs
    table = EffectTable(module, outputs, torch.tensor(properties, device=network.device), scale or 1.0)
    training = [TablePass(one, network, table, length, job.recipe.objective) for one in batches]
    table.mean = mean_features(training, len(table.mean))
    found = choose_fit(table, training, clock)
    if found is None:
        return "the one-hot table was not fitted, because it does not improve on a constant: it starts at 0"
    write_table(network, table, length)
    return (
        f"the head's table of {module.positions} positions was fitted to one-hot features of "
        f"{sum(len(one.batch.example_ids) for one in training):,} of {count_examples(job.train_data):,} training "
        f"examples in {clock.seconds():.1f} s ({found})"
    )


def count_documents(batch: Batch) -> int:
    """The number of documents, of source and target together."""
    return batch.batch_size * (1 if batch.inputs.source is None else 2)


def read_batches(data: SequenceStream) -> list[Batch]:
    """All examples of the data once, but at most `MAX_TOKENS`, in at least `FOLDS` large batches."""
    total = sum(objective.counts.tokens for objective in data.objectives)
    batches: list[Batch] = []
    tokens = examples = 0
    for batch in Loader(padded_stream(data, min(MAX_BATCH_TOKENS, total // FOLDS))):
        batches.append(batch)
        tokens, examples = tokens + batch.num_tokens, examples + len(batch.example_ids)
        if examples >= count_examples(data) or tokens >= MAX_TOKENS:
            break
    return batches


def mean_features(passes: list[TablePass], rows: int) -> Tensor:
    """The mean of the features of all documents, (N·V,)."""
    sides = [side for one in passes for side in one.sides]
    total = torch.zeros(rows, dtype=torch.float64, device=sides[0].rows.device)
    for side in sides:
        total.index_add_(0, side.rows.flatten(), side.weights.flatten().double())
    return (total / sum(len(side.rows) for side in sides)).float()


def choose_fit(table: EffectTable, passes: list[TablePass], clock: Clock) -> str | None:
    """Choose the scale of the properties and the weight decay by cross-validation, and fit the table to all examples.

    Return a description; None if a constant is as good.
    """
    center(table, passes)
    num_folds = FOLDS if sum(one.batch.num_tokens for one in passes) <= MAX_CROSS_VALIDATED else 1
    folds = [(passes[:k] + passes[k + 1 :], passes[k : k + 1]) for k in range(min(num_folds, len(passes)))]
    constant = sum(score(held) for _, held in folds) / len(folds)
    best, chosen = constant * (1 - MIN_GAIN), None
    for scale in PROPERTY_SCALES if bool(table.properties.any()) else PROPERTY_SCALES[:1]:
        table.use_properties(scale)
        center(table, passes)
        states, last = [table.copy() for _ in folds], math.inf
        for decay in WEIGHT_DECAYS:
            loss = 0.0
            for number, (training, held) in enumerate(folds):
                table.load(states[number])
                minimise(table, training, decay)  # type: ignore[arg-type]
                states[number] = table.copy()
                loss += score(held) / len(folds)
            if loss < best:
                best, chosen = loss, (scale, decay)
            if not loss < last or clock.fraction() > MAX_FIT_FRACTION:
                break
            last = loss
    if chosen is None:
        return None
    table.use_properties(chosen[0])
    center(table, passes)
    for decay in [one for one in WEIGHT_DECAYS if one >= chosen[1]]:
        minimise(table, passes, decay)  # type: ignore[arg-type]
    return (
        f"weight decay {chosen[1]:g} and scale of properties {chosen[0]:g}; loss of held-out examples {best:.4g}, of a "
        f"constant {constant:.4g}"
    )


@torch.no_grad()
def score(passes: list[TablePass]) -> float:
    """The mean loss."""
    return float(mean_loss(passes))  # type: ignore[arg-type]


@torch.no_grad()
def center(table: EffectTable, training: list[TablePass]) -> None:
    """Start the bias of a number at the mean of the scores."""
    scores = torch.cat(
        [one.labels["scores"].flatten() for one in training if "scores" in one.labels] or [torch.zeros(1)]
    )
    if len(training[0].sides) == 1 and scores.isfinite().any():
        table.bias.fill_(float(scores[scores.isfinite()].double().mean()) / table.target_scale)


@torch.no_grad()
def write_table(network: Network, table: EffectTable, length: float) -> None:
    """Copy the effects to the head's table, and let the head read nothing else."""
    head = network.head
    module = head.one_hot
    assert module is not None
    effects = table.target_scale * length * table.effects().view(table.shape)  # the head takes the mean of a document
    frequency = table.mean.view(*table.shape[:2], 1) / length  # (N, V, 1) of a token at a position
    mean = (frequency * effects).sum(1, keepdim=True)  # (N, 1, K)
    found = frequency.sum(1, keepdim=True)
    effects = (effects - mean / found.clamp(min=1e-9)).flatten(0, 1)  # frequent residues have small effects
    constant = table.target_scale * table.bias  # (K,)
    module.gain.zero_()
    if isinstance(head.out, nn.Linear):
        inverse = torch.linalg.pinv(head.out.weight.double()).to(effects)  # (C, K)
        module.table.weight.copy_(effects @ inverse.T)
        if head.out.bias is not None:
            head.out.bias.copy_(constant)
        else:
            module.table.weight.add_(constant @ inverse.T)
        return
    width = module.table.embedding_dim
    axes = torch.linalg.qr(torch.randn(width, 2, device=effects.device))[0].T  # (2, C) orthonormal
    module.table.weight.copy_(axes[:1] + ANGLE * effects * axes[1:])
