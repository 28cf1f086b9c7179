"""Summaries: subject lines of e-mails (AESLC) and one sentence about a paper (SciTLDR), trained from scratch.

Data: aeslc/train.jsonl, and test.jsonl if it is there, else dev.jsonl, which is then used for nothing else; bodies are
truncated to 220 words, and the reference is the subject line. scitldr/{train,dev,test}.jsonl: abstracts; a summary is
compared with its best reference. DATA-scratch is an encoder-decoder; DATA-spans and DATA-denoising are this model after
span corruption (T5) or denoising (BART) of the training documents, and nothing else; DATA-decoder is a decoder that was
first trained as a language model of the same documents.
Published: PEGASUS-large on AESLC: ROUGE-1/2/L 37.68/21.25/36.51 (README of google-research/pegasus), a large model that
was pretrained on other text.
Goal: better ROUGE after pretraining on the same text than without.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.data.encode.chat import EncodeChat
from qkv.decode import GenerationOptions
from qkv.tasks.run.generate import generate_batched
from qkv.tasks.text_model import TextModel
from rows import frame

VARIANTS = tuple(
    f"{data}-{start}" for data in ("aeslc", "scitldr") for start in ("scratch", "spans", "denoising", "decoder")
)
MAX_WORDS = {"aeslc": 220, "scitldr": 300}
ENCODER_DECODER = """
[data]
max_length = 256
max_source_length = 1024
too_long = "truncate"

[tokenizer]
kind = "byte-bpe"
vocab_size = 8000

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
final = "best"
max_eval_fraction = 0.3
"""
PRETRAINING = """
[data]
max_length = 512

[tokenizer]
kind = "byte-bpe"
vocab_size = 8000

[model]
width = 256
heads = 4
ffn_width = 684
layers = 4
dropout = 0.1

[objective]
kind = "span_corruption"
random_offset = true

[train]
batch_tokens = 20_480
optimizer = "muon"
lr = 4e-3
weight_decay = 0.1
schedule = "linear"
num_workers = 2
"""
DECODER = """
[data]
max_length = 1024

[tokenizer]
kind = "byte-bpe"
vocab_size = 8000

[model]
width = 256
heads = 4
ffn_width = 684
layers = 8
max_positions = 1024
dropout = 0.2

[objective]
kind = "causal_lm"

[train]
batch_tokens = 20_480
optimizer = "muon"
lr = 3e-3
weight_decay = 0.1
schedule = "linear"
num_workers = 2
metric = "loss"
"""
STEPS = {"aeslc": {"pretraining": 2000, "training": 1200}, "scitldr": {"pretraining": 800, "training": 300}}
FINE_TUNING_LR = 1.5e-3


def find_test(data: Path, name: str) -> str:
    """The name of the test part: test, or dev if there is no test file."""
    return "test" if any((data / name).glob("test.jsonl*")) else "dev"


def read_aeslc(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Bodies and subject lines. Without test.jsonl, dev.jsonl is the test, and validation comes from train.jsonl."""
    test = find_test(data, "aeslc")

    def read(part: str) -> list[dict[str, Any]]:
        records = frame.read_jsonl(data / f"aeslc/{part}.jsonl")
        return [make_record("aeslc", one["body"], [one["subject"]]) for one in records]

    train, valid = (read("train"), read("dev")) if test == "test" else frame.hold_out(read("train"), 500)
    known = {one["source"] for one in train}  # one in ten e-mails occurs twice in train.jsonl
    valid = [one for one in valid if one["source"] not in known]
    return {"train": train, "valid": valid, "test": read(test)}


def read_scitldr(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Abstracts and their summaries, of which the first is by an author."""
    parts = {"train": "train", "valid": "dev", "test": "test"}
    return {
        part: [
            make_record("scitldr", " ".join(one["source"]), one["target"])
            for one in frame.read_jsonl(data / f"scitldr/{name}.jsonl")
        ]
        for part, name in parts.items()
    }


READERS: dict[str, Callable[[Path], dict[str, list[dict[str, Any]]]]] = {"aeslc": read_aeslc, "scitldr": read_scitldr}


def make_record(name: str, document: str, summaries: list[str]) -> dict[str, Any]:
    """A document that is not too long, with its summary and all references."""
    references = [" ".join(one.split()) for one in summaries]
    words = document.split()[: MAX_WORDS[name]]
    return {"source": " ".join(words), "target": references[0], "references": references}


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Pretrain if the variant says so, train, and summarise the test documents with beam 4."""
    name, _, start = variant.partition("-")
    parts = {
        part: [one for one in frame.shorten(records, quick) if one["source"] and one["target"]]
        for part, records in READERS[name](data).items()
    }
    documents = frame.write_parts(
        out,
        "data/documents",
        train=[{"text": one["source"]} for one in parts["train"]],
        valid=[{"text": one["source"]} for one in parts["valid"]],
    )
    steps = STEPS[name]
    common = {"seed": seed, "quick": quick}
    before: frame.Trained | None = None
    if start in ("spans", "denoising"):
        kind = "span_corruption" if start == "spans" else "denoising"
        changes = documents | {"objective.kind": kind, "train.steps": steps["pretraining"]}
        before = frame.train(PRETRAINING, out, changes, name="pretraining", **common)
    if start == "decoder":
        before = frame.train(
            DECODER, out, documents | {"train.steps": steps["pretraining"]}, name="pretraining", **common
        )
        pairs = frame.write_parts(out, train=map(to_chat, parts["train"]), valid=map(to_chat, parts["valid"]))
        recipe, extra = DECODER, {"train.final": "best"}
    else:
        pairs = frame.write_parts(out, train=parts["train"], valid=parts["valid"])
        recipe, extra = ENCODER_DECODER, {}
    changes = {**pairs, **extra, "train.steps": steps["training"], "train.eval_every": steps["training"] // 5}
    if before is not None:
        changes |= {"model.from": before.run, "train.lr": FINE_TUNING_LR}
    trained = frame.train(recipe, out, changes, **common)
    texts = summarise(trained, [one["source"] for one in parts["test"]], 24 if name == "aeslc" else 64)
    predictions = [
        {"source": one["source"][:300], "prediction": text, "references": one["references"]}
        for one, text in zip(parts["test"], texts, strict=True)
    ]
    frame.write_jsonl(out / "predictions.jsonl", predictions)
    facts = trained.to_dict()
    tested_on = f"{name}/{find_test(data, name)}.jsonl"
    return {**facts, "pretraining": None if before is None else before.to_dict(), "tested on": tested_on}


def to_chat(record: dict[str, Any]) -> dict[str, Any]:
    """A chat in which only the summary is predicted."""
    turns = (("user", record["source"]), ("assistant", record["target"]))
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def summarise(trained: frame.Trained, documents: list[str], max_tokens: int) -> list[str]:
    """The summaries of a model, an encoder-decoder or a decoder, with beam 4."""
    model = trained.load()
    assert model.tokenizer is not None
    if model.config.encoder is None:
        template = EncodeChat(model.tokenizer).template
        prompts = [template.encode([{"role": "user", "content": text}]) for text in documents]
    else:
        prompts = [model.tokenizer.encode(text) for text in documents]
    prompts = [prompt[:900] for prompt in prompts]
    options = GenerationOptions(max_tokens=max_tokens, beam=4)
    running = TextModel(model.network, model.tokenizer, model.config, batch_size=128)
    results = generate_batched(running, prompts, options)
    return [result.text.strip() for result in results]


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """ROUGE-1, ROUGE-2 and ROUGE-L (F1, with stemming) against the best reference, in per cent."""
    return frame.rouge(predictions)
