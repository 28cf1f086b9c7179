"""Evaluation during a run: the loss and the task's metrics on the validation data, within a limit of time.

The first evaluation of a run decides by the clock how much validation data the evaluations use, and how often they are
done (`EvalPlan`), so that they take at most `train.max_eval_fraction` of the time. A small part is timed first. If all
of the data fits, all of it is used. Otherwise every evaluation uses the same sample: the first batches of the shuffled
validation data for the loss, and the first of the shuffled examples for the metrics. Checkpoints store the plan,
because only values from the same sample can be compared. The last evaluation of a run, whose scores are its result,
uses as many examples as take ten seconds or `train.max_eval_fraction` of the time, and has confidence intervals.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from qkv.data.load.batch import Batch
from qkv.data.load.loader import Loader
from qkv.data.stream.sequences import SequenceStream
from qkv.models import Network
from qkv.models.runtime import eval_mode
from qkv.progress import OnProgress
from qkv.train.loss.training_module import make_labelled_batch
from qkv.train.optim.averages import Ema
from qkv.train.out_of_memory import is_out_of_memory, out_of_memory_error
from qkv.train.parallel.shards import gather_network
from qkv.train.parallel.world import World
from qkv.train.progress import DEFAULT_EVALUATIONS, EvalPlan, Progress, is_better
from qkv.train.recipe.schema import TrainSection
from qkv.train.run.signals import StopRequested, StopSignals
from qkv.train.step import Stepper
from qkv.train.watch import EvalReport, FinalScore, Sample

PIECE_TOKENS = 4096
"""On a CPU, sampled batches are evaluated in pieces of about this number of tokens."""
TIMED_EXAMPLES, MIN_EXAMPLES, SAMPLE_GROWTH = 8, 32, 4
"""The number of examples that are timed first, the smallest sample, and the ratio of two sample sizes."""
MIN_EXAMPLES_TO_SELECT = 100
"""With a smaller sample, the task's metric is too noisy to select the best weights, and the loss does."""
LAST_SECONDS = 10.0
"""The last evaluation may always take this long, because its scores are the scores of the run."""
RESAMPLES = 1000
MIN_GROWTH = 1.2  # a sample that is hardly larger is not worth its time
MIN_SECONDS, MIN_SECONDS_WITHOUT_CLOCK = 1.0, 10.0
"""An evaluation may always take this long. A budget in steps or epochs has no clock, so its limit is higher: a short
run then evaluates all data, and its result does not depend on the speed of the machine."""


class MetricsAndSamples(Protocol):
    """The evaluation of a network by a task: metrics, the name of the main metric, and some predictions to look at."""

    @property
    def metrics(self) -> dict[str, float]:
        """Each metric by its name."""

    @property
    def samples(self) -> Sequence[Sample]:
        """Examples with their predictions."""

    @property
    def main_metric(self) -> str:
        """The name of the main metric."""

    @property
    def num_records(self) -> int:
        """The number of examples that were evaluated."""

    @property
    def intervals(self) -> Mapping[str, tuple[float, float]]:
        """The 95 % confidence intervals of metrics, if they were asked for."""


class TaskMetrics(Protocol):
    """Evaluates a network on a task."""

    num_examples: int  # the number of examples to sample from
    max_examples: int  # the number of examples that the last evaluation can use

    def __call__(
        self, network: Network, num_examples: int, progress: OnProgress | None, resamples: int = 0
    ) -> MetricsAndSamples:
        """Evaluate the network on all examples, or on a fixed random sample of `num_examples` if this is not 0.

        More than `self.num_examples` mean the last evaluation. With `resamples`, compute confidence intervals
        by that many samples of the bootstrap.
        """


