"""Answer: the part of a passage that answers a question, or that there is none (SQuAD).

A passage that does not fit is read in windows that overlap; the best span of all windows is the answer. As in
training, a window without the answer points at its first place: the sum of logits there is what a span must beat.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.encoders import EncodeAnswer
from qkv.data.objectives import QuestionAnswering
from qkv.data.problems import Problems
from qkv.data.records import FileLocation, Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks.run.example_batches import ExampleBatches, at_least_float32, batches, max_sequence_length
from qkv.tasks.task import Evaluation, ProgressCallback, UsableRecords, evaluating, require_tokenizer, select_metrics
from qkv.text import Tokenizer
from qkv.train.watch import Sample

METRICS = ("f1", "exact_match")
MAX_ANSWER_TOKENS = 30  # tokens of an answer
MAX_QUESTION_TOKENS, WINDOW_OVERLAP_TOKENS = (
    64,
    128,
)  # tokens of a question, and that two windows share; less where a model has few positions


@dataclass(frozen=True)
class Answer:
    """The text of an answer, where it stands in the passage, and by how much it beats having none (in logits)."""

    text: str  # empty where there is none
    start: int  # characters, −1 where there is none
    end: int
    score: float


def run(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    texts: Sequence[tuple[str, str]],
    *,
    no_answer: bool = True,
    batch_size: int = 32,
    progress: ProgressCallback | None = None,
) -> list[Answer]:
    """The answer to each (question, passage). Without `no_answer` the best span is given, however unlikely."""
    for number, pair in enumerate(texts):
        if isinstance(pair, str) or len(pair) != 2:
            raise UsageError(
                f"text {number + 1} is not a question and its passage: give both as (question, passage), "
                "or in one line with a tab between them"
            )
    records = [
        Record(
            {"question": question, "context": passage, "answers": [], "starts": []}, FileLocation("text", number + 1)
        )
        for number, (question, passage) in enumerate(texts)
    ]
    return find_answers(
        network,
        require_tokenizer(tokenizer),
        config,
        records,
        no_answer,
        batch_size,
        progress,
        Problems(max_invalid_fraction=0),
    )


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics that can be asked for; first what a model is judged by."""
    return METRICS


def evaluate(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    records: Sequence[Record],
    *,
    batch_size: int = 32,
    beam: int = 1,
    progress: ProgressCallback | None = None,
    metrics: Sequence[str] = (),
    max_samples: int = 5,
    no_answer: bool | None = None,
) -> Evaluation:
    """SQuAD's exact match and F1 against the best of each question's answers.

    `no_answer` lets the model say that there is none; None: where some of the records have none.
    """
    usable = UsableRecords.select(records, question=str, context=str, answers=list)
    listed, notes = usable.records, usable.notes
    names = select_metrics(metrics, available_metrics(config, records), METRICS)
    may_have_none = any(not record.fields["answers"] for record in listed) if no_answer is None else no_answer
    problems = Problems(max_invalid_fraction=1)
    asked = [Record({**record.fields, "answers": [], "starts": []}, record.location) for record in listed]
    answers = find_answers(
        network, require_tokenizer(tokenizer), config, asked, may_have_none, batch_size, progress, problems
    )
    if problems.num_invalid:
        notes.append(f"{problems.num_invalid:,} questions could not be read, and count as having no answer")
    said = [answer.text for answer in answers]
    expected = [[str(text) for text in record.fields["answers"]] for record in listed]
    scores = {"f1": measure.answer_f1(said, expected), "exact_match": measure.answer_exact_match(said, expected)}
    shown = [
        Sample(
            record.fields["question"],
            text or "(none)",
            " / ".join(dict.fromkeys(wanted)) or "(none)",
            model_input=f"{record.fields['question']}\t{record.fields['context']}",
        )
        for record, text, wanted in list(zip(listed, said, expected, strict=True))[:max_samples]
    ]
    return Evaluation(
        {name: scores[name] for name in names}, shown, names[0] if metrics else METRICS[0], len(listed), tuple(notes)
    )


