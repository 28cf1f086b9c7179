"""The judge of taggers: entities, or the tags of words."""

from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import Any

from qkv.data.records import Record
from qkv.tasks import metrics
from qkv.tasks.judges.judge import BATCH_SIZE, Judge, Prediction
from qkv.tasks.run.tag import pair_entities, predict_tags
from qkv.tasks.task import TextModel


class TagJudge(Judge):
    """A tag for each word."""

    has_classes, input_fields = True, ("tokens",)

    def __init__(self, tags: Sequence[str]) -> None:
        self.has_entities = metrics.is_entity_tagging(tags)
        self.metric = "f1" if self.has_entities else "accuracy"

    def is_usable(self, record: Record) -> bool:
        """The same number of words and tags."""
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
