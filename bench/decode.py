"""Decoding on a GPU, beside transformers' generate in the same run, bfloat16 and random weights.

    python bench/decode.py --out decode.json                 everything, in about a quarter of an hour on one GPU
    python bench/decode.py check beam --out decode.json      some sections; rows already in the file stay
    python bench/decode.py --tiny                            tiny models anywhere, to see that it runs

    check   graphs and compiled steps write what the plain loops write, in float32
    gpt2    124M, greedy, batch 1, 32 and 256            llama   1.1B, greedy, batch 1 and 32
    beam    encoder-decoder base, 128 sources, greedy and beam 4
    first   time to the first token of 1.1B after prompts of 2,048 and 8,192 tokens
    sampled one sequence, sampled; the host reads each token

"steps" is the rate of the steps alone; "call" is all of a `generate` call, the second one of its shape: reading the
prompt, capturing graphs, steps and results. transformers' figure is its whole call, and "times" compares the calls.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from decode_peers import DEVICE, HALF, free, peer, peer_seconds, prompts_of, timed
from qkv.blocks import HeadConfig, StackConfig
from qkv.decode import GenerationOptions, GenerationResult, generate
from qkv.decode.backend import FUSED_GREEDY, REFERENCE, choose_backend
from qkv.decode.beam import beam_search
from qkv.decode.gpu.beam import BeamTensors, static_beam_search
from qkv.decode.gpu.generate import greedy_kernels, runner_class
from qkv.decode.gpu.graphs import STEPS_BETWEEN_CHECKS, GraphedSteps
from qkv.decode.gpu.greedy import GreedyState, greedy_steps
from qkv.decode.gpu.static_runner import StaticRunner
from qkv.decode.loop import GenerationCall
from qkv.decode.runner import make_runner
from qkv.models import Config, Decoder, Network, Seq2Seq, build
from qkv.models.tables import presets

PROMPT, NEW = 32, 224  # together one bucket of slots, which is compiled once
CONSOLE = Console(width=130)
Row = dict[str, Any]


# ── What runs ────────────────────────────────────────────────────────────────────────────────────────────────────


def seq2seq_base(vocab: int = 32_000, width: int = 512, layers: int = 6) -> Config:
    stack = StackConfig(
        vocab_size=vocab,
        width=width,
        layers=layers,
        heads=8,
        ffn_width=4 * width,
        position="sinusoidal_split",
        norm_placement="post",
        feedforward="relu",
        embedding_scale="sqrt",
    )
    head = HeadConfig(kind="lm", outputs=vocab, tied=True, bias=True)
    return Config(
        encoder=stack, decoder=stack, head=head, share_embeddings=True, pad_token_id=0, decoder_start_token_id=0
    )


def made(config: Config, *, end: tuple[int, ...] = (), dtype: torch.dtype = HALF) -> Network:
    """Random weights; without ends every text is as long as was asked for."""
    torch.manual_seed(0)
    return build(replace(config, eos_token_ids=end), device=DEVICE, dtype=dtype).eval()


def generated_plainly(network: Any, prompts: list[list[int]], options: GenerationOptions) -> list[GenerationResult]:
    """What the reference loop generates."""
    with torch.inference_mode():
        return list(REFERENCE.generate(GenerationCall(network, prompts, options)))


SEARCH_STATE = {
    GreedyState: ("token", "ended", "num_written"),
    BeamTensors: ("token", "score", "normalized_scores", "finished", "done", "num_steps"),
}
"""The tensors that a step reads and changes; those that it only writes need not be put back."""


def run_state(runner: StaticRunner) -> list[torch.Tensor]:
    """The tensors of a run that a step changes, except the caches."""
    return [runner.mask, runner.next_positions, runner.next_slots]


class Again:
    """Steps that can be made again from where they began."""

    def __init__(self, steps: GraphedSteps, search: GreedyState | BeamTensors) -> None:
        self.steps = steps
        self.state = [*run_state(steps.runner), *(getattr(search, name) for name in SEARCH_STATE[type(search)])]
        self.saved = [tensor.clone() for tensor in self.state]

    def put_back(self) -> None:
        for tensor, value in zip(self.state, self.saved, strict=True):
            tensor.copy_(value)


def step_seconds(network: Network, prompts: list[list[int]], new: int, *, beam: int = 1, compiled: bool) -> float:
    """Seconds of all steps after the first token, their graphs captured before."""
    options = GenerationOptions(max_tokens=new, beam=beam, compile=compiled)
    assert isinstance(network, Decoder | Seq2Seq)
    with torch.inference_mode():
        run = make_runner(network, prompts, options)
        search: BeamTensors | GreedyState
        if beam > 1:
            static = runner_class(network, compiled=compiled)(run, new, num_beams=beam)
            search = BeamTensors(static, options, ())
            search.advance(static.prefill_logits.repeat_interleave(beam, dim=0), static.view(static.num_slots))
            steps, done = GraphedSteps(static, search.step, compiled=compiled), search.done
        else:
            fused = choose_backend(network, options, batch_size=len(prompts)) is FUSED_GREEDY
            kernels = greedy_kernels(network, fused=fused, compiled=compiled)
            steps, search = greedy_steps(run, (), new, compiled=compiled, kernels=kernels)
            done = search.ended
        again = Again(steps, search)

        def work() -> None:
            again.put_back()
            for number in range(1, new):
                again.steps(number)
                if number % STEPS_BETWEEN_CHECKS == 0:
                    bool(done.all())

        return timed(work)


def ours(name: str, network: Network, batch: int, length: int, new: int, *, beam: int = 1, compiled: bool) -> Row:
    prompts = prompts_of(batch, length)
    seconds = step_seconds(network, prompts, new, beam=beam, compiled=compiled)
    options = GenerationOptions(max_tokens=new, beam=beam, compile=compiled)
    call = timed(lambda: generate(network, prompts, options), runs=2)
    return {
        "model": name,
        "batch": batch,
        "beam": beam,
        "compiled": compiled,
        "ms a step": 1e3 * seconds / (new - 1),
        "steps": batch * (new - 1) / seconds,
        "call": batch * new / call,
    }


def rates(name: str, config: Config, cases: list[tuple[int, int]], length: int, new: int, tiny: bool) -> list[Row]:
    """Rows for each (batch, beam), plain and compiled, and the peer's rate beside the compiled one."""
    rows = []
    network = made(config)
    for batch, beam in cases:
        for compiled in (False, True) if DEVICE == "cuda" else (False,):
            rows.append(ours(name, network, batch, length, new, beam=beam, compiled=compiled))
            CONSOLE.print(rows[-1])
            free()
    del network
    free()
    model = peer(name, tiny)
    few = min(new, 32)
    for batch, beam in cases:
        rate = batch * few / peer_seconds(model, batch, length, few, beam)
        for row in rows:
            if (row["batch"], row["beam"]) == (batch, beam):
                row["transformers"] = rate
                row["times"] = row["call"] / rate
        CONSOLE.print(f"transformers, {name}, batch {batch}, beam {beam}: {rate:,.0f} tokens/s")
    del model
    free()
    return rows


