"""One training step: forward and backward for each micro-batch, gradient clipping, the optimizer's update.

The random numbers of a step (dropout) depend on the seed, the step, the micro-batch and the rank, and on nothing that
happened before. So checkpoints need no state of random generators.

If the loss or the gradient is not finite, the weights are not updated. On a GPU, checking this on the host would make
the host wait for the GPU, so a fused optimizer skips the update on the GPU itself. With `on_nonfinite = "stop"` it also
skips all later updates. The host reads the result every few steps, with `pop_bad_steps`.

On one GPU a whole step can be one CUDA graph, because packed batches have the same shape in each step. One call then
launches all kernels of the step.
"""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from qkv.data.load.batch import Batch
from qkv.data.stream.random_bits import hash64
from qkv.train.loss.training_module import LabelledBatch, TrainingModule, make_labelled_batch
from qkv.train.optim.optimizers import can_skip_update_on_device, optimizer_tensors, set_lr
from qkv.train.parallel.world import World
from qkv.train.recipe.schema import TrainSection

MAX_GRAPHS = 8
"""At most this many batch shapes get a CUDA graph. Steps with other shapes run without one."""
WARMUP_PASSES = 3
"""Forward and backward passes before a graph is captured. In these, libraries allocate their workspaces."""
LABEL_MULTIPLE = 256
"""On a GPU the number of labelled positions is padded to a multiple of this, so that few different shapes occur."""
AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_precision(section: TrainSection, device: torch.device) -> str:
    """Return the dtype of a run's computations. "auto" selects bfloat16 on a GPU that supports it, else float32."""
    if section.precision != "auto":
        return section.precision
    return "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"


