"""Golden results: records what the code computes, bit for bit, to show that a refactoring changes nothing.

    python bench/golden.py record OUT.json --part cpu           about two minutes on two cores
    python bench/golden.py record OUT.json --part gpu           a few minutes on one GPU
    python bench/golden.py record OUT.json --part gpu --tiny    the same code on a CPU with tiny models: does it run?
    python bench/golden.py compare A.json B.json                names each key that differs; exit 1 if there is any

Compare only recordings that were made on the same machine with the same libraries. Floats are stored as hexadecimal
text. Weights are hashed without their names, and the labels belong to this file, so renaming code changes nothing.
Files that contain names of qkv (config.json, README.md, its own weight files) have keys that begin with `text:`.
An input that qkv rejects is recorded as "refused"; any other exception makes `record` exit with 1.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed import TCPStore

import qkv
from qkv.blocks import HeadConfig, StackConfig
from qkv.data import InMemoryExamples, Loader, SequenceStream
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.decode import DraftModel, Engine, GenerationOptions, GenerationResult, PromptLookup, generate, regex
from qkv.errors import QkvError
from qkv.models import Config, Network, build
from qkv.models.tables import presets
from qkv.tasks.evaluate import evaluate
from qkv.tasks.prepare.prepare import PreparedRun, prepare
from qkv.tasks.train import open_recipe
from qkv.text import Tokenizer
from qkv.train.loss.training_module import TrainingModule
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.parallel.world import World
from qkv.train.recipe.schema import ObjectiveSection, TrainSection
from qkv.train.recipe.toml import format_value
from qkv.train.setup import prepare_module
from qkv.train.step import Stepper
from qkv.train.watch import EvalReport, StepReport, Watcher

Keys = dict[str, Any]

# ── The training runs: label → recipe keys ───────────────────────────────────────────────────────────────────────

COMMON: Keys = {
    "data.max_length": 96, "data.valid_fraction": 0.15, "data.cache_dir": "cache", "tokenizer.vocab_size": 420,
    "model.width": 32, "model.layers": 2, "model.heads": 4, "model.dropout": 0.1, "train.steps": 30,
    "train.batch_tokens": 768, "train.lr": 0.01, "train.log_every": 1, "train.eval_every": 15,
    "train.eval_examples": 12, "train.num_threads": 1, "train.device": "cpu",
}  # fmt: skip
LANGUAGE: Keys = {"objective.kind": "causal_lm", "data.train": "book.txt"}
TRANSLATE: Keys = {"objective.kind": "seq2seq", "data.train": "pairs.tsv", "data.max_length": 64}
MASKED: Keys = {"objective.kind": "masked_lm", "data.train": "book.txt"}
CLASSES: Keys = {"objective.kind": "classification", "data.train": "moods.csv"}
TAGS: Keys = {"objective.kind": "tagging", "data.train": "names.conll"}
ANSWERS: Keys = {"objective.kind": "question_answering", "data.train": "questions.jsonl"}
CONTRAST: Keys = {"objective.kind": "contrastive", "data.train": "alike.jsonl"}
SPANS: Keys = {"objective.kind": "span_corruption", "data.train": "book.txt"}
DENOISE: Keys = {"objective.kind": "denoising", "data.train": "book.txt", "objective.permute_sentences": True}
BERT: Keys = {"model.preset": "bert-tiny"}

OBJECTIVES: dict[str, Keys] = {
    "translation/seq2seq": {**TRANSLATE, "objective.label_smoothing": 0.1, "train.eval_beam": 2},
    "causal-lm/decoder": {**LANGUAGE, "train.ema_decay": 0.9, "train.schedule": "wsd"},
    "masked-lm/encoder": {**MASKED, **BERT, "tokenizer.kind": "wordpiece", "objective.whole_word_masking": True},
    "masked-sentences/encoder": {**MASKED, **BERT, "objective.kind": "next_sentence", "train.optimizer": "lamb"},
    "span-corruption/seq2seq": {**SPANS, "model.preset": "t5-v1.1-small", "train.optimizer": "adam"},
    "denoising/seq2seq": {**DENOISE, "model.preset": "bart-base", "train.optimizer": "muon"},
    "classes/encoder": {**CLASSES, **BERT, "train.optimizer": "sgd", "train.lr": 0.1, "train.final": "best"},
    "classes/decoder": {
        **CLASSES,
        "model.preset": "gpt2",
        "train.micro_batch_tokens": 192,
        "train.average_checkpoints": 2,
    },
    "tags/encoder": {
        **TAGS,
        **BERT,
        "tokenizer.kind": "bpe",
        "train.gradient_checkpointing": True,
        "train.save_every": 10,
    },
    "tags/decoder": {**TAGS, "model.family": "decoder", "objective.label_subwords": "all"},
    "answers/encoder": {**ANSWERS, **BERT, "objective.overlap": 16},
    "contrast/encoder": {**CONTRAST, **BERT, "train.schedule": "linear"},
}
OF_CHECKPOINT: Keys = {"model.width": None, "model.layers": None, "model.heads": None}
OTHERS: dict[str, Keys] = {
    "scores/encoder": {
        **CLASSES,
        "data.train": "scores.jsonl",
        "data.layout": "padded",
        "train.weight_decay_on": "all",
    },
    "chat/decoder": {
        **LANGUAGE,
        "data.train": "chat.jsonl",
        "train.micro_batch_tokens": 192,
        "train.gradient_checkpointing": True,
    },
    "characters/decoder": {
        **LANGUAGE,
        "tokenizer.kind": "char",
        "objective.random_offset": True,
        "objective.add_bos_eos": False,
    },
    "mixture/decoder": {
        "objective.kind": "causal_lm",
        "data.mix": {"one": {"train": "book.txt", "weight": 2.0}, "other": {"train": "more.txt", "weight": 1.0}},
        "train.num_workers": 1,
    },
    "micro-batches/seq2seq": {
        **TRANSLATE,
        "model.preset": "marian",
        "train.micro_batch_tokens": 256,
        "train.gradient_checkpointing": True,
    },
    "frozen/seq2seq": {**TRANSLATE, "model.freeze": ["encoder.*"], "model.share_embeddings": False},
    "untied/decoder": {
        **LANGUAGE,
        "model.tie_embeddings": False,
        "train.schedule": "inverse_sqrt",
        "train.max_grad_norm": 0.1,
    },
    "lora/decoder": {**LANGUAGE, **OF_CHECKPOINT, "model.from": "runs/causal-lm/decoder", "model.lora_rank": 4},
    "lora/encoder": {**CLASSES, **OF_CHECKPOINT, "model.from": "runs/masked-lm/encoder", "model.lora_rank": 2},
}
SHAPES: dict[str, Keys] = {
    "sinusoidal": {"model.position": "sinusoidal", "model.embedding_scale": "sqrt", "model.feedforward": "relu"},
    "learned": {"model.position": "learned", "model.norm": "layernorm", "model.feedforward": "gelu"},
    "grouped": {"model.position": "rotary", "model.kv_heads": 2, "model.qk_norm": "head", "model.bias": "qkv"},
    "alibi": {"model.position": "alibi", "model.attention_dropout": 0.1, "model.ffn_dropout": 0.1},
    "t5": {"model.position": "t5", "model.feedforward": "geglu_tanh", "model.score_scale": "none", "model.init": "t5"},
    "window": {"model.sliding_window": 8, "model.sliding_window_layers": [1], "model.rotary_fraction": 0.5},
    "post-norm": {"model.norm_placement": "post", "model.position": "sinusoidal_split", "model.bias": "all"},
    "sandwich": {"model.norm_placement": "sandwich", "model.embedding_norm": "extra", "model.norm_affine": "none"},
}
DECODER_SHAPES: dict[str, Keys] = {
    **SHAPES,
    "parallel": {"model.residual": "parallel", "model.feedforward": "gelu"},
    "shared-layers": {"model.num_layer_groups": 1, "model.embedding_width": 16, "model.tie_embeddings": False},
    "no-positions": {"model.position": "none", "model.head_dim": 16},
}
PROCESSES: dict[str, Keys] = {
    "causal-lm/decoder/ddp": {**LANGUAGE, "train.micro_batch_tokens": 192},
    "causal-lm/decoder/tensor-parallel": {**LANGUAGE, "train.tensor_parallel": 2},
    "masked-lm/encoder/ddp": MASKED,
    "contrast/encoder/ddp": CONTRAST,
    "masked-lm/encoder/fsdp": {**MASKED, "train.parallel": "fsdp", "train.ema_decay": 0.9},
    "translation/seq2seq/ddp": {**TRANSLATE, "data.layout": "padded", "data.max_source_length": 64},
    "translation/seq2seq/fsdp": {**TRANSLATE, "train.parallel": "fsdp", "train.optimizer": "muon"},
    "translation/seq2seq/tensor-parallel": {**TRANSLATE, "train.tensor_parallel": 2},
}
EXPORTED = (
    *("bert-base", "roberta-base", "distilbert", "modernbert-base", "gpt2", "t5-small", "t5-v1.1-small", "bart-base"),
    *("marian", "transformer-base", "llama-1.1b", "llama-3.1-8b", "mistral-7b", "qwen2-0.5b", "qwen3-0.6b"),
)
DECODED: dict[str, GenerationOptions] = {
    "greedy": GenerationOptions(max_tokens=24),
    "beam": GenerationOptions(
        max_tokens=16, beam=4, num_return_sequences=3, length_penalty=0.6, length_penalty_kind="gnmt"
    ),
    "beam-recorded": GenerationOptions(max_tokens=8, beam=4, return_search_steps=True),
    "sampled": GenerationOptions(max_tokens=20, temperature=0.9, seed=1),
    "top-k": GenerationOptions(max_tokens=20, temperature=1.2, top_k=8, seed=2),
    "top-p": GenerationOptions(max_tokens=20, temperature=1.0, top_p=0.8, seed=3),
    "min-p": GenerationOptions(max_tokens=20, temperature=1.0, min_p=0.1, seed=4, logprobs=2),
    "filtered": GenerationOptions(
        max_tokens=20, repetition_penalty=1.3, no_repeat_ngram_size=2, suppress_tokens=(9, 10), min_tokens=6
    ),
    "beam-filtered": GenerationOptions(
        max_tokens=10, beam=3, repetition_penalty=1.3, no_repeat_ngram_size=2, suppress_tokens=(9,)
    ),
    "alternatives": GenerationOptions(max_tokens=12, logprobs=3),
    "prefix": GenerationOptions(max_tokens=12, prefix=(20, 21)),
}
PROMPTS = ["The cat runs", "a", "Near the green house"]
PATTERN = "[a-z]{2,6}( [a-z]{2,6}){1,3}"
MANY = ("greedy", "sampled", "filtered", "top-p", "greedy", "alternatives", "min-p", "prefix")

# ── What is kept ─────────────────────────────────────────────────────────────────────────────────────────────────


def plain(value: Any) -> Any:
    """A value as JSON that has no names of ours: floats in hexadecimal, tensors as hashes, dataclasses as lists."""
    if isinstance(value, float | np.floating):
        return float(value).hex()
    if isinstance(value, Tensor):
        return hash_of([value])
    if is_dataclass(value):
        return [plain(getattr(value, one.name)) for one in fields(value)]
    if isinstance(value, dict):
        return [[plain(key), plain(one)] for key, one in value.items()]
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def hash_of(tensors: Sequence[Tensor | np.ndarray]) -> str:
    """One hash for all tensors, independent of their names and order."""
    found = []
    for tensor in tensors:
        one = torch.as_tensor(tensor).detach().cpu().contiguous()
        raw = one.reshape(-1).view(torch.uint8).numpy().tobytes() if one.numel() else b""
        found.append(hashlib.sha256(f"{one.dtype} {tuple(one.shape)} ".encode() + raw).hexdigest())
    return hashlib.sha256(" ".join(sorted(found)).encode()).hexdigest()


def weights_of(network: nn.Module) -> str:
    return hash_of(list(network.parameters()))


def written(results: Sequence[GenerationResult]) -> list[Any]:
    """Texts, ids and scores; of a recorded search, its candidates."""
    out = []
    for one in results:
        logprobs = [(token.id, token.logprob, token.alternatives) for token in one.logprobs]
        steps = [[(c.beam, c.token, c.score, c.kept, c.ended) for c in step.candidates] for step in one.search_steps]
        out.append(plain([one.text, one.ids, one.score, logprobs, written(one.alternatives), steps]))
    return out


class Recording:
    """Keys and values. A rejected input is recorded as "refused", any other exception as "error"."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.errors: list[str] = []

    def add(self, key: str, make: Callable[..., Any], *given: Any) -> None:
        """Record what a function returns."""
        assert key not in self.found, key
        began = time.perf_counter()
        try:
            self.found[key] = plain(make(*given))
        except QkvError as error:
            self.found[key] = "refused"
            print(f"{key} is refused: {str(error)[:120]}", file=sys.stderr)
        except Exception:
            self.found[key] = "error"
            self.errors.append(f"{key}: {traceback.format_exc()[-800:]}")
        print(f"{time.perf_counter() - began:6.1f} s  {key}", file=sys.stderr, flush=True)


