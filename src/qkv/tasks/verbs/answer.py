"""Answer: find the part of a passage that answers a question, or decide that the passage has no answer (SQuAD).

A passage that is too long for the model is read in overlapping windows, and the best span of all windows is the answer.
As in training, the logits of a window's first position stand for "no answer": a span must have a higher sum of logits.

B batch, T sequence length, S spans of a window
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.objectives.question_answering import EncodeAnswer, QuestionAnsweringObjective
from qkv.data.problems import Problems
from qkv.data.records import FileLocation, Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError
from qkv.models import Config
from qkv.models.runtime import eval_mode
from qkv.tasks import metrics
from qkv.tasks.baselines import predict_nearest_sentence
from qkv.tasks.evaluation import EvaluationOptions, select_usable
from qkv.tasks.record_task import RecordTask
from qkv.tasks.results import EXCERPT_CHARS, Result, Row, Span, one_line
from qkv.tasks.run.example_batches import ExampleBatches, at_least_float32, max_sequence_length
from qkv.tasks.scorer import Baseline, Metric, Prediction, TaskScorer, has_texts
from qkv.tasks.starters.starter import BERT_CHECKPOINT, Starter
from qkv.tasks.task import TaskOptions
from qkv.tasks.text_model import TextModel
from qkv.text.words import include_marks
from qkv.train.watch import Sample
from qkv.values import HIDDEN, Limits

MAX_ANSWER_TOKENS = 30
MAX_QUESTION_TOKENS = 64  # or a quarter of the model's positions, if that is less
WINDOW_OVERLAP_TOKENS = 128  # or a quarter of the model's positions, if that is less
MAX_OVERLAPPING = 64
"""Spans of a window that are compared, at most, for each answer that is requested; most overlap a better one."""


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(TaskOptions):
    """Options of `m.answer`."""

    top: Annotated[int, Limits(1, 1_000_000), "The number of answers. They do not overlap."] = 1
    must_answer: Annotated[bool, "Return the most likely span even if no answer is more likely."] = False


@dataclass(frozen=True, kw_only=True)
class AnswerEvaluation(EvaluationOptions):
    """Options of an evaluation of answers."""

    must_answer: bool | None = None  # None: only if every record has an answer


@dataclass(frozen=True, repr=False)
class Answer(Result):
    """A part of a passage that answers a question, with its characters in the passage."""

    text: Annotated[str, "The characters of the passage; empty if there is no answer."]
    start: Annotated[int, "The index of its first character in the passage; −1 if there is no answer."]
    end: Annotated[int, "One past the last character."]
    score: Annotated[float, 'The sum of the span\'s logits minus the sum of the logits of "no answer".']
    probability: Annotated[float, 'The probability among all spans and "no answer".'] = 1.0
    alternatives: Annotated[list["Answer"], "Other answers, the most likely first."] = field(default_factory=list)
    context: str = field(default="", compare=False, metadata=HIDDEN)  # the passage

    def summary(self) -> str:
        return one_line(self.text)

    def body(self) -> str:
        return self.summary() or "(no answer)"

    def rows(self) -> list[Row]:
        return [
            (answer.body(), f"{answer.start}–{answer.end}" if answer.text else "", f"{answer.probability:.4f}")
            for answer in (self, *self.alternatives)
        ]

    def marked_text(self) -> tuple[str, Sequence[Span]] | None:
        if not self.text:
            return None
        first, last = max(0, self.start - EXCERPT_CHARS), self.end + EXCERPT_CHARS
        return self.context[first:last], [(self.start - first, self.end - first, f"{self.probability:.2f}")]


def split_by_answer(
    predicted: Sequence[str], expected: Sequence[Sequence[str]], has_answer: bool
) -> tuple[list[str], list[Sequence[str]]]:
    """The predictions and references of the questions with an answer, or of the questions without one."""
    pairs = [pair for pair in zip(predicted, expected, strict=True) if bool(pair[1]) is has_answer]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


ANSWER_METRICS: dict[str, Metric] = {"f1": metrics.answer_f1, "exact_match": metrics.answer_exact_match}


UNANSWERABLE_METRICS: dict[str, Metric] = {
    "has_answer_f1": lambda ours, theirs: metrics.answer_f1(*split_by_answer(ours, theirs, True)),
    "has_answer_exact_match": lambda ours, theirs: metrics.answer_exact_match(*split_by_answer(ours, theirs, True)),
    "no_answer_accuracy": lambda ours, theirs: metrics.mean_score(
        [float(not text) for text in split_by_answer(ours, theirs, False)[0]]
    ),
}
"""SQuAD 2.0's metrics: of the questions with an answer, and of "no answer" on the other questions."""


