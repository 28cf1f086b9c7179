"""The training loop, from top to bottom.

    for batch in loader:
        step; log; evaluate; save; stop when asked or when the budget is spent

A checkpoint holds the weights, the optimizer's state, the place in the data and a few numbers. Everything else is a
function of the recipe: a run that is killed and continued ends with the same weights, bit for bit.
"""

import logging
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from qkv.blocks.kernels import linear_gelu as biased_gelu
from qkv.data.load.batch import Batch
from qkv.data.load.loader import Loader
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import QkvError, UsageError
from qkv.models import Network
from qkv.train.checkpoint.files import DamagedCheckpoint
from qkv.train.checkpoint.folder import CheckpointFolder
from qkv.train.checkpoint.manager import EMA_PREFIX, WEIGHTS_PREFIX, CheckpointManager
from qkv.train.checkpoint.reader import Checkpoint
from qkv.train.evaluation import Evaluator, TaskMetrics, eval_mode
from qkv.train.loss import fused_cross_entropy as fused_loss
from qkv.train.loss.training_module import TrainingModule
from qkv.train.optim.averages import CheckpointAverage, Ema
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.optim.schedule import lr_at
from qkv.train.out_of_memory import is_out_of_memory
from qkv.train.parallel.parallelize import World, load_slices, parallelize, scatter_weights
from qkv.train.progress import Budget, Progress, is_due
from qkv.train.recipe.schema import Recipe, TrainSection
from qkv.train.run.folder import RunFolder, resume_command
from qkv.train.run.signals import StopSignals
from qkv.train.step import Stepper, out_of_memory_error, resolve_precision
from qkv.train.watch import RunEnd, RunStart, Sample, StepReport, Watcher

log = logging.getLogger("qkv")

FUSED_OPTIMIZERS = ("adamw", "adam", "sgd")
SECONDS_BETWEEN_SAMPLES = 4.0
"""How often a watched run shows what it makes of an example."""
MAX_EXAMPLES_SHOWN = 8
"""How many examples an error names."""
MAX_SECONDS_BETWEEN_SAVES = 600.0
"""However seldom a run is evaluated and saved, no more than this is lost with the machine."""


class StoppedBySignal(QkvError):
    """A signal ended the run, after a checkpoint: 128 + the signal's number, as shells have it."""

    def __init__(self, signal: int, step: int, command: str) -> None:
        super().__init__(f"stopped at step {step:,}, which is saved; go on with: {command}")
        self.exit_code = 128 + signal


@dataclass
class Job:
    """All that a run needs."""

    recipe: Recipe
    network: Network  # in a sharded world on the meta device: nobody holds more of it than a share
    train_data: SequenceStream
    valid_data: SequenceStream | None
    folder: RunFolder
    world: World
    watcher: Watcher = field(default_factory=Watcher)
    task_metrics: TaskMetrics | None = None  # the task's metrics
    metric: str = ""  # the one that says which weights are best; "": the judge's main one
    make_sample: Callable[[Network], Sample | None] | None = None  # one prediction, to look at
    invariants: Mapping[str, Any] = field(default_factory=dict)  # what must not change when a run is continued
    notes: Sequence[str] = ()
    initial_network: Callable[[], Network] | None = None  # what a network on the meta device starts with


