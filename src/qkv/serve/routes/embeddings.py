"""POST /v1/embeddings: vectors of texts."""

import base64
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from qkv.api import Model
from qkv.serve.http.api_error import ApiError
from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.routes.generation_body import ModelName
from qkv.serve.routes.task_routes import check_count
from qkv.values import Limits


@dataclass(frozen=True, kw_only=True)
class EmbeddingBody:
    """A request for the vectors of texts."""

    input: Annotated[str | Annotated[list[str], Limits(1)], "A text or several."]
    model: ModelName | None = None
    encoding_format: Annotated[Literal["float", "base64"], "base64 is of float32 numbers, little-endian."] = "float"
    pooling: Annotated[Literal["first", "last", "mean"], "For a model without an embedding head."] | None = None
    too_long: Annotated[Literal["error", "truncate"], "What happens to a text that is too long."] = "error"
    dimensions: (
        Annotated[int, Limits(1, 2**20), "The vectors are cut to this number of components, and normalised again."]
        | None
    ) = None
    user: Annotated[str, "Accepted, without effect."] | None = None


@dataclass(frozen=True)
class EmbeddingVector:
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


@dataclass(frozen=True)
class EmbeddingUsage:
    """Numbers of tokens."""

    prompt_tokens: int
    total_tokens: int


@dataclass(frozen=True)
class EmbeddingAnswer:
    """The vectors, in the order of the texts."""

    object: Literal["list"]
    model: str
    data: list[EmbeddingVector]
    usage: EmbeddingUsage


async def embed(call: Call) -> EmbeddingAnswer:
    """Answer a request."""
    body: EmbeddingBody = call.body
    texts = [body.input] if isinstance(body.input, str) else body.input
    served = call.server.pool.find(body.model)
    check_count(call, len(texts))
    with served.in_use():

        def run(several: list[str], _: Any) -> list[tuple[np.ndarray[Any, Any], int]]:
            return embed_and_count(served.model, several, body.pooling, body.too_long)

        results = await served.batcher.map(run, texts, key=("embed", body.pooling, body.too_long))
    vectors = [shorten_vector(vector, body.dimensions) for vector, _ in results]
    data = [
        EmbeddingVector("embedding", i, encode_vector(vector, body.encoding_format)) for i, vector in enumerate(vectors)
    ]
    num_tokens = sum(count for _, count in results)
    call.request.state.model, call.request.state.prompt_tokens = served.name, num_tokens
    call.server.metrics.add("qkv_prompt_tokens_total", num_tokens, model=served.name)
    return EmbeddingAnswer("list", served.name, data, EmbeddingUsage(num_tokens, num_tokens))


def embed_and_count(
    model: Model, texts: list[str], pooling: Any, too_long: Any
) -> list[tuple[np.ndarray[Any, Any], int]]:
    """The vector of each text, and the number of its tokens."""
    vectors = model.embed(texts, pooling=pooling, too_long=too_long).float().cpu().numpy()
    assert model.tokenizer is not None
    counts = map(len, model.tokenizer.encode_batch(texts, add_special_tokens=True))
    return list(zip(vectors, counts, strict=True))


def shorten_vector(vector: np.ndarray[Any, Any], dimensions: int | None) -> np.ndarray[Any, Any]:
    """The first components of a vector, with length 1; the whole vector without `dimensions`.

    >>> shorten_vector(np.array([3.0, 4.0, 5.0]), 2)
    array([0.6, 0.8])
    """
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        problem = f"dimensions = {dimensions:,}: the vectors of this model have {len(vector):,} components; give fewer"
        raise ApiError(400, problem, param="dimensions")
    shorter = vector[:dimensions]
    return shorter / max(float(np.linalg.norm(shorter)), 1e-12)


def encode_vector(vector: np.ndarray[Any, Any], encoding: str) -> list[float] | str:
    """A vector as numbers, or as base64 of its float32 bytes."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    numbers: list[float] = vector.tolist()
    return numbers


ENDPOINTS = (
    Endpoint("POST", "/v1/embeddings", embed, "Vectors of texts.", body=EmbeddingBody, answer=EmbeddingAnswer),
)
