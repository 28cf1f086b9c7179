"""All claims of the lab with seeds that nobody has looked at, several at a time; what each seed says, in one JSON file.

    python bench/lab_seeds.py --first 100 --seeds 5 --jobs 16 --minutes 9 --out runs/lab-seeds
    python bench/lab_seeds.py copying recall --size mini --jobs 2 --out runs/trial

A claim with one seed is one process with one thread. Its results are saved in OUT/seed-N as soon as it ends.
OUT/seeds.json has the checks and the points of all seeds; it is written again every few seconds. If you start the
command again, only seeds without results run, so that several short calls do the work of a long one. Long claims start
first, so that no core waits at the end; a seed that is not expected to end within --minutes is left to the next call. A
process that fails or exceeds --limit is listed under `failed`, and the others continue.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

EARLIER = Path(__file__).resolve().parents[1] / "docs/lab/results"
SECONDS_BETWEEN_FILES = 10
RUN_ONE = """
import sys
from pathlib import Path
from qkv_lab.registry import find_claim
from qkv_lab.run import run_claim
name, size, seed, folder, data = sys.argv[1:]
run_claim(find_claim(name), size, seeds=1, first_seed=int(seed), folder=Path(folder), data=Path(data) if data else None)
"""


class Unit(NamedTuple):
    """A claim with one seed."""

    name: str
    seed: int

    def folder(self, out: Path) -> Path:
        """The folder of its results."""
        return out / f"seed-{self.seed}"


def expected_seconds(name: str) -> float:
    """The time of one seed, by the results in docs/lab. A claim without results counts as long."""
    path = EARLIER / f"{name}.small.json"
    if not path.exists():
        return 300.0
    earlier = json.loads(path.read_text())
    return float(earlier["seconds"]) / len(earlier["points"])


def run_unit(unit: Unit, asked: argparse.Namespace, deadline: float) -> str:
    """Run one seed of a claim. Returns why it failed, or nothing."""
    left = min(asked.limit, deadline - time.monotonic())
    if left <= 0 or (asked.size == "small" and asked.speed * expected_seconds(unit.name) > left):
        return "not started: too little time is left"
    folder = unit.folder(asked.out)
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    words = [unit.name, asked.size, str(unit.seed), str(folder), asked.data.get(unit.name, "")]
    with (folder / f"{unit.name}.log").open("w") as log:
        try:
            command = [sys.executable, "-c", RUN_ONE, *words]
            done = subprocess.run(command, stdout=log, stderr=log, env=environment, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            return f"stopped after {left:.0f} s"
    return f"exit code {done.returncode}; see {log.name}" if done.returncode else ""


def collect(asked: argparse.Namespace, names: list[str], failed: dict[Unit, str]) -> dict[str, Any]:
    """The results of all seeds that are there, by claim, with the checks of all seeds together and of each one."""
    from qkv_lab.registry import find_claim
    from qkv_lab.run import load_result, results_path

    claims = {}
    for name in names:
        claim = find_claim(name)
        paths = [results_path(folder, claim, asked.size) for folder in sorted(asked.out.glob("seed-*"))]
        found = [load_result(claim, path) for path in paths if path.exists()]
        if found:
            found[0].points = {seed: points for result in found for seed, points in result.points.items()}
            found[0].seconds = sum(result.seconds for result in found)
            claims[name] = found[0].to_dict()
    return {"claims": claims, "failed": {f"{unit.name}, seed {unit.seed}": why for unit, why in failed.items()}}


def save_results(folder: Path, found: dict[str, Any], num_seeds: int) -> None:
    """Replace the results in a folder by those of the claims that have all seeds. Results from optional data stay."""
    from qkv_lab.registry import find_claim
    from qkv_lab.run import load_result

    for name, result in found["claims"].items():
        path = folder / f"{name}.{result['size']}.json"
        has_data = path.exists() and json.loads(path.read_text()).get("data")
        if len(result["points"]) >= num_seeds and (result["data"] or not has_data):
            path.write_text(json.dumps(result), encoding="utf-8")
            load_result(find_claim(name), path).save(path)  # with a line for each point


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CLAIM", help="claims; without one, all")
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--size", default="small")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at the same time")
    parser.add_argument("--minutes", type=float, default=9.0, help="for the whole command")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds for one seed of a claim")
    parser.add_argument("--speed", type=float, default=0.7, help="time on this machine ÷ the time in docs/lab")
    parser.add_argument("--data", nargs="*", default=[], metavar="CLAIM=PATH", help="optional data of claims")
    parser.add_argument("--save", type=Path, help="the folder whose results complete claims replace: docs/lab/results")
    parser.add_argument("--out", type=Path, default=Path("runs/lab-seeds"))
    asked = parser.parse_args()
    asked.data = dict(pair.split("=", 1) for pair in asked.data)
    return asked


def main() -> None:
    asked = parse_arguments()
    deadline = time.monotonic() + 60 * asked.minutes
    from qkv.files import write_atomically
    from qkv_lab.registry import all_claims

    names = asked.names or [name for name, claim in all_claims().items() if not claim.data]
    seeds = range(asked.first, asked.first + asked.seeds)
    units = [Unit(name, seed) for name in sorted(names, key=expected_seconds, reverse=True) for seed in seeds]
    waiting = [unit for unit in units if not (unit.folder(asked.out) / f"{unit.name}.{asked.size}.json").exists()]
    print(f"{len(waiting)} of {len(units)} seeds of {len(names)} claims have no results yet", flush=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    failed: dict[Unit, str] = {}
    lock = Lock()
    written = time.monotonic()

    def write() -> dict[str, Any]:
        found = collect(asked, names, failed)
        write_atomically(asked.out / "seeds.json", json.dumps(found, ensure_ascii=False) + "\n")
        return found

    def work(unit: Unit) -> None:
        nonlocal written
        begin = time.monotonic()
        why = run_unit(unit, asked, deadline)
        with lock:
            if why:
                failed[unit] = why
            if time.monotonic() - written > SECONDS_BETWEEN_FILES:
                write()
                written = time.monotonic()
        print(f"{unit.name}, seed {unit.seed}: {why or f'{time.monotonic() - begin:.0f} s'}", flush=True)

    with ThreadPoolExecutor(asked.jobs) as pool:
        for running in [pool.submit(work, unit) for unit in waiting]:
            running.result()
    found = write()
    if asked.save:
        save_results(asked.save, found, asked.seeds)
    for name, result in found["claims"].items():
        print(f"{name}: {result['verdict']} ({len(result['points'])} seeds)")


if __name__ == "__main__":
    main()
