"""Hugging Face folders: read into our networks, and written so that transformers reads them back."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.blocks import HeadConfig
from qkv.errors import QkvError
from qkv.models import Config
from qkv.models.tables import (
    ARCHITECTURES,
    Architecture,
    architecture_of,
    find,
    read_config,
    write_config,
    write_weights,
)
from qkv.models.tables.table import HeadTable, head_of, is_ignored, of_a_head, plain_name
from qkv.store import weights as files
from qkv.store.weights import Weights, read_json, write_text

SHOWN = 8
"""How many tensor names an error lists before it counts the rest."""


def is_foreign(folder: Path) -> bool:
    """Whether it is a Hugging Face folder: its config names a model type, or it lists sentence-transformers modules."""
    return (folder / "modules.json").exists() or "model_type" in read_json(folder / "config.json")


def body_folder(folder: Path) -> Path:
    """Where a folder keeps its Transformer: sentence-transformers may keep it in a folder of its own."""
    for module in _modules(folder):
        if str(module.get("type", "")).endswith(".Transformer"):
            return folder / Path(str(module.get("path", ""))).name
    return folder


def read_foreign_config(folder: Path, theirs: dict[str, Any], weights: Weights) -> tuple[Config, list[str]]:
    """A Config from their config.json, and what a person should know about it."""
    notes = []
    if "auto_map" in theirs:
        notes.append("config.json asks for code of its own (auto_map); it was not run, only known layouts are read")
    if "model_type" not in theirs:
        raise QkvError(f"{folder / 'config.json'}: no 'model_type', so the architecture is not known")
    architecture = architecture_of(str(theirs["model_type"]))
    table = head_of(architecture, theirs)
    names = frozenset(plain_name(architecture, table, name) for name in weights.shapes)
    return read_config(architecture, {**theirs, "_tensors": names}), notes


def sentence_head(folder: Path) -> HeadConfig | None:
    """The pooling of a sentence-transformers folder, or None for any other folder."""
    modules = _modules(folder)
    if not modules:
        return None
    pool, unit = "mean", False
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pool = _pooling(read_json(folder / Path(str(module["path"])).name / "config.json"))
        elif kind == "Normalize":
            unit = True
        elif kind != "Transformer":
            raise QkvError(f"{folder / 'modules.json'}: a module of type {kind!r} is not supported")
    return HeadConfig(kind="embed", pool=pool, unit=unit)  # type: ignore[arg-type]


def _modules(folder: Path) -> list[dict[str, Any]]:
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


def _pooling(theirs: dict[str, Any]) -> str:
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
    said = [said] if isinstance(said, str) else said
    if len(said) != 1 or said[0] not in names:
        raise QkvError(f"pooling {' + '.join(said) or 'unknown'} is not supported; known: {', '.join(names)}")
    return names[said[0]]


def read_foreign_weights(
    config: Config, theirs: dict[str, Any], weights: Weights, shapes: Mapping[str, tuple[int, ...]], fresh: bool
) -> tuple[dict[str, Tensor], list[str]]:
    """Our parameters from their tensors, and notes; one error lists all that is missing, misshapen or unknown.

    `shapes` is what our network needs. With `fresh`, a head that the folder does not have is left to its start.
    """
    architecture = architecture_of(str(theirs["model_type"]))
    table = head_of(architecture, theirs)
    there = {plain_name(architecture, table, name): name for name in weights.shapes}
    ours: dict[str, Tensor] = {}
    missing, misshapen, used = [], [], set()
    wanted = [name for name in shapes if not (fresh and name.startswith("head."))]
    for row in find(architecture, table, config, wanted):
        parts = []
        for name in row.theirs:
            found = _alias(architecture, name, there)
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
    unknown, unread = _leftovers(architecture, table, config, there, used)
    problems = [
        f"{len(names)} tensors {what}: {', '.join(names[:SHOWN])}{' …' if len(names) > SHOWN else ''}"
        for what, names in (("missing", missing), ("of the wrong shape", misshapen), ("unexpected", unknown))
        if names
    ]
    if problems:
        raise QkvError(f"{weights.folder}: the weights do not fit config.json; " + "; ".join(problems))
    return ours, [f"{len(unread)} tensors of other heads were not read: {', '.join(unread[:SHOWN])}"] if unread else []


def _alias(architecture: Architecture, name: str, there: Mapping[str, str]) -> str | None:
    """The name under which a tensor is there, if it is: tied weights may be saved under any of theirs."""
    return next((n for n in (name, *architecture.aliases.get(name, ())) if n in there), None)


def _leftovers(
    architecture: Architecture, table: HeadTable, config: Config, there: Mapping[str, str], used: set[str]
) -> tuple[list[str], list[str]]:
    """Their tensors that were not read: unknown ones, and those of heads that this model does not carry."""
    copies = {alias for aliases in architecture.aliases.values() for alias in aliases}
    unknown, unread = [], []
    for name in sorted(set(there) - used):
        if is_ignored(architecture, name) or name in copies:
            continue
        if of_a_head(architecture, name):
            if not (config.head.tied and name.endswith(".weight") and name.rsplit(".", 1)[0] in _outputs(table)):
                unread.append(name)
        else:
            unknown.append(name)
    return unknown, unread


def _outputs(table: HeadTable) -> list[str]:
    """Their modules for our output matrix: a tied one is a copy of the embedding."""
    ref = table.names.get("head.out")
    return [ref] if isinstance(ref, str) else []


def export(folder: Path, config: Config, parameters: Mapping[str, Tensor]) -> str:
    """Write config.json and weights as transformers reads them; returns the class to load them with."""
    order = [config.architecture] if config.architecture in ARCHITECTURES else []
    order += [name for name in ARCHITECTURES if name not in order]
    reasons = []
    for name in order:
        try:
            theirs, table = write_config(ARCHITECTURES[name], config)
        except QkvError as error:
            reasons.append(str(error))
            continue
        named = write_weights(ARCHITECTURES[name], table, config, parameters)
        theirs["dtype"] = str(next(iter(parameters.values())).dtype).removeprefix("torch.")
        files.write_weights(folder, named)
        write_text(folder / "config.json", json.dumps(theirs, indent=2) + "\n")
        return table.cls
    reason = reasons[0] if config.architecture in ARCHITECTURES else min(reasons, key=len)
    raise QkvError(f"no public layout fits this model; closest: {reason}")


def with_head(config: Config, head: HeadConfig) -> Config:
    """The same body under another head."""
    return replace(config, head=head)
