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

from qkv.blocks import biased_gelu
from qkv.data.batch import Batch
from qkv.data.loader import Loader
from qkv.data.rows import Rows
from qkv.errors import QkvError, UsageError
from qkv.models import Network
from qkv.train import fused_loss
from qkv.train.average import Ema, Mean
from qkv.train.checkpoint import Checkpoints
from qkv.train.checkpoint_files import DamagedCheckpoint
from qkv.train.checkpoint_read import Checkpoint
from qkv.train.evaluation import Evaluator, Judge, resting
from qkv.train.keeper import AVERAGE, WEIGHTS, Keeper
from qkv.train.learner import Learner
from qkv.train.memory import is_out_of_memory
from qkv.train.optimizer import make_optimizer
from qkv.train.progress import Budget, Progress, due
from qkv.train.recipe import Recipe, TrainSection
from qkv.train.run_folder import RunFolder, command
from qkv.train.scale import World, fill, give_out, spread
from qkv.train.schedule import lr_at
from qkv.train.signals import StopSignals
from qkv.train.step import Stepper, out_of_memory, precision_of
from qkv.train.watch import End, Sample, Start, StepReport, Watcher

log = logging.getLogger("qkv")

FUSED = ("adamw", "adam", "sgd")
SAMPLE_SECONDS = 4.0
"""How often a watched run shows what it makes of an example."""
SHOWN = 8
"""How many examples an error names."""
SAVE_SECONDS = 600.0
"""However seldom a run is evaluated and saved, no more than this is lost with the machine."""


class Stopped(QkvError):
    """A signal ended the run, after a checkpoint: 128 + the signal's number, as shells have it."""

    def __init__(self, signal: int, step: int, command: str) -> None:
        super().__init__(f"stopped at step {step:,}, which is saved; go on with: {command}")
        self.exit_code = 128 + signal


@dataclass
class Job:
    """All that a run needs."""

    recipe: Recipe
    network: Network  # in a sharded world on the meta device: nobody holds more of it than a share
    rows: Rows
    valid: Rows | None
    folder: RunFolder
    world: World
    watch: Watcher = field(default_factory=Watcher)
    judge: Judge | None = None  # the task's metrics
    metric: str = ""  # the one that says which weights are best; "": the judge's main one
    sample: Callable[[Network], Sample | None] | None = None  # one prediction, to look at
    same: Mapping[str, Any] = field(default_factory=dict)  # what must not change when a run is continued
    notes: Sequence[str] = ()
    first_weights: Callable[[], Network] | None = None  # what a network on the meta device starts with


