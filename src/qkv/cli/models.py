"""`qkv models`, `qkv info`, `qkv import` and `qkv export`: list, inspect and convert models."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from qkv.cli.shared import Json, StdoutConsole, check_minimum, fast_imports, print_json, print_notes, print_result
from qkv.errors import UsageError, count_nouns, suggest_name


def info(model: str, /, *, context: int | None = None, json: Json = False) -> None:
    """Show the parameters, FLOPs and memory of a model.

    This is fast for models of any size, because it does not load or allocate weights. For a folder, it also checks that
    the tensors match the config.

    Examples:
        qkv info gpt3-175b
        qkv info bert-base --json
        qkv info path/to/model --context 4096

    Parameters
    ----------
    model
        A preset (qkv info presets lists them), a qkv or Hugging Face folder, a hub id, or a bundled model (qkv models
        lists them).
    context
        Context length for which to count FLOPs. Default: the model's maximum, but at most 2,048.
    """
    from qkv.models.tables import presets
    from qkv.models.tables.summary import summarise_model
    from qkv.render.info import print_info
    from qkv.store.hub import bundled_folders

    if model == "presets" and not Path(model).exists():
        return _show_presets(json)
    if context is not None:
        check_minimum("context", context, 1)
    if model in presets.PRESETS and not Path(model).is_dir():
        config, notes, num_parameters = presets.find_preset(model), [], None
    elif os.sep in model or Path(model).exists() or model in bundled_folders():
        with fast_imports():
            from qkv.train.run.load import load_model  # imports torch, to check the tensors of the folder

        stored = load_model(model, device="meta")
        config, notes = stored.config, stored.notes
        num_parameters = sum(parameter.numel() for parameter in stored.network.parameters())
    else:
        known = [*presets.PRESETS, *bundled_folders()]
        raise UsageError(f"{model}: no such folder, preset or bundled model; {suggest_name(model, known)}")
    summary = summarise_model(config, context, num_parameters)
    print_notes(model, notes)
    if json:
        print_json({"model": model, **summary.to_dict(), "config": config.to_dict(), "notes": notes})
    else:
        print_info(model, config, summary, StdoutConsole())
    return None


def _show_presets(json: bool) -> None:
    from qkv.models.tables import presets
    from qkv.models.tables.summary import summarise_model
    from qkv.render.formatting import format_count
    from qkv.render.info import FAMILY_NAMES

    summaries = {name: summarise_model(make()) for name, make in presets.PRESETS.items()}
    if json:
        print_json({name: {"family": model.family, "parameters": model.total} for name, model in summaries.items()})
        return
    for name, model in summaries.items():
        print(f"{name:<18} {FAMILY_NAMES[model.family]:<16} {format_count(model.total):>14}")


def list_models(
    *,
    prune: Annotated[bool, Parameter(negative=())] = False,
    yes: Annotated[bool, Parameter(negative=())] = False,
    json: Json = False,
) -> None:
    """List the models that can be used by name: the bundled models, which come with qkv, and the runs in ./runs.

    Examples:
        qkv models
        qkv models --json
        qkv models --prune

    Parameters
    ----------
    prune
        Delete the checkpoints of the finished runs in ./runs, after a question. Their models stay.
    yes
        With --prune: do not ask.
    """
    if yes and not prune:
        raise UsageError("--yes answers the question of --prune; add --prune, or leave --yes out")
    if prune:
        return prune_runs(yes, json)
    with fast_imports():
        from qkv.render.model_list import print_models
        from qkv.tasks.model_list import list_models

    found = list_models()
    if json:
        print_json([model.to_dict() for model in found])
    else:
        print_models(found, StdoutConsole())
    return None


def prune_runs(yes: bool, json: bool) -> None:
    """Delete the checkpoints of finished runs, if the user agrees."""
    from qkv.render.formatting import format_count
    from qkv.tasks.prune import find_prunable, prune

    found = find_prunable()
    total = format_count(sum(one.bytes for one in found), "B")
    if found and not yes:
        listed = "\n".join(f"  {one.run}: {format_count(one.bytes, 'B')}" for one in found)
        question = f"The checkpoints of these finished runs take {total}:\n{listed}\n"
        question += "Without them, their models stay, but the runs cannot be continued. Delete them (y/n)? "
        if json or not sys.stdin.isatty():
            raise UsageError("--prune asks before it deletes; in a script, answer with --yes")
        if input(question).strip().lower() not in ("y", "yes"):
            found = []
    for one in found:
        prune(one.run)
    deleted = (
        f"deleted the checkpoints of {count_nouns(len(found), 'run')}: {total}" if found else "nothing was deleted"
    )
    print_result(json, deleted, {"pruned": [asdict(one) for one in found]})


def import_(model: str, /, out: Path | None = None, *, json: Json = False) -> None:
    """Turn a Hugging Face folder, a hub id or a GGUF file into a qkv model folder.

    Examples:
        qkv import path/to/huggingface/model models/mine
        qkv import model.gguf

    Parameters
    ----------
    model
        A Hugging Face folder, a hub id, or a GGUF file (extra gguf). GGUF weights are dequantized.
    out
        Folder to write. Default for a GGUF file: its name without the extension.
    """
    from qkv import store

    if out is None and not model.lower().endswith(".gguf"):
        raise UsageError("qkv import needs the folder to write: qkv import MODEL FOLDER")
    folder = out or Path(Path(model).stem)
    check_folder(model, folder, replaces_model=False)
    stored = store.read_model(model)
    print_notes(model, stored.notes)
    store.write_model(folder, stored.config, stored.network, stored.tokenizer, processor=stored.processor)
    print_result(
        json, f"wrote {folder}; load it with qkv.load({str(folder)!r})", {"folder": str(folder), "notes": stored.notes}
    )


def export(
    model: str,
    folder: Path,
    /,
    *,
    format: Literal["hf", "ctranslate2", "onnx", "gguf"] | None = None,
    dtype: Literal["f32", "f16", "bf16", "q8_0", "q4_0"] = "f16",
    json: Json = False,
) -> None:
    """Write a model for another library.

    Examples:
        qkv export models/mine exported
        qkv export models/mine mine.gguf --dtype q8_0

    Parameters
    ----------
    model
        A model folder, or a checkpoint of a run.
    folder
        The folder to write; for llama.cpp, a file whose name ends in .gguf.
    format
        hf for transformers, sentence-transformers, vLLM and other readers of Hugging Face folders; ctranslate2; onnx
        for onnxruntime; or gguf for llama.cpp. Default: by the name of the file, or hf.
    dtype
        gguf: the type of the matrices. q4_0 stores embedding and output matrix in q8_0.
    """
    from qkv import store
    from qkv.train.run.load import load_model

    check_folder(model, folder)
    stored = load_model(model)
    print_notes(model, stored.notes)
    chosen = format or ("gguf" if folder.suffix.lower() == ".gguf" else "hf")
    load_class = store.write_model(folder, stored.config, stored.network, stored.tokenizer, chosen, dtype=dtype)
    is_embedder = load_class == "SentenceTransformer"
    calls = {
        "hf": f"sentence_transformers.SentenceTransformer({str(folder)!r})"
        if is_embedder
        else f"transformers.{load_class}.from_pretrained({str(folder)!r})",
        "ctranslate2": f"ctranslate2.{load_class}({str(folder)!r})",
        "onnx": f"onnxruntime.InferenceSession for each of {load_class}",
        "gguf": f"llama-server --model {folder}",
    }
    print_result(
        json,
        f"wrote {folder}; load it with {calls[chosen]}",
        {"folder": str(folder), "class": load_class, "notes": stored.notes},
    )


def push(
    model: str,
    name: str,
    /,
    *,
    format: Literal["qkv", "hf"] = "qkv",
    private: Annotated[bool, Parameter(negative=())] = False,
    json: Json = False,
) -> None:
    """Upload a model to a hub, with its model card.

    The address of the hub and your token come from huggingface_hub: hf auth login, or the variables HF_TOKEN and
    HF_ENDPOINT.

    Examples:
        qkv push runs/dates anna/dates
        qkv push runs/reviews anna/reviews --format hf --private

    Parameters
    ----------
    model
        A model folder, a run, or a checkpoint of a run.
    name
        The repository: owner/name. It is created if it does not exist.
    format
        qkv, or hf: a folder that transformers can load.
    private
        Make a new repository private.
    """
    from qkv.api import load
    from qkv.files import read_text

    loaded = load(model)
    print_notes(model, loaded.notes)
    path = Path(model) / "README.md"
    address = loaded.push(
        name, format, private=private, card=read_text(path) if format == "qkv" and path.exists() else ""
    )
    print_result(json, f"uploaded to {address}; load it with qkv.load({name!r})", {"url": address, "name": name})


def check_folder(model: str, folder: Path, *, replaces_model: bool = True) -> None:
    """Raise an error if writing a model would overwrite the model itself, another model, or a run."""
    from qkv.train.run.folder import RunFolder

    if Path(model).is_dir() and folder.is_dir() and Path(model).samefile(folder):
        raise UsageError(
            f"{folder}: this is the folder of the model itself, which would be overwritten; choose another"
        )
    is_run = RunFolder(folder).is_run
    if is_run or (not replaces_model and (folder / "config.json").exists()):
        raise UsageError(f"{folder} has a {'run' if is_run else 'model'}, which would be overwritten; choose another")
