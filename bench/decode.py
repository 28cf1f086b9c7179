"""Decoding on a GPU, beside transformers' generate in the same run: tokens a second and time to the first token.

python bench/decode.py --json out.json            on a GPU
python bench/decode.py --small                    anywhere, to see that it runs
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from qkv.blocks import HeadConfig, StackConfig
from qkv.decode import Options, generate
from qkv.decode.generate import start
from qkv.models import Config, build, presets

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPT, NEW = 32, 256


def synchronise() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], Any], runs: int) -> float:
    """The best of several runs after one that warms up, in seconds."""
    best = float("inf")
    for n in range(runs + 1):
        synchronise()
        begin = time.perf_counter()
        work()
        synchronise()
        if n:
            best = min(best, time.perf_counter() - begin)
    return best


def seq2seq_base(vocab: int = 32_000) -> Config:
    stack = StackConfig(
        vocab=vocab,
        width=512,
        layers=6,
        heads=8,
        ffn_width=2048,
        position="sinusoidal_split",
        norm_place="post",
        feedforward="relu",
        embedding_scale="sqrt",
    )
    head = HeadConfig(kind="lm", outputs=vocab, tied=True, bias=True)
    return Config(encoder=stack, decoder=stack, head=head, shared_embedding=True, pad=0, start=0)


def ours(config: Config, batch: int, new: int, compiled: bool) -> float:
    """Seconds for `new` greedy tokens in each of `batch` rows."""
    network = build(replace(config, end=()), device=DEVICE, dtype=torch.bfloat16 if DEVICE == "cuda" else torch.float32)
    network.eval()
    prompts = torch.randint(3, 100, (batch, PROMPT)).tolist()
    options = Options(max_tokens=new)
    ready = start(network, prompts, options)  # type: ignore[arg-type]
    from qkv.decode.static import Steps, forward

    with torch.inference_mode():
        steps = Steps(ready, (), new, compiled=compiled)

        def work() -> None:
            steps.count.zero_()
            steps.cache.crop(0)
            steps.choose(forward(steps.network, ready.tokens, None, steps.cache, steps.cross))
            for done in range(1, new):
                slots = steps.start + done
                steps.of_bucket(min(-(-slots // 256) * 256, steps.cache.length))()

        return timed(work, 3)


def agrees() -> bool:
    """Graphs and compiled steps write what the plain loop writes, in float32, for both families that write."""
    same = True
    for config in (presets.gpt2(vocab=300, width=64, layers=2, heads=2), seq2seq_base(300)):
        torch.manual_seed(1)
        network = build(replace(config, end=(7,), start=3), device=DEVICE).eval()
        prompts = [[5, 6, 9, 11], [8], [4, 4, 12]]
        plain = generate(network, prompts, Options(max_tokens=40), on_text=lambda row, piece: None)
        for compiled in (False, True):
            fast = generate(network, prompts, Options(max_tokens=40, compiled=compiled))
            same &= [r.ids for r in fast] == [r.ids for r in plain]
    return same


def theirs(name: str, batch: int, new: int, beams: int = 1) -> float:
    """The same shape in transformers, random weights, its own generate."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    if name == "gpt2":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    elif name == "llama-1.1b":
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                hidden_size=2048,
                intermediate_size=5632,
                num_hidden_layers=22,
                num_attention_heads=32,
                num_key_value_heads=4,
            )
        )
    else:
        model = transformers.MarianMTModel(
            transformers.MarianConfig(
                vocab_size=32_000,
                d_model=512,
                encoder_layers=6,
                decoder_layers=6,
                encoder_ffn_dim=2048,
                decoder_ffn_dim=2048,
                encoder_attention_heads=8,
                decoder_attention_heads=8,
                pad_token_id=0,
                decoder_start_token_id=0,
                eos_token_id=1,
                scale_embedding=True,
                activation_function="relu",
            )
        )
    model = model.to(DEVICE, torch.bfloat16 if DEVICE == "cuda" else torch.float32).eval()
    ids = torch.randint(3, 100, (batch, PROMPT), device=DEVICE)
    with torch.inference_mode():
        return timed(
            lambda: model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                num_beams=beams,
            ),
            1,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--skip-peers", action="store_true")
    parser.add_argument("--only", help="rows whose name and batch hold this text, as in 'gpt2 1'")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console = Console(width=110)
    console.print(f"static steps write what the plain loop writes: {agrees()}")
    cases: list[tuple[str, Config, int]] = [
        ("gpt2", presets.find("gpt2"), 1),
        ("gpt2", presets.find("gpt2"), 32),
        ("gpt2", presets.find("gpt2"), 256),
        ("llama-1.1b", presets.find("llama-1.1b"), 1),
        ("llama-1.1b", presets.find("llama-1.1b"), 32),
        ("encoder-decoder base", seq2seq_base(), 128),
    ]
    new = NEW
    if arguments.small:
        cases, new = [("gpt2", presets.gpt2(width=64, layers=2, heads=2), 2)], 8
    if arguments.only:
        cases = [case for case in cases if any(word in f"{case[0]} {case[2]}/" for word in arguments.only.split(","))]
    results = []
    table = Table("model", "compiled", "batch", "qkv tokens/s", "ms a step", "transformers tokens/s", "times")
    for name, config, batch, compiled in [(*case, compiled) for case in cases for compiled in (False, True)]:
        seconds = ours(config, batch, new, compiled)
        rate = batch * new / seconds
        row: dict[str, Any] = {
            "model": name,
            "compiled": compiled,
            "batch": batch,
            "qkv": rate,
            "ms": 1e3 * seconds / new,
        }
        if not arguments.skip_peers and batch < 256 and compiled:
            few = new if arguments.small else 64
            row["transformers"] = batch * few / theirs(name, batch, few)
        results.append(row)
        other = row.get("transformers")
        table.add_row(
            name,
            str(compiled),
            str(batch),
            f"{rate:,.0f}",
            f"{row['ms']:.3f}",
            f"{other:,.0f}" if other else "—",
            f"{rate / other:.1f}" if other else "—",
        )
        console.print(row)
        gc.collect()
        torch.compiler.reset()
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"torch": torch.__version__, "rows": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
