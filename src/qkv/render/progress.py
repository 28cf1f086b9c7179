"""Progress bars on stderr, shown only when stderr is a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from qkv.progress import OnProgress, OnStage
from qkv.render.console import NoColorConsole


@contextmanager
def progress_bar(description: str) -> Iterator[OnProgress | None]:
    """Show a progress bar during the `with` block. Yields None if stderr is not a terminal."""
    console = NoColorConsole(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


@contextmanager
def stages_bar() -> Iterator[OnStage | None]:
    """Show a progress bar for work with several named stages, one stage at a time."""
    console = NoColorConsole(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    bar = Progress(*columns, console=console, transient=True)
    tasks: dict[str, TaskID] = {}

    def report(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            for task in tasks.values():
                bar.remove_task(task)
            tasks.clear()
            tasks[stage] = bar.add_task(stage, total=None)
            bar.start()
        bar.update(tasks[stage], completed=done, total=total or None)
        if total and done >= total:
            bar.stop()

    try:
        yield report
    finally:
        bar.stop()
