"""How a run does on data that it is not trained on."""

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
from qkv.train.parallel.parallelize import World, gather_network
from qkv.train.progress import Progress, is_better
from qkv.train.step import Stepper
from qkv.train.watch import EvalReport, Sample


class MetricsAndSamples(Protocol):
    """What a task says about a network: its metrics, some predictions to look at, and the metric that counts."""

    @property
    def metrics(self) -> dict[str, float]: ...
    @property
    def samples(self) -> Sequence[Sample]: ...
    @property
    def main(self) -> str: ...


TaskMetrics = Callable[[Network], MetricsAndSamples]


class Evaluator:
    """The loss on held-out rows, and what a task's own judge says where there is one.

    `metric` says which weights are best; "": the judge's main one. The first process judges and tells the others, so
    that all draw the same conclusions.
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
        """Evaluate, with the averaged weights where there are some, and keep in `progress` which was best."""
        try:
            found, metric, samples = self._evaluate(ema)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise out_of_memory_error(
                self.stepper.section, error, "an evaluation", single_process=self.stepper.world.size == 1
            ) from error
        if metric != progress.metric:  # another one was asked for meanwhile: what was best by it is not known
            progress.metric, progress.best_value, progress.best_loss = metric, None, None
        value, loss = found.get(metric), found.get("loss")
        best = value is not None and is_better(metric, value, progress.best_value, loss, progress.best_loss)
        if best:
            progress.best_value, progress.best_loss, progress.best_step, progress.evals_since_best = (
                value,
                loss,
                progress.step,
                0,
            )
        else:
            progress.evals_since_best += 1
        return EvalReport(progress.step, progress.seconds, found, best, samples)

    def _evaluate(self, ema: Ema | None) -> tuple[dict[str, float], str, Sequence[Sample]]:
        """The metrics, by which of them the best is told, and some of what the network makes of the data."""
        world = self.stepper.world
        found: dict[str, float] = {}
        samples: Sequence[Sample] = ()
        metric = self.metric
        with eval_mode(self.module), ema.use_averages() if ema is not None else nullcontext():
            if self.valid_data is not None:
                found["loss"] = self.mean_loss(self.valid_data)
            if self.task_metrics is not None:
                network = gather_network(self.network, world)
                if network is not None:
                    with self.stepper.autocast():
                        judged = self.task_metrics(network)
                    found = {**judged.metrics, **found}  # the loss is the one over all held-out rows
                    samples, metric = judged.samples, metric or judged.main
        found, metric = broadcast_json(world, [found, metric])
        return found, metric if metric in found else "loss", samples

    def mean_loss(self, data: SequenceStream) -> float:
        """The mean loss over an epoch of rows: of token labels, and of labels of whole texts."""
        world = self.stepper.world
        device = world.device
        one, nothing = torch.ones((), device=device), torch.zeros((), device=device)
        sums = torch.zeros(4, dtype=torch.float64, device=device)  # losses of tokens and texts, then their counts
        answered = not data.outputs <= {"labels", "token_type_ids", "source"} or "labels" not in data.outputs
        for batch in Loader(data, rank=world.data_rank, world_size=world.data_size, epochs=1):
            for part in batch.split(self.stepper.num_micro_batches):
                lesson = to_device(part, device, self.stepper.label_multiple)
                labels, answers = count_labels(part)
                with self.stepper.autocast():
                    tokens = self.module(lesson, one, nothing)
                    texts = self.module(lesson, nothing, one) if answered else nothing
                sums += torch.stack([tokens, texts, labels * one, answers * one])
        token_sum, text_sum, label_sum, answer_sum = world.sum_tensor(sums).tolist()
        return float(token_sum / max(label_sum, 1) + text_sum / max(answer_sum, 1))


def broadcast_json(world: World, value: Any) -> Any:
    """What the first process says (plain JSON), to all."""
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
    """The network as it is used, not trained: no dropout, no gradients."""
    was = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(was)
