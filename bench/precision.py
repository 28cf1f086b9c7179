"""Does training in bfloat16 on a CPU cost quality? The last validation loss of each starter, in both precisions.

    python bench/precision.py --data DATA --out runs/precision [--steps 150] [--seeds 1 2 3] [NAME …]

`qkv init` writes the recipe of each starter for one minute, but all runs take the same number of steps. DATA is the
folder of bench/starters.py. A line says whether the losses in bfloat16 are within the range of the float32 losses.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from statistics import fmean

from starters import STARTERS, split_training, write_records

RECIPES = {"dates": "", "shakespeare-char-cpu": "tinyshakespeare/input.txt"}
"""Built-in recipes, with the file of the data folder that they train on."""
PRECISIONS = ("float32", "bfloat16")


def run_qkv(log: Path, *words: str) -> None:
    """Run a command; what it prints goes to the log."""
    with log.open("a") as file:
        subprocess.run([sys.executable, "-m", "qkv", *words], stdout=file, stderr=file, check=True)


def write_recipe(name: str, data: Path, folder: Path) -> str:
    """The recipe of a starter. The validation part is the last tenth of its training part."""
    if name in RECIPES:
        return name
    records, _ = STARTERS[name].records(data)
    if not isinstance(records[0], str):  # some files are sorted by class
        Random(0).shuffle(records)
    parts = zip(("train", "valid"), split_training((records, [])), strict=True)
    files = [write_records(folder / part, of_part) for part, of_part in parts]
    recipe = folder / "recipe.toml"
    if not recipe.exists():
        words = ("init", STARTERS[name].task, files[0], "--valid", files[1], "--minutes", "1", "--out", str(recipe))
        run_qkv(folder / "log.txt", *words)
    return str(recipe)


def last_loss(run: Path) -> float:
    """The loss of the last evaluation of a run."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return float([one["loss"] for one in found if one["kind"] == "eval"][-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*STARTERS, *RECIPES]))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs/precision"))
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of every recipe")
    asked = parser.parse_args()
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    for name in asked.names or [*STARTERS, *RECIPES]:
        folder = asked.out / name
        folder.mkdir(parents=True, exist_ok=True)
        recipe = write_recipe(name, asked.data, folder)
        losses: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
        for seed in asked.seeds:
            for precision in PRECISIONS:
                run = folder / f"{precision}-{seed}"
                if not (run / "model.safetensors").exists():
                    budget = ["train.minutes=0", f"train.steps={asked.steps}", f"train.num_threads={threads}"]
                    if RECIPES.get(name):
                        budget.append(f"data.train={asked.data / RECIPES[name]}")
                    how = [f"train.precision={precision}", f"train.seed={seed}", "train.device=cpu", *asked.set]
                    run_qkv(folder / "log.txt", "train", recipe, f"run={run}", *budget, *how)
                losses[precision].append(last_loss(run))
        low, high = min(losses["float32"]), max(losses["float32"])
        inside = sum(low <= loss <= high for loss in losses["bfloat16"])
        more = fmean(losses["bfloat16"]) - fmean(losses["float32"])
        shown = {precision: " ".join(f"{loss:.4f}" for loss in found) for precision, found in losses.items()}
        said = f"within: {inside} of {len(asked.seeds)}   mean difference {more:+.4f}"
        print(f"{name:<22} float32 {shown['float32']}   bfloat16 {shown['bfloat16']}   {said}", flush=True)


if __name__ == "__main__":
    main()
