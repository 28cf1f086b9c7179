"""The types of the functions that long work calls to report its progress."""

from collections.abc import Callable

OnProgress = Callable[[int, int], None]
"""Called as `progress(done, total)`; the total is 0 while it is not known."""

OnStage = Callable[[str, int, int], None]
"""Called as `progress(stage, done, total)` by work with several stages, each with a name."""