class AnswerScorer(TaskScorer):
    """Compares the predicted answer with each accepted answer of a question; the best match counts."""

    modality, metric, input_fields = "text", "f1", ("question", "context")
    metrics: Mapping[str, Metric] = ANSWER_METRICS | UNANSWERABLE_METRICS
    baselines: Mapping[str, Baseline] = {
        "sentence nearest to the question": Baseline(predict_nearest_sentence, is_cheap=True)
    }

    def __init__(self, records: Sequence[Record]) -> None:
        given = [answers for record in records if isinstance(answers := record.fields.get("answers"), list)]
        self.has_unanswerable = not all(given)
        self.metrics = ANSWER_METRICS | (UNANSWERABLE_METRICS if self.has_unanswerable and any(given) else {})

    def is_usable(self, record: Record) -> bool:
        return has_texts(record, "question", "context") and isinstance(record.fields.get("answers"), list)

    def expected(self, record: Record) -> tuple[str, ...]:
        return tuple(map(str, record.fields["answers"]))

    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        must_answer = not self.has_unanswerable if options.must_answer is None else options.must_answer
        problems = Problems(max_invalid_fraction=1)
        answers = find_answers(model, records, AnswerOptions(must_answer=must_answer), problems, notes)
        if problems.num_invalid:
            notes.append(f"{problems.num_invalid:,} questions could not be encoded, and count as having no answer")
        return [(answer.text, answer.probability) for answer in answers]

    def score_each(self, predicted: Sequence[str], expected: Sequence[Sequence[str]]) -> list[float]:
        return [metrics.answer_f1([ours], [list(theirs)]) for ours, theirs in zip(predicted, expected, strict=True)]

    def text(self, record: Record) -> str:
        return str(record.fields["question"])

    def show(self, value: Any, record: Record | None = None) -> str:
        return (value if isinstance(value, str) else " / ".join(dict.fromkeys(value))) or "(no answer)"

    def make_sample(self, record: Record, predicted: Any, expected: Any) -> Sample:
        sample = super().make_sample(record, predicted, expected)
        return replace(sample, source=record.fields["question"])


@dataclass
class SpanScores:
    """The windows of all passages, with their best spans and the logits of these spans."""

    objective: QuestionAnsweringObjective
    owner: np.ndarray  # the passage of each window
    spans: list[np.ndarray]  # (S, 2) for each window: the first and last token of its best spans
    sums: list[np.ndarray]  # (S,) for each window: the sums of their logits
    totals: np.ndarray  # for each window, the log of the sum of exp over all its spans
    none_logits: np.ndarray  # for each window, the sum of the logits of "no answer"

    def list_answers(self, passage: int, context: str, options: AnswerOptions) -> list[Answer]:
        """The best answers in a passage, which do not overlap, and "no answer" if it is allowed; the best first.

        The probability of a span is the softmax over all spans of all windows, and over "no answer" if it is allowed.
        """
        own = np.arange(*np.searchsorted(self.owner, [passage, passage + 1]))  # the windows of this passage
        none = float(self.none_logits[own].min())
        total = float(np.logaddexp.reduce([*self.totals[own], *([] if options.must_answer else [none])]))
        repeated = np.repeat(own, [len(self.sums[i]) for i in own])
        values = np.concatenate([self.sums[i] for i in own])
        _, characters = self.objective.character_spans(repeated, np.concatenate([self.spans[i] for i in own]))
        found: list[Answer] = []
        for best in (-values).argsort(kind="stable"):
            if len(found) == options.top:
                break
            start, end = characters[best].tolist()
            answer = trim_answer(context, start, end, float(values[best]) - none, float(np.exp(values[best] - total)))
            if answer.text and not any(answer.start < other.end and other.start < answer.end for other in found):
                found.append(answer)
        if not options.must_answer:
            found.append(Answer("", -1, -1, 0.0, float(np.exp(none - total)), context=context))
        return sorted(found, key=lambda answer: -answer.score)  # stable: "no answer" comes last among equal scores


