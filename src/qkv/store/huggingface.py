"""Read Hugging Face folders into our networks, and write folders that transformers reads."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.files import read_json_object, write_atomically
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
from qkv.models.tables.architecture import (
    PROCESSOR_KEY,
    HeadTable,
    belongs_to_head,
    find_head,
    is_ignored,
    normalize_name,
)
from qkv.store import weights as weight_files
from qkv.store.weights import MAX_LISTED, Weights, describe_mismatches


def read_hf_config(folder: Path, hf_config: dict[str, Any], weights: Weights) -> tuple[Config, list[str]]:
    """Make a config from a Hugging Face config.json. Also returns notes for the user."""
    notes = []
    if "auto_map" in hf_config:
        notes.append(
            "config.json names custom code (auto_map); it was not run, because only known architectures are read"
        )
    if "model_type" not in hf_config:
        raise QkvError(f"{folder / 'config.json'}: no 'model_type', so the architecture is unknown; restore the file")
    try:
        architecture = find_architecture(str(hf_config["model_type"]))
        head_table = find_head(architecture, hf_config)
        names = frozenset(normalize_name(architecture, head_table, name) for name in weights.shapes)
        processor = read_image_processor(folder)
        return read_config(architecture, {**hf_config, "_tensors": names, PROCESSOR_KEY: processor}), notes
    except QkvError as error:
        raise QkvError(str(error).replace("config.json", str(folder / "config.json"), 1)) from error


def select_tower(folder: Path, hf_config: dict[str, Any], tower: str) -> dict[str, Any]:
    """The config.json of one tower of a folder of CLIP; any other config.json is returned as it is."""
    if hf_config.get("model_type") == "clip":
        if not tower:
            raise QkvError(
                f"{folder}: this folder has two models, one of images and one of texts; name one of them: "
                f"{folder / 'vision_model'} or {folder / 'text_model'}"
            )
        from qkv.models.tables.clip import split_config

        return split_config(hf_config, tower)
    if tower:
        raise QkvError(f"{folder / tower}: no such folder, and {folder / 'config.json'} is not a model of CLIP")
    return hf_config


def read_image_processor(folder: Path) -> dict[str, Any]:
    """The settings that turn images into pixels: `preprocessor_config.json`, or a part of `processor_config.json`.

    Without these files, it is empty.
    """
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            values = read_json_object(folder / name)
            found = values.get("image_processor", values)
            return found if isinstance(found, dict) else {}
    return {}


def read_hf_weights(
    config: Config, hf_config: dict[str, Any], weights: Weights, shapes: Mapping[str, tuple[int, ...]], new_head: bool
) -> tuple[dict[str, Tensor], list[str]]:
    """Read the parameters of our network from a Hugging Face folder. Also returns notes for the user.

    `shapes` are the shapes of our parameters, by name. With `new_head`, the parameters of the head are not read. If any
    tensors are missing, of the wrong shape or unknown, one error lists all of them.
    """
    architecture = find_architecture(str(hf_config["model_type"]))
    head_table = find_head(architecture, hf_config)
    stored = {normalize_name(architecture, head_table, name): name for name in weights.shapes}
    ours: dict[str, Tensor] = {}
    missing, misshapen, used = [], [], set()
    wanted = [name for name in shapes if not (new_head and name.startswith("head."))]
    for row in map_parameters(architecture, head_table, config, wanted):
        parts = []
        for name in row.theirs:
            names = (name, *architecture.aliases.get(name, ()))  # tied weights may be stored under any of them
            found = next((n for n in names if n in stored), None)
            if found is None:
                if name not in architecture.optional_tensors:
                    missing.append(name)
                continue
            used.add(found)
            parts.append(weights.get(stored[found]))
        if len(parts) < len(row.theirs):
            continue
        try:
            tensor = row.rule.read(parts, row.suffix, row.stack)
        except RuntimeError:
            misshapen.append(f"{row.theirs[0]} {tuple(parts[0].shape)}")
            continue
        if tuple(tensor.shape) != tuple(shapes[row.name]):
            misshapen.append(f"{row.theirs[0]} {tuple(tensor.shape)}, config.json needs {tuple(shapes[row.name])}")
        ours[row.name] = tensor
    unknown, of_other_heads, copies = _unused_tensors(architecture, head_table, config, stored, used)
    embedding = next((ours[name] for name in TOKEN_EMBEDDINGS if name in ours), None)
    untied = [
        name for name in copies if embedding is not None and not _same_values(weights.get(stored[name]), embedding)
    ]
    mismatches = {
        "missing": missing,
        "of the wrong shape": misshapen,
        "unexpected": unknown,
        "that are tied to the embedding, but have different values": untied,
    }
    if message := describe_mismatches(weights.folder, mismatches):
        raise QkvError(message)
    if not of_other_heads or new_head:  # a new head replaces any other, so nothing is lost that the user expects
        return ours, []
    listed = ", ".join(of_other_heads[:MAX_LISTED])
    return ours, [f"{len(of_other_heads)} tensors of other heads were not read: {listed}"]


TOKEN_EMBEDDINGS = ("target_embedding.token.weight", "source_embedding.token.weight", "embedding.token.weight")
"""Our names for the embedding to which an output matrix may be tied. The first that exists is used."""


def _same_values(a: Tensor, b: Tensor) -> bool:
    """Whether two matrices are equal. On the meta device only their shapes are compared."""
    return a.shape == b.shape and (a.is_meta or bool(torch.equal(a, b)))


def _unused_tensors(
    architecture: Architecture, head_table: HeadTable, config: Config, stored: Mapping[str, str], used: set[str]
) -> tuple[list[str], list[str], list[str]]:
    """Sort the tensors that were not read: unknown tensors, tensors of other heads, copies of the embedding.

    A folder may store a tied matrix once under each of its names. These copies should equal the embedding.
    """
    aliases = {alias for names in architecture.aliases.values() for alias in names}
    tied = set(architecture.aliases.get("shared.weight", ()))
    if config.head.tied:
        tied.add(f"{head_table.names.get('head.out')}.weight")
    unknown, of_other_heads, copies = [], [], []
    for name in sorted(set(stored) - used):
        if name in tied:
            copies.append(name)
        elif is_ignored(architecture, name) or name in aliases:
            continue
        elif belongs_to_head(architecture, name):
            of_other_heads.append(name)
        else:
            unknown.append(name)
    return unknown, of_other_heads, copies


class HfExport(NamedTuple):
    """How a model is exported: its Hugging Face architecture, the table for its head, and the config.json."""

    architecture: Architecture
    head_table: HeadTable
    hf_config: dict[str, Any]


def find_hf_export(config: Config) -> HfExport:
    """Find a Hugging Face architecture for a config: the architecture that it was read from, or else another."""
    order = sorted(ARCHITECTURES.values(), key=lambda architecture: architecture.name != config.architecture)
    errors = []
    for architecture in order:
        try:
            hf_config, head_table = write_config(architecture, config)
        except UnsupportedConfigError as error:
            errors.append(error)
        else:
            return HfExport(architecture, head_table, hf_config)
    if config.architecture in ARCHITECTURES:
        closest = errors[0]
    else:
        closest = min(errors, key=lambda error: (not error.fields, len(error.fields)))
    raise QkvError(
        "this model cannot be exported to Hugging Face, because no architecture there has all of its options. The "
        f"closest architecture is {closest.name}, which {closest.reason}. Export it with --format onnx, which supports "
        "all options; or, for a model that transformers can load, train one with a published architecture: "
        "qkv init TASK FILE --shape exportable"
    )


def write_hf(folder: Path, target: HfExport, config: Config, parameters: Mapping[str, Tensor]) -> None:
    """Write config.json, the weights and the settings of images for transformers."""
    tensors = write_weights(target.architecture, target.head_table, config, parameters)
    dtype = str(next(iter(parameters.values())).dtype).removeprefix("torch.")
    weight_files.write_weights(folder, tensors)
    values = {name: value for name, value in target.hf_config.items() if not name.startswith("_")}
    write_atomically(folder / "config.json", json.dumps({**values, "dtype": dtype}, indent=2) + "\n")
    if processor := target.hf_config.get(PROCESSOR_KEY):
        write_atomically(folder / "preprocessor_config.json", json.dumps(processor, indent=2) + "\n")
