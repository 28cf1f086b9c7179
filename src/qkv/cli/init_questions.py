"""The questions of `qkv init` without arguments: which task, and which files."""

import glob
import shlex
import sys
from pathlib import Path

from qkv.errors import UsageError, suggest_name, suggest_path


def ask_task_and_files() -> tuple[str, tuple[str, ...]]:
    """Ask at a terminal for a task, by a menu, and for the training files."""
    from qkv.tasks.starters.starter import COMMON_WORDS, find_task_name
    from qkv.tasks.table import find_starters

    starters = find_starters()
    names = list(starters)
    if not sys.stdin.isatty():
        raise UsageError(f"qkv init needs a task and files: qkv init TASK FILE; tasks: {', '.join(names)}")
    for number, (name, starter) in enumerate(starters.items(), start=1):
        print(f"{number:>3}  {name:<11} {starter.description}")
    while True:
        answer = input("Task (a number, a name, or a word such as ner or sentiment): ").strip()
        task = find_task_name(answer, starters)
        if answer.isdecimal() and 1 <= int(answer) <= len(names):
            task = names[int(answer) - 1]
        if task in starters:
            break
        print(f"no task {answer!r}; {suggest_name(answer, [*names, *' '.join(COMMON_WORDS.values()).split()])}")
    complete_paths()
    while True:
        files = tuple(shlex.split(input(f"Training files, such as {starters[task].example_file} (Tab completes): ")))
        missing = [file for file in files if not glob.glob(file.partition("=")[2] or file)]
        if files and not missing:
            return task, files
        for file in missing:
            print(f"{file}: no such file{suggest_path(Path(file), '*')}")


def complete_paths() -> None:
    """Let the Tab key complete the names of files."""
    try:
        import readline
    except ImportError:  # Windows
        return

    def complete(start: str, state: int) -> str | None:
        found = sorted(glob.glob(f"{glob.escape(start)}*"))
        names = [f"{name}/" if Path(name).is_dir() else name for name in found]
        return names[state] if state < len(names) else None

    readline.set_completer_delims(" \t=")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
