"""The models that come with qkv, "in the box": each is a model folder in `qkv/box`, and its name is the folder's name.

A folder of the user's with the same name takes precedence, and a note says so.
"""

from pathlib import Path

from qkv.files import to_path

BOX = Path(__file__).parents[1] / "box"


def box_folders() -> dict[str, Path]:
    """The folder of each model in the box, by name."""
    return {path.name: path for path in sorted(BOX.iterdir()) if path.is_dir()} if BOX.is_dir() else {}


def find_in_box(name: str | Path) -> Path | None:
    """The folder of a model in the box; None if the name is another, or if the user has a file or folder of this name.

    >>> find_in_box("runs/dates") is None
    True
    """
    return None if to_path(name).exists() else box_folders().get(str(name))


def box_notes(name: str | Path) -> list[str]:
    """A note if the name of a model in the box is also the name of a folder or a run of the user's."""
    if str(name) not in box_folders():
        return []
    if to_path(name).exists():
        return [f"this is your folder ./{name}, not the model {name} that comes with qkv; rename it to use that one"]
    run = Path("runs") / name
    return [f"this is the model that comes with qkv; for your run of the same name, give {run}"] if run.is_dir() else []
