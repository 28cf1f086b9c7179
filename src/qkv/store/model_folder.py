"""Read model folders: config.json, model.safetensors, the tokenizer's files."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkv.blocks import HeadConfig
from qkv.errors import QkvError, UsageError, shorten
from qkv.files import read_json_object, to_path
from qkv.models import Config, Network, build
from qkv.plugins import describe_changes, read_plugins
from qkv.store.config_json import parse_config
from qkv.store.hub import resolve_folder
from qkv.store.weights import MAX_LISTED, Weights, describe_mismatches
from qkv.text import Tokenizer

GGUF_SUFFIX = ".gguf"
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "source.spm",
)
SENTENCE_TRANSFORMERS_FILES = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "1_Pooling",
    "2_Normalize",
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
    "preprocessor_config.json",
    "processor_config.json",
    *SENTENCE_TRANSFORMERS_FILES,
)
"""Saving a model deletes these files of an older model in the same folder, because a reader would mix the two."""

PROCESSOR_FILE = "preprocessor_config.json"
"""The settings that turn images or sounds into payloads, as the tokenizer's files turn texts into ids."""
TOWERS = ("vision_model", "text_model")
"""The models of images and of texts in one folder of CLIP."""
RECIPE_FILE = "recipe.toml"
"""A folder with this file is the folder of a training run, into which the run writes its model."""


@dataclass
class StoredModel:
    """A model that was read from a folder."""

    config: Config
    network: Network
    tokenizer: Tokenizer | None
    notes: list[str]  # messages about tensors that were ignored or newly initialised
    processor: dict[str, Any] | None = None  # how images or sounds become payloads, from `PROCESSOR_FILE`


def read_model(
    name: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    head: HeadConfig | None = None,
) -> StoredModel:
    """Read a qkv folder, a Hugging Face folder, a hub id or a GGUF file (extra `gguf`).

    `head` replaces the model's head by a newly initialised one. Weights keep their stored dtype unless `dtype` is
    given. On `device="meta"` the folder is checked but no weights are read.
    """
    device = torch.device(device)
    is_gguf = to_path(name).suffix.lower() == GGUF_SUFFIX and not to_path(name).is_dir()
    opened = (_open_gguf if is_gguf else _open_folder)(name, device.type == "meta")
    config, weights, notes = opened.config, opened.weights, opened.notes
    head = head or opened.head
    config, token_notes = drop_unknown_tokens(config, opened.config_path)
    notes += token_notes
    new_head = head is not None and head != config.head
    if new_head and head is not None:
        config = replace_head(config, head)
    check_vocabulary(opened.tokenizer, config, weights.folder)
    network = build_on_meta(config, len(weights.shapes), opened.config_path)
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    if opened.hf_config is not None:
        from qkv.store.huggingface import read_hf_weights

        tensors, more_notes = read_hf_weights(config, opened.hf_config, weights, shapes, new_head)
        notes += more_notes
    else:
        tensors = _read_own_weights(weights, shapes, new_head)
    if missing := [name for name in shapes if name not in tensors]:
        initialise_missing(config, tensors, missing, notes, device)
    assign_parameters(network, tensors, device, dtype or weights.dtype)
    return StoredModel(config, network.eval(), opened.tokenizer, notes, opened.processor)


@dataclass
class _OpenedModel:
    """A model whose config and tokenizer have been read, but not its weights."""

    config_path: Path  # the file of the config, for messages
    config: Config
    weights: Weights
    tokenizer: Tokenizer | None
    hf_config: dict[str, Any] | None = None  # the values of config.json, for weights with Hugging Face's names
    head: HeadConfig | None = None  # of an embedding model of sentence-transformers
    notes: list[str] = field(default_factory=list)
    processor: dict[str, Any] | None = None


