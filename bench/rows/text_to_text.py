"""One text-to-text model for four tasks, named by a prefix as in T5, and a model of the same size for each task.

Data: multi30k (En→De, raw text), sst (stsa.binary; its dev part is the test, validation comes from training),
sigmorphon2017 (English, high) and aeslc, as the rows of these names read them. `together` trains one model on all.
The other rows train one task each, for its share of the steps.
Published: nothing for this size.
Goal: each task of the shared model within one point of its own model.
"""

from pathlib import Path
from typing import Any

from rows import frame, sigmorphon2017, summarise

TASKS = ("translate", "classify", "inflect", "summarise")
VARIANTS = ("together", *TASKS)
STEPS = {"translate": 1600, "classify": 300, "inflect": 800, "summarise": 1000}
"""The steps of each task's own model; the shared model has their sum, and draws each task with its share."""
RECIPE = """
[data]
max_length = 384
max_source_length = 1024
too_long = "truncate"

[tokenizer]
kind = "byte-bpe"
vocab_size = 10_000

[model]
width = 256
heads = 4
ffn_width = 684
layers = 4
dropout = 0.2

[objective]
kind = "seq2seq"
label_smoothing = 0.1

[train]
batch_tokens = 20_480
optimizer = "muon"
lr = 3e-3
weight_decay = 0.1
schedule = "linear"
num_workers = 2
eval_examples = 300
metric = "chrf"
ema_decay = 0.995
"""
TRANSLATION_TEST = "test_2016_flickr"
LABELS = {"0": "negative", "1": "positive"}


def read(data: Path, task: str) -> dict[str, list[dict[str, str]]]:
    """The parts of a task, each source with its prefix."""
    if task == "translate":
        parts = {"train": "train", "valid": "val", "test": TRANSLATION_TEST}
        sides = {
            part: [frame.read_lines(data / f"multi30k/{name}.{language}") for language in ("en", "de")]
            for part, name in parts.items()
        }
        found = {part: list(zip(*pair, strict=True)) for part, pair in sides.items()}
        prefix = "translate English to German: "
    elif task == "classify":
        lines = {part: frame.read_lines(data / f"sst/stsa.binary.{part}.txt") for part in ("train", "dev")}
        pairs = {part: [(line[2:], LABELS[line[0]]) for line in part_lines] for part, part_lines in lines.items()}
        train, valid = frame.hold_out(pairs["train"], 300)
        found = {"train": train, "valid": valid, "test": pairs["dev"]}
        prefix = "sentiment: "
    elif task == "inflect":
        folder = data / "sigmorphon2017"
        train, valid = frame.hold_out(sigmorphon2017.read(folder / "english-train-high"), 250)
        test = sigmorphon2017.read(sigmorphon2017.find_test(data, "english"))
        records = {"train": train, "valid": valid, "test": test}
        found = {part: [(one["source"], one["target"]) for one in several] for part, several in records.items()}
        prefix = "inflect: "
    else:
        records = summarise.read_aeslc(data)
        found = {part: [(one["source"], one["target"]) for one in several] for part, several in records.items()}
        prefix = "summarize: "
    return {
        part: [{"source": prefix + source, "target": target} for source, target in pairs if source and target]
        for part, pairs in found.items()
    }


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Train one model on one task or on all, and predict the test parts with beam 4."""
    tasks = TASKS if variant == "together" else (variant,)
    parts = {task: {p: frame.shorten(r, quick) for p, r in read(data, task).items()} for task in tasks}
    files = {task: frame.write_parts(out, f"data/{task}", train=parts[task]["train"]) for task in tasks}
    valid = [record for task in tasks for record in parts[task]["valid"][:250]]
    changes: dict[str, Any] = frame.write_parts(out, valid=valid)
    if variant == "together":
        for task in tasks:
            changes[f"data.mix.{task}"] = {"train": str(files[task]["data.train"]), "weight": float(STEPS[task])}
    else:
        changes |= files[variant]
    changes["train.steps"] = sum(STEPS[task] for task in tasks)
    trained = frame.train(RECIPE, out, changes, seed=seed, quick=quick)
    predictions = [
        {"task": task, **line}
        for task in tasks
        for line in frame.generate(trained, parts[task]["test"], beam=4, batch_size=128, max_tokens=128)
    ]
    frame.write_jsonl(out / "predictions.jsonl", predictions)
    names = {
        "translate": TRANSLATION_TEST,
        "classify": "stsa.binary.dev",
        "inflect": sigmorphon2017.find_test(data, "english").name,
        "summarise": f"aeslc/{summarise.find_test(data, 'aeslc')}.jsonl",
    }
    return {**trained.to_dict(), "tested on": {task: names[task] for task in tasks}}


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """BLEU of the translations, accuracy of classes and forms, ROUGE-L of the summaries, all in per cent."""
    scores: dict[str, Any] = {}
    for task in dict.fromkeys(line["task"] for line in predictions):
        lines = [line for line in predictions if line["task"] == task]
        if task == "translate":
            scores["translate, BLEU"] = frame.compute("sacrebleu", lines)
        elif task == "summarise":
            scores["summarise, ROUGE-L"] = frame.rouge(lines)["ROUGE-L"]
        else:
            scores[f"{task}, accuracy"] = frame.exact_match(lines)
    return scores