def fit(job: Job) -> RunEnd:
    """Train until the budget is spent. The network ends with the weights that the recipe asks for."""
    section, world, watch = job.recipe.train, job.world, job.watcher
    checkpoints = job.folder.checkpoints
    found = checkpoints.newest()
    if found is None and checkpoints.skipped:
        raise QkvError(
            f"{job.recipe.run}: no checkpoint of this run can be read:\n  "
            + "\n  ".join(checkpoints.skipped)
            + "\nRestore one from a backup, or start anew in another folder (run=…)"
        )
    if found is None and job.folder.has_model:
        raise QkvError(
            f"{job.recipe.run}: the checkpoints of this run are gone, and beginning anew would lose its model. Restore "
            f'one, or start in another folder (run=…), from its weights with model.from="{job.recipe.run}"'
        )
    network = job.network if job.initial_network else job.network.to(world.device)
    module = parallelize(prepare_module(TrainingModule(network, job.recipe.objective), section, world), world, section)
    if job.initial_network and found is None:  # a checkpoint has them all
        scatter_weights(network, job.initial_network() if world.rank == 0 else None, world)
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    if not trained:
        raise UsageError("nothing is left to train: model.freeze covers every parameter")
    fused = section.optimizer in FUSED_OPTIMIZERS and not world.is_sharded
    optimizer = make_optimizer(trained, section, fused=fused, capturable=fused and world.device.type == "cuda")
    ema = Ema(trained, section.ema_decay) if section.ema_decay else None
    ranks = {"rank": world.data_rank, "world": world.data_size}
    loader = Loader(job.train_data, **ranks, num_workers=section.num_workers, epochs=section.epochs or None)
    stepper = Stepper(
        module, optimizer, section, world, num_micro_batches=num_micro_batches(section, job.train_data, world)
    )
    keeper = CheckpointManager(checkpoints, network, stepper, ema, loader, job.invariants, job.valid_data)
    evaluate = Evaluator(module, network, stepper, job.valid_data, job.task_metrics, job.metric)
    budget = Budget.from_section(section, job.train_data)
    progress = Progress()
    notes = list(job.notes)
    if found is not None:
        progress = keeper.restore(found)
    done = budget.fraction_done(progress.step, progress.seconds, loader.cursor)
    if found is not None:
        notes += [*found.skipped, *keeper.notes, resume_message(job.recipe.run, progress, done, budget, section)]
        checkpoints.prune(progress.step)
    elif any(record.get("kind") == "step" for record in job.folder.log_records()):
        notes.append("this run was begun before and has no checkpoint: it begins anew")
    if world.rank == 0:
        job.folder.truncate_after(progress.step)
    watch.on_start(describe_start(job, progress, notes))

    began, saved = time.monotonic() - progress.seconds, progress.seconds
    pace = SpeedMeter(progress, done, world)
    recent: deque[tuple[int, Batch]] = deque(maxlen=section.log_every + 1)
    with StopSignals(multi_process=world.size > 1) as signals, close_on_exit(loader, checkpoints):
        # The last weights of a run that was over were not counted, unless it was to be known whether they are the best.
        uncounted = found is not None and done >= 1 and section.final == "best" and progress.best_step != progress.step
        if uncounted or (progress.pending_eval and done < 1):
            with signals.no_deadline():
                watch.on_evaluate(report := evaluate(progress, ema))
            if report.is_best:
                checkpoints.mark_best(progress.step)
        progress.pending_eval = False
        reason = budget.reason(progress.step, progress.seconds) if done >= 1 else early_stop_reason(section, progress)
        batches = iter(loader)
        while not reason:
            batch = next(batches, None)
            if batch is None:
                reason = "epochs"
                break
            recent.append((progress.step, batch))
            lr = lr_at(section, progress.step, done)
            take_step(stepper, batch, progress.step, lr, signals.requested is not None, time.monotonic() - began)
            progress.step += 1
            progress.loss_steps += 1
            pace.tokens += batch.num_tokens
            if ema is not None:
                ema.update()

            alone = world.size == 1
            stop, progress.seconds = (
                (signals.requested is not None, time.monotonic() - began)
                if alone
                else stepper.synced_stop_and_seconds()
            )
            before, done = done, budget.fraction_done(progress.step, progress.seconds, loader.cursor)
            log_now = progress.step % section.log_every == 0 or done >= 1
            # The last weights are evaluated once they are final, unless it is to be known whether they are the best.
            evaluate_now = (
                is_due(section.eval_every, progress.step, before, done) if done < 1 else section.final == "best"
            )
            save_due = is_due(section.save_every or section.eval_every, progress.step, before, done)
            save_now = save_due or stop or (done < 1 and progress.seconds - saved >= MAX_SECONDS_BETWEEN_SAVES)
            if log_now or evaluate_now or save_now or world.device.type == "cpu":
                check_finite(stepper, progress, recent, loader, job)
                progress.loss += stepper.take_loss()
                if not alone:  # what they agreed upon was the time before the step
                    progress.seconds = world.mean(time.monotonic() - began)
            if log_now:
                watch.on_step(pace.report(progress, lr, float(stepper.grad_norm), done, batch.epoch))
            if job.make_sample is not None and pace.is_sample_due(progress.seconds):
                with pace.exclude_time(), eval_mode(network), stepper.autocast():
                    sample = job.make_sample(network)
                if sample is not None:
                    watch.on_sample(progress.step, sample)
            if evaluate_now and not stop:
                with signals.no_deadline(), pace.exclude_time():
                    watch.on_evaluate(report := evaluate(progress, ema))
                save_due = save_due or report.is_best
                save_now = save_now or report.is_best
            # Owed, too, to a run that ends here and may yet be given more.
            progress.pending_eval = (
                evaluate_now if stop else done >= 1 and is_due(section.eval_every, progress.step, before, done)
            )
            if stop:
                signals.acknowledge()
            if save_now:
                saved = progress.seconds
                with signals.no_deadline():
                    pace.count_tokens(progress)
                    keeper.save(progress, temporary=not save_due)
            if stop:
                checkpoints.finish()
                watch.on_end(RunEnd(progress.step, progress.seconds, "signal", {}, job.recipe.run))
                raise StoppedBySignal(
                    signals.requested or 15, progress.step, resume_command(job.recipe.run, world.size)
                )
            if done >= 1:
                reason = budget.reason(progress.step, progress.seconds)
            else:
                reason = early_stop_reason(section, progress)
        signals.acknowledge()  # the run ends anyway: it saves what it has, and judges it
        loader.close()
        check_finite(stepper, progress, recent, loader, job)
        if checkpoints.newest_step() != progress.step:
            pace.count_tokens(progress)
            keeper.save(progress)
        checkpoints.finish()
        world.barrier()
        for note in load_final_weights(job, network, ema, progress):
            watch.on_note(progress.step, note)
        last = evaluate(replace(progress))
    watch.on_evaluate(last)
    end = RunEnd(progress.step, progress.seconds, reason, last.metrics, job.recipe.run)
    watch.on_end(end)
    return end


