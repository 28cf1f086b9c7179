"""The bundled models, which come with qkv: each is a model folder in `qkv/bundled`, and has the name of its folder.

If the user has a folder with the same name, this folder takes precedence, and a note says so.
"""

from pathlib import Path

from qkv.files import to_path

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