def find_answers(
    network: Network,
    tokenizer: Tokenizer,
    config: Config,
    records: Sequence[Record],
    no_answer: bool,
    batch_size: int,
    progress: ProgressCallback | None,
    problems: Problems,
) -> list[Answer]:
    """An answer for each record, in order; none for a passage without tokens."""
    if config.head.outputs != 2:
        raise QkvError(f"this model's head has {config.head.outputs} outputs; a span needs 2, its start and its end")
    answers = [Answer("", -1, -1, 0.0) for _ in records]
    encoded = EncodeAnswer(tokenizer)(list(records))
    good = []
    for number, example in enumerate(encoded):
        if isinstance(example, Exception):
            problems.num_seen += 1
            problems.skip("not encodable", records[number].location, str(example))
        elif example["context"]:
            good.append(number)
    if not good:
        return answers
    length = max_sequence_length(config)
    question = min(MAX_QUESTION_TOKENS, length // 4)
    objective = QuestionAnswering(
        InMemoryExamples([encoded[i] for i in good]),  # type: ignore[misc]
        tokenizer,
        max_length=length,
        max_question_length=question,
        overlap=min(WINDOW_OVERLAP_TOKENS, length // 4),
        too_long="truncate",
    )
    windows = np.arange(objective.num_examples(EpochRng(0)))
    pieces = objective.build(windows, EpochRng(0))
    owner, asked, _, size = objective.locate(windows)
    first = objective.passage_start(asked)
    laid = ExampleBatches(network, pieces, objective.pad_token_id)
    spans, worth, none = np.zeros((len(windows), 2), np.int64), np.zeros(len(windows)), np.zeros(len(windows))
    with evaluating(network):
        for chosen in batches(pieces.lengths, batch_size, progress):
            x, _ = laid.hidden(chosen)
            logits = at_least_float32(network.head.project(x)).cpu().double().numpy()  # (B, T, 2)
            for row, i in enumerate(chosen):
                passage = logits[row, first[i] : first[i] + size[i]]
                span, worth[i] = best_span(passage[:, 0], passage[:, 1])
                spans[i] = np.array(span) + first[i]
                none[i] = logits[row, 0].sum()
    _, characters = objective.character_spans(windows, spans)
    for place, number in enumerate(good):
        mine = (
            np.flatnonzero(owner == place)
            if len(windows) < 1000
            else np.arange(*np.searchsorted(owner, [place, place + 1]))
        )
        best = mine[worth[mine].argmax()]
        score = float(worth[best] - none[mine].min())
        if no_answer and score < 0:
            answers[number] = Answer("", -1, -1, score)
            continue
        begin, end = characters[best].tolist()
        answers[number] = trim_answer(records[number].fields["context"], begin, end, score)
    return answers


def best_span(
    starts: np.ndarray, ends: np.ndarray, max_tokens: int = MAX_ANSWER_TOKENS
) -> tuple[tuple[int, int], float]:
    """The first and last place, at most `longest` apart, whose logits have the largest sum; and that sum.

    >>> best_span(np.array([0.0, 3.0, 1.0]), np.array([5.0, 0.0, 1.0]))
    ((0, 0), 5.0)
    """
    best, where = -np.inf, (0, 0)
    for reach in range(min(max_tokens, len(starts))):  # spans that end so far after their start
        sums = starts[: len(starts) - reach] + ends[reach:]
        place = int(sums.argmax())
        if sums[place] > best:
            best, where = float(sums[place]), (place, place + reach)
    return where, best


def trim_answer(passage: str, start: int, end: int, score: float) -> Answer:
    """An answer without the spaces around it."""
    text = passage[start:end]
    start += len(text) - len(text.lstrip())
    text = text.strip()
    return Answer(text, start, start + len(text), score)
