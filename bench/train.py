"""Training speed and memory beside peers, in one run on one machine.

    python bench/train.py                            on a GPU, against transformers, compiled
    OMP_NUM_THREADS=2 python bench/train.py dates    on a CPU, against torch.nn.Transformer

Both sides take whole steps: forward, backward, clipping, a fused AdamW; bfloat16 autocast on a GPU; no dropout, but
for `bert_dropout`. Ours reads its rows from the loader that training uses, and once more from a single batch that never
changes: the ratio of the two says what the input costs.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from qkv.data import InMemoryExamples, Loader, SequenceStream
from qkv.data.load.batch import Batch
from qkv.data.objectives.causal_lm import CausalLMObjective
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.objectives.seq2seq import Seq2SeqObjective
from qkv.models import Config, build
from qkv.models.tables import presets
from qkv.models.tables.summary import summarise_model
from qkv.text import Tokenizer
from qkv.train.loss.training_module import TrainingModule
from qkv.train.optim.optimizers import make_optimizer
from qkv.train.parallel.world import World
from qkv.train.recipe.schema import ObjectiveSection, TrainSection
from qkv.train.setup import prepare_module
from qkv.train.step import Stepper

PEAK_FLOPS = 778e12  # an 8192³ bfloat16 product on one H200, measured
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GPU = DEVICE.type == "cuda"
ALONE = "--alone" in sys.argv
PROFILE = "--profile" in sys.argv
PARTS, TURN = 5, 10
"""On a CPU: in how many parts a measurement is looked at, and how many steps one takes before the next takes its."""


def wait() -> None:
    if GPU:
        torch.cuda.synchronize()


def fresh_memory() -> None:
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak() -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if GPU else 0.0


def timed(step: Callable[[], int], warm: int, steps: int) -> tuple[float, float]:
    """Tokens a second, and the seconds of a step, after warming up."""
    for _ in range(warm):
        step()
    wait()
    start, tokens = time.perf_counter(), 0
    for _ in range(steps):
        tokens += step()
    host = time.perf_counter() - start
    wait()
    seconds = time.perf_counter() - start
    if "--host" in sys.argv:
        print(f"    the host was busy for {host / steps * 1e3:.2f} of {seconds / steps * 1e3:.2f} ms a step")
    return tokens / seconds, seconds / steps


class Row(dict):
    """A line of the table."""

    def __init__(self, work: str, who: str, rate: float, seconds: float, **more: Any) -> None:
        super().__init__(work=work, who=who, tokens_per_second=rate, step_ms=seconds * 1e3, peak_gib=peak(), **more)
        told = "  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in more.items())
        print(
            f"{work:<34} {who:<28} {rate:>12,.0f} tokens/s {seconds * 1e3:>9.2f} ms {peak():>7.2f} GiB  {told}",
            flush=True,
        )


# ---------------------------------------------------------------------------- ours


class Ours:
    """The product's own step, fed by the loader that training uses."""

    def __init__(
        self, config: Config, rows: SequenceStream, count: Callable[[Batch], int], *, workers: int = 2, **section: Any
    ) -> None:
        torch.manual_seed(0)
        train = TrainSection(steps=1000, **section)
        world = World(device=DEVICE)
        network = build(config).to(DEVICE)
        learner = prepare_module(TrainingModule(network, ObjectiveSection()), train, world, compiled=GPU)
        optimizer = make_optimizer(network.named_parameters(), train, fused=True, capturable=GPU)
        self.stepper = Stepper(learner, optimizer, train, world)
        self.loader = Loader(rows, num_workers=workers)
        self.batches, self.count, self.number = iter(self.loader), count, iter(range(10**9))

    def __call__(self, batch: Batch | None = None) -> int:
        """A step on this batch, or on the loader's next one; returns its tokens."""
        batch = next(self.batches) if batch is None else batch
        self.stepper(batch, next(self.number), 1e-4)
        return self.count(batch)

    def check(self) -> None:
        """No step went wrong."""
        loss = self.stepper.pop_loss()
        assert self.stepper.pop_bad_steps() is None, "a step went wrong"
        assert np.isfinite(loss)


