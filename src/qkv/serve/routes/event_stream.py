"""Server-sent events: an answer that is sent while it is generated."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from qkv.serve.http.api_error import ApiError, to_api_error
from qkv.serve.http.endpoint import Call, cancel_all, log_failure, wait_for_disconnect
from qkv.serve.http.json_body import encode_json

T = TypeVar("T")

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends events until they end, the client disconnects, or the time limit is reached.

    An error after the first event cannot change the status any more, so it is sent as an event.
    """

    def __init__(self, call: Call, events: AsyncIterator[Any], on_close: Callable[[], None]) -> None:
        """`on_close` is called in any case, and stops the work behind the events."""
        super().__init__(headers=HEADERS)
        self.call, self.events, self.on_close = call, events, on_close
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        seconds = self.call.deadline - asyncio.get_running_loop().time()
        sending = asyncio.ensure_future(self._send_events(send))
        watcher = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await asyncio.wait({sending, watcher}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            elif watcher.done():
                self.call.server.metrics.add("qkv_cancelled_total")
                self.call.request.state.is_cancelled = True
            else:
                await cancel_all(sending)
                limit = self.call.server.settings.request_seconds
                late = ApiError(504, f"the request took longer than request_seconds = {limit:g}; ask for less at once")
                # A client that does not read must not hold the connection.
                async with asyncio.timeout(1):
                    await self._end(send, encode_event(late.to_dict()))
        except (OSError, TimeoutError):
            self.call.request.state.is_cancelled = True
        finally:
            await cancel_all(sending, watcher)
            self.on_close()

    async def _send_events(self, send: Send) -> None:
        try:
            async for event in self.events:
                await send({"type": "http.response.body", "body": encode_event(event), "more_body": True})
            last = DONE
        except OSError:
            raise
        except Exception as error:
            api_error = to_api_error(error)
            if api_error.status == 500:
                log_failure(self.call.server, self.call.request_id, error)
            last = encode_event(api_error.to_dict())
        await self._end(send, last)

    async def _end(self, send: Send, last: bytes) -> None:
        await send({"type": "http.response.body", "body": last, "more_body": False})


def encode_event(value: Any) -> bytes:
    """A value as one event. Events that have a type are also named after it."""
    kind = value.get("type") if isinstance(value, dict) else None
    return (f"event: {kind}\n".encode() if kind else b"") + b"data: " + encode_json(value) + b"\n\n"


async def merge(streams: Sequence[AsyncIterator[T]]) -> AsyncIterator[T]:
    """Yield the items of several streams as they come. The first error ends all."""
    if len(streams) == 1:
        async for item in streams[0]:
            yield item
        return
    queue: asyncio.Queue[tuple[T | None, Exception | None]] = asyncio.Queue(maxsize=2 * len(streams))

    async def forward(stream: AsyncIterator[T]) -> None:
        try:
            async for item in stream:
                await queue.put((item, None))
            await queue.put((None, None))
        except Exception as error:
            await queue.put((None, error))

    tasks = [asyncio.ensure_future(forward(stream)) for stream in streams]
    num_open = len(tasks)
    try:
        while num_open:
            found, error = await queue.get()
            if error is not None:
                raise error
            if found is None:
                num_open -= 1
            else:
                yield found
    finally:
        await cancel_all(*tasks)
