"""The calls of a model on texts: /translate, /summarise, /classify, /tag, /answer, /fill and /score.

Each is the call of `Model` with the same name. Calls with equal options that arrive together run in one batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

from qkv.serve.http.api_error import ApiError
from qkv.serve.http.endpoint import Call, Endpoint
from qkv.serve.routes.generation_body import ModelName, StopText
from qkv.serve.routes.text_answers import (
    AnswerAnswer,
    ClassifyAnswer,
    FillAnswer,
    GenerateAnswer,
    ScoreAnswer,
    ScoredText,
    ScoredToken,
    TagAnswer,
)
from qkv.serve.running.batcher import OnProgress
from qkv.serve.running.pool import ServedModel
from qkv.tasks.results import Result
from qkv.values import Limits

MAX_BEAM = 16
SCORE_BATCH = 16
Texts = Annotated[str | Annotated[list[str], Limits(1)], "A text or several."]
Top = Annotated[int, Limits(1, MAX_BEAM)]
TooLong = Annotated[str, 'For a text that is too long: "error", "truncate" or "split".']


@dataclass(frozen=True, kw_only=True)
class TextToTextBody:
    """Options of translations and summaries. Without a value, an option has the default of the model."""

    texts: Texts
    model: ModelName | None = None
    beam: Annotated[int, Limits(1, MAX_BEAM), "The number of beams; 1 is greedy decoding."] = 1
    max_tokens: Annotated[int, Limits(1, 2**31), "Of each sentence or part."] | None = None
    top: Annotated[Top, "How many hypotheses to return."] = 1
    prompt: Annotated[str, Limits(0, 1000), "Put before every sentence or part."] = ""
    length_penalty: Annotated[float, Limits(-10, 10)] = 1.0
    no_repeat_ngram_size: Annotated[int, Limits(0, 1000)] = 0
    stop: Annotated[list[StopText], Limits(0, 16)] | None = None


@dataclass(frozen=True, kw_only=True)
class TranslateBody(TextToTextBody):
    """A request to translate texts."""

    align: Annotated[bool, "Whether to align each word with a word of the source."] = False
    prefix: Annotated[str, Limits(0, 1000), "How the translation begins."] = ""
    sentences: Annotated[bool, "Whether to translate sentence by sentence; by default, as trained."] | None = None


@dataclass(frozen=True, kw_only=True)
class SummariseBody(TextToTextBody):
    """A request to summarise texts."""

    too_long: TooLong = "split"


@dataclass(frozen=True, kw_only=True)
class ClassifyBody:
    """A request to classify texts, or pairs of texts."""

    texts: Annotated[
        str | Annotated[list[str | Annotated[list[str], Limits(2, 2)]], Limits(1)],
        "A text, or a list of texts and pairs of texts.",
    ]
    model: ModelName | None = None
    top: Annotated[int, Limits(0, 10_000), "How many classes to list; 0: all."] | None = None
    threshold: Annotated[float, Limits(0, 1), "Below this probability, a text is out of scope."] | None = None
    too_long: TooLong = "error"


@dataclass(frozen=True, kw_only=True)
class TagBody:
    """A request to tag the words of texts."""

    texts: Annotated[
        str | Annotated[list[str | Annotated[list[str], Limits(1)]], Limits(1)],
        "A text, or a list of texts; a text may also be a list of its words.",
    ]
    model: ModelName | None = None


@dataclass(frozen=True, kw_only=True)
class AnswerBody:
    """A request to find the answers to questions in passages."""

    question: Texts
    context: Annotated[str | Annotated[list[str], Limits(1)], "A passage for all questions, or one for each."]
    model: ModelName | None = None
    top: Annotated[Top, "How many answers to return."] = 1
    no_answer: Annotated[bool, "Whether a question may have no answer."] = True


@dataclass(frozen=True, kw_only=True)
class FillBody:
    """A request to fill in masked words, as in "Paris is the [MASK] of France."."""

    texts: Texts
    model: ModelName | None = None
    top: Annotated[int, Limits(1, 100), "How many words to return for each mask."] = 5


@dataclass(frozen=True, kw_only=True)
class ScoreBody:
    """A request for the log-probabilities of targets, given their prompts or sources."""

    prompts: Texts
    targets: Texts
    model: ModelName | None = None


def check_count(call: Call, count: int) -> None:
    """Raise an error if a request has too many texts."""
    if count > call.server.settings.max_texts:
        limit = call.server.settings.max_texts
        raise ApiError(400, f"{count} texts: this server takes at most max_texts = {limit} at once; send fewer")


def listed(texts: Any) -> list[Any]:
    """Texts as a list."""
    return [texts] if isinstance(texts, str) else list(texts)


def find_options(body: Any, *others: str) -> dict[str, Any]:
    """The options of a request: its fields with values, without the model and the inputs."""
    values = {field.name: getattr(body, field.name) for field in fields(body)}
    return {name: value for name, value in values.items() if name not in ("model", *others) and value is not None}


async def run_call(call: Call, name: str, inputs: list[Any], options: dict[str, Any]) -> tuple[str, list[Any]]:
    """Run a call of the model on inputs. Returns the name of the model and the results."""
    check_count(call, len(inputs))
    served = call.server.pool.find(call.body.model)
    max_tokens = call.server.settings.max_tokens
    if options.get("max_tokens", 1) > max_tokens:
        raise ApiError(400, f"max_tokens: this server generates at most max_tokens = {max_tokens:,}; lower it")

    def run(several: list[Any], progress: OnProgress) -> Sequence[Any]:
        results: Sequence[Result] = getattr(served.model, name)(several, progress=progress, **options)
        return [result.to_dict() for result in results]

    key = (name, repr(sorted(options.items())))
    call.request.state.model = served.name
    with served.in_use():
        return served.name, await served.batcher.map(run, inputs, key=key)


async def translate(call: Call) -> GenerateAnswer:
    """Translate texts."""
    return GenerateAnswer(*await run_call(call, "translate", listed(call.body.texts), find_options(call.body, "texts")))


async def summarise(call: Call) -> GenerateAnswer:
    """Summarise texts."""
    return GenerateAnswer(*await run_call(call, "summarise", listed(call.body.texts), find_options(call.body, "texts")))


async def classify(call: Call) -> ClassifyAnswer:
    """Classify texts."""
    texts = [text if isinstance(text, str) else tuple(text) for text in listed(call.body.texts)]
    return ClassifyAnswer(*await run_call(call, "classify", texts, find_options(call.body, "texts")))


async def tag(call: Call) -> TagAnswer:
    """Tag the words of texts."""
    return TagAnswer(*await run_call(call, "tag", listed(call.body.texts), {}))


async def answer(call: Call) -> AnswerAnswer:
    """Answer questions."""
    body: AnswerBody = call.body
    questions, contexts = listed(body.question), listed(body.context)
    if isinstance(body.context, str):
        contexts *= len(questions)
    elif isinstance(body.question, str):
        questions *= len(contexts)
    if len(questions) != len(contexts):
        raise ApiError(400, f"{len(questions)} questions for {len(contexts)} passages; send the same number of both")
    pairs = list(zip(questions, contexts, strict=True))
    return AnswerAnswer(*await run_call(call, "answer", pairs, find_options(body, "question", "context")))


async def fill(call: Call) -> FillAnswer:
    """Fill in masked words."""
    return FillAnswer(*await run_call(call, "fill", listed(call.body.texts), find_options(call.body, "texts")))


async def score(call: Call) -> ScoreAnswer:
    """Score targets."""
    body: ScoreBody = call.body
    prompts, targets = listed(body.prompts), listed(body.targets)
    if len(prompts) != len(targets):
        raise ApiError(400, f"{len(prompts)} prompts for {len(targets)} targets; send the same number of both")
    check_count(call, len(prompts))
    served = call.server.pool.find(body.model)
    call.request.state.model = served.name
    with served.in_use():
        pairs = list(zip(prompts, targets, strict=True))
        results = await served.batcher.map(lambda *inputs: score_pairs(served, *inputs), pairs, key="score")
    return ScoreAnswer(served.name, results)


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
    Endpoint("POST", "/translate", translate, "Translate texts.", body=TranslateBody, answer=GenerateAnswer),
    Endpoint("POST", "/summarise", summarise, "Summarise texts.", body=SummariseBody, answer=GenerateAnswer),
    Endpoint("POST", "/classify", classify, "Classify texts.", body=ClassifyBody, answer=ClassifyAnswer),
    Endpoint("POST", "/tag", tag, "Tag the words of texts.", body=TagBody, answer=TagAnswer),
    Endpoint("POST", "/answer", answer, "Find answers in passages.", body=AnswerBody, answer=AnswerAnswer),
    Endpoint("POST", "/fill", fill, "Fill in masked words.", body=FillBody, answer=FillAnswer),
    Endpoint("POST", "/score", score, "The log-probabilities of texts.", body=ScoreBody, answer=ScoreAnswer),
)
