"""Run a claim with several seeds. The results are saved after each seed, so that an interrupted run loses one seed."""

import json
import os
import platform
import re
import tempfile
import time
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from qkv import QkvError, UsageError, __version__
from qkv.files import read_json_object, write_atomically
from qkv.progress import OnStage
from qkv.tasks.study.engine import run_missing
from qkv_lab.claim import Check, Claim, Size
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

Verdict = Literal["holds", "holds in part", "does not hold"]


@dataclass
class ClaimResult:
    """The results of a claim at one size: the points of each seed, and how they were made."""

    claim: Claim
    size: Size
    settings: dict[str, Any]
    points: dict[int, list[Point]] = field(default_factory=dict)  # seed → points
    seconds: float = 0.0
    made_with: dict[str, Any] = field(default_factory=dict)  # versions and machine
    data: str = ""  # the name of the file or folder that --data named

    @property
    def table(self) -> Table:
        """The points of all seeds."""
        return Table([self.points[seed] for seed in sorted(self.points)])

    def checks(self) -> list[Check]:
        """The checks of the claim. Each has to hold for the results of all seeds together, and for every seed alone."""
        seeds = [self.claim.check(Table([self.points[seed]])) for seed in sorted(self.points)]
        checks = self.claim.check(self.table)
        return [with_seeds(check, [of_seed[i].holds for of_seed in seeds]) for i, check in enumerate(checks)]

    def verdict(self) -> Verdict:
        """Whether the claim holds: its first check does. It holds in part if another check fails."""
        first, *others = self.checks()
        if not first.holds:
            return "does not hold"
        return "holds" if all(check.holds for check in others) else "holds in part"

    def to_dict(self) -> dict[str, Any]:
        """The content of the results file."""
        return {
            "claim": self.claim.name,
            "size": self.size,
            "verdict": self.verdict(),
            "checks": [check._asdict() for check in self.checks()],
            "settings": self.settings,
            "data": self.data,
            "seconds": round(self.seconds, 1),
            "made_with": self.made_with,
            "points": {str(seed): [list(point) for point in points] for seed, points in self.points.items()},
        }

    def save(self, path: Path) -> None:
        """Write the results file, with a line for each point."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False)
        write_atomically(path, re.sub(r"\[\n +([^\[\]{}]*?)\n +\]", join_lines, text) + "\n")


def with_seeds(check: Check, by_seed: list[bool]) -> Check:
    """A check of all seeds together, with what it says for each seed alone."""
    if check.needs_all_seeds:
        return check
    differs = set(by_seed) != {check.holds}
    found = f"{check.found} (in {sum(by_seed)} of {len(by_seed)} seeds)" if differs else check.found
    return check._replace(holds=check.holds and all(by_seed), found=found, by_seed=tuple(by_seed))


def join_lines(match: re.Match[str]) -> str:
    """Write a list of plain values in JSON in one line."""
    return "[" + re.sub(r",\n +", ", ", match[1]) + "]"


def load_result(claim: Claim, path: Path) -> ClaimResult:
    """Read a results file."""
    values = read_json_object(path)
    try:
        points = {int(seed): [Point(*point) for point in found] for seed, found in values["points"].items()}
        size, settings, seconds, made_with = (values[key] for key in ("size", "settings", "seconds", "made_with"))
        if values["claim"] != claim.name:
            raise KeyError(f"the claim is {values['claim']!r}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise QkvError(f"{path}: not a results file of {claim.name} ({error}); delete it and run it again") from error
    return ClaimResult(claim, size, settings, points, seconds, made_with, values.get("data", ""))


def results_path(folder: Path, claim: Claim, size: Size) -> Path:
    """The results file of a claim."""
    return folder / f"{claim.name}.{size}.json"


def run_claim(
    claim: Claim,
    size: Size = "small",
    *,
    seeds: int = 0,
    first_seed: int = 0,
    again: bool = False,
    folder: Path | None = None,
    data: Path | None = None,
    progress: OnStage | None = None,
) -> ClaimResult:
    """Run a claim's experiment with several seeds: 0, 1, …, or from `first_seed` on.

    With a `folder`, results are saved there. Seeds that it already has, with the same settings and data, are not run
    again, unless `again` is set. Without `data`, complete results of a run with optional data are kept.
    """
    check_requirements(claim, data)
    if not claim.data and not claim.optional_data:
        data = None
    settings = json.loads(json.dumps(asdict(claim.settings[size])))
    result = ClaimResult(claim, size, settings, made_with=describe_machine(), data="" if data is None else data.name)
    wanted = range(first_seed, first_seed + (seeds or claim.num_seeds(size)))
    path = None if folder is None else results_path(folder, claim, size)
    if path is not None and path.exists() and not again:
        earlier = load_result(claim, path)
        is_complete = set(wanted) <= set(earlier.points)
        if earlier.settings == settings and (earlier.data == result.data or (data is None and is_complete)):
            result = earlier
    result.points = {seed: points for seed, points in result.points.items() if seed in wanted}

    def run(seed: int) -> list[Point]:
        before = time.perf_counter()
        points = run_seed(claim, size, seed, data, progress)
        result.seconds += time.perf_counter() - before
        return points

    def save(seed: int) -> None:
        if path is not None:
            result.save(path)

    run_missing(wanted, result.points, run, save)
    return result


def run_seed(claim: Claim, size: Size, seed: int, data: Path | None, progress: OnStage | None) -> list[Point]:
    """Run a claim's experiment with one seed, in a temporary folder. Torch's random numbers depend only on the seed."""
    with tempfile.TemporaryDirectory(prefix="qkv-lab-") as scratch, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        show = progress or (lambda stage, done, total: None)
        experiment = Experiment(claim.settings[size], seed, Path(scratch), data, show)
        return [Point(p.measure, p.series, p.x, round_value(p.value)) for p in claim.run(experiment)]


def round_value(value: float) -> float:
    """A measured value with six significant digits, which is more than any of them deserves."""
    return float(f"{float(value):.6g}")


def check_requirements(claim: Claim, data: Path | None) -> None:
    """Raise an error if a claim needs data or packages that are not there."""
    missing = [package for package in claim.requires if find_spec(package) is None]
    if missing:
        raise UsageError(f"{claim.name} needs {', '.join(missing)}; install it with: pip install {' '.join(missing)}")
    if claim.data and data is None:
        raise UsageError(f"{claim.name} needs data: {claim.data}. Name it with --data")
    if data is not None and not data.exists():
        raise UsageError(f"--data {data}: no such file or folder; check the name")


def describe_machine() -> dict[str, Any]:
    """The versions and the machine that results are made with."""
    return {
        "qkv": __version__,
        "torch": torch.__version__.split("+")[0],
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }
