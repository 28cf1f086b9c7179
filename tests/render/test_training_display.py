"""The display of a run on terminals of any width, with any script, before the first report, and as a log."""

import io
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from qkv.render import training_display
from qkv.render.formatting import BLOCKS, DownsampledCurve, format_duration, format_number, sparkline
from qkv.render.training_display import LiveDisplay, LogDisplay, make_watcher
from qkv.train.watch import EvalReport, RunEnd, RunStart, Sample, StepReport

START = RunStart(
    run="runs/dates", parameters=1_059_840, trainable=1_059_840, step=0, steps=1000, minutes=0.0, device="cpu",
)  # fmt: skip
STEP = StepReport(
    step=540, loss=0.21434, lr=8.1e-4, grad_norm=0.62, tokens=900_000, tokens_per_second=41_234.4, seconds=60.0,
    fraction_done=0.54, seconds_left=52.0, epoch=2,
)  # fmt: skip
EVAL = EvalReport(step=500, seconds=55.0, metrics={"loss": 0.0412, "exact": 0.953}, is_best=True, metric="exact")
RIGHT = Sample("3 mars 1998", "1998-03-03", "1998-03-03")
WRONG = Sample("3 mars 1998", "1998-03-30", "1998-03-03")
END = RunEnd(step=1000, seconds=105.2, reason="steps", metrics={"exact": 0.964}, folder="runs/dates")


def picture(display: LiveDisplay, width: int = 80) -> list[str]:
    """The text that the display shows."""
    console = Console(file=io.StringIO(), width=width, record=True, color_system=None)
    console.print(display)
    return console.export_text().rstrip("\n").split("\n")


def display(*, start=START, steps=(STEP,), evaluations=(EVAL,), sample=RIGHT) -> LiveDisplay:
    made = LiveDisplay(Console(file=io.StringIO(), width=80))
    if start is not None:
        made.state.start = start
    for one in steps:
        made.on_step(one)
    for one in evaluations:
        made.on_evaluate(one)
    if sample is not None:
        made.on_sample(500, sample)
    return made


def log(*calls) -> list[str]:
    stream = io.StringIO()
    lines = LogDisplay(stream)
    for name, *arguments in calls:
        getattr(lines, name)(*arguments)
    return stream.getvalue().splitlines()


# The display


def test_the_full_display():
    earlier = replace(STEP, step=530, loss=0.5)
    assert picture(display(steps=(earlier, STEP))) == [
        "",
        " runs/dates   1.1 million parameters   cpu",
        " ━━━━━━━━━━━━━━━━━━━━━──────────────────   54 %   0:52 left   step 540 of 1,000",
        "",
        " training     loss 0.2143   █▁",
        " validation   exact 0.9530   step 500, the best so far   loss 0.0412",
        " speed        41,234 tokens/s   lr 8.10e-04   grad norm 0.6200   epoch 3",
        "",
        " source       3 mars 1998",
        " predicted ✓  1998-03-03",
    ]


def test_the_display_before_the_first_report():
    assert picture(display(start=None, steps=(), evaluations=(), sample=None))[1] == " a run"
    shown = picture(display(steps=(), evaluations=(), sample=None))
    assert shown[2] == f" {'─' * 48}    0 %   step 0 of 1,000"
    assert shown[-1] == " waiting for the first step"


WORSE = replace(EVAL, step=540, metrics={"exact": 0.5}, is_best=False)
NOT_BEGUN = {"start": replace(START, step=300), "steps": (), "evaluations": (), "sample": None}


@pytest.mark.parametrize(
    ("changes", "number", "line"),
    [
        (NOT_BEGUN, 2, f" {'─' * 48}    0 %   step 300 of 1,000"),
        ({"start": replace(START, steps=0, minutes=2.0)}, 2, f" {'━' * 26}{'─' * 22}   54 %   0:52 left   step 540"),
        ({"start": replace(START, trainable=4096)}, 1, " runs/dates   1.1 million parameters, 4,096 trainable   cpu"),
        ({"evaluations": (EVAL, WORSE)}, 5, " validation   exact 0.5000   █▁   step 540, best 0.9530 at 500"),
        ({"evaluations": (replace(EVAL, metrics={}),)}, 5, " validation   nothing measured yet"),
        ({"evaluations": (replace(EVAL, samples=[WRONG]),), "sample": None}, -1, " expected     1998-03-03"),
        ({"sample": Sample("", "Once upon a time", "")}, -1, " predicted    Once upon a time"),
    ],
    ids=["resumed", "minutes", "trainable", "worse", "no metrics", "sample of the evaluation", "nothing expected"],
)
def test_a_line_of_the_display(changes, number, line):
    assert picture(display(**changes))[number] == line


