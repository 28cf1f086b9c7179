"""POST /trace: the activations inside a model on one text."""

import base64
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.routes.generation_body import ModelName
from qkv.serve.routes.task_routes import ServedName
from qkv.values import Limits

Head = Annotated[int, Limits(0, 4096)]
Text = Annotated[str, Limits(1)]
TokenIds = Annotated[list[Annotated[int, Limits(0, 2**31)]], Limits(1)]


@dataclass(frozen=True)
class TracedTokens:
    """The tokens that one stack reads."""

    ids: list[int]
    texts: list[str]
    special: list[bool]


@dataclass(frozen=True)
class TracedSite:
    """The activations of one site."""

    shape: list[int]
    dtype: Literal["float32"]
    data: Annotated[str, "base64 of float32 numbers, little-endian, in row-major order."]


@dataclass(frozen=True)
class TraceResponse:
    """The activations of one text."""

    model: ServedName
    tokens: Annotated[dict[str, TracedTokens], "By stack: encoder, decoder or both."]
    sites: dict[str, TracedSite]


@dataclass(frozen=True, kw_only=True)
class TraceBody:
    """A request for activations."""

    text: Annotated[
        Text | Annotated[list[Text], Limits(2, 2)] | TokenIds, "A text, a pair of texts for an encoder, or token ids."
    ]
    model: ModelName | None = None
    target: (
        Annotated[str | TokenIds, "What an encoder-decoder reads as its target; by default its own output."] | None
    ) = None
    sites: (
        Annotated[
            list[Annotated[str, Limits(1, 100)]],
            Limits(1, 64),
            'Patterns of names, such as "decoder.*.pattern"; by default the residual stream, the patterns and the '
            "logits.",
        ]
        | None
    ) = None
    heads: Annotated[list[Head], Limits(1, 256), "The heads of scores and patterns."] | None = None


async def trace(call: Call) -> TraceResponse:
    """Answer a request."""
    body: TraceBody = call.body
    served = call.server.pool.find(body.model)
    text: Any = body.text
    if isinstance(text, list) and isinstance(text[0], str):
        text = tuple(text)
    call.request.state.model = served.name

    def run() -> TraceResponse:
        found = served.model.trace(
            text,
            body.target,
            sites=body.sites,
            heads=body.heads,
            max_bytes=call.server.settings.max_trace_bytes,
        )
        tokens = {
            stack: TracedTokens(list(one.ids), list(one.texts), list(one.special))
            for stack, one in found.tokens.items()
        }
        return TraceResponse(served.name, tokens, {site: describe_site(found[site]) for site in found})

    with served.in_use():
        result: TraceResponse = await served.batcher.call(run)
        return result


def describe_site(tensor: Any) -> TracedSite:
    """A tensor with its shape."""
    data = tensor.float().numpy().astype("<f4").tobytes()
    return TracedSite(list(tensor.shape), "float32", base64.b64encode(data).decode("ascii"))


ENDPOINTS = (
    Endpoint("POST", "/trace", trace, "The activations inside a model.", body=TraceBody, answer=TraceResponse),
)
