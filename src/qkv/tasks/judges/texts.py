"""Judges of texts: generated ones, and answers to questions."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from qkv.data.problems import Problems
from qkv.data.records import Record
from qkv.decode import GenerationOptions
from qkv.tasks import metrics
from qkv.tasks.judges.judge import BATCH_SIZE, Judge, Prediction, has_texts
from qkv.tasks.metrics.text import References
from qkv.tasks.run.answer import find_answers
from qkv.tasks.run.generate import generate_batched, limit_new_tokens, prompt_ids, truncate_prompts
from qkv.tasks.run.text_to_text import METRIC_FUNCTIONS, PER_RECORD_METRICS, has_long_targets, max_target_tokens
from qkv.tasks.task import TextModel
from qkv.train.progress import lower_is_better


def measure_texts(
    function: Callable[[Sequence[str], References], float], predicted: Sequence[str], expected: Sequence[str]
) -> float:
    """A metric of texts with one reference each."""
    return function(predicted, [[one] for one in expected])


class TextJudge(Judge):
    """A generated text for each source, compared by BLEU, or by exact match if targets are short."""

    input_fields = ("source",)
    measures: ClassVar = {
        name: partial(measure_texts, METRIC_FUNCTIONS[name]) for name in PER_RECORD_METRICS if not lower_is_better(name)
    }

    def __init__(self, records: Sequence[Record], beam: int) -> None:
        targets = [one.fields["target"] for one in records if has_texts(one, "source", "target")]
        self.metric = "bleu" if has_long_targets(targets) else "exact_match"
        self.beam = beam

    def is_usable(self, record: Record) -> bool:
        """Source and target."""
        return has_texts(record, "source", "target")

    def expected(self, record: Record) -> str:
        """The target."""
        return str(record.fields["target"])

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The generated texts, and the mean probability of their tokens."""
        longest = max_target_tokens(model.tokenizer, [self.expected(one) for one in records])
        max_tokens = limit_new_tokens(model.config, longest * 3 // 2 + 8)
        prompts = [prompt_ids(model.tokenizer, model.config, one.fields["source"]) for one in records]
        prompts, _ = truncate_prompts(model.tokenizer, model.config, prompts, max_tokens)
        options = GenerationOptions(max_tokens=max_tokens, beam=self.beam)
        results = generate_batched(model.network, model.tokenizer, prompts, options, BATCH_SIZE)
        return [(one.text, mean_probability(one.score, len(one.ids) + 1, self.beam)) for one in results]

    def score_each(self, predicted: Sequence[str], expected: Sequence[str]) -> list[float]:
        """1 for an equal text; if targets are long, the fraction of words in common (F1) for others."""
        pairs = list(zip(predicted, expected, strict=True))
        if self.metric == "exact_match":
            return [metrics.exact_match([one], [[two]]) for one, two in pairs]
        return [metrics.answer_f1([one], [[two]]) for one, two in pairs]


class AnswerJudge(Judge):
    """The part of a passage that answers a question."""

    metric, input_fields = "f1", ("question", "context")

    def __init__(self, records: Sequence[Record]) -> None:
        self.allows_none = any(not one.fields.get("answers") for one in records)

    def is_usable(self, record: Record) -> bool:
        """Question, passage and answers."""
        return has_texts(record, "question", "context") and isinstance(record.fields.get("answers"), list)

    def expected(self, record: Record) -> tuple[str, ...]:
        """The accepted answers."""
        return tuple(map(str, record.fields["answers"]))

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The answers and their probabilities."""
        questions = [Record({**one.fields, "answers": [], "starts": []}, one.location) for one in records]
        ignored = Problems(max_invalid_fraction=1)
        answers = find_answers(model, questions, no_answer=self.allows_none, batch_size=BATCH_SIZE, problems=ignored)
        return [(one.text, one.probability) for one in answers]

    def measure(self, predicted: Sequence[str], expected: Sequence[Sequence[str]]) -> float:
        """SQuAD's F1."""
        return metrics.answer_f1(predicted, [list(one) for one in expected])

    def score_each(self, predicted: Sequence[str], expected: Sequence[Sequence[str]]) -> list[float]:
        """F1 of each answer."""
        return [metrics.answer_f1([one], [list(two)]) for one, two in zip(predicted, expected, strict=True)]

    def text(self, record: Record) -> str:
        """The question."""
        return str(record.fields["question"])

    def show(self, value: Any, record: Record | None = None) -> str:
        """The answer, or all accepted answers."""
        shown = value if isinstance(value, str) else " / ".join(dict.fromkeys(value))
        return shown or "(no answer)"


def mean_probability(score: float, tokens: int, beam: int) -> float | None:
    """The geometric mean of the probabilities of the tokens; None for beam search, whose scores are normalised."""
    return math.exp(score / max(1, tokens)) if beam == 1 else None