def test_a_wrong_prediction_is_shown_with_the_expected_text():
    assert picture(display(sample=WRONG))[-3:] == [
        " source       3 mars 1998",
        " predicted ✗  1998-03-30",
        " expected     1998-03-03",
    ]


@pytest.mark.parametrize("text", ["٣ مارس ١٩٩٨ م", "ג׳ במרץ 1998"])
def test_right_to_left_text_is_at_the_end_of_its_line(text):
    lines = [line for line in picture(display(sample=Sample(text, text, "else"))) if text in line]
    assert [line.strip().split()[0] for line in lines] == ["source", "predicted"]
    assert all(line.endswith(text) for line in lines)


def test_long_texts_take_two_lines():
    shown = picture(display(sample=Sample("word " * 100, "東京 " * 100, "")))[8:]
    assert [line[:14].strip() for line in shown] == ["source", "", "predicted", ""]
    assert [line.endswith(" …") for line in shown] == [False, True, False, True]


def test_control_characters_are_escaped():
    shown = "\n".join(picture(display(sample=Sample("a\x1b[31mb\rc\nd", "\u202eevil", "x"))))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "a␛[31mb␍c␊d" in shown


numbers = st.floats(allow_nan=True, allow_infinity=True)
positive = st.floats(0.0, 1e12)
texts = st.text(max_size=300)


@settings(deadline=None, derandomize=True)
@given(
    width=st.integers(24, 160), source=texts, written=texts, expected=texts, loss=numbers, norm=numbers, metric=numbers,
    done=st.floats(-0.5, 1.5), left=numbers, rate=positive, run=texts,
)  # fmt: skip
def test_no_line_is_wider_than_the_terminal(
    width, source, written, expected, loss, norm, metric, done, left, rate, run
):
    step = replace(STEP, loss=loss, grad_norm=norm, fraction_done=done, seconds_left=left, tokens_per_second=rate)
    shown = picture(
        display(
            start=replace(START, run=run),
            steps=(step, STEP, step),
            evaluations=(replace(EVAL, metrics={"exact": metric, "loss": loss}),),
            sample=Sample(source, written, expected),
        ),
        width,
    )
    assert all(cell_len(line) <= width for line in shown)
    assert 9 <= len(shown) <= 15


# The terminal


def test_an_error_restores_the_cursor():
    stream = io.StringIO()

    def run():
        with LiveDisplay(Console(file=stream, force_terminal=True, width=80)) as watch:
            watch.on_start(START)
            watch.on_step(STEP)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        run()
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h") == 1


def test_notes_are_above_the_display_and_the_end_is_below():
    stream = io.StringIO()
    with LiveDisplay(Console(file=stream, force_terminal=True, color_system=None, width=80)) as watch:
        watch.on_start(replace(START, notes=("going on from step 300",)))
        watch.on_note(310, "step 305: the loss is not a number")
        watch.on_end(END)
    seen = stream.getvalue()
    assert " going on from step 300" in seen
    assert " step 305: the loss is not a number" in seen
    assert seen.rstrip().endswith(" done  1,000 steps in 1:45 (all steps done)   exact 0.9640   runs/dates")