class Evaluator:
    """Computes the loss on the validation data, and the task's metrics if `task_metrics` is given.

    `train.metric` selects the best weights. If it is "", the task's main metric selects them, or the loss if the sample
    for the task's metrics is small. Rank 0 computes the metrics and broadcasts them, so that all ranks make the same
    decisions. `on_progress` is called with the step and the fraction of an evaluation that is done. A stop signal ends
    an evaluation with `StopRequested`, on all ranks.
    """

    def __init__(
        self,
        module: nn.Module,
        network: Network,
        stepper: Stepper,
        valid_data: SequenceStream | None,
        task_metrics: TaskMetrics | None,
        signals: StopSignals | None = None,
        on_progress: Callable[[int, float], None] = lambda step, fraction: None,
    ) -> None:
        self.module, self.network, self.stepper = module, network, stepper
        self.valid_data, self.task_metrics = valid_data, task_metrics
        self.signals, self.on_progress = signals or StopSignals(), on_progress
        self.seconds = 0.0  # the duration of the last evaluation

    def __call__(self, progress: Progress, ema: Ema | None = None, *, is_last: bool = False) -> EvalReport:
        """Evaluate the network, with the averages of `ema` if given. Record in `progress` if it is the best.

        The last evaluation of a run may use more examples than the others.
        """
        section, is_planned = self.stepper.section, progress.eval_plan is not None
        if section.max_eval_fraction >= 1:
            # A run that is resumed without the limit uses more data, so its values cannot be compared with older ones.
            if is_planned and progress.eval_plan != EvalPlan():
                progress.best_value = progress.best_loss = None
            progress.eval_plan, is_planned = EvalPlan(), True
        try:
            with self.signals.no_deadline():
                metrics, metric, samples, plan, final = self._evaluate(progress, ema, is_last)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise out_of_memory_error(
                section, error, "an evaluation", single_process=self.stepper.world.size == 1
            ) from error
        notes = () if is_planned else self._plan_notes(plan)
        is_comparable = not is_last or not is_planned or plan == progress.eval_plan  # else they have other samples
        progress.eval_plan = plan
        if metric != progress.metric:  # the user changed the metric, so the best value so far is unknown
            progress.metric, progress.best_value, progress.best_loss = metric, None, None
        value, loss = metrics.get(metric), metrics.get("loss")
        best = value is not None and is_better(metric, value, progress.best_value, loss, progress.best_loss)
        best &= is_comparable
        if best:
            progress.best_value, progress.best_loss = value, loss
            progress.best_step, progress.evals_since_best = progress.step, 0
        else:
            progress.evals_since_best += 1
        subset = self._describe_subset(plan, is_last)
        return EvalReport(progress.step, progress.seconds, metrics, best, samples, notes, metric, subset, final)

    def _evaluate(
        self, progress: Progress, ema: Ema | None, is_last: bool
    ) -> tuple[dict[str, float], str, Sequence[Sample], EvalPlan, FinalScore | None]:
        """Return the metrics, the name of the metric that selects the best weights, some predictions, and the plan.

        For the last evaluation, also return what the metrics rest on.
        """
        world, section, plan = self.stepper.world, self.stepper.section, progress.eval_plan
        metrics: dict[str, float] = {}
        samples: Sequence[Sample] = ()
        metric, stopped, of_tokens, basis = section.metric, False, False, None
        seconds, pieces, examples = 0.0, 0, 0
        tenth = section.max_eval_fraction * max(progress.seconds, first_interval(section, progress))
        has_clock = bool(section.minutes or section.cpu_minutes)
        minimum = MIN_SECONDS if has_clock else MIN_SECONDS_WITHOUT_CLOCK
        limit = math.inf if plan is not None else max(tenth, minimum)
        if plan is not None:
            pieces, examples = plan.loss_pieces, plan.metric_examples
        is_single = world.size == 1  # a rank that raises would leave the other ranks in a collective
        with eval_mode(self.module), ema.use_averages() if ema is not None else nullcontext():
            if self.valid_data is not None:
                with self.signals.use_mode("raise") if is_single else nullcontext():
                    loss = ValidationLoss(self, self.valid_data, progress.step)
                    if plan is None:
                        pieces = loss.plan(limit / 2 if self.task_metrics else limit)
                    metrics["loss"], of_tokens = loss.mean(pieces), not loss.has_answers
                    seconds += loss.seconds
            if self.task_metrics is not None:
                network = gather_network(self.network, world)
                if network is not None:
                    try:
                        with self.signals.use_mode("raise"), self.stepper.autocast():
                            task = TimedMetrics(self, self.task_metrics, network, progress.step)
                            if plan is None:
                                examples = task.plan(max(limit - seconds, limit / 2))
                            if is_last:
                                limit = math.inf if section.max_eval_fraction >= 1 else max(tenth, LAST_SECONDS)
                                examples = task.enlarge(examples, limit - seconds)
                            evaluation = task.evaluate(examples, RESAMPLES if is_last else 0)
                            seconds += task.seconds
                        basis = [evaluation.num_records, dict(evaluation.intervals)] if is_last else None
                        metrics = join_metrics(evaluation.metrics, metrics.get("loss"), of_tokens=of_tokens)
                        samples, metric = evaluation.samples, metric or evaluation.main_metric
                    except StopRequested:
                        stopped = True
        metrics, metric, stopped, seconds, examples, basis = broadcast_json(
            world, [metrics, metric, stopped, seconds, examples, basis]
        )
        if stopped:
            raise StopRequested(self.signals.requested or 15)
        self.seconds = seconds
        if plan is None:
            plan = EvalPlan(pieces, examples)
            if not section.eval_every:
                allowed = max(tenth, 0.0 if has_clock else MIN_SECONDS_WITHOUT_CLOCK, 1e-3)
                plan = replace(plan, stride=min(max(1, math.ceil(seconds / allowed - 0.1)), DEFAULT_EVALUATIONS))
        else:
            plan = replace(plan, metric_examples=examples)
        if metric not in metrics or self._loss_selects(plan):
            metric = "loss"
        final = None
        if basis is not None:
            final = FinalScore(basis[0], {name: (low, high) for name, (low, high) in basis[1].items()})
        return metrics, metric, samples, plan, final

    def _loss_selects(self, plan: EvalPlan) -> bool:
        """Return whether the loss selects the best weights, because the sample for the task's metric is too small."""
        is_small = 0 < plan.metric_examples < MIN_EXAMPLES_TO_SELECT
        return is_small and not self.stepper.section.metric and self.valid_data is not None

    def report(self, step: int, part: int, fraction: float) -> None:
        """Report progress: this fraction of part 0 (the loss) or part 1 (the task's metrics) is done."""
        has_both = self.valid_data is not None and self.task_metrics is not None
        fraction = min(fraction, 1.0)
        self.on_progress(step, (part + fraction) / 2 if has_both else fraction)

    def _describe_subset(self, plan: EvalPlan, is_last: bool = False) -> str:
        """Return how much of the validation data the evaluations of this run use; "" if they use all of it."""
        parts = []
        if plan.loss_pieces and self.valid_data is not None:
            fraction = plan.loss_pieces / ValidationLoss(self, self.valid_data, 0).num_pieces()
            parts.append(f"the loss uses about {max(fraction, 0.001):.1%} of the validation data")
        usual = self.task_metrics.num_examples if self.task_metrics is not None else 0
        used = plan.metric_examples or usual
        total = self.task_metrics.max_examples if self.task_metrics is not None and is_last else usual
        if used < total:
            parts.append(f"the task's metrics use {used:,} of {total:,} examples")
        return " and ".join(parts)

    def _plan_notes(self, plan: EvalPlan) -> tuple[str, ...]:
        """Return a note if the evaluations of this run are limited."""
        subset = self._describe_subset(plan)
        parts = [f"{subset}: a random sample, the same in each evaluation"] if subset else []
        if self._loss_selects(plan):
            parts.append("the loss selects the best weights, because the task's metrics use few examples")
        if plan.stride > 1:
            parts.append(f"one of {plan.stride} evaluations is done")
        if not parts:
            return ()
        fraction = self.stepper.section.max_eval_fraction
        return (
            f"evaluations may take {fraction:.0%} of the time, so {'; '.join(parts)} (train.max_eval_fraction; 1 "
            "evaluates everything)",
        )


