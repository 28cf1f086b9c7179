"""Find a model's folder: a local one, a bundled one, or one that is downloaded from the Hugging Face hub.

The bundled models come with qkv: each is a model folder in `qkv/bundled`, and has the name of its folder. If the user
has a folder with the same name, this folder takes precedence, and a note says so.
"""

import re
from pathlib import Path

from qkv.errors import QkvError, UsageError, suggest_name, suggest_path
from qkv.files import to_path

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
DOWNLOAD_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja"]
"""The files to download: configs, tokenizers and safetensors, but no pickles and no code."""


def resolve_folder(name: str | Path) -> Path:
    """Find the folder of a model.

    A local folder comes first, then a bundled model. Any other name `owner/model` is downloaded from the hub, which
    needs `qkv[hub]`.
    """
    path = to_path(name)
    if not str(name):
        raise UsageError("the name of the model is empty; name a folder or a hub id")
    if path.is_dir():
        return path
    if path.exists():
        raise UsageError(f"{path}: this is a file, but a model is a folder; name its folder")
    if (bundled := find_bundled(name)) is not None:
        return bundled
    from qkv.models.tables.presets import PRESETS

    if str(name) in PRESETS:
        raise UsageError(
            f"{name}: no such folder; {name} is a preset, which has no weights; name a model folder or a hub id"
        )
    if not HUB_ID.fullmatch(str(name)) or path.parent.is_dir():
        run = Path("runs") / path  # users often forget the prefix runs/
        hint = f"; did you mean {run}?" if run.is_dir() else suggest_path(path, folders=True)
        if not hint and len(path.parts) == 1:
            hint = f", and no such bundled model; {suggest_name(str(path), bundled_folders())}"
        raise UsageError(f"{path}: no such folder{hint}")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise QkvError(f'{name}: no such folder; to download it from the hub: pip install "qkv[hub]"') from error
    try:
        return Path(snapshot_download(str(name), allow_patterns=DOWNLOAD_PATTERNS))
    except Exception as error:  # the library has many exception types
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise QkvError(
            f"{name}: no such folder, and the download from the hub failed ({reason}); check the name and your network"
        ) from error


BUNDLED = Path(__file__).parents[1] / "bundled"


def bundled_folders() -> dict[str, Path]:
    """The folder of each bundled model, by name."""
    return {path.name: path for path in sorted(BUNDLED.iterdir()) if path.is_dir()} if BUNDLED.is_dir() else {}


def find_bundled(name: str | Path) -> Path | None:
    """The folder of a bundled model. None if no bundled model has this name, or if it is a file or folder of the user.

    >>> find_bundled("runs/dates") is None
    True
    """
    return None if to_path(name).exists() else bundled_folders().get(str(name))


def bundled_notes(name: str | Path) -> list[str]:
    """A note if the user has a folder or a run with the name of a bundled model."""
    if str(name) not in bundled_folders():
        return []
    if to_path(name).exists():
        return [f"this is your folder ./{name}; to use the bundled model {name} instead, rename the folder"]
    run = Path("runs") / name
    return (
        [f"this is the bundled model {name}; to use your run of the same name, name it {run}"] if run.is_dir() else []
    )
