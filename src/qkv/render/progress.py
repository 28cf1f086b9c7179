"""A progress bar on stderr, where there is a person to see it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

Report = Callable[[int, int], None]
"""Called with how much is done and how much there is (0: not known)."""


@contextmanager
def progress_bar(what: str) -> Iterator[Report | None]:
    """A bar while the work runs; nothing where stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


@contextmanager
def stages_bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar for work in several stages, each with a name; it goes when the last one is through."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    stages: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in stages:
            for stage in stages.values():
                bar.remove_task(stage)
            stages.clear()
            stages[what] = bar.add_task(what, total=None)
            bar.start()
        bar.update(stages[what], completed=done, total=total or None)
        if total and done >= total:
            bar.stop()

    try:
        yield report
    finally:
        bar.stop()