def prepare_module(learner: TrainingModule, section: TrainSection, world: World) -> TrainingModule:
    """A learner in the state that a run wants it in: training, compiled or not, recomputing or not."""
    learner.train()
    on_gpu = world.device.type == "cuda"
    narrow = resolve_precision(section, world.device) == "bfloat16" and (
        section.residual_dtype == "bfloat16" or (section.residual_dtype == "auto" and on_gpu)
    )
    if narrow:  # the norms' gains stay in float32, and outside the compiler torch says so
        warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
    for name in ("encoder", "decoder"):
        stack = getattr(learner.network, name, None)
        if stack is not None:
            stack.gradient_checkpointing = section.gradient_checkpointing
            stack.residual_dtype = torch.bfloat16 if narrow else None
    if on_gpu:
        fused_loss.load_kernels()
        biased_gelu.load_kernels()
    if section.compile == "yes" or (section.compile == "auto" and on_gpu and not world.is_sharded):
        learner.compile(dynamic=False if on_gpu else None)
    return learner


@contextmanager
def close_on_exit(loader: Loader, checkpoints: CheckpointFolder) -> Iterator[None]:
    """However a run ends, the checkpoint that is being written is completed and no worker stays behind."""
    try:
        yield
    except BaseException:
        with suppress(QkvError):  # what went wrong first is what is told
            checkpoints.finish()
        raise
    finally:
        loader.close()


def early_stop_reason(section: TrainSection, progress: Progress) -> str:
    """Whether a run has had enough evaluations that were not better: the reason for its end, or ""."""
    return "patience" if section.patience and progress.evals_since_best >= section.patience else ""


def resume_message(run: str, progress: Progress, done: float, budget: Budget, section: TrainSection) -> str:
    """What a run that was begun before goes on with, or what it needs to go on at all."""
    if done >= 1:
        spent = f"train.{budget.reason(progress.step, progress.seconds)}"
        return f"this run has spent its budget; give it more {spent} to go on: {resume_command(run)} {spent}=…"
    if early_stop_reason(section, progress):
        return f"this run did not get better any more; raise train.patience to go on: {resume_command(run)} train.patience=…"
    return f"going on from step {progress.step:,}"


def describe_start(job: Job, progress: Progress, notes: Sequence[str]) -> RunStart:
    section, parameters = job.recipe.train, list(job.network.parameters())
    return RunStart(
        run=job.recipe.run,
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        step=progress.step,
        steps=section.steps,
        minutes=section.minutes,
        device=str(job.world.device),
        metric=job.metric,
        notes=tuple(notes),
    )


def num_micro_batches(section: TrainSection, data: SequenceStream, world: World) -> int:
    """In how many micro-batches each process takes its share of a step."""
    if isinstance(section.micro_batch_tokens, str) or section.micro_batch_tokens == 0:
        return 1
    return data.num_micro_batches(section.micro_batch_tokens, world.data_size)


def take_step(stepper: Stepper, batch: Batch, step: int, lr: float, stop: bool, seconds: float) -> None:
    """One step; where it does not fit and the recipe allows it, again in smaller parts."""
    while True:
        try:
            return stepper(batch, step, lr, stop, seconds)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            alone = stepper.world.size == 1
            if (
                stepper.section.micro_batch_tokens != "auto"
                or not alone
                or stepper.num_micro_batches >= batch.batch_size
            ):
                raise out_of_memory_error(stepper.section, error, single_process=alone) from error
        stepper.double_micro_batches()
        log.warning("step %d did not fit: from here on it is taken in %d parts", step + 1, stepper.num_micro_batches)


