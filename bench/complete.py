"""The latency of a keystroke: `m.complete` with and without the keys and values of the previous call.

    python bench/complete.py MODEL --text notes.txt --keystrokes 200

The text is typed character by character after a context of `--context` characters. Times are in milliseconds: elapsed
time, and CPU time. The latency of a keystroke is the elapsed time on an idle machine, so the load average (1, 5 and 15
minutes) is printed first. With one thread (`OMP_NUM_THREADS=1`), both times are equal if no other program interferes.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import qkv
from qkv.tasks.run.complete import Completer
from qkv.tasks.text_model import TextModel


def time_keystrokes(
    model: TextModel, text: str, start: int, count: int, *, keeps_cache: bool
) -> dict[str, list[float]]:
    """The milliseconds of each call but the first, which reads the context."""
    completer, times = Completer(model), {"elapsed": list[float](), "CPU": list[float]()}
    for end in range(start, min(start + count, len(text)) + 1):
        if not keeps_cache:
            completer.cache, completer.cached_ids = None, []
        begin, cpu_begin = time.perf_counter(), time.process_time()
        completer.complete(text[:end], top=3, max_tokens=8)
        times["elapsed"].append(1e3 * (time.perf_counter() - begin))
        times["CPU"].append(1e3 * (time.process_time() - cpu_begin))
    return {name: values[1:] for name, values in times.items()}


def main() -> None:
    """Measure both, and print the median and the 95th percentile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--context", type=int, default=500)
    parser.add_argument("--keystrokes", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    loaded = qkv.load(options.model, device=options.device)
    assert loaded.tokenizer is not None
    model = TextModel(loaded.network, loaded.tokenizer, loaded.config)
    text = options.text.read_text(encoding="utf-8")
    print("load average", *(f"{load:.2f}" for load in os.getloadavg()))
    for name, keeps_cache in (("keys and values kept", True), ("read again", False)):
        times = time_keystrokes(model, text, options.context, options.keystrokes, keeps_cache=keeps_cache)
        for clock, values in times.items():
            median, slow = statistics.median(values), statistics.quantiles(values, n=20)[-1]
            print(f"{name:22} {clock:8} median {median:7.1f} ms   95 % below {slow:7.1f} ms   {len(values)} keystrokes")


if __name__ == "__main__":
    main()
