"""A training run as a person watches it: a few calm lines that renew themselves, or a log where there is no terminal.

    with training_watcher() as watch:
        fit(Job(…, watch=watch))

     runs/dates   1.1 million parameters   cpu
     ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━────────────────   68 %   0:34 left   step 680 of 1,000

     training   loss 0.2143   █▆▅▄▃▂▂▁▁
     held out   exact 0.9530   ▁▃▅▇█   step 600, the best so far   loss 0.0412
     pace       41,200 tokens/s   learning rate 8.10e-04   gradient 0.62   epoch 3

     source     3 mars 1998
     written ✓  1998-03-03

Everything goes to stderr. Texts of examples are shown, never obeyed: each stands at the end of a line of its own, so
that writing from right to left cannot shuffle what is around it.
"""

import math
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from qkv.render.formatting import DownsampledCurve, format_duration, format_number, format_percent, sparkline
from qkv.render.info import format_count
from qkv.render.survey import escape_controls
from qkv.train.watch import EvalReport, RunEnd, RunStart, Sample, StepReport, Watcher

LABEL_WIDTH = 12  # cells before what a line says
DRAW_SECONDS = 0.2  # between two pictures
SAMPLE_LINES = 2  # that a long text may take
MAX_TEXT_CHARS = 200  # characters of a text in a log
REASONS = {
    "steps": "all steps are taken",
    "minutes": "the time is up",
    "epochs": "all epochs are through",
    "patience": "it did not get better any more",
    "signal": "it was stopped",
}


class TerminalWatcher(Watcher):
    """A watcher to use with `with`: however a run ends, the terminal is left in order."""

    def __init__(self) -> None:
        self.state = RunState()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop showing."""


def make_watcher() -> TerminalWatcher:
    """What suits stderr: a display that renews itself on a terminal, else plain lines."""
    console = Console(stderr=True)
    if console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only:
        return LiveDisplay(console)
    return LogDisplay(sys.stderr)


class RunState:
    """What is known of a run so far."""

    def __init__(self) -> None:
        self.start: RunStart | None = None
        self.report: StepReport | None = None
        self.evaluated: EvalReport | None = None
        self.best: EvalReport | None = None
        self.sample: Sample | None = None
        self.losses, self.metrics = DownsampledCurve(), DownsampledCurve()

    def main_metric(self, report: EvalReport) -> tuple[str, float] | None:
        """The metric that evaluation is judged by: its name and value."""
        name = self.start.metric if self.start is not None else ""
        if name not in report.metrics:
            name = next(iter(report.metrics), "")
        return (name, report.metrics[name]) if name else None

    def is_repeated(self, report: EvalReport) -> bool:
        """Whether this was the last thing heard: the weights that were the best are judged once more in the end."""
        last = self.evaluated
        return last is not None and (last.step, last.metrics) == (report.step, report.metrics)

    def add_evaluation(self, report: EvalReport) -> None:
        self.evaluated = report
        if report.is_best:
            self.best = report
        if (main := self.main_metric(report)) is not None:
            self.metrics.add(main[1])
        if report.samples:
            self.sample = report.samples[0]


class LiveDisplay(TerminalWatcher):
    """The display that renews itself."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        # Drawn when there is news, by the run's own thread: a thread that draws would take time from the training.
        # What goes to stdout is left alone unless it would be written over the display.
        self.live = Live(
            self, console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty(), vertical_overflow="crop"
        )
        self.last_drawn = -math.inf

    def on_start(self, start: RunStart) -> None:
        self.state.start = start
        for note in start.notes:
            self._print_note(note, "dim")
        self.live.start(refresh=True)

    def on_step(self, report: StepReport) -> None:
        self.state.report = report
        self.state.losses.add(report.loss)
        if time.monotonic() - self.last_drawn >= DRAW_SECONDS:
            self._draw()

    def on_evaluate(self, report: EvalReport) -> None:
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
    """The display, line by line."""
    yield Text()
    yield _title(state.start)
    yield _progress(state, width)
    if state.report is None:
        yield Text("\n the first steps are on their way", "dim")
        return
    yield Text()
    curve = sparkline(state.losses.points, max(8, min(32, width - 40)), log=True)
    yield _row("training", f"loss {format_number(state.report.loss)}", curve)
    if state.evaluated is not None:
        yield _validation(state, state.evaluated)
    yield _pace(state.report)
    if state.sample is not None:
        yield Text()
        yield from _sample(state.sample, console, width)


