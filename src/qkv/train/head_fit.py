"""Fit a new head to the features of a trained network, before the first step of fine-tuning.

A new head starts from random numbers. As long as the network below it does not change, it reads fixed vectors, and the
loss is a convex function of its output matrix. So these features are computed once, and L-BFGS finds the minimum in
seconds; for a classifier, this is a logistic regression. Weight decays are tried from strong to weak, and the
validation loss chooses one.

The result is the checkpoint of step 0, which the loop evaluates first. So a run that keeps its best weights never ends
below it.

C width of the features, V outputs
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.blocks import SequenceLayout, make_layout
from qkv.data.load.loader import Loader
from qkv.data.objectives.loss import LossSums
from qkv.data.stream.sequences import SequenceStream
from qkv.models import Network
from qkv.models.runtime import eval_mode
from qkv.train.core_share import cpu_seconds
from qkv.train.loss.training_module import BatchPass, TrainingModule, cross_entropy, make_labelled_batch
from qkv.train.recipe.schema import TrainSection
from qkv.train.setup import Job, TrainingRun

WEIGHT_DECAYS = (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5)
"""The loss is the mean of a label plus half the squared norm of the output matrix, times one of these numbers."""
DEFAULT_DECAY = 0.01
"""The weight decay if there is no validation data."""
MAX_ITERATIONS, MIN_IMPROVEMENT = 50, 1e-5
"""L-BFGS ends after this number of iterations, or if an iteration improves the loss by less."""
BATCH_TOKENS = 4096
"""Tokens of a batch whose features are computed, but at least one sequence."""
FITTED_KINDS = ("classify", "tag")
"""Heads of classes. A head of answers did worse with a fit than without one (docs/experiments.md)."""
MAX_FEATURE_BYTES = 2**29
MAX_BUDGET_FRACTION, VALIDATION_FRACTION, MAX_FIT_FRACTION = 0.5, 0.2, 0.75
"""Features may take this fraction of a budget in time, and features of the validation data this fraction of it. If they
take more, an epoch of fine-tuning would not fit into the budget. After the last fraction, no other decay is tried."""


def fit_head_first(job: Job, run: TrainingRun) -> None:
    """Before the first step of a new run, fit its new head; or let the loop evaluate a network that was trained before.

    The time counts against the budget.
    """
    if run.is_resumed or not (job.fit_head or job.evaluate_first):
        return
    if job.fit_head is not None:
        clock = Clock(job.recipe.train)
        job.watcher.on_note(0, job.fit_head(job, run, clock))
        run.progress.seconds, run.progress.cpu_seconds = clock.seconds(), clock.cpu_seconds()
        run.progress.start_fraction = run.fraction_done()
        if run.ema is not None:
            run.ema.restart()
    run.progress.pending_eval = True
    run.manager.save(run.progress)


class Clock:
    """The time since it was made, as a part of a run's budget."""

    def __init__(self, section: TrainSection) -> None:
        self.section, self.start, self.start_cpu = section, time.monotonic(), cpu_seconds()

    def seconds(self) -> float:
        """The seconds on the clock."""
        return time.monotonic() - self.start

    def cpu_seconds(self) -> float:
        """The seconds that the threads have computed."""
        return cpu_seconds() - self.start_cpu

    def fraction(self) -> float:
        """The spent fraction of the budget; 0 without a budget in time."""
        spent = (self.seconds(), self.section.minutes * 60), (self.cpu_seconds(), self.section.cpu_minutes * 60)
        return max(used / limit if limit else 0.0 for used, limit in spent)


def can_fit_head(network: Network) -> bool:
    """Whether the head has classes, and an output matrix that is trained and is not an embedding table."""
    out = network.head.out
    if network.head.config.kind not in FITTED_KINDS:
        return False
    tables = {id(module.weight) for module in network.modules() if isinstance(module, nn.Embedding)}
    return type(out) is nn.Linear and out.weight.requires_grad and id(out.weight) not in tables


