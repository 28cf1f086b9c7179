"""Answer: find the part of a passage that answers a question, or decide that the passage has no answer (SQuAD).

A passage that is too long for the model is read in overlapping windows, and the best span of all windows is the answer.
As in training, the logits of a window's first position stand for "no answer": a span must have a higher sum of logits.

B batch, T sequence length, S spans of a window
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.objectives.question_answering import EncodeAnswer, QuestionAnsweringObjective
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.problems import Problems
from qkv.data.records import FileLocation, Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError
from qkv.models import Config
from qkv.models.runtime.eval_mode import eval_mode
from qkv.progress import OnProgress
from qkv.tasks import metrics
from qkv.tasks.results import Answer
from qkv.tasks.run.example_batches import ExampleBatches, at_least_float32, batches, max_sequence_length
from qkv.tasks.task import Evaluation, EvaluationOptions, TextModel, check_count, select_metrics, select_usable
from qkv.text.words import include_marks
from qkv.train.watch import Sample

METRICS = OBJECTIVES["question_answering"].metrics
MAX_ANSWER_TOKENS = 30
MAX_QUESTION_TOKENS = 64  # or a quarter of the model's positions, if that is less
WINDOW_OVERLAP_TOKENS = 128  # or a quarter of the model's positions, if that is less
MAX_OVERLAPPING = 64  # spans of a window that are compared for each answer; most of them overlap a better one


def run(
    model: TextModel,
    texts: Sequence[tuple[str, str]],
    *,
    top: int = 1,
    no_answer: bool = True,
    batch_size: int = 32,
    progress: OnProgress | None = None,
) -> list[Answer]:
    """The answer to each (question, passage). If `no_answer` is false, the best span is returned, however unlikely.

    With `top` above 1, an answer has up to `top` − 1 alternatives, which do not overlap it or each other. "No answer"
    is one of them if it is allowed.
    """
    check_count("top", top)
    for number, pair in enumerate(texts):
        if isinstance(pair, str) or len(pair) != 2:
            raise UsageError(
                f"text {number + 1} is not a question with its passage; give both as (question, passage), or in one "
                "line with a tab between them"
            )
    no_labels: dict[str, Any] = {"answers": [], "starts": []}
    records = [
        Record({"question": question, "context": passage, **no_labels}, FileLocation("text", number + 1))
        for number, (question, passage) in enumerate(texts)
    ]
    problems = Problems(max_invalid_fraction=0)
    return find_answers(
        model, records, no_answer=no_answer, batch_size=batch_size, problems=problems, progress=progress, top=top
    )


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics, the main one first; some only if there are questions with and without an answer."""
    has_answer = {bool(record.fields["answers"]) for record in records if isinstance(record.fields["answers"], list)}
    return METRICS["all"] + (METRICS["no_answer"] if len(has_answer) == 2 else ())


def evaluate(model: TextModel, records: Sequence[Record], options: EvaluationOptions) -> Evaluation:
    """SQuAD's exact match and F1 against the best of each question's answers."""
    records, notes = select_usable(records, question=str, context=str, answers=list)
    usual = available_metrics(model.config, records)
    names = select_metrics(options.metrics, usual, usual)
    no_answer = options.no_answer
    if no_answer is None:
        no_answer = any(not record.fields["answers"] for record in records)
    problems = Problems(max_invalid_fraction=1)
    questions = [Record({**record.fields, "answers": [], "starts": []}, record.location) for record in records]
    answers = find_answers(
        model,
        questions,
        no_answer=no_answer,
        batch_size=options.batch_size,
        problems=problems,
        progress=options.progress,
        notes=notes,
    )
    if problems.num_invalid:
        notes.append(f"{problems.num_invalid:,} questions could not be encoded, and count as having no answer")
    predictions = [answer.text for answer in answers]
    references = [[str(text) for text in record.fields["answers"]] for record in records]
    scores = answer_scores(predictions, references)
    samples = [
        Sample(
            record.fields["question"],
            text or "(none)",
            " / ".join(dict.fromkeys(several)) or "(none)",
            model_input=f"{record.fields['question']}\t{record.fields['context']}",
        )
        for record, text, several in list(zip(records, predictions, references, strict=True))[: options.max_samples]
    ]
    chosen: dict[str, float] = {name: scores[name] for name in names}
    return Evaluation(chosen, samples, names[0], len(records), tuple(notes))