class Listener(Watcher):
    """Collects the loss of every step and the metrics of every evaluation."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.metrics: list[list[float]] = []

    def on_step(self, report: StepReport) -> None:
        self.losses.append(report.loss)

    def on_evaluate(self, report: EvalReport) -> None:
        self.metrics.append(sorted(report.metrics.values()))


# ── On a CPU ─────────────────────────────────────────────────────────────────────────────────────────────────────


def make_files(folder: Path) -> None:
    """Write data files for every objective, the same each time."""
    draw = random.Random(0)
    words = ["the", "a", "cat", "dog", "house", "tree", "runs", "sleeps", "green", "red", "over", "near", "Anna"]

    def sentence(count: int = 7) -> str:
        places = [draw.randrange(len(words))]
        while len(places) < count:  # most words have one that follows: something to learn in a few steps
            places.append((places[-1] * 3 + 1) % len(words) if draw.random() < 0.8 else draw.randrange(len(words)))
        return " ".join(words[place] for place in places).capitalize() + "."

    def lines(name: str, rows: Sequence[Any]) -> None:
        (folder / name).write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))

    said = [sentence(draw.randrange(3, 9)) for _ in range(160)]
    lines("pairs.tsv", ["source\ttarget", *(f"{text}\t{' '.join(text.split()[::-1])}" for text in said)])
    for name in ("book.txt", "more.txt"):
        (folder / name).write_text("\n\n".join(" ".join(sentence() for _ in range(6)) for _ in range(60)))
    lines("moods.csv", ["text,label", *(f"{text},{draw.choice(['good', 'bad', 'odd'])}" for text in said)])
    lines("scores.jsonl", [{"sentence1": t, "sentence2": sentence(3), "score": draw.random()} for t in said])
    lines("names.conll", [w for t in said for w in [*(f"{w} {'B-LOC' if 'r' in w else 'O'}" for w in t.split()), ""]])
    questions = []
    for _ in said:
        context = " ".join(sentence() for _ in range(3))
        word = draw.choice(context.split())
        answers = {"text": [word], "answer_start": [context.index(word)]}
        questions.append({"question": f"Where is {word}?", "context": context, "answers": answers})
    lines("questions.jsonl", questions)
    lines("alike.jsonl", [{"anchor": text, "positive": " ".join(text.lower().split()[1:])} for text in said])
    turns = [[{"role": "user", "content": t}, {"role": "assistant", "content": t[::-1]}] for t in said]
    lines("chat.jsonl", [{"messages": one} for one in turns])
    (folder / "blank.toml").write_text("")


def keys_of(label: str, keys: Keys) -> Keys:
    return {name: value for name, value in {"run": f"runs/{label}", **COMMON, **keys}.items() if value is not None}


def prepared_data(label: str, keys: Keys) -> PreparedRun:
    changes = [f"{name}={format_value(value)}" for name, value in keys_of(f"unused/{label}", keys).items()]
    return prepare(open_recipe("blank.toml", changes))


def train(out: Recording, label: str, keys: Keys) -> qkv.Model | None:
    """Train, and record losses, metrics and weights."""
    listener, models = Listener(), []

    def run() -> tuple[Any, ...]:
        models.append(qkv.train("blank.toml", watcher=listener, **keys_of(label, keys)))
        return weights_of(models[0].network), listener.losses, listener.metrics

    out.add(f"train/{label}/1proc", run)
    return models[0] if models else None


def batches(label: str, keys: Keys, rank: int, world: int, workers: int = 0) -> list[str]:
    """The arrays of the first batches, which are of two epochs."""
    epochs = None if "data.mix" in keys else 2
    loader = Loader(
        prepared_data(label, keys).train_data, rank=rank, world_size=world, num_workers=workers, epochs=epochs
    )
    found = []
    for batch in islice(loader, 20):
        tensors = [one.flatten(1) for one in batch.tensors]  # label sets were recorded as (B, E·V)
        counts = [batch.tokens_per_sequence, batch.token_labels_per_sequence, batch.document_labels_per_sequence]
        if not batch.labels:
            counts[-1] = np.zeros_like(counts[-1])  # pairs without labels were recorded with a count of 0
        found.append(hash_of([*tensors, *counts, batch.example_ids, batch.example_sequences, batch.example_epochs]))
    loader.close()
    return found


def decode(out: Recording, label: str, m: qkv.Model, prompts: list[str], small: Network | None = None) -> None:
    """Every way of getting text out of a model."""
    network, tokenizer = m.network, m.tokenizer
    assert tokenizer is not None
    ids = [tokenizer.encode(prompt, add_special_tokens=m.config.family == "seq2seq") for prompt in prompts]
    heard: list[Any] = []

    def say(name: str, make: Callable[[], Any]) -> None:
        out.add(f"decode/{label}/{name}", lambda: written(make()))

    for name, options in DECODED.items():
        say(name, partial(generate, network, ids, options, tokenizer))
    say("one", lambda: [m.generate(prompts[0], max_tokens=40)])
    say("one-beam", lambda: [m.generate(prompts[0], max_tokens=20, beam=4)])
    say("one-sampled", lambda: [m.generate(prompts[0], max_tokens=40, temperature=1.0, top_p=0.9, seed=7)])
    say("stop", lambda: m.generate(prompts, max_tokens=30, stop="a"))
    say("lines", lambda: m.generate_lines([*prompts, "", "a dog"], batch_size=2, max_tokens=20))
    say("constrained", lambda: m.generate(prompts, constraint=regex(PATTERN), max_tokens=20))
    say("streamed", lambda: m.generate(prompts, max_tokens=20, on_text=lambda row, text: heard.append((row, text))))
    if m.device.type == "cpu":
        say("int8", lambda: m.quantize().generate(prompts, max_tokens=24))
        say("int8-beam", lambda: m.quantize().generate(prompts[:1], beam=4, max_tokens=12))
    for name in ("greedy", "sampled"):
        say(f"look-up-{name}", partial(generate, network, ids, DECODED[name], tokenizer, draft=PromptLookup()))
        if small is not None:
            say(f"draft-{name}", partial(generate, network, ids, DECODED[name], tokenizer, draft=DraftModel(small)))
    say("engine", lambda: serve(network, ids, tokenizer))
    out.add(f"decode/{label}/pieces", lambda: heard)
    out.add(f"decode/{label}/scores", m.score, prompts, prompts[::-1])


def serve(network: Network, ids: list[list[int]], tokenizer: Tokenizer) -> list[GenerationResult]:
    """Several requests in few places, with pages that do not suffice for all."""
    engine = Engine(network, tokenizer, max_sequences=3, num_pages=14, page_size=4)
    requests = [engine.submit(ids[n % len(ids)], DECODED[name]) for n, name in enumerate(MANY)]
    return [engine.result(request) for request in requests]


def exported(out: Recording, label: str, m: qkv.Model, form: str) -> None:
    """The files of a model folder, or of one in another format."""
    with tempfile.TemporaryDirectory() as name:
        folder, ours = Path(name) / "model", form == "ours"
        out.add(f"files/{label}/{form}", lambda: m.save(folder) if ours else bool(m.export(folder, form)))
        for path in filter(Path.is_file, sorted(folder.rglob("*")) if folder.exists() else ()):
            key = f"files/{label}/{form}/{path.relative_to(folder)}"
            if path.suffix == ".safetensors":
                out.add(f"{key}/tensors", lambda p=path: hash_of(list(load_file(p).values())))
            if path.suffix == ".onnx":
                out.add(f"{key}/graph", graph_of, path)
            text = path.name in ("config.json", "README.md") or (ours and path.suffix == ".safetensors")
            if ".onnx" not in path.name:  # the compiler writes names of files and modules into it
                out.add(f"text:{key}" if text else key, lambda p=path: hashlib.sha256(p.read_bytes()).hexdigest())


def graph_of(path: Path) -> list[Any]:
    """What an ONNX graph computes, without its names: operators in order, and constants."""
    import onnx  # an extra, which a machine with a GPU need not have

    graph = onnx.load(path).graph
    operators = " ".join(node.op_type for node in graph.node)
    arrays = [onnx.numpy_helper.to_array(one) for one in graph.initializer]
    return [len(graph.node), hashlib.sha256(operators.encode()).hexdigest(), hash_of([a.copy() for a in arrays])]


def shrunk(config: Config) -> Config:
    """A published shape at a size that takes no time."""
    sides: list[StackConfig | None] = []
    for stack in (config.encoder, config.decoder):
        if stack is not None:
            few, windowed = 2 if stack.kv_heads < stack.heads else 4, (1,) if stack.sliding_window_layers else ()
            stack = replace(
                stack, vocab_size=120, width=32, layers=2, num_layer_groups=2, sliding_window_layers=windowed,
                heads=4, kv_heads=few, head_dim=8, ffn_width=48,
            )  # fmt: skip
        sides.append(stack)
    config = replace(config, encoder=sides[0], decoder=sides[1], head=replace(config.head, outputs=120))
    return replace(
        config,
        pad_token_id=None if config.pad_token_id is None else 1,
        decoder_start_token_id=2,
        eos_token_ids=(2,),
    )


def two_processes(out: Recording) -> None:
    """Run all of PROCESSES one after the other in the same two processes, each run with its own store."""
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in PROCESSES]
    line = [sys.executable, __file__, "worker", *(str(store.port) for store in stores)]
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    world["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the stores are here
    every = [{**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1)]
    workers = [subprocess.Popen(line, env=one) for one in every]
    codes = [worker.wait() for worker in workers]
    if any(codes):
        out.errors.append(f"two processes ended with {codes}")
    for label in PROCESSES:
        out.add(f"train/{label}/2proc", lambda label=label: weights_of(qkv.load(f"runs/two/{label}").network))
        told = Path("runs/two", label, "heard.json")
        out.add(f"train/{label}/2proc/losses", lambda told=told: json.loads(told.read_text()))


def worker(ports: Sequence[str]) -> int:
    """One of the two processes."""
    torch.set_num_threads(1)
    for (label, keys), port in zip(PROCESSES.items(), ports, strict=True):
        os.environ["MASTER_PORT"] = port
        listener = Listener()
        qkv.train("blank.toml", watcher=listener, **keys_of(f"two/{label}", keys))
        if os.environ["RANK"] == "0":
            Path("runs/two", label, "heard.json").write_text(json.dumps(plain([listener.losses, listener.metrics])))
    return 0


def on_cpu(out: Recording) -> None:
    """All of the CPU's part, in the current folder."""
    make_files(Path())
    runs = {**OBJECTIVES, **OTHERS}
    models = {label: m for label, keys in runs.items() if (m := train(out, label, keys)) is not None}
    longer: Keys = {"train.steps": 40}
    out.add("train/resumed", lambda: weights_of(qkv.train("runs/tags/encoder", **longer).network))
    two_processes(out)
    for label, keys in {**OBJECTIVES, "mixture/decoder": OTHERS["mixture/decoder"]}.items():
        for layout, (rank, world) in product(("packed", "padded"), ((0, 1), (0, 2), (1, 2))):
            more = {**keys, "data.layout": layout, "train.seed": 5, "train.batch_tokens": 320}
            out.add(f"batches/{label}/{layout}/{rank}of{world}", batches, label, more, rank, world)
    out.add("batches/workers", batches, "causal-lm/decoder", LANGUAGE, 0, 1, 2)
    for label, m in models.items():
        records = prepared_data(label, runs[label]).valid_records
        judge = partial(evaluate, m.network, m.tokenizer, m.config, records)
        out.add(f"evaluate/{label}", lambda judge=judge: sorted(judge().metrics.values()))
        texts: list[Any] = ["The cat runs over the house.", "a red dog near Anna"]
        if m.config.family == "encoder":
            out.add(f"embed/{label}", lambda m=m, texts=texts: m.embed(texts, pooling="mean"))
        if label in ("answers/encoder", "scores/encoder"):
            texts = [("Where is the cat?", f"{texts[0]} A dog sleeps. {texts[1]}"), ("a tree", "a tree")]
        elif label.startswith("masked"):
            texts = ["The <mask> runs over the <mask>.", "a <mask>"]
        run = m.embed if m.config.head.kind == "embed" else m.run
        out.add(f"run/{label}", run, texts)
        for form in ("ours", "hf", "ctranslate2", "onnx"):
            if form != "onnx" or label in ("causal-lm/decoder", "translation/seq2seq", "classes/encoder"):
                exported(out, label, m, form)
    for name, form in product(EXPORTED, ("ours", "hf", "ctranslate2")):
        exported(out, name, qkv.new(shrunk(presets.find_preset(name)), seed=1), form)
    bases = {
        "decoder": ("causal-lm/decoder", LANGUAGE, DECODER_SHAPES),
        "seq2seq": ("translation/seq2seq", TRANSLATE, SHAPES),
    }
    for family, (label, base, shapes) in bases.items():
        decode(out, f"{family}/plain", models[label], PROMPTS)
        for shape, keys in shapes.items():
            m = train(out, f"{shape}/{family}", {**base, **keys, "train.eval_every": 30})
            if m is not None:
                decode(out, f"{family}/{shape}", m, PROMPTS, models[label].network)


