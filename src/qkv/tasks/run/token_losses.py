"""The losses of tokens: of all tokens of a text, or of masked ones. Language models are evaluated on them.

A text is laid out as in training. A long text is split into consecutive windows, so that every token is predicted
exactly once; the first tokens of a window do not see the window before.

The bootstrap resamples documents or, if there are few, blocks of their characters. Tokens are assigned to blocks by
their position in the document, so that models with different tokenizers have the same units and can be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional as F

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.chat import EncodeChat
from qkv.data.encode.encoders import EncodeText
from qkv.data.objectives import IGNORE_INDEX
from qkv.data.objectives.windows import WindowObjective
from qkv.data.problems import InvalidRecord, Problems
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError
from qkv.models.runtime import eval_mode
from qkv.tasks import metrics
from qkv.tasks.run.example_batches import ExampleBatches
from qkv.tasks.text_model import TextModel

MIN_DOCUMENTS = 30  # with fewer documents, the units are blocks
BLOCK_CHARS = 1000  # the approximate length of a block


class TextUnits:
    """Divides texts into units. `chars` and `num_bytes` are the sizes of the units.

    >>> units = TextUnits(["a" * 4000, "b" * 500])
    >>> units.chars.tolist(), units.find(np.array([0, 0, 1]), np.array([0.1, 0.99, 0.5])).tolist()
    ([1000.0, 1000.0, 1000.0, 1000.0, 500.0], [0, 3, 4])
    """

    def __init__(self, texts: Sequence[str]) -> None:
        chars = np.array([len(text) for text in texts], np.int64)
        num_bytes = np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts], np.int64)
        is_split = len(texts) < MIN_DOCUMENTS
        self._blocks = np.maximum(1, chars // BLOCK_CHARS) if is_split else np.ones(len(texts), np.int64)
        self._starts = np.cumsum(self._blocks) - self._blocks
        self.num_units = int(self._blocks.sum())
        self.chars, self.num_bytes = (np.repeat(size / self._blocks, self._blocks) for size in (chars, num_bytes))

    def find(self, documents: np.ndarray, fractions: np.ndarray) -> np.ndarray:
        """The unit of each token, given its document and its relative position in the document, from 0 to 1."""
        blocks = self._blocks[documents]
        found: np.ndarray = self._starts[documents] + np.minimum((fractions * blocks).astype(np.int64), blocks - 1)
        return found


@dataclass
class TokenLosses:
    """What a model predicts at the labelled positions of texts, summed over units."""

    windows: ExampleBatches
    units: TextUnits
    nats: np.ndarray  # the loss of each unit
    tokens: np.ndarray  # the labelled tokens of each unit
    right: np.ndarray  # the tokens of each unit that the model predicts
    predictions: dict[int, list[int]] = field(default_factory=dict)  # first windows

    def scores(self) -> dict[str, metrics.Score]:
        """All metrics."""
        loss = metrics.ratio_score(self.nats, self.tokens)

        def bits_per(sizes: np.ndarray) -> metrics.Score:
            return metrics.Score(
                len(self.nats), lambda w: metrics.bits_per_unit(float(w @ self.nats), float(w @ sizes))
            )

        return {
            "loss": loss,
            "perplexity": metrics.Score(len(self.nats), lambda weights: metrics.perplexity(loss.weighted(weights))),
            "bits_per_character": bits_per(self.units.chars),
            "bits_per_byte": bits_per(self.units.num_bytes),
            "masked_accuracy": metrics.ratio_score(self.right, self.tokens),
        }


def compute_token_losses(
    model: TextModel, objective: WindowObjective, texts: Sequence[str], rng: EpochRng, num_shown: int = 0
) -> TokenLosses:
    """Run the model on all windows of the texts. The predictions of the first `num_shown` windows are kept."""
    windows = objective.build(np.arange(objective.num_examples(rng)), rng)
    batched, units = ExampleBatches(model, windows, objective.pad_token_id, exact=True), TextUnits(texts)
    unit_of_label = label_units(objective, batched, units, rng)
    tokens = np.bincount(np.concatenate(unit_of_label), minlength=units.num_units)
    found = TokenLosses(batched, units, np.zeros(units.num_units), tokens, np.zeros(units.num_units))
    with eval_mode(model.network):
        for chosen in batched.batches():
            losses, predictions, right = [], [], []
            for logits, labels in batched.labelled_logits(chosen):
                losses.append(F.cross_entropy(logits, labels, reduction="none").cpu().double())
                best = logits.argmax(-1)
                predictions.append(best.cpu())
                right.append((best == labels).cpu())
            unit = np.concatenate([unit_of_label[i] for i in chosen])
            np.add.at(found.nats, unit, torch.cat(losses).numpy())
            np.add.at(found.right, unit, torch.cat(right).numpy())
            lengths = [len(unit_of_label[i]) for i in chosen]
            for i, ids in zip(chosen, torch.cat(predictions).split(lengths), strict=True):
                if i < num_shown:
                    found.predictions[i] = ids.tolist()
    return found


def encode_records(
    records: Sequence[Record], encode: EncodeChat | EncodeText, problems: Problems, notes: list[str]
) -> tuple[list[Record], InMemoryExamples]:
    """The records that can be encoded and are not empty, and their examples; the others are counted in `problems`."""
    usable, examples = [], []
    problems.num_seen += len(records)
    for record, example in zip(records, encode(list(records)), strict=True):
        if isinstance(example, InvalidRecord):
            problems.skip(example.category, record.location, example.reason)
        elif example["ids"]:
            usable.append(record)
            examples.append(example)
    if not usable:
        reason = problems.summary() if problems.num_invalid else "the texts are empty"
        raise QkvError(f"none of the {len(records):,} records can be evaluated: {reason}; give other texts")
    notes += [str(problems.summary())] if problems.num_invalid else []
    return usable, InMemoryExamples(examples, encode.fields)


def label_units(
    objective: WindowObjective, batched: ExampleBatches, units: TextUnits, rng: EpochRng
) -> list[np.ndarray]:
    """The unit of each label of each window, for the bootstrap."""
    assert batched.labels is not None
    documents, first, lengths = objective.windows.locate(np.arange(len(batched.labels)), rng)
    total = np.bincount(documents, lengths)
    places = [np.flatnonzero(labels != IGNORE_INDEX) for labels in batched.labels]
    return [
        units.find(np.full(len(place), document), np.minimum((start + place) / total[document], 1))
        for place, document, start in zip(places, documents, first, strict=True)
    ]