def answer_scores(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, metrics.Score]:
    """SQuAD's F1 and exact match; SQuAD 2.0's of the questions with an answer; and how often "no answer" is right."""
    scores = {
        "f1": metrics.answer_f1(predictions, references),
        "exact_match": metrics.answer_exact_match(predictions, references),
    }
    pairs = list(zip(predictions, references, strict=True))
    with_answer, without = ([pair for pair in pairs if bool(pair[1]) is has_answer] for has_answer in (True, False))
    answered = [text for text, _ in with_answer], [several for _, several in with_answer]
    return scores | {
        "has_answer_f1": metrics.answer_f1(*answered),
        "has_answer_exact_match": metrics.answer_exact_match(*answered),
        "no_answer_accuracy": metrics.mean_score([float(not text) for text, _ in without]),
    }


@dataclass
class SpanScores:
    """The windows of all passages, with their best spans and the logits of these spans."""

    objective: QuestionAnsweringObjective
    owner: np.ndarray  # the passage of each window
    spans: list[np.ndarray]  # (S, 2) for each window: the first and last token of its best spans
    sums: list[np.ndarray]  # (S,) for each window: the sums of their logits
    totals: np.ndarray  # for each window, the log of the sum of exp over all its spans
    none_logits: np.ndarray  # for each window, the sum of the logits of "no answer"

    def list_answers(self, passage: int, context: str, no_answer: bool, top: int) -> list[Answer]:
        """The `top` best answers in a passage, which do not overlap, and "no answer" if it is allowed; the best first.

        The probability of a span is the softmax over all spans of all windows, and over "no answer" if it is allowed.
        """
        own = np.arange(*np.searchsorted(self.owner, [passage, passage + 1]))  # the windows of this passage
        none = float(self.none_logits[own].min())
        total = float(np.logaddexp.reduce([*self.totals[own], *([none] if no_answer else [])]))
        repeated = np.repeat(own, [len(self.sums[i]) for i in own])
        values = np.concatenate([self.sums[i] for i in own])
        _, characters = self.objective.character_spans(repeated, np.concatenate([self.spans[i] for i in own]))
        found: list[Answer] = []
        for best in (-values).argsort(kind="stable"):
            if len(found) == top:
                break
            start, end = characters[best].tolist()
            answer = trim_answer(context, start, end, float(values[best]) - none, float(np.exp(values[best] - total)))
            if answer.text and not any(answer.start < other.end and other.start < answer.end for other in found):
                found.append(answer)
        if no_answer:
            found.append(Answer("", -1, -1, 0.0, float(np.exp(none - total)), context=context))
        return sorted(found, key=lambda answer: -answer.score)  # stable: "no answer" is the last of equal scores


def find_answers(
    model: TextModel,
    records: Sequence[Record],
    *,
    no_answer: bool,
    batch_size: int,
    problems: Problems,
    progress: OnProgress | None = None,
    top: int = 1,
    notes: list[str] | None = None,
) -> list[Answer]:
    """An answer for each record, in order; an empty one for a passage without tokens.

    `notes` count the passages that are read in windows, and the questions that are truncated.
    """
    if model.config.head.outputs != 2:
        raise QkvError(
            f"this model's head has {model.config.head.outputs} outputs, but a span needs 2, for its start and its "
            "end; use a model that was trained for question answering"
        )
    answers = [Answer("", -1, -1, 0.0) for _ in records]
    encoded: dict[int, Any] = {}
    for number, example in enumerate(EncodeAnswer(model.tokenizer)(list(records))):
        if isinstance(example, Exception):
            problems.num_seen += 1
            problems.skip("not encodable", records[number].location, str(example))
        elif example["context"]:
            encoded[number] = example
    if not encoded:
        return answers
    objective = split_into_windows(model, InMemoryExamples(encoded.values()), [] if notes is None else notes)
    scores = score_spans(model, objective, MAX_OVERLAPPING * top, batch_size, progress)
    for passage, number in enumerate(encoded):
        found = scores.list_answers(passage, records[number].fields["context"], no_answer, top)
        answers[number] = replace(found[0], alternatives=found[1:top]) if found else answers[number]
    return answers


