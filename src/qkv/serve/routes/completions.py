"""POST /v1/completions: continue prompts."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from qkv.decode import GenerationResult, TokenLogprob, score
from qkv.serve.http.api_error import ApiError
from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.routes.choices import (
    ResponseFields,
    StopReason,
    Usage,
    cancel_choices,
    check_choices,
    close_choices,
    count_usage,
    encode_prompts,
    find_engine,
    make_response_fields,
    stop_reason,
    submit_choices,
    token_logprobs,
)
from qkv.serve.routes.event_stream import EventStream, merge
from qkv.serve.routes.generation_body import MAX_LOGPROBS, GenerationBody
from qkv.serve.running.generation import Generation
from qkv.serve.running.pool import ServedModel
from qkv.serve.running.token_texts import TokenTexts
from qkv.values import Limits

DEFAULT_TOKENS = 16
TokenId = Annotated[int, Limits(0, 2**31)]
Prompt = Annotated[list[TokenId], Limits(1)]


@dataclass(frozen=True, kw_only=True)
class CompletionBody(GenerationBody):
    """A request to continue prompts. For an encoder-decoder, the prompts are its sources."""

    prompt: Annotated[
        str | Annotated[list[str], Limits(1)] | Prompt | Annotated[list[Prompt], Limits(1)],
        "A text, a list of token ids, or a list of either.",
    ]
    max_tokens: Annotated[int, Limits(0, 2**31), "The largest number of new tokens; 16 by default."] | None = None
    logprobs: Annotated[int, Limits(0, MAX_LOGPROBS), "The number of alternatives to report for each token."] | None = (
        None
    )
    echo: Annotated[bool, "Whether the answer begins with the prompt."] = False


@dataclass(frozen=True)
class CompletionLogprobs:
    """The log-probabilities of tokens. The first token of a prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: Annotated[list[int], "Where each token begins in the text."]


@dataclass(frozen=True)
class CompletionChoice:
    """A text."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: StopReason | None


@dataclass(frozen=True)
class CompletionAnswer:
    """The texts that were generated."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


@dataclass(frozen=True)
class Echo:
    """The prompt, as the beginning of an answer."""

    text: str = ""
    logprobs: tuple[TokenLogprob | None, ...] = ()
    ids: tuple[int, ...] = ()


async def complete(call: Call) -> Any:
    """Answer a request."""
    body: CompletionBody = call.body
    served = call.server.pool.find(body.model)
    find_engine(served)
    max_tokens = min(DEFAULT_TOKENS, call.server.settings.max_tokens) if body.max_tokens is None else body.max_tokens
    if max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens = 0 generates nothing; raise it, or set echo", param="max_tokens")
    if body.echo and served.model.config.encoder is not None:
        raise ApiError(400, "echo is for decoders; an encoder-decoder does not continue its source", param="echo")
    with served.in_use():
        given: Any = body.prompt
        is_single = isinstance(given, str) or isinstance(given[0], int)
        texts: list[str | list[int]] = [given] if is_single else given
        check_choices(call, len(texts))
        prompts = await encode_prompts(served, texts)
        echoes = [await make_echo(served, body, text, ids) for text, ids in zip(texts, prompts, strict=True)]
        if body.logprobs is not None and served.model.tokenizer is not None:
            await served.batcher.call(lambda: served.token_texts)
        generations: list[Generation] = []
        if max_tokens:
            generations = await submit_choices(
                call, served, prompts, max_tokens=max_tokens, logprobs=body.logprobs or 0
            )
        writer = CompletionWriter(call, served, body, [echo for echo in echoes for _ in range(body.n)])
        num_prompt = sum(map(len, prompts))
        if body.stream:
            events = writer.stream(generations, num_prompt)
            return EventStream(call, events, lambda: close_choices(call, served, num_prompt, generations))
        try:
            results = [await generation.result() for generation in generations]
        finally:
            cancel_choices(generations)
            usage = count_usage(call, served, num_prompt, generations)
        return writer.write(results, usage)


async def make_echo(served: ServedModel, body: CompletionBody, text: str | list[int], ids: list[int]) -> Echo:
    """The prompt, with the log-probabilities of its tokens if they are asked for."""
    if not body.echo:
        return Echo()
    tokenizer = served.model.tokenizer
    if not isinstance(text, str):
        text = tokenizer.decode(text) if tokenizer is not None else ""
    if body.logprobs is None or not ids:
        return Echo(text)
    scored: list[TokenLogprob | None] = [None]
    if len(ids) > 1:
        network, count = served.model.network, body.logprobs
        scored += await served.batcher.call(lambda: score(network, [ids[:1]], [ids[1:]], logprobs=count)[0])
    return Echo(text, tuple(scored), tuple(ids))


