"""The text of a reply as an iterator: `for text in m.chat("…", stream=True)`."""

from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from threading import Event, Thread

from qkv.tasks.chat.conversation import ChatReply


class ReplyStream:
    """Yields the text of a reply while it is generated. After the last text, `reply` is the whole reply.

    The model runs in a thread of its own. If the loop over the texts is left early, generation stops.
    """

    reply: ChatReply | None = None

    def __init__(self, run: Callable[[Callable[[str], None]], ChatReply]) -> None:
        """`run` generates a reply, and calls a function with each new text."""
        self._texts = self._iterate(run)

    def __iter__(self) -> Iterator[str]:
        return self._texts

    def __next__(self) -> str:
        return next(self._texts)

    def close(self) -> None:
        """Stop the generation."""
        self._texts.close()

    def _iterate(self, run: Callable[[Callable[[str], None]], ChatReply]) -> Generator[str, None, None]:
        items: SimpleQueue[str | BaseException | None] = SimpleQueue()
        closed = Event()

        def on_text(text: str) -> None:
            if closed.is_set():
                raise _StreamClosed
            items.put(text)

        def work() -> None:
            try:
                self.reply = run(on_text)
                items.put(None)
            except BaseException as error:  # raised in the thread of the reader
                items.put(error)

        thread = Thread(target=work, daemon=True)
        thread.start()
        try:
            while (item := items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            closed.set()
            thread.join()


class _StreamClosed(Exception):
    """The reader has closed the stream."""
