"""The report on a run: all its parts, as JSON values and as a page."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qkv.files import replace_nonfinite, save_text
from qkv.page import build_report_page
from qkv.tasks.report.advice import MAX_ADVICE
from qkv.tasks.report.diagnostics import Advice, RunFindings
from qkv.tasks.report.leakage import LeakageReport
from qkv.train.run.curves import RunCurves


@dataclass(kw_only=True)
class RunReport(RunFindings):
    """The report on a run."""

    task: str
    data_name: str
    advice: tuple[Advice, ...]
    curves: RunCurves
    model_notes: tuple[str, ...] = ()  # says which weights were examined if the run has not finished
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def main_advice(self) -> tuple[Advice, ...]:
        """The two or three changes that are most likely to help."""
        return self.advice[:MAX_ADVICE]

    def to_html(self) -> str:
        """One HTML page, which can be opened offline."""
        return build_report_page(self.to_dict())

    def save(self, path: str | Path) -> None:
        """Write the page. Missing folders are made."""
        save_text(Path(path), self.to_html())

    def to_dict(self) -> dict[str, Any]:
        """Everything, for `--json` and for the page."""
        curves = {"training": self.curves.training, "validation": self.curves.validation}
        parts = {name: getattr(self, name) for name in ("score", "errors", "data", "learning_curve", "lr_check")}
        values = {
            "run": self.folder,
            "task": self.task,
            "data_name": self.data_name,
            "advice": [advice.to_dict() for advice in self.advice],
            "num_main_advice": len(self.main_advice),
            **{name: None if part is None else part.to_dict() for name, part in parts.items()},
            "curve_verdict": asdict(self.curve_verdict),
            "curves": curves,
            "leakage": leakage_dict(self.leakage),
            "score_without_leaks": self.score_without_leaks,
            "test_leakage": leakage_dict(self.test_leakage),
            "model_notes": list(self.model_notes),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }
        return replace_nonfinite(values)  # type: ignore[no-any-return]


def leakage_dict(report: LeakageReport | None) -> dict[str, Any] | None:
    """The leaks for JSON."""
    if report is None:
        return None
    leaks = [asdict(leak) for _, leak in sorted(report.leaks.items())]
    return asdict(report) | {"leaks": leaks, "num_exact": report.num_exact, "fraction": report.fraction}