def first_interval(section: TrainSection, progress: Progress) -> float:
    """At step 0, the seconds until the next evaluation, if the budget says it; else 0."""
    is_known = progress.step == 0 and not section.eval_every
    minutes = section.minutes or section.cpu_minutes / torch.get_num_threads()
    return minutes * 60 / DEFAULT_EVALUATIONS if is_known else 0.0


def join_metrics(metrics: dict[str, float], loss: float | None, *, of_tokens: bool) -> dict[str, float]:
    """The task's metrics, but with the loss on the validation data: the task's own loss is of other examples.

    If this is a loss of tokens only, perplexity and bits are computed from it, too.

    >>> task = {"loss": 1.0, "perplexity": math.exp(1.0), "bits_per_byte": 0.4}
    >>> joined = join_metrics(task, loss=2.0, of_tokens=True)
    >>> joined["perplexity"] == math.exp(2.0), joined["bits_per_byte"]
    (True, 0.8)
    """
    if loss is None:
        return metrics
    joined = {**metrics, "loss": loss}
    if of_tokens and "perplexity" in metrics:
        joined["perplexity"] = math.exp(loss) if loss < 700 else math.inf
        bits = {"bits_per_character", "bits_per_byte"} & metrics.keys()
        joined |= {name: metrics[name] * loss / metrics["loss"] for name in bits if metrics["loss"]}
    return joined


