"""Where a model is: a folder on this machine, or a hub id that is fetched when it is asked for."""

import re
from pathlib import Path

from qkv.errors import QkvError, UsageError, suggest_path
from qkv.models.tables.presets import PRESETS

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
DOWNLOAD_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja"]
"""What is fetched: configs, tokenizers and safetensors; never pickles or code."""


def resolve_folder(name: str | Path) -> Path:
    """The folder that a name means. Only `owner/model` that is no path here goes to the hub (the `hub` extra)."""
    path = Path(name).expanduser()
    if not str(name):
        raise UsageError("give the name of a folder, or a hub id")
    if path.is_dir():
        return path
    if path.exists():
        raise QkvError(f"{path}: this is a file; give the folder that it lies in")
    if str(name) in PRESETS:
        raise QkvError(
            f"{name}: no such folder; {name} is a preset, a shape without weights: give a folder or a hub id"
        )
    if not _HUB_ID.fullmatch(str(name)) or path.parent.is_dir():
        run = Path("runs") / path  # where runs are kept, as people forget to say
        hint = f"; did you mean {run}?" if run.is_dir() else suggest_path(path, folders=True)
        raise QkvError(f"{path}: no such folder{hint}")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise QkvError(
            f'{name}: no such folder; if it is a hub id, install the extra: pip install "qkv[hub]"'
        ) from error
    try:
        return Path(snapshot_download(str(name), allow_patterns=DOWNLOAD_PATTERNS))
    except Exception as error:  # the library raises its own kinds for network, permission and name
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise QkvError(f"{name}: no such folder, and the hub did not give it ({reason})") from error
