"""A model folder: config.json, model.safetensors, the tokenizer's files, README.md (a model card). No pickle."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.blocks import HeadConfig
from qkv.errors import QkvError, UsageError, suggest_name
from qkv.models import Config, Network, build
from qkv.store.export_ctranslate2 import write_ctranslate2
from qkv.store.export_onnx import write_onnx
from qkv.store.hub import resolve_folder
from qkv.store.huggingface import (
    MAX_LISTED,
    find_layout,
    is_huggingface,
    read_hf_config,
    read_hf_weights,
    replace_head,
    sentence_transformers_head,
    transformer_folder,
    write_hf,
)
from qkv.store.model_card import model_card
from qkv.store.staged_folder import staged_folder
from qkv.store.weights import Weights, read_json, write_text, write_weights
from qkv.store.whole import check_not_quantized
from qkv.text import Tokenizer

FORMATS = ("qkv", "hf", "ctranslate2", "onnx")
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "source.spm",
)
MODEL_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
    *TOKENIZER_FILES,
    "target.spm",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "modules.json",
)
"""What belongs to one model and would be read as part of the next: it goes when another is saved in its place."""

RECIPE_FILE = "recipe.toml"
"""What makes a folder a training run's, which becomes a model folder in the end."""


@dataclass
class StoredModel:
    """What a folder holds."""

    config: Config
    network: Network
    tokenizer: Tokenizer | None
    notes: list[str]  # what a person should know: things ignored, dropped, started afresh


def read_model(
    name: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    head: HeadConfig | None = None,
) -> StoredModel:
    """Read a qkv folder, a Hugging Face folder or a hub id. `head` puts a fresh head on the folder's body.

    Weights keep the type that they are stored in unless `dtype` says otherwise. On `device="meta"` everything is
    checked and no weight is read.
    """
    folder = resolve_folder(name)
    config_path = folder / "config.json"
    if not config_path.exists() and not (folder / "modules.json").exists():
        if (folder / "recipe.toml").exists():
            told = f"this run has not come to its end, so there is no model yet; qkv train {folder}"
            saved = (folder / "checkpoints").is_dir()
            raise QkvError(f"{folder}: {told}" + ", or give one of its checkpoints, as checkpoints/step-…" * saved)
        raise QkvError(f"{folder}: no config.json, so this is not a model folder")
    foreign = is_huggingface(folder)
    body = transformer_folder(folder) if foreign else folder
    theirs = read_json(body / "config.json")
    device = torch.device(device)
    weights = Weights(body, shapes_only=device.type == "meta")
    if foreign:
        config, notes = read_hf_config(body, theirs, weights)
        head = head or sentence_transformers_head(folder)
    else:
        config, notes = Config.from_dict(theirs, str(config_path)), []
    fresh = head is not None and head != config.head
    if fresh and head is not None:
        config = replace_head(config, head)
    tokenizer = _load_tokenizer(body, config)
    network = _build_on_meta(config, weights, body / "config.json")
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    if foreign:
        tensors, more = read_hf_weights(config, theirs, weights, shapes, fresh)
        notes += more
    else:
        tensors = _read_own_weights(weights, shapes, fresh)
    started = [name for name in shapes if name not in tensors]
    if started:
        initialise_missing(config, tensors, started, notes, device)
    assign_parameters(network, tensors, device, dtype or weights.dtype)
    return StoredModel(config, network.eval(), tokenizer, notes)


def _build_on_meta(config: Config, weights: Weights, config_path: Path) -> Network:
    """The network that a config means, without numbers; sizes that no network can have are an error, not a hang."""
    layers = max(stack.num_layer_groups for stack in (config.encoder, config.decoder) if stack is not None)
    if layers > len(weights.shapes):
        raise QkvError(f"{config_path}: {layers} layers, but there are only {len(weights.shapes)} tensors beside it")
    try:
        return build(config, device="meta")
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise QkvError(f"{config_path}: no network can be made of this ({reason})") from error