class CompletionWriter:
    """Writes the answer to one request, whole or in chunks."""

    def __init__(self, call: Call, served: ServedModel, body: CompletionBody, echoes: Sequence[Echo]) -> None:
        """`echoes` has an entry for each choice."""
        self.call, self.served, self.body, self.echoes = call, served, body, echoes
        self.fields: ResponseFields = make_response_fields("cmpl", served)

    def write(self, results: Sequence[GenerationResult], usage: Usage) -> CompletionAnswer:
        """The whole answer."""
        choices = []
        for i, echo in enumerate(self.echoes):
            result = results[i] if results else GenerationResult("", [], 0.0, "length")
            logprobs = self.describe([*echo.logprobs, *result.logprobs[: len(result.ids)]], echo, 0)
            text = echo.text + result.text
            choices.append(CompletionChoice(i, text, logprobs, stop_reason(result.finish_reason)))
        fields = self.fields
        return CompletionAnswer(fields.id, "text_completion", fields.created, fields.model, choices, usage)

    async def stream(self, generations: Sequence[Generation], num_prompt: int) -> AsyncIterator[CompletionAnswer]:
        """The answer in chunks."""
        with self.served.in_use():
            if not generations:
                for i, echo in enumerate(self.echoes):
                    logprobs = self.describe(echo.logprobs, echo, 0)
                    yield self.chunk(CompletionChoice(i, echo.text, logprobs, "length"))
            streams = [self.stream_choice(i, generation) for i, generation in enumerate(generations)]
            async for chunk in merge(streams):
                yield chunk
            usage = count_usage(self.call, self.served, num_prompt, generations)
            options = self.body.stream_options
            if options is not None and options.include_usage:
                fields = self.fields
                yield CompletionAnswer(fields.id, "text_completion", fields.created, fields.model, [], usage)

    async def stream_choice(self, index: int, generation: Generation) -> AsyncIterator[CompletionAnswer]:
        """The chunks of one choice."""
        echo, offset = self.echoes[index], 0
        if echo.text or echo.logprobs:
            yield self.chunk(CompletionChoice(index, echo.text, self.describe(echo.logprobs, echo, 0), None))
            offset = len(echo.text)
        async for new in generation.chunks():
            found = (
                token_logprobs(generation, new.first_token, new.last_token) if self.body.logprobs is not None else []
            )
            logprobs = self.describe(found, Echo(), offset)
            offset += len(new.text)
            if new.text or found:
                yield self.chunk(CompletionChoice(index, new.text, logprobs, None))
        assert isinstance(generation.outcome, GenerationResult)
        yield self.chunk(CompletionChoice(index, "", None, stop_reason(generation.outcome.finish_reason)))

    def chunk(self, choice: CompletionChoice) -> CompletionAnswer:
        """A chunk with one choice."""
        return CompletionAnswer(self.fields.id, "text_completion", self.fields.created, self.fields.model, [choice])

    def describe(self, found: Sequence[TokenLogprob | None], echo: Echo, offset: int) -> CompletionLogprobs | None:
        """Log-probabilities in the form of the API, or None if they are not asked for."""
        if self.body.logprobs is None or self.served.model.tokenizer is None:
            return None
        texts: TokenTexts = self.served.token_texts
        ids = [echo.ids[i] if one is None else one.id for i, one in enumerate(found)]
        tokens = [texts.text_of(token) for token in ids]
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        return CompletionLogprobs(
            tokens,
            [None if one is None else one.logprob for one in found],
            [None if one is None else name_alternatives(texts, one) for one in found],
            offsets,
        )


def name_alternatives(texts: TokenTexts, token: TokenLogprob) -> dict[str, float]:
    """The alternatives of a token by their texts. If two have the same text, the more likely one is kept."""
    found: dict[str, float] = {}
    for other, logprob in token.alternatives.items():
        found.setdefault(texts.text_of(other), logprob)
    return found


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/completions",
        complete,
        "Continue prompts.",
        body=CompletionBody,
        answer=CompletionAnswer,
        has_stream=True,
    ),
)
