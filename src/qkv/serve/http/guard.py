"""Middleware around all routes: request ids, checks of host name and API key, the log and the metrics."""

import re
import time
import uuid
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qkv.serve.http.api_error import ApiError
from qkv.serve.state import ServerState

SAFE_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
CHUNK_BYTES = 2**16
"""An answer is sent in chunks of this size. Smaller answers do not count as unsent."""
OPEN_WHILE_DRAINING = ("/healthz", "/readyz", "/metrics")


class Guard:
    """Middleware around all routes."""

    def __init__(self, app: ASGIApp, server: ServerState, open_paths: Mapping[str, bool]) -> None:
        """`open_paths` are known paths, each with whether it needs no key. Unknown paths need one."""
        self.app, self.server, self.open_paths = app, server, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, server, began = Headers(scope=scope), self.server, time.monotonic()
        given_id = headers.get("x-request-id", "")
        request_id = given_id if SAFE_ID.fullmatch(given_id) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        status, num_bytes, unsent, is_refused = 0, 0, 0, False

        async def send_with_id(message: Message) -> None:
            nonlocal status, num_bytes, unsent, is_refused
            if is_refused:
                return
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                length = int(added.get("content-length", 0))
                if length > CHUNK_BYTES:
                    if server.unsent_bytes + length > server.settings.max_unsent_bytes:
                        await self.refuse_answer(length, scope, receive, send_with_id)
                        is_refused = True
                        return
                    server.unsent_bytes, unsent = server.unsent_bytes + length, length
                status = message["status"]
                added["X-Request-ID"] = request_id
                added["X-Content-Type-Options"] = "nosniff"
                added.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
                await send(message)
                return
            body = message.get("body", b"")
            num_bytes += len(body)
            for start in range(0, max(1, len(body)), CHUNK_BYTES):  # each chunk waits until the client has read others
                part, is_last = body[start : start + CHUNK_BYTES], start + CHUNK_BYTES >= len(body)
                await send({**message, "body": part, "more_body": message.get("more_body", False) or not is_last})

        server.num_running += 1
        try:
            try:
                state["key_name"] = self.check(scope["path"], headers)
            except ApiError as error:
                await error.to_response()(scope, receive, send_with_id)
            else:
                await self.app(scope, receive, send_with_id)
        finally:
            server.num_running -= 1
            server.unsent_bytes -= unsent
            seconds = time.monotonic() - began
            path = scope["path"] if scope["path"] in self.open_paths else "other"
            server.metrics.add("qkv_requests_total", path=path, status=str(status))
            server.metrics.observe("qkv_request_seconds", seconds, path=path)
            self.log(scope, request_id, status, num_bytes, seconds)

    async def refuse_answer(self, length: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an error in place of an answer that is too large while other answers are unread."""
        limit = self.server.settings.max_unsent_bytes
        error = ApiError(
            503,
            f"the answer has {length:,} bytes, and with the answers that clients have not read yet it exceeds "
            f"max_unsent_bytes = {limit:,}; ask for less, or try later",
            code="memory",
            retry_after=5,
        )
        await error.to_response()(scope, receive, send)

    def check(self, path: str, headers: Headers) -> str | None:
        """Return the name of the key, or raise an error if this request must not be answered."""
        server, hosts = self.server, self.server.settings.allowed_hosts
        # Without this, a page of any site could read answers, by a host name that resolves to this machine.
        host = re.sub(r":\d+$", "", headers.get("host", ""))
        if "*" not in hosts and host.lower() not in hosts:
            raise ApiError(
                403, f"this server does not answer requests for the host {host[:100]!r}; see --allowed-hosts"
            )
        # Nor may the page of another site make a browser send requests.
        origin = headers.get("origin")
        is_own = origin is None or origin.partition("://")[2] == headers.get("host")
        if not is_own and origin not in server.settings.cors_origins:
            raise ApiError(
                403, f"pages of the origin {str(origin)[:100]!r} may not use this server; see --cors-origins"
            )
        # A page can also send a GET without this header, for a picture or a frame. Links to the open pages are allowed.
        site = headers.get("sec-fetch-site")
        if origin is None and site in ("cross-site", "same-site") and not self.open_paths.get(path, False):
            raise ApiError(403, "pages of other sites may not use this server; see --cors-origins")
        if server.is_draining and path not in OPEN_WHILE_DRAINING:
            raise ApiError(503, "the server is stopping; send the request again", code="draining", retry_after=1)
        if server.keys is None or self.open_paths.get(path, False):
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        name = server.keys.find_name(key.strip()) if scheme.lower() == "bearer" else None
        if name is None:
            raise ApiError(401, "the API key is missing or unknown; send the header Authorization: Bearer KEY")
        return name

    def log(self, scope: Scope, request_id: str, status: int, num_bytes: int, seconds: float) -> None:
        """Write the line of a request."""
        state = scope["state"]
        values = {"request_id": request_id, "method": scope["method"], "path": scope["path"], "status": status}
        values |= {"seconds": round(seconds, 4), "bytes": num_bytes}
        for name in ("key_name", "model", "prompt_tokens", "generated_tokens", "is_cancelled", "logged_body"):
            if state.get(name) is not None:
                values[name.removeprefix("logged_")] = state[name]
        self.server.log.write("request", **values)
