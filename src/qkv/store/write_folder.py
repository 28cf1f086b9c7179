"""Write model folders: config.json, model.safetensors, the tokenizer's files and README.md (a model card)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from qkv.errors import QkvError, UsageError, suggest_name
from qkv.files import to_path, write_atomically
from qkv.models import Config
from qkv.models.families import describe_difference
from qkv.plugins import find_plugins
from qkv.store.huggingface import find_hf_export, write_hf
from qkv.store.model_card import model_card
from qkv.store.model_folder import MODEL_FILES, PROCESSOR_FILE, RECIPE_FILE
from qkv.store.sentence_transformers import find_transformer_export, write_sentence_transformers
from qkv.store.staged_folder import staged_folder
from qkv.store.weights import check_not_quantized, quantize_rows, write_weights
from qkv.text import Tokenizer

HF_FRONT_ENDS = ("patches", "log-mel")  # front ends that some architecture of transformers has
FORMATS = ("qkv", "hf", "ctranslate2", "onnx", "gguf")


def write_model(
    folder: str | Path,
    config: Config,
    network: nn.Module,
    tokenizer: Tokenizer | None,
    format: str = "qkv",
    *,
    processor: Mapping[str, Any] | None = None,
    card_fields: Mapping[str, str] | None = None,
    int8: bool = False,
    dtype: str = "f16",
) -> str:
    """Write a model folder: a qkv folder, or one for transformers ("hf"), CTranslate2 or ONNX; or a GGUF file.

    Returns the name of the class that loads the folder, of the ONNX files, or of the architecture of a GGUF file.
    `processor` has the settings that turn images or sounds into payloads; they become `PROCESSOR_FILE`. `card_fields`
    are rows of a new model card, such as data, scores and licence. `int8` stores the matrices of a qkv folder in int8
    (`quantize_rows`); `dtype` is the type of the matrices of a GGUF file. All files are complete before the first one
    replaces an old one, so that a failure leaves an old model intact.
    """
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}; {suggest_name(format, FORMATS)}")
    if format != "qkv" and (own := find_plugins(config.list_parts())):
        rows = "; ".join(f"{', '.join(plugin.rows)} of the plugin {plugin.module}" for plugin in own)
        raise QkvError(
            f"the format {format} cannot store {rows}, so it would compute something else; use the folder that qkv "
            "writes (m.save)"
        )
    if not config.has_blocks and format != "qkv":
        raise QkvError(
            f"the format {format} is for Transformers, and this model has {config.stack.block.upper()} layers; "
            "use the folder that qkv writes (qkv run, qkv.load), or train a Transformer: leave out model.family in "
            "the recipe"
        )
    for name, does in (("front ends", "read"), ("back ends", "draw")):
        ends = getattr(config, name.replace(" ", "_"))
        if format != "qkv" and any(format != "hf" or end.kind not in HF_FRONT_ENDS for end in ends):
            kinds = ", ".join(end.kind for end in ends)
            raise QkvError(
                f"the format {format} cannot store the {name} of this model ({kinds}), so it would lose what they "
                f"{does}; use the folder that qkv writes (m.save)"
            )
    check_not_quantized(network)
    if difference := describe_difference(network, config):
        raise QkvError(
            f"{difference}: this is not the network that its config builds, and a folder stores only the config and "
            "the weights. Register the new part (qkv.register_part), name it in the config and build the network again"
        )
    if format == "ctranslate2":
        from qkv.store.export_ctranslate2 import write_ctranslate2

        return write_ctranslate2(folder, config, network, tokenizer)  # type: ignore[arg-type]
    if format == "onnx":
        from qkv.store.export_onnx import write_onnx

        return write_onnx(folder, config, network, tokenizer)  # type: ignore[arg-type]
    if format == "gguf":
        from qkv.store.gguf.write_gguf import write_gguf

        return write_gguf(to_path(folder), config, network, tokenizer, dtype)  # type: ignore[arg-type]
    folder = to_path(folder)
    # transformers has a class for an embedding of a dense layer (BERT's pooler), but none for other embeddings.
    is_pooled = config.head.kind == "embed" and config.head.dense == "none"
    hf_export, is_embedder = None, is_pooled and not config.front_ends and not config.head.outputs
    load_class: str = config.family
    if format == "hf":  # raises before anything is written
        hf_export = find_transformer_export(config) if is_embedder else find_hf_export(config)
        load_class = "SentenceTransformer" if is_embedder else hf_export.head_table.class_name
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    with staged_folder(folder, "config.json", MODEL_FILES, also_accepted=[RECIPE_FILE]) as staging:
        if tokenizer is not None:
            tokenizer.save(staging)
        if processor is not None:
            write_atomically(staging / PROCESSOR_FILE, json.dumps(dict(processor), indent=2) + "\n")
        if hf_export is not None:
            write_hf(staging, hf_export, config, parameters)
            if is_embedder:
                write_sentence_transformers(staging, config)
        else:
            write_weights(staging, quantize_rows(parameters) if int8 else parameters)
            write_atomically(staging / "config.json", json.dumps(config.to_dict(), indent=2) + "\n")
        if card_fields is not None or not (folder / "README.md").exists():
            write_atomically(
                staging / "README.md",
                model_card(config, sum(p.numel() for p in parameters.values()), load_class, card_fields),
            )
    return load_class
