"""Verbs for model folders: look at one, read other people's, write for other people's code."""

import os
from pathlib import Path
from typing import Literal

from qkv.cli.shared import Json, StdoutConsole, app, print_json, print_notes, print_result
from qkv.errors import UsageError, suggest_name


@app.command
def info(model: str, /, *, context: int | None = None, json: Json = False) -> None:
    """Show where a model's parameters, arithmetic and memory go.

    No weight is read or allocated: a preset of any size answers at once, and a folder is checked against its config.

    Examples:
        qkv info gpt3-175b
        qkv info bert-base --json
        qkv info path/to/model --context 4096

    Parameters
    ----------
    model
        A preset (qkv info presets lists them), a qkv or Hugging Face folder, or a hub id.
    context
        The length that arithmetic is reckoned at; by default the model's own, at most 2,048.
    """
    from qkv.models.tables.summary import summarise_model
    from qkv.models.tables import presets
    from qkv.render import info as picture
    from qkv.train.run import load as midway

    if model == "presets" and not Path(model).exists():
        return _show_presets(json)
    if context is not None and context < 1:
        raise UsageError(f"--context {context}: a length is at least 1")
    if model in presets.PRESETS and not Path(model).is_dir():
        config, notes = presets.find_preset(model), []
    elif os.sep in model or Path(model).exists():
        stored = midway.load_model(model, device="meta")
        config, notes = stored.config, stored.notes
    else:
        raise UsageError(f"{model}: neither a folder nor a preset; {suggest_name(model, presets.PRESETS)}")
    books = summarise_model(config, context)
    print_notes(model, notes)
    if json:
        print_json({"model": model, **books.to_dict(), "config": config.to_dict(), "notes": notes})
    else:
        picture.print_info(model, config, books, StdoutConsole())
    return None


def _show_presets(json: bool) -> None:
    from qkv.models.tables.summary import summarise_model
    from qkv.models.tables import presets
    from qkv.render.formatting import format_count
    from qkv.render.info import FAMILY_NAMES

    books = {name: summarise_model(make()) for name, make in presets.PRESETS.items()}
    if json:
        print_json({name: {"family": b.family, "parameters": b.total} for name, b in books.items()})
        return
    for name, b in books.items():
        print(f"{name:<18} {FAMILY_NAMES[b.family]:<16} {format_count(b.total):>14}")


@app.command(name="import")
def import_(model: str, folder: Path, /, *, json: Json = False) -> None:
    """Turn a Hugging Face folder or hub id into a qkv model folder.

    Example:
        qkv import path/to/huggingface/model models/mine

    Parameters
    ----------
    model
        A Hugging Face folder or hub id.
    folder
        Where to write.
    """
    from qkv import store

    check_not_same_folder(model, folder)
    stored = store.read_model(model)
    print_notes(model, stored.notes)
    store.write_model(folder, stored.config, stored.network, stored.tokenizer)
    print_result(
        json, f"wrote {folder}; load it with qkv.load({str(folder)!r})", {"folder": str(folder), "notes": stored.notes}
    )


@app.command
def export(
    model: str, folder: Path, /, *, format: Literal["hf", "ctranslate2", "onnx"] = "hf", json: Json = False
) -> None:
    """Write a model as other people's code reads it.

    Example:
        qkv export models/mine exported --format hf

    Parameters
    ----------
    model
        A model folder, or a run's checkpoint.
    folder
        Where to write.
    format
        hf: a folder that transformers, vLLM and other readers of that layout load; ctranslate2: one for that engine;
        onnx: graphs for onnxruntime.
    """
    from qkv import store
    from qkv.train.run import load as midway

    check_not_same_folder(model, folder)
    stored = midway.load_model(model)
    print_notes(model, stored.notes)
    cls = store.write_model(folder, stored.config, stored.network, stored.tokenizer, format)
    calls = {
        "hf": f"transformers.{cls}.from_pretrained({str(folder)!r})",
        "ctranslate2": f"ctranslate2.{cls}({str(folder)!r})",
        "onnx": f"onnxruntime.InferenceSession for each of {cls}",
    }
    call = calls[format]
    print_result(
        json, f"wrote {folder}; load it with {call}", {"folder": str(folder), "class": cls, "notes": stored.notes}
    )


def check_not_same_folder(model: str, folder: Path) -> None:
    """Refuse to write a model over the folder that it is read from."""
    if Path(model).is_dir() and folder.is_dir() and Path(model).samefile(folder):
        raise UsageError(f"{folder}: this is the folder that the model is read from; choose another")