# ── Sections ─────────────────────────────────────────────────────────────────────────────────────────────────────


def check(tiny: bool) -> list[Row]:
    """Graphs and compiled steps write what the plain loop writes, and find what the plain search finds."""
    prompts = [[5, 6, 9, 11], [8], [4, 4, 12]]
    rows = []
    llama = small_llama(300, 96)
    for name, config in (
        ("gpt2", presets.find_preset("gpt2", vocab_size=300, n_embd=64, n_layer=2, n_head=2)),
        ("llama", llama),
        ("alibi", replace(llama, decoder=replace(llama.stack, position="alibi"))),
        ("t5", presets.find_preset("t5-v1.1-small", d_model=64, num_layers=2, num_heads=4, d_ff=96)),
        ("seq2seq", seq2seq_base(300, 64, 2)),
    ):
        network = made(replace(config, decoder_start_token_id=3), end=(7,), dtype=torch.float32)
        with torch.no_grad():
            network.head.out.weight.mul_(8.0)  # type: ignore[union-attr]  # decided, not by hairs
        for batch in (prompts, prompts[:1]):
            usual = GenerationOptions(max_tokens=40)
            plain = generated_plainly(network, batch, usual)
            options = GenerationOptions(max_tokens=40, beam=4, num_return_sequences=4, length_penalty=0.6)
            with torch.inference_mode():
                searched = beam_search(make_runner(network, batch, options), options, (7,))  # type: ignore[arg-type]
            alone = len(batch) == 1
            # The compiler takes its time: one row of decoders, whose products are sums then, and a batch of sources.
            pays = name in ("gpt2", "llama", "seq2seq") and alone == (name != "seq2seq")
            for compiled in (False, True) if DEVICE == "cuda" and pays else (False,):
                fast = generate(network, batch, GenerationOptions(max_tokens=40, compile=compiled))
                greedy = [r.ids for r in fast] == [r.ids for r in plain]
                sampling = GenerationOptions(
                    max_tokens=40, temperature=1.0, top_p=0.98, suppress_tokens=(9,), seed=3, compile=compiled
                )
                wanted = generated_plainly(network, batch, sampling)
                same_sampled = [r.ids for r in generate(network, batch, sampling)] == [r.ids for r in wanted]
                with torch.inference_mode():
                    found = static_beam_search(
                        make_runner(network, batch, options),  # type: ignore[arg-type]
                        replace(options, compile=compiled),
                        (7,),
                    )
                same = [[h.ids for h in s.finished] for s in found] == [[h.ids for h in s.finished] for s in searched]
                rows.append(
                    {
                        "model": name,
                        "rows": len(batch),
                        "compiled": compiled,
                        "greedy same": greedy,
                        "sampled same": same_sampled,
                        "beams same": same,
                    }
                )
        free()
    return rows


