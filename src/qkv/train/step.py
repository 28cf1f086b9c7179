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

from qkv.data.batch import Batch
from qkv.data.draw import number
from qkv.errors import QkvError
from qkv.train.learner import Lesson, label_counts, lesson_of
from qkv.train.optimizer import optimizer_tensors, set_lr
from qkv.train.recipe import TrainSection
from qkv.train.scale import World

GRAPHS = 8
"""How many shapes are captured at most; steps of further shapes run without a graph."""
WARM_UP = 3
ROUND = 256
"""On a GPU, the number of labelled places is rounded up to a multiple of this."""
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def precision_of(section: TrainSection, device: torch.device) -> str:
    """The type of number that a run computes in: on a GPU bfloat16 unless another is asked for."""
    if section.precision != "auto":
        return section.precision
    return "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"


class Stepper:
    """Takes steps with a learner (spread over processes or not) and an optimizer."""

    def __init__(
        self,
        learner: nn.Module,
        optimizer: torch.optim.Optimizer,
        section: TrainSection,
        world: World,
        *,
        parts: int = 1,
    ) -> None:
        self.learner, self.optimizer, self.section, self.world = learner, optimizer, section, world
        self.parts = parts  # micro-batches of a step
        self.device = world.device
        self.precision = precision_of(section, self.device)
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.scaler = torch.amp.GradScaler(self.device.type) if self.precision == "float16" else None
        # Torch's fused optimizers leave an update out when `found_inf` says so, on the device.
        self.on_device = self.device.type == "cuda" and all(g.get("fused") for g in optimizer.param_groups)
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)  # summed over steps since `take_loss`
        self.norm = torch.zeros((), device=self.device)
        self.bad = torch.zeros((), device=self.device)  # 1: this step's update is left out
        self.bad_step = torch.full((), -1, dtype=torch.long, device=self.device)
        self.number = torch.zeros((), dtype=torch.long, device=self.device)
        self.bad_steps = torch.zeros((), device=self.device)  # how many since `first_bad` was asked
        self.told = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.graphs: dict[tuple[Any, ...], tuple[Lesson, Tensor, torch.cuda.CUDAGraph]] = {}
        self.round = ROUND if self.device.type == "cuda" else 1

    def __call__(self, batch: Batch, step: int, lr: float, stop: bool = False, seconds: float = 0.0) -> None:
        """Take step `step` (from 0) with a learning rate. Labels are counted over all processes.

        They also tell each other whether one wants to `stop`, and the time: see `agreed`.
        """
        told = torch.tensor([*label_counts(batch), float(stop), seconds], dtype=torch.float64)
        if self.world.size > 1:
            told = self.world.sum_tensor(self.sent(told), everyone=True)
        self.told = told
        # Those who share a matrix see the same rows: each label was counted by all of them.
        weights = self.sent((self.world.tensor_size / told[:2].clamp(min=1)).float())
        set_lr(self.optimizer, lr)
        self.number.fill_(step)
        micro = batch.split(self.parts)
        if self._captures(len(micro)) and self._replay(micro[0], step, weights):
            return
        loss = self.loss.new_zeros(())
        for part, rows in enumerate(micro):
            seed_step(self.section.seed, step, part, self.world.data_rank)
            lesson = lesson_of(rows, self.device, self.round)
            with self.world.no_sync(self.learner, last=part == len(micro) - 1), self.autocast():
                share = self.learner(lesson, weights[0], weights[1])
            (share if self.scaler is None else self.scaler.scale(share)).backward()
            loss += share.detach()
        self._update(loss)
        self.optimizer.zero_grad(set_to_none=True)

    def sent(self, values: Tensor) -> Tensor:
        """A small tensor on the device, without anyone waiting for it."""
        if self.device.type != "cuda" or values.is_cuda:
            return values.to(self.device)
        return values.pin_memory().to(self.device, non_blocking=True)

    def agreed(self) -> tuple[bool, float]:
        """Whether any process wanted to stop at the last step, and the mean of their times: the same everywhere."""
        _, _, stop, seconds = self.told.tolist()
        return stop > 0, seconds / self.world.size

    def autocast(self) -> Any:
        """The context in which the network runs."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, TYPES[self.precision])

    def _update(self, loss: Tensor) -> None:
        """Change the weights, unless the loss or the gradient is not a number."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        norm = self.world.clip(self.parameters, self.section.clip)
        self.norm.copy_(norm)
        loss = self.world.sum_tensor(loss)
        finite = torch.isfinite(loss)
        if self.scaler is None or self.scaler.get_scale() <= 1.0:  # above, an overflow is the scaler's own business
            finite = finite & torch.isfinite(norm)
        sticky = self.bad if self.section.on_nonfinite == "stop" else torch.zeros_like(self.bad)
        self.bad.copy_(torch.maximum(sticky, (~finite).float()))
        self.bad_step.copy_(torch.where((self.bad > 0) & (self.bad_step < 0), self.number, self.bad_step))
        self.bad_steps += self.bad
        self.loss += torch.where(self.bad > 0, 0.0, loss)
        if self.on_device and self.scaler is None:
            self.optimizer.found_inf = self.bad  # type: ignore[attr-defined]
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not bool(self.bad):
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
        if self.scaler is not None:
            self.scaler.update()

    def first_bad(self) -> tuple[int, int] | None:
        """The first step since the last time of asking that went wrong, and how many did. On a GPU this waits."""
        step, count = int(self.bad_step), int(self.bad_steps)
        if step < 0:
            return None
        self.bad_step.fill_(-1)
        self.bad_steps.zero_()
        return step, count

    def take_loss(self) -> float:
        """The sum of the steps' losses since it was last taken."""
        total = float(self.loss)
        self.loss.zero_()
        return total

    def halve(self) -> None:
        """From here on, take each step in twice as many parts."""
        self.parts *= 2
        self.graphs.clear()
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # A whole step as one CUDA graph

    def _captures(self, parts: int) -> bool:
        return (
            self.on_device
            and parts == 1
            and self.world.size == 1
            and self.scaler is None
            and self.section.compile != "no"
        )

    def _replay(self, batch: Batch, step: int, weights: Tensor) -> bool:
        """Take a step by its graph, captured if need be; False where there are too many shapes for that."""
        lesson = lesson_of(batch, self.device, self.round)
        shape = (batch.texts, batch.longest, batch.source_longest, batch.single, batch.full, batch.source_full)
        shapes = (*(t.shape for t in tensors_of(lesson)), *shape)
        if shapes not in self.graphs:
            if len(self.graphs) == GRAPHS:
                return False
            self.graphs[shapes] = self._capture(lesson, weights)
        held, held_weights, graph = self.graphs[shapes]
        for mine, new in zip(tensors_of(held), tensors_of(lesson), strict=True):
            mine.copy_(new, non_blocking=True)
        held_weights.copy_(weights)
        seed_step(self.section.seed, step, 0, self.world.data_rank)
        graph.replay()
        return True

    def _capture(self, lesson: Lesson, weights: Tensor) -> tuple[Lesson, Tensor, torch.cuda.CUDAGraph]:
        """Record a step. Running it up to the gradient warms it up; nothing that lasts is changed by that."""
        held, held_weights = like(lesson), weights.clone()
        # Made now: state that the graph itself made would be made anew, empty, at every replay.
        optimizer_tensors(self.optimizer, [(str(number), p) for number, p in enumerate(self.parameters)])

        def backward() -> Tensor:
            with self.autocast():
                share: Tensor = self.learner(held, held_weights[0], held_weights[1])
            share.backward()
            return share.detach()

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                backward()
                self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.current_stream().wait_stream(stream)
        kept = [t.clone() for t in (self.loss, self.bad, self.bad_step)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._update(backward())
        self.optimizer.zero_grad(set_to_none=True)
        for mine, value in zip((self.loss, self.bad, self.bad_step), kept, strict=True):
            mine.copy_(value)
        return held, held_weights, graph


def seed_step(seed: int, step: int, part: int, rank: int) -> None:
    """Start torch's random numbers anew, for one micro-batch of one process."""
    start = number(seed, step, part, rank) % 2**63
    if torch.cuda.is_initialized() or torch.backends.mps.is_available():
        torch.manual_seed(start)
    else:  # it would write down the whole call stack for devices that nobody uses: half a millisecond
        torch.default_generator.manual_seed(start)


def tensors_of(lesson: Lesson) -> list[Tensor]:
    """All tensors of a lesson, in a fixed order."""
    held = [getattr(lesson.batch, field.name) for field in fields(lesson.batch)] + [lesson.places, lesson.targets]
    return [value for value in held if isinstance(value, Tensor)]


def like(lesson: Lesson) -> Lesson:
    """The same lesson in memory of its own."""
    batch = lesson.batch
    held: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
    own = {name: value.clone() for name, value in held.items() if isinstance(value, Tensor)}
    places, targets = (None if t is None else t.clone() for t in (lesson.places, lesson.targets))
    return Lesson(replace(batch, **own), places, targets)  # type: ignore[arg-type]


def out_of_memory(section: TrainSection, error: BaseException, what: str = "a step", *, alone: bool = True) -> QkvError:
    """The message for what does not fit."""
    auto = '; "auto" finds what fits' if alone else ""
    return QkvError(
        f"{what} does not fit into the memory of the device ({str(error).splitlines()[0]}). Lower train.micro_batch "
        f"(the same batch in smaller parts{auto}), train.batch_tokens = {section.batch_tokens} or "
        "data.length; train.recompute = true saves memory for a third more arithmetic"
    )
