"""A lock that threads get in the order in which they asked for it."""

from collections import deque
from threading import Event, Lock


class FairLock:
    """With Python's own lock, a thread that releases and takes it in a loop can starve all others.

    The threads that use one GPU share a lock, because no other thread may use the GPU while a CUDA graph is captured.
    """

    def __init__(self) -> None:
        self._mutex, self._is_held = Lock(), False
        self._waiting: deque[Event] = deque()

    def __enter__(self) -> None:
        with self._mutex:
            if not self._is_held:
                self._is_held = True
                return
            turn = Event()
            self._waiting.append(turn)
        turn.wait()

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_held = False