def check_finite(
    stepper: Stepper, progress: Progress, recent: Sequence[tuple[int, Batch]], loader: Loader, job: Job
) -> None:
    """Name a step whose loss or gradient was not a number; end the run, or go on without it."""
    bad = stepper.take_bad_steps()
    if bad is None:
        return
    step, count = bad
    batch = next((batch for number, batch in recent if number == step), None)
    origins = [] if batch is None else loader.origins(batch)
    told = "; ".join(origins[:MAX_EXAMPLES_SHOWN]) + (
        f" and {len(origins) - MAX_EXAMPLES_SHOWN} more" if len(origins) > MAX_EXAMPLES_SHOWN else ""
    )
    what = f"step {step + 1:,}: the loss or the gradient is not a number, and the weights stay as they were"
    if job.recipe.train.on_nonfinite == "stop":
        raise QkvError(
            f"{what}. Its examples: {told}. Look at these; go on without such steps with "
            f"{resume_command(job.recipe.run, job.world.size)} train.on_nonfinite=skip, or start anew with a lower train.lr"
        )
    progress.skipped_steps += count
    progress.loss_steps -= count  # they have no loss that could be averaged
    more = f", and so are {count - 1} after it" if count > 1 else ""
    job.watcher.on_note(progress.step, f"{what}; skipped{more}. Its examples: {told}")


def load_final_weights(job: Job, network: Network, ema: Ema | None, progress: Progress) -> list[str]:
    """Give the network the weights that the recipe asks for; says which where they are not the last ones."""
    section, checkpoints = job.recipe.train, job.folder.checkpoints
    source: Checkpoint | CheckpointAverage
    best, passed_over = None, []
    if section.final == "best":
        try:
            best = checkpoints.best()
        except DamagedCheckpoint as error:
            passed_over = [f"{error}: the best weights are lost, these are the last ones"]
    if section.average_checkpoints > 1:
        sound, damaged = readable_checkpoints(checkpoints, checkpoints.steps()[-section.average_checkpoints :])
        steps, source = [one.step for one in sound], CheckpointAverage(sound)
        passed_over += damaged
        told = f"the mean of those at {len(steps)} checkpoints, steps {steps[0]:,} to {steps[-1]:,}"
    elif section.final == "best" and best is not None and best.step != progress.step:
        source, told = best, f"those of step {best.step:,}, which were the best"
    elif ema is not None:
        ema.copy_to_network()
        return [*passed_over, "the weights are their moving average"]
    else:
        return passed_over
    for name, parameter in network.named_parameters():
        averaged = ema is not None and parameter.requires_grad  # those were the weights that were found the best
        load_slices(parameter, source, (EMA_PREFIX if averaged else WEIGHTS_PREFIX) + name, job.world)
    return [*passed_over, f"the weights are {told}"]


def readable_checkpoints(checkpoints: CheckpointFolder, steps: Sequence[int]) -> tuple[list[Checkpoint], list[str]]:
    """The checkpoints of these steps that are whole, and what is wrong with the others."""
    sound: list[Checkpoint] = []
    damaged: list[str] = []
    for step in steps:
        try:
            one = checkpoints.open_step(step)
            one.verify()
        except DamagedCheckpoint as error:
            damaged.append(f"{error}: left out")
        else:
            sound.append(one)
    return sound, damaged


class SpeedMeter:
    """How fast a run is, and how long it has to go."""

    def __init__(self, progress: Progress, done: float, world: World) -> None:
        self.world = world
        self.tokens = 0  # this process's, not counted by all yet
        self.reported_seconds, self.reported_tokens = progress.seconds, progress.tokens
        self.start_seconds, self.start_fraction = progress.seconds, done
        self.sampled_seconds = progress.seconds

    def count_tokens(self, progress: Progress) -> None:
        """Add up the tokens of all processes."""
        progress.tokens += int(self.world.sum_scalar(self.tokens))
        self.tokens = 0

    def report(self, progress: Progress, lr: float, norm: float, done: float, epoch: int) -> StepReport:
        """What happened since the last report, whose sums begin anew."""
        self.count_tokens(progress)
        seconds = progress.seconds
        rate = (done - self.start_fraction) / max(seconds - self.start_seconds, 1e-9)
        report = StepReport(
            step=progress.step,
            loss=progress.loss / progress.loss_steps if progress.loss_steps else math.nan,
            lr=lr,
            grad_norm=norm,
            tokens=progress.tokens,
            tokens_per_second=(progress.tokens - self.reported_tokens) / max(seconds - self.reported_seconds, 1e-9),
            seconds=seconds,
            fraction_done=done,
            seconds_left=(1 - done) / rate if rate > 0 else 0.0,
            epoch=epoch,
        )
        self.reported_seconds, self.reported_tokens = seconds, progress.tokens
        progress.loss, progress.loss_steps = 0.0, 0
        return report

    @contextmanager
    def exclude_time(self) -> Iterator[None]:
        """What is done here is not training, and does not count for its pace."""
        began = time.monotonic()
        yield
        self.reported_seconds += time.monotonic() - began

    def is_sample_due(self, seconds: float) -> bool:
        if seconds - self.sampled_seconds < SECONDS_BETWEEN_SAMPLES:
            return False
        self.sampled_seconds = seconds
        return True