def split_into_windows(model: TextModel, encoded: InMemoryExamples, notes: list[str]) -> QuestionAnsweringObjective:
    """Questions with windows of their passages, laid out as in training. Adds notes on windows and truncation."""
    max_length = max_sequence_length(model.config)
    objective = QuestionAnsweringObjective(
        encoded,
        model.tokenizer,
        max_length=max_length,
        max_question_length=min(MAX_QUESTION_TOKENS, max_length // 4),
        overlap=min(WINDOW_OVERLAP_TOKENS, max_length // 4),
        too_long="truncate",
    )
    if objective.counts.split:
        notes.append(f"{objective.counts.split:,} passages were read in windows of {max_length:,} tokens")
    if objective.counts.truncated:
        limit = objective.max_question_length
        notes.append(f"{objective.counts.truncated:,} questions were truncated to {limit} tokens")
    return objective


def score_spans(
    model: TextModel, objective: QuestionAnsweringObjective, num_kept: int, batch_size: int, progress: OnProgress | None
) -> SpanScores:
    """Run the model on all windows, and keep the best `num_kept` spans of each."""
    windows = np.arange(objective.num_examples(EpochRng(0)))
    examples = objective.build(windows, EpochRng(0))
    owner, question, _, length = objective.locate(windows)
    first = objective.passage_start(question)
    batched = ExampleBatches(model.network, examples, objective.pad_token_id)
    spans: list[np.ndarray] = [np.zeros((0, 2), np.int64)] * len(windows)
    sums: list[np.ndarray] = [np.zeros(0)] * len(windows)
    totals, none_logits = np.zeros(len(windows)), np.zeros(len(windows))
    with eval_mode(model.network):
        for chosen in batches(examples.lengths, batch_size, progress):
            x, _ = batched.hidden(chosen)
            logits = at_least_float32(model.network.head.project(x)).cpu().double().numpy()  # (B, T, 2)
            for row, i in enumerate(chosen):
                passage = logits[row, first[i] : first[i] + length[i]]
                spans[i], sums[i], totals[i] = best_spans(passage[:, 0], passage[:, 1], num_kept)
                spans[i] += first[i]
                none_logits[i] = logits[row, 0].sum()
    return SpanScores(objective, owner, spans, sums, totals, none_logits)


def best_spans(
    starts: np.ndarray, ends: np.ndarray, count: int, max_tokens: int = MAX_ANSWER_TOKENS
) -> tuple[np.ndarray, np.ndarray, float]:
    """The `count` spans (first and last token) of at most `max_tokens` with the largest sums of logits, and the sums.

    The last value is the log of the sum of exp over all spans, with which the sums become probabilities.

    >>> best_spans(np.array([0.0, 3.0, 1.0]), np.array([5.0, 0.0, 1.0]), 1)[:2]
    (array([[0, 0]]), array([5.]))
    """
    by_length = [starts[: len(starts) - extra] + ends[extra:] for extra in range(min(max_tokens, len(starts)))]
    sums = np.concatenate(by_length)
    first = np.concatenate([np.arange(len(one)) for one in by_length])
    last = first + np.repeat(np.arange(len(by_length)), [len(one) for one in by_length])
    best = (-sums).argsort(kind="stable")[:count]
    return np.stack([first[best], last[best]], axis=1), sums[best], float(np.logaddexp.reduce(sums))


def trim_answer(passage: str, start: int, end: int, score: float, probability: float) -> Answer:
    """An answer without the spaces around it, and with the combining marks of its last character."""
    start, end = include_marks(passage, start, end)
    text = passage[start:end]
    start += len(text) - len(text.lstrip())
    text = text.strip()
    return Answer(text, start, start + len(text), score, probability, context=passage)
