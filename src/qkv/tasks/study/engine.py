"""Run the missing runs and keep the finished ones: the runs of a study, or the seeds of a claim of the lab."""

from collections.abc import Callable, Hashable, Iterable, MutableMapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def run_missing(
    keys: Iterable[Key],
    done: MutableMapping[Key, Value],
    run: Callable[[Key], Value],
    save: Callable[[Key], None],
    *,
    jobs: int = 1,
) -> None:
    """Run each key that `done` lacks, in order. `save` is called after each run, so that a kill loses at most one.

    With several jobs, `run` is called in threads, and should start a process. After an error, no further run starts,
    and the error is raised when the other runs have ended.
    """
    missing = [key for key in keys if key not in done]
    if jobs == 1:
        for key in missing:
            done[key] = run(key)
            save(key)
        return
    with ThreadPoolExecutor(jobs) as pool:
        waiting = iter(missing)
        running = {pool.submit(run, key): key for key in islice(waiting, jobs)}
        failure: BaseException | None = None
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                key = running.pop(future)
                if (error := future.exception()) is not None:
                    failure = failure or error
                    continue
                done[key] = future.result()
                save(key)
                if failure is None and (following := next(waiting, None)) is not None:
                    running[pool.submit(run, following)] = following
        if failure is not None:
            raise failure