def fit(job: Job) -> End:
    """Train until the budget is spent. The network ends with the weights that the recipe asks for."""
    section, world, watch = job.recipe.train, job.world, job.watch
    checkpoints = job.folder.checkpoints
    found = checkpoints.newest()
    if found is None and checkpoints.passed_over:
        raise QkvError(
            f"{job.recipe.run}: no checkpoint of this run can be read:\n  "
            + "\n  ".join(checkpoints.passed_over)
            + "\nRestore one from a backup, or start anew in another folder (run=…)"
        )
    if found is None and job.folder.has_model:
        raise QkvError(
            f"{job.recipe.run}: the checkpoints of this run are gone, and beginning anew would lose its model. Restore "
            f'one, or start in another folder (run=…), from its weights with model.from="{job.recipe.run}"'
        )
    network = job.network if job.first_weights else job.network.to(world.device)
    module = spread(prepared(Learner(network, job.recipe.objective), section, world), world, section)
    if job.first_weights and found is None:  # a checkpoint has them all
        give_out(network, job.first_weights() if world.rank == 0 else None, world)
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    if not trained:
        raise UsageError("nothing is left to train: model.freeze covers every parameter")
    fused = section.optimizer in FUSED and not world.sharded
    optimizer = make_optimizer(trained, section, fused=fused, capturable=fused and world.device.type == "cuda")
    ema = Ema(trained, section.ema) if section.ema else None
    ranks = {"rank": world.data_rank, "world": world.data_size}
    loader = Loader(job.rows, **ranks, workers=section.workers, epochs=section.epochs or None)
    stepper = Stepper(module, optimizer, section, world, parts=parts_of(section, job.rows, world))
    keeper = Keeper(checkpoints, network, stepper, ema, loader, job.same, job.valid)
    evaluate = Evaluator(module, network, stepper, job.valid, job.judge, job.metric)
    budget = Budget.of(section, job.rows)
    progress = Progress()
    notes = list(job.notes)
    if found is not None:
        progress = keeper.restore(found)
    done = budget.done(progress.step, progress.seconds, loader.cursor)
    if found is not None:
        notes += [*found.passed_over, *keeper.notes, told_of(job.recipe.run, progress, done, budget, section)]
        checkpoints.prune(progress.step)
    elif any(record.get("kind") == "step" for record in job.folder.records()):
        notes.append("this run was begun before and has no checkpoint: it begins anew")
    if world.rank == 0:
        job.folder.truncate_after(progress.step)
    watch.start(start_of(job, progress, notes))

    began, saved = time.monotonic() - progress.seconds, progress.seconds
    pace = Pace(progress, done, world)
    recent: deque[tuple[int, Batch]] = deque(maxlen=section.log_every + 1)
    with StopSignals(several=world.size > 1) as signals, left_in_order(loader, checkpoints):
        # The last weights of a run that was over were not counted, unless it was to be known whether they are the best.
        uncounted = found is not None and done >= 1 and section.final == "best" and progress.best_step != progress.step
        if uncounted or (progress.owed and done < 1):
            with signals.unhurried():
                watch.evaluated(report := evaluate(progress, ema))
            if report.best:
                checkpoints.mark_best(progress.step)
        progress.owed = False
        reason = budget.reason(progress.step, progress.seconds) if done >= 1 else given_up(section, progress)
        batches = iter(loader)
        while not reason:
            batch = next(batches, None)
            if batch is None:
                reason = "epochs"
                break
            recent.append((progress.step, batch))
            lr = lr_at(section, progress.step, done)
            take_step(stepper, batch, progress.step, lr, signals.asked is not None, time.monotonic() - began)
            progress.step += 1
            progress.loss_steps += 1
            pace.tokens += batch.real_tokens
            if ema is not None:
                ema.update()

            alone = world.size == 1
            stop, progress.seconds = (
                (signals.asked is not None, time.monotonic() - began) if alone else stepper.agreed()
            )
            before, done = done, budget.done(progress.step, progress.seconds, loader.cursor)
            log_now = progress.step % section.log_every == 0 or done >= 1
            # The last weights are evaluated once they are final, unless it is to be known whether they are the best.
            evaluate_now = due(section.eval_every, progress.step, before, done) if done < 1 else section.final == "best"
            save_due = due(section.save_every or section.eval_every, progress.step, before, done)
            save_now = save_due or stop or (done < 1 and progress.seconds - saved >= SAVE_SECONDS)
            if log_now or evaluate_now or save_now or world.device.type == "cpu":
                check_numbers(stepper, progress, recent, loader, job)
                progress.loss += stepper.take_loss()
                if not alone:  # what they agreed upon was the time before the step
                    progress.seconds = world.mean(time.monotonic() - began)
            if log_now:
                watch.step(pace.report(progress, lr, float(stepper.norm), done, batch.epoch))
            if job.sample is not None and pace.sample_due(progress.seconds):
                with pace.apart(), resting(network), stepper.autocast():
                    sample = job.sample(network)
                if sample is not None:
                    watch.sampled(progress.step, sample)
            if evaluate_now and not stop:
                with signals.unhurried(), pace.apart():
                    watch.evaluated(report := evaluate(progress, ema))
                save_due = save_due or report.best
                save_now = save_now or report.best
            # Owed, too, to a run that ends here and may yet be given more.
            progress.owed = evaluate_now if stop else done >= 1 and due(section.eval_every, progress.step, before, done)
            if stop:
                signals.honoured()
            if save_now:
                saved = progress.seconds
                with signals.unhurried():
                    pace.count(progress)
                    keeper.save(progress, passing=not save_due)
            if stop:
                checkpoints.finish()
                watch.end(End(progress.step, progress.seconds, "signal", {}, job.recipe.run))
                raise Stopped(signals.asked or 15, progress.step, command(job.recipe.run, world.size))
            if done >= 1:
                reason = budget.reason(progress.step, progress.seconds)
            else:
                reason = given_up(section, progress)
        signals.honoured()  # the run ends anyway: it saves what it has, and judges it
        loader.close()
        check_numbers(stepper, progress, recent, loader, job)
        if checkpoints.newest_step() != progress.step:
            pace.count(progress)
            keeper.save(progress)
        checkpoints.finish()
        world.barrier()
        for note in take_final_weights(job, network, ema, progress):
            watch.note(progress.step, note)
        last = evaluate(replace(progress))
    watch.evaluated(last)
    end = End(progress.step, progress.seconds, reason, last.metrics, job.recipe.run)
    watch.end(end)
    return end


