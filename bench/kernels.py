"""Attention kernels on packed rows: each against the plain reference, forward and backward, then timed in a model.

python bench/kernels.py --json out.json            on a GPU
python bench/kernels.py --small                    anywhere, to see that it runs
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from qkv.blocks import HeadConfig, Inputs, Mask, Stack, StackConfig, make_layout
from qkv.blocks.attention import eager
from qkv.blocks.kernels.choose import KERNELS, prepare_mask
from qkv.blocks.kernels.prepared import KernelHints
from qkv.models import Config, Network, build


def packed(rows: int, length: int, documents: int, device: str, seed: int = 0) -> Tensor:
    """Segments of rows that pack `documents` texts of random lengths and end in a little padding."""
    generator = torch.Generator().manual_seed(seed)
    segment = torch.zeros(rows, length, dtype=torch.long)
    for row in segment:
        cuts = torch.randperm(length - 2, generator=generator)[:documents].sort().values + 1
        for number, (a, b) in enumerate(zip([0, *cuts[:-1].tolist()], cuts.tolist(), strict=True), 1):
            row[a:b] = number
    return segment.to(device)


def agree(kernel: str, device: str, dtype: torch.dtype, causal: bool, window: int, kv_heads: int, cross: bool) -> float:
    """The largest difference, in outputs and gradients, from the eager kernel on the same numbers in float32."""
    rows, length, heads, width, documents = 2, 256, 4, 64, 5
    hints = KernelHints(max_documents=documents)
    torch.manual_seed(1)
    segment = packed(rows, length, documents, device)
    query = make_layout(segment, segment)
    keys = packed(rows, length, documents, device, seed=1) if cross else segment
    key = make_layout(keys, keys) if cross else query
    tensors = [torch.randn(rows, n, length, width, device=device).to(dtype) for n in (heads, kv_heads, kv_heads, heads)]
    results = []
    for name, kind in (("eager", torch.float32), (kernel, dtype)):
        q, k, v, weight = (t.to(kind).requires_grad_() for t in tensors)
        x = torch.empty(rows, length, heads * width, device=device, dtype=kind)
        prepared = prepare_mask(Mask(query, key, causal, window), x, kernel=name, query_hints=hints, key_hints=hints)  # type: ignore[arg-type]
        assert prepared.kernel == name
        out = (eager if name == "eager" else KERNELS[name])(q, k, v, prepared, width**-0.5)
        grads = torch.autograd.grad((out * weight).sum(), (q, k, v))
        results.append([out.detach().float(), *(g.float() for g in grads)])
    return max(float((a - b).abs().max()) for a, b in zip(*results, strict=True))


FAMILIES = {
    "decoder 124M": lambda c: Config(decoder=c, head=HeadConfig(kind="lm", outputs=c.vocab_size, tied=True)),
    "encoder 110M": lambda c: Config(
        encoder=c, head=HeadConfig(kind="mlm", outputs=c.vocab_size, tied=True, dense="gelu", dense_norm=True)
    ),
    "encoder-decoder base": lambda c: Config(
        encoder=c, decoder=c, head=HeadConfig(kind="lm", outputs=c.vocab_size, tied=True), share_embeddings=True
    ),
}


def set_kernel(network: Network, kernel: str) -> None:
    for module in network.modules():
        if isinstance(module, Stack):
            module.kernel = kernel  # type: ignore[assignment]


def step_time(family: str, kernel: str, device: str, small: bool, compiled: bool) -> dict[str, float]:
    """Seconds of one training step (forward, loss, backward), tokens a second, and the peak of memory."""
    if family == "encoder-decoder base":
        stack = StackConfig(vocab_size=32_000, width=512, layers=6, heads=8, ffn_width=2048, max_positions=1024)
        rows, length, documents = 32, 512, 16
    else:
        stack = StackConfig(vocab_size=50_304, width=768, layers=12, heads=12, ffn_width=3072, max_positions=1024)
        rows, length, documents = 32, 1024, 8
    if small:
        stack = StackConfig(vocab_size=100, width=64, layers=2, heads=2, ffn_width=128)
        rows, length, documents = 2, 128, 4
    torch.compiler.reset()  # each row compiles for itself, as a run of its own would
    network = build(FAMILIES[family](stack), device=device)
    set_kernel(network, kernel)
    segment = packed(rows, length, documents, device)
    ids = torch.randint(0, stack.vocab_size, segment.shape, device=device)

    def loss() -> Tensor:
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            inputs = Inputs(ids, document_ids=segment, max_documents=documents)
            logits = network(replace(inputs, source=inputs))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())

    run: Callable[[], Tensor] = torch.compile(loss, fullgraph=True, dynamic=False) if compiled else loss
    synchronise = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(3 if small else 13):
        synchronise()
        start = time.perf_counter()
        run().backward()
        network.zero_grad(set_to_none=True)
        synchronise()
        times.append(time.perf_counter() - start)
    seconds = sorted(times[len(times) // 4 :])[len(times) // 3]
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    return {"ms": 1e3 * seconds, "tokens_per_s": int((segment != 0).sum()) / seconds, "gib": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    console = Console(width=110)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    console.print(f"torch {torch.__version__} on {name}")
    kernels = ["sdpa", "flex", "varlen"] if device == "cuda" else ["sdpa"]
    results: dict[str, object] = {"torch": torch.__version__, "device": name}

    table = Table("kernel", "causal", "sliding_window", "kv heads", "cross", "largest difference from plain")
    agreements = []
    for kernel in kernels:
        dtype = torch.bfloat16 if kernel == "varlen" else torch.float32
        for causal, window, kv_heads, cross in (
            (False, 0, 4, False),
            (True, 0, 4, False),
            (True, 20, 2, False),
            (False, 20, 4, False),
            (False, 0, 4, True),
        ):
            difference = agree(kernel, device, dtype, causal, window, kv_heads, cross)
            agreements.append([kernel, causal, window, kv_heads, cross, difference])
            table.add_row(kernel, str(causal), str(window), str(kv_heads), str(cross), f"{difference:.1e} ({dtype})")
    console.print(table)
    results["agreement"] = agreements

    table = Table("model", "kernel", "compiled", "ms a step", "tokens/s", "peak GiB")
    times = []
    for family in FAMILIES:
        for kernel in kernels:
            for compiled in (False, True) if device == "cuda" else (False,):
                try:
                    row = step_time(family, kernel, device, arguments.small, compiled)
                except Exception as error:  # a kernel that cannot do it is a result too
                    console.print(
                        f"{family}, {kernel}, compiled={compiled}: {type(error).__name__}: {str(error)[:300]}"
                    )
                    continue
                times.append({"model": family, "kernel": kernel, "compiled": compiled, **row})
                table.add_row(
                    family,
                    kernel,
                    str(compiled),
                    f"{row['ms']:.1f}",
                    f"{row['tokens_per_s']:,.0f}",
                    f"{row['gib']:.1f}",
                )
    console.print(table)
    results["steps"] = times
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
