"""BERT's pretraining, masked tokens and next sentences, on the English texts of other rows; then SST-2 and CoLA.

Data: the training texts of aeslc, wikitext2_eval, scitldr, cranfield, squadshifts, gpteacher (roleplay), multi30k,
ud_english_ewt, ncbi_disease_ner, tatoeba_eng_fra, sst and cola, without their labels: 28 MB. Sentences of the dev sets
of SST-2 and CoLA are left out. The model has BERT's architecture, with 6 layers of width 256 and 16,000 tokens in lower
case. `muon` and `adamw` are the optimizers of the pretraining.
Published: GLUE's test sets: SST-2 83.2 for BERT-Tiny and 85.9 for BERT-Mini, CoLA 0.0 for BERT-Tiny (README of
github.com/google-research/bert); these models saw far more text.
Goal: fine-tuned on SST-2 and CoLA, better than the same model without pretraining. Three seeds each.
"""

import json
import re
from itertools import product
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

from qkv.tasks import metrics
from rows import cola, encoders, frame, sst

PRETRAINING = """
[data]
max_length = 128

[tokenizer]
kind = "wordpiece"
vocab_size = 16000
lowercase = true

[model]
preset = "bert-tiny"
width = 256
layers = 6
heads = 4

[objective]
kind = "next_sentence"

[train]
steps = 5000
minutes = 5
batch_tokens = 32768
warmup = 0.1
weight_decay = 0.01
num_workers = 2
keep_checkpoints = 1
"""
VARIANTS = ("muon", "adamw")
LEARNING_RATES = {"muon": 4e-3, "adamw": 8e-4}
SHAPE = {"model.preset": "bert-tiny", "model.width": 256, "model.layers": 6, "model.heads": 4}
FINE_TUNING = {"train.lr": 2e-4, "train.head_lr_factor": 5.0}
NUM_SEEDS = 3
MAX_CHARACTERS = 20_000  # of a document: some e-mails are tables of numbers


def read_corpus(data: Path) -> list[str]:
    """The documents of all datasets; a sentence without context is a document of its own."""
    texts = [one["body"] for one in frame.read_jsonl(data / "aeslc/train.jsonl")]
    for part in ("valid", "test"):
        pages = re.split(r"\n = (?=[^=])", frame.read_text(data / f"wikitext2_eval/{part}.txt"))
        texts += [" ".join(page.split()) for page in pages]
    texts += [" ".join(one["source"]) for one in frame.read_jsonl(data / "scitldr/train.jsonl")]
    texts += [one["text"] for one in frame.read_jsonl(data / "cranfield/docs.jsonl")]
    for name in ("amazon_reviews_v1.0", "reddit_v1.0"):
        articles = json.loads(frame.read_text(data / f"squadshifts/{name}.json"))["data"]
        texts += [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    played = json.loads(frame.read_text(data / "gpteacher/roleplay-simple-deduped-roleplay-instruct.json"))
    texts += [f"{one['instruction']} {one['response']}" for one in played]
    treebank = frame.read_text(data / "ud_english_ewt/en_ewt-ud-train.conllu")
    for page in treebank.split("# newdoc id")[1:]:
        texts.append(" ".join(re.findall(r"^# text = (.*)$", page, re.MULTILINE)))
    for block in frame.read_text(data / "ncbi_disease_ner/train.tsv").split("\n\n"):
        texts.append(" ".join(line.split("\t")[0] for line in block.split("\n")))
    texts += frame.read_lines(data / "multi30k/train.en")
    texts += {line.split("\t")[0] for line in frame.read_lines(data / "tatoeba_eng_fra/fra.txt")}
    texts += [one["text"] for one in sst.read(data / "sst/stsa.fine.train.txt")]
    texts += [one["text"] for one in cola.read(data / "cola/in_domain_train.tsv")]
    return sorted({text.strip()[:MAX_CHARACTERS] for text in texts} - {""})


def read_tests(data: Path) -> dict[str, list[dict[str, str]]]:
    """The dev sets of both tasks."""
    dev = [record for part in cola.PARTS for record in cola.read(data / f"cola/{part}.tsv")]
    return {"sst2": sst.read(data / "sst/stsa.binary.dev.txt"), "cola": dev}


def remove_sentences(texts: list[str], sentences: list[str]) -> list[str]:
    """The texts that are none of the sentences, without regard to case, punctuation and spaces."""
    held_out = {simplify(sentence) for sentence in sentences}
    return [text for text in texts if simplify(text) not in held_out]


def simplify(text: str) -> str:
    """The letters and digits of a text."""
    return re.sub(r"\W+", "", text.lower())


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Pretrain once; then fine-tune on each task, with and without pretraining."""
    tests = read_tests(data)
    held_out = [one["text"] for records in tests.values() for one in records]
    texts = remove_sentences(encoders.sample(read_corpus(data), quick), held_out)
    Random(0).shuffle(texts)
    documents = [{"text": text} for text in texts]
    num_valid = max(8, len(texts) // 100)
    changes = encoders.write_parts(out, {"valid": documents[:num_valid], "train": documents[num_valid:]}, quick)
    changes |= {"train.optimizer": variant, "train.lr": LEARNING_RATES[variant]}
    pretrained = frame.train(PRETRAINING, out, changes, seed=seed, quick=quick, name="pretraining")
    parts = {"sst2": sst.read(data / "sst/stsa.binary.train.txt"), "cola": cola.read(data / "cola/in_domain_train.tsv")}
    starts = {"pretrained": {"model.from": pretrained.run}, "new": {**SHAPE, "tokenizer.from": pretrained.run}}
    files = {
        task: frame.write_jsonl(out / f"data/{task}.jsonl", encoders.sample(records, quick))
        for task, records in parts.items()
    }
    lines, seconds = [], []
    for number, task, start in product(range(1 if quick else NUM_SEEDS), parts, starts):
        changes = {"data.train": files[task], **FINE_TUNING, **starts[start]}
        name = f"{task}-{start}-{number}"
        trained = frame.train(encoders.CLASSIFIER, out, changes, seed=seed + number, quick=quick, name=name)
        seconds.append(trained.seconds)
        found = encoders.classify(trained.load(), encoders.sample(tests[task], quick), f"{task}, {start}")
        lines += [{**line, "seed": seed + number} for line in found]
        frame.write_jsonl(out / "predictions.jsonl", lines)  # after each run, in case that the next one is stopped
    return {**pretrained.to_dict(), "fine_tuning_seconds": [round(one, 1) for one in seconds], "documents": len(texts)}


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """SST-2: accuracy on dev; CoLA: Matthews' correlation × 100 on both dev files. Each seed, and their mean."""
    scores: dict[str, Any] = {}
    for part, lines in encoders.split_parts(predictions).items():
        seeds = sorted({line["seed"] for line in lines})
        metric = metrics.accuracy if part.startswith("sst2") else metrics.matthews
        each = [encoders.compute(metric, [line for line in lines if line["seed"] == seed]) for seed in seeds]
        scores[part] = {"mean": mean(one["value"] for one in each), "seeds": each}
    return scores
