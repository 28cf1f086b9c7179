"""`qkv bench`: measure a model's throughput against the hardware's limits."""

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv import UsageError
from qkv.cli.shared import (
    Int4,
    Int8,
    Json,
    StdoutConsole,
    print_json,
    print_notes,
    quantize_model,
    weight_precision,
)
from qkv.errors import suggest_name

if TYPE_CHECKING:
    from qkv.decode import WeightPrecision

PRECISIONS_FRACTION = 0.4
"""The fraction of the time in which the precisions of the weights are measured."""


def bench(
    model: str,
    /,
    *,
    device: str = "auto",
    dtype: str = "auto",
    int8: Int8 = False,
    int4: Int4 = False,
    seconds: float = 20.0,
    picture: Path | None = None,
    train: bool = False,
    json: Json = False,
) -> None:
    """Measure the throughput of a model (prefill, decoding, the engine, beam search) against the hardware's limits.

    The limits are memory bandwidth and matrix-multiply FLOP/s, measured in the model's dtype. They give a minimum time
    for a step, which must read all weights and the cache once. For each batch size, the table shows the measured
    throughput as a fraction of the limit. The batch size grows until the time is spent. On a CPU, a second table
    compares weights in float32, bfloat16, int8 and int4 for one sequence, unless --dtype, --int8 or --int4 chooses one
    of them.

    Examples:
        qkv bench gpt2
        qkv bench models/translator --int8 --picture bench.svg
        qkv bench llama-1.1b --device cuda --dtype bfloat16 --seconds 60 --json
        qkv bench bert-small --train

    Parameters
    ----------
    model
        A model folder, a hub id, an unfinished run, a bundled model (qkv models), or a preset with random
        weights (qkv info presets).
    device
        Device: cpu, cuda, mps, or auto for a GPU if there is one.
    dtype
        float32, bfloat16, float16, float64, or auto: the dtype of the stored weights; for a preset bfloat16 on a GPU.
    int8
        Quantize the linear layers to int8.
    int4
        Quantize the linear layers to int4, in groups of 32 weights.
    seconds
        Approximate duration in seconds; a large model may need longer.
    picture
        Also draw the results into this SVG file.
    train
        Measure training steps on random tokens instead: tokens/s, the share of the machine's product rate, and a
        profile.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"--seconds must be > 0, got {seconds:g}")
    if picture is not None and picture.suffix.lower() != ".svg":
        raise UsageError(f"--picture {picture}: the picture is an SVG file; for example: --picture bench.svg")
    if picture is not None and picture.is_dir():
        raise UsageError(f"--picture {picture}: this is a folder; give a file")
    precision = weight_precision(int8, int4)
    if train:
        if precision is not None or picture is not None or dtype != "auto":
            raise UsageError("--train takes no --int8, --int4, --dtype or --picture: training chooses its precision")
        bench_training(model, device, seconds, json)
        return

    from qkv.render.progress import stages_bar
    from qkv_bench.display import draw_bench, print_bench
    from qkv_bench.precisions import can_measure_precisions, measure_precisions
    from qkv_bench.throughput import run_bench

    start = time.perf_counter()
    loaded = open_model(model, device, dtype, precision)
    load_seconds = time.perf_counter() - start
    parameters = sum(p.numel() for p in loaded.network.parameters())
    loaded = quantize_model(loaded, model, precision)
    with stages_bar() as report:
        all_precisions = dtype == "auto" and precision is None and can_measure_precisions(loaded.network)
        left = seconds * (1 - PRECISIONS_FRACTION) if all_precisions else seconds
        result = run_bench(model, loaded.network, parameters, precision=precision, seconds=left, report=report)
        result.load_seconds = load_seconds
        if all_precisions:
            measure_precisions(loaded.network, result, seconds * PRECISIONS_FRACTION, report)
    if picture is not None:
        draw_bench(result, picture)
    if json:
        print_json({**result.to_dict(), "picture": None if picture is None else str(picture)})
        return
    print_bench(result, StdoutConsole())
    if picture is not None:
        print_notes("picture", [f"written to {picture}"])


def bench_training(model: str, device: str, seconds: float, json: bool) -> None:
    """Measure and print training steps."""
    from qkv.render.progress import stages_bar
    from qkv_bench.training import print_training_bench, run_training_bench

    loaded = open_model(model, device, "float32", None)
    with stages_bar() as report:
        result = run_training_bench(model, loaded.network, seconds, report)
    if json:
        print_json(result.to_dict())
    else:
        print_training_bench(result, StdoutConsole())


def open_model(name: str, device: str, dtype: str, precision: "WeightPrecision | None") -> Any:
    """Load a folder, or make a preset with random weights. Before that, check that the weights fit in memory."""
    from qkv import api
    from qkv.models.tables import presets
    from qkv.store.hub import bundled_folders
    from qkv.train.run.load import load_model
    from qkv_bench.machine import check_memory, choose_device, choose_dtype

    target = choose_device(device)
    if name in presets.PRESETS and not Path(name).is_dir():
        config, chosen = presets.find_preset(name), choose_dtype(dtype, target)
        check_memory(name, config, chosen, target, precision=precision)
        return api.new(config, device=target, dtype=chosen)
    is_local = Path(name).exists() or name in bundled_folders()
    if os.sep not in name and not is_local:
        known = [*presets.PRESETS, *bundled_folders()]
        raise UsageError(f"{name}: no such folder, preset or bundled model; {suggest_name(name, known)}")
    if is_local:
        stored = load_model(name, device="meta")
        if dtype == "auto":
            dtype = str(next(stored.network.parameters()).dtype).removeprefix("torch.")
        check_memory(name, stored.config, choose_dtype(dtype, target), target, precision=precision)
    return api.load(name, device=target, dtype=None if dtype == "auto" else dtype)
