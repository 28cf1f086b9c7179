"""Code shared by completions and chats: submitting generations, counting tokens, and the names of OpenAI's API."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from qkv.decode import GenerationOptions, TokenLogprob
from qkv.decode.constrained.constraints import GrammarConstraint
from qkv.decode.result import FinishReason
from qkv.serve.http.api_error import ApiError
from qkv.serve.http.endpoint import Call
from qkv.serve.routes.generation_body import GenerationBody, has_constraint, make_constraint, make_options
from qkv.serve.running.engine_thread import EngineThread
from qkv.serve.running.generation import Generation
from qkv.serve.running.pool import ServedModel
from qkv.tasks.run.generate import prompt_ids

LONG_PROMPTS = 2_000
"""Prompts of more characters are tokenized in a thread, so that other requests need not wait."""

CONSTRAINT_THREADS = ThreadPoolExecutor(2, thread_name_prefix="constraint")
"""Compile constraints, so that many of them do not keep other requests from the default threads."""

StopReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True)
class ResponseFields:
    """The fields that every chunk of an answer repeats."""

    id: str
    created: int
    model: str


def make_response_fields(prefix: str, served: ServedModel) -> ResponseFields:
    """A new id, the time and the name of the model."""
    return ResponseFields(f"{prefix}-{secrets.token_hex(12)}", int(time.time()), served.name)


def find_engine(served: ServedModel) -> EngineThread:
    """The engine of a model; an error if the model does not generate text."""
    if served.engine is None:
        GenerationOptions().check(served.model.config)
        if served.model.config.keeps_state:
            raise ApiError(
                400,
                f"model {served.name!r} keeps a state, and this route serves only models that keep keys and "
                "values; use /translate, /summarise or /score, or qkv run",
                param="model",
            )
        raise ApiError(400, f"model {served.name!r} cannot generate text", param="model")
    return served.engine


async def encode_prompts(served: ServedModel, prompts: Sequence[str | list[int]]) -> list[list[int]]:
    """The token ids of prompts."""
    tokenizer, config = served.model.tokenizer, served.model.config

    def encode(prompt: str | list[int]) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        if tokenizer is None:
            raise ApiError(400, f"model {served.name!r} has no tokenizer; send token ids", param="prompt")
        return prompt_ids(tokenizer, config, prompt)

    if sum(map(len, prompts)) > LONG_PROMPTS:
        return await asyncio.to_thread(lambda: list(map(encode, prompts)))
    return list(map(encode, prompts))


def check_choices(call: Call, num_prompts: int) -> None:
    """Raise an error if a request generates too many texts."""
    max_choices = call.server.settings.max_choices
    if num_prompts * call.body.n > max_choices:
        raise ApiError(
            400, f"{num_prompts:,} prompts with n = {call.body.n}: max_choices = {max_choices}; ask for fewer"
        )


async def submit_choices(
    call: Call,
    served: ServedModel,
    prompts: Sequence[list[int]],
    *,
    max_tokens: int,
    logprobs: int,
    extra_stop: tuple[str, ...] = (),
    eos_token_ids: tuple[int, ...] | None = None,
    constrain: Callable[[], GrammarConstraint] | None = None,
) -> list[Generation]:
    """Submit `n` generations for each prompt. If one cannot be submitted, none is.

    `constrain` makes the constraint, instead of the fields of the request.
    """
    body: GenerationBody = call.body
    engine, settings = find_engine(served), call.server.settings
    check_choices(call, len(prompts))
    engine.check_room(len(prompts) * body.n)
    constraint = await compile_constraint(call, served, eos_token_ids, constrain)
    generations: list[Generation] = []
    try:
        for prompt in prompts:
            length = 1 if served.model.config.encoder is not None else len(prompt)
            options = make_options(body, settings, max_tokens=max_tokens, logprobs=logprobs, prompt_length=length)
            options = replace(options, stop=(*options.stop, *extra_stop), constraint=constraint)
            for i in range(body.n):
                seed = None if body.seed is None else body.seed + i
                seeded = replace(options, seed=seed)
                generations.append(engine.submit(prompt, seeded, eos_token_ids, is_streamed=body.stream))
    except BaseException:
        cancel_choices(generations)
        raise
    return generations


async def compile_constraint(
    call: Call,
    served: ServedModel,
    eos_token_ids: tuple[int, ...] | None,
    constrain: Callable[[], GrammarConstraint] | None,
) -> GrammarConstraint | None:
    """Make the constraint of a request, and compile it for all its choices. The engine's thread need not wait."""
    body: GenerationBody = call.body
    if constrain is None and not has_constraint(body):
        return None
    make = constrain or partial(make_constraint, body)

    def compile_now() -> GrammarConstraint:
        constraint = make()
        constraint.compile(served.model.tokenizer, eos_token_ids or served.model.config.eos_token_ids)
        return constraint

    seconds = call.server.settings.constraint_seconds
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.get_running_loop().run_in_executor(CONSTRAINT_THREADS, compile_now)
    except TimeoutError:
        raise ApiError(
            503,
            f"the constraint was not compiled within constraint_seconds = {seconds:g}; make it smaller, or try later",
            retry_after=5,
        ) from None


def cancel_choices(generations: Sequence[Generation]) -> None:
    """Cancel all generations that have not finished."""
    for generation in generations:
        if generation.outcome is None:
            generation.cancel()


def close_choices(call: Call, served: ServedModel, num_prompt: int, generations: Sequence[Generation]) -> None:
    """End a stream: cancel unfinished generations, and count the tokens of a stream that ended early."""
    cancel_choices(generations)
    if not hasattr(call.request.state, "generated_tokens"):
        count_usage(call, served, num_prompt, generations)


def count_usage(call: Call, served: ServedModel, num_prompt: int, generations: Sequence[Generation]) -> Usage:
    """Count the tokens of an answer, for the client, the metrics and the log."""
    generated = sum(len(generation.request.ids) for generation in generations if generation.request is not None)
    metrics, state = call.server.metrics, call.request.state
    metrics.add("qkv_prompt_tokens_total", num_prompt, model=served.name)
    metrics.add("qkv_generated_tokens_total", generated, model=served.name)
    for one in generations:
        if one.first_token_at:
            metrics.observe("qkv_first_token_seconds", one.first_token_at - one.submitted_at, model=served.name)
    state.model, state.prompt_tokens, state.generated_tokens = served.name, num_prompt, generated
    return Usage(num_prompt, generated, num_prompt + generated)


def stop_reason(reason: FinishReason) -> StopReason:
    """The name of a reason in OpenAI's API, which does not distinguish the end token from a stop text."""
    return "length" if reason == "length" else "stop"


def token_logprobs(generation: Generation, first: int, last: int) -> list[TokenLogprob]:
    """The log-probabilities of some tokens of a generation."""
    assert generation.request is not None
    sequence = generation.request.sequence
    return [
        TokenLogprob(sequence.tokens[i], sequence.logprobs[i], sequence.alternatives.get(i, {}))
        for i in range(first, last)
    ]
