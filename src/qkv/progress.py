"""The types of the functions that long work calls to report its progress; they may raise an error to stop the work."""

from collections.abc import Callable

OnProgress = Callable[[int, int], None]
"""Called as `progress(done, total)`; the total is 0 while it is not known."""

OnStage = Callable[[str, int, int], None]
"""Called as `progress(stage, done, total)` by work with several stages, each with a name."""


def repeat_progress(progress: OnProgress | None, done: int, total: int) -> OnProgress | None:
    """Return a callback that always reports the same numbers, for work that has no numbers of its own."""
    return None if progress is None else lambda *_: progress(done, total)