def ours(
    work: str,
    config: Config,
    rows: SequenceStream,
    count: Callable[[Batch], int],
    *,
    steps: int,
    flops: float = 0.0,
    **section: Any,
) -> list[Row]:
    """Our steps, and the same step on one batch again and again."""
    fresh_memory()
    step = Ours(config, rows, count, **section)
    rate, seconds = timed(step, 8, steps)
    batch = next(step.batches)
    step.loader.close()
    fixed_rate, fixed_seconds = timed(lambda: step(batch), 3, steps)
    if PROFILE:
        show_kernels(lambda: step(batch))
    step.check()
    more: dict[str, Any] = {"input_share": fixed_seconds / seconds, "padding": batch.padding_fraction}
    if flops and GPU:
        more["mfu"] = rate * flops / PEAK_FLOPS
    return [Row(work, "qkv", rate, seconds, **more), Row(work, "qkv, one fixed batch", fixed_rate, fixed_seconds)]


def show_kernels(step: Callable[[], int]) -> None:
    """The kernels of three steps, the slowest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if GPU else [])]) as seen:
        for _ in range(3):
            step()
        wait()
    print(
        seen.key_averages().table(
            sort_by="self_cuda_time_total" if GPU else "self_cpu_time_total", row_limit=22, max_name_column_width=70
        )
    )


# ---------------------------------------------------------------------------- peers


def theirs(
    model: nn.Module,
    batches: Iterator[tuple[dict[str, torch.Tensor], int]],
    *,
    compiled: bool = True,
    loss_of: Callable[[nn.Module, dict[str, torch.Tensor]], torch.Tensor] | None = None,
) -> Callable[[], int]:
    """A peer's step in the usual loop of a script: autocast, backward, clipping, fused AdamW."""
    model = model.to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run: Any = torch.compile(model) if compiled else model
    ask = loss_of or (lambda m, inputs: m(**inputs).loss)

    def step() -> int:
        inputs, tokens = next(batches)
        inputs = {k: v.to(DEVICE, non_blocking=True) for k, v in inputs.items()}
        with torch.autocast("cuda", torch.bfloat16, enabled=GPU):
            loss = ask(run, inputs)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return tokens

    return step


def transformers_row(
    work: str, model: nn.Module, made: list[tuple[dict[str, torch.Tensor], int]], steps: int
) -> list[Row]:
    """transformers' model, compiled."""
    if ALONE:
        return []
    fresh_memory()
    rate, seconds = timed(theirs(model, forever(made)), 8, steps)
    torch._dynamo.reset()
    return [Row(work, "transformers, compiled", rate, seconds)]


def forever(made: list[tuple[dict[str, torch.Tensor], int]]) -> Iterator[tuple[dict[str, torch.Tensor], int]]:
    made = [({k: v.pin_memory() if GPU else v for k, v in inputs.items()}, n) for inputs, n in made]
    while True:
        yield from made


# ---------------------------------------------------------------------------- the work


def bytes_tokenizer() -> Tokenizer:
    """Ids are drawn, not read from text; a tokenizer is asked for its special ones alone."""
    roles = ["pad", "bos", "eos", "mask", "sep", "cls"]
    return Tokenizer.train("byte", iter([]), vocab_size=300, special_tokens=roles, template="bert")


def documents(lengths: np.ndarray, vocab: int, fields: tuple[str, ...] = ("ids",)) -> InMemoryExamples:
    draw = np.random.default_rng(0)
    made = [
        {f: draw.integers(300, vocab, n).astype(np.int32) for f, n in zip(fields, ns, strict=True)} for ns in lengths
    ]
    return InMemoryExamples(made, fields)


