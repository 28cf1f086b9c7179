"""POST /v1/images/generations: pictures of what a text describes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from qkv.serve.http.api_error import ApiError
from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.routes.generation_body import ModelName
from qkv.serve.routes.task_routes import check_count
from qkv.serve.running.batcher import OnProgress
from qkv.tasks.calls import TaskCall
from qkv.tasks.table import TASKS
from qkv.tasks.verbs.draw import KIND
from qkv.values import Limits

MAX_PICTURES = 64


@dataclass(frozen=True, kw_only=True)
class PictureBody:
    """A request for pictures."""

    prompt: Annotated[str, Limits(1), "What the pictures show."]
    model: ModelName | None = None
    n: Annotated[int, Limits(1, MAX_PICTURES), "The number of pictures."] = 1
    size: Annotated[str, 'WIDTHxHEIGHT, which must be the size that the model draws, or "auto".'] = "auto"
    response_format: Literal["b64_json"] = "b64_json"
    temperature: Annotated[float, Limits(0, 1e6), "0 draws the likeliest picture; it needs n = 1."] = 1.0
    guidance: Annotated[float, Limits(0, 100), "For a model that was trained with objective.caption_dropout."] = 1.0
    top_k: Annotated[int, Limits(0, 1_000_000), "Sample from the k most probable codes; 0: from all."] = 0
    seed: Annotated[int, Limits(0, 2**62), "Picture i of n has the seed seed + i."] | None = None
    user: Annotated[str, "Accepted, without effect."] | None = None


@dataclass(frozen=True)
class PictureData:
    """One picture."""

    b64_json: Annotated[str, "A PNG file in base64."]


@dataclass(frozen=True)
class PictureAnswer:
    """The pictures."""

    created: int
    data: list[PictureData]


async def draw_pictures(call: Call) -> PictureAnswer:
    """Answer a request."""
    body: PictureBody = call.body
    served, task = call.server.pool.find(body.model), TASKS["draw"]
    call.request.state.model = served.name
    check_count(call, body.n)
    codec: Any = next((one for one in served.model.config.back_ends if one.kind == KIND), None)
    if codec is not None and body.size not in ("auto", own := f"{codec.size}x{codec.size}"):
        raise ApiError(
            400, f"size = {body.size!r}: this model draws pictures of {own}; send that, or auto", param="size"
        )
    if body.n > 1 and not body.temperature:
        raise ApiError(400, f"n = {body.n}: at temperature 0 all pictures are equal; raise temperature", param="n")
    options: dict[str, Any] = {"temperature": body.temperature, "guidance": body.guidance}
    if body.temperature:
        options["top_k"] = body.top_k

    def run(several: list[int | None], progress: OnProgress) -> Sequence[Any]:
        draw: TaskCall[Any] = TaskCall(served.model, task)
        if body.seed is None:
            found: Sequence[Any] = draw([body.prompt] * len(several), progress=progress, **options)
            return found
        return [draw(body.prompt, seed=seed, **options) for seed in several]

    seeds = [None if body.seed is None else body.seed + number for number in range(body.n)]
    with served.in_use():
        key = ("pictures", body.prompt, body.seed is None, repr(sorted(options.items())))
        drawn = await served.batcher.map(run, seeds, key=key)
    return PictureAnswer(int(time.time()), [PictureData(one.b64_json) for one in drawn])


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/images/generations",
        draw_pictures,
        "Pictures of what a text describes.",
        body=PictureBody,
        answer=PictureAnswer,
    ),
)
