"""The defaults of `qkv init` on real files: what a user reaches in a given time on two cores of a CPU.

    python bench/starters.py --data DATA --out runs --minutes 1 5 20                     # everything: about six hours
    python bench/starters.py sst2 clinc --start MINILM --minutes 5 --data DATA --out runs
    python bench/starters.py --jobs 6 …                      # side by side, each on two cores of its own
    python bench/starters.py --minutes 1 5 --steps-of 20 …   # for 20 minutes: as many steps, but on a GPU
    python bench/starters.py shakespeare --development --try "" "model.width=256 model.layers=4" "train.lr=2e-3"

DATA has a folder for each dataset, as bench/published.py reads them. Each line that is printed is one run: `qkv init`
for the file and the time, `qkv train`, and `qkv eval` of the test part. With --start, the runs begin from that model.
OUT/starters.jsonl collects them. Only `qkv train` is timed.

With --steps-of, the recipe of a long budget trains for one minute on two cores; then a GPU trains it in float32 for as
many steps as the cores would make in the whole budget.

To search for better defaults, --try names changes of the recipe, each of which is tried. With --development, a tenth of
the training part is left out of training and scored, so that no test part steers the search.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from rows.frame import read_jsonl, read_lines, read_text, write_jsonl

CORES = 2
GPU_RUNS = 2  # at the same time


class Starter(NamedTuple):
    """A task, the function that makes its training and test records, and how many of the test records are scored."""

    task: str
    records: Callable[[Path], tuple[list[Any], list[Any]]]
    limit: int = 0  # all
    from_model: bool = True  # whether a trained encoder helps


def sst2(data: Path) -> tuple[list[Any], list[Any]]:
    parts = [read_lines(data / f"sst/stsa.binary.{part}.txt") for part in ("train", "dev")]
    found = [[{"label": line[0], "text": line[2:]} for line in part] for part in parts]
    return found[0], found[1]


def clinc(data: Path) -> tuple[list[Any], list[Any]]:
    parts = json.loads(read_text(data / "clinc150/data_full.json"))
    found = [[{"text": text, "label": label} for text, label in parts[part]] for part in ("train", "test")]
    return found[0], found[1]


def ncbi(data: Path) -> tuple[list[Any], list[Any]]:
    def sentences(part: str) -> list[Any]:
        blocks = read_text(data / f"ncbi_disease_ner/{part}.tsv").strip().split("\n\n")
        words = [[line.split("\t") for line in block.split("\n")] for block in blocks]
        return [{"tokens": [w[0] for w in one], "tags": [w[-1] for w in one]} for one in words]

    return sentences("train"), sentences("test")


def amazon(data: Path) -> tuple[list[Any], list[Any]]:
    articles = json.loads(read_text(data / "squadshifts/amazon_reviews_v1.0.json"))["data"]
    parts: tuple[list[Any], list[Any]] = [], []
    for number, article in enumerate(articles):
        for paragraph in article["paragraphs"]:
            for one in paragraph["qas"]:
                answers = {"text": [a["text"] for a in one["answers"]]}
                answers["answer_start"] = [a["answer_start"] for a in one["answers"]]
                record = {"context": paragraph["context"], "question": one["question"], "answers": answers}
                parts[number % 10 == 9].append(record)
    return parts


def multi30k(data: Path) -> tuple[list[Any], list[Any]]:
    found = []
    for part in ("train", "test_2016_flickr"):
        sides = [read_lines(data / f"multi30k/{part}.{language}") for language in ("en", "de")]
        found.append([{"source": en, "target": de} for en, de in zip(*sides, strict=True)])
    return found[0], found[1]


def aeslc(data: Path) -> tuple[list[Any], list[Any]]:
    found = []
    for part in ("train", "dev"):
        lines = read_jsonl(data / f"aeslc/{part}.jsonl")
        subjects = [one.get("subject") or one.get("subject_line") for one in lines]
        found.append([{"source": one["body"], "target": s} for one, s in zip(lines, subjects, strict=True) if s])
    return found[0], found[1]


def stsb(data: Path) -> tuple[list[Any], list[Any]]:
    import csv

    found = []
    for part in ("train", "dev"):
        rows = csv.reader(read_lines(data / f"stsb/stsb-en-{part}.csv"))
        found.append([{"first": a, "second": b, "score": float(score)} for a, b, score in rows])
    return found[0], found[1]


def shakespeare(data: Path) -> tuple[list[Any], list[Any]]:
    lines = read_lines(data / "tinyshakespeare/input.txt")
    cut = len(lines) * 9 // 10
    return lines[:cut], lines[cut:]


STARTERS = {
    "sst2": Starter("classify", sst2),
    "clinc": Starter("classify", clinc),
    "ncbi": Starter("tag", ncbi),
    "amazon": Starter("answer", amazon, 300),
    "stsb": Starter("embed", stsb),
    "multi30k": Starter("translate", multi30k, 300, from_model=False),
    "aeslc": Starter("summarise", aeslc, 200, from_model=False),
    "shakespeare": Starter("language", shakespeare, from_model=False),
}


def write_records(path: Path, records: list[Any]) -> str:
    """Write lines to a text file, and other records to a file of JSON lines; the name of the file."""
    if not isinstance(records[0], str):
        return str(write_jsonl(path.with_suffix(".jsonl"), records))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".txt").write_text("\n".join(records) + "\n")
    return str(path.with_suffix(".txt"))


class Cores:
    """The cores of this machine in pairs, one for each run at the same time."""

    def __init__(self, first: int, num_pairs: int) -> None:
        self.pairs: SimpleQueue[list[int]] = SimpleQueue()
        for start in range(first, first + CORES * num_pairs, CORES):
            self.pairs.put(list(range(start, start + CORES)))

    @contextmanager
    def take(self) -> Iterator[list[int]]:
        """Two cores that no other run uses."""
        pair = self.pairs.get()
        try:
            yield pair
        finally:
            self.pairs.put(pair)


class Run(NamedTuple):
    """One run: a starter, the model that it begins from, and its budget."""

    name: str
    start: str
    minutes: float
    on_gpu: bool  # train on a GPU, with the steps that two cores would make
    changes: str = ""  # of the recipe
    development: bool = False  # score a part of the training data

    def describe(self) -> dict[str, Any]:
        """What the result says about the run."""
        start = "model" if self.start else "scratch"
        said = {"name": self.name, "task": STARTERS[self.name].task, "start": start, "minutes": self.minutes}
        return {**said, "changes": self.changes, "development": self.development}

    @property
    def folder(self) -> str:
        """The name of its folder."""
        changes = "".join(f"-{word.partition('.')[2]}" for word in self.changes.split())
        where = "-gpu" * self.on_gpu + "-development" * self.development
        return f"{self.name}-{'model' if self.start else 'scratch'}-{self.minutes:g}{where}{changes}"


def split_training(parts: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
    """The training part without its last tenth, and this tenth."""
    cut = len(parts[0]) * 9 // 10
    return parts[0][:cut], parts[0][cut:]


def run_starter(run: Run, data: Path, out: Path, cores: Cores) -> dict[str, Any]:
    """Write the recipe, train it, and score it."""
    starter = STARTERS[run.name]
    folder = out / run.folder
    result_file = folder / "result.json"
    if result_file.exists():
        done: dict[str, Any] = json.loads(result_file.read_text())
        return done
    parts = split_training(starter.records(data)) if run.development else starter.records(data)
    files = [write_records(folder / part, one) for part, one in zip(("train", "test"), parts, strict=True)]
    recipe, trained = str(folder / "recipe.toml"), folder / "run"
    log = (folder / "log.txt").open("a")

    def qkv(used: list[int], *words: str) -> Any:
        """Run a command on these cores and no GPU; without cores, on all of them and a GPU. What it prints as JSON."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(CORES)} | ({"CUDA_VISIBLE_DEVICES": ""} if used else {})
        process = subprocess.Popen(
            [sys.executable, "-m", "qkv", *words, "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, used or range(os.cpu_count() or 1)),
        )
        said, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"qkv {' '.join(words)} failed; see {folder / 'log.txt'}")
        return json.loads(said) if words[0] != "init" else said

    on_cpu = [*run.changes.split(), "train.device=cpu", f"train.num_threads={CORES}"]
    scoring = ["--samples", "0", *(["--limit", str(starter.limit)] if starter.limit else [])]
    with cores.take() as pair:
        if not Path(recipe).exists():
            chosen = ["--from", run.start] if run.start else []
            budget = ["--minutes", str(run.minutes), "--out", recipe]
            qkv(pair, "init", starter.task, files[0], "--test", files[1], *budget, *chosen)
        begin = time.perf_counter()
        if run.on_gpu:
            told = qkv(pair, "train", recipe, f"run={folder / 'first-minute'}", *on_cpu, "train.minutes=1")
        else:
            told = qkv(pair, "train", recipe, f"run={trained}", *on_cpu)
            seconds = time.perf_counter() - begin
            scored = qkv(pair, "eval", str(trained), *scoring)
    if run.on_gpu:
        budget = ["train.minutes=0", f"train.steps={round(told['step'] * run.minutes)}"]
        begin = time.perf_counter()
        told = qkv(
            [],
            "train",
            recipe,
            f"run={trained}",
            "train.device=cuda",
            "train.precision=float32",
            *budget,
            *run.changes.split(),
        )
        seconds = time.perf_counter() - begin
        scored = qkv([], "eval", str(trained), "--device", "cuda", *scoring)
    result = {**run.describe(), "seconds": round(seconds), "step": told["step"], "metrics": scored["metrics"]}
    result |= {"on_gpu": run.on_gpu} | ({"baseline": scored["baseline"]} if "baseline" in scored else {})
    result_file.write_text(json.dumps(result) + "\n")
    with (out / "starters.jsonl").open("a") as lines:
        lines.write(json.dumps(result) + "\n")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(STARTERS))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--start", default="", help="a model folder to begin from")
    parser.add_argument("--minutes", type=float, nargs="*", default=[1.0, 5.0, 20.0])
    parser.add_argument("--steps-of", type=float, nargs="+", default=[], metavar="MINUTES", help="train on a GPU")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, each on two cores")
    parser.add_argument("--first-core", type=int, default=0)
    parser.add_argument("--try", dest="changes", nargs="+", default=[""], metavar="CHANGES", help="of the recipe")
    parser.add_argument("--development", action="store_true", help="score a part of the training data")
    asked = parser.parse_args()
    names = asked.names or [name for name, one in STARTERS.items() if one.from_model or not asked.start]
    cores = Cores(asked.first_core, asked.jobs)
    budgets = [(minutes, False) for minutes in asked.minutes] + [(minutes, True) for minutes in asked.steps_of]
    runs = [
        Run(name, asked.start, minutes, on_gpu, changes, asked.development)
        for minutes, on_gpu in budgets
        for changes in asked.changes
        for name in names
    ]

    def work(run: Run) -> None:
        print(json.dumps(run_starter(run, asked.data, asked.out, cores)), flush=True)

    runs.sort(key=lambda run: 1 if run.on_gpu else run.minutes)  # by their time on the cores
    with ThreadPoolExecutor(asked.jobs + GPU_RUNS * bool(asked.steps_of)) as pool:
        for waiting in [pool.submit(work, run) for run in runs]:
            waiting.result()


if __name__ == "__main__":
    main()