def gpt2(tiny: bool, steps: int) -> list[Row]:
    """A 124M decoder, 32 × 1024 tokens a step."""
    import transformers

    rows, length = (4, 64) if tiny else (32, 1024)
    size = {"n_embd": 64, "n_layer": 2, "n_head": 2} if tiny else {}
    vocab = 1000 if tiny else 50257
    work, out = f"124M decoder, {rows} × {length}", []
    config = presets.find_preset("gpt2", vocab_size=vocab, **size)
    flops = summarise_model(config, length // 2).flops_training  # a causal row: each token sees half of it on average
    full = CausalLMObjective(
        documents(np.full((512, 1), length), vocab), bytes_tokenizer(), max_length=length, add_bos_eos=False
    )
    for residual in ("auto", "float32"):
        label = work if residual == "auto" else f"{work}, {residual} residual stream"
        batches = SequenceStream(full, batch_tokens=rows * length)
        out += ours(label, plain(config), batches, tokens_of, steps=steps, flops=flops, residual_dtype=residual)
    lengths = np.random.default_rng(1).integers(50, 2 * length, (512, 1)) if not tiny else np.full((99, 1), 30)
    ragged = CausalLMObjective(documents(lengths, vocab), bytes_tokenizer(), max_length=length)
    out += ours(
        f"{work}, packed texts",
        plain(config),
        SequenceStream(ragged, batch_tokens=rows * length),
        tokens_of,
        steps=steps,
    )
    config_hf = transformers.GPT2Config(
        vocab_size=vocab, n_positions=length, n_embd=size["width"], n_layer=size["layers"], n_head=size["heads"],
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    ids = [torch.randint(0, vocab, (rows, length)) for _ in range(8)]
    made = [({"input_ids": i, "labels": i}, rows * length) for i in ids]
    model = transformers.GPT2LMHeadModel(config_hf)
    return [*out, *transformers_row(work, model, made, steps)]


def bert(tiny: bool, steps: int, dropout: bool = False) -> list[Row]:
    """BERT base, masked tokens, 64 × 512."""
    import transformers

    rows, length = (4, 64) if tiny else (64, 512)
    size = (
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256} if tiny else {}
    )
    vocab = 1000 if tiny else 30522
    work = f"BERT base, masked, {rows} × {length}" + ", dropout" * dropout
    config = presets.find_preset("bert-base", vocab_size=vocab, **size)
    objective = MaskedLMObjective(
        documents(np.full((1024, 1), length - 2), vocab), bytes_tokenizer(), max_length=length
    )
    flops = summarise_model(config, length).flops_training
    out = []
    for residual in ("auto", "float32"):
        label = work if residual == "auto" else f"{work}, {residual} residual stream"
        batches = SequenceStream(objective, batch_tokens=rows * length)
        shape = config if dropout else plain(config)
        out += ours(label, shape, batches, tokens_of, steps=steps, flops=flops, residual_dtype=residual)
    rate = config.stack.dropout if dropout else 0.0
    hf = transformers.BertConfig(vocab_size=vocab, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
    if tiny:
        hf.hidden_size, hf.num_hidden_layers, hf.num_attention_heads, hf.intermediate_size = 64, 2, 2, 256
    made = []
    for _ in range(8):
        ids = torch.randint(0, vocab, (rows, length))
        labels = torch.where(torch.rand(rows, length) < 0.15, ids, -100)
        made.append(({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}, rows * length))
    model = transformers.BertForMaskedLM(hf)
    return [*out, *transformers_row(work, model, made, steps)]


def bert_dropout(tiny: bool, steps: int) -> list[Row]:
    """The same with the dropout that both are published with."""
    return bert(tiny, steps, dropout=True)


def pairs(tiny: bool, steps: int) -> list[Row]:
    """An encoder-decoder base on ragged lengths, 256 and 1,024 pairs; real target tokens are counted."""
    import transformers

    vocab = 1000 if tiny else 32000
    low, high = 8, 64
    out = []
    lengths = np.random.default_rng(2).integers(low, high + 1, (16384 if not tiny else 512, 2))
    examples = documents(lengths, vocab, ("source", "target"))
    size = {"width": 64, "layers": 1, "heads": 2} if tiny else {"width": 512, "layers": 6, "heads": 8}
    config = presets.transformer(vocab_size=vocab, dropout=0.0, **size)
    for count in (16,) if tiny else (256, 1024):
        work = f"encoder-decoder base, {count} pairs"
        row = 128  # about three pairs: what they pay for a mask over all of a row grows with it
        objective = Seq2SeqObjective(examples, bytes_tokenizer(), max_length=row, max_source_length=row)
        per_row = row / (lengths.mean() + 1)
        batch_tokens = max(1, round(count / per_row)) * 2 * row
        out += ours(work, config, SequenceStream(objective, batch_tokens=batch_tokens), labels_of, steps=steps)
        hf = transformers.MarianConfig(
            vocab_size=vocab, d_model=size["width"], encoder_layers=size["layers"], decoder_layers=size["layers"],
            encoder_attention_heads=size["heads"], decoder_attention_heads=size["heads"],
            encoder_ffn_dim=4 * size["width"], decoder_ffn_dim=4 * size["width"], dropout=0.0, attention_dropout=0.0,
            activation_dropout=0.0, activation_function="relu", scale_embedding=True, pad_token_id=0, eos_token_id=1,
            decoder_start_token_id=0, max_position_embeddings=128, use_cache=False,
        )  # fmt: skip
        made = []
        for first in range(0, 8 * count, count):
            chosen = lengths[first % (len(lengths) - count) :][:count] + 1
            mask = [(torch.arange(high + 1) < torch.tensor(n)[:, None]).long() for n in chosen.T]
            ids = [torch.randint(300, vocab, m.shape) * m for m in mask]
            labels = torch.where(mask[1] > 0, ids[1], -100)
            inputs = {"input_ids": ids[0], "attention_mask": mask[0], "decoder_input_ids": ids[1], "labels": labels}
            made.append((inputs, int(mask[1].sum())))
        model = transformers.MarianMTModel(hf)
        out += transformers_row(work, model, made, steps)
    return out


def dates(tiny: bool, steps: int) -> list[Row]:
    """The quickstart's model on a CPU, beside torch.nn.Transformer of the same shape on padded batches.

    Once as the recipe has it, with rotary positions and without biases, and once with all that the other one has:
    learned positions, biases everywhere, an output matrix of its own.
    """
    from qkv.tasks.prepare.prepare import prepare
    from qkv.train.recipe.recipe_file import read

    made = prepare(read("dates", ["data.epoch_examples=20000"]))
    config = plain(made.config)
    stack = config.encoder
    assert stack is not None
    assert config.decoder is not None
    alike = {"position": "learned", "max_positions": 256, "bias": "all"}
    same = replace(
        config,
        encoder=replace(stack, **alike),
        decoder=replace(config.decoder, **alike),
        head=replace(config.head, tied=False, bias=True),
    )
    ids = {"pad": config.pad_token_id or 0}
    examples = [made.train_data.objectives[0].examples[i] for i in range(8000)]

    class Peer(nn.Module):
        """The textbook way: nn.Transformer, embeddings, a causal mask, padding masks."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(stack.vocab_size, stack.width)
            self.place = nn.Embedding(256, stack.width)
            self.body = nn.Transformer(
                stack.width, stack.heads, stack.layers, config.decoder.layers, stack.ffn_width, 0.0, "gelu",
                batch_first=True, norm_first=True,
            )  # fmt: skip
            self.out = nn.Linear(stack.width, stack.vocab_size)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
            hole = source == ids["pad"]
            x, y = (self.embed(t) + self.place(torch.arange(t.shape[1])) for t in (source, target))
            return self.out(
                self.body(x, y, tgt_mask=causal, src_key_padding_mask=hole, memory_key_padding_mask=hole,
                          tgt_is_causal=True)
            )  # fmt: skip

    batches = []
    per_batch = round(
        float(np.mean([len(b.example_ids) for _, b in zip(range(200), Loader(made.train_data), strict=False)]))
    )
    end, start = config.eos_token_ids[0], config.decoder_start_token_id or 0
    for first in range(0, len(examples) - per_batch, per_batch):
        chosen = examples[first : first + per_batch]
        source = [[*e["source"].tolist(), end] for e in chosen]
        target = [[start, *e["target"].tolist(), end] for e in chosen]
        wide = [max(map(len, side)) for side in (source, target)]
        both = [
            torch.tensor([row + [ids["pad"]] * (w - len(row)) for row in side])
            for side, w in zip((source, target), wide, strict=True)
        ]
        tokens = sum(map(len, source)) + sum(len(row) - 1 for row in target)
        batches.append(({"source": both[0], "target": both[1]}, tokens))

    def loss_of(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        said = model(inputs["source"], inputs["target"][:, :-1])
        return F.cross_entropy(said.flatten(0, 1), inputs["target"][:, 1:].flatten(), ignore_index=ids["pad"])

    rivals: dict[tuple[str, str], Callable[[], int]] = {}
    mine = []
    for work, shape in {"dates, CPU": config, "dates, CPU, all alike": same}.items():
        step = Ours(shape, made.train_data, tokens_of, workers=0)
        mine.append(step)
        ready = forever_ours(step, [next(step.batches) for _ in range(steps)])
        rivals |= {(work, "qkv"): step, (work, "qkv, made beforehand"): ready}
    who = "torch.nn.Transformer"
    if not ALONE:
        rivals["dates, CPU", who] = theirs(Peer(), forever(batches), compiled=False, loss_of=loss_of)
    tokens, seconds = in_turn(rivals, steps if tiny else PARTS * steps)
    for one in mine:
        one.check()
    out = [Row(*name, tokens[name].sum() / seconds[name].sum(), seconds[name].mean()) for name in rivals]
    for name, step in rivals.items():
        if PROFILE:
            show_kernels(step)
        if ALONE or name[1] == who:
            continue
        parts = np.array_split(np.arange(len(tokens[name])), min(PARTS, len(tokens[name])))
        other = "dates, CPU", who
        rates = [[rate_of(tokens[one], seconds[one], part) for part in parts] for one in (name, other)]
        each = sorted(mine / peer for mine, peer in zip(*rates, strict=True))
        told = ", ".join(f"{ratio:.2f}" for ratio in each)
        print(f"{', '.join(name)}: {np.median(each):.2f} times {who}, the median of {told}; target 1.5")
    return out


def forever_ours(step: Ours, made: list[Batch]) -> Callable[[], int]:
    """Our steps on batches that are made before the clock starts, as a peer's are."""
    again = cycle(made)
    return lambda: step(next(again))


def in_turn(rivals: dict[Any, Callable[[], int]], steps: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Tokens and seconds of each step of each of them on a CPU, a few steps of one after a few of the other.

    So what else the machine does falls on all alike. The first steps of each turn warm its memory up, and do not count.
    """
    tokens: dict[Any, Any] = {name: np.zeros(steps) for name in rivals}
    seconds: dict[Any, Any] = {name: np.zeros(steps) for name in rivals}
    for begin in range(0, steps, TURN):
        for name, step in rivals.items():
            for _ in range(3):
                step()
            for at in range(begin, min(begin + TURN, steps)):
                start = time.perf_counter()
                tokens[name][at] = step()
                seconds[name][at] = time.perf_counter() - start
    return tokens, seconds


def rate_of(tokens: np.ndarray, seconds: np.ndarray, part: np.ndarray) -> float:
    return float(tokens[part].sum() / seconds[part].sum())


def plain(config: Config) -> Config:
    """The same without dropout, as the peers are measured."""
    stacks = {
        side: replace(stack, dropout=0.0, attention_dropout=0.0, ffn_dropout=0.0)
        for side in ("encoder", "decoder")
        if (stack := getattr(config, side)) is not None
    }
    return replace(config, **stacks, head=replace(config.head, dropout=0.0))


def tokens_of(batch: Batch) -> int:
    return batch.num_tokens


def labels_of(batch: Batch) -> int:
    return batch.num_token_labels


def set_compiler(name: str, value: str) -> None:
    """Change an option of torch's compiler for this process, to see what it brings: `triton.enable_pdl=1`."""
    from torch._inductor import config

    *way, last = name.split(".")
    for step in way:
        config = getattr(config, step)
    kind = type(getattr(config, last))
    setattr(config, last, bool(int(value)) if kind is bool else kind(value))


WORK = {"gpt2": gpt2, "bert": bert, "bert_dropout": bert_dropout, "pairs": pairs, "dates": dates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="*", choices=[[], *WORK], default=[])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tiny", action="store_true", help="small models, to see that it runs")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    parser.add_argument("--host", action="store_true", help="show how long the host was busy with starting steps")
    parser.add_argument("--profile", action="store_true", help="show the kernels that a step spends its time in")
    parser.add_argument("--set", action="append", default=[], help="an option of torch's compiler, as combo_kernels=1")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    for one in asked.set:
        set_compiler(*one.split("=", 1))
    names = asked.work or (["gpt2", "bert", "bert_dropout", "pairs"] if GPU else ["dates"])
    where = torch.cuda.get_device_name() if GPU else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {where}", file=sys.stderr)
    rows: list[Row] = []
    for name in names:
        rows += WORK[name](asked.tiny, asked.steps)
        if asked.out:
            asked.out.write_text(json.dumps({"torch": torch.__version__, "where": where, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
