"""Fine-tuning by the recipes of `qkv init --from`, in minutes of processor time, beside simple baselines.

    OMP_NUM_THREADS=1 python bench/fine_tune.py NAME… --start MINILM --data DATA --out runs --core-minutes 2
    … --set train.lr=1e-4 --set model.freeze='["embedding.*"]' --seeds 1 2      # variants of the recipe

Two core-minutes are about a minute on two idle cores. Other programs on the machine hardly change the result, because
the budget is `train.cpu_minutes`. DATA has a folder for each dataset, as
bench/published.py reads them. Each dataset is split here: the test parts are never read. A line has the score of the
fitted head (step 0) on the run's validation data, and the score of the final weights on the held-out part.
With --baselines, a line has the scores of a linear SVM of words and of a logistic regression on frozen embeddings.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.data.records import FileLocation, Record
from qkv.tasks.evaluate import evaluate
from qkv.tasks.starters.recipe import starter_recipe
from qkv.tasks.table import TASKS
from qkv.tasks.train import open_recipe, train
from qkv.train.run.folder import RunFolder
from rows.frame import hold_out, read_lines, read_text, write_jsonl
from starters import amazon, ncbi, sst2, stsb

Split = Callable[[Path], tuple[list[Any], list[Any]]]
HELD_OUT = 1000


def clinc(data: Path) -> tuple[list[Any], list[Any]]:
    parts = json.loads(read_text(data / "clinc150/data_full.json"))
    found = [[{"text": text, "label": label} for text, label in parts[part]] for part in ("train", "val")]
    return found[0], found[1]


def trec(data: Path) -> tuple[list[Any], list[Any]]:
    pairs = [line.split(" ", 1) for line in read_lines(data / "kim_sentence_sets/TREC.train.all.txt")]
    return hold_out([{"text": text, "label": f"class {label}"} for label, text in pairs], HELD_OUT)


def subj(data: Path) -> tuple[list[Any], list[Any]]:
    pairs = [line.split(" ", 1) for line in read_lines(data / "kim_sentence_sets/subj.all.txt")]
    return hold_out([{"text": text, "label": f"class {label}"} for label, text in pairs], HELD_OUT)


def emotion(data: Path) -> tuple[list[Any], list[Any]]:
    found = []
    for part in ("train", "val"):
        texts, labels = (read_lines(data / f"tweeteval/emotion/{part}_{kind}.txt") for kind in ("text", "labels"))
        found.append([{"text": a, "label": f"class {b}"} for a, b in zip(texts, labels, strict=True)])
    return found[0], found[1]


def conllu(data: Path) -> tuple[list[Any], list[Any]]:
    found = []
    for part in ("train", "dev"):
        blocks = read_text(data / f"ud_english_ewt/en_ewt-ud-{part}.conllu").strip().split("\n\n")
        rows = [[line.split("\t") for line in block.split("\n") if line[0].isdigit()] for block in blocks]
        words = [[row for row in one if row[0].isdigit()] for one in rows]
        found.append([{"tokens": [row[1] for row in one], "tags": [row[3] for row in one]} for one in words])
    return found[0], found[1]


def slots(data: Path) -> tuple[list[Any], list[Any]]:
    found = []
    for part in ("train", "valid"):
        texts, tags = (read_lines(data / f"atis_snips/atis.{part}.seq.{kind}") for kind in ("in", "out"))
        found.append([{"tokens": a.split(), "tags": b.split()} for a, b in zip(texts, tags, strict=True)])
    return found[0], found[1]


def diseases(data: Path) -> tuple[list[Any], list[Any]]:
    return hold_out(ncbi(data)[0], HELD_OUT)


DATASETS: dict[str, tuple[str, Split]] = {
    "clinc": ("classify", clinc),
    "sst2": ("classify", sst2),
    "trec": ("classify", trec),
    "subj": ("classify", subj),
    "emotion": ("classify", emotion),
    "ncbi": ("tag", diseases),
    "ewt": ("tag", conllu),
    "atis": ("tag", slots),
    "amazon": ("answer", amazon),
    "stsb": ("embed", stsb),
}


def run(name: str, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Write the recipe, train it, and score it on the held-out part."""
    task, split = DATASETS[name]
    folder = asked.out / "-".join([name, f"{asked.core_minutes:g}", str(seed), *asked.tag])
    shutil.rmtree(folder, ignore_errors=True)
    training, held_out = split(asked.data)
    file = write_jsonl(folder / "train.jsonl", training)
    text = starter_recipe(task, [str(file)], str(folder / "run"), base_model=asked.start, minutes=asked.core_minutes)
    recipe = folder / "recipe.toml"
    recipe.write_text(text)
    budget = ["train.minutes=0", f"train.cpu_minutes={asked.core_minutes}"]
    changes = [*budget, f"data.cache_dir={folder / 'cache'}", f"train.seed={seed}", "train.device=cpu", *asked.set]
    start = time.process_time()
    trained = train(open_recipe(recipe, changes))
    seconds = time.process_time() - start
    log = RunFolder(folder / "run").log_records()
    evaluations = [one for one in log if one["kind"] == "eval"]
    notes = [one["text"] for one in log if one["kind"] == "note" and "head was fitted" in one["text"]]
    last = max((folder / "run/checkpoints").glob("step-*"))
    found, found_last = (score(place, held_out[: asked.limit or None]) for place in (folder / "run", last))
    main = next(iter(found))
    shown = ["accuracy" if "accuracy" in evaluations[0] else main, "loss"]
    curve = [
        [one["step"], round(one["seconds"], 1), *(round(one[key], 4) for key in shown if key in one)]
        for one in evaluations
    ]
    shutil.rmtree(folder / "cache", ignore_errors=True)
    shutil.rmtree(folder / "run/checkpoints", ignore_errors=True)
    return {
        "name": name,
        "core_minutes": asked.core_minutes,
        "seed": seed,
        "changes": asked.set,
        "steps": trained.run_end.step,
        "core_seconds": round(seconds),
        "fit": notes,
        "curve": curve,
        "held_out": found,
        "held_out_last": found_last,
    }