def _open_folder(name: str | Path, shapes_only: bool) -> _OpenedModel:
    """Open a qkv folder, a Hugging Face folder or a hub id."""
    name, tower = split_tower(name)
    folder = resolve_folder(name)
    config_path = folder / "config.json"
    if not config_path.exists() and not (folder / "modules.json").exists():
        if (folder / RECIPE_FILE).exists():
            if any((folder / "checkpoints").glob("step-*")):
                raise QkvError(
                    f"{folder}: this run is not finished, so it has no model yet; finish it with qkv train {folder}, "
                    "or give one of its checkpoints: checkpoints/step-…"
                )
            raise QkvError(
                f"{folder}: this run has no checkpoint yet. If it is training, wait for the first one, which is saved "
                "after a tenth of the budget, or as train.save_every says. If it has stopped, start it again with "
                f"qkv train {folder}"
            )
        raise QkvError(f"{folder}: no config.json, so this is not a model folder; give a qkv or Hugging Face folder")
    is_huggingface = (folder / "modules.json").exists() or "model_type" in read_json_object(config_path)
    if not is_huggingface:
        values, weights = read_json_object(config_path), Weights(folder, shapes_only=shapes_only)
        config = parse_config(values, str(config_path))
        processor = read_json_object(folder / PROCESSOR_FILE) if (folder / PROCESSOR_FILE).exists() else None
        notes = describe_changes(read_plugins(values.get("plugins")))
        return _OpenedModel(config_path, config, weights, _load_tokenizer(folder), notes=notes, processor=processor)
    from qkv.store.huggingface import read_hf_config, select_tower
    from qkv.store.sentence_transformers import sentence_transformers_head, transformer_folder

    body = transformer_folder(folder)
    values = select_tower(body, read_json_object(body / "config.json"), tower)
    weights = Weights(body, shapes_only=shapes_only)
    config, notes = read_hf_config(body, values, weights)
    head = sentence_transformers_head(folder)
    tokenizer = _load_tokenizer(body) if config.stack.vocab_size else Tokenizer.without_tokens()
    return _OpenedModel(body / "config.json", config, weights, tokenizer, values, head, notes)


def split_tower(name: str | Path) -> tuple[str | Path, str]:
    """A name such as `clip/vision_model`, if there is no such folder, as the folder of both towers and the tower."""
    path = to_path(name)
    if path.name in TOWERS and not path.exists() and len(path.parts) > 1:
        return str(name)[: -len(path.name) - 1], path.name
    return name, ""


def _open_gguf(name: str | Path, shapes_only: bool) -> _OpenedModel:
    """Open a GGUF file."""
    from qkv.store.gguf.architectures import hf_config_values
    from qkv.store.gguf.gguf_file import GgufFile
    from qkv.store.gguf.gguf_weights import GgufWeights
    from qkv.store.huggingface import read_hf_config

    path = to_path(name)
    file = GgufFile(path)
    try:
        values = hf_config_values(file.metadata, {name: tensor.shape for name, tensor in file.tensors.items()})
        weights = GgufWeights(file, values, shapes_only=shapes_only)
        tokenizer = Tokenizer.from_gguf(file.metadata)
        config, notes = read_hf_config(path, values, weights)
    except QkvError as error:
        message = str(error).removeprefix(f"{path / 'config.json'}: ").removeprefix(f"{path}: ")
        raise QkvError(f"{path}: {message}") from error
    return _OpenedModel(path, config, weights, tokenizer, values, None, notes)


def drop_unknown_tokens(config: Config, config_path: Path) -> tuple[Config, list[str]]:
    """Remove special tokens that the vocabulary does not have. Also returns a note for each.

    A target cannot start without `decoder_start_token_id`, so for an encoder-decoder this one is an error.
    """
    vocab_size = config.stack.vocab_size

    def is_unknown(token_id: int | None) -> bool:
        return token_id is not None and not 0 <= token_id < vocab_size

    def describe(name: str, value: object) -> str:
        return f"{config_path}: {name} = {value} is not in the vocabulary, whose ids are 0 … {vocab_size - 1}"

    if config.family == "seq2seq" and is_unknown(config.decoder_start_token_id):
        raise QkvError(describe("decoder_start_token_id", config.decoder_start_token_id) + "; correct the file")
    changes: dict[str, Any] = {
        name: None for name in ("pad_token_id", "decoder_start_token_id") if is_unknown(getattr(config, name))
    }
    if any(map(is_unknown, config.eos_token_ids)):
        changes["eos_token_ids"] = tuple(token_id for token_id in config.eos_token_ids if not is_unknown(token_id))
    notes = [shorten(describe(name, getattr(config, name)) + ", so it is not used", 300) for name in changes]
    return replace(config, **changes), notes


