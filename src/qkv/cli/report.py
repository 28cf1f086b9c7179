"""`qkv report`: is my model good, and what next?"""

import math
from pathlib import Path

from qkv.cli.shared import Device, Json, StdoutConsole, check_minimum, print_json, print_notes
from qkv.errors import UsageError


def report(
    run: str,
    /,
    *,
    limit: int = 1000,
    seconds: float = 60.0,
    curve_minutes: float = 0.0,
    out: Path | None = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Is my model good, and what next? Print a report on a run, and save a longer report as a web page.

    The report shows:
    - the two or three changes that are most likely to help
    - the score with its interval, compared with simple baselines
    - the score by class and by length
    - the worst errors and suspect labels
    - records that are in both training and evaluation data
    - truncated and unusable records
    - over- or underfitting
    - the expected gain from twice the data (for classifiers, or with --curve-minutes)

    The report evaluates the model on the validation data, so that the test data stays unseen.

    Examples:
        qkv report runs/reviews
        qkv report runs/reviews --out reviews.html
        qkv report runs/translator --limit 200 --curve-minutes 15

    Parameters
    ----------
    run
        The folder of a run, or one of its checkpoints.
    limit
        Maximum number of records to evaluate.
    seconds
        Maximum time of the evaluation. The search for leaked records stops after a third of this time.
    curve_minutes
        Total time to train the recipe on a quarter, half and all of the data, and extrapolate. Default: only the curve
        of a quick baseline, for classifiers.
    out
        Page to write (.html). Default: report.html in the folder of the run; with --json, no page.
    """
    check_minimum("limit", limit, 1)
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"--seconds must be > 0, got {seconds:g}")
    if not (math.isfinite(curve_minutes) and curve_minutes >= 0):
        raise UsageError(f"--curve-minutes must be >= 0, got {curve_minutes:g}")
    if out is not None and out.suffix != ".html":
        raise UsageError(f"--out {out}: the name must end in .html")
    from qkv.render.progress import stages_bar
    from qkv.render.report import print_report
    from qkv.tasks.report import ReportOptions, make_report

    options = ReportOptions(max_records=limit, seconds=seconds, curve_minutes=curve_minutes, device=device)
    with stages_bar() as progress:
        made = make_report(run, options, progress)
    path = Path(made.folder) / "report.html" if out is None and not json else out
    if path is not None:  # before anything is printed, because a reader such as `head` may end the printing
        made.save(path)
    if json:
        print_json(made.to_dict())
    else:
        print_report(made, StdoutConsole())
    if path is not None:
        print_notes(str(path), [f"written, {path.stat().st_size / 1e3:,.0f} kB; open it in a browser"])
