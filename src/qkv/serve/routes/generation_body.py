"""The fields of requests that generate text, with the names of OpenAI's API, and their conversion to our options."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from qkv.decode import GenerationOptions
from qkv.decode.constrained.constraints import GrammarConstraint, grammar, json_schema, regex
from qkv.serve.http.api_error import ApiError
from qkv.serve.settings import ServeSettings
from qkv.values import Limits

MAX_LOGPROBS = 20
MIN_TEMPERATURE = MIN_TOP_P = 1e-6  # smaller values mean greedy decoding, or the most probable token

ModelName = Annotated[str, Limits(1, 200), "The name of a model; by default, the first model of the server."]
StopText = Annotated[str, Limits(1, 1000)]
Bias = Annotated[float, Limits(-100, 100)]


@dataclass(frozen=True)
class JsonSchemaFormat:
    """A JSON schema for the answer."""

    schema: Annotated[dict[str, Any], "The JSON schema."]
    name: Annotated[str, "A name, which has no effect."] = ""
    description: Annotated[str, "A description, which has no effect."] = ""
    strict: Annotated[bool, "The answer is always valid, with or without this."] = True


@dataclass(frozen=True)
class ResponseFormat:
    """The form of the answer: text, any JSON object, or JSON that is valid under a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


@dataclass(frozen=True)
class StreamOptions:
    """Options of a streamed answer."""

    include_usage: Annotated[bool, "Whether a last chunk has the numbers of tokens."] = False
    include_obfuscation: Annotated[bool, "Accepted, without effect."] = False


@dataclass(frozen=True, kw_only=True)
class GenerationBody:
    """The fields that completions and chats share."""

    model: ModelName | None = None
    temperature: Annotated[float, Limits(0, 2), "0 is greedy decoding."] = 1.0
    top_p: Annotated[float, Limits(0, 1), "Sample from the most probable tokens with this total probability."] = 1.0
    n: Annotated[int, Limits(1, 128), "The number of choices for each prompt. Choice i has the seed `seed` + i."] = 1
    seed: Annotated[int, Limits(-(2**62), 2**62), "The same seed gives the same text."] | None = None
    stop: Annotated[StopText | Annotated[list[StopText], Limits(0, 16)], "Texts that end the answer."] | None = None
    stream: Annotated[bool, "Whether the answer is sent while it is generated."] = False
    stream_options: StreamOptions | None = None
    frequency_penalty: Annotated[float, Limits(-2, 2), "Subtracted for each time a token was generated."] = 0.0
    presence_penalty: Annotated[float, Limits(-2, 2), "Subtracted if a token was generated."] = 0.0
    logit_bias: Annotated[dict[str, Bias], Limits(0, 1024), "Added to the logits of token ids."] | None = None
    response_format: ResponseFormat | None = None
    user: Annotated[str, "Accepted, without effect."] | None = None
    store: Annotated[bool, "Accepted, without effect."] | None = None
    metadata: Annotated[dict[str, str], "Accepted, without effect."] | None = None
    service_tier: Annotated[str, "Accepted, without effect."] | None = None
    safety_identifier: Annotated[str, "Accepted, without effect."] | None = None
    prompt_cache_key: Annotated[str, "Accepted, without effect."] | None = None
    # What OpenAI's API does not have
    top_k: Annotated[int, Limits(0, 2**31), "Sample from this number of most probable tokens; 0: from all."] = 0
    min_p: Annotated[float, Limits(0, 1), "The least fraction of the largest probability."] = 0.0
    min_tokens: Annotated[int, Limits(0, 2**31), "The answer does not end before this number of tokens."] = 0
    repetition_penalty: Annotated[float, Limits(0.001, 1000)] = 1.0
    no_repeat_ngram_size: Annotated[int, Limits(0, 2**31), "No n-gram of this size occurs twice; 0: no limit."] = 0
    regex: Annotated[str, Limits(1, 10_000), "The answer matches this regular expression."] | None = None
    grammar: Annotated[str, Limits(1, 100_000), "The answer matches this grammar in Lark's syntax."] | None = None


def make_options(
    body: GenerationBody, settings: ServeSettings, *, max_tokens: int, logprobs: int, prompt_length: int
) -> GenerationOptions:
    """Convert the fields of a request, without its constraint.

    `prompt_length` is the number of tokens before the generated ones.
    """
    if max_tokens > settings.max_tokens:
        raise ApiError(
            400,
            f"max_tokens = {max_tokens:,}: this server generates at most {settings.max_tokens:,}; lower max_tokens",
            param="max_tokens",
        )
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return GenerationOptions(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        temperature=0.0 if body.temperature < MIN_TEMPERATURE else body.temperature,
        top_p=max(body.top_p, MIN_TOP_P),
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        repetition_penalty=body.repetition_penalty,
        no_repeat_ngram_size=body.no_repeat_ngram_size,
        logits_processors=make_processors(body, prompt_length),
        stop=stop,
        logprobs=logprobs,
    )


def has_constraint(body: GenerationBody) -> bool:
    """Whether a request has a constraint, which takes time to compile."""
    form = body.response_format
    return body.regex is not None or body.grammar is not None or (form is not None and form.type != "text")


def make_constraint(body: GenerationBody) -> GrammarConstraint:
    """The constraint of a request that has one."""
    form = body.response_format if body.response_format and body.response_format.type != "text" else None
    if (form is not None) + (body.regex is not None) + (body.grammar is not None) > 1:
        raise ApiError(400, "response_format, regex and grammar exclude each other; leave out all but one")
    if body.regex is not None:
        return regex(body.regex)
    if body.grammar is not None:
        return grammar(body.grammar)
    if form is None or form.type == "json_object":
        return json_schema({"type": "object"})
    if form.json_schema is None:
        raise ApiError(400, "response_format has the type json_schema, but no json_schema", param="response_format")
    return json_schema(form.json_schema.schema)


def make_processors(body: GenerationBody, prompt_length: int) -> tuple[Callable[[Tensor, Tensor], Tensor], ...]:
    """The penalties of OpenAI's API, and the biases of tokens."""
    processors = []
    if body.frequency_penalty or body.presence_penalty:
        processors.append(penalize(body.frequency_penalty, body.presence_penalty, prompt_length))
    if body.logit_bias:
        if not all(name.isascii() and name.isdigit() and len(name) < 10 for name in body.logit_bias):
            raise ApiError(400, 'logit_bias: the keys must be token ids, as in {"42": -100}', param="logit_bias")
        processors.append(add_bias({int(name): value for name, value in body.logit_bias.items()}))
    return tuple(processors)


def penalize(frequency: float, presence: float, prompt_length: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Subtract `frequency` × count + `presence` from the logits of tokens that were generated."""

    def apply(logits: Tensor, tokens: Tensor) -> Tensor:
        counts = torch.zeros_like(logits)
        generated = tokens[:, prompt_length:]
        counts.scatter_add_(1, generated, torch.ones_like(generated, dtype=logits.dtype))
        return logits - frequency * counts - presence * (counts > 0)

    return apply


def add_bias(biases: dict[int, float]) -> Callable[[Tensor, Tensor], Tensor]:
    """Add a number to the logits of some tokens. Ids outside the vocabulary have no effect."""

    def apply(logits: Tensor, _: Tensor) -> Tensor:
        known = [i for i in biases if i < logits.shape[1]]
        added = torch.zeros_like(logits)
        added[:, known] = torch.tensor([biases[i] for i in known], dtype=logits.dtype, device=logits.device)
        return logits + added

    return apply
