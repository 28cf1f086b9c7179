"""POST /v1/audio/speech: a text as a sound file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from starlette.responses import Response

from qkv.errors import UsageError
from qkv.serve.http.api_error import ApiError
from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.routes.generation_body import ModelName
from qkv.serve.running.batcher import OnProgress
from qkv.tasks.calls import TaskCall
from qkv.tasks.table import TASKS
from qkv.values import Limits

MEDIA_TYPES = {
    "wav": "audio/wav",
    "flac": "audio/flac",
    "opus": "audio/ogg",
    "ogg": "audio/ogg",
    "pcm": "application/octet-stream",
}
MAX_CHARS = 4096  # as in OpenAI's API


@dataclass(frozen=True, kw_only=True)
class SpeechBody:
    """A text to speak."""

    input: Annotated[str, f"The text, of at most {MAX_CHARS:,} characters."]
    model: ModelName | None = None
    voice: Annotated[str | None, "The speaker. Default: the first one."] = None
    response_format: Annotated[Literal["wav", "flac", "opus", "ogg", "pcm"], "pcm: 16 bits, without a header."] = "wav"
    speed: Annotated[float, Limits(0.25, 4)] = 1.0
    instructions: Annotated[str, "Accepted, without effect."] = ""
    stream_format: Annotated[str, "Accepted, without effect: the answer is one file."] = ""


async def speak(call: Call) -> Any:
    """Answer a request."""
    body: SpeechBody = call.body
    if len(body.input) > MAX_CHARS:
        message = f"input has {len(body.input):,} characters, but at most {MAX_CHARS:,} are spoken; send it in parts"
        raise ApiError(400, message, param="input")
    served, task = call.server.pool.find(body.model), TASKS["speak"]
    call.request.state.model = served.name
    options = {"speaker": body.voice, "speed": body.speed}

    def run(several: list[str], progress: OnProgress) -> Sequence[Any]:
        found: Sequence[Any] = TaskCall(served.model, task)(several, progress=progress, **options)
        return found

    with served.in_use():
        try:
            (found,) = await served.batcher.map(run, [body.input], key=("speech", *options.values()))
            content = found.encode(body.response_format)
        except UsageError as error:
            param = "voice" if str(error).startswith("speaker") else "input"
            raise ApiError(400, str(error).removeprefix("text 1 "), param=param) from None
    return Response(content, media_type=MEDIA_TYPES[body.response_format], headers={"X-Sample-Rate": str(found.rate)})


ENDPOINTS = (Endpoint("POST", "/v1/audio/speech", speak, "A text as a sound file.", body=SpeechBody),)
