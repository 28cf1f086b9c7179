"""Measure the speed of a run, and estimate the time left."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qkv.train.core_share import BUSY_SHARE, CoreShare
from qkv.train.parallel.world import World
from qkv.train.progress import Progress
from qkv.train.recipe.schema import Recipe, TrainSection
from qkv.train.watch import StepReport

SECONDS_BETWEEN_SAMPLES, MAX_SAMPLE_FRACTION = 4.0, 0.05
"""The least seconds between two predictions on a display, and the largest fraction of the time that they may take."""
FIRST_GPU_SAMPLE_SECONDS = 5.0
"""The assumed duration of the first prediction on a GPU: it compiles kernels. A short run therefore shows none."""
WINDOW_SECONDS, SLOW_FRACTION = 10.0, 0.6
"""The speed is compared with the budget note this often. If the budget buys less than this fraction, a note says so."""
BUDGET_NOTE_STEPS, BUDGET_NOTE_SECONDS = 3, 10.0
"""After this number of steps and seconds, a note says how many steps and epochs the budget buys."""


def describe_share(share: float) -> str:
    """Describe the share of the cores that a run gets.

    >>> describe_share(0.27)
    'other programs use the cores, so the run gets 27 % of the time that it asks for'
    """
    return f"other programs use the cores, so the run gets {share:.0%} of the time that it asks for".replace("%", " %")


class SpeedMeter:
    """Counts tokens and seconds between two reports. Estimates the time left from the speed of this process."""

    def __init__(self, progress: Progress, fraction_done: float, world: World) -> None:
        self.world = world
        self.tokens = 0  # tokens of this rank that `count_tokens` has not yet added to `progress`
        self.reported_seconds, self.reported_tokens = progress.seconds, progress.tokens
        self.start_seconds, self.start_fraction = progress.seconds, fraction_done
        self.sampled_seconds = progress.seconds
        self.sample_duration = FIRST_GPU_SAMPLE_SECONDS if world.device.type == "cuda" else 0.0
        self.excluded_seconds = 0.0  # the time of evaluations and predictions
        self.eval_seconds = 0.0  # the duration of an evaluation; `seconds_left` includes the final evaluation
        self.first_step, self.first_step_seconds = progress.step, 0.0
        self.has_budget_note = progress.step > 0  # a resumed run has already shown the note
        self.share, self.window_share = CoreShare(), CoreShare()
        self.window = 0, 0.0  # the step and the training seconds at which the last window began
        self.planned_steps = 0.0  # the number of steps in the budget note; 0: there was none, or all is said

    def count_tokens(self, progress: Progress) -> None:
        """Add the new tokens of all ranks to `progress`."""
        progress.tokens += int(self.world.sum_scalar(self.tokens))
        self.tokens = 0

    def report(self, progress: Progress, lr: float, grad_norm: float, fraction_done: float, epoch: int) -> StepReport:
        """Report on the steps since the last report. Set the sums in `progress` back to 0."""
        self.count_tokens(progress)
        seconds = progress.seconds
        rate = (fraction_done - self.start_fraction) / max(seconds - self.start_seconds, 1e-9)
        report = StepReport(
            step=progress.step,
            loss=progress.loss_sum / progress.loss_steps if progress.loss_steps else math.nan,
            lr=lr,
            grad_norm=grad_norm,
            tokens=progress.tokens,
            tokens_per_second=(progress.tokens - self.reported_tokens) / max(seconds - self.reported_seconds, 1e-9),
            seconds=seconds,
            fraction_done=fraction_done,
            seconds_left=(1 - fraction_done) / rate + self.eval_seconds if rate > 0 else 0.0,
            epoch=epoch,
            core_share=self.share.measure() if self.world.device.type == "cpu" else math.nan,
        )
        self.reported_seconds, self.reported_tokens = seconds, progress.tokens
        progress.loss_sum, progress.loss_steps = 0.0, 0
        return report

    @contextmanager
    def exclude_time(self) -> Iterator[None]:
        """Exclude the time in this block from the tokens per second."""
        start = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - start
            self.reported_seconds += seconds
            self.excluded_seconds += seconds

    @contextmanager
    def time_sample(self) -> Iterator[None]:
        """Exclude the time of a prediction, and measure it: after a slow prediction, `is_sample_due` waits longer."""
        start = time.monotonic()
        with self.exclude_time():
            yield
        self.sample_duration = time.monotonic() - start

    def is_sample_due(self, seconds: float) -> bool:
        """Return whether it is time to show a prediction. If so, restart the timer."""
        pause = max(SECONDS_BETWEEN_SAMPLES, self.sample_duration / MAX_SAMPLE_FRACTION)
        if seconds - self.sampled_seconds < pause:
            return False
        self.sampled_seconds = seconds
        return True

    def slow_note(self, section: TrainSection, progress: Progress) -> str:
        """Return a note if a budget of time buys much less than the budget note said; once, else ""."""
        training_seconds = progress.seconds - self.excluded_seconds
        steps, seconds = progress.step - self.window[0], training_seconds - self.window[1]
        if not section.minutes or not self.planned_steps or seconds < WINDOW_SECONDS:
            return ""
        self.window, share = (progress.step, training_seconds), self.window_share.measure()
        left = section.minutes * 60 * (1 - section.max_eval_fraction) - training_seconds
        total = progress.step + max(left, 0.0) * steps / seconds
        if total >= SLOW_FRACTION * self.planned_steps:
            return ""
        planned, self.planned_steps = self.planned_steps, 0.0
        why = f": {describe_share(share)}" if share < BUSY_SHARE else ""
        minutes = section.minutes * planned / total
        return (
            f"steps have become slower{why}. At this speed the budget buys about {total:,.0f} steps, not "
            f"{planned:,.0f}; for as many, resume the run with train.minutes={minutes:.2g}, or set train.cpu_minutes, "
            "which does not count the time of other programs"
        )

    def budget_note(self, recipe: Recipe, progress: Progress, width: int, count_epochs: Callable[[], float]) -> str:
        """Return a note on the number of steps and epochs that the budget buys: once, as soon as it is known, else "".

        `count_epochs` returns the number of epochs of the data that were read, or 0 if this is not known. The first
        step is not counted, because it may include compiling.
        """
        section, steps = recipe.train, progress.step - self.first_step
        training_seconds = progress.seconds - self.excluded_seconds
        if steps == 1:
            self.first_step_seconds = training_seconds
        if self.has_budget_note or steps < BUDGET_NOTE_STEPS or training_seconds < BUDGET_NOTE_SECONDS:
            return ""
        self.has_budget_note, epochs_read = True, count_epochs()
        step_seconds = (training_seconds - self.first_step_seconds) / (steps - 1)
        left = section.minutes * 60 * (1 - section.max_eval_fraction) - self.first_step_seconds
        counts = [max(left, 0.0) / step_seconds + 1] if section.minutes else []
        counts += [section.cpu_minutes * 60 * steps / progress.cpu_seconds] if progress.cpu_seconds else []
        counts += [float(section.steps)] if section.steps else []
        counts += [section.epochs * steps / epochs_read] if section.epochs and epochs_read else []
        total = min(counts, default=0.0)
        minutes = total * step_seconds / 60
        took = f"{minutes:.1f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
        note = f"a step takes {step_seconds:.2g} s, so this run is about {total:,.0f} steps in {took}"
        share = self.window_share.measure()
        if self.world.device.type == "cpu" and share < BUSY_SHARE:
            note += f" ({describe_share(share)})"
        self.planned_steps, self.window = total, (progress.step, training_seconds)
        epochs = epochs_read * total / steps
        if not epochs:
            return note
        note += f": {epochs:.2g} epochs of the training data"
        if epochs >= 1:
            return note
        changes = [f"model.width={width // 2}"] if not recipe.model.from_ and not recipe.model.preset else []
        changes += ["a GPU"] if self.world.device.type == "cpu" else []
        return f"{note}. To see more of it, take {' or '.join([*changes, 'a larger budget'])}"
