"""One step of training: micro-batches forward and backward, the gradient clipped, the weights changed.

The random numbers of a step (dropout) depend on the seed, the step, the micro-batch and the process, and on nothing
that happened before: there is no generator's state to keep.

A loss or gradient that is not a number never reaches the weights. On a CPU that is known at once. On a GPU waiting to
know would cost more than the step, so the decision is made there: the update is left out, and (`stop`) so are all that
follow, until the host asks with `first_bad`.

On one GPU a whole step can be one CUDA graph: packed rows have the same shape each time, and a step of many small
kernels is then started by a single call.
"""

from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data.load.batch import Batch
from qkv.data.stream.random_bits import hash64
from qkv.train.loss.training_module import LabelledBatch, count_labels, to_device
from qkv.train.optim.optimizers import optimizer_tensors, set_lr
from qkv.train.parallel.parallelize import World
from qkv.train.recipe.schema import TrainSection

MAX_GRAPHS = 8
"""How many shapes are captured at most; steps of further shapes run without a graph."""
WARMUP_PASSES = 3
LABEL_MULTIPLE = 256
"""On a GPU, the number of labelled places is rounded up to a multiple of this."""
AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_precision(section: TrainSection, device: torch.device) -> str:
    """The type of number that a run computes in: on a GPU bfloat16 unless another is asked for."""
    if section.precision != "auto":
        return section.precision
    return "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"