def prepared(learner: Learner, section: TrainSection, world: World) -> Learner:
    """A learner in the state that a run wants it in: training, compiled or not, recomputing or not."""
    learner.train()
    on_gpu = world.device.type == "cuda"
    narrow = precision_of(section, world.device) == "bfloat16" and (
        section.stream == "bfloat16" or (section.stream == "auto" and on_gpu)
    )
    if narrow:  # the norms' gains stay in float32, and outside the compiler torch says so
        warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
    for name in ("encoder", "decoder"):
        stack = getattr(learner.network, name, None)
        if stack is not None:
            stack.recompute = section.recompute
            stack.stream = torch.bfloat16 if narrow else None
    if on_gpu:
        fused_loss.load_kernels()
        biased_gelu.load_kernels()
    if section.compile == "yes" or (section.compile == "auto" and on_gpu and not world.sharded):
        learner.compile(dynamic=False if on_gpu else None)
    return learner


@contextmanager
def left_in_order(loader: Loader, checkpoints: Checkpoints) -> Iterator[None]:
    """However a run ends, the checkpoint that is being written is completed and no worker stays behind."""
    try:
        yield
    except BaseException:
        with suppress(QkvError):  # what went wrong first is what is told
            checkpoints.finish()
        raise
    finally:
        loader.close()


def given_up(section: TrainSection, progress: Progress) -> str:
    """Whether a run has had enough evaluations that were not better: the reason for its end, or ""."""
    return "patience" if section.patience and progress.worse >= section.patience else ""


def told_of(run: str, progress: Progress, done: float, budget: Budget, section: TrainSection) -> str:
    """What a run that was begun before goes on with, or what it needs to go on at all."""
    if done >= 1:
        spent = f"train.{budget.reason(progress.step, progress.seconds)}"
        return f"this run has spent its budget; give it more {spent} to go on: {command(run)} {spent}=…"
    if given_up(section, progress):
        return f"this run did not get better any more; raise train.patience to go on: {command(run)} train.patience=…"
    return f"going on from step {progress.step:,}"


def start_of(job: Job, progress: Progress, notes: Sequence[str]) -> Start:
    section, parameters = job.recipe.train, list(job.network.parameters())
    return Start(
        run=job.recipe.run,
        parameters=sum(p.numel() for p in parameters),
        trained=sum(p.numel() for p in parameters if p.requires_grad),
        step=progress.step,
        steps=section.steps,
        minutes=section.minutes,
        device=str(job.world.device),
        metric=job.metric,
        notes=tuple(notes),
    )


def parts_of(section: TrainSection, rows: Rows, world: World) -> int:
    """In how many micro-batches each process takes its share of a step."""
    if isinstance(section.micro_batch, str) or section.micro_batch == 0:
        return 1
    return rows.parts(section.micro_batch, world.data_size)


def take_step(stepper: Stepper, batch: Batch, step: int, lr: float, stop: bool, seconds: float) -> None:
    """One step; where it does not fit and the recipe allows it, again in smaller parts."""
    while True:
        try:
            return stepper(batch, step, lr, stop, seconds)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            alone = stepper.world.size == 1
            if stepper.section.micro_batch != "auto" or not alone or stepper.parts >= batch.rows:
                raise out_of_memory(stepper.section, error, alone=alone) from error
        stepper.halve()
        log.warning("step %d did not fit: from here on it is taken in %d parts", step + 1, stepper.parts)


