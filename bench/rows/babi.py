"""Questions about stories (bAbI, 20 tasks), one encoder for all tasks that classifies the answer.

Data: babi/babi_en_and_en10k.tar.xz. `10k` has 10,000 training questions of each task, except task 3, for which only the
1,000 of `en` are there; `10k-shared` has the same data and one block whose weights all layers share, as a Universal
Transformer has; `1k` has 1,000 of each. Test: 1,000 questions of each task. The supporting facts are not used.
Published: none that we have checked.
Goal: the accuracy of each task; a task counts as solved at 95 %.
"""

import io
import re
import tarfile
from pathlib import Path
from typing import Any

from rows import frame

VARIANTS = ("10k", "10k-shared", "1k")
NUM_TASKS = 20
EXTRA = re.compile("minimum|quarter|short_")  # files of the archive that are not part of the 20 tasks
RECIPE = """
[data]
max_length = 2048
too_long = "truncate"

[tokenizer]
kind = "word"
vocab_size = 400
min_frequency = 1

[model]
width = 256
heads = 8
ffn_width = 684
layers = 6
dropout = 0.1
attention_dropout = 0.0

[objective]
kind = "classification"

[train]
steps = 1500
batch_tokens = 65_536
optimizer = "muon"
lr = 4e-3
weight_decay = 0.01
warmup = 100
schedule = "linear"
num_workers = 4
eval_every = 500
eval_examples = 1000
ema_decay = 0.995
"""
CHANGES: dict[str, dict[str, Any]] = {
    "10k": {},
    "10k-shared": {"model.num_layer_groups": 1, "model.layers": 8},
    "1k": {"train.steps": 800, "model.dropout": 0.2},
}


def read(text: str, task: int) -> list[dict[str, Any]]:
    """The questions of a file: the question, the story so far, and the answer."""
    records, story = [], []
    for line in text.splitlines():
        number, _, rest = line.strip().partition(" ")
        if number == "1":
            story = []
        if "\t" in rest:
            question, answer, _ = rest.split("\t")
            records.append({"task": task, "text": split(question), "second": " ".join(story), "label": answer})
        else:
            story.append(split(rest))
    return records


def split(sentence: str) -> str:
    """The words of a sentence in lower case, and its full stop, between spaces."""
    return " ".join(re.findall(r"[\w']+|[.?,]", sentence.lower()))


def read_archive(path: Path) -> dict[tuple[str, int, str], list[dict[str, Any]]]:
    """The questions of each folder, task and part."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = re.fullmatch(r"(en|en-10k)/qa(\d+)_(.*)_(train|test)\.txt", member.name.removeprefix("./"))
            if name and not EXTRA.search(member.name):
                file = archive.extractfile(member)
                assert file is not None
                text = io.TextIOWrapper(file, encoding="utf-8").read()
                found[name[1], int(name[2]), name[4]] = read(text, int(name[2]))
    return found


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Train on all tasks together, and classify the test questions."""
    files = read_archive(data / "babi/babi_en_and_en10k.tar.xz")
    folder = "en" if variant == "1k" else "en-10k"
    tasks = range(1, NUM_TASKS + 1)
    train = [
        record
        for task in tasks
        for record in (files.get((folder, task, "train")) or files["en", task, "train"])[: 20 if quick else None]
    ]
    test = [record for task in tasks for record in files[folder, task, "test"][: 4 if quick else None]]
    known = {record["label"] for record in train}
    train, valid = frame.hold_out(train, 2000)
    changes = frame.write_parts(out, train=train, valid=valid) | CHANGES[variant]
    trained = frame.train(RECIPE, out, changes, seed=seed, quick=quick)
    model = trained.load()
    found = model.classify([(one["text"], one["second"]) for one in test], batch_size=128, too_long="truncate", top=1)
    predictions = [
        {"task": record["task"], "source": record["text"], "prediction": one.label, "references": [record["label"]]}
        for record, one in zip(test, found, strict=True)
    ]
    frame.write_jsonl(out / "predictions.jsonl", predictions)
    unknown = sum(record["label"] not in known for record in test)
    return {**trained.to_dict(), "answers that do not occur in training": unknown}


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean accuracy of the tasks, the number of tasks at 95 % or more, and the accuracy of each task."""
    tasks = {
        task: frame.exact_match([line for line in predictions if line["task"] == task])
        for task in sorted({line["task"] for line in predictions})
    }
    solved = sum(one["value"] >= 95 for one in tasks.values())
    each = {f"task {task}": one for task, one in tasks.items()}
    return {"mean accuracy": frame.exact_match(predictions), "tasks solved": solved, **each}
