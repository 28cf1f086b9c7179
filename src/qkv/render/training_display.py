"""Show a training run: a live display if stderr is a terminal, else a log with a line for each event.

    with make_watcher() as watcher:
        fit(Job(…, watcher=watcher))

     runs/dates   1.1 million parameters   cpu
     ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━────────────────   68 %   0:34 left   step 680 of 1,000

     training     loss 0.2143   █▆▅▄▃▂▂▁▁
     validation   exact 0.9530   ▁▃▅▇█   step 600, the best so far   loss 0.0412
     speed        41,200 tokens/s   lr 8.10e-04   grad norm 0.62   epoch 3

     source       3 mars 1998
     predicted ✓  1998-03-03

All output goes to stderr. The text of an example is always at the end of a line, because right-to-left text could
reorder what follows it. The control characters of a text are escaped.
"""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from qkv.errors import count_nouns
from qkv.render.console import NoColorConsole, escape_controls
from qkv.render.formatting import (
    DownsampledCurve,
    format_count,
    format_duration,
    format_number,
    format_percent,
    sparkline,
)
from qkv.tasks.results import cut_text
from qkv.train.watch import EvalReport, RunEnd, RunStart, Sample, StepReport, Watcher

LABEL_WIDTH = 14
DRAW_SECONDS = 0.2  # time between two updates of the display
MAX_SAMPLE_LINES = 2  # lines of a text in the display
SHOWN_SHARE = 0.9  # a run that gets a smaller share of its cores shows it
MAX_TEXT_CHARS = 200  # length of a text in the log
END_REASONS = {
    "steps": "all steps done",
    "minutes": "time budget spent",
    "cpu_minutes": "time budget of computing spent",
    "epochs": "all epochs done",
    "patience": "no more improvement",
    "signal": "stopped",
}


