"""The defaults of `qkv init` on real files: what a user reaches in a given time on two cores of a CPU.

    python bench/starters.py --data DATA --out runs --minutes 1 5 20                     # everything: about six hours
    python bench/starters.py sst2 clinc --start MINILM --minutes 5 --data DATA --out runs
    python bench/starters.py --jobs 6 …                      # side by side, each on two cores of its own

DATA has a folder for each dataset, as bench/published.py reads them. Each line that is printed is one run: `qkv init`
for the file and the time, `qkv train`, and `qkv eval` of the test part. With --start, the runs begin from that model.
OUT/starters.jsonl collects them. Only `qkv train` is timed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from rows.frame import read_jsonl, read_lines, read_text, write_jsonl

CORES = 2


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


def run_starter(name: str, start: str, minutes: float, data: Path, out: Path, cores: list[int]) -> dict[str, Any]:
    """Write the recipe, train it on these cores, and score it."""
    starter = STARTERS[name]
    folder = out / f"{name}-{'model' if start else 'scratch'}-{minutes:g}"
    result_file = folder / "result.json"
    if result_file.exists():
        done: dict[str, Any] = json.loads(result_file.read_text())
        return done
    parts = starter.records(data)
    files = [write_records(folder / part, one) for part, one in zip(("train", "test"), parts, strict=True)]
    recipe, run = folder / "recipe.toml", folder / "run"
    log = (folder / "log.txt").open("a")

    def qkv(*words: str) -> str:
        environment = {**os.environ, "OMP_NUM_THREADS": str(len(cores)), "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(
            [sys.executable, "-m", "qkv", *words, "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        said, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"qkv {' '.join(words)} failed; see {folder / 'log.txt'}")
        return said

    if not recipe.exists():
        chosen = ["--from", start] if start else []
        qkv(
            "init", starter.task, files[0], "--test", files[1], "--minutes", str(minutes), "--out", str(recipe), *chosen
        )
    begin = time.perf_counter()
    told = json.loads(qkv("train", str(recipe), f"run={run}", "train.device=cpu", f"train.num_threads={len(cores)}"))
    seconds = time.perf_counter() - begin
    limit = ["--limit", str(starter.limit)] if starter.limit else []
    scored = json.loads(qkv("eval", str(run), "--samples", "0", *limit))
    result = {"name": name, "task": starter.task, "start": "model" if start else "scratch", "minutes": minutes}
    result |= {"seconds": round(seconds), "step": told["step"], "metrics": scored["metrics"]}
    if "baseline" in scored:
        result["baseline"] = scored["baseline"]
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
    parser.add_argument("--minutes", type=float, nargs="+", default=[1.0, 5.0, 20.0])
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, each on two cores")
    parser.add_argument("--first-core", type=int, default=0)
    asked = parser.parse_args()
    names = asked.names or [name for name, one in STARTERS.items() if one.from_model or not asked.start]
    slots: SimpleQueue[list[int]] = SimpleQueue()
    for job in range(asked.jobs):
        first = asked.first_core + CORES * job
        slots.put(list(range(first, first + CORES)))

    def work(job: tuple[str, float]) -> None:
        cores = slots.get()
        try:
            print(json.dumps(run_starter(job[0], asked.start, job[1], asked.data, asked.out, cores)), flush=True)
        finally:
            slots.put(cores)

    with ThreadPoolExecutor(asked.jobs) as pool:
        for waiting in [pool.submit(work, (name, minutes)) for minutes in asked.minutes for name in names]:
            waiting.result()


if __name__ == "__main__":
    main()