def _title(start: RunStart | None) -> Text:
    if start is None:
        return Text(" a run", "bold")
    size = f"{format_count(start.parameters)} parameters"
    if start.trainable != start.parameters:
        size += f", {format_count(start.trainable)} trained"
    return Text.assemble(" ", (escape_controls(start.run) or "a run", "bold"), f"   {size}   {start.device}")


def _progress(state: RunState, width: int) -> Text:
    report, start = state.report, state.start
    done = 0.0 if report is None else min(max(report.fraction_done, 0.0), 1.0)
    step = report.step if report is not None else start.step if start is not None else 0
    said = format_percent(done).rjust(5)
    if report is not None and (left := time_left(report)):
        said += f"   {left} left"
    said += f"   step {step:,}"
    if start is not None and start.steps:
        said += f" of {start.steps:,}"
    long = max(10, min(48, width - len(said) - 4))
    full = round(done * long)
    return Text.assemble(" ", ("━" * full, "cyan"), ("─" * (long - full), "dim"), f"  {said}")


def _validation(state: RunState, report: EvalReport) -> Text:
    main = state.main_metric(report)
    if main is None:
        return _row("held out", "nothing measured yet", "")
    when = f"step {report.step:,}"
    if state.best is report:
        when += ", the best so far"
    elif state.best is not None and (best := state.main_metric(state.best)) is not None:
        when += f", best {format_number(best[1])} at {state.best.step:,}"
    others = [f"{name} {format_number(value)}" for name, value in report.metrics.items() if name != main[0]]
    return _row("held out", f"{main[0]} {format_number(main[1])}", sparkline(state.metrics.points, 12), when, *others)


def _pace(report: StepReport) -> Text:
    said = (
        f"learning rate {report.lr:.2e}",
        f"gradient {format_number(report.grad_norm)}",
        f"epoch {report.epoch + 1:,}",
    )
    return _row("pace", f"{report.tokens_per_second:,.0f} tokens/s", "", *said)


def _row(label: str, value: str, spark: str, *others: str) -> Text:
    line = Text.assemble((f" {label}".ljust(LABEL_WIDTH), "dim"), value)
    if spark:
        line.append("   ").append(spark, "cyan")
    for other in others:
        line.append(f"   {other}")
    return line


def _sample(sample: Sample, console: Console, width: int) -> Iterator[Text]:
    mark = correctness_mark(sample)
    if sample.source:
        yield from _text("source", "", sample.source, console, width)
    yield from _text("written", mark, sample.prediction, console, width)
    if mark == "✗":
        yield from _text("expected", "", sample.expected, console, width)


def _text(label: str, mark: str, text: str, console: Console, width: int) -> Iterator[Text]:
    """A text of an example: a line or two, and an ellipsis where there is more."""
    room = max(width - LABEL_WIDTH, 8)
    lines = list(Text(escape_controls(text)).wrap(console, room)) or [Text()]
    if len(lines) > SAMPLE_LINES:
        lines = lines[:SAMPLE_LINES]
        lines[-1].truncate(room - 2)
        lines[-1].append(" …")
    for number, line in enumerate(lines):
        head = Text(f" {label}" if number == 0 else "", "dim")
        if mark and number == 0:
            head.append(" ").append(mark, "not dim bold " + ("green" if mark == "✓" else "red"))
        head.pad_right(LABEL_WIDTH - head.cell_len)
        yield Text.assemble(head, line)


