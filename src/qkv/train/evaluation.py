"""Evaluation during a run: the loss and the task's metrics on the validation data."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from qkv.data.load.loader import Loader
from qkv.data.stream.sequences import SequenceStream
from qkv.models import Network
from qkv.train.loss.training_module import count_labels, to_device
from qkv.train.optim.averages import Ema
from qkv.train.out_of_memory import is_out_of_memory, out_of_memory_error
from qkv.train.parallel.shards import gather_network
from qkv.train.parallel.world import World
from qkv.train.progress import Progress, is_better
from qkv.train.step import Stepper
from qkv.train.watch import EvalReport, Sample


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


TaskMetrics = Callable[[Network], MetricsAndSamples]
"""A function that evaluates a network on a task."""


class Evaluator:
    """Computes the loss on the validation data, and the task's metrics if `task_metrics` is given.

    `metric` is the name of the metric that selects the best weights; "" is the task's main metric. Rank 0 computes the
    metrics and broadcasts them, so that all ranks make the same decisions.
    """

    def __init__(
        self,
        module: nn.Module,
        network: Network,
        stepper: Stepper,
        valid_data: SequenceStream | None,
        task_metrics: TaskMetrics | None,
        metric: str = "",
    ) -> None:
        self.module, self.network, self.stepper = module, network, stepper
        self.valid_data, self.task_metrics, self.metric = valid_data, task_metrics, metric

    def __call__(self, progress: Progress, ema: Ema | None = None) -> EvalReport:
        """Evaluate the network, with the averages of `ema` if given. Record in `progress` if it is the best."""
        try:
            metrics, metric, samples = self._evaluate(ema)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise out_of_memory_error(
                self.stepper.section, error, "an evaluation", single_process=self.stepper.world.size == 1
            ) from error
        if metric != progress.metric:  # the user changed the metric, so the best value so far is unknown
            progress.metric, progress.best_value, progress.best_loss = metric, None, None
        value, loss = metrics.get(metric), metrics.get("loss")
        best = value is not None and is_better(metric, value, progress.best_value, loss, progress.best_loss)
        if best:
            progress.best_value, progress.best_loss = value, loss
            progress.best_step, progress.evals_since_best = progress.step, 0
        else:
            progress.evals_since_best += 1
        return EvalReport(progress.step, progress.seconds, metrics, best, samples)

    def _evaluate(self, ema: Ema | None) -> tuple[dict[str, float], str, Sequence[Sample]]:
        """Return the metrics, the name of the metric that selects the best weights, and some predictions."""
        world = self.stepper.world
        metrics: dict[str, float] = {}
        samples: Sequence[Sample] = ()
        metric = self.metric
        with eval_mode(self.module), ema.use_averages() if ema is not None else nullcontext():
            if self.valid_data is not None:
                metrics["loss"] = self.mean_loss(self.valid_data)
            if self.task_metrics is not None:
                network = gather_network(self.network, world)
                if network is not None:
                    with self.stepper.autocast():
                        evaluation = self.task_metrics(network)
                    # Keep our loss, which is over all validation data; that of the task is over some examples.
                    metrics = {**evaluation.metrics, **metrics}
                    samples, metric = evaluation.samples, metric or evaluation.main_metric
        metrics, metric = broadcast_json(world, [metrics, metric])
        return metrics, metric if metric in metrics else "loss", samples

    def mean_loss(self, data: SequenceStream) -> float:
        """Return the mean loss over all token labels of the data, plus the mean loss over all document labels."""
        world = self.stepper.world
        device = world.device
        one, zero = torch.ones((), device=device), torch.zeros((), device=device)
        # The sums of: token losses, document losses, token labels, document labels.
        sums = torch.zeros(4, dtype=torch.float64, device=device)
        has_answers = (
            not data.optional_fields <= {"labels", "token_type_ids", "source"} or "labels" not in data.optional_fields
        )
        # In evaluation mode a compiled module would be compiled again. A single process calls the code as written.
        forward = self.module.forward if world.size == 1 else self.module
        for batch in Loader(data, rank=world.data_rank, world_size=world.data_size, epochs=1):
            for micro_batch in batch.split(self.stepper.num_micro_batches):
                labelled = to_device(micro_batch, device, self.stepper.label_multiple)
                labels, answers = count_labels(micro_batch)
                with self.stepper.autocast():
                    token_loss = forward(labelled, one, zero)
                    document_loss = forward(labelled, zero, one) if has_answers else zero
                sums += torch.stack([token_loss, document_loss, labels * one, answers * one])
        token_sum, document_sum, label_sum, answer_sum = world.sum_tensor(sums).tolist()
        return float(token_sum / max(label_sum, 1) + document_sum / max(answer_sum, 1))


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


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Inside, the network is in evaluation mode and computes no gradients. Afterwards each module has its old mode."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
