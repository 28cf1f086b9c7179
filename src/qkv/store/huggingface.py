"""Hugging Face folders: read into our networks, and written so that transformers reads them back."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.blocks import HeadConfig
from qkv.errors import QkvError, UsageError
from qkv.models import Config
from qkv.models.tables import (
    ARCHITECTURES,
    Architecture,
    UnsupportedConfigError,
    find_architecture,
    map_parameters,
    read_config,
    write_config,
    write_weights,
)
from qkv.models.tables.architecture import HeadTable, belongs_to_head, find_head, is_ignored, normalize_name
from qkv.store import weights as files
from qkv.store.weights import Weights, read_json, write_text

MAX_LISTED = 8
"""How many tensor names an error lists before it counts the rest."""


def is_huggingface(folder: Path) -> bool:
    """Whether it is a Hugging Face folder: its config names a model type, or it lists sentence-transformers modules."""
    return (folder / "modules.json").exists() or "model_type" in read_json(folder / "config.json")


def transformer_folder(folder: Path) -> Path:
    """Where a folder keeps its Transformer: sentence-transformers may keep it in a folder of its own."""
    for module in _sentence_transformers_modules(folder):
        if str(module.get("type", "")).endswith(".Transformer"):
            return folder / Path(str(module.get("path", ""))).name
    return folder


def read_hf_config(folder: Path, hf_config: dict[str, Any], weights: Weights) -> tuple[Config, list[str]]:
    """A Config from their config.json, and what a person should know about it."""
    notes = []
    if "auto_map" in hf_config:
        notes.append("config.json asks for code of its own (auto_map); it was not run, only known layouts are read")
    if "model_type" not in hf_config:
        raise QkvError(f"{folder / 'config.json'}: no 'model_type', so the architecture is not known")
    try:
        architecture = find_architecture(str(hf_config["model_type"]))
        table = find_head(architecture, hf_config)
        names = frozenset(normalize_name(architecture, table, name) for name in weights.shapes)
        return read_config(architecture, {**hf_config, "_tensors": names}), notes
    except QkvError as error:
        raise QkvError(str(error).replace("config.json", str(folder / "config.json"), 1)) from error


def sentence_transformers_head(folder: Path) -> HeadConfig | None:
    """The pooling of a sentence-transformers folder, or None for any other folder."""
    modules = _sentence_transformers_modules(folder)
    if not modules:
        return None
    pool, unit = "mean", False
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pool = _read_pooling(folder / Path(str(module.get("path", ""))).name / "config.json")
        elif kind == "Normalize":
            unit = True
        elif kind != "Transformer":
            raise QkvError(f"{folder / 'modules.json'}: a module of type {kind!r} is not supported")
    return HeadConfig(kind="embed", pool=pool, normalize=unit)  # type: ignore[arg-type]


def _sentence_transformers_modules(folder: Path) -> list[dict[str, Any]]:
    path = folder / "modules.json"
    if not path.exists():
        return []
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise QkvError(f"{path}: not JSON ({error})") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise QkvError(f"{path}: expected a list of modules")
    return modules


def _read_pooling(path: Path) -> str:
    theirs = read_json(path)
    names = {"cls": "first", "mean": "mean", "lasttoken": "last"}
    said = theirs.get("pooling_mode")
    if said is None:
        old = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "lasttoken"}
        on = [
            key.removeprefix("pooling_mode_")
            for key, value in theirs.items()
            if key.startswith("pooling_mode_") and value
        ]
        said = [old.get(key, key) for key in on]
    said = [str(one) for one in said] if isinstance(said, list) else [str(said)]
    if len(said) != 1 or said[0] not in names:
        raise QkvError(f"{path}: pooling {' + '.join(said) or 'unknown'} is not supported; known: {', '.join(names)}")
    return names[said[0]]


def read_hf_weights(
    config: Config, hf_config: dict[str, Any], weights: Weights, shapes: Mapping[str, tuple[int, ...]], new_head: bool
) -> tuple[dict[str, Tensor], list[str]]:
    """Our parameters from their tensors, and notes; one error lists all that is missing, misshapen or unknown.

    `shapes` is what our network needs. With `fresh`, a head that the folder does not have is left to its start.
    """
    architecture = find_architecture(str(hf_config["model_type"]))
    table = find_head(architecture, hf_config)
    there = {normalize_name(architecture, table, name): name for name in weights.shapes}
    ours: dict[str, Tensor] = {}
    missing, misshapen, used = [], [], set()
    wanted = [name for name in shapes if not (new_head and name.startswith("head."))]
    for row in map_parameters(architecture, table, config, wanted):
        parts = []
        for name in row.theirs:
            found = _find_stored_name(architecture, name, there)
            if found is None:
                if name not in architecture.optional:
                    missing.append(name)
                continue
            used.add(found)
            parts.append(weights.get(there[found]))
        if len(parts) < len(row.theirs):
            continue
        try:
            tensor = row.ref.read(parts, row.suffix, row.stack)
        except RuntimeError:
            misshapen.append(f"{row.theirs[0]} {tuple(parts[0].shape)}")
            continue
        if tuple(tensor.shape) != tuple(shapes[row.name]):
            misshapen.append(f"{row.theirs[0]} {tuple(tensor.shape)}, config.json needs {tuple(shapes[row.name])}")
        ours[row.name] = tensor
    unknown, unread, copies = _leftovers(architecture, table, config, there, used)
    token = next((ours[name] for name in TOKEN_EMBEDDINGS if name in ours), None)
    false = [name for name in copies if token is not None and not _same_values(weights.get(there[name]), token)]
    problems = [
        f"{len(names)} tensors {what}: {', '.join(names[:MAX_LISTED])}{' …' if len(names) > MAX_LISTED else ''}"
        for what, names in (
            ("missing", missing),
            ("of the wrong shape", misshapen),
            ("unexpected", unknown),
            ("that should equal the embedding that they are tied to, and do not", false),
        )
        if names
    ]
    if problems:
        raise QkvError(f"{weights.folder}: the weights do not fit config.json; " + "; ".join(problems))
    return ours, [
        f"{len(unread)} tensors of other heads were not read: {', '.join(unread[:MAX_LISTED])}"
    ] if unread else []


def _find_stored_name(architecture: Architecture, name: str, there: Mapping[str, str]) -> str | None:
    """The name under which a tensor is there, if it is: tied weights may be saved under any of theirs."""
    return next((n for n in (name, *architecture.aliases.get(name, ())) if n in there), None)


TOKEN_EMBEDDINGS = ("target_embedding.token.weight", "source_embedding.token.weight", "embedding.token.weight")
"""Our names for the matrix that an output matrix is tied to, the first that there is."""


def _same_values(a: Tensor, b: Tensor) -> bool:
    """Whether two matrices hold the same numbers; shapes alone are compared where there are no numbers."""
    return a.shape == b.shape and (a.is_meta or bool(torch.equal(a, b)))


def _leftovers(
    architecture: Architecture, table: HeadTable, config: Config, there: Mapping[str, str], used: set[str]
) -> tuple[list[str], list[str], list[str]]:
    """Their tensors that were not read: unknown ones, those of heads that this model does not carry, and copies.

    A tied matrix may be saved under each of its names: those should be copies of the embedding.
    """
    aliases = {alias for names in architecture.aliases.values() for alias in names}
    tables = set(architecture.aliases.get("shared.weight", ()))
    if config.head.tied:
        tables.add(f"{table.names.get('head.out')}.weight")
    unknown, unread, copies = [], [], []
    for name in sorted(set(there) - used):
        if name in tables:
            copies.append(name)
        elif is_ignored(architecture, name) or name in aliases:
            continue
        elif belongs_to_head(architecture, name):
            unread.append(name)
        else:
            unknown.append(name)
    return unknown, unread, copies


class HfLayout(NamedTuple):
    """How a config is written for transformers."""

    architecture: Architecture
    table: HeadTable
    hf_config: dict[str, Any]  # their config.json


def find_layout(config: Config) -> HfLayout:
    """The public layout that fits a config, the one that it came from first; QkvError names what none can express."""
    order = sorted(ARCHITECTURES.values(), key=lambda architecture: architecture.name != config.architecture)
    misfits = []
    for architecture in order:
        try:
            theirs, table = write_config(architecture, config)
        except UnsupportedConfigError as error:
            misfits.append(error)
        else:
            return HfLayout(architecture, table, theirs)
    own = config.architecture in ARCHITECTURES
    closest = misfits[0] if own else min(misfits, key=lambda error: (not error.fields, len(error.fields)))
    raise QkvError(
        f"no public layout fits this model; closest: {closest}. Other formats (onnx, ctranslate2) may; for a "
        'public one train the shape of a preset, as model.preset = "bert-tiny" (qkv info presets)'
    )


def write_hf(folder: Path, layout: HfLayout, config: Config, parameters: Mapping[str, Tensor]) -> None:
    """Write config.json and weights as transformers reads them."""
    named = write_weights(layout.architecture, layout.table, config, parameters)
    dtype = str(next(iter(parameters.values())).dtype).removeprefix("torch.")
    files.write_weights(folder, named)
    write_text(folder / "config.json", json.dumps({**layout.hf_config, "dtype": dtype}, indent=2) + "\n")


def replace_head(config: Config, head: HeadConfig) -> Config:
    """The same body under another head."""
    try:
        return replace(config, head=head)
    except ValueError as error:
        raise UsageError(f"head: {error}") from error
