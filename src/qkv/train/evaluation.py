"""How a run does on data that it is not trained on."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from qkv.data.loader import Loader
from qkv.data.rows import Rows
from qkv.models import Network
from qkv.train.average import Ema
from qkv.train.learner import label_counts, lesson_of
from qkv.train.memory import is_out_of_memory
from qkv.train.progress import Progress, better
from qkv.train.scale import World, whole_network
from qkv.train.step import Stepper, out_of_memory
from qkv.train.watch import EvalReport, Sample


class Found(Protocol):
    """What a task says about a network: its metrics, some predictions to look at, and the metric that counts."""

    @property
    def metrics(self) -> dict[str, float]: ...
    @property
    def samples(self) -> Sequence[Sample]: ...
    @property
    def main(self) -> str: ...


Judge = Callable[[Network], Found]


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
        valid: Rows | None,
        judge: Judge | None,
        metric: str = "",
    ) -> None:
        self.module, self.network, self.stepper = module, network, stepper
        self.valid, self.judge, self.metric = valid, judge, metric

    def __call__(self, progress: Progress, ema: Ema | None = None) -> EvalReport:
        """Evaluate, with the averaged weights where there are some, and keep in `progress` which was best."""
        try:
            found, metric, samples = self._found(ema)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise out_of_memory(
                self.stepper.section, error, "an evaluation", alone=self.stepper.world.size == 1
            ) from error
        if metric != progress.metric:  # another one was asked for meanwhile: what was best by it is not known
            progress.metric, progress.best, progress.best_loss = metric, None, None
        value, loss = found.get(metric), found.get("loss")
        best = value is not None and better(metric, value, progress.best, loss, progress.best_loss)
        if best:
            progress.best, progress.best_loss, progress.best_step, progress.worse = value, loss, progress.step, 0
        else:
            progress.worse += 1
        return EvalReport(progress.step, progress.seconds, found, best, samples)

    def _found(self, ema: Ema | None) -> tuple[dict[str, float], str, Sequence[Sample]]:
        """The metrics, by which of them the best is told, and some of what the network makes of the data."""
        world = self.stepper.world
        found: dict[str, float] = {}
        samples: Sequence[Sample] = ()
        metric = self.metric
        with resting(self.module), ema.swapped() if ema is not None else nullcontext():
            if self.valid is not None:
                found["loss"] = self.loss(self.valid)
            if self.judge is not None:
                network = whole_network(self.network, world)
                if network is not None:
                    with self.stepper.autocast():
                        judged = self.judge(network)
                    found = {**judged.metrics, **found}  # the loss is the one over all held-out rows
                    samples, metric = judged.samples, metric or judged.main
        found, metric = shared(world, [found, metric])
        return found, metric if metric in found else "loss", samples

    def loss(self, rows: Rows) -> float:
        """The mean loss over an epoch of rows: of token labels, and of labels of whole texts."""
        world = self.stepper.world
        device = world.device
        one, nothing = torch.ones((), device=device), torch.zeros((), device=device)
        sums = torch.zeros(4, dtype=torch.float64, device=device)  # losses of tokens and texts, then their counts
        answered = not rows.outputs <= {"labels", "types", "source"} or "labels" not in rows.outputs
        for batch in Loader(rows, rank=world.data_rank, world=world.data_size, epochs=1):
            for part in batch.split(self.stepper.parts):
                lesson = lesson_of(part, device, self.stepper.round)
                labels, answers = label_counts(part)
                with self.stepper.autocast():
                    tokens = self.module(lesson, one, nothing)
                    texts = self.module(lesson, nothing, one) if answered else nothing
                sums += torch.stack([tokens, texts, labels * one, answers * one])
        token_sum, text_sum, label_sum, answer_sum = world.sum_tensor(sums).tolist()
        return float(token_sum / max(label_sum, 1) + text_sum / max(answer_sum, 1))


def shared(world: World, value: Any) -> Any:
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
def resting(network: nn.Module) -> Iterator[None]:
    """The network as it is used, not trained: no dropout, no gradients."""
    was = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(was)