def check_numbers(
    stepper: Stepper, progress: Progress, recent: Sequence[tuple[int, Batch]], loader: Loader, job: Job
) -> None:
    """Name a step whose loss or gradient was not a number; end the run, or go on without it."""
    bad = stepper.first_bad()
    if bad is None:
        return
    step, count = bad
    batch = next((batch for number, batch in recent if number == step), None)
    origins = [] if batch is None else loader.origins(batch)
    told = "; ".join(origins[:SHOWN]) + (f" and {len(origins) - SHOWN} more" if len(origins) > SHOWN else "")
    what = f"step {step + 1:,}: the loss or the gradient is not a number, and the weights stay as they were"
    if job.recipe.train.on_nonfinite == "stop":
        raise QkvError(
            f"{what}. Its examples: {told}. Look at these; go on without such steps with "
            f"{command(job.recipe.run, job.world.size)} train.on_nonfinite=skip, or start anew with a lower train.lr"
        )
    progress.skipped += count
    progress.loss_steps -= count  # they have no loss that could be averaged
    more = f", and so are {count - 1} after it" if count > 1 else ""
    job.watch.note(progress.step, f"{what}; skipped{more}. Its examples: {told}")


def take_final_weights(job: Job, network: Network, ema: Ema | None, progress: Progress) -> list[str]:
    """Give the network the weights that the recipe asks for; says which where they are not the last ones."""
    section, checkpoints = job.recipe.train, job.folder.checkpoints
    source: Checkpoint | Mean
    best, passed_over = None, []
    if section.final == "best":
        try:
            best = checkpoints.best()
        except DamagedCheckpoint as error:
            passed_over = [f"{error}: the best weights are lost, these are the last ones"]
    if section.average > 1:
        sound, damaged = readable(checkpoints, checkpoints.steps()[-section.average :])
        steps, source = [one.step for one in sound], Mean(sound)
        passed_over += damaged
        told = f"the mean of those at {len(steps)} checkpoints, steps {steps[0]:,} to {steps[-1]:,}"
    elif section.final == "best" and best is not None and best.step != progress.step:
        source, told = best, f"those of step {best.step:,}, which were the best"
    elif ema is not None:
        ema.keep()
        return [*passed_over, "the weights are their moving average"]
    else:
        return passed_over
    for name, parameter in network.named_parameters():
        averaged = ema is not None and parameter.requires_grad  # those were the weights that were found the best
        fill(parameter, source, (AVERAGE if averaged else WEIGHTS) + name, job.world)
    return [*passed_over, f"the weights are {told}"]


def readable(checkpoints: Checkpoints, steps: Sequence[int]) -> tuple[list[Checkpoint], list[str]]:
    """The checkpoints of these steps that are whole, and what is wrong with the others."""
    sound: list[Checkpoint] = []
    damaged: list[str] = []
    for step in steps:
        try:
            one = checkpoints.at(step)
            one.verify()
        except DamagedCheckpoint as error:
            damaged.append(f"{error}: left out")
        else:
            sound.append(one)
    return sound, damaged


class Pace:
    """How fast a run is, and how long it has to go."""

    def __init__(self, progress: Progress, done: float, world: World) -> None:
        self.world = world
        self.tokens = 0  # this process's, not counted by all yet
        self.since, self.told = progress.seconds, progress.tokens
        self.began, self.done_then = progress.seconds, done
        self.sampled = progress.seconds

    def count(self, progress: Progress) -> None:
        """Add up the tokens of all processes."""
        progress.tokens += int(self.world.total(self.tokens))
        self.tokens = 0

    def report(self, progress: Progress, lr: float, norm: float, done: float, epoch: int) -> StepReport:
        """What happened since the last report, whose sums begin anew."""
        self.count(progress)
        seconds = progress.seconds
        rate = (done - self.done_then) / max(seconds - self.began, 1e-9)
        report = StepReport(
            step=progress.step,
            loss=progress.loss / progress.loss_steps if progress.loss_steps else math.nan,
            lr=lr,
            grad_norm=norm,
            tokens=progress.tokens,
            tokens_per_second=(progress.tokens - self.told) / max(seconds - self.since, 1e-9),
            seconds=seconds,
            done=done,
            seconds_left=(1 - done) / rate if rate > 0 else 0.0,
            epoch=epoch,
        )
        self.since, self.told = seconds, progress.tokens
        progress.loss, progress.loss_steps = 0.0, 0
        return report

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is done here is not training, and does not count for its pace."""
        began = time.monotonic()
        yield
        self.since += time.monotonic() - began

    def sample_due(self, seconds: float) -> bool:
        if seconds - self.sampled < SAMPLE_SECONDS:
            return False
        self.sampled = seconds
        return True
