"""Train what others have published, and score it as they did: the table of docs/results.md.

    python bench/published.py multi30k --data data/multi30k --seeds 1 2 3
    python bench/published.py shakespeare-char --data input.txt
    python bench/published.py shakespeare-char-cpu --data input.txt

`multi30k` needs the files that examples/multi30k_tokenise.py makes. Runs go on where they were stopped. With --together
the seeds share the machine: on a GPU that three small models do not fill, that is faster. Each run's curves are drawn
into one picture.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from qkv.render.learning_curves import draw_curves

METRICS = ("tokenised_bleu", "bleu")


def qkv(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "qkv", *words, "--json"], stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = process.communicate()
    if process.returncode:
        raise SystemExit(process.returncode)
    found: dict[str, Any] = json.loads(said)
    return found


def trained(recipe: str, data: Path, seeds: list[int], out: Path, changes: list[str], together: bool) -> dict[int, Any]:
    """Train a recipe with each seed; what each run says of itself, and its seconds."""
    files = [f"data.train={data}"]
    if recipe == "multi30k":
        files = [f"data.{part}={{source='{data}/{name}.en',target='{data}/{name}.de'}}"
                 for part, name in (("train", "train"), ("valid", "val"))]  # fmt: skip
    found: dict[int, Any] = {}
    waiting: dict[int, subprocess.Popen[str]] = {}
    start = time.time()
    for seed in seeds:
        words = ["train", recipe, *files, f"train.seed={seed}", f"run={out / f'{recipe}-{seed}'}", *changes]
        waiting[seed] = qkv(*words)
        if not together:
            found[seed] = answer(waiting.pop(seed))
    found |= {seed: answer(process) for seed, process in waiting.items()}
    print(f"{recipe}: {len(seeds)} runs in {time.time() - start:.0f} s", flush=True)
    return found


def translating(run: Path, data: Path, part: str, beam: int) -> subprocess.Popen[str]:
    """A run's translations of a part of the data, being scored."""
    files = [f"source={data / part}.en", f"target={data / part}.de"]
    metrics = [word for name in METRICS for word in ("--metric", name)]
    return qkv("eval", str(run), *files, "--beam", str(beam), *metrics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=["multi30k", "shakespeare-char", "shakespeare-char-cpu"])
    parser.add_argument("changes", nargs="*", help="key=value for the recipe, as train.steps=8000")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--together", action="store_true", help="all seeds at once")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    asked = parser.parse_args()
    rows = []
    runs = trained(asked.recipe, asked.data, asked.seeds, asked.out, asked.changes, asked.together)
    for seed, said in runs.items():
        row: dict[str, Any] = {"seed": seed, "seconds": said["seconds"], "step": said["step"], **said["metrics"]}
        if asked.recipe == "multi30k":
            cases = [(part, beam) for part in ("test_2016_flickr", "val") for beam in (5, 1)]
            scored = {case: translating(Path(said["run"]), asked.data, *case) for case in cases}
            row |= {f"{part}, beam {beam}": answer(done)["metrics"] for (part, beam), done in scored.items()}
        rows.append(row)
        print(json.dumps(row), flush=True)
    (asked.out / f"{asked.recipe}.json").write_text(json.dumps(rows, indent=2) + "\n")
    folders = {f"seed {seed}": Path(said["run"]) for seed, said in runs.items()}
    draw_curves(folders, asked.out / f"{asked.recipe}.svg", title=asked.recipe)


if __name__ == "__main__":
    main()
