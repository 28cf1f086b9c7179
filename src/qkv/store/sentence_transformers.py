"""Folders of the sentence-transformers library: a Hugging Face folder, and files that say how it computes an embedding.

modules.json              the modules: the Transformer, its pooling, and a normalization if there is one
1_Pooling/config.json     how the hidden states of all tokens become one vector
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from qkv.blocks import HeadConfig
from qkv.errors import QkvError
from qkv.files import read_json, read_json_object, write_atomically
from qkv.models import Config
from qkv.store.huggingface import HfExport, find_hf_export

POOLINGS = {"cls": "first", "mean": "mean", "lasttoken": "last"}
"""Their names of poolings, and ours."""
BARE_HEADS = (HeadConfig(kind="embed", dense="tanh"), HeadConfig())
"""Heads of models without a task. BERT has a pooler, which sentence-transformers neither needs nor uses."""


def transformer_folder(folder: Path) -> Path:
    """The folder of the Transformer itself, which sentence-transformers may keep in a sub-folder."""
    for module in _read_modules(folder):
        if str(module.get("type", "")).endswith(".Transformer"):
            return folder / Path(str(module.get("path", ""))).name
    return folder


def sentence_transformers_head(folder: Path) -> HeadConfig | None:
    """The head of a sentence-transformers folder; None for any other folder."""
    modules = _read_modules(folder)
    if not modules:
        return None
    pool, normalize = "mean", False
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            pool = _read_pooling(folder / Path(str(module.get("path", ""))).name / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise QkvError(
                f"{folder / 'modules.json'}: a module of type {kind!r} is not supported; "
                "supported: Transformer, Pooling, Normalize"
            )
    return HeadConfig(kind="embed", pool=pool, normalize=normalize)  # type: ignore[arg-type]


def _read_modules(folder: Path) -> list[dict[str, Any]]:
    path = folder / "modules.json"
    if not path.exists():
        return []
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise QkvError(f"{path}: expected a list of modules; fetch the file again")
    return modules


def _read_pooling(path: Path) -> str:
    config = read_json_object(path)
    modes = config.get("pooling_mode")
    if modes is None:  # the older format: pooling_mode_cls_token = true, …
        prefix = "pooling_mode_"
        enabled = [key.removeprefix(prefix) for key, value in config.items() if key.startswith(prefix) and value]
        modes = [{"cls_token": "cls", "mean_tokens": "mean"}.get(key, key) for key in enabled]
    modes = [str(mode) for mode in modes] if isinstance(modes, list) else [str(modes)]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise QkvError(
            f"{path}: pooling {' + '.join(modes) or 'unknown'} is not supported; known: {', '.join(POOLINGS)}"
        )
    return POOLINGS[modes[0]]


def find_transformer_export(config: Config) -> HfExport:
    """The architecture to which the Transformer of an embedding model is exported, preferably the one that it was read
    from.
    """
    found = []
    for head in BARE_HEADS:
        try:
            found.append(find_hf_export(replace(config, head=head)))
        except QkvError as error:
            reason = error
    if not found:
        raise reason
    return min(found, key=lambda target: target.architecture.name != config.architecture)


def write_sentence_transformers(folder: Path, config: Config) -> None:
    """Write the files that make a Hugging Face folder with an embedding model a sentence-transformers folder."""
    head, stack = config.head, config.stack
    names = ["Transformer", "Pooling", *(["Normalize"] if head.normalize else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(zip(names, paths, strict=False))
    ]
    mode = next(theirs for theirs, ours in POOLINGS.items() if ours == head.pool)
    pooling = {
        "word_embedding_dimension": stack.width,
        "pooling_mode_cls_token": mode == "cls",
        "pooling_mode_mean_tokens": mode == "mean",
        "pooling_mode_lasttoken": mode == "lasttoken",
    }
    for path in paths[1 : len(names)]:
        (folder / path).mkdir()
    _write_json(folder / "1_Pooling" / "config.json", pooling)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": stack.max_positions, "do_lower_case": False})
    _write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    _write_json(folder / "modules.json", modules)


def _write_json(path: Path, values: Any) -> None:
    write_atomically(path, json.dumps(values, indent=2) + "\n")
