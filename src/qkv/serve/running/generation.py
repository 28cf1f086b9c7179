"""A text that an engine generates for a client, and how the client reads it while it grows."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from qkv.decode import Engine, GenerationOptions, GenerationResult, Request


@dataclass(frozen=True)
class TextChunk:
    """New text of a generation, and the range of its new tokens."""

    text: str
    first_token: int
    last_token: int  # one past the last


class Generation:
    """A text that an engine generates for a client."""

    def __init__(
        self,
        prompt: Sequence[int],
        options: GenerationOptions,
        eos_token_ids: tuple[int, ...] | None,
        *,
        is_streamed: bool,
        on_cancel: "Callable[[Generation], None]",
    ) -> None:
        if options.temperature > 0 and options.seed is None:
            options = replace(options, seed=secrets.randbits(63))
        self.prompt, self.options, self.eos_token_ids, self.is_streamed = prompt, options, eos_token_ids, is_streamed
        self.engine: Engine | None = None
        self.request: Request | None = None
        self.outcome: GenerationResult | Exception | None = None
        self.is_cancelled, self.num_attempts = False, 0
        self.submitted_at, self.first_token_at = time.monotonic(), 0.0
        self._on_cancel, self.loop, self._changed = on_cancel, asyncio.get_running_loop(), asyncio.Event()

    async def chunks(self) -> AsyncIterator[TextChunk]:
        """Yield new text and tokens as they come. Raises the error of a generation that fails.

        If the reader stops early, the generation is cancelled.
        """
        num_chars = num_tokens = 0
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                outcome = self.outcome  # read before the text, so that the last text is not missed
                if isinstance(outcome, Exception):
                    raise outcome
                if self.request is not None:
                    sequence = self.request.sequence
                    end, count = sequence.num_emitted_chars, len(sequence.ids)
                    if end > num_chars or count > num_tokens:
                        yield TextChunk(sequence.text[num_chars:end], num_tokens, count)
                        num_chars, num_tokens = max(end, num_chars), max(count, num_tokens)
                if outcome is not None:
                    return
        finally:
            if self.outcome is None:
                self.cancel()

    async def result(self) -> GenerationResult:
        """Wait for the whole text."""
        async for _ in self.chunks():
            pass
        assert isinstance(self.outcome, GenerationResult)
        return self.outcome

    def cancel(self) -> None:
        """Stop the generation. The next step of the engine frees its pages."""
        self._on_cancel(self)

    def notify(self) -> None:
        """Wake the reader. Called in the event loop."""
        self._changed.set()


def notify_all(generations: list[Generation]) -> None:
    """Wake the readers of these generations."""
    for generation in generations:
        generation.notify()