class Stepper:
    """Takes training steps. `module` is the training module, possibly wrapped by DDP or FSDP."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        section: TrainSection,
        world: World,
        *,
        num_micro_batches: int = 1,
        fixed_shapes: bool = True,
    ) -> None:
        """`fixed_shapes`: batches of one shape have the same tensors in the network, so a CUDA graph can run them."""
        self.fixed_shapes = fixed_shapes
        self.module, self.optimizer, self.section, self.world = module, optimizer, section, world
        self.num_micro_batches = num_micro_batches
        self.device = world.device
        self.precision = resolve_precision(section, self.device)
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.scaler = torch.amp.GradScaler(self.device.type) if self.precision == "float16" else None
        self.updates_on_device = self.device.type == "cuda" and can_skip_update_on_device(optimizer)
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)  # the sum since the last `pop_loss`
        self.grad_norm = torch.zeros((), device=self.device)
        self.skip_update = torch.zeros((), device=self.device)  # 1 if this step's update is skipped, else 0
        self.first_bad_step = torch.full((), -1, dtype=torch.long, device=self.device)
        self.step_number = torch.zeros((), dtype=torch.long, device=self.device)
        self.num_bad_steps = torch.zeros((), device=self.device)  # since the last `pop_bad_steps`
        # Sums over ranks of: token labels, document labels, stop, seconds
        self.synced = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.graphs: dict[tuple[Any, ...], tuple[LabelledBatch, Tensor, torch.cuda.CUDAGraph]] = {}
        self.label_multiple = LABEL_MULTIPLE if self.device.type == "cuda" else 1

    def __call__(self, batch: Batch, step: int, lr: float, stop: bool = False, seconds: float = 0.0) -> None:
        """Take step `step` (from 0) with learning rate `lr`.

        The loss is divided by the number of labels of all ranks, which takes an all-reduce. The same all-reduce also
        sums `stop` (1 if this rank wants to stop) and `seconds` (its run time); see `synced_stop_and_seconds`.
        """
        synced = torch.tensor([*batch.label_counts, float(stop), seconds], dtype=torch.float64)
        if self.world.size > 1:
            synced = self.world.sum_tensor(self.copy_to_device(synced), all_ranks=True)
        self.synced = synced
        # Tensor-parallel ranks have the same sequences, so each label was counted `tensor_size` times.
        loss_weights = self.copy_to_device((self.world.tensor_size / synced[:2].clamp(min=1)).float())
        set_lr(self.optimizer, lr)
        self.step_number.fill_(step)
        if isinstance(self.module, TrainingModule):
            batch = self.module.normalize_padding_flags(batch)
        micro_batches = batch.split(self.num_micro_batches)
        can_use_graph = self._uses_cuda_graph(len(micro_batches)) and not batch.has_payloads
        if can_use_graph and self._replay_graph(micro_batches[0], step, loss_weights):
            return
        total = self.loss.new_zeros(())
        for index, micro_batch in enumerate(micro_batches):
            seed_step(self.section.seed, step, index, self.world.data_rank)
            labelled = make_labelled_batch(micro_batch, self.device, self.label_multiple)
            with self.world.gradient_sync(self.module, last=index == len(micro_batches) - 1), self.autocast():
                loss = self.module(labelled, loss_weights[0], loss_weights[1])
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            total += loss.detach()
        self._update(total)
        self.optimizer.zero_grad(set_to_none=True)

    def copy_to_device(self, values: Tensor) -> Tensor:
        """Copy a small CPU tensor to the device; the host does not wait for the copy."""
        if self.device.type != "cuda" or values.is_cuda:
            return values.to(self.device)
        return values.pin_memory().to(self.device, non_blocking=True)

    def synced_stop_and_seconds(self) -> tuple[bool, float]:
        """Return whether any rank wanted to stop in the last step, and the mean of all ranks' seconds."""
        _, _, stop, seconds = self.synced.tolist()
        return stop > 0, seconds / self.world.size

    def autocast(self) -> Any:
        """Return the context in which the network runs: autocast to the run's dtype."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, AUTOCAST_DTYPES[self.precision])

    def _update(self, loss: Tensor) -> None:
        """Clip the gradient and update the weights, unless the loss or the gradient is not finite."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        grad_norm = self.world.clip_gradients(self.parameters, self.section.max_grad_norm)
        self.grad_norm.copy_(grad_norm)
        loss = self.world.sum_tensor(loss)
        finite = torch.isfinite(loss)
        # While the loss scale is above 1, an infinite gradient is only an overflow: the scaler handles it by lowering
        # the scale.
        if self.scaler is None or self.scaler.get_scale() <= 1.0:
            finite = finite & torch.isfinite(grad_norm)
        sticky = self.skip_update if self.section.on_nonfinite == "stop" else torch.zeros_like(self.skip_update)
        self.skip_update.copy_(torch.maximum(sticky, (~finite).float()))
        is_first_bad = (self.skip_update > 0) & (self.first_bad_step < 0)
        self.first_bad_step.copy_(torch.where(is_first_bad, self.step_number, self.first_bad_step))
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

    def pop_bad_steps(self) -> tuple[int, int] | None:
        """Return the first skipped step since the last call, and the number of skipped steps; None if there is none.

        The host waits for the GPU.
        """
        step, count = int(self.first_bad_step), int(self.num_bad_steps)
        if step < 0:
            return None
        self.first_bad_step.fill_(-1)
        self.num_bad_steps.zero_()
        return step, count

    def pop_loss(self) -> float:
        """Return the sum of the losses of all steps since the last call. The host waits for the GPU."""
        total = float(self.loss)
        self.loss.zero_()
        return total

    def double_micro_batches(self) -> None:
        """From here on, split each batch into twice the number of micro-batches."""
        self.num_micro_batches *= 2
        self.graphs.clear()
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # A whole step as one CUDA graph

    def _uses_cuda_graph(self, num_micro_batches: int) -> bool:
        return (
            self.updates_on_device
            and self.fixed_shapes
            and num_micro_batches == 1
            and self.world.size == 1
            and self.scaler is None
            and self.section.compile != "no"
        )

    def _replay_graph(self, batch: Batch, step: int, loss_weights: Tensor) -> bool:
        """Take a step by replaying the CUDA graph for the batch's shape. Capture the graph first if it does not exist.

        Return False, and do nothing, if MAX_GRAPHS graphs for other shapes exist already.
        """
        labelled = make_labelled_batch(batch, self.device, self.label_multiple)
        key = (
            *(tensor.shape for tensor in tensors_in(labelled)),
            batch.objective,
            *(
                (side.max_documents, side.max_document_length)
                for side in (batch.inputs, batch.inputs.source)
                if side is not None
            ),
            batch.one_document_each,
            batch.unpadded,
            batch.source_unpadded,
        )
        if key not in self.graphs:
            if len(self.graphs) == MAX_GRAPHS:
                return False
            self.graphs[key] = self._capture_graph(labelled, loss_weights)
        graph_batch, graph_weights, graph = self.graphs[key]
        for target, source in zip(tensors_in(graph_batch), tensors_in(labelled), strict=True):
            target.copy_(source, non_blocking=True)
        graph_weights.copy_(loss_weights)
        seed_step(self.section.seed, step, 0, self.world.data_rank)
        graph.replay()
        return True

    def _capture_graph(
        self, labelled: LabelledBatch, loss_weights: Tensor
    ) -> tuple[LabelledBatch, Tensor, torch.cuda.CUDAGraph]:
        """Capture a step. Return the tensors that the graph reads, and the graph. Weights do not change."""
        graph_batch, graph_weights = clone_batch(labelled), loss_weights.clone()
        # Create the optimizer's state before the capture. Otherwise the graph would create it again at every replay.
        optimizer_tensors(self.optimizer, [(str(number), p) for number, p in enumerate(self.parameters)])

        def backward() -> Tensor:
            with self.autocast():
                loss: Tensor = self.module(graph_batch, graph_weights[0], graph_weights[1])
            loss.backward()
            return loss.detach()

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_PASSES):
                backward()
                self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.current_stream().wait_stream(stream)
        counters = (self.loss, self.skip_update, self.first_bad_step)
        before = [counter.clone() for counter in counters]
        graph = torch.cuda.CUDAGraph()
        # A step leaves nothing in its graph's memory, so all graphs can use the same memory, one after another.
        pool = next((one.pool() for _, _, one in self.graphs.values()), None)
        with torch.cuda.graph(graph, pool=pool):
            self._update(backward())
        self.optimizer.zero_grad(set_to_none=True)
        for counter, value in zip(counters, before, strict=True):
            counter.copy_(value)
        return graph_batch, graph_weights, graph


def seed_step(seed: int, step: int, micro_batch: int, rank: int) -> None:
    """Seed torch's random numbers for one micro-batch of one rank."""
    step_seed = hash64(seed, step, micro_batch, rank) % 2**63
    if torch.cuda.is_initialized() or torch.backends.mps.is_available():
        torch.manual_seed(step_seed)
    else:  # torch.manual_seed takes half a millisecond more: it records the call stack for CUDA, which is not used here
        torch.default_generator.manual_seed(step_seed)


def tensors_in(labelled: LabelledBatch) -> list[Tensor]:
    """Return all tensors of a batch, in a fixed order."""
    return [*labelled.batch.tensors, *(t for t in (labelled.positions, labelled.targets) if t is not None)]


def clone_batch(labelled: LabelledBatch) -> LabelledBatch:
    """Return a copy of a batch, with copies of all tensors."""
    positions, targets = (None if t is None else t.clone() for t in (labelled.positions, labelled.targets))
    batch = labelled.batch.map_tensors(torch.clone)
    return replace(labelled, batch=batch, positions=positions, targets=targets)
