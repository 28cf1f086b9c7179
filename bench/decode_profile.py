"""Profile a decoding step of one sequence on a GPU: compare variants of the step, and list its kernels.

python bench/decode_profile.py gemv                      matrix-vector products, by implementation: bytes per second
python bench/decode_profile.py variants --model gpt2     whole steps, by variant: ms, kernels, fraction of the bandwidth
python bench/decode_profile.py kernels --variant sums    the kernels of one step, the slowest first
python bench/decode_profile.py beam                      the kernels of a beam search step, 128 sources × 4 beams
python bench/decode_profile.py variants --tiny           a small test that runs on a CPU, without graphs and compiler
"""

import argparse
import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from rich.table import Table
from torch import Tensor

from decode import CONSOLE, Again, gpt2_config, llama_config, made, run_state, seq2seq_base
from decode_peers import DEVICE, HALF, free, prompts_of, synchronise, timed
from qkv.decode import GenerationOptions
from qkv.decode.gpu import graphs as static
from qkv.decode.gpu import static_runner as static_step
from qkv.decode.gpu.beam import BeamTensors
from qkv.decode.gpu.graphs import GraphedSteps
from qkv.decode.gpu.greedy import GreedyState, MatvecLinear, replace_linears
from qkv.decode.gpu.static_runner import CacheView, StaticRunner
from qkv.decode.runner import make_runner
from qkv.models import Network

TRITON = DEVICE == "cuda" and importlib.util.find_spec("triton") is not None
NEW = 128
TUNED = {"coordinate_descent_tuning": True}


# ── Attention for few queries, three ways ────────────────────────────────────────────────────────────────────────


