"""Answer: find the part of a passage that answers a question, or decide that the passage has no answer (SQuAD).

A passage that is too long for the model is read in overlapping windows, and the best span of all windows is the answer.
As in training, the logits of a window's first position stand for "no answer": a span must have a higher sum of logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.encoders import EncodeAnswer
from qkv.data.objectives import QuestionAnswering
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.problems import Problems
from qkv.data.records import FileLocation, Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError
from qkv.models import Config
from qkv.models.eval_mode import eval_mode
from qkv.progress import OnProgress
from qkv.tasks import metrics
from qkv.tasks.run.example_batches import ExampleBatches, at_least_float32, batches, max_sequence_length
from qkv.tasks.task import Evaluation, EvaluationOptions, TextModel, select_metrics, select_usable
from qkv.train.watch import Sample

METRICS = OBJECTIVES["question_answering"].metrics[""]
MAX_ANSWER_TOKENS = 30
MAX_QUESTION_TOKENS = 64  # or a quarter of the model's positions, if that is less
WINDOW_OVERLAP_TOKENS = 128  # or a quarter of the model's positions, if that is less


@dataclass(frozen=True)
class Answer:
    """An answer: its text, its character span in the passage, and its score.

    The score is the sum of the span's logits minus that of "no answer".
    """

    text: str  # empty if there is no answer
    start: int  # −1 if there is no answer
    end: int  # one past the last character
    score: float


def run(
    model: TextModel,
    texts: Sequence[tuple[str, str]],
    *,
    no_answer: bool = True,
    batch_size: int = 32,
    progress: OnProgress | None = None,
) -> list[Answer]:
    """The answer to each (question, passage). If `no_answer` is false, the best span is returned, however unlikely."""
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
    return find_answers(model, records, no_answer, batch_size, progress, Problems(max_invalid_fraction=0))


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics, the main one first."""
    return METRICS


def evaluate(model: TextModel, records: Sequence[Record], options: EvaluationOptions) -> Evaluation:
    """SQuAD's exact match and F1 against the best of each question's answers."""
    records, notes = select_usable(records, question=str, context=str, answers=list)
    names = select_metrics(options.metrics, METRICS, METRICS)
    no_answer = options.no_answer
    if no_answer is None:
        no_answer = any(not record.fields["answers"] for record in records)
    problems = Problems(max_invalid_fraction=1)
    questions = [Record({**record.fields, "answers": [], "starts": []}, record.location) for record in records]
    answers = find_answers(model, questions, no_answer, options.batch_size, options.progress, problems)
    if problems.num_invalid:
        notes.append(f"{problems.num_invalid:,} questions could not be encoded, and count as having no answer")
    predictions = [answer.text for answer in answers]
    references = [[str(text) for text in record.fields["answers"]] for record in records]
    scores = {
        "f1": metrics.answer_f1(predictions, references),
        "exact_match": metrics.answer_exact_match(predictions, references),
    }
    samples = [
        Sample(
            record.fields["question"],
            text or "(none)",
            " / ".join(dict.fromkeys(several)) or "(none)",
            model_input=f"{record.fields['question']}\t{record.fields['context']}",
        )
        for record, text, several in list(zip(records, predictions, references, strict=True))[: options.max_samples]
    ]
    return Evaluation({name: scores[name] for name in names}, samples, names[0], len(records), tuple(notes))


def find_answers(
    model: TextModel,
    records: Sequence[Record],
    no_answer: bool,
    batch_size: int,
    progress: OnProgress | None,
    problems: Problems,
) -> list[Answer]:
    """An answer for each record, in order; an empty one for a passage without tokens."""
    network, tokenizer, config = model.network, model.tokenizer, model.config
    if config.head.outputs != 2:
        raise QkvError(
            f"this model's head has {config.head.outputs} outputs, but a span needs 2, for its start and its end; use "
            "a model that was trained for question answering"
        )
    answers = [Answer("", -1, -1, 0.0) for _ in records]
    encoded: dict[int, Any] = {}
    for number, example in enumerate(EncodeAnswer(tokenizer)(list(records))):
        if isinstance(example, Exception):
            problems.num_seen += 1
            problems.skip("not encodable", records[number].location, str(example))
        elif example["context"]:
            encoded[number] = example
    if not encoded:
        return answers
    max_length = max_sequence_length(config)
    objective = QuestionAnswering(
        InMemoryExamples(encoded.values()),
        tokenizer,
        max_length=max_length,
        max_question_length=min(MAX_QUESTION_TOKENS, max_length // 4),
        overlap=min(WINDOW_OVERLAP_TOKENS, max_length // 4),
        too_long="truncate",
    )
    windows = np.arange(objective.num_examples(EpochRng(0)))
    examples = objective.build(windows, EpochRng(0))
    owner, question, _, length = objective.locate(windows)
    first = objective.passage_start(question)
    batched = ExampleBatches(network, examples, objective.pad_token_id)
    spans = np.zeros((len(windows), 2), np.int64)
    span_logits, none_logits = np.zeros(len(windows)), np.zeros(len(windows))
    with eval_mode(network):
        for chosen in batches(examples.lengths, batch_size, progress):
            x, _ = batched.hidden(chosen)
            logits = at_least_float32(network.head.project(x)).cpu().double().numpy()  # (B, T, 2)
            for row, i in enumerate(chosen):
                passage = logits[row, first[i] : first[i] + length[i]]
                span, span_logits[i] = best_span(passage[:, 0], passage[:, 1])
                spans[i] = np.array(span) + first[i]
                none_logits[i] = logits[row, 0].sum()
    _, characters = objective.character_spans(windows, spans)
    for index, number in enumerate(encoded):
        own = np.arange(*np.searchsorted(owner, [index, index + 1]))  # the windows of this passage
        best = own[span_logits[own].argmax()]
        score = float(span_logits[best] - none_logits[own].min())
        if no_answer and score < 0:
            answers[number] = Answer("", -1, -1, score)
        else:
            start, end = characters[best].tolist()
            answers[number] = trim_answer(records[number].fields["context"], start, end, score)
    return answers


def best_span(
    starts: np.ndarray, ends: np.ndarray, max_tokens: int = MAX_ANSWER_TOKENS
) -> tuple[tuple[int, int], float]:
    """The first and last token of the span of at most `max_tokens` with the largest sum of logits, and that sum.

    >>> best_span(np.array([0.0, 3.0, 1.0]), np.array([5.0, 0.0, 1.0]))
    ((0, 0), 5.0)
    """
    best, span = -np.inf, (0, 0)
    for extra in range(min(max_tokens, len(starts))):  # all spans of 1 + extra tokens
        sums = starts[: len(starts) - extra] + ends[extra:]
        first = int(sums.argmax())
        if sums[first] > best:
            best, span = float(sums[first]), (first, first + extra)
    return span, best


def trim_answer(passage: str, start: int, end: int, score: float) -> Answer:
    """An answer without the spaces around it."""
    text = passage[start:end]
    start += len(text) - len(text.lstrip())
    text = text.strip()
    return Answer(text, start, start + len(text), score)