def test_without_a_terminal_there_is_a_log(capsys, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with make_watcher() as watch:
        assert isinstance(watch, LogDisplay)
        watch.on_end(END)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "done: 1,000 steps in 1:45 (all steps done)   exact 0.9640   runs/dates\n"


# The log


def test_a_log():
    assert log(
        ("on_start", replace(START, trainable=4096, notes=("going on from step 300",))),
        ("on_step", STEP),
        ("on_evaluate", replace(EVAL, samples=[WRONG, RIGHT])),
        ("on_note", 500, "two\nlines"),
        ("on_end", END),
    ) == [
        "runs/dates: 1,059,840 parameters, 4,096 trainable, cpu, 1,000 steps",
        "note: going on from step 300",
        "step 540  loss 0.2143  lr 8.10e-04  grad norm 0.6200  41,234 tokens/s  54 %, 0:52 left",
        "step 500  validation: exact 0.9530  loss 0.0412  (best so far)",
        "  3 mars 1998 → 1998-03-30 ✗ expected 1998-03-03",
        "note: two",
        "note: lines",
        "done: 1,000 steps in 1:45 (all steps done)   exact 0.9640   runs/dates",
    ]


def test_a_log_leaves_out_a_repeated_evaluation():
    last = replace(EVAL, is_best=False)
    worse = replace(last, metrics={**EVAL.metrics, "loss": 9.0})
    assert len(log(("on_evaluate", EVAL), ("on_evaluate", last), ("on_evaluate", worse))) == 2


def test_a_log_has_a_step_every_few_seconds_and_the_last_step():
    steps = [replace(STEP, step=n, seconds=n / 10, fraction_done=n / 1000) for n in range(10, 1001, 10)]
    lines = log(*(("on_step", step) for step in steps))
    assert [line.split("  ")[0] for line in lines] == [f"step {n:,}" for n in (*range(10, 911, 100), 1000)]


def test_a_log_shows_one_sample_for_each_logged_step():
    calls = [("on_step", STEP), ("on_sample", 540, RIGHT), ("on_sample", 541, RIGHT), ("on_sample", 542, RIGHT)]
    assert log(*calls)[1:] == ["  3 mars 1998 → 1998-03-03 ✓"]


def test_a_log_has_no_escape_codes_and_a_line_for_each_event():
    nasty = Sample("a\x1b[31m\nb", "\x07", "c")
    lines = log(("on_evaluate", replace(EVAL, samples=[nasty])), ("on_note", 1, "\x1b[2J"))
    assert len(lines) == 3
    assert not any(character < " " for line in lines for character in line)


def test_a_log_escapes_characters_that_its_encoding_lacks():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    LogDisplay(stream).on_evaluate(replace(EVAL, samples=[Sample("東京", "x", "x")]))
    assert b"\\u6771\\u4eac" in raw.getvalue()


# Numbers


@settings(deadline=None, derandomize=True)
@given(values=st.lists(st.floats(-1e6, 1e6), max_size=200), width=st.integers(1, 60))
def test_a_sparkline_spans_its_numbers(values, width):
    line = sparkline(values, width)
    assert len(line) == (min(width, len(values)) if len(values) > 1 else 0)
    assert set(line) <= set(BLOCKS)
    if 1 < len(values) <= width and min(values) < max(values):
        assert line[values.index(min(values))] == "▁"
        assert line[values.index(max(values))] == "█"


def test_a_sparkline_of_a_loss_has_a_logarithmic_scale():
    assert sparkline([math.exp(-n) for n in range(8)], 8, log=True) == "█▇▆▅▄▃▂▁"
    assert sparkline([math.nan, 0.0, 2.0, 1.0, math.inf], 8, log=True) == "█▁"


@settings(deadline=None, derandomize=True)
@given(values=st.lists(st.floats(-1e6, 1e6), max_size=300))
def test_a_long_curve_is_downsampled(values):
    curve = DownsampledCurve(max_points=8)
    for value in values:
        curve.add(value)
    assert len(curve.points) < 8
    full = len(curve.points) * curve.stride
    assert len(values) - full < curve.stride
    for n, point in enumerate(curve.points):
        part = values[n * curve.stride : (n + 1) * curve.stride]
        assert point == pytest.approx(sum(part) / len(part), abs=1e-6)


@settings(deadline=None, derandomize=True)
@given(value=st.floats(-1e9, 1e9))
def test_a_formatted_number_has_four_digits(value):
    assert float(format_number(value)) == pytest.approx(value, rel=6e-3, abs=1e-300)


@settings(deadline=None, derandomize=True)
@given(seconds=st.integers(0, 10**7))
def test_a_formatted_duration_can_be_parsed(seconds):
    days, _, rest = format_duration(seconds).rpartition(" ")
    parts = [int(part) for part in rest.split(":")]
    total = sum(part * 60**power for power, part in enumerate(reversed(parts)))
    assert total + 86_400 * int(days.split()[0] if days else 0) == seconds


# An evaluation in progress


def test_a_long_evaluation_shows_its_progress(monkeypatch):
    shown = display()
    shown.on_eval_progress(540, 0.4)
    assert " validation   evaluating   40 %" in picture(shown)
    shown.on_evaluate(replace(EVAL, step=540))
    assert not any("evaluating" in line for line in picture(shown))
    clock = iter([0.0, 9.0, 11.0, 12.0, 30.0])
    monkeypatch.setattr(training_display, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    calls = [("on_eval_progress", 540, fraction) for fraction in (0.1, 0.2, 0.3, 0.4)]
    assert log(*calls, ("on_evaluate", EVAL), ("on_eval_progress", 600, 0.1))[:1] == ["step 540  evaluating: 30 %"]