def find_answers(
    model: TextModel,
    records: Sequence[Record],
    options: AnswerOptions,
    problems: Problems,
    notes: list[str],
) -> list[Answer]:
    """An answer for each record, in order; a passage without tokens gets an empty answer.

    `notes` count the passages that are read in windows, and the questions that are truncated.
    """
    if model.config.head.outputs != 2:
        raise QkvError(
            f"this model's head has {model.config.head.outputs} outputs, but a span needs 2, for its start and its "
            "end; use a model that was trained for question answering"
        )
    answers = [Answer("", -1, -1, 0.0) for _ in records]
    questions = [replace(record, fields={**record.fields, "answers": [], "starts": []}) for record in records]
    encoded: dict[int, Any] = {}
    for number, example in enumerate(EncodeAnswer(model.tokenizer)(questions)):
        if isinstance(example, Exception):
            problems.num_seen += 1
            problems.skip("not encodable", records[number].location, str(example))
        elif example["context"]:
            encoded[number] = example
    if not encoded:
        return answers
    objective = split_into_windows(model, InMemoryExamples(encoded.values()), notes)
    scores = score_spans(model, objective, MAX_OVERLAPPING * options.top)
    for passage, number in enumerate(encoded):
        found = scores.list_answers(passage, records[number].fields["context"], options)
        answers[number] = replace(found[0], alternatives=found[1 : options.top]) if found else answers[number]
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


def score_spans(model: TextModel, objective: QuestionAnsweringObjective, num_kept: int) -> SpanScores:
    """Run the model on all windows, and keep the best `num_kept` spans of each."""
    windows = np.arange(objective.num_examples(EpochRng(0)))
    examples = objective.build(windows, EpochRng(0))
    owner, question, _, length = objective.locate(windows)
    first = objective.passage_start(question)
    batched = ExampleBatches(model, examples, objective.pad_token_id)
    spans: list[np.ndarray] = [np.zeros((0, 2), np.int64)] * len(windows)
    sums: list[np.ndarray] = [np.zeros(0)] * len(windows)
    totals, none_logits = np.zeros(len(windows)), np.zeros(len(windows))
    with eval_mode(model.network):
        for chosen in batched.batches():
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

    The last value is the logsumexp over all spans, which normalises the sums to probabilities.

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


class AnswerTask(RecordTask):
    """Find the answer to a question in a passage."""

    name = "answer"
    description = "finds the answer to a question in a passage"
    question = "Find answers in passages."
    title = "Answer"
    example_inputs = ("your question", "your passage")
    objective = "question_answering"
    inputs, target = ("question", "context"), "answers"
    needs_all_inputs = True
    scorers = (AnswerScorer,)
    Options, EvalOptions, results = AnswerOptions, AnswerEvaluation, (Answer,)
    starter = Starter(
        "The answer to a question, found in a passage.",
        "train.json",
        192,
        pretrained=BERT_CHECKPOINT,
        exportable_preset="bert-base",
        min_epochs=2.0,
        objective_lines=(("overlap", 64, "tokens that consecutive windows of a long passage share"),),
    )
    example_data = (
        "a file in SQuAD's format, or JSON Lines like "
        '{"question": "Who sleeps?", "context": "Anna sleeps.", "answers": ["Anna"], "starts": [0]}'
    )

    def decode(self, model: TextModel, texts: Sequence[Any], options: AnswerOptions) -> list[Answer]:
        """The answer to each (question, passage), with up to `top` − 1 others; "no answer" may be one of them."""
        location = FileLocation("text")
        records = [
            Record({"question": question, "context": context}, replace(location, line=number))
            for number, (question, context) in enumerate(texts, 1)
        ]
        return find_answers(model, records, options, Problems(max_invalid_fraction=0), [])

    def select(self, config: Config, records: Sequence[Record], options: Any, notes: list[str]) -> list[Record]:
        return select_usable(records, notes, question=str, context=str, answers=list)

    def find_scorer(self, config: Config, records: Sequence[Record]) -> AnswerScorer:
        return AnswerScorer(records)


ANSWER = AnswerTask()
