"""POST /v1/audio/transcriptions: the text of a sound file, which is sent as a form."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from starlette.responses import PlainTextResponse

from qkv.errors import UsageError
from qkv.serve.http.api_error import ApiError
from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.routes.generation_body import ModelName
from qkv.serve.running.batcher import OnProgress
from qkv.tasks.calls import TaskCall
from qkv.tasks.table import TASKS
from qkv.tasks.verbs.transcribe import SpokenWord, Transcript, check_duration

Format = Literal["json", "text", "verbose_json", "srt"]


@dataclass(frozen=True, kw_only=True)
class TranscriptionForm:
    """A form with a sound file."""

    file: Annotated[str, "The sound file: WAV, FLAC, Ogg, Opus, MP3 or AIFF."]
    model: ModelName | None = None
    response_format: Annotated[Format, "text and srt are plain texts; verbose_json has times."] = "json"
    language: Annotated[str, "Accepted, without effect."] = ""
    prompt: Annotated[str, "Accepted, without effect."] = ""
    temperature: Annotated[str, "Accepted, without effect."] = ""
    timestamp_granularities: Annotated[list[str], "Accepted, without effect: there are always both."] = field(
        default_factory=list
    )


@dataclass(frozen=True)
class TranscriptSegment:
    """Some words that are spoken together."""

    id: int
    start: float
    end: float
    text: str


@dataclass(frozen=True)
class TranscriptionAnswer:
    """The text of the sound. With `verbose_json`, the other fields are not null."""

    text: str
    task: str | None = None
    duration: Annotated[float | None, "In seconds."] = None
    words: list[SpokenWord] | None = None
    segments: list[TranscriptSegment] | None = None


async def transcribe(call: Call) -> Any:
    """Answer a request."""
    body: TranscriptionForm = call.body
    if "file" not in call.files:
        raise ApiError(400, "file: send the sound as a file of the form, with a file name", param="file")
    served, task = call.server.pool.find(body.model), TASKS["transcribe"]
    call.request.state.model = served.name

    def run(several: list[bytes], progress: OnProgress) -> Sequence[Any]:
        found: Sequence[Any] = TaskCall(served.model, task)([*map(check_duration, several)], progress=progress)
        return found

    with served.in_use():
        try:
            (found,) = await served.batcher.map(run, [call.files["file"]], key=("transcriptions",))
        except UsageError as error:
            raise ApiError(400, str(error).removeprefix("audio 1: "), param="file") from None
    return make_answer(found, body.response_format)


def make_answer(found: Transcript, format: Format) -> Any:
    """The response in one of the formats."""
    if format in ("text", "srt"):
        return PlainTextResponse((found.text if format == "text" else found.to_srt()) + "\n")
    if format == "json":
        return TranscriptionAnswer(found.text)
    segments = [TranscriptSegment(number, one.start, one.end, one.text) for number, one in enumerate(found.captions())]
    return TranscriptionAnswer(found.text, "transcribe", found.duration, found.words, segments)


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/audio/transcriptions",
        transcribe,
        "The text of a sound.",
        body=TranscriptionForm,
        answer=TranscriptionAnswer,
        is_form=True,
    ),
)
