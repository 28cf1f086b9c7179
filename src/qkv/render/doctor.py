"""The output of `qkv doctor`: one line for each check, and what to do about what it found."""

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from qkv.render.console import escape_controls
from qkv.tasks.doctor import DoctorReport

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red"), "skipped": ("–", "dim")}
"""The mark and the colour of each status."""


def print_doctor(report: DoctorReport, console: Console) -> None:
    """Print the findings of a report."""
    console.print(Text(escape_controls(report.name), "bold"))
    for note in report.notes:
        console.print(Text(escape_controls(note, keep="\n"), "dim"))
    for finding in report.findings:
        mark, colour = MARKS[finding.status]
        summary = Text.assemble(
            (f"{mark} ", colour),
            (finding.check, colour if finding.status in ("failed", "warning") else ""),
            (f": {escape_controls(finding.summary)}", "dim" if finding.status == "skipped" else ""),
        )
        console.print(summary)
        if finding.advice:
            console.print(Padding(Text(f"→ {escape_controls(finding.advice)}"), (0, 0, 0, 4)))
    counts = {status: sum(finding.status == status for finding in report.findings) for status in MARKS}
    words = {"ok": "ok", "warning": "to look at", "failed": "failed", "skipped": "not applicable"}
    listed = ", ".join(f"{count} {words[status]}" for status, count in counts.items() if count)
    console.print(f"{listed}, in {report.seconds:.0f} s", highlight=False)
