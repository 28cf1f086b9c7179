"""Answer: the part of a passage that answers a question, or that there is none (SQuAD).

A passage that does not fit is read in windows that overlap; the best span of all windows is the answer. As in
training, a window without the answer points at its first place: the sum of logits there is what a span must beat.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qkv.data.draw import Draw
from qkv.data.encode import EncodeAnswer
from qkv.data.examples import MemoryExamples
from qkv.data.objectives import Answers
from qkv.data.problems import Problems
from qkv.data.records import Record, Where
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks.layout import Laid, batches, exact, room
from qkv.tasks.task import Evaluation, Progress, Usable, choose, evaluating, tokenizer_of
from qkv.text import Tokenizer
from qkv.train.watch import Sample

METRICS = ("f1", "exact_match")
LONGEST = 30  # tokens of an answer
QUESTION, OVERLAP = 64, 128  # tokens of a question, and that two windows share; less where a model has few positions


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
    batch: int = 32,
    progress: Progress | None = None,
) -> list[Answer]:
    """The answer to each (question, passage). Without `no_answer` the best span is given, however unlikely."""
    for number, pair in enumerate(texts):
        if isinstance(pair, str) or len(pair) != 2:
            raise UsageError(
                f"text {number + 1} is not a question and its passage: give both as (question, passage), "
                "or in one line with a tab between them"
            )
    records = [
        Record({"question": question, "context": passage, "answers": [], "starts": []}, Where("text", number + 1))
        for number, (question, passage) in enumerate(texts)
    ]
    return read(network, tokenizer_of(tokenizer), config, records, no_answer, batch, progress, Problems(max_bad=0))


def known(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics that can be asked for; first what a model is judged by."""
    return METRICS


def evaluate(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    records: Sequence[Record],
    *,
    batch: int = 32,
    beam: int = 1,
    progress: Progress | None = None,
    metrics: Sequence[str] = (),
    samples: int = 5,
    no_answer: bool | None = None,
) -> Evaluation:
    """SQuAD's exact match and F1 against the best of each question's answers.

    `no_answer` lets the model say that there is none; None: where some of the records have none.
    """
    usable = Usable.of(records, question=str, context=str, answers=list)
    listed, notes = usable.records, usable.notes
    names = choose(metrics, known(config, records), METRICS)
    may_have_none = any(not record.fields["answers"] for record in listed) if no_answer is None else no_answer
    problems = Problems(max_bad=1)
    asked = [Record({**record.fields, "answers": [], "starts": []}, record.where) for record in listed]
    answers = read(network, tokenizer_of(tokenizer), config, asked, may_have_none, batch, progress, problems)
    if problems.bad:
        notes.append(f"{problems.bad:,} questions could not be read, and count as having no answer")
    said = [answer.text for answer in answers]
    expected = [[str(text) for text in record.fields["answers"]] for record in listed]
    scores = {"f1": measure.answer_f1(said, expected), "exact_match": measure.answer_exact(said, expected)}
    shown = [
        Sample(
            record.fields["question"],
            text or "(none)",
            " / ".join(dict.fromkeys(wanted)) or "(none)",
            typed=f"{record.fields['question']}\t{record.fields['context']}",
        )
        for record, text, wanted in list(zip(listed, said, expected, strict=True))[:samples]
    ]
    return Evaluation(
        {name: scores[name] for name in names}, shown, names[0] if metrics else METRICS[0], len(listed), tuple(notes)
    )


def read(
    network: Network,
    tokenizer: Tokenizer,
    config: Config,
    records: Sequence[Record],
    no_answer: bool,
    batch: int,
    progress: Progress | None,
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
            problems.saw()
            problems.skip("not encodable", records[number].where, str(example))
        elif example["context"]:
            good.append(number)
    if not good:
        return answers
    length = room(config)
    question = min(QUESTION, length // 4)
    objective = Answers(
        MemoryExamples([encoded[i] for i in good]),  # type: ignore[misc]
        tokenizer,
        length=length,
        question_length=question,
        overlap=min(OVERLAP, length // 4),
        too_long="cut",
    )
    windows = np.arange(objective.count(Draw(0)))
    pieces = objective.build(windows, Draw(0))
    owner, asked, _, size = objective.locate(windows)
    first = objective.passage_start(asked)
    laid = Laid(network, pieces, objective.pad)
    spans, worth, none = np.zeros((len(windows), 2), np.int64), np.zeros(len(windows)), np.zeros(len(windows))
    with evaluating(network):
        for chosen in batches(pieces.lengths, batch, progress):
            x, _ = laid.vectors(chosen)
            logits = exact(network.head.read(x)).cpu().double().numpy()  # (B, T, 2)
            for row, i in enumerate(chosen):
                passage = logits[row, first[i] : first[i] + size[i]]
                span, worth[i] = best_span(passage[:, 0], passage[:, 1])
                spans[i] = np.array(span) + first[i]
                none[i] = logits[row, 0].sum()
    _, characters = objective.characters(windows, spans)
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
        answers[number] = trimmed(records[number].fields["context"], begin, end, score)
    return answers


def best_span(starts: np.ndarray, ends: np.ndarray, longest: int = LONGEST) -> tuple[tuple[int, int], float]:
    """The first and last place, at most `longest` apart, whose logits have the largest sum; and that sum.

    >>> best_span(np.array([0.0, 3.0, 1.0]), np.array([5.0, 0.0, 1.0]))
    ((0, 0), 5.0)
    """
    best, where = -np.inf, (0, 0)
    for reach in range(min(longest, len(starts))):  # spans that end so far after their start
        sums = starts[: len(starts) - reach] + ends[reach:]
        place = int(sums.argmax())
        if sums[place] > best:
            best, where = float(sums[place]), (place, place + reach)
    return where, best


def trimmed(passage: str, begin: int, end: int, score: float) -> Answer:
    """An answer without the spaces around it."""
    text = passage[begin:end]
    begin += len(text) - len(text.lstrip())
    text = text.strip()
    return Answer(text, begin, begin + len(text), score)