def with_sums(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Compute attention with sums instead of products, so that the compiler generates its kernels."""
    scores = (q[:, :, :, None].float() * k[:, :, None]).sum(-1) * scale
    weights = (scores if mask is None else scores + mask).softmax(-1)
    return (weights[..., None] * v[:, :, None]).sum(-2).to(q.dtype)


def with_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Compute attention as two batched products and a softmax."""
    scores = (q @ k.transpose(-2, -1)).float() * scale
    return (scores if mask is None else scores + mask).softmax(-1).to(q.dtype) @ v


# ── Ideas ────────────────────────────────────────────────────────────────────────────────────────────────────────

Variant = dict[str, Any]
VARIANTS: dict[str, Variant] = {
    "graphs": {"compiled": False},
    "compiled": {"options": {}},
    "tuned": {"options": TUNED},  # the compiler turns products without a bias into sums
    "sums": {"options": TUNED, "one_row": True},  # all products are sums, as in `generate` with compile=True
    "sums, untuned": {"options": {}, "one_row": True},
    "sums, attention too": {"options": TUNED, "one_row": True, "attend": with_sums},
    "sums, attention as products": {"options": TUNED, "one_row": True, "attend": with_products},
    "sums, combined kernels": {
        "options": {**TUNED, "combo_kernels": True, "benchmark_combo_kernel": True},
        "one_row": True,
    },
    "sums, cooperative": {"options": {**TUNED, "triton.cooperative_reductions": True}, "one_row": True},
    "sums, several kernels tried": {"options": {**TUNED, "triton.multi_kernel": 1}, "one_row": True},
    "hand": {
        "compiled": False,
        "hand": True,
    },  # `fused_step`, which `generate` uses for supported networks
}
USUAL = ["graphs", "tuned", "sums", "sums, attention too", "sums, combined kernels", "hand"]


@contextlib.contextmanager
def switched(variant: Variant) -> Iterator[None]:
    """Set the attention function and the compiler options of a variant."""
    with (
        mock.patch.object(static_step, "attend", variant.get("attend", static_step.attend)),
        mock.patch.object(static, "MATVEC_COMPILE_OPTIONS", variant.get("options", {})),
    ):
        yield


def prepare(network: Any, variant: Variant, new: int) -> tuple[Again, GreedyState]:
    """Return the steps of one sequence, after the prompt and its first token."""
    run = make_runner(network, prompts_of(1, 32), GenerationOptions(max_tokens=new))
    one_row = variant.get("one_row") and DEVICE == "cuda"
    static_run = StaticRunner(run, new, network=replace_linears(network, MatvecLinear) if one_row else network)
    greedy = GreedyState(static_run, (), new)
    greedy.choose(static_run.prefill_logits)
    hand = variant.get("hand")
    step: Callable[[CacheView], None] = _by_hand(static_run, greedy) if hand else greedy.step
    compiled = variant.get("compiled", True) and DEVICE == "cuda"
    return Again(GraphedSteps(static_run, step, compiled=compiled, uses_buckets=not hand), greedy), greedy


def _by_hand(run: StaticRunner, greedy: GreedyState) -> Callable[[CacheView], None]:
    from qkv.decode.gpu.fused_step import FusedGreedyStep

    step = FusedGreedyStep(run, greedy)
    # Compare the logits of both implementations from the same state, and restore it, before anything is timed.
    state = [*run_state(run), greedy.token]
    saved = [tensor.clone() for tensor in state]
    answers = [run.logits(greedy.token, run.view(run.num_slots)).float()[0]]
    for tensor, value in zip(state, saved, strict=True):
        tensor.copy_(value)
    answers.append(step.logits())
    off = (answers[0] - answers[1]).abs().max() / answers[0].std()
    CONSOLE.print(f"kernels by hand: logits off by at most {float(off):.4f} of their spread (bfloat16: about 0.05)")
    return step


def weight_bytes(run: StaticRunner) -> int:
    """Return the bytes that a step must read: the weights of all linear maps of the decoder and the head."""
    total = 0
    for part in (run.stack, run.head):
        for module in part.modules():
            if isinstance(module, torch.nn.Linear | MatvecLinear):
                total += module.weight.numel() * module.weight.element_size()
    return total


def measure(network: Network, variant: Variant, new: int) -> tuple[float, Again, list[int]]:
    """Return the seconds per step, the steps, and the tokens that they generated."""
    with torch.inference_mode(), switched(variant):
        again, greedy = prepare(network, variant, new)

        def work() -> None:
            again.put_back()
            for number in range(1, new):
                again.steps(number)

        return timed(work) / (new - 1), again, greedy.written[0].tolist()


def kernels_of(again: Again, repeat: int = 10) -> list[tuple[str, int, float]]:
    """The kernels of one step, and of putting its state back: name, how often, microseconds in all; costliest first."""
    replay = next(iter(again.steps.graphs.values())).replay
    with torch.inference_mode():
        again.put_back()
        replay()
        synchronise()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(repeat):
                again.put_back()
                replay()
            synchronise()
    found = []
    for event in profile.key_averages():
        micros = float(event.self_device_time_total) / repeat
        if micros > 0:  # what the host does has none
            found.append((event.key, round(event.count / repeat), micros))
    return sorted(found, key=lambda kernel: -kernel[2])


# ── Sections ─────────────────────────────────────────────────────────────────────────────────────────────────────


def network_of(model: str, tiny: bool) -> Network:
    return made((gpt2_config if model == "gpt2" else llama_config)(tiny))


def variants(arguments: argparse.Namespace) -> None:
    network = network_of(arguments.model, arguments.tiny)
    new = 8 if arguments.tiny else NEW
    bandwidth = copy_bandwidth()
    names = arguments.variant or USUAL
    table = Table("variant", "ms a step", "tokens/s", "kernels", "GB/s of weights", "% of copying", "same text", "s")
    first: list[int] | None = None
    for name in names:
        variant = VARIANTS[name]
        if variant.get("hand") and not TRITON:
            continue
        begin = time.perf_counter()
        try:
            seconds, again, text = measure(network, variant, new)
        except Exception as error:  # one idea that does not compile should not hide the others
            CONSOLE.print(f"{name}: {type(error).__name__}: {str(error)[:600]}")
            free()
            continue
        first = first or text
        count = sum(kernel[1] for kernel in kernels_of(again)) - len(again.state) if DEVICE == "cuda" else 0
        rate = weight_bytes(again.steps.runner) / seconds
        alike = sum(a == b for a, b in zip(text, first, strict=True)) / len(text)
        row = (f"{1e3 * seconds:.3f}", f"{1 / seconds:,.0f}", str(count), f"{rate / 1e9:,.0f}")
        share, took = f"{100 * rate / bandwidth:.0f}", f"{time.perf_counter() - begin:.0f}"
        CONSOLE.print(name, *row, share, f"{alike:.2f}", took)
        table.add_row(name, *row, share, f"{alike:.2f}", took)
        del again
        free()
    CONSOLE.print(f"{arguments.model}, one row; copying reaches {bandwidth / 1e9:,.0f} GB/s read and written")
    CONSOLE.print(table)


def kernels(arguments: argparse.Namespace) -> None:
    network = network_of(arguments.model, arguments.tiny)
    for name in arguments.variant or ["sums"]:
        seconds, again, _ = measure(network, VARIANTS[name], 8 if arguments.tiny else 32)
        show_kernels(f"{arguments.model}, {name}: {1e3 * seconds:.3f} ms a step", again)
        free()


def show_kernels(title: str, again: Again) -> None:
    if DEVICE != "cuda":
        CONSOLE.print(f"{title}; the list of kernels needs a GPU")
        return
    found = kernels_of(again)
    table = Table("kernel", "times", "µs in all", "µs each", title=title)
    for name, count, micros in found[:30]:
        table.add_row(name[:90], str(count), f"{micros:.1f}", f"{micros / max(count, 1):.2f}")
    CONSOLE.print(table)
    total, number = sum(k[2] for k in found), sum(k[1] for k in found)
    CONSOLE.print(f"{number} kernels ({len(again.state)} of them put the state back), {total:.0f} µs busy")


def beam(arguments: argparse.Namespace) -> None:
    sources, new = (3, 8) if arguments.tiny else (128, 64)
    network: Any = made(seq2seq_base(500, 64, 2) if arguments.tiny else seq2seq_base())
    for compiled in (False, True) if DEVICE == "cuda" else (False,):
        options = GenerationOptions(max_tokens=new, beam=4, compile=compiled)
        with torch.inference_mode():
            run = StaticRunner(make_runner(network, prompts_of(sources, 32), options), new, num_beams=4)
            search = BeamTensors(run, options, ())
            search.advance(run.prefill_logits.repeat_interleave(4, dim=0), run.view(run.num_slots))
            again = Again(GraphedSteps(run, search.step, compiled=compiled), search)

            def work(again: Again = again) -> None:
                again.put_back()
                for number in range(1, new):
                    again.steps(number)

            seconds = timed(work) / (new - 1)
        rate = f"{1e3 * seconds:.3f} ms a step, {sources / seconds:,.0f} tokens/s"
        show_kernels(f"beam 4, {sources} sources, {'compiled' if compiled else 'graphs'}: {rate}", again)
        del again, work
        free()


def gemv(arguments: argparse.Namespace) -> None:
    """Each product over enough copies of its matrix that none is still in the cache when it comes again."""
    shapes = [(2304, 768), (768, 3072), (50257, 768), (2560, 2048), (2048, 2048), (11264, 2048), (2048, 5632)]
    shapes = [(64, 32)] if arguments.tiny else [*shapes, (32000, 2048)]
    bandwidth = copy_bandwidth()
    table = Table("outputs × inputs", "kind", "µs", "GB/s", "% of copying")
    for outputs, inputs in shapes:
        copies = 2 if arguments.tiny else max(2, int(256e6) // (2 * outputs * inputs))
        linears = [torch.nn.Linear(inputs, outputs, bias=False, device=DEVICE, dtype=HALF) for _ in range(copies)]
        x = torch.randn(1, 1, inputs, device=DEVICE, dtype=HALF)
        for kind, work in gemv_kinds(linears, x).items():
            with torch.inference_mode():
                micros = 1e6 * graphed(work) / copies
            rate = 2 * outputs * inputs / micros * 1e6
            shown = (f"{micros:.2f}", f"{rate / 1e9:,.0f}", f"{100 * rate / bandwidth:.0f}")
            table.add_row(f"{outputs} × {inputs}", kind, *shown)
        free()
    CONSOLE.print(table)


def gemv_kinds(linears: list[torch.nn.Linear], x: Tensor) -> dict[str, Callable[[], None]]:
    def over(parts: list[Any]) -> Callable[[], None]:
        def work() -> None:
            for part in parts:
                part(x)

        return work

    def each(parts: list[Any], options: dict[str, Any]) -> Callable[[], None]:
        # One function for all copies, compiled once: weights are its arguments.
        compiled = torch.compile(lambda part, y: part(y), dynamic=False, fullgraph=True, options=options)

        def work() -> None:
            for part in parts:
                compiled(part, x)

        return work

    kinds: dict[str, Callable[[], None]] = {"cuBLAS": over(linears)}
    if DEVICE == "cuda":
        kinds["sum, tuned"] = each([MatvecLinear(linear) for linear in linears], TUNED)
        kinds["sum, untuned"] = each([MatvecLinear(linear) for linear in linears], {})
        if TRITON:
            from qkv.decode.gpu.fused_step import FusedLinear

            flat = x.view(-1).float()
            launch = {"EARLY": True, "launch_pdl": True}
            products = [FusedLinear(linear) for linear in linears]
            kinds["hand"] = lambda: [one(flat, launch=launch) for one in products] and None
    return kinds


def graphed(work: Callable[[], None]) -> float:
    """Seconds of some work, replayed as one CUDA graph where there is a GPU."""
    if DEVICE != "cuda":
        return timed(work)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch._dynamo.config.patch(recompile_limit=512):
        work()
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return timed(graph.replay, runs=10)


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a large copy."""
    size = 1 << (22 if DEVICE == "cpu" else 29)
    a, b = (torch.zeros(size, device=DEVICE, dtype=torch.int8) for _ in range(2))
    return 2 * size / timed(lambda: b.copy_(a), runs=10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=["gemv", "variants", "kernels", "beam"])
    parser.add_argument("--model", choices=["gpt2", "llama-1.1b"], default="llama-1.1b")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="again for several")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    {"gemv": gemv, "variants": variants, "kernels": kernels, "beam": beam}[arguments.section](arguments)


if __name__ == "__main__":
    main()
