"""Training on a CPU: tokens a second of qkv and its peers, in turns, each peer at its best setting.

    OMP_NUM_THREADS=2 python bench/train_cpu.py [WORK …] [--nanogpt FOLDER] [--llmc FOLDER] [--rounds 5] [--steps 4]

`--nanogpt` and `--llmc` are clones of karpathy/nanoGPT and karpathy/llm.c; without them their rows are left out.
Hugging Face's Trainer needs the package accelerate. A round takes some steps with each contender, one after another;
the table has the median over all rounds, the slowest and the fastest round. Every contender counts the same tokens:
those of the texts, without padding.
"""

import argparse
import gc
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.blocks import HeadConfig, StackConfig
from qkv.data import InMemoryExamples, Loader, SequenceStream
from qkv.data.load.batch import Batch
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.classification import ClassificationObjective
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.models import Config, build
from qkv.models.tables import presets
from qkv.text import Tokenizer
from qkv.train.allocator import keep_freed_memory
from qkv.train.loss.training_module import TrainingModule
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.parallel.world import World
from qkv.train.precision import choose_precision
from qkv.train.recipe.schema import ObjectiveSection, TrainSection
from qkv.train.setup import num_micro_batches, prepare_module
from qkv.train.step import Stepper

Step = Callable[[], int]
"""Takes one training step and returns its number of tokens."""
LLMC_MAIN = r"""
#define TESTING
#include "train_gpt2.c"
int main(int argc, char **argv) {
    GPT2 model;
    gpt2_build_from_checkpoint(&model, argv[1]);
    int B = atoi(argv[2]), T = atoi(argv[3]), V = model.config.vocab_size;
    int *inputs = malloc(B * T * sizeof(int)), *targets = malloc(B * T * sizeof(int));
    for (int i = 0; i < B * T; i++) { inputs[i] = (i * 7919) % V; targets[i] = (i * 104729) % V; }
    for (int step = 0; getchar() != EOF; step++) {
        gpt2_forward(&model, inputs, targets, B, T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 1e-4f, 0.9f, 0.95f, 1e-8f, 0.0f, step + 1);
        printf("%f\n", model.mean_loss);
        fflush(stdout);
    }
}
"""
"""A step of llm.c for each line of the standard input."""


# ---------------------------------------------------------------------------- qkv


def qkv_step(config: Config, data: SequenceStream, count: Callable[[Batch], int], **section: Any) -> tuple[Step, str]:
    """The product's own step on the batches of its loader, with its own choices; and the chosen precision."""
    torch.manual_seed(0)
    train = TrainSection(steps=1000, batch_tokens=data.batch_tokens, **section)
    world, module = World(), TrainingModule(build(config), ObjectiveSection())
    precision, _ = choose_precision(train, world, module.train(), data)
    train = TrainSection(steps=1000, batch_tokens=data.batch_tokens, **{**section, "precision": precision})
    prepare_module(module, train, world, compiled=False)
    optimizer = make_optimizer(module.network.named_parameters(), train, fused=True)
    parts = num_micro_batches(train, data, world, config)
    stepper, batches, number = (
        Stepper(module, optimizer, train, world, num_micro_batches=parts),
        iter(Loader(data)),
        iter(range(10**9)),
    )

    def step() -> int:
        batch = next(batches)
        stepper(batch, next(number), 1e-4)
        assert np.isfinite(stepper.pop_loss())
        return count(batch)

    return step, precision


def num_tokens(batch: Batch) -> int:
    """The tokens of a batch, without padding."""
    return batch.num_tokens


# ---------------------------------------------------------------------------- peers


