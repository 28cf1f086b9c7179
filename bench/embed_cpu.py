"""Embeddings of short sentences on a CPU: sentences a second of qkv and its peers, in turns, each at its best setting.

    OMP_NUM_THREADS=2 python bench/embed_cpu.py MODEL SENTENCES [--count 10000] [--rounds 5]

MODEL is a sentence-transformers folder, such as all-MiniLM-L6-v2. SENTENCES is a text file, one sentence a line; lines
are used again if there are too few. Peers: sentence-transformers in float32 and bfloat16, ONNX Runtime and OpenVINO
with our ONNX export, on batches of similar lengths. `error` is 1 − the smallest cosine with qkv in float32.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import qkv
from qkv.data.stream.random_bits import EpochRng
from qkv.tasks.run import fast_network
from qkv.tasks.run.example_batches import build_unlabelled_examples
from qkv.tasks.table import TASKS

Embed = Callable[[Sequence[str]], np.ndarray]


def qkv_rows(model: str) -> dict[str, Embed]:
    """`m.embed` as it is."""
    m = qkv.load(model)
    return {"qkv": lambda texts: np.stack([one.numpy() for one in m.embed(texts)])}


def sentence_transformers_rows(model: str, batch_size: int) -> dict[str, Embed]:
    """sentence-transformers in both dtypes."""
    from sentence_transformers import SentenceTransformer

    rows: dict[str, Embed] = {}
    for dtype in ("float32", "bfloat16"):
        made = SentenceTransformer(model, device="cpu", model_kwargs={"torch_dtype": getattr(torch, dtype)})

        def embed(texts: Sequence[str], made: Any = made) -> np.ndarray:
            vectors = made.encode(list(texts), batch_size=batch_size, convert_to_tensor=True, normalize_embeddings=True)
            return np.asarray(vectors.float())

        rows[f"sentence-transformers, {dtype}"] = embed
    return rows


def graph_rows(model: str, batch_size: int) -> dict[str, Embed]:
    """Our ONNX export in ONNX Runtime and in OpenVINO, with the same tokenizer, batches of similar lengths."""
    m = qkv.load(model)
    folder = Path(tempfile.mkdtemp()) / "onnx"
    m.export(folder, format="onnx")
    file = next(folder.rglob("*.onnx"))

    def run_batches(run: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Embed:
        def embed(texts: Sequence[str]) -> np.ndarray:
            objective = build_unlabelled_examples(m.find_model(TASKS["embed"]), [(text,) for text in texts])
            examples = objective.build(np.arange(len(texts)), EpochRng(0))  # with special tokens
            ids = np.split(examples.ids, np.cumsum(examples.lengths)[:-1])
            order = np.argsort([-len(one) for one in ids], kind="stable")
            out: list[Any] = [None] * len(ids)
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                length = len(ids[chosen[0]])
                padded, mask = (np.zeros((len(chosen), length), np.int64) for _ in range(2))
                for row, i in enumerate(chosen):
                    padded[row, : len(ids[i])] = ids[i]
                    mask[row, : len(ids[i])] = 1
                hidden = run({"ids": padded, "mask": mask, "token_type_ids": np.zeros_like(padded)})
                if hidden.ndim == 3:
                    hidden = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
                hidden = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
                for row, i in enumerate(chosen):
                    out[i] = hidden[row]
            return np.stack(out)

        return embed

    rows: dict[str, Embed] = {}
    if find_spec("onnxruntime"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        rows["ONNX Runtime, float32"] = run_batches(lambda inputs: session.run(None, inputs)[0])
    if find_spec("openvino"):
        import openvino

        core = openvino.Core()
        for dtype, hint in (("float32", "f32"), ("bfloat16", "bf16")):
            settings = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
            compiled = core.compile_model(str(file), "CPU", settings)
            rows[f"OpenVINO, {dtype}"] = run_batches(lambda inputs, compiled=compiled: compiled(inputs)[0])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("sentences", type=Path)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    lines = [line.strip() for line in options.sentences.read_text().splitlines() if line.strip()]
    texts = list(islice(cycle(lines), options.count))
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
    rows: dict[str, Embed] = qkv_rows(options.model)
    if find_spec("sentence_transformers"):
        rows |= sentence_transformers_rows(options.model, 64)
    rows |= graph_rows(options.model, 64)
    sample = texts[:2000]
    fast_network.MIN_TOKENS, least = 10**12, fast_network.MIN_TOKENS
    exact = rows["qkv"](sample)
    fast_network.MIN_TOKENS = least
    rates: dict[str, list[float]] = {who: [] for who in rows}
    errors = {who: 1 - float((embed(sample) * exact).sum(1).min()) for who, embed in rows.items()}  # also warms up
    for _ in range(options.rounds):
        for who, embed in rows.items():
            start = time.perf_counter()
            embed(texts)
            rates[who].append(len(texts) / (time.perf_counter() - start))
    for who, found in rates.items():
        print(
            f"{who:<34} {statistics.median(found):>8,.0f} sentences/s  ({min(found):,.0f} to {max(found):,.0f})  "
            f"error {errors[who]:.1e}"
        )


if __name__ == "__main__":
    main()
