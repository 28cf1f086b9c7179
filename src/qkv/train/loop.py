"""The training loop, from top to bottom.

    fit a new head
    for batch in loader:
        step; log; evaluate; save; stop on a signal or when the budget is spent

A checkpoint holds the weights, the optimizer's state, the position in the data and a few numbers. Everything else
follows from the recipe. So a run that is killed and resumed ends with the same weights, bit for bit.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from qkv.data.load.batch import Batch
from qkv.data.load.loader import Loader
from qkv.errors import QkvError
from qkv.models.runtime import eval_mode
from qkv.train.checkpoint.folder import CheckpointFolder
from qkv.train.core_share import cpu_seconds
from qkv.train.final_weights import load_final_weights
from qkv.train.head_fit import fit_head_first
from qkv.train.optim.schedule import lr_at
from qkv.train.out_of_memory import is_out_of_memory, out_of_memory_error
from qkv.train.progress import Progress, is_due
from qkv.train.recipe.schema import TrainSection
from qkv.train.run.folder import resume_command
from qkv.train.run.signals import StopRequested, StopSignals
from qkv.train.setup import Job, TrainingRun, describe_start, prepare_run
from qkv.train.speed import SpeedMeter
from qkv.train.step import Stepper
from qkv.train.watch import EvalReport, RunEnd

log = logging.getLogger("qkv")

MAX_EXAMPLES_SHOWN = 8
"""The maximum number of examples of a bad batch that an error message lists."""
MAX_SECONDS_BETWEEN_SAVES = 600.0
"""A checkpoint is saved at least this often, even if `train.save_every` and `train.eval_every` are longer."""


class StoppedBySignal(QkvError):
    """A signal stopped the run. The exit code is 128 + signal number, as in shells."""

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal


def fit(job: Job) -> RunEnd:
    """Train until the budget is spent. Afterwards the network has the final weights, as `train.final` selects them."""
    checkpoints = job.folder.checkpoints
    with ExitStack() as stack:
        signals = job.signals or stack.enter_context(StopSignals(multi_process=job.world.size > 1))
        run = prepare_run(job, signals)
        job.watcher.on_start(describe_start(job, run))
        # A single process may abort until its first step is done. Several ranks stop after the same step.
        mode = signals.mode if job.world.size == 1 else "finish"
        with close_on_exit(run.loader, checkpoints), signals.use_mode(mode):
            fit_head_first(job, run)
            speed = SpeedMeter(run.progress, run.fraction_done(), job.world)
            reason = take_all_steps(job, run, speed, signals)
            signals.acknowledge()
            run.loader.close()
            if checkpoints.last_step != run.progress.step:
                speed.count_tokens(run.progress)
                run.manager.save(run.progress)
            checkpoints.wait_for_save()
            return finish_run(job, run, reason, signals)


def take_all_steps(job: Job, run: TrainingRun, speed: SpeedMeter, signals: StopSignals) -> str:
    """Take steps until the budget is spent. Return the reason of the end."""
    section, world, watcher = job.recipe.train, job.world, job.watcher
    progress, stepper, fraction_done = run.progress, run.stepper, run.fraction_done()
    start_time, saved_seconds = time.monotonic() - progress.seconds, progress.seconds
    start_cpu = cpu_seconds() - progress.cpu_seconds / world.size
    recent: deque[tuple[int, Batch]] = deque(maxlen=section.log_every + 1)  # an error lists the bad step's examples
    evaluate_if_pending(job, run, speed, signals)
    reason = run.end_reason(section, fraction_done)
    batches = iter(run.loader)
    while not reason:
        batch = next(batches, None)
        if batch is None:
            reason = "epochs"
            break
        recent.append((progress.step, batch))
        lr = lr_at(section, progress.step, progress.scheduled_fraction(fraction_done))
        stop, seconds = signals.requested is not None, time.monotonic() - start_time
        take_step(stepper, batch, progress.step, lr, stop, seconds)
        signals.mode = "finish"  # from here on there is something to save; the first step may compile for minutes
        progress.step += 1
        progress.loss_steps += 1
        speed.tokens += batch.num_tokens
        if run.ema is not None:
            run.ema.update()

        if world.size > 1:
            stop, progress.seconds = stepper.synced_stop_and_seconds()
        else:
            stop, progress.seconds = signals.requested is not None, time.monotonic() - start_time
        if section.cpu_minutes:
            progress.cpu_seconds = world.sum_scalar(cpu_seconds() - start_cpu)
        fraction_before, fraction_done = fraction_done, run.fraction_done()
        due = find_due(section, progress, fraction_before, fraction_done)
        progress.scheduled_evals += due.scheduled_eval
        due.save |= stop or (fraction_done < 1 and progress.seconds - saved_seconds >= MAX_SECONDS_BETWEEN_SAVES)
        if due.log or due.evaluate or due.save or world.device.type == "cpu":
            check_finite(job, run, recent)
            progress.loss_sum += stepper.pop_loss()
            if world.size > 1:  # the synced time was measured before the step
                progress.seconds = world.mean(time.monotonic() - start_time)
        if due.log:
            watcher.on_step(speed.report(progress, lr, float(stepper.grad_norm), fraction_done, batch.epoch))
        width = run.network.config.stack.width
        if note := speed.budget_note(job.recipe, progress, width, lambda: run.budget.epochs_read(run.loader.cursor)):
            watcher.on_note(progress.step, note)
        if note := speed.slow_note(section, progress):
            watcher.on_note(progress.step, note)
        show_sample(job, run, speed, signals)
        if due.evaluate and not stop:
            report = evaluate(job, run, speed)
            stop, is_best = report is None, report is not None and report.is_best
            due.save |= stop or is_best
            due.keep |= is_best
        # A signal, or the end of the budget, can prevent an evaluation that was scheduled for this step. Remember it,
        # so that a resumed run that continues does it first.
        progress.pending_eval = due.evaluate if stop else fraction_done >= 1 and due.scheduled_eval
        if stop:
            signals.acknowledge()
        if due.save:
            saved_seconds = progress.seconds
            with signals.no_deadline():
                speed.count_tokens(progress)
                run.manager.save(progress, temporary=not due.keep)
        if stop:
            raise stop_run(job, run, signals)
        reason = run.end_reason(section, fraction_done)
    check_finite(job, run, recent)
    return reason


def stop_run(job: Job, run: TrainingRun, signals: StopSignals) -> StoppedBySignal:
    """Wait for the last save, report the end, and return the error to raise."""
    progress = run.progress
    job.folder.checkpoints.wait_for_save()
    job.watcher.on_end(RunEnd(progress.step, progress.seconds, "signal", {}, job.recipe.run))
    command = resume_command(job.recipe.run, job.world.size)
    return StoppedBySignal(
        signals.requested or 15, f"stopped at step {progress.step:,} with a checkpoint; resume with: {command}"
    )


def evaluate(job: Job, run: TrainingRun, speed: SpeedMeter) -> EvalReport | None:
    """Evaluate the current step. Return None if a stop signal ended the evaluation."""
    try:
        with speed.exclude_time():
            report = run.evaluator(run.progress, run.ema)
    except StopRequested:
        return None
    speed.eval_seconds = run.evaluator.seconds
    for note in report.notes:
        job.watcher.on_note(report.step, note)
    job.watcher.on_evaluate(report)
    return report


def finish_run(job: Job, run: TrainingRun, reason: str, signals: StopSignals) -> RunEnd:
    """Load the final weights and evaluate them. Everything is saved, so a stop signal ends the evaluation."""
    section, watcher, progress = job.recipe.train, job.watcher, replace(run.progress)
    job.world.barrier()
    notes, weights_step = load_final_weights(section, job.folder.checkpoints, run.network, run.ema, progress, job.world)
    for note in notes:
        watcher.on_note(progress.step, note)
    try:
        report = run.evaluator(progress, is_last=True)
    except StopRequested:
        raise stop_run(job, run, signals) from None
    for note in report.notes:
        watcher.on_note(report.step, note)
    if report.final is not None:
        report = replace(report, final=replace(report.final, weights_step=weights_step))
    watcher.on_evaluate(report)
    end = RunEnd(
        progress.step,
        progress.seconds,
        reason,
        report.metrics,
        job.recipe.run,
        report.subset,
        report.final,
        run.share.measure(),
    )
    watcher.on_end(end)
    return end


@dataclass
class Due:
    """The actions that are due after a step."""

    log: bool
    evaluate: bool
    save: bool
    keep: bool  # save a regular checkpoint (see `train.keep_checkpoints`), not one that the next save replaces
    scheduled_eval: bool  # `train.eval_every` asks for an evaluation at this step


def find_due(section: TrainSection, progress: Progress, fraction_before: float, fraction_done: float) -> Due:
    """Decide what to do after a step.

    The step raised the spent fraction of the budget from `fraction_before` to `fraction_done`.
    """
    scheduled_eval = is_due(section.eval_every, progress.step, fraction_before, fraction_done)
    save = is_due(section.save_every or section.eval_every, progress.step, fraction_before, fraction_done)
    every = 1 if progress.eval_plan is None else progress.eval_plan.stride
    is_chosen = (progress.scheduled_evals + scheduled_eval) % every == 0
    # `finish_run` evaluates the final weights, so the last step needs no evaluation here. But with `final = "best"` the
    # last step may itself be the best, so evaluate it here, before `finish_run` loads the best weights.
    evaluate = scheduled_eval and is_chosen if fraction_done < 1 else section.final == "best"
    return Due(
        progress.step % section.log_every == 0 or fraction_done >= 1,
        evaluate,
        save,
        keep=save,
        scheduled_eval=scheduled_eval,
    )


def evaluate_if_pending(job: Job, run: TrainingRun, speed: SpeedMeter, signals: StopSignals) -> None:
    """Evaluate the restored step, if this was due but not done before the checkpoint was saved.

    It is also due if a finished run is resumed with `final` changed to "best": the best step can only be chosen after
    the last step was evaluated.
    """
    progress, final, fraction_done = run.progress, job.recipe.train.final, run.fraction_done()
    unknown_best = run.is_resumed and fraction_done >= 1 and final == "best" and progress.best_step != progress.step
    if unknown_best or (progress.pending_eval and fraction_done < 1):
        report = evaluate(job, run, speed)
        if report is None:  # the checkpoint still says that the evaluation is pending
            raise stop_run(job, run, signals)
        if report.is_best:
            job.folder.checkpoints.mark_best(progress.step)
    progress.pending_eval = False


def show_sample(job: Job, run: TrainingRun, speed: SpeedMeter, signals: StopSignals) -> None:
    """Send a prediction to the watcher, every few seconds."""
    if job.make_sample is None or not speed.is_sample_due(run.progress.seconds):
        return
    try:
        with speed.time_sample(), eval_mode(run.network), run.stepper.autocast(), signals.use_mode("raise"):
            sample = job.make_sample(run.network)
    except StopRequested:
        return  # the loop stops after the next step
    if sample is not None:
        job.watcher.on_sample(run.progress.step, sample)


@contextmanager
def close_on_exit(loader: Loader, checkpoints: CheckpointFolder) -> Iterator[None]:
    """Stop the loader's workers at the end of a run. After an error, first wait for the save in progress."""
    try:
        yield
    except BaseException:
        with suppress(QkvError):  # report the first error, not this second one
            checkpoints.wait_for_save()
        raise
    finally:
        loader.close()