def torch_step(
    model: torch.nn.Module, batches: Iterator[tuple[dict[str, Tensor], int]], *, bfloat16: bool, loss_of: Any
) -> Step:
    """A peer's model in a script's usual loop: autocast, backward, clipping, fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> int:
        inputs, tokens = next(batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = loss_of(model, inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return tokens

    return step


def nanogpt_steps(folder: Path, rows: int, length: int, vocab: int, size: dict[str, int]) -> dict[str, Step]:
    """nanoGPT's own model, in bfloat16, as it is and compiled."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt_model"] = module
    spec.loader.exec_module(module)
    ids = torch.randint(0, vocab, (rows, length + 1))
    made = ({"x": ids[:, :-1].contiguous(), "y": ids[:, 1:].contiguous()}, rows * length)
    steps = {}
    for name in ("nanoGPT, bfloat16", "nanoGPT, bfloat16, compiled"):
        config = module.GPTConfig(
            block_size=length, vocab_size=vocab, n_layer=size["layers"], n_head=size["heads"], n_embd=size["width"],
            dropout=0.1, bias=False,
        )  # fmt: skip
        model = module.GPT(config)
        model = torch.compile(model) if "compiled" in name else model
        steps[name] = torch_step(
            model, forever(made), bfloat16=True, loss_of=lambda model, inputs: model(inputs["x"], inputs["y"])[1]
        )
    return steps


def llmc_step(folder: Path, rows: int, length: int, vocab: int, size: dict[str, int]) -> Step:
    """llm.c's CPU program (float32, OpenMP), compiled here, on random weights of this shape."""
    work = Path(tempfile.mkdtemp())
    (work / "main.c").write_text(LLMC_MAIN)
    width, layers = size["width"], size["layers"]
    header = np.zeros(256, dtype=np.int32)
    header[:8] = [20240326, 3, length, vocab, layers, size["heads"], width, vocab]
    count = (vocab + length + 2) * width + layers * (12 * width * width + 13 * width)
    weights = np.random.default_rng(0).normal(0, 0.02, count).astype(np.float32)
    (work / "model.bin").write_bytes(header.tobytes() + weights.tobytes())
    flags = ["-Ofast", "-march=native", "-fopenmp", "-DOMP", "-w", f"-I{folder}"]
    subprocess.run(["cc", *flags, str(work / "main.c"), "-o", str(work / "main"), "-lm"], check=True)
    command = [str(work / "main"), str(work / "model.bin"), str(rows), str(length)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
    assert process.stdin is not None
    assert process.stdout is not None
    source, sink = process.stdin, process.stdout

    def step() -> int:
        source.write("x")
        source.flush()
        while not sink.readline().strip().replace(".", "").isdigit():
            pass
        return rows * length

    return step


def trainer_step(model: Any, features: list[dict[str, Any]], tokens: int, collate: Any, *, bfloat16: bool) -> Step:
    """Hugging Face's Trainer. A step is one step of `trainer.train()`, which runs in a thread of its own."""
    import threading

    from transformers import Trainer, TrainerCallback, TrainingArguments

    go, done = threading.Semaphore(0), threading.Semaphore(0)

    class Turns(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *arguments: Any, **kwargs: Any) -> None:
            go.acquire()

        def on_step_end(self, *arguments: Any, **kwargs: Any) -> None:
            done.release()

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=len(features), max_steps=10**6, bf16=bfloat16,
        use_cpu=True, learning_rate=1e-4, optim="adamw_torch_fused", report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, max_grad_norm=1.0,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=features, data_collator=collate, callbacks=[Turns()])
    threads = torch.get_num_threads()

    def run() -> None:
        torch.set_num_threads(threads)
        trainer.train()

    threading.Thread(target=run, daemon=True).start()

    def step() -> int:
        go.release()
        done.acquire()
        return tokens

    return step


def forever(item: Any) -> Iterator[Any]:
    while True:
        yield item


# ---------------------------------------------------------------------------- the work


def bytes_tokenizer() -> Tokenizer:
    """Ids are drawn, not read from text; only the special tokens are needed."""
    roles = ["pad", "bos", "eos", "mask", "sep", "cls"]
    return Tokenizer.train("byte", iter([]), vocab_size=300, special_tokens=roles, template="bert")


def documents(lengths: np.ndarray, vocab: int, fields: tuple[str, ...] = ("ids",)) -> InMemoryExamples:
    draw = np.random.default_rng(0)
    made = [
        {f: draw.integers(300, vocab, n).astype(np.int32) for f, n in zip(fields, ns, strict=True)} for ns in lengths
    ]
    return InMemoryExamples(made, fields)