class Stepper:
    """Takes steps with a learner (spread over processes or not) and an optimizer."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        section: TrainSection,
        world: World,
        *,
        num_micro_batches: int = 1,
    ) -> None:
        self.module, self.optimizer, self.section, self.world = module, optimizer, section, world
        self.num_micro_batches = num_micro_batches  # micro-batches of a step
        self.device = world.device
        self.precision = resolve_precision(section, self.device)
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.scaler = torch.amp.GradScaler(self.device.type) if self.precision == "float16" else None
        # Torch's fused optimizers leave an update out when `found_inf` says so, on the device.
        self.updates_on_device = self.device.type == "cuda" and all(g.get("fused") for g in optimizer.param_groups)
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)  # summed over steps since `take_loss`
        self.grad_norm = torch.zeros((), device=self.device)
        self.skip_update = torch.zeros((), device=self.device)  # 1: this step's update is left out
        self.first_bad_step = torch.full((), -1, dtype=torch.long, device=self.device)
        self.step_number = torch.zeros((), dtype=torch.long, device=self.device)
        self.num_bad_steps = torch.zeros((), device=self.device)  # how many since `first_bad` was asked
        self.synced = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.graphs: dict[tuple[Any, ...], tuple[LabelledBatch, Tensor, torch.cuda.CUDAGraph]] = {}
        self.label_multiple = LABEL_MULTIPLE if self.device.type == "cuda" else 1

    def __call__(self, batch: Batch, step: int, lr: float, stop: bool = False, seconds: float = 0.0) -> None:
        """Take step `step` (from 0) with a learning rate. Labels are counted over all processes.

        They also tell each other whether one wants to `stop`, and the time: see `agreed`.
        """
        told = torch.tensor([*count_labels(batch), float(stop), seconds], dtype=torch.float64)
        if self.world.size > 1:
            told = self.world.sum_tensor(self.copy_to_device(told), all_ranks=True)
        self.synced = told
        # Those who share a matrix see the same rows: each label was counted by all of them.
        weights = self.copy_to_device((self.world.tensor_size / told[:2].clamp(min=1)).float())
        set_lr(self.optimizer, lr)
        self.step_number.fill_(step)
        micro = batch.split(self.num_micro_batches)
        if self._uses_cuda_graph(len(micro)) and self._replay_graph(micro[0], step, weights):
            return
        loss = self.loss.new_zeros(())
        for part, rows in enumerate(micro):
            seed_step(self.section.seed, step, part, self.world.data_rank)
            lesson = to_device(rows, self.device, self.label_multiple)
            with self.world.no_sync(self.module, last=part == len(micro) - 1), self.autocast():
                share = self.module(lesson, weights[0], weights[1])
            (share if self.scaler is None else self.scaler.scale(share)).backward()
            loss += share.detach()
        self._update(loss)
        self.optimizer.zero_grad(set_to_none=True)

    def copy_to_device(self, values: Tensor) -> Tensor:
        """A small tensor on the device, without anyone waiting for it."""
        if self.device.type != "cuda" or values.is_cuda:
            return values.to(self.device)
        return values.pin_memory().to(self.device, non_blocking=True)

    def synced_stop_and_seconds(self) -> tuple[bool, float]:
        """Whether any process wanted to stop at the last step, and the mean of their times: the same everywhere."""
        _, _, stop, seconds = self.synced.tolist()
        return stop > 0, seconds / self.world.size

    def autocast(self) -> Any:
        """The context in which the network runs."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, AUTOCAST_DTYPES[self.precision])

    def _update(self, loss: Tensor) -> None:
        """Change the weights, unless the loss or the gradient is not a number."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        norm = self.world.clip_gradients(self.parameters, self.section.max_grad_norm)
        self.grad_norm.copy_(norm)
        loss = self.world.sum_tensor(loss)
        finite = torch.isfinite(loss)
        if self.scaler is None or self.scaler.get_scale() <= 1.0:  # above, an overflow is the scaler's own business
            finite = finite & torch.isfinite(norm)
        sticky = self.skip_update if self.section.on_nonfinite == "stop" else torch.zeros_like(self.skip_update)
        self.skip_update.copy_(torch.maximum(sticky, (~finite).float()))
        self.first_bad_step.copy_(
            torch.where((self.skip_update > 0) & (self.first_bad_step < 0), self.step_number, self.first_bad_step)
        )
        self.num_bad_steps += self.skip_update
        self.loss += torch.where(self.skip_update > 0, 0.0, loss)
        if self.updates_on_device and self.scaler is None:
            self.optimizer.found_inf = self.skip_update  # type: ignore[attr-defined]
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not bool(self.skip_update):
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
        if self.scaler is not None:
            self.scaler.update()

    def take_bad_steps(self) -> tuple[int, int] | None:
        """The first step since the last time of asking that went wrong, and how many did. On a GPU this waits."""
        step, count = int(self.first_bad_step), int(self.num_bad_steps)
        if step < 0:
            return None
        self.first_bad_step.fill_(-1)
        self.num_bad_steps.zero_()
        return step, count

    def take_loss(self) -> float:
        """The sum of the steps' losses since it was last taken."""
        total = float(self.loss)
        self.loss.zero_()
        return total

    def double_micro_batches(self) -> None:
        """From here on, take each step in twice as many parts."""
        self.num_micro_batches *= 2
        self.graphs.clear()
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # A whole step as one CUDA graph

    def _uses_cuda_graph(self, parts: int) -> bool:
        return (
            self.updates_on_device
            and parts == 1
            and self.world.size == 1
            and self.scaler is None
            and self.section.compile != "no"
        )

    def _replay_graph(self, batch: Batch, step: int, weights: Tensor) -> bool:
        """Take a step by its graph, captured if need be; False where there are too many shapes for that."""
        lesson = to_device(batch, self.device, self.label_multiple)
        shape = (
            batch.max_documents,
            batch.max_document_length,
            batch.source_max_document_length,
            batch.one_document_each,
            batch.unpadded,
            batch.source_unpadded,
        )
        shapes = (*(t.shape for t in tensors_in(lesson)), *shape)
        if shapes not in self.graphs:
            if len(self.graphs) == MAX_GRAPHS:
                return False
            self.graphs[shapes] = self._capture_graph(lesson, weights)
        held, held_weights, graph = self.graphs[shapes]
        for mine, new in zip(tensors_in(held), tensors_in(lesson), strict=True):
            mine.copy_(new, non_blocking=True)
        held_weights.copy_(weights)
        seed_step(self.section.seed, step, 0, self.world.data_rank)
        graph.replay()
        return True

    def _capture_graph(
        self, lesson: LabelledBatch, weights: Tensor
    ) -> tuple[LabelledBatch, Tensor, torch.cuda.CUDAGraph]:
        """Record a step. Running it up to the gradient warms it up; nothing that lasts is changed by that."""
        held, held_weights = clone_batch(lesson), weights.clone()
        # Made now: state that the graph itself made would be made anew, empty, at every replay.
        optimizer_tensors(self.optimizer, [(str(number), p) for number, p in enumerate(self.parameters)])

        def backward() -> Tensor:
            with self.autocast():
                share: Tensor = self.module(held, held_weights[0], held_weights[1])
            share.backward()
            return share.detach()

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_PASSES):
                backward()
                self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.current_stream().wait_stream(stream)
        kept = [t.clone() for t in (self.loss, self.skip_update, self.first_bad_step)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._update(backward())
        self.optimizer.zero_grad(set_to_none=True)
        for mine, value in zip((self.loss, self.skip_update, self.first_bad_step), kept, strict=True):
            mine.copy_(value)
        return held, held_weights, graph


def seed_step(seed: int, step: int, micro_batch: int, rank: int) -> None:
    """Start torch's random numbers anew, for one micro-batch of one process."""
    start = hash64(seed, step, micro_batch, rank) % 2**63
    if torch.cuda.is_initialized() or torch.backends.mps.is_available():
        torch.manual_seed(start)
    else:  # it would write down the whole call stack for devices that nobody uses: half a millisecond
        torch.default_generator.manual_seed(start)


def tensors_in(batch: LabelledBatch) -> list[Tensor]:
    """All tensors of a lesson, in a fixed order."""
    held = [getattr(batch.batch, field.name) for field in fields(batch.batch)] + [batch.positions, batch.targets]
    return [value for value in held if isinstance(value, Tensor)]


def clone_batch(lesson: LabelledBatch) -> LabelledBatch:
    """The same lesson in memory of its own."""
    batch = lesson.batch
    held: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
    own = {name: value.clone() for name, value in held.items() if isinstance(value, Tensor)}
    places, targets = (None if t is None else t.clone() for t in (lesson.positions, lesson.targets))
    return LabelledBatch(replace(batch, **own), places, targets)  # type: ignore[arg-type]