class OutputMatrix:
    """The output matrix that is fitted, (…, C) → (…, V). It starts at 0."""

    def __init__(self, out: nn.Linear) -> None:
        self.weight = torch.zeros_like(out.weight, dtype=torch.float32).requires_grad_()
        self.bias = None if out.bias is None else torch.zeros_like(out.bias, dtype=torch.float32).requires_grad_()

    @property
    def parameters(self) -> list[Tensor]:
        """The weight and, if there is one, the bias."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def project(self, x: Tensor) -> Tensor:
        """The outputs of features."""
        return F.linear(x, self.weight, self.bias)


class FeaturePass:
    """A forward pass that computes its features once, and from then on only the output matrix (`ForwardPass`)."""

    label_smoothing = 0.0

    def __init__(self, run: BatchPass, output: OutputMatrix) -> None:
        self.run, self.labels, self.options = run, run.labels, run.options
        self.inputs = run.inputs
        self.layout = make_layout(run.inputs.ids, run.inputs.document_ids, run.inputs.positions)
        self.head: Any = output
        self.features = torch.zeros(0)

    def sums(self) -> LossSums:
        """The loss of the objective."""
        return self.run.labelled.loss(self)

    def _read(self, compute: Any) -> Tensor:
        if not self.features.numel():
            self.features = self.run.head.transform(compute()).float()
        return self.features

    def hidden(self, inputs: Any = None) -> tuple[Tensor, SequenceLayout]:
        """The features of all positions (B, T, C), and their layout."""
        return self._read(lambda: self.run.hidden(inputs)[0]), self.layout

    def token_losses(self, x: Tensor | None = None) -> Tensor:
        """The summed cross-entropy of the labels of tokens."""
        assert self.run.labelled.targets is not None
        features = self._read(lambda: self.run.labelled_positions(x))
        return cross_entropy(self.head.project(features), self.run.labelled.targets, 0.0)

    def document_outputs(self) -> Tensor:
        """The outputs of documents (B, E, V)."""
        outputs: Tensor = self.head.project(self._read(self.run.pooled))
        return outputs

    def cross_entropy(self, logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """The summed cross-entropy of logits (N, V) and targets (N,)."""
        return cross_entropy(logits, targets, label_smoothing)


def fit_head(job: Job, run: TrainingRun, clock: Clock) -> str:
    """Fit the output matrix of the head. Return a note on the result."""
    out = run.network.head.out
    assert isinstance(out, nn.Linear)
    output, valid = OutputMatrix(out), []
    with eval_mode(run.network):
        if job.valid_data is not None:
            valid = compute_features(job, run, job.valid_data, output, clock, VALIDATION_FRACTION)
        training = compute_features(job, run, job.train_data, output, clock)
    seconds = clock.seconds()
    mean, scale = standardise(training, valid, is_centred=output.bias is not None)
    found = choose_decay(output, training, valid, clock)
    if found is None:
        return "the new head was not fitted, because the features are not finite: it starts from random numbers"
    with torch.no_grad():
        out.weight.copy_(output.weight / scale)
        if out.bias is not None and output.bias is not None:
            out.bias.copy_(output.bias - out.weight.float() @ mean)
    examples, (decay, loss) = sum(len(one.run.batch.example_ids) for one in training), found
    return (
        f"the new head was fitted to the features of {examples:,} of {count_examples(job.train_data):,} training "
        f"examples, computed in {seconds:.1f} s, in {clock.seconds() - seconds:.1f} s (weight decay {decay:g}"
        + (f", validation loss {loss:.4g})" if valid else ")")
    )


def compute_features(
    job: Job, run: TrainingRun, data: SequenceStream, output: OutputMatrix, clock: Clock, fraction: float = 1.0
) -> list[FeaturePass]:
    """Compute the features of the first batches of shuffled data, in a fraction of the time and the memory.

    A run with a budget in steps computes features of at most as many tokens as it trains on.
    """
    section, module = job.recipe.train, TrainingModule(run.network, job.recipe.objective)
    limits = (
        fraction * MAX_BUDGET_FRACTION,
        fraction * MAX_FEATURE_BYTES,
        section.steps * section.batch_tokens or math.inf,
        count_examples(data),
    )
    passes: list[FeaturePass] = []
    stored, tokens, examples = 0, 0, 0
    for batch in Loader(padded_stream(data)):
        made = FeaturePass(BatchPass(module, make_labelled_batch(batch, run.network.device)), output)
        with run.stepper.autocast():
            made.sums()
        passes.append(made)
        stored, tokens = stored + made.features.nbytes, tokens + batch.num_tokens
        examples += len(batch.example_ids)
        spent = clock.fraction(), stored, tokens, examples
        done = max(one / limit for one, limit in zip(spent, limits, strict=True))
        job.watcher.on_stage("computing features for the new head", min(done, 1.0))
        if done >= 1:
            break
    return passes


def count_examples(data: SequenceStream) -> int:
    """The number of examples in all of the data."""
    return sum(objective.counts.examples for objective in data.objectives)


def padded_stream(data: SequenceStream, batch_tokens: int = BATCH_TOKENS) -> SequenceStream:
    """The same data in larger batches of examples of similar lengths."""
    return SequenceStream(
        dict(zip(data.dataset_names, data.objectives, strict=True)),
        batch_tokens=max(batch_tokens, sum(data.max_lengths)),
        seed=data.seed,
        layout="padded",
        weights=data.weights,
    )


def standardise(training: list[FeaturePass], valid: list[FeaturePass], *, is_centred: bool) -> tuple[Tensor, Tensor]:
    """Give the features of the training data the mean 0 and the mean variance 1. Return the old mean and scale.

    All dimensions have one scale: with a scale for each, the head would depend on directions in which features hardly
    vary, and the first steps of fine-tuning would move them. Without a bias in the head, the mean stays.
    """
    rows = [one.features.flatten(0, -2).double() for one in training]
    count = sum(map(len, rows))
    mean = torch.stack([one.sum(0) for one in rows]).sum(0) / count
    mean = mean if is_centred else torch.zeros_like(mean)
    variance = torch.stack([(one - mean).square().sum(0) for one in rows]).sum(0) / count
    scale = variance.mean().sqrt().clamp(min=1e-30)
    for one in (*training, *valid):
        one.features.sub_(mean).div_(scale)
    return mean.float(), scale.float()


def choose_decay(
    output: OutputMatrix, training: list[FeaturePass], valid: list[FeaturePass], clock: Clock
) -> tuple[float, float] | None:
    """Fit the output matrix with each weight decay, until the validation loss rises. Keep the best.

    Return the weight decay and the validation loss; None if no loss was finite.
    """
    best, kept = None, []
    for decay in WEIGHT_DECAYS if valid else (DEFAULT_DECAY,):
        minimise(output, training, decay)
        with torch.no_grad():
            loss = float(mean_loss(valid or training))
        if not (math.isfinite(loss) and (best is None or loss < best[1])):
            break
        best, kept = (decay, loss), [one.detach().clone() for one in output.parameters]
        if clock.fraction() > MAX_FIT_FRACTION:
            break
    with torch.no_grad():
        for parameter, value in zip(output.parameters, kept, strict=False):
            parameter.copy_(value)
    return best


def minimise(output: OutputMatrix, passes: Sequence[FeaturePass], decay: float) -> None:
    """Minimise the mean loss and the weight decay with L-BFGS, from the present output matrix."""
    optimizer = torch.optim.LBFGS(
        output.parameters, max_iter=MAX_ITERATIONS, tolerance_change=MIN_IMPROVEMENT, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        optimizer.zero_grad()
        loss = mean_loss(passes) + decay / 2 * output.weight.square().sum()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)


def mean_loss(passes: Sequence[FeaturePass]) -> Tensor:
    """The mean loss of the labels of tokens, plus the mean loss of the labels of documents."""
    total: Tensor = torch.zeros(())
    counts = [sum(count) for count in zip(*(one.run.batch.label_counts for one in passes), strict=True)]
    for one in passes:
        for loss, count in zip(one.sums(), counts, strict=True):
            total = total if loss is None else total + loss / count
    return total
