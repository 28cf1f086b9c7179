"""A route for each task: /translate, /classify, /answer and the other verbs of the table of tasks.

The request has the inputs and the options of the task, and the response has its results. Calls with equal options that
arrive together run in one batch.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import MISSING, field, make_dataclass
from functools import partial
from typing import Annotated, Any, Union

from qkv.data.problems import InvalidRecord
from qkv.data.readers.named_files import DATA_URL, read_data_url
from qkv.serve.http.api_error import ApiError
from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.routes.generation_body import ModelName
from qkv.serve.running.batcher import OnProgress
from qkv.tasks.calls import TaskCall
from qkv.tasks.results import Result
from qkv.tasks.table import TASKS
from qkv.tasks.task import Task
from qkv.values import Limits, find_fields

MAX_BEAM = 16
"""The largest number of beams and of hypotheses in a request."""
ServedName = Annotated[str, "The name of the model."]
Texts = Annotated[str | Annotated[list[str], Limits(1)], "A text or several."]
Pairs = Annotated[
    str | Annotated[list[str | Annotated[list[str], Limits(2, 2)]], Limits(1)],
    "A text, or a list of texts and pairs of texts.",
]
Words = Annotated[
    str | Annotated[list[str | Annotated[list[str], Limits(1)]], Limits(1)],
    "A text, or a list of texts; a text may also be a list of its words.",
]


def make_endpoint(task: Task) -> Endpoint:
    """The endpoint of a task. The types of its request and response are made from the task's options and results."""
    kind = Words if task.reads_words else Pairs if task.accepts_pairs else Texts
    inputs: list[Any] = [(name, Texts if task.needs_all_inputs else kind) for name in task.parameters]
    inputs += [(name, Texts | None, field(default=None)) for name in task.more_inputs]
    options: list[Any] = [
        (option.name, option.type, field(default_factory=lambda value=option.default: value))  # type: ignore[misc]
        for option in find_fields(task.Options)
        if not option.is_hidden and option.default is not MISSING
    ]
    title = task.name.capitalize()
    model: Any = ("model", ModelName | None, field(default=None))
    body = make_dataclass(f"{title}Request", [*inputs, model, *options], frozen=True, kw_only=True)
    body.__doc__ = f"A request: {task.question}"
    results: Any = list[Union[task.results]]  # type: ignore[name-defined]  # noqa: UP007 — the results are a tuple
    answer = make_dataclass(f"{title}Response", [("model", ServedName), ("results", results)], frozen=True)
    answer.__doc__ = "A result for each text."
    handle = partial(run_task, task, answer)
    return Endpoint("POST", f"/{task.name}", handle, task.question, body=body, answer=answer)


def find_endpoints() -> tuple[Endpoint, ...]:
    """The endpoints of all tasks."""
    return tuple(map(make_endpoint, TASKS.values()))


async def run_task(task: Task, answer: type, call: Call) -> Any:
    """Run a task of the model on the texts of a request."""
    inputs = read_inputs(task, call.body)
    check_count(call, len(inputs))
    given = (
        (option.name, getattr(call.body, option.name), option)
        for option in find_fields(task.Options)
        if not option.is_hidden
    )
    options = {name: value for name, value, option in given if value is not None and value != option.default}
    check_limits(task, call, options)
    served = call.server.pool.find(call.body.model)
    if task.input_modality(served.model.config) != "text":
        inputs = await asyncio.to_thread(read_payloads, task, inputs)

    def run(several: list[Any], progress: OnProgress) -> Sequence[Any]:
        results: Sequence[Result] = TaskCall(served.model, task)(several, progress=progress, **options)
        return [result.to_dict() for result in results]

    call.request.state.model = served.name
    with served.in_use():
        key = (task.name, repr(sorted(options.items())))
        return answer(served.name, await served.batcher.map(run, inputs, key=key))


def read_payloads(task: Task, inputs: Sequence[Any]) -> list[Any]:
    """The inputs of a request with the content of their images or sounds."""
    return [task.map_payloads(text, partial(read_payload, number)) for number, text in enumerate(inputs, 1)]


def read_payload(number: int, text: Any) -> bytes:
    """The bytes of an image or a sound in a data URL. Nothing else is read: neither files nor other URLs."""
    try:
        if not isinstance(text, str) or not text.startswith(DATA_URL):
            raise InvalidRecord("send it as a data URL: data:image/png;base64,… or data:audio/wav;base64,…")
        return read_data_url(text)
    except InvalidRecord as invalid:
        raise ApiError(400, f"image or sound {number}: {invalid.reason}") from None


def read_inputs(task: Task, body: Any) -> list[Any]:
    """The texts of a request, as the call of the model takes them. A single text is used for all others."""
    names = [*task.parameters, *(name for name in task.more_inputs if getattr(body, name) is not None)]
    sides = [listed(getattr(body, name)) for name in names]
    if len(sides) == 1:
        return [tuple(text) if isinstance(text, list) else text for text in sides[0]]
    count = max(map(len, sides))
    sides = [
        side * count if isinstance(getattr(body, name), str) else side for name, side in zip(names, sides, strict=True)
    ]
    if len(set(map(len, sides))) > 1:
        counts = " for ".join(f"{len(side)} {name}s" for name, side in zip(names, sides, strict=True))
        raise ApiError(400, f"{counts}; send the same number of each")
    return [task.join_inputs(values) for values in zip(*sides, strict=True)]


def check_limits(task: Task, call: Call, options: dict[str, Any]) -> None:
    """Raise an error if a request would generate more than the server allows."""
    max_tokens = call.server.settings.max_tokens
    if task.generates and options.get("max_tokens", 1) > max_tokens:
        raise ApiError(400, f"max_tokens: this server generates at most max_tokens = {max_tokens:,}; lower it")
    for name in ("beam", "top") if task.generates else ():
        if options.get(name, 1) > MAX_BEAM:
            raise ApiError(
                400, f"{name} = {options[name]:,}: this server keeps at most {MAX_BEAM} hypotheses; lower it"
            )


def check_count(call: Call, count: int) -> None:
    """Raise an error if a request has too many texts."""
    if count > call.server.settings.max_texts:
        limit = call.server.settings.max_texts
        raise ApiError(400, f"{count} texts: this server takes at most max_texts = {limit} at once; send fewer")


def listed(texts: Any) -> list[Any]:
    """Texts as a list."""
    return [texts] if isinstance(texts, str) else list(texts)