def gpt2_config(tiny: bool) -> Config:
    return presets.find_preset("gpt2", **({"n_embd": 64, "n_layer": 2, "n_head": 2} if tiny else {}))


def gpt2(tiny: bool) -> list[Row]:
    cases = [(2, 1)] if tiny else [(1, 1), (32, 1), (256, 1)]
    return rates("gpt2", gpt2_config(tiny), cases, PROMPT, 8 if tiny else NEW, tiny)


def small_llama(vocab: int, ffn_width: int) -> Config:
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return presets.find_preset("llama-1.1b", vocab_size=vocab, intermediate_size=ffn_width, **size)


def llama_config(tiny: bool) -> Config:
    return small_llama(32_000, 128) if tiny else presets.find_preset("llama-1.1b")


def llama(tiny: bool) -> list[Row]:
    cases = [(2, 1)] if tiny else [(1, 1), (32, 1)]
    return rates("llama-1.1b", llama_config(tiny), cases, PROMPT, 8 if tiny else NEW, tiny)


def beam(tiny: bool) -> list[Row]:
    config = seq2seq_base(500, 64, 2) if tiny else seq2seq_base()
    cases = [(3, 1), (3, 4)] if tiny else [(128, 1), (128, 4)]
    return rates("encoder-decoder base", config, cases, PROMPT, 8 if tiny else 64, tiny)


def _first_of_ours(length: int, tiny: bool) -> Row:
    network = made(llama_config(tiny))
    seconds = timed(lambda: generate(network, prompts_of(1, length), GenerationOptions(max_tokens=1)))
    return {"model": "llama-1.1b", "prompt": length, "ms": 1e3 * seconds}


def first(tiny: bool) -> list[Row]:
    """Seconds from ids in Python to the first new token in Python."""
    rows = [_first_of_ours(length, tiny) for length in ((16, 32) if tiny else (2048, 8192))]
    free()
    model = peer("llama-1.1b", tiny)
    for row in rows:
        row["transformers ms"] = 1e3 * peer_seconds(model, 1, row["prompt"], 1, runs=3)
        row["times"] = row["transformers ms"] / row["ms"]
    return rows


def sampled(tiny: bool) -> list[Row]:
    """Sample one sequence; the host reads each token. Measures the whole call and that of the reference loop."""
    rows = []
    for name, config in (("gpt2", gpt2_config(tiny)), ("llama-1.1b", llama_config(tiny))):
        network: Any = made(config)
        new = 8 if tiny else NEW
        options = GenerationOptions(max_tokens=new, temperature=0.8, top_k=50, seed=1)

        def plain(network: Any = network, options: GenerationOptions = options) -> None:
            generated_plainly(network, prompts_of(1, PROMPT), options)

        def call(network: Any = network, options: GenerationOptions = options) -> None:
            generate(network, prompts_of(1, PROMPT), options)

        fast, slow = new / timed(call, runs=2), new / timed(plain, runs=1)
        rows.append({"model": name, "call": fast, "plain loop": slow, "times": fast / slow})
        free()
    return rows


SECTIONS: dict[str, Callable[[bool], list[Row]]] = {
    "check": check,
    "gpt2": gpt2,
    "llama": llama,
    "beam": beam,
    "first": first,
    "sampled": sampled,
}


def show(section: str, rows: list[Row]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*names, title=section)
    for row in rows:
        table.add_row(*(_told(row.get(name, "—")) for name in names))
    CONSOLE.print(table)


def _told(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"some of {', '.join(SECTIONS)}; none: all")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    told: Row = {"torch": torch.__version__, "device": DEVICE}
    if DEVICE == "cuda":
        told["device"] = torch.cuda.get_device_name()
        torch.set_float32_matmul_precision("highest")  # `check` compares, and nothing else here is in float32
    if arguments.out and arguments.out.exists():
        told = json.loads(arguments.out.read_text()) | told
    for section in arguments.sections or SECTIONS:
        begin = time.perf_counter()
        told[section] = SECTIONS[section](arguments.tiny)
        show(section, told[section])
        CONSOLE.print(f"{section}: {time.perf_counter() - begin:.0f} s")
        if arguments.out:
            arguments.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
