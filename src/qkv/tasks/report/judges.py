"""What a report needs of each task: the model's predictions, their score, and how to show them.

A judge compares predictions with what the records expect. A baseline is judged in the same way as the model.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import Any, ClassVar

import torch
from torch.nn import functional as F

from qkv.data.encode.encoders import parse_number
from qkv.data.problems import InvalidRecord, Problems
from qkv.data.records import Record
from qkv.decode import GenerationOptions
from qkv.models import Config
from qkv.tasks import metrics
from qkv.tasks.evaluate import find_task
from qkv.tasks.run.answer import find_answers
from qkv.tasks.run.classify import class_names, class_probabilities, compute_logits, make_prediction, record_text
from qkv.tasks.run.embed import embed_texts, rank_partners
from qkv.tasks.run.example_batches import at_least_float32
from qkv.tasks.run.generate import generate_batched, limit_new_tokens, prompt_ids
from qkv.tasks.run.tag import pair_entities, predict_tags
from qkv.tasks.run.text_to_text import has_long_targets, max_target_tokens
from qkv.tasks.task import TextModel

BATCH_SIZE = 32
Prediction = tuple[Any, float | None]
"""A prediction, and its confidence: a probability, or None if the model gives none."""


class Judge(ABC):
    """Predicts and scores the records of a task. `metric` is the task's main metric; a higher value is better."""

    metric: str
    has_classes: ClassVar[bool] = False
    input_fields: ClassVar[tuple[str, ...]] = ("text", "second")
    """The fields that the model reads; two records with equal values in them are duplicates."""

    @abstractmethod
    def is_usable(self, record: Record) -> bool:
        """Whether the record has everything that an evaluation needs."""

    @abstractmethod
    def expected(self, record: Record) -> Any:
        """What the model should predict."""

    @abstractmethod
    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The model's predictions."""

    @abstractmethod
    def measure(self, predicted: Sequence[Any], expected: Sequence[Any]) -> float:
        """The main metric."""

    @abstractmethod
    def score_each(self, predicted: Sequence[Any], expected: Sequence[Any]) -> list[float]:
        """How right each prediction is: 1 is right, 0 is wrong."""

    def text(self, record: Record) -> str:
        """The input of the model, for a reader and for baselines."""
        values = [record.fields[name] for name in self.input_fields if record.fields.get(name)]
        return "\n".join(" ".join(map(str, one)) if isinstance(one, list) else str(one) for one in values)

    def show(self, value: Any, record: Record | None = None) -> str:
        """A prediction, or what is expected, for a reader; the record may have its words."""
        return str(value)

    def items(self, value: Any) -> set[Any]:
        """The items that precision and recall of the classes count; only if `has_classes`."""
        return {value}

    def count_classes(self, predicted: Sequence[Any], expected: Sequence[Any]) -> metrics.ClassCounts:
        """The counts of each class."""
        ours, theirs = ([*map(self.items, side)] for side in (predicted, expected))
        return metrics.ClassCounts(ours, theirs, class_of=self.class_of)

    def pair_classes(self, predicted: Any, expected: Any) -> list[tuple[str, str]]:
        """The predicted and the expected class of each item, for the confusion matrix."""
        return []

    def class_of(self, item: Any) -> Hashable:
        """The class of an item."""
        return item  # type: ignore[no-any-return]


class LabelJudge(Judge):
    """One class for each text."""

    metric, has_classes = "accuracy", True

    def is_usable(self, record: Record) -> bool:
        """Text and label."""
        label = record.fields.get("label")
        return isinstance(record.fields.get("text"), str) and isinstance(label, str | int) and label is not True

    def expected(self, record: Record) -> str:
        """The label."""
        return str(record.fields["label"])

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The most likely class and its probability."""
        logits, _ = compute_logits(model, [record_text(one) for one in records], BATCH_SIZE)
        probabilities = class_probabilities(model.config, logits)
        names = class_names(model.config)
        return [(names[row.argmax()], float(row.max())) for row in probabilities]

    def measure(self, predicted: Sequence[str], expected: Sequence[str]) -> float:
        """The accuracy."""
        return metrics.accuracy(predicted, expected)

    def score_each(self, predicted: Sequence[str], expected: Sequence[str]) -> list[float]:
        """1 for the right class."""
        return [float(one == other) for one, other in zip(predicted, expected, strict=True)]

    def pair_classes(self, predicted: Any, expected: Any) -> list[tuple[str, str]]:
        """The two classes."""
        return [(predicted, expected)]


class LabelSetJudge(LabelJudge):
    """Several labels for each text."""

    metric = "micro_f1"

    def is_usable(self, record: Record) -> bool:
        """Text and one or several labels."""
        return isinstance(record.fields.get("text"), str) and isinstance(record.fields.get("label"), str | int | list)

    def expected(self, record: Record) -> Any:
        """The set of labels."""
        label = record.fields["label"]
        return frozenset(map(str, label if isinstance(label, list) else [label]))

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The labels with a probability of at least 0.5."""
        logits, _ = compute_logits(model, [record_text(one) for one in records], BATCH_SIZE)
        return [(frozenset(make_prediction(model.config, row).labels), None) for row in logits]  # type: ignore[union-attr]

    def measure(self, predicted: Sequence[Any], expected: Sequence[Any]) -> float:
        """F1 of all labels."""
        return metrics.label_set_scores(predicted, expected)["micro_f1"]

    def score_each(self, predicted: Sequence[Any], expected: Sequence[Any]) -> list[float]:
        """F1 of each set."""
        pairs = zip(predicted, expected, strict=True)
        return [2 * len(one & two) / (len(one) + len(two)) if one or two else 1.0 for one, two in pairs]

    def show(self, value: Any, record: Record | None = None) -> str:
        """The labels with commas."""
        return ", ".join(sorted(value)) or "(none)"

    def items(self, value: Any) -> set[Any]:
        """The labels."""
        return set(value)

    def pair_classes(self, predicted: Any, expected: Any) -> list[tuple[str, str]]:
        """Sets of labels have no confusion matrix."""
        return []