def score(folder: Path, records: list[Any]) -> dict[str, float]:
    """The scores of a trained model."""
    model = qkv.load(folder)
    options = {"check_classes": False} if "label" in records[0] else {}
    found = evaluate(model.network, model.tokenizer, model.config, as_records(records), max_samples=0, **options)
    return {name: round(value, 4) for name, value in found.metrics.items()}


def as_records(values: list[Any]) -> list[Record]:
    """Values as records with the fields of their task."""
    flat = [one if "answers" not in one else flat_answers(one) for one in values]
    return [Record(one, FileLocation("test", number)) for number, one in enumerate(flat, 1)]


def flat_answers(one: dict[str, Any]) -> dict[str, Any]:
    """The fields of a question, as they are read from a file."""
    answers = one["answers"]
    return {**one, "answers": answers["text"], "starts": answers["answer_start"]}


def task_baselines(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The baselines of the task itself, such as the sentence that is nearest to a question."""
    training, held_out = DATASETS[name][1](asked.data)
    records, tests = as_records(training), as_records(held_out[: asked.limit or None])
    scorer = TASKS[DATASETS[name][0]].make_scorer(qkv.load(asked.start).config, tests)
    expected = [scorer.expected(one) for one in tests]
    found = {
        key: round(scorer.metrics[scorer.metric](baseline.predict(scorer, records, tests), expected), 4)
        for key, baseline in scorer.baselines.items()
    }
    return {"name": name, "metric": scorer.metric, "held_out": len(tests), **found}


def baselines(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """A linear SVM of words, and a logistic regression on the embeddings of the model."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    training, held_out = DATASETS[name][1](asked.data)
    (texts, labels), (tests, expected) = (
        ([one["text"] for one in part], [one["label"] for one in part]) for part in (training, held_out)
    )
    result: dict[str, Any] = {"name": name, "examples": len(texts), "held_out": len(tests)}
    start = time.process_time()
    svm = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LinearSVC()).fit(texts, labels)
    result["svm"] = round(float(svm.score(tests, expected)), 4), round(time.process_time() - start, 1)
    start = time.process_time()
    model = qkv.load(asked.start)
    vectors, others = (np.stack([one.numpy() for one in model.embed(part)]) for part in (texts, tests))
    embedded = time.process_time() - start
    for strength in (1, 10, 100):
        linear = LogisticRegression(C=strength, max_iter=300).fit(vectors, labels)
        result[f"logistic C={strength}"] = round(float(linear.score(others, expected)), 4)
    return result | {"embedding_seconds": round(embedded, 1), "seconds": round(time.process_time() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(DATASETS))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--start", required=True, help="a model folder to begin from")
    parser.add_argument("--core-minutes", type=float, default=2.0)
    parser.add_argument("--set", action="append", default=[], help="key=value: a change of the recipe")
    parser.add_argument("--tag", action="append", default=[], help="a word for the folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, default=0, help="score at most this number of held-out records")
    parser.add_argument("--baselines", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.names or DATASETS:
        compare = baselines if DATASETS[name][0] == "classify" else task_baselines
        results = [compare(name, asked)] if asked.baselines else (run(name, seed, asked) for seed in asked.seeds)
        for result in results:
            print(json.dumps(result), flush=True)
            with (asked.out / "fine_tune.jsonl").open("a") as lines:
                lines.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    sys.exit(main())
