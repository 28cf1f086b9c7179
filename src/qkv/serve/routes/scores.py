"""/score: the log-probabilities of texts, given their prompts or sources."""

from dataclasses import dataclass

from qkv.serve.http.api_error import ApiError
from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.routes.generation_body import ModelName
from qkv.serve.routes.task_routes import ServedName, Texts, check_count, listed
from qkv.serve.running.batcher import OnProgress
from qkv.serve.running.pool import ServedModel

SCORE_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """A request for the log-probabilities of targets, given their prompts or sources."""

    prompts: Texts
    targets: Texts
    model: ModelName | None = None


@dataclass(frozen=True)
class ScoredToken:
    """A token of a target."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class ScoredText:
    """The log-probability of a target, and of each of its tokens. The last is the end-of-sequence token."""

    logprob: float
    tokens: list[ScoredToken]


@dataclass(frozen=True)
class ScoreResponse:
    """The log-probability of each target."""

    model: ServedName
    results: list[ScoredText]


async def score(call: Call) -> ScoreResponse:
    """Score targets."""
    body: ScoreRequest = call.body
    prompts, targets = listed(body.prompts), listed(body.targets)
    if len(prompts) != len(targets):
        raise ApiError(400, f"{len(prompts)} prompts for {len(targets)} targets; send the same number of both")
    check_count(call, len(prompts))
    served = call.server.pool.find(body.model)
    call.request.state.model = served.name
    with served.in_use():
        pairs = list(zip(prompts, targets, strict=True))
        results = await served.batcher.map(lambda *inputs: score_pairs(served, *inputs), pairs, key="score")
    return ScoreResponse(served.name, results)


def score_pairs(served: ServedModel, pairs: list[tuple[str, str]], progress: OnProgress) -> list[ScoredText]:
    """Score targets, a few at a time."""
    results = []
    for start in range(0, len(pairs), SCORE_BATCH):
        progress(start, len(pairs))
        prompts, targets = zip(*pairs[start : start + SCORE_BATCH], strict=True)
        for found in served.model.score(list(prompts), list(targets)):
            tokens = [ScoredToken(one.id, served.token_texts.text_of(one.id), one.logprob) for one in found]
            results.append(ScoredText(sum(one.logprob for one in found), tokens))
    return results


ENDPOINTS = (
    Endpoint("POST", "/score", score, "The log-probabilities of texts.", body=ScoreRequest, answer=ScoreResponse),
)
