"""Reproduce published results: train and score the rows of docs/results.md.

    python bench/published.py makemore_names --data DATA --out runs --seeds 1 2 3
    python bench/published.py sigmorphon2017 cogs --data DATA --out runs --jobs 4     # rows and seeds side by side
    python bench/published.py scan:length-rotary --data DATA --out runs --set train.steps=2000
    python bench/published.py --list
    python bench/published.py --score runs          # score saved predictions again

A row is a module of bench/rows; its docstring states the data, the published figure and the goal. A row with variants,
such as the languages of sigmorphon2017, runs all of them, or one: sigmorphon2017:finnish. DATA has a folder for each
dataset, with its files as they were published, compressed with gzip or xz or not.

OUT/ROW-SEED has the predictions, the log of the training, and result.json; OUT/ROW.json has the results of all seeds.
Runs resume where they were stopped; a finished one is not repeated. Without --keep, checkpoints and prepared data are
deleted. --quick runs everything in a few seconds on a CPU, with a few records and steps.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

SHARED_MODULES = ("__init__", "frame", "encoders", "protein_clusters")


def list_modules() -> list[str]:
    """The names of the modules of bench/rows that are rows."""
    return sorted(p.stem for p in Path(__file__).with_name("rows").glob("*.py") if p.stem not in SHARED_MODULES)


def find_row(name: str) -> tuple[ModuleType, str]:
    """The module and the variant of a row, such as "scan" and "simple" for scan:simple."""
    stem, _, variant = name.partition(":")
    if stem not in list_modules():
        raise SystemExit(f"{name}: no such row; the rows are {', '.join(list_modules())}")
    module = import_module(f"rows.{stem}")
    variants = getattr(module, "VARIANTS", ())
    if variant and variant not in variants:
        raise SystemExit(f"{name}: no such variant; the variants of {stem} are {', '.join(variants) or 'none'}")
    return module, variant


def expand(names: list[str]) -> list[str]:
    """The rows of a command line, with every variant of a module that is named without one."""
    rows = []
    for name in names:
        module, variant = find_row(name)
        variants = getattr(module, "VARIANTS", ())
        rows += [f"{name}:{one}" for one in variants] if variants and not variant else [name]
    return rows


def folder_name(row: str) -> str:
    """The name of a row in file names."""
    return row.replace(":", "-")


def run_row(row: str, seed: int, asked: argparse.Namespace) -> None:
    """Train and score one row with one seed, in this process."""
    module, variant = find_row(row)
    from rows.frame import settings

    settings.device, settings.changes = asked.device, tuple(asked.set)
    folder = asked.out / f"{folder_name(row)}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    found = module.run(asked.data, folder, seed, asked.quick, **({"variant": variant} if variant else {}))
    options = "".join(f" --set {change}" for change in asked.set) + (" --quick" if asked.quick else "")
    command = f"python bench/published.py {row} --data DATA --out OUT --seeds {seed}{options}"
    result = {"row": row, "seed": seed, "command": command, "wall_seconds": time.perf_counter() - start, **found}
    write_json(folder / "result.json", result)
    if not asked.keep:
        delete_large_files(folder)
    score_folder(folder)
    collect(asked.out, row)


def score_folder(folder: Path) -> None:
    """Score the predictions of a folder, if the row has a `score`, and add the scores to its result."""
    from qkv.errors import QkvError
    from rows.frame import read_jsonl

    result = json.loads((folder / "result.json").read_text())
    module, _ = find_row(result["row"])
    if hasattr(module, "score"):
        lines = read_jsonl(folder / "predictions.jsonl")
        try:
            result["scores"] = module.score(lines)
        except (ImportError, QkvError) as error:  # a package for scores is missing
            result["note"] = f"not scored here ({error}); run bench/published.py --score where it is installed"
        else:
            result.pop("note", None)
        write_json(folder / "result.json", result)
    shown = {name: result.get(name) for name in ("row", "seed", "seconds", "parameters", "tested on", "scores", "note")}
    print(json.dumps({name: value for name, value in shown.items() if value is not None}), flush=True)


def collect(out: Path, row: str) -> None:
    """Write the results of all seeds of a row to one file, and draw their learning curves into one picture."""
    from qkv.errors import QkvError
    from qkv.render.learning_curves import draw_curves

    name = folder_name(row)
    files = sorted(out.glob(f"{name}-*/result.json"))
    results = [result for result in (json.loads(file.read_text()) for file in files) if result["row"] == row]
    write_json(out / f"{name}.json", results)
    runs = {f"seed {result['seed']}": out / f"{name}-{result['seed']}" / "run" for result in results}
    with suppress(QkvError, ValueError):  # a run of three steps has no curve
        draw_curves({seed: run for seed, run in runs.items() if run.exists()}, out / f"{name}.svg", title=name)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file under a temporary name, and rename it."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def delete_large_files(folder: Path) -> None:
    """Delete prepared data, checkpoints and weights."""
    shutil.rmtree(folder / "data", ignore_errors=True)
    for path in folder.glob("*/checkpoints"):
        shutil.rmtree(path)
    for path in folder.glob("*/*.safetensors"):
        path.unlink()


def run_jobs(jobs: list[tuple[str, int]], asked: argparse.Namespace) -> list[str]:
    """Run rows and seeds in processes of their own, `asked.jobs` at a time; the names of those that failed."""

    def run_job(job: tuple[str, int]) -> str:
        row, seed = job
        folder = asked.out / f"{folder_name(row)}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        words = [
            row,
            "--seeds",
            str(seed),
            "--data",
            str(asked.data),
            "--out",
            str(asked.out),
            "--device",
            asked.device,
        ]
        words += [word for change in asked.set for word in ("--set", change)]
        words += ["--quick"] * asked.quick + ["--keep"] * asked.keep
        threads = str(max(1, (os.cpu_count() or 1) // asked.jobs))
        with (folder / "log.txt").open("w") as log:
            command = [sys.executable, __file__, *words]
            environment = {"OMP_NUM_THREADS": threads, **os.environ}
            code = subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False
            ).returncode
        last = (folder / "log.txt").read_text(errors="replace").strip().rpartition("\n")[2]
        print(f"{row}, seed {seed}: {'failed: ' if code else ''}{last}", flush=True)
        return f"{row}, seed {seed}: {folder / 'log.txt'}" if code else ""

    with ThreadPoolExecutor(asked.jobs) as pool:
        return [failed for failed in pool.map(run_job, jobs) if failed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="a row, or row:variant")
    parser.add_argument("--list", action="store_true", help="list the rows and their variants")
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder of the datasets")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change every recipe")
    parser.add_argument("--jobs", type=int, default=1, help="rows and seeds that run at the same time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep checkpoints, weights and prepared data")
    parser.add_argument("--score", type=Path, metavar="OUT", help="score the predictions of a folder again")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(expand(list_modules())))
    if asked.score:
        for file in sorted(asked.score.glob("*/result.json")):
            score_folder(file.parent)
        for row in {json.loads(file.read_text())["row"] for file in asked.score.glob("*/result.json")}:
            collect(asked.score, row)
    jobs = [(row, seed) for row in expand(asked.rows) for seed in asked.seeds]
    jobs = [(row, seed) for row, seed in jobs if not (asked.out / f"{folder_name(row)}-{seed}/result.json").exists()]
    failed = []
    if asked.jobs > 1:
        failed = run_jobs(jobs, asked)
    else:
        for row, seed in jobs:
            run_row(row, seed, asked)
    if failed:
        raise SystemExit("failed:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