class ValidationLoss:
    """The loss on the validation data, all of it or the first pieces. A piece is a batch, or a part of one on a CPU."""

    def __init__(self, evaluator: Evaluator, data: SequenceStream, step: int) -> None:
        self.evaluator, self.data, self.step = evaluator, data, step
        self.module, self.stepper, self.world = evaluator.module, evaluator.stepper, evaluator.stepper.world
        self.seconds = 0.0  # the duration of `mean`
        self.planned: tuple[int, torch.Tensor] | None = None  # the pieces that `plan` has computed, and their sums
        splits = self.stepper.num_micro_batches
        if self.world.device.type == "cpu":
            splits = max(splits, -(-data.batch_tokens // (PIECE_TOKENS * self.world.data_size)))
        self.pieces_per_batch = splits
        # Document labels need a second forward pass, because the module returns the sum of both losses.
        self.has_answers = not data.labels or any(label.per == "document" for label in data.labels)

    def num_pieces(self) -> float:
        """Estimate the number of pieces in all of the data."""
        items = len(self.data.plan_pool(0).item_order)
        items_per_batch = self.data.sequences_per_batch if self.data.layout == "packed" else 1
        return self.data.order.num_pools(1) * max(1.0, items / items_per_batch) * self.pieces_per_batch

    def plan(self, limit: float) -> int:
        """Decide by the clock how many pieces take `limit` seconds. Return 0 if all of them fit."""
        total, start = self.num_pieces(), time.monotonic()
        if total <= 2:
            return 0
        sums, times = self._zeros(), [0.0]
        for count, piece in enumerate(self._pieces(self.pieces_per_batch), start=1):
            sums += self._sums(piece)
            times.append(self._sync_ranks(start))
            if count == 2 and (times[2] - times[1]) * total <= limit:  # the first piece may include compiling
                return 0
            if count >= 2 and times[-1] + (times[-1] - times[-2]) > limit:
                self.planned, self.seconds = (count, sums), times[-1]
                return count
        return 0

    def mean(self, max_pieces: int = 0) -> float:
        """Return the mean loss over all token labels, plus the mean loss over all document labels."""
        if self.planned is not None and self.planned[0] == max_pieces:
            return self._mean(self.planned[1])
        sums, start = self._zeros(), time.monotonic()
        pieces = self._pieces(self.pieces_per_batch if max_pieces else self.stepper.num_micro_batches)
        total = max_pieces or self.num_pieces() * self.stepper.num_micro_batches / self.pieces_per_batch
        for count, piece in enumerate(pieces, start=1):
            sums += self._sums(piece)
            self._sync_ranks()
            self.evaluator.report(self.step, 0, count / total)
            if count == max_pieces:
                break
        mean = self._mean(sums)
        self.seconds = time.monotonic() - start
        return mean

    def _zeros(self) -> torch.Tensor:
        return torch.zeros(4, dtype=torch.float64, device=self.world.device)

    def _mean(self, sums: torch.Tensor) -> float:
        token_sum, document_sum, label_sum, answer_sum = self.world.sum_tensor(sums).tolist()
        return float(token_sum / max(label_sum, 1) + document_sum / max(answer_sum, 1))

    def _pieces(self, splits: int) -> Iterator[Batch]:
        for batch in Loader(self.data, rank=self.world.data_rank, world_size=self.world.data_size, epochs=1):
            yield from batch.split(splits)

    def _sums(self, piece: Batch) -> torch.Tensor:
        """Return the sums of: token losses, document losses, token labels, document labels."""
        device = self.world.device
        one, zero = torch.ones((), device=device), torch.zeros((), device=device)
        labelled = make_labelled_batch(piece, device, self.stepper.label_multiple)
        labels, answers = piece.label_counts
        # A compiled module would be compiled again for evaluation, so a single process calls the uncompiled `forward`.
        forward = self.module.forward if self.world.size == 1 else self.module
        with self.stepper.autocast():
            token_loss = forward(labelled, one, zero)
            document_loss = forward(labelled, zero, one) if self.has_answers else zero
        return torch.stack([token_loss, document_loss, labels * one, answers * one])

    def _sync_ranks(self, start: float | None = None) -> float:
        """Return the seconds since `start`, as the mean over ranks. If any rank was asked to stop, raise on all."""
        if start is not None and self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)
        seconds = 0.0 if start is None else time.monotonic() - start
        if self.world.size == 1:
            return seconds
        requested = self.evaluator.signals.requested
        if self.world.mean(float(requested is not None)) > 0:
            raise StopRequested(requested or 15)
        return self.world.mean(seconds)


class TimedMetrics:
    """The task's metrics, on all examples or on a sample."""

    def __init__(self, evaluator: Evaluator, metrics: TaskMetrics, network: Network, step: int) -> None:
        self.evaluator, self.metrics, self.network, self.step = evaluator, metrics, network, step
        self.seconds = 0.0  # the duration of the last `evaluate`
        self.last: tuple[tuple[int, int], MetricsAndSamples] | None = None  # its arguments, and its result

    def plan(self, limit: float) -> int:
        """Decide by the clock how many examples take `limit` seconds. Return 0 if all of them fit."""
        total, size, spent = self.metrics.num_examples, TIMED_EXAMPLES, 0.0
        if total <= MIN_EXAMPLES:
            return 0
        while True:
            self.evaluate(size)
            spent += self.seconds
            if self.seconds / size * total + spent <= limit:
                return 0
            larger = max(SAMPLE_GROWTH * size, MIN_EXAMPLES)
            if size >= MIN_EXAMPLES and (larger >= total or self.seconds / size * larger + spent > limit):
                return size
            if larger >= total:
                return 0
            size = larger

    def enlarge(self, planned: int, limit: float) -> int:
        """Return how many examples take `limit` seconds: at least those that were planned, at most all there are.

        As for the other evaluations, 0 is `num_examples`.
        """
        usual, most = self.metrics.num_examples, self.metrics.max_examples
        count = planned or usual
        if count >= most:
            return planned
        self.evaluate(planned, RESAMPLES)
        left = limit - self.seconds
        fitting = most if left >= self.seconds / count * most else int(left / max(self.seconds, 1e-9) * count)
        return planned if fitting < MIN_GROWTH * count else fitting if fitting != usual else 0

    def evaluate(self, num_examples: int, resamples: int = 0) -> MetricsAndSamples:
        """Evaluate the network on this number of examples; 0 is all of them."""
        if self.last is None or self.last[0] != (num_examples, resamples):
            start, report = time.monotonic(), self.evaluator.report
            how = {"resamples": resamples} if resamples else {}
            found = self.metrics(
                self.network, num_examples, lambda n, total: report(self.step, 1, n / max(total, 1)), **how
            )
            self.last = (num_examples, resamples), found
            self.seconds = time.monotonic() - start
        return self.last[1]


def broadcast_json(world: World, value: Any) -> Any:
    """Send a JSON value from rank 0 to all ranks. Return it on all of them."""
    if world.mesh is None:
        return value
    text = json.dumps(value).encode()
    size = torch.tensor(len(text), device=world.device)
    dist.broadcast(size, src=0)
    data = torch.zeros(int(size), dtype=torch.uint8, device=world.device)
    if world.rank == 0:
        data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    dist.broadcast(data, src=0)
    return json.loads(bytes(data.cpu().numpy()))
