"""`qkv bench`: what this machine reaches with a model, beside what it could."""

import math
import os
from pathlib import Path
from typing import Any

from qkv.cli.shared import Int8, Json, StdoutConsole, app, print_json, print_notes
from qkv.errors import UsageError, suggest_name


@app.command
def bench(
    model: str,
    /,
    *,
    device: str = "auto",
    dtype: str = "auto",
    int8: Int8 = False,
    seconds: float = 20.0,
    picture: Path | None = None,
    json: Json = False,
) -> None:
    """Measure what this machine reaches with a model: reading, writing and searching, beside the machine's limits.

    The limits are measured too: how fast memory is read and how fast matrices are multiplied, here and in this type.
    From these follows what a step could take at the least, as it must read all weights and the cache once; how much of
    that is reached is told for each batch. Batches grow for as long as the time given lasts.

    Examples:
        qkv bench gpt2
        qkv bench models/translator --int8 --picture bench.svg
        qkv bench llama-1.1b --device cuda --dtype bfloat16 --seconds 60 --json

    Parameters
    ----------
    model
        A model folder or hub id, an unfinished run, or a preset (qkv info presets lists them), with random weights.
    device
        Where to run: cpu, cuda, mps; auto is the GPU where there is one.
    dtype
        What to compute in: float32, bfloat16, float16, float64; auto is what a folder's weights are in, and for a
        preset bfloat16 on a GPU and float32 elsewhere.
    int8
        With the linear maps in int8.
    seconds
        How long it may take, about; a large model may need longer.
    picture
        Where to draw it, as an SVG file.
    """
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"--seconds {seconds}: above 0")
    if picture is not None and picture.suffix.lower() != ".svg":
        raise UsageError(f"--picture {picture}: the picture is an SVG file, as in --picture bench.svg")
    if picture is not None and picture.is_dir():
        raise UsageError(f"--picture {picture}: this is a folder; name a file in it")

    from qkv.measure import measure
    from qkv.render import bench as shown
    from qkv.render.progress import stages_bar

    loaded = open_model(model, device, dtype, int8)
    print_notes(model, loaded.notes)
    parameters = sum(one.numel() for one in loaded.network.parameters())
    if int8:
        loaded = loaded.quantize()
    with stages_bar() as report:
        found = measure(model, loaded.network, parameters, int8=int8, seconds=seconds, report=report)
    if picture is not None:
        shown.draw_bench(found, picture)
    if json:
        print_json({**found.to_dict(), "picture": None if picture is None else str(picture)})
        return
    shown.print_bench(found, StdoutConsole())
    if picture is not None:
        print_notes("picture", [f"drawn to {picture}"])


def open_model(name: str, device: str, dtype: str, int8: bool) -> Any:
    """A preset with random weights, or a folder; refused before weights are read where they do not fit."""
    from qkv import api
    from qkv.measure import check_memory, choose_device, choose_dtype
    from qkv.models.tables import presets
    from qkv.train.run import load as midway

    place = choose_device(device)
    if name in presets.PRESETS and not Path(name).is_dir():
        config, kind = presets.find_preset(name), choose_dtype(dtype, place)
        check_memory(name, config, kind, place, int8=int8)
        return api.new(config, device=place, dtype=kind)
    if os.sep not in name and not Path(name).exists():
        raise UsageError(f"{name}: neither a folder nor a preset; {suggest_name(name, presets.PRESETS)}")
    if Path(name).exists():
        stored = midway.load_model(name, device="meta")
        if dtype == "auto":
            dtype = str(next(stored.network.parameters()).dtype).removeprefix("torch.")
        check_memory(name, stored.config, choose_dtype(dtype, place), place, int8=int8)
    return api.load(name, device=place, dtype=None if dtype == "auto" else dtype)
