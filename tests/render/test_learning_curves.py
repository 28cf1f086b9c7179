"""Learning curves: the picture is valid XML and shows exactly what is in the log."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.render.learning_curves import downsample, draw_curves
from qkv.render.svg import COLOURS, Scale
from qkv.train.run.curves import read_curves

SVG = "{http://www.w3.org/2000/svg}"


def step(number: int, loss: float) -> dict:
    return {"kind": "step", "step": number, "loss": loss, "lr": 1e-3, "grad_norm": 1.0, "tokens": 5, "seconds": 1.0}


def evaluation(number: int, **metrics: float) -> dict:
    return {"kind": "eval", "step": number, "seconds": 1.0, "best": True} | metrics


def run(folder: Path, *rows: dict, name: str = "run") -> Path:
    (folder / name).mkdir()
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / name / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder / name


def drawn(runs: dict[str, Path], folder: Path, **choices: str) -> ElementTree.Element:
    out = folder / "pictures" / "curves.svg"
    draw_curves(runs, out, **choices)
    return ElementTree.fromstring(out.read_text(encoding="utf-8"))


def words(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


def lines(picture: ElementTree.Element) -> list[ElementTree.Element]:
    return [path for path in picture.iter(f"{SVG}path") if path.get("fill") == "none"]


def coordinates(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", line.get("d", ""))]


ROWS = [
    step(10, 4.0), step(20, 3.0), {"kind": "note", "step": 20, "text": "a note"}, evaluation(20, loss=3.5, exact=0.25),
    step(30, 2.0), step(40, 1.0), evaluation(40, loss=1.5, exact=0.75),
]  # fmt: skip


def test_one_run_in_two_panels(tmp_path):
    picture = drawn({"dates": run(tmp_path, *ROWS)}, tmp_path)
    training, validation, exact = lines(picture)
    assert [len(coordinates(line)) for line in (training, validation, exact)] == [4, 2, 2]
    assert float(training.get("stroke-width")) < float(validation.get("stroke-width"))
    assert len(list(picture.iter(f"{SVG}circle"))) == 4
    labels = words(picture)
    assert {"dates", "loss", "exact", "steps", "thin: training · bold: validation"} <= set(labels)
    assert {"1.500", "0.7500"} <= set(labels)  # the labels at the ends of the bold lines


def test_coordinates_are_in_proportion(tmp_path):
    """The x axis starts at 0 and is the same in both panels; a lower loss is drawn lower."""
    training, validation, exact = (coordinates(line) for line in lines(drawn({"a": run(tmp_path, *ROWS)}, tmp_path)))
    (x1, y1), (x2, y2), (x3, y3), (x4, y4) = training
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.11) == pytest.approx(x4 - x3, abs=0.11)
    assert y2 - y1 == pytest.approx(y3 - y2, abs=0.11) == pytest.approx(y4 - y3, abs=0.11)
    assert y1 < y2
    assert [x for x, _ in validation] == [x for x, _ in exact] == [x2, x4]
    assert exact[0][1] > exact[1][1]


def test_several_runs_have_colours_and_names(tmp_path):
    runs = {name: run(tmp_path, *ROWS, name=name) for name in ("a", "b", "c")}
    picture = drawn(runs, tmp_path, title="Three <runs> & more")
    assert {line.get("stroke") for line in lines(picture)} == set(COLOURS[:3])
    assert {"a", "b", "c", "Three <runs> & more"} <= set(words(picture))
    assert picture.get("aria-label") == "Three <runs> & more"


def test_names_are_escaped(tmp_path):
    picture = drawn({"<b>'x'&": run(tmp_path, *ROWS)}, tmp_path)
    assert "<b>'x'&" in words(picture)


def test_labels_that_would_overlap_are_moved_apart(tmp_path):
    runs = {str(n): run(tmp_path, *ROWS, name=str(n)) for n in range(6)}
    picture = drawn(runs, tmp_path)
    heights = sorted(float(t.get("y")) for t in picture.iter(f"{SVG}text") if t.text == "1.500")
    assert len(heights) == 6
    assert all(b - a >= 14.9 for a, b in pairwise(heights))


def test_a_run_without_validation_has_one_panel(tmp_path):
    picture = drawn({"a": run(tmp_path, step(10, 2.0), step(20, 1.0))}, tmp_path)
    assert len(lines(picture)) == 1
    assert "thin: training · bold: validation" not in words(picture)


def test_one_point_is_enough(tmp_path):
    assert "2.000" in words(drawn({"a": run(tmp_path, step(10, 2.0))}, tmp_path))


def test_a_line_has_a_gap_where_a_loss_is_nan(tmp_path):
    rows = [step(10, 4.0), step(20, 3.0), step(30, math.nan), step(40, 2.0), step(50, math.inf), step(60, 1.0)]
    (line,) = lines(drawn({"a": run(tmp_path, *rows)}, tmp_path))
    assert re.sub(r"[^ML]", "", line.get("d")) == "MLMM"


def test_a_loss_with_a_wide_range_has_a_logarithmic_scale(tmp_path):
    rows = [step(n * 10, 10.0 * 0.5**n) for n in range(10)]
    (line,) = lines(drawn({"a": run(tmp_path, *rows)}, tmp_path))
    heights = [y for _, y in coordinates(line)]
    falls = [b - a for a, b in pairwise(heights)]
    assert max(falls) - min(falls) < 0.25


def test_the_metric_may_be_chosen(tmp_path):
    rows = [step(10, 1.0), evaluation(10, loss=1.0, exact=0.5, tokens_right=0.9)]
    assert "tokens_right" in words(drawn({"a": run(tmp_path, *rows)}, tmp_path, metric="tokens_right"))


def test_the_last_line_may_be_half_written(tmp_path):
    folder = run(tmp_path, *ROWS)
    whole = read_curves("a", folder)
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "step", "step": 5')
    assert read_curves("a", folder) == whole


def test_a_broken_line_is_named(tmp_path):
    folder = run(tmp_path, *ROWS)
    file = folder / "metrics.jsonl"
    file.write_text("[1, 2]\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(QkvError, match=r"metrics.jsonl, line 1: not a line of a metrics.jsonl"):
        read_curves("a", folder)


def test_the_later_of_two_lines_for_a_step_counts(tmp_path):
    assert read_curves("a", run(tmp_path, step(10, 4.0), step(20, 9.0), step(20, 3.0))).training == [(10, 4), (20, 3)]


@pytest.mark.parametrize(("epoch", "reason", "full"), [(0, "minutes", 0), (0, "epochs", 1), (2, "signal", 2)])
def test_full_epochs_are_those_that_were_read_to_their_end(tmp_path, epoch, reason, full):
    rows = [step(10, 4.0) | {"epoch": 0}, step(20, 3.0) | {"epoch": epoch}]
    assert read_curves("a", run(tmp_path, *rows, {"kind": "end", "step": 20, "reason": reason})).full_epochs == full


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (None, {}, "no such file"),
        ((), {}, "nothing to draw yet"),
        (ROWS, {"metric": "exatc"}, "did you mean 'exact'"),
    ],
    ids=["no folder", "no step", "no such metric"],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, rows, options, message):
    folder = tmp_path / "nowhere" if rows is None else run(tmp_path, *rows)
    with pytest.raises(QkvError, match=message):
        drawn({"a": folder}, tmp_path, **options)


def ticks(picture: ElementTree.Element, row: float) -> list[str]:
    """The labels of the ticks at one height, which are those of the steps."""
    return [t.text or "" for t in picture.iter(f"{SVG}text") if float(t.get("y", "nan")) == row]


def test_the_only_run_is_not_named_twice(tmp_path):
    folder = run(tmp_path, *ROWS)
    labels = words(drawn({"dates": folder}, tmp_path, title="dates"))
    assert labels.count("dates") == 1
    assert "thin: training · bold: validation" in labels
    assert "dates" in words(drawn({"dates": folder}, tmp_path, title="another title"))
    two = words(drawn({"dates": folder, "b": folder}, tmp_path, title="dates"))
    assert two.count("dates") == 2
    alone = words(drawn({"a": run(tmp_path, step(10, 2.0), step(20, 1.0), name="alone")}, tmp_path, title="a"))
    assert alone.count("a") == 1


# Scales


@pytest.mark.parametrize(
    ("value", "ends"), [(1.0, (0, 1)), (0.0, (0, 1)), (0.8, (0, 1)), (0.01, (0, 1)), (3.0, (0, 6)), (-3.0, (-6, 0))]
)
def test_a_constant_value_has_a_scale(value, ends):
    scale = Scale([value, value], 100.0, 0.0, max_ticks=5).rounded()
    assert (scale.low, scale.high) == ends


@settings(deadline=None, derandomize=True)
@given(last=st.integers(0, 10**7))
def test_ticks_of_steps_are_whole(last):
    marks = Scale([0.0, float(last)], 0.0, 100.0, whole=True).ticks()
    assert all(mark == int(mark) for mark in marks)
    assert (2 if last < 10**7 else 1) <= len(marks) <= 8


def test_a_short_run_has_ticks_at_whole_steps(tmp_path):
    picture = drawn({"a": run(tmp_path, step(1, 2.0), step(2, 1.0))}, tmp_path)
    below = next(float(t.get("y", "nan")) for t in picture.iter(f"{SVG}text") if t.text == "steps") - 20
    assert ticks(picture, below) == ["0", "1", "2"]


@settings(deadline=None, derandomize=True)
@given(values=st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5))
def test_ticks_are_few_and_inside_and_a_rounded_scale_holds_all_values(values):
    scale = Scale(values, 100.0, 0.0, max_ticks=5)
    wide = scale.rounded()
    assert wide.low <= min(values) <= max(values) <= wide.high
    for one in (scale, wide):
        marks = one.ticks()
        assert len(marks) <= 12
        assert all(-1e-6 <= one(mark) <= 100.0 + 1e-6 for mark in marks)
    assert len(wide.ticks()) >= 2


@settings(deadline=None, derandomize=True)
@given(low=st.floats(1e-16, 1.0), ratio=st.floats(30.0, 1e15))
def test_ticks_of_a_logarithmic_scale(low, ratio):
    scale = Scale([low, low * ratio], 100.0, 0.0, log=True).rounded()
    assert scale.low <= low
    assert scale.high >= low * ratio
    assert len(scale.ticks()) >= 4
    assert all(-1e-6 <= scale(mark) <= 100.0 + 1e-6 for mark in scale.ticks())
    assert scale(scale.low) == pytest.approx(100.0)
    assert scale(scale.high) == pytest.approx(0.0, abs=1e-9)


@settings(deadline=None, derandomize=True)
@given(many=st.integers(0, 500), most=st.integers(1, 60))
def test_downsampling_keeps_the_mean(many, most):
    points = [(float(n), float(n)) for n in range(many)]
    few = downsample(points, most)
    assert len(few) == min(many, most)
    if many and many % most == 0:
        assert sum(value for _, value in few) / len(few) == pytest.approx((many - 1) / 2)


def test_skipped_steps_have_no_loss_to_draw(tmp_path):
    rows = [step(10, 4.0), {**step(20, 0.0), "loss": None}, step(30, 2.0)]
    assert read_curves("a", run(tmp_path, *rows)).training == [(10, 4.0), (30, 2.0)]


def rings(picture: ElementTree.Element) -> list[tuple[float, float]]:
    circles = [circle for circle in picture.iter(f"{SVG}circle") if circle.get("r") == "4.5"]
    return [(float(circle.get("cx", "nan")), float(circle.get("cy", "nan"))) for circle in circles]


def test_kept_weights_are_drawn_beside_the_curve(tmp_path):
    """If a run keeps averaged weights, their metrics are a ring and not part of the curve."""
    picture = drawn({"a": run(tmp_path, *ROWS, evaluation(40, loss=1.25, exact=0.875))}, tmp_path)
    plain = drawn({"b": run(tmp_path, *ROWS, name="plain")}, tmp_path)
    assert [len(rings(svg)) for svg in (picture, plain)] == [2, 0]  # one in each panel
    curve = max(lines(picture), key=lambda line: float(line.get("stroke-width", "0")))
    assert coordinates(curve)[-1][0] == rings(picture)[0][0]
    assert coordinates(curve)[-1][1] != rings(picture)[0][1]
    assert "1.25" in " ".join(words(picture))
    assert "ring: the kept weights" in words(picture)
    assert "ring: the kept weights" not in words(plain)


def test_kept_weights_of_an_earlier_step_are_drawn_at_that_step(tmp_path):
    rows = [*ROWS, step(50, 0.5), evaluation(50, loss=2.0, exact=0.5), evaluation(50, loss=1.4, exact=0.75)]
    rows[-1]["final"] = {"num_examples": 900, "weights_step": 40}  # more examples than before
    folder = run(tmp_path, *rows)
    assert read_curves("a", folder).kept == {"loss": [(40, 1.4)], "exact": [(40, 0.75)]}
    picture = drawn({"a": folder}, tmp_path)
    _, validation, exact = lines(picture)
    places = zip(rings(picture), (coordinates(validation)[1], coordinates(exact)[1]), strict=True)
    assert all(ring[0] == point[0] for ring, point in places)
    assert "0.7500" in words(picture)  # the metric of the kept weights


def test_kept_weights_of_the_last_step_have_no_ring(tmp_path):
    """Both evaluations of the last step have the same metrics, or the log says that the weights are of this step."""
    same, final = evaluation(40, loss=1.5, exact=0.75), evaluation(40, loss=1.25, exact=0.7)
    final["final"] = {"num_examples": 900, "weights_step": 40}
    for number, last in enumerate((same, final)):
        picture = drawn({"a": run(tmp_path, *ROWS, last, name=str(number))}, tmp_path)
        assert rings(picture) == []
        assert "ring: the kept weights" not in words(picture)


def test_a_step_before_the_last_may_be_evaluated_again(tmp_path):
    """This happens when a run is resumed from an earlier checkpoint."""
    rows = [evaluation(20, loss=3.0), evaluation(20, loss=2.5), evaluation(40, loss=1.0)]
    curves = read_curves("a", run(tmp_path, *rows))
    assert (curves.validation, curves.kept) == ({"loss": [(20, 3.0), (40, 1.0)]}, {})