def language(options: argparse.Namespace) -> dict[str, Step]:
    """The model of `qkv init language` for a medium corpus: 4.5M parameters, 16 × 512 tokens a step, dropout 0.1."""
    rows, length, vocab = 16, 512, 5200
    size = {"layers": 4, "heads": 4, "width": 256}
    stack = StackConfig(
        vocab_size=vocab, max_positions=length, ffn_width=704, dropout=0.1, norm="rmsnorm", feedforward="swiglu",
        position="rotary", bias="none", **size,
    )  # fmt: skip
    config = Config(decoder=stack, head=HeadConfig(kind="lm", outputs=vocab, tied=True))
    objective = CausalLMObjective(
        documents(np.full((512, 1), length), vocab), bytes_tokenizer(), max_length=length, add_bos_eos=False
    )
    data = SequenceStream(objective, batch_tokens=rows * length)
    steps = ours(config, data)
    if options.nanogpt:
        steps |= nanogpt_steps(options.nanogpt, rows, length, vocab, size)
    if options.llmc:
        steps["llm.c, float32"] = llmc_step(options.llmc, rows, length, vocab, size)
    if has_trainer():
        import transformers

        llama = transformers.LlamaConfig(
            vocab_size=vocab, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4,
            max_position_embeddings=length, tie_word_embeddings=True, use_cache=False,
        )  # fmt: skip
        ids = torch.randint(0, vocab, (rows, length))
        features = [{"input_ids": row, "labels": row} for row in ids]
        for dtype in ("bfloat16", "float32"):
            steps[f"Trainer, Llama, {dtype}"] = trainer_step(
                transformers.LlamaForCausalLM(llama), features, rows * length, stacked, bfloat16=dtype == "bfloat16"
            )
    return steps


def bert_small(options: argparse.Namespace) -> dict[str, Step]:
    """BERT-small, masked tokens: 4 layers of width 512, 32 × 128 tokens a step, dropout 0.1."""
    rows, length, vocab = 32, 128, 30522
    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
    config = presets.find_preset("bert-base", vocab_size=vocab, **sizes)
    objective = MaskedLMObjective(documents(np.full((512, 1), length - 2), vocab), bytes_tokenizer(), max_length=length)
    steps = ours(config, SequenceStream(objective, batch_tokens=rows * length))
    if has_trainer():
        import transformers

        features = []
        for _ in range(rows):
            ids = torch.randint(0, vocab, (length,))
            labels = torch.where(torch.rand(length) < 0.15, ids, -100)
            features.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
        for dtype in ("bfloat16", "float32"):
            model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=vocab, **sizes))
            steps[f"Trainer, {dtype}"] = trainer_step(
                model, features, rows * length, stacked, bfloat16=dtype == "bfloat16"
            )
    return steps


def minilm(options: argparse.Namespace) -> dict[str, Step]:
    """MiniLM (6 layers of width 384) fine-tuned on short texts with 77 classes: 5 to 30 tokens, 64 texts a step."""
    rows, vocab = 64, 30522
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    base = presets.find_preset("bert-base", vocab_size=vocab, **sizes)
    config = Config(encoder=base.encoder, head=HeadConfig(kind="classify", outputs=77, pool="first"))
    lengths = np.random.default_rng(1).integers(5, 31, 4096)
    draw = np.random.default_rng(0)
    made = [
        {"first": draw.integers(300, vocab, n - 2).astype(np.int32), "label": draw.integers(0, 77, 1)} for n in lengths
    ]
    objective = ClassificationObjective(InMemoryExamples(made, ("first", "label")), bytes_tokenizer(), max_length=64)
    steps = ours(config, SequenceStream(objective, batch_tokens=int(rows * lengths.mean())))
    if has_trainer():
        import transformers

        features = [
            {"input_ids": torch.randint(300, vocab, (int(n),)), "labels": int(draw.integers(0, 77))}
            for n in lengths[:rows]
        ]
        for dtype in ("bfloat16", "float32"):
            model = transformers.BertForSequenceClassification(
                transformers.BertConfig(vocab_size=vocab, num_labels=77, **sizes)
            )
            steps[f"Trainer, {dtype}"] = trainer_step(
                model, features, int(lengths[:rows].sum()), padded, bfloat16=dtype == "bfloat16"
            )
    return steps