class LogDisplay(TerminalWatcher):
    """The same as a log: no colours, nothing rewritten, a line for what happened.

    Steps are reported no closer than `every` seconds of the run; evaluations and notes always.
    """

    def __init__(self, stream: TextIO, interval_seconds: float = 10.0) -> None:
        super().__init__()
        self.stream, self.interval_seconds = stream, interval_seconds
        self.last_step_seconds = self.last_sample_seconds = -math.inf

    def on_start(self, start: RunStart) -> None:
        self.state.start = start
        size = f"{start.parameters:,} parameters"
        if start.trainable != start.parameters:
            size += f", {start.trainable:,} of them trained"
        budget = [f"{start.steps:,} steps"] if start.steps else []
        budget += [f"{start.minutes:g} minutes"] if start.minutes else []
        self._line(", ".join([f"{start.run or 'a run'}: {size}", start.device, *budget]))
        for note in start.notes:
            self.on_note(start.step, note)

    def on_step(self, report: StepReport) -> None:
        if report.seconds - self.last_step_seconds < self.interval_seconds and report.fraction_done < 1.0:
            return
        self.last_step_seconds = report.seconds
        left = time_left(report)
        said = [
            f"step {report.step:,}",
            f"loss {format_number(report.loss)}",
            f"learning rate {report.lr:.2e}",
            f"gradient {format_number(report.grad_norm)}",
            f"{report.tokens_per_second:,.0f} tokens/s",
            format_percent(report.fraction_done) + (f", {left} left" if left else ""),
        ]
        self._line("  ".join(said))

    def on_evaluate(self, report: EvalReport) -> None:
        if self.state.is_repeated(report):
            return
        self.state.add_evaluation(report)
        main = self.state.main_metric(report)
        names = [main[0], *(name for name in report.metrics if name != main[0])] if main else []
        said = "  ".join(f"{name} {format_number(report.metrics[name])}" for name in names)
        self._line(f"step {report.step:,}  held out: {said}" + ("  (best so far)" if report.is_best else ""))
        for sample in report.samples[:1]:
            self._show(sample)

    def on_sample(self, step: int, sample: Sample) -> None:
        if self.last_sample_seconds == self.last_step_seconds:
            return  # one for each line about a step is enough for a log
        self.last_sample_seconds = self.last_step_seconds
        self._show(sample)

    def _show(self, sample: Sample) -> None:
        mark = correctness_mark(sample)
        said = [f"{truncate(sample.source)} →", truncate(sample.prediction), mark]
        said += [f"expected {truncate(sample.expected)}"] if mark == "✗" else []
        self._line("  " + " ".join(part for part in said if part))

    def on_note(self, step: int, text: str) -> None:
        for line in text.splitlines():
            self._line(f"note: {line}")

    def on_end(self, end: RunEnd) -> None:
        self._line(f"done: {describe_end(end)}")

    def _line(self, text: str) -> None:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        self.stream.write(escape_controls(text).encode(encoding, "backslashreplace").decode(encoding) + "\n")
        self.stream.flush()


def correctness_mark(sample: Sample) -> str:
    """✓ or ✗; nothing where there is no one right answer."""
    if not sample.expected:
        return ""
    return "✓" if sample.prediction.strip() == sample.expected.strip() else "✗"


def truncate(text: str) -> str:
    """A text for one line of a log."""
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"


def describe_end(end: RunEnd) -> str:
    """How a run ended, in a line."""
    said = [f"{end.step:,} steps in {format_duration(end.seconds)} ({REASONS.get(end.reason, end.reason)})"]
    said += [f"{name} {format_number(value)}" for name, value in end.metrics.items()]
    return "   ".join([*said, escape_controls(end.folder)] if end.folder else said)


def time_left(report: StepReport) -> str:
    """How long it will take, if that can be told."""
    known = 0.0 < report.fraction_done < 1.0 and math.isfinite(report.seconds_left) and report.seconds_left > 0
    return format_duration(report.seconds_left) if known else ""
