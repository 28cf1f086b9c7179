"""Search the sizes, batches and optimizers of `qkv init`: what two CPU cores reach in a given time, trained on a GPU.

    python bench/search_defaults.py --data DATA --out runs --minutes 1 5 --jobs 4
    python bench/search_defaults.py shakespeare --sizes 128x2 256x4 --batches 1024 --optimizers muon:0.005 …

A CPU would take days. So each run takes as many steps as two cores take in the time, on a GPU and in float32:
`TOKENS_PER_SECOND` has the measured speed of each size. A tenth of the training part is left out and scored; no test
part is read. OUT/search.jsonl collects one line a run, and runs that are in it are not repeated.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from starters import STARTERS, split_training, write_records

TOKENS_PER_SECOND = {
    "language": {"128x2": 72_000, "192x3": 30_000, "256x4": 16_400, "256x2": 28_500},
    "translate": {"128x2": 47_000, "192x3": 22_000, "256x4": 12_000, "256x2": 19_000},
}
"""On two cores of an AMD EPYC with AVX-512 bfloat16: 1.75 times the tokens of a second of processor time on one."""
START_SECONDS = 5
"""Seconds of the budget in which no step is taken."""


class Trial(NamedTuple):
    """One run."""

    name: str
    minutes: float
    size: str
    batch: int
    optimizer: str
    lr: float
    seed: int

    @property
    def steps(self) -> int:
        """The steps of two cores in the time."""
        rate = TOKENS_PER_SECOND[STARTERS[self.name].task][self.size]
        return round(rate * (60 * self.minutes - START_SECONDS) / self.batch)

    @property
    def overrides(self) -> list[str]:
        """The changes of the recipe."""
        width, layers = self.size.split("x")
        return [
            *(f"model.width={width}", f"model.layers={layers}", f"train.batch_tokens={self.batch}"),
            *(f"train.optimizer={self.optimizer}", f"train.lr={self.lr}", f"train.seed={self.seed}"),
            *(f"train.steps={self.steps}", "train.minutes=0", "train.precision=float32"),
        ]


def run_trial(trial: Trial, data: Path, out: Path, device: str) -> dict[str, Any]:
    """Write the recipe, train it, and score it."""
    starter = STARTERS[trial.name]
    folder = out / "-".join(map(str, trial))
    files = [out / f"{trial.name}-{part}" for part in ("train", "test")]
    written = [str(next(iter(out.glob(f"{one.name}.*")), "")) for one in files]
    recipe = folder / "recipe.toml"
    folder.mkdir(parents=True, exist_ok=True)

    def qkv(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "qkv", *words],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        if done.returncode:
            raise SystemExit(f"qkv {' '.join(words)} failed:\n{done.stderr[-2000:]}")
        return done.stdout

    budget = ["--minutes", str(trial.minutes), "--out", str(recipe)]
    qkv("init", starter.task, written[0], "--test", written[1], *budget)
    qkv("train", str(recipe), f"run={folder / 'run'}", f"train.device={device}", *trial.overrides, "--json")
    limit = ["--limit", str(starter.limit)] if starter.limit else []
    scored = json.loads(qkv("eval", str(folder / "run"), "--device", device, "--samples", "0", *limit, "--json"))
    return {**trial._asdict(), "steps": trial.steps, "metrics": scored["metrics"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["shakespeare", "multi30k"])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--sizes", nargs="+", default=["128x2", "192x3", "256x4"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--optimizers", nargs="+", default=["adamw:0.002", "muon:0.005"], metavar="NAME:LR")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.names:
        parts: Sequence[list[Any]] = split_training(STARTERS[name].records(asked.data))
        for part, records in zip(("train", "test"), parts, strict=True):
            write_records(asked.out / f"{name}-{part}", records)
    results = asked.out / "search.jsonl"
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    known = {tuple(one[field] for field in Trial._fields) for one in done}
    choices = product(asked.minutes, asked.seeds, asked.batches, asked.optimizers, asked.sizes, asked.names)
    trials = [
        Trial(name, minutes, size, batch, optimizer.split(":")[0], float(optimizer.split(":")[1]), seed)
        for minutes, seed, batch, optimizer, size, name in choices
    ]

    def work(trial: Trial) -> None:
        result = run_trial(trial, asked.data, asked.out, asked.device)
        with results.open("a") as lines:
            lines.write(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)

    with ThreadPoolExecutor(asked.jobs) as pool:
        for waiting in [pool.submit(work, trial) for trial in trials if tuple(trial) not in known]:
            waiting.result()


if __name__ == "__main__":
    main()