def take_step(stepper: Stepper, batch: Batch, step: int, lr: float, stop: bool, seconds: float) -> None:
    """Take one step. If memory runs out and `train.micro_batch_tokens` is "auto", retry with smaller micro-batches."""
    while True:
        try:
            return stepper(batch, step, lr, stop, seconds)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            single_process = stepper.world.size == 1
            can_split = single_process and stepper.num_micro_batches < batch.batch_size
            if stepper.section.micro_batch_tokens != "auto" or not can_split:
                raise out_of_memory_error(stepper.section, error, single_process=single_process) from error
        stepper.double_micro_batches()
        log.warning(
            "step %d ran out of memory: from here on a batch is split into %d micro-batches",
            step + 1,
            stepper.num_micro_batches,
        )


def check_finite(job: Job, run: TrainingRun, recent: Sequence[tuple[int, Batch]]) -> None:
    """If the loss or gradient of a step was not finite, raise an error.

    With `on_nonfinite = "skip"`, send a note to the watcher instead.
    """
    bad = run.stepper.pop_bad_steps()
    if bad is None:
        return
    step, count = bad
    batch = next((batch for number, batch in recent if number == step), None)
    origins = [] if batch is None else run.loader.origins(batch)
    hidden = len(origins) - MAX_EXAMPLES_SHOWN
    examples = "; ".join(origins[:MAX_EXAMPLES_SHOWN]) + (f" and {hidden} more" if hidden > 0 else "")
    problem = f"step {step + 1:,}: the loss or the gradient is not finite, so the weights were not updated"
    if job.recipe.train.on_nonfinite == "stop":
        raise QkvError(
            f"{problem}. Check its examples: {examples}. To skip such steps, resume with "
            f"{resume_command(job.recipe.run, job.world.size)} train.on_nonfinite=skip; otherwise start again with a "
            "lower train.lr"
        )
    run.progress.skipped_steps += count
    run.progress.loss_steps -= count  # the mean loss leaves skipped steps out
    more = f", as were {count - 1} steps after it" if count > 1 else ""
    job.watcher.on_note(run.progress.step, f"{problem}; skipped{more}. Its examples: {examples}")
