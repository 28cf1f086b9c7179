"""A beam search as part of a document: every candidate with its parent, the finished hypotheses, why it stopped."""

import re
from dataclasses import dataclass
from typing import Any

from qkv.decode import GenerationOptions, GenerationResult
from qkv.decode.options import length_divisor
from qkv.decode.result import SearchStep
from qkv.inside.tokens import token_text
from qkv.text import Tokenizer


@dataclass(frozen=True)
class FinishedHypothesis:
    """A hypothesis that the search finished: its last candidate, and its scores."""

    step: int
    index: int
    logprob: float
    score: float  # normalized

    @property
    def length(self) -> int:
        """The number of tokens, with the end-of-sequence token."""
        return self.step + 1


def describe_search(
    result: GenerationResult, options: GenerationOptions, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """The search of a result that has `search_steps`."""
    steps = result.search_steps
    finished = find_finished(steps, options)
    return {
        "beam": options.beam,
        "steps": [describe_step(steps[: s + 1], tokenizer) for s in range(len(steps))],
        **describe_hypotheses(steps, finished, tokenizer),
        "stop_reason": stop_reason(steps, finished, options),
    }


def describe_step(steps: list[SearchStep], tokenizer: Tokenizer | None) -> list[dict[str, Any]]:
    """The candidates of the last one of these steps."""
    target = None if tokenizer is None else tokenizer.target
    parents = find_parents(steps[-2:])[-1]
    return [
        {
            "parent": parent,
            "token": candidate.token,
            "text": token_text(candidate.token, target),
            "score": round(candidate.score, 6),
            "kept": candidate.kept,
            "ended": candidate.ended,
        }
        for candidate, parent in zip(steps[-1].candidates, parents, strict=True)
    ]


def describe_hypotheses(
    steps: list[SearchStep], finished: list[FinishedHypothesis], tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """The finished hypotheses, and the last candidate of the best one; None if none is finished yet."""
    target = None if tokenizer is None else tokenizer.target
    parents = find_parents(steps)
    return {
        "hypotheses": [
            {
                "text": hypothesis_text(steps, parents, hypothesis, target),
                "logprob": round(hypothesis.logprob, 6),
                "score": round(hypothesis.score, 6),
                "length": hypothesis.length,
            }
            for hypothesis in finished
        ],
        "best": {"step": finished[0].step, "index": finished[0].index} if finished else None,
    }


def find_parents(steps: list[SearchStep]) -> list[list[int | None]]:
    """For each candidate, the index of the candidate of the step before that it continues; None in the first step.

    The beams of a step are the kept candidates of the step before that did not end, in order.
    """
    parents: list[list[int | None]] = []
    running: list[int] | None = None
    for step in steps:
        parents.append([None if running is None else running[candidate.beam] for candidate in step.candidates])
        running = [n for n, candidate in enumerate(step.candidates) if candidate.kept and not candidate.ended]
    return parents


def find_finished(steps: list[SearchStep], options: GenerationOptions) -> list[FinishedHypothesis]:
    """The best finished hypotheses, at most one for each beam, best first."""
    finished: list[FinishedHypothesis] = []
    for s, step in enumerate(steps):
        for n, candidate in enumerate(step.candidates):
            if candidate.kept and (candidate.ended or s + 1 == options.max_tokens):
                score = candidate.score / length_divisor(options, s + 1)
                finished.append(FinishedHypothesis(s, n, candidate.score, score))
        finished.sort(key=lambda hypothesis: -hypothesis.score)  # stable: of equal hypotheses, the earlier is better
        del finished[options.beam :]
    return finished


def hypothesis_text(
    steps: list[SearchStep], parents: list[list[int | None]], last: FinishedHypothesis, tokenizer: Tokenizer | None
) -> str:
    """The text of a hypothesis, without the end-of-sequence token."""
    ids: list[int] = []
    step, index = last.step, last.index
    while True:
        candidate, parent = steps[step].candidates[index], parents[step][index]
        if not candidate.ended:
            ids.insert(0, candidate.token)
        if parent is None:
            break
        step, index = step - 1, parent
    return " ".join(f"#{i}" for i in ids) if tokenizer is None else tokenizer.decode(ids)


def stop_reason(steps: list[SearchStep], finished: list[FinishedHypothesis], options: GenerationOptions) -> str:
    """Why the search stopped, as the end of a sentence that begins "It stopped because"."""
    if len(steps) == options.max_tokens:
        return f"it reached the maximum of {options.max_tokens} tokens."
    running = [candidate for candidate in steps[-1].candidates if candidate.kept and not candidate.ended]
    if not running:
        return "no hypothesis was left to continue."
    # The bound of `decode/beam.py`: a running hypothesis can reach at most this normalized score.
    best_length = options.max_tokens if options.length_penalty > 0 else len(steps) + 1
    bound = running[0].score / length_divisor(options, best_length)
    return re.sub(
        r"-(?=\d)",
        "−",
        f"{len(finished)} hypotheses are finished, and no running one can beat the worst of them: the best running "
        f"log-probability is {running[0].score:.4f}, so its normalized score will be at most {bound:.4f}; the worst "
        f"finished one has {finished[-1].score:.4f}.",
    )