def _read_own_weights(weights: Weights, shapes: Mapping[str, tuple[int, ...]], new_head: bool) -> dict[str, Tensor]:
    wanted = [name for name in shapes if not (new_head and name.startswith("head."))]
    missing = [name for name in wanted if name not in weights]
    misshapen = [
        f"{name} {weights.shapes[name]}, config.json needs {tuple(shapes[name])}"
        for name in wanted
        if name in weights and weights.shapes[name] != tuple(shapes[name])
    ]
    unexpected = [name for name in weights.shapes if name not in shapes and not (new_head and name.startswith("head."))]
    problems = [
        f"{len(names)} tensors {what}: {', '.join(names[:MAX_LISTED])}{' …' if len(names) > MAX_LISTED else ''}"
        for what, names in (("missing", missing), ("of the wrong shape", misshapen), ("unexpected", unexpected))
        if names
    ]
    if problems:
        raise QkvError(f"{weights.folder}: the weights do not fit config.json; " + "; ".join(problems))
    return {name: weights.get(name) for name in wanted}


def initialise_missing(
    config: Config, tensors: dict[str, Tensor], names: list[str], notes: list[str], device: torch.device
) -> None:
    """Give what a folder does not hold the start that it would have in a new network."""
    with torch.random.fork_rng(devices=[]):  # the same start each time, and nobody else's numbers disturbed
        torch.manual_seed(0)
        new = build(config, device="meta" if device.type == "meta" else "cpu")
    for name, parameter in new.named_parameters():
        if name in names:
            tensors[name] = parameter.detach()
    notes.append(f"{len(names)} tensors are not in the folder and start afresh: {', '.join(names[:MAX_LISTED])}")


def assign_parameters(
    network: nn.Module, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
) -> None:
    """Put tensors in the place of a network's parameters, keeping what is tied tied."""
    holders: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in network.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                holders.setdefault(id(parameter), []).append((module, key))
    for name, old in list(network.named_parameters()):
        parameter = nn.Parameter(tensors[name].to(device, dtype))
        for module, key in holders[id(old)]:
            module._parameters[key] = parameter


def _load_tokenizer(folder: Path, config: Config) -> Tokenizer | None:
    there = any((folder / name).exists() for name in TOKENIZER_FILES)
    tokenizer = Tokenizer.load(folder) if there else None
    if tokenizer is None:
        return None
    for side, stack in ((tokenizer, config.encoder), (tokenizer.target, config.decoder)):
        if stack is not None and side.vocab_size > stack.vocab_size:
            raise QkvError(
                f"{folder}: the tokenizer has {side.vocab_size} ids, the model's vocabulary only {stack.vocab_size}; "
                "they do not belong together"
            )
    return tokenizer


def write_model(
    folder: str | Path,
    config: Config,
    network: nn.Module,
    tokenizer: Tokenizer | None,
    format: str = "qkv",
    *,
    facts: Mapping[str, str] | None = None,
) -> str:
    """Write a model folder, ours or, by `format`, one that transformers ("hf"), CTranslate2 or ONNX reads.

    Returns what to load it with. `facts` go on a new model card: its data, scores, licence, and what else there is.

    Every file is written before the first one takes its place: whatever fails, a model that was there stays whole.
    """
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}; {suggest_name(format, FORMATS)}")
    if format == "ctranslate2":
        return write_ctranslate2(folder, config, network, tokenizer)  # type: ignore[arg-type]
    if format == "onnx":
        return write_onnx(folder, config, network, tokenizer)  # type: ignore[arg-type]
    folder = Path(folder).expanduser()
    check_not_quantized(network)
    layout = find_layout(config) if format == "hf" else None  # refused before anything is touched
    cls = config.family if layout is None else layout.table.class_name
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    with staged_folder(folder, "config.json", MODEL_FILES, also_accepted=[RECIPE_FILE]) as partial:
        if tokenizer is not None:
            tokenizer.save(partial)
        if layout is not None:
            write_hf(partial, layout, config, parameters)
        else:
            write_weights(partial, parameters)
            write_text(partial / "config.json", json.dumps(config.to_dict(), indent=2) + "\n")
        if facts is not None or not (folder / "README.md").exists():
            write_text(
                partial / "README.md", model_card(config, sum(p.numel() for p in parameters.values()), cls, facts)
            )
    return cls
