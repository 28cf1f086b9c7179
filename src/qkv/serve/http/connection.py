"""Limits of connections: time for the headers of a request and for unread answers, and connections of one address.

uvicorn has a limit for all connections and one for idle connections only. A client could keep all connections by
sending its headers slowly, or by not reading answers.
"""

import asyncio
from collections import Counter
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from qkv.serve.http.api_error import ApiError
from qkv.serve.settings import ServeSettings

REASONS = {408: "Request Timeout", 429: "Too Many Requests", 503: "Service Unavailable"}


def make_protocol(settings: ServeSettings) -> type[asyncio.Protocol]:
    """Make a subclass of uvicorn's protocol that enforces the limits. All connections of a server share it."""
    num_connections: Counter[str] = Counter()  # by address
    base: Any = AutoHTTPProtocol

    class LimitedProtocol(base):  # type: ignore[misc]
        """A connection."""

        address: str | None = None
        header_timer: asyncio.TimerHandle | None = None
        write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.address = self.client[0] if self.client else "unknown"
            num_connections[self.address] += 1
            if num_connections.total() > settings.max_connections:
                message = f"the server has max_connections = {settings.max_connections:,} connections; try again later"
                self.refuse(ApiError(503, message, retry_after=1))
            elif num_connections[self.address] > settings.max_connections_per_address:
                limit = settings.max_connections_per_address
                message = f"this address has more than max_connections_per_address = {limit:,} connections; close some"
                self.refuse(ApiError(429, message, retry_after=1))
            else:
                self.start_header_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self.header_timer, self.write_timer):
                if timer is not None:
                    timer.cancel()
            if self.address is not None:
                num_connections[self.address] -= 1
                if not num_connections[self.address]:
                    del num_connections[self.address]
                self.address = None
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            before = self.cycle
            if self.header_timer is None and (before is None or before.response_complete):
                self.start_header_timer()
            super().data_received(data)
            if self.header_timer is not None and self.cycle is not before:  # the headers are complete
                self.header_timer.cancel()
                self.header_timer = None

        def start_header_timer(self) -> None:
            seconds = settings.header_seconds
            message = f"the headers did not arrive within header_seconds = {seconds:g}; send them faster"
            self.header_timer = self.loop.call_later(seconds, self.refuse, ApiError(408, message))

        def refuse(self, error: ApiError) -> None:
            """Send an error and close the connection."""
            response = error.to_response()
            headers = [(b"connection", b"close"), *response.raw_headers]
            lines = [f"HTTP/1.1 {error.status} {REASONS[error.status]}".encode(), *(b": ".join(h) for h in headers)]
            self.transport.write(b"\r\n".join([*lines, b"", b""]) + bytes(response.body))
            self.transport.close()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.write_timer = self.loop.call_later(settings.write_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            if self.write_timer is not None:
                self.write_timer.cancel()
            super().resume_writing()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.get_write_buffer_size():
                self.loop.call_later(settings.write_seconds, self.abort_if_unread)

        def abort_if_unread(self) -> None:
            """Close the connection if its client has not read the last answer."""
            if self.cycle.response_complete and self.transport.get_write_buffer_size():
                self.transport.abort()

    return LimitedProtocol
