"""Measure the speed of a run, and estimate the time left."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from qkv.train.parallel.world import World
from qkv.train.progress import Progress
from qkv.train.watch import StepReport

SECONDS_BETWEEN_SAMPLES = 4.0
"""Seconds between two predictions on a display."""


class SpeedMeter:
    """Counts tokens and seconds between two reports. Estimates the time left from the speed of this process."""

    def __init__(self, progress: Progress, fraction_done: float, world: World) -> None:
        self.world = world
        self.tokens = 0  # tokens of this rank that `count_tokens` has not yet added to `progress`
        self.reported_seconds, self.reported_tokens = progress.seconds, progress.tokens
        self.start_seconds, self.start_fraction = progress.seconds, fraction_done
        self.sampled_seconds = progress.seconds

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
            loss=progress.loss / progress.loss_steps if progress.loss_steps else math.nan,
            lr=lr,
            grad_norm=grad_norm,
            tokens=progress.tokens,
            tokens_per_second=(progress.tokens - self.reported_tokens) / max(seconds - self.reported_seconds, 1e-9),
            seconds=seconds,
            fraction_done=fraction_done,
            seconds_left=(1 - fraction_done) / rate if rate > 0 else 0.0,
            epoch=epoch,
        )
        self.reported_seconds, self.reported_tokens = seconds, progress.tokens
        progress.loss, progress.loss_steps = 0.0, 0
        return report

    @contextmanager
    def exclude_time(self) -> Iterator[None]:
        """Exclude the time in this block from the tokens per second."""
        start = time.monotonic()
        yield
        self.reported_seconds += time.monotonic() - start

    def is_sample_due(self, seconds: float) -> bool:
        """Return whether it is time to show a prediction. If so, restart the timer."""
        if seconds - self.sampled_seconds < SECONDS_BETWEEN_SAMPLES:
            return False
        self.sampled_seconds = seconds
        return True