# ── On a GPU ─────────────────────────────────────────────────────────────────────────────────────────────────────

MODES = {  # label: what is prepared, how steps are taken, in how many parts
    "eager": ("no", "no", 1),
    "parts": ("no", "no", 2),
    "captured": ("no", "auto", 1),
    "compiled": ("yes", "no", 1),
    "compiled-captured": ("auto", "auto", 1),
}
HALVED = ("gpt2", "llama", "seq2seq")
"""The shapes that are also decoded in bfloat16."""


@contextmanager
def deterministic() -> Iterator[None]:
    """Attention's fastest backward adds up in any order; here it may not. Our own code decides nothing by this."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    yield
    torch.use_deterministic_algorithms(False)


def byte_tokenizer() -> Tokenizer:
    roles = ["pad", "bos", "eos", "mask", "sep", "cls"]
    return Tokenizer.train("byte", iter([]), vocab_size=300, special_tokens=roles, template="bert")


def examples(lengths: np.ndarray, vocab: int, names: tuple[str, ...] = ("ids",)) -> InMemoryExamples:
    draw = np.random.default_rng(0)
    made = [{n: draw.integers(300, vocab, c).astype(np.int32) for n, c in zip(names, row)} for row in lengths]  # noqa: B905
    return InMemoryExamples(made, names)


def small_gpt2(vocab: int, width: int, heads: int) -> Config:
    """GPT-2 with two layers."""
    ends = {"bos_token_id": vocab - 1, "eos_token_id": vocab - 1}
    return presets.find_preset("gpt2", vocab_size=vocab, n_embd=width, n_layer=2, n_head=heads, **ends)


def work(tiny: bool) -> dict[str, tuple[Config, SequenceStream]]:
    """The models that are trained, and their rows."""
    width, heads, length, vocab = (64, 2, 64, 1000) if tiny else (768, 12, 256, 8192)
    gpt2 = small_gpt2(vocab, width, heads)
    size = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": heads, "intermediate_size": 4 * width}
    bert = presets.find_preset("bert-base", vocab_size=vocab, **size)
    both = presets.transformer(vocab_size=vocab, width=width, layers=2, heads=heads)
    tokenizer, batch, draw = byte_tokenizer(), 8 * length, np.random.default_rng(1)
    full, ragged = (examples(n, vocab) for n in (np.full((400, 1), length - 2), draw.integers(9, length, (900, 1))))
    pairs = examples(draw.integers(8, length // 4, (2000, 2)), vocab, ("source", "target"))
    pair = Seq2SeqObjective(pairs, tokenizer, max_length=length // 2, max_source_length=length // 2)
    return {
        "gpt2": (
            gpt2,
            SequenceStream(
                CausalLMObjective(full, tokenizer, max_length=length, add_bos_eos=False), batch_tokens=batch
            ),
        ),
        "gpt2-packed": (
            gpt2,
            SequenceStream(CausalLMObjective(ragged, tokenizer, max_length=length), batch_tokens=batch),
        ),
        "bert": (bert, SequenceStream(MaskedLMObjective(full, tokenizer, max_length=length), batch_tokens=batch)),
        "bert-packed": (
            bert,
            SequenceStream(MaskedLMObjective(ragged, tokenizer, max_length=length), batch_tokens=batch),
        ),
        "pairs-packed": (both, SequenceStream(pair, batch_tokens=2 * batch)),
        "pairs-padded": (both, SequenceStream(pair, batch_tokens=2 * batch, layout="padded")),
    }


def steps(
    config: Config, rows: SequenceStream, mode: str, precision: Any, device: torch.device
) -> tuple[list[float], str]:
    """The losses of 30 steps, and the weights after them."""
    made, taken, parts = MODES[mode]
    torch.compiler.reset()
    torch.manual_seed(0)
    how: Any = made if device.type == "cuda" else "no"
    section = TrainSection(steps=1000, seed=1, precision=precision, compile=how)
    world, network = World(device=device), build(config).to(device)
    learner = prepare_module(
        TrainingModule(network, ObjectiveSection()),
        section,
        world,
        compiled=section.compile != "no" and world.device.type == "cuda",
    )
    optimizer = make_optimizer(network.named_parameters(), section, fused=True, capturable=device.type == "cuda")
    stepping: Any = taken
    stepper = Stepper(learner, optimizer, replace(section, compile=stepping), world, num_micro_batches=parts)
    losses = []
    for number, batch in enumerate(islice(Loader(rows), 30)):
        stepper(batch, number, 1e-3)
        losses.append(stepper.pop_loss())
    assert stepper.pop_bad_steps() is None
    return losses, weights_of(network)


def written_models(tiny: bool) -> dict[str, Config]:
    """The shapes that are decoded, each a case of a fast path of its own."""
    vocab = byte_tokenizer().vocab_size
    width, heads = (64, 4) if tiny else (512, 8)
    size = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": heads, "intermediate_size": 3 * width}
    llama = presets.find_preset("llama-1.1b", vocab_size=vocab, num_key_value_heads=2, **size)
    t5 = presets.find_preset("t5-v1.1-small", d_model=width, num_layers=2, num_heads=heads, d_ff=2 * width)
    reader, writer = (replace(stack, vocab_size=vocab) for stack in (t5.encoder or t5.stack, t5.stack))
    return {
        "gpt2": small_gpt2(vocab, width, heads),
        "llama": llama,
        "alibi": replace(llama, decoder=replace(llama.stack, position="alibi")),
        "window": replace(llama, decoder=replace(llama.stack, sliding_window=8)),
        "sandwich": replace(llama, decoder=replace(llama.stack, norm_placement="sandwich")),
        "t5": replace(t5, encoder=reader, decoder=writer, head=HeadConfig(kind="lm", outputs=vocab)),
        "seq2seq": presets.transformer(vocab_size=vocab, width=width, layers=2, heads=heads),
    }


def made_of(config: Config, device: torch.device, dtype: torch.dtype, seed: int = 0) -> qkv.Model:
    """Random weights, large enough for texts to be decided by more than hairs."""
    tokenizer = byte_tokenizer()
    roles = tokenizer.special_tokens
    assert roles.eos is not None
    ids = {"pad_token_id": roles.pad, "decoder_start_token_id": roles.bos, "eos_token_ids": (roles.eos,)}
    model = qkv.new(replace(config, **ids), tokenizer=tokenizer, seed=seed)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return qkv.Model(model.config, model.network.to(device, dtype), tokenizer)


def on_gpu(out: Recording, tiny: bool, save: Callable[[], None]) -> None:
    """All of the GPU's part; what waits for the compiler comes last."""
    device = torch.device("cpu" if tiny else "cuda")
    precisions: tuple[Any, ...] = ("float32",) if tiny else ("float32", "bfloat16")
    trained, shapes = work(tiny), written_models(tiny)
    cases = [one for one in product(trained, MODES, precisions) if one[0] != "pairs-padded" or one[1] == "eager"]

    def train_some(*, compiled: bool) -> None:
        for name, mode, precision in cases:
            if ("compiled" in mode) == compiled and (precision == precisions[-1] or not compiled):
                with deterministic():
                    out.add(f"train/gpu/{name}/{mode}/{precision}", steps, *trained[name], mode, precision, device)
        save()

    train_some(compiled=False)
    for name, config in shapes.items():
        for dtype in (torch.float32, torch.bfloat16) if name in HALVED and not tiny else (torch.float32,):
            m, small = made_of(config, device, dtype), made_of(config, device, dtype, seed=1)
            decode(out, f"gpu/{name}/{dtype}", m, PROMPTS, small.network)
    save()
    for name, count in (("gpt2", 1), ("llama", 1), ("seq2seq", 3)):
        m = made_of(shapes[name], device, torch.float32 if tiny else torch.bfloat16)
        for case in ("greedy", "top-p", *(("beam",) if count > 1 else ())):
            asked = m, PROMPTS[:count], replace(DECODED[case], compile=not tiny)
            out.add(f"decode/gpu/{name}/compiled/{case}", lambda asked=asked: from_texts(*asked))
    save()
    train_some(compiled=True)