def pairs(options: argparse.Namespace) -> dict[str, Step]:
    """The base encoder-decoder of 2017 on ragged pairs of 8 to 64 tokens, 64 pairs a step; all tokens are counted."""
    count, vocab, low, high = 64, 32000, 8, 64
    lengths = np.random.default_rng(2).integers(low, high + 1, (4096, 2))
    config = presets.transformer(vocab_size=vocab, dropout=0.1, width=512, layers=6, heads=8)
    row = 128
    objective = Seq2SeqObjective(
        documents(lengths, vocab, ("source", "target")), bytes_tokenizer(), max_length=row, max_source_length=row
    )
    per_row = row / (lengths.mean() + 1)
    steps = ours(config, SequenceStream(objective, batch_tokens=max(1, round(count / per_row)) * 2 * row))
    if has_trainer():
        import transformers

        marian = transformers.MarianConfig(
            vocab_size=vocab, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
            decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, dropout=0.1,
            activation_function="relu", scale_embedding=True, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
            max_position_embeddings=128, use_cache=False,
        )  # fmt: skip
        features = [
            {"input_ids": torch.randint(300, vocab, (int(s) + 1,)), "labels": torch.randint(300, vocab, (int(t) + 1,))}
            for s, t in lengths[:count]
        ]
        tokens = int(lengths[:count].sum()) + 2 * count
        for dtype in ("bfloat16", "float32"):
            steps[f"Trainer, Marian, {dtype}"] = trainer_step(
                transformers.MarianMTModel(marian), features, tokens, padded, bfloat16=dtype == "bfloat16"
            )
    return steps


def dates(options: argparse.Namespace) -> dict[str, Step]:
    """The quickstart's recipe."""
    from qkv.tasks.prepare.prepare import prepare
    from qkv.train.recipe.recipe_file import read

    recipe = read("dates", ["data.epoch_examples=20000"])
    made = prepare(recipe)
    section = {"lr": recipe.train.lr, "optimizer": recipe.train.optimizer}
    return {"qkv (float32)": qkv_step(made.config, made.train_data, num_tokens, **section)[0]}


def ours(config: Config, data: SequenceStream) -> dict[str, Step]:
    """qkv with its own choice of precision, and in float32."""
    step, precision = qkv_step(config, data, num_tokens)
    plain, _ = qkv_step(config, data, num_tokens, precision="float32")
    return {f"qkv ({precision})": step, **({} if precision == "float32" else {"qkv, float32": plain})}


def has_trainer() -> bool:
    return importlib.util.find_spec("transformers") is not None and importlib.util.find_spec("accelerate") is not None


def stacked(features: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in features]) for name in features[0]}


def padded(features: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad ids with 0 and labels with −100, to the longest of the batch, as Trainer's collators do."""
    made: dict[str, Tensor] = {}
    pad = torch.nn.utils.rnn.pad_sequence
    ids = [one["input_ids"] for one in features]
    made["input_ids"] = pad(ids, batch_first=True)
    made["attention_mask"] = pad([torch.ones_like(one) for one in ids], batch_first=True)
    labels = [one["labels"] for one in features]
    is_text = isinstance(labels[0], Tensor)
    made["labels"] = pad(labels, batch_first=True, padding_value=-100) if is_text else torch.tensor(labels)
    return made


WORK = {"language": language, "bert_small": bert_small, "minilm": minilm, "pairs": pairs, "dates": dates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="*", default=list(WORK))
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--llmc", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    keep_freed_memory()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
    for name in options.work:
        steps = WORK[name](options)
        rates: dict[str, list[float]] = {who: [] for who in steps}
        for who, step in steps.items():  # warm up, and compile
            print(f"  warming up: {who}", end="\r", flush=True)
            step()
            step()
        for _ in range(options.rounds):
            for who, step in steps.items():
                start = time.perf_counter()
                tokens = sum(step() for _ in range(options.steps))
                rates[who].append(tokens / (time.perf_counter() - start))
        for who, found in rates.items():
            print(
                f"{name:<12} {who:<32} {statistics.median(found):>10,.0f} tokens/s  "
                f"({min(found):,.0f} to {max(found):,.0f})",
                flush=True,
            )
        del steps
        gc.collect()
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
