"""Errors of the API: a status code and a message in the JSON that clients of OpenAI's API know."""

import math
from typing import Any

from starlette.responses import Response

from qkv.decode import NonFiniteLogits
from qkv.errors import ContextLengthError, QkvError, shorten
from qkv.serve.http.json_body import encode_json
from qkv.train.out_of_memory import is_out_of_memory

STATUSES: dict[int, tuple[str, str]] = {
    400: ("invalid_request_error", "The request is invalid, or this model cannot do what it asks for."),
    401: ("authentication_error", "The API key is missing or unknown."),
    403: ("permission_error", "The server does not answer requests for this host name."),
    404: ("not_found_error", "There is no such model or path."),
    405: ("invalid_request_error", "The path exists, but not with this method."),
    408: ("timeout_error", "The body of the request did not arrive in time."),
    413: ("invalid_request_error", "The body of the request is too large."),
    415: ("invalid_request_error", "The body of the request is not application/json."),
    429: ("rate_limit_error", "The queue is full. Try again after the seconds in Retry-After."),
    500: ("server_error", "The server failed. Its log has the reason, under the id of the request."),
    503: ("overloaded_error", "The server is stopping, the model is not loaded, or memory is short."),
    504: ("timeout_error", "The request took longer than the server allows."),
}
"""For each status: the type of the error, and a description for the OpenAPI document."""
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""The code of OpenAI's API, by which clients find out that they have to shorten a text."""


class ApiError(Exception):
    """An error with an HTTP status."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_after: float = 0
    ) -> None:
        """`param` is the field of the request that is wrong, `code` a name for programs to compare with."""
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_after = status, message, param, code, retry_after

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON values."""
        kind = STATUSES[self.status][0]
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def to_response(self) -> Response:
        """The error as a response."""
        headers = {"Retry-After": str(math.ceil(self.retry_after))} if self.retry_after else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(encode_json(self.to_dict()), self.status, headers, media_type="application/json")


def to_api_error(error: BaseException) -> ApiError:
    """Convert any exception. The message of an unexpected one stays in the log, because it may contain paths."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QkvError) and not isinstance(error, NonFiniteLogits):
        is_too_long = isinstance(error, ContextLengthError)
        return ApiError(400, shorten(str(error), 1000), code=CONTEXT_LENGTH_EXCEEDED if is_too_long else None)
    if is_out_of_memory(error):
        return ApiError(503, "the server ran out of memory; send fewer or shorter texts, or try later", retry_after=5)
    return ApiError(500, "the server failed to process this request; its log has the reason under the request id")