class NumberJudge(Judge):
    """A score for each text or pair of texts, compared by Spearman's correlation."""

    metric = "spearman"

    def is_usable(self, record: Record) -> bool:
        """Text and number."""
        return isinstance(record.fields.get("text"), str) and has_number(record)

    def expected(self, record: Record) -> float:
        """The score."""
        return parse_number(record, "score")

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The predicted scores."""
        logits, _ = compute_logits(model, [record_text(one) for one in records], BATCH_SIZE)
        return [(float(row[0]), None) for row in logits]

    def measure(self, predicted: Sequence[float], expected: Sequence[float]) -> float:
        """Spearman's correlation."""
        return metrics.spearman(predicted, expected)

    def score_each(self, predicted: Sequence[float], expected: Sequence[float]) -> list[float]:
        """1 minus the difference of the ranks, as a fraction of all ranks."""
        ours, theirs = ranks(predicted), ranks(expected)
        last = max(1, len(ours) - 1)
        return [1 - abs(one - two) / last for one, two in zip(ours, theirs, strict=True)]

    def show(self, value: float, record: Record | None = None) -> str:
        """Three significant digits."""
        return f"{value:.3g}"


class SimilarityJudge(NumberJudge):
    """The cosine of the embeddings of two texts, compared with a score."""

    input_fields = ("first", "second")

    def is_usable(self, record: Record) -> bool:
        """Two texts and a score."""
        return has_texts(record, "first", "second") and has_number(record)

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The cosines."""
        first, second = (embed(model, [one.fields[name] for one in records]) for name in self.input_fields)
        return [(float(cosine), None) for cosine in (first * second).sum(-1)]


class RetrievalJudge(Judge):
    """The rank of each first text's own second text among all second texts."""

    metric, input_fields = "retrieval_accuracy", ("first", "second")

    def is_usable(self, record: Record) -> bool:
        """Two texts."""
        return has_texts(record, "first", "second")

    def expected(self, record: Record) -> int:
        """The first rank."""
        return 1

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The ranks."""
        first = embed(model, [one.fields["first"] for one in records])
        seconds = [one.fields["second"] for one in records]
        number = {text: i for i, text in enumerate(dict.fromkeys(seconds))}
        partner = torch.tensor([number[text] for text in seconds])
        return [(int(rank), None) for rank in rank_partners(first, embed(model, list(number)), partner)[0]]

    def measure(self, predicted: Sequence[int], expected: Sequence[int]) -> float:
        """The fraction of first ranks."""
        return metrics.mean_score([float(rank == 1) for rank in predicted])

    def score_each(self, predicted: Sequence[int], expected: Sequence[int]) -> list[float]:
        """The reciprocal ranks."""
        return [1 / rank for rank in predicted]

    def show(self, value: int, record: Record | None = None) -> str:
        """The rank."""
        return f"rank {value}"


class TagJudge(Judge):
    """A tag for each word."""

    has_classes, input_fields = True, ("tokens",)

    def __init__(self, tags: Sequence[str]) -> None:
        self.has_entities = metrics.is_entity_tagging(tags)
        self.metric = "f1" if self.has_entities else "accuracy"

    def is_usable(self, record: Record) -> bool:
        """As many tags as words."""
        words, tags = record.fields.get("tokens"), record.fields.get("tags")
        return isinstance(words, list) and isinstance(tags, list) and len(words) == len(tags) > 0

    def expected(self, record: Record) -> tuple[str, ...]:
        """The tags."""
        return tuple(map(str, record.fields["tags"]))

    def predict(self, model: TextModel, records: Sequence[Record]) -> list[Prediction]:
        """The tags, and the probability of the least certain one."""
        sentences = [[str(word) for word in one.fields["tokens"]] for one in records]
        tagged = predict_tags(model, sentences, BATCH_SIZE)
        return [(tuple(tag for tag, _ in one), min(probability for _, probability in one)) for one in tagged]

    def measure(self, predicted: Sequence[Any], expected: Sequence[Any]) -> float:
        """F1 of entities, or the accuracy of words."""
        counts = self.count_classes(predicted, expected)
        return counts.micro_f1() if self.has_entities else counts.precision()

    def score_each(self, predicted: Sequence[Any], expected: Sequence[Any]) -> list[float]:
        """F1 of the items of each sentence."""
        scores = []
        for one, two in zip(predicted, expected, strict=True):
            ours, theirs = self.items(one), self.items(two)
            scores.append(2 * len(ours & theirs) / (len(ours) + len(theirs)) if ours or theirs else 1.0)
        return scores

    def show(self, value: Any, record: Record | None = None) -> str:
        """The entities with their words, or the tags of all words."""
        words = [str(index + 1) for index in range(len(value))] if record is None else record.fields["tokens"]
        if not self.has_entities:
            return " ".join(f"{word}/{tag}" for word, tag in zip(words, value, strict=True))
        spans = metrics.extract_entities(value)
        found = [f"{' '.join(map(str, words[first:end]))} ({label})" for first, end, label in spans]
        return ", ".join(found) or "(no entity)"

    def items(self, value: Any) -> set[Any]:
        """The entities, or the words with their tags."""
        return set(metrics.extract_entities(value)) if self.has_entities else set(enumerate(value))

    def pair_classes(self, predicted: Any, expected: Any) -> list[tuple[str, str]]:
        """The types of the entities with equal spans, or the tags of the words."""
        return pair_entities(predicted, expected) if self.has_entities else list(zip(predicted, expected, strict=True))

    def class_of(self, item: Any) -> Hashable:
        """The type of an entity, or the tag of a word."""
        return itemgetter(-1)(item)  # type: ignore[no-any-return]


class TextJudge(Judge):
    """A generated text for each source."""

    input_fields = ("source",)

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
        stack = model.config.encoder or model.config.stack
        if stack.has_max_positions:
            room = stack.max_positions - (0 if model.config.encoder is not None else max_tokens)
            prompts = [prompt[: max(1, room)] for prompt in prompts]
        options = GenerationOptions(max_tokens=max_tokens, beam=self.beam)
        results = generate_batched(model.network, model.tokenizer, prompts, options, BATCH_SIZE)
        return [(one.text, mean_probability(one.score, len(one.ids) + 1, self.beam)) for one in results]

    def measure(self, predicted: Sequence[str], expected: Sequence[str]) -> float:
        """BLEU, or exact match if targets are short."""
        function = metrics.bleu if self.metric == "bleu" else metrics.exact_match
        return function(predicted, [[one] for one in expected])

    def score_each(self, predicted: Sequence[str], expected: Sequence[str]) -> list[float]:
        """1 for an equal text; if targets are long, the fraction of words in common (F1) for others."""
        pairs = list(zip(predicted, expected, strict=True))
        if self.metric == "exact_match":
            return [float(one == two) for one, two in pairs]
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
        answers = find_answers(model, questions, self.allows_none, BATCH_SIZE, None, ignored)
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


def find_judge(config: Config, records: Sequence[Record], beam: int = 1) -> Judge | None:
    """The judge of a model's task; None for language models, and if the records lack the fields of the task."""
    name, head = find_task(config).name, config.head
    found: Judge | None = None
    if name == "classify":
        is_score = head.outputs == 1 and not head.multi_label
        found = LabelSetJudge() if head.multi_label else NumberJudge() if is_score else LabelJudge()
    elif name == "tag":
        found = TagJudge(class_names(config))
    elif name == "text_to_text":
        found = TextJudge(records, beam)
    elif name == "answer":
        found = AnswerJudge(records)
    elif name == "embed":
        found = SimilarityJudge() if any("score" in one.fields for one in records) else RetrievalJudge()
    return found if found is not None and any(map(found.is_usable, records)) else None


def has_texts(record: Record, *names: str) -> bool:
    """Whether these fields are texts."""
    return all(isinstance(record.fields.get(name), str) for name in names)


def has_number(record: Record) -> bool:
    """Whether the score of a record is a number."""
    try:
        parse_number(record, "score")
    except InvalidRecord:
        return False
    return True


def embed(model: TextModel, texts: Sequence[str]) -> torch.Tensor:
    """The normalised embeddings of texts."""
    vectors = at_least_float32(embed_texts(model, texts, BATCH_SIZE)[0]).cpu().double()
    return F.normalize(vectors, dim=-1)


def mean_probability(score: float, tokens: int, beam: int) -> float | None:
    """The geometric mean of the probabilities of the tokens; None for beam search, whose scores are normalised."""
    return float(torch.tensor(score / max(1, tokens)).exp()) if beam == 1 else None


def ranks(values: Sequence[float]) -> list[int]:
    """The rank of each value, from 0.

    >>> ranks([0.5, 0.1, 0.9])
    [1, 0, 2]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [0] * len(values)
    for rank, i in enumerate(order):
        found[i] = rank
    return found