def build_on_meta(config: Config, num_tensors: int, config_path: Path) -> Network:
    """Build the network on the meta device, so that impossible sizes are an error before memory is allocated."""
    layers = max(stack.num_layer_groups for stack in config.stacks.values())
    if layers > num_tensors:
        raise QkvError(
            f"{config_path}: {layers} layers, but the folder has only {num_tensors} tensors; "
            "use the config.json that belongs to these weights"
        )
    try:
        return build(config, device="meta")
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise QkvError(
            f"{config_path}: no network can be built from this config ({reason}); correct or restore it"
        ) from error


def _read_own_weights(weights: Weights, shapes: Mapping[str, tuple[int, ...]], new_head: bool) -> dict[str, Tensor]:
    """Read the tensors of a qkv folder and check them against the shapes of the network."""
    wanted = [name for name in shapes if not (new_head and name.startswith("head."))]
    mismatches = {
        "missing": [name for name in wanted if name not in weights],
        "of the wrong shape": [
            f"{name} {weights.shapes[name]}, config.json needs {shapes[name]}"
            for name in wanted
            if name in weights and weights.shapes[name] != shapes[name]
        ],
        "unexpected": [
            name for name in weights.shapes if name not in shapes and not (new_head and name.startswith("head."))
        ],
    }
    if message := describe_mismatches(weights.folder, mismatches):
        raise QkvError(message)
    return {name: weights.get(name) for name in wanted}


def initialise_missing(
    config: Config, tensors: dict[str, Tensor], names: list[str], notes: list[str], device: torch.device
) -> None:
    """Add the tensors that are not in the folder, with the values of a new network with seed 0, and a note on them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        new = build(config, device="meta" if device.type == "meta" else "cpu")
    for name, parameter in new.named_parameters():
        if name in names:
            tensors[name] = parameter.detach()
    notes.append(
        f"{len(names)} tensors are not in the folder and were newly initialised: {', '.join(names[:MAX_LISTED])}"
    )


def assign_parameters(
    network: nn.Module, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
) -> None:
    """Replace the parameters of a network by `tensors`. Tied parameters stay tied."""
    holders: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in network.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                holders.setdefault(id(parameter), []).append((module, key))
    for name, old in list(network.named_parameters()):
        parameter = nn.Parameter(tensors[name].to(device, dtype))
        for module, key in holders[id(old)]:
            setattr(module, key, parameter)  # recurrent layers keep a second reference, which this updates, too
    for module in network.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN's kernels need one block of memory


def _load_tokenizer(folder: Path) -> Tokenizer | None:
    """Load the tokenizer of a folder, if it has one."""
    has_tokenizer = any(os.path.lexists(folder / name) for name in TOKENIZER_FILES)
    return Tokenizer.load(folder) if has_tokenizer else None


def check_vocabulary(tokenizer: Tokenizer | None, config: Config, path: Path) -> None:
    """Check that the model's vocabulary has all ids of the tokenizer."""
    if tokenizer is None:
        return
    for side, stack in ((tokenizer, config.encoder), (tokenizer.target, config.decoder)):
        if stack is not None and side.vocab_size > stack.vocab_size > 0:
            raise QkvError(
                f"{path}: the tokenizer has {side.vocab_size} ids, but the model's vocabulary has only "
                f"{stack.vocab_size}; use the tokenizer of this model"
            )


def replace_head(config: Config, head: HeadConfig) -> Config:
    """Return the config with another head."""
    try:
        return replace(config, head=head)
    except ValueError as error:
        raise UsageError(f"head: {error}") from error