class TerminalWatcher(Watcher, AbstractContextManager["TerminalWatcher"]):
    """A watcher for use in a `with` statement, which restores the terminal even if the run fails."""

    def __init__(self) -> None:
        self.state = RunState()

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the display."""


def make_watcher() -> TerminalWatcher:
    """A live display if stderr is a terminal, else a log."""
    console = NoColorConsole(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only:
        return LiveDisplay(console)
    return LogDisplay(sys.stderr)


class RunState:
    """The latest reports of a run."""

    def __init__(self) -> None:
        self.start: RunStart | None = None
        self.report: StepReport | None = None
        self.evaluated: EvalReport | None = None
        self.best: EvalReport | None = None
        self.sample: Sample | None = None
        self.stage = "waiting for the first step"
        self.evaluating: float | None = None  # the fraction of the evaluation in progress that is done
        self.num_evaluations = 0
        self.losses, self.metrics = DownsampledCurve(), DownsampledCurve()

    def main_metric(self, report: EvalReport) -> tuple[str, float] | None:
        """The name and value of the main metric of an evaluation."""
        name = report.metric if report.metric in report.metrics else next(iter(report.metrics), "")
        return (name, report.metrics[name]) if name else None

    def is_repeated(self, report: EvalReport) -> bool:
        """Whether this evaluation repeats the last one, as when a run evaluates the kept weights at its end."""
        last = self.evaluated
        return last is not None and (last.step, last.metrics) == (report.step, report.metrics)

    def add_evaluation(self, report: EvalReport) -> None:
        """Store an evaluation and its first sample."""
        self.evaluated, self.evaluating = report, None
        if report.is_best:
            self.best = report
        if (main := self.main_metric(report)) is not None:
            self.metrics.add(main[1])
        if report.samples:  # another one each time
            self.sample = report.samples[self.num_evaluations % len(report.samples)]
        self.num_evaluations += 1


class LiveDisplay(TerminalWatcher):
    """A display that is redrawn in place during training."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        # Redrawn by the training thread on each report, because a separate thread would slow down training.
        # stdout is redirected only if it is a terminal, too.
        self.live = Live(
            self, console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty(), vertical_overflow="crop"
        )
        self.last_drawn = -math.inf

    def on_start(self, start: RunStart) -> None:
        self.state.start = start
        for note in start.notes:
            self._print_note(note, "dim")
        self.live.start(refresh=True)

    def on_stage(self, stage: str, fraction: float) -> None:
        self.state.stage = f"{stage}   {format_percent(fraction)}"
        if time.monotonic() - self.last_drawn >= DRAW_SECONDS:
            self._draw()

    def on_step(self, report: StepReport) -> None:
        self.state.report = report
        self.state.losses.add(report.loss)
        if time.monotonic() - self.last_drawn >= DRAW_SECONDS:
            self._draw()

    def on_eval_progress(self, step: int, fraction: float) -> None:
        self.state.evaluating = fraction
        if time.monotonic() - self.last_drawn >= DRAW_SECONDS:
            self._draw()

    def on_evaluate(self, report: EvalReport) -> None:
        self.state.evaluating = None
        if not self.state.is_repeated(report):
            self.state.add_evaluation(report)
        self._draw()

    def on_sample(self, step: int, sample: Sample) -> None:
        self.state.sample = sample
        self._draw()

    def on_note(self, step: int, text: str) -> None:
        self._print_note(text)

    def on_end(self, end: RunEnd) -> None:
        self.close()
        self.console.print()
        self.console.print(Text.assemble(" ", ("done", "bold green"), Text(f"  {describe_end(end)}")), soft_wrap=True)

    def close(self) -> None:
        """Stop the display."""
        self.live.stop()

    def _draw(self) -> None:
        self.last_drawn = time.monotonic()
        if self.live.is_started:
            self.live.refresh()

    def _print_note(self, text: str, style: str = "yellow") -> None:
        self.console.print(Text.assemble(" ", (escape_controls(text, keep="\n"), style)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in display_lines(self.state, console, options.max_width):
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line


def display_lines(state: RunState, console: Console, width: int) -> Iterator[Text]:
    """The lines of the display."""
    yield Text()
    yield _title_line(state.start)
    yield _progress_line(state, width)
    if state.report is None:
        yield Text(f"\n {state.stage}", "dim")
        if state.evaluated is not None:
            yield _validation_line(state, state.evaluated)
        return
    yield Text()
    curve = sparkline(state.losses.points, max(8, min(32, width - 40)), log=True)
    yield _labelled_line("training", f"loss {format_number(state.report.loss)}", curve)
    if state.evaluating is not None:
        yield _labelled_line("validation", f"evaluating   {format_percent(state.evaluating)}", "")
    elif state.evaluated is not None:
        yield _validation_line(state, state.evaluated)
    report = state.report
    rate = f"{report.tokens_per_second:,.0f} tokens/s{describe_share(report.core_share)}"
    speed = f"lr {report.lr:.2e}", f"grad norm {format_number(report.grad_norm)}", f"epoch {report.epoch + 1:,}"
    yield _labelled_line("speed", rate, "", *speed)
    if state.sample is not None:
        yield Text()
        yield from _sample_lines(state.sample, console, width)


def _title_line(start: RunStart | None) -> Text:
    if start is None:
        return Text(" a run", "bold")
    size = f"{format_count(start.parameters)} parameters"
    if start.trainable != start.parameters:
        size += f", {format_count(start.trainable)} trainable"
    return Text.assemble(" ", (escape_controls(start.run) or "a run", "bold"), f"   {size}   {start.device}")


def _progress_line(state: RunState, width: int) -> Text:
    report, start = state.report, state.start
    done = 0.0 if report is None else min(max(report.fraction_done, 0.0), 1.0)
    step = report.step if report is not None else start.step if start is not None else 0
    label = format_percent(done).rjust(5)
    if report is not None and (left := time_left(report)):
        label += f"   {left} left"
    label += f"   step {step:,}"
    if start is not None and start.steps:
        label += f" of {start.steps:,}"
    length = max(10, min(48, width - len(label) - 4))
    filled = round(done * length)
    return Text.assemble(" ", ("━" * filled, "cyan"), ("─" * (length - filled), "dim"), f"  {label}")


def _validation_line(state: RunState, report: EvalReport) -> Text:
    main = state.main_metric(report)
    if main is None:
        return _labelled_line("validation", "nothing measured yet", "")
    when = f"step {report.step:,}"
    if state.best is report:
        when += ", the best so far"
    elif state.best is not None and (best := state.main_metric(state.best)) is not None:
        when += f", best {format_number(best[1])} at {state.best.step:,}"
    others = [f"{name} {format_number(value)}" for name, value in report.metrics.items() if name != main[0]]
    curve = sparkline(state.metrics.points, 12)
    return _labelled_line("validation", f"{main[0]} {format_number(main[1])}", curve, when, *others)


def _labelled_line(label: str, value: str, curve: str, *others: str) -> Text:
    line = Text.assemble((f" {label}".ljust(LABEL_WIDTH), "dim"), value)
    if curve:
        line.append("   ").append(curve, "cyan")
    for other in others:
        line.append(f"   {other}")
    return line


def _sample_lines(sample: Sample, console: Console, width: int) -> Iterator[Text]:
    mark = correctness_mark(sample)
    if sample.source:
        yield from _sample_text_lines("source", "", sample.source, console, width)
    yield from _sample_text_lines("predicted", mark, sample.prediction, console, width)
    if mark == "✗":
        yield from _sample_text_lines("expected", "", sample.expected, console, width)


def _sample_text_lines(label: str, mark: str, text: str, console: Console, width: int) -> Iterator[Text]:
    """A text of a sample with its label, wrapped to at most `MAX_SAMPLE_LINES` lines."""
    room = max(width - LABEL_WIDTH, 8)
    lines = list(Text(escape_controls(text)).wrap(console, room)) or [Text()]
    if len(lines) > MAX_SAMPLE_LINES:
        lines = lines[:MAX_SAMPLE_LINES]
        lines[-1].truncate(room - 2)
        lines[-1].append(" …")
    for number, line in enumerate(lines):
        head = Text(f" {label}" if number == 0 else "", "dim")
        if mark and number == 0:
            head.append(" ").append(mark, "not dim bold " + ("green" if mark == "✓" else "red"))
        head.pad_right(LABEL_WIDTH - head.cell_len)
        yield Text.assemble(head, line)


class LogDisplay(TerminalWatcher):
    """A log without colours, with a line for each event.

    Steps are logged at most once in `interval_seconds`; evaluations and notes are always logged.
    """

    def __init__(self, stream: TextIO, interval_seconds: float = 10.0) -> None:
        super().__init__()
        self.stream, self.interval_seconds = stream, interval_seconds
        self.last_step_seconds = self.last_sample_seconds = -math.inf
        self.last_eval_time: float | None = None  # when the evaluation in progress began, or was last logged

    def on_start(self, start: RunStart) -> None:
        self.state.start = start
        size = f"{start.parameters:,} parameters"
        if start.trainable != start.parameters:
            size += f", {start.trainable:,} trainable"
        budget = [count_nouns(start.steps, "step")] if start.steps else []
        budget += [f"{start.minutes:g} minutes"] if start.minutes else []
        budget += [f"{start.cpu_minutes:g} minutes of computing"] if start.cpu_minutes else []
        self._write_line(", ".join([f"{start.run or 'a run'}: {size}", start.device, *budget]))
        for note in start.notes:
            self.on_note(start.step, note)

    def on_step(self, report: StepReport) -> None:
        if report.seconds - self.last_step_seconds < self.interval_seconds and report.fraction_done < 1.0:
            return
        self.last_step_seconds = report.seconds
        left = time_left(report)
        values = [
            f"step {report.step:,}",
            f"loss {format_number(report.loss)}",
            f"lr {report.lr:.2e}",
            f"grad norm {format_number(report.grad_norm)}",
            f"{report.tokens_per_second:,.0f} tokens/s" + describe_share(report.core_share),
            format_percent(report.fraction_done) + (f", {left} left" if left else ""),
        ]
        self._write_line("  ".join(values))

    def on_eval_progress(self, step: int, fraction: float) -> None:
        now = time.monotonic()
        if self.last_eval_time is None:
            self.last_eval_time = now
        elif now - self.last_eval_time >= self.interval_seconds:
            self.last_eval_time = now
            self._write_line(f"step {step:,}  evaluating: {format_percent(fraction)}")

    def on_evaluate(self, report: EvalReport) -> None:
        self.last_eval_time = None
        if self.state.is_repeated(report):
            return
        self.state.add_evaluation(report)
        main = self.state.main_metric(report)
        names = [main[0], *(name for name in report.metrics if name != main[0])] if main else []
        values = "  ".join(f"{name} {format_number(report.metrics[name])}" for name in names)
        self._write_line(f"step {report.step:,}  validation: {values}" + ("  (best so far)" if report.is_best else ""))
        if report.samples and self.state.sample is not None:
            self._write_sample(self.state.sample)

    def on_sample(self, step: int, sample: Sample) -> None:
        if self.last_sample_seconds == self.last_step_seconds:
            return  # one sample for each logged step
        self.last_sample_seconds = self.last_step_seconds
        self._write_sample(sample)

    def _write_sample(self, sample: Sample) -> None:
        mark = correctness_mark(sample)
        source, prediction, expected = (
            cut_text(text, MAX_TEXT_CHARS) for text in (sample.source, sample.prediction, sample.expected)
        )
        parts = [f"{source} →", prediction, mark, f"expected {expected}" if mark == "✗" else ""]
        self._write_line("  " + " ".join(part for part in parts if part))

    def on_note(self, step: int, text: str) -> None:
        for line in text.splitlines():
            self._write_line(f"note: {line}")

    def on_end(self, end: RunEnd) -> None:
        self._write_line(f"done: {describe_end(end)}")

    def _write_line(self, text: str) -> None:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        self.stream.write(escape_controls(text).encode(encoding, "backslashreplace").decode(encoding) + "\n")
        self.stream.flush()


def describe_share(share: float) -> str:
    """The share of its cores that a run gets, in brackets; "" if it gets nearly all of the time, or if it is unknown.

    >>> describe_share(0.52), describe_share(0.97), describe_share(math.nan)
    (' (52 % of the cores)', '', '')
    """
    return f" ({format_percent(share)} of the cores)" if share < SHOWN_SHARE else ""


def correctness_mark(sample: Sample) -> str:
    """✓ if the prediction is the expected text, ✗ if not; empty if there is no expected text."""
    if not sample.expected:
        return ""
    return "✓" if sample.prediction.strip() == sample.expected.strip() else "✗"


def describe_end(end: RunEnd) -> str:
    """One line on how a run ended."""
    took = f"{format_duration(end.seconds)}{describe_share(end.core_share)}"
    parts = [f"{count_nouns(end.step, 'step')} in {took} ({END_REASONS.get(end.reason, end.reason)})"]
    intervals = end.final.intervals if end.final is not None else {}
    for name, value in end.metrics.items():
        ends = [format_number(one) for one in intervals.get(name, ())]
        parts.append(f"{name} {format_number(value)}" + (f" [{', '.join(ends)}]" if ends else ""))
    parts += [count_nouns(end.final.num_examples, "example")] if end.final is not None else []
    parts += [f"({end.subset})"] if end.subset else []
    return "   ".join([*parts, escape_controls(end.folder)] if end.folder else parts)


def time_left(report: StepReport) -> str:
    """The estimated time that is left, as h:mm:ss; empty if it is not known."""
    is_known = 0.0 < report.fraction_done < 1.0 and math.isfinite(report.seconds_left) and report.seconds_left > 0
    return format_duration(report.seconds_left) if is_known else ""