def from_texts(m: qkv.Model, prompts: list[str], options: GenerationOptions) -> list[Any]:
    assert m.tokenizer is not None
    return written(generate(m.network, [m.tokenizer.encode(text) for text in prompts], options, m.tokenizer))


# ── The command ──────────────────────────────────────────────────────────────────────────────────────────────────


def record(path: Path, part: str, tiny: bool) -> int:
    print(f"recording {qkv.__file__}", file=sys.stderr)
    warnings.simplefilter("ignore")
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    torch.set_num_threads(1)
    out, began, home = Recording(), time.perf_counter(), Path.cwd()
    path = path.resolve()

    def save() -> None:
        path.write_text(json.dumps(out.found, indent=0, sort_keys=True) + "\n")

    if part == "gpu":
        on_gpu(out, tiny, save)
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            on_cpu(out)
            os.chdir(home)
    save()
    print(*out.errors, sep="\n", file=sys.stderr)
    refused = sum(value == "refused" for value in out.found.values())
    took = time.perf_counter() - began
    print(f"{len(out.found)} keys, {refused} of them refused, {len(out.errors)} errors, {took:.0f} s")
    return 1 if out.errors else 0


def compare(one: Path, other: Path) -> int:
    a, b = (json.loads(path.read_text()) for path in (one, other))
    missing, different = sorted(a.keys() ^ b.keys()), sorted(key for key in a.keys() & b.keys() if a[key] != b[key])
    for key in missing:
        print(f"only in {one if key in a else other}: {key}")
    for key in different:
        print(f"differs: {key}\n    {str(a[key])[:160]}\n    {str(b[key])[:160]}")
    texts = sum(key.startswith("text:") for key in different)
    same = len(a.keys() & b.keys()) - len(different)
    print(f"{same} keys are equal, {len(different)} differ ({texts} of them texts), {len(missing)} are in one only")
    return 1 if missing or different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("record", "compare", "worker"))
    parser.add_argument("files", nargs="+")
    parser.add_argument("--part", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    if asked.verb == "worker":  # one of the two processes, which is given ports
        return worker(asked.files)
    if asked.verb == "record":
        return record(Path(asked.files[0]), asked.part, asked.tiny)
    return compare(Path(asked.files[0]), Path(asked.files[1]))


if __name__ == "__main__":
    sys.exit(main())
