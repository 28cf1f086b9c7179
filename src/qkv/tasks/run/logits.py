"""The logits of a classifier for texts and pairs of texts, which are laid out and truncated as in training.

N texts, V classes
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.data.modalities import reads_files
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.models import Config
from qkv.models.runtime import eval_mode
from qkv.tasks.run.example_batches import (
    ExampleBatches,
    TextOrPair,
    as_tuple,
    at_least_float32,
    build_unlabelled_examples,
    max_sequence_length,
)
from qkv.tasks.run.long_texts import check_text_lengths
from qkv.tasks.text_model import TextModel
from qkv.text.sentences import fit_spans


def class_probabilities(config: Config, logits: np.ndarray) -> np.ndarray:
    """Logits (N, V) → probabilities (N, V): softmax, or sigmoid if a text may have several labels.

    The logits are divided by the temperature that was fitted on the validation data.
    """
    scaled = logits.astype(np.float64) / config.head.temperature
    if config.head.multi_label:
        return np.exp(-np.logaddexp(0, -scaled))
    probabilities = np.exp(scaled - scaled.max(-1, keepdims=True))
    return probabilities / probabilities.sum(-1, keepdims=True)  # type: ignore[no-any-return]


def class_names(config: Config) -> tuple[str, ...]:
    """The names of the classes, or their numbers if the model has no names."""
    return config.head.labels or tuple(str(number) for number in range(config.head.outputs))


def compute_logits(model: TextModel, texts: Sequence[TextOrPair]) -> tuple[np.ndarray, np.ndarray]:
    """The logits of each text (N, V), and the texts' lengths in tokens before truncation (N,).

    Texts are laid out and truncated as in training.
    """
    num_outputs = model.config.head.outputs
    if texts and reads_files(model.config):
        from qkv.tasks.run.payloads import compute_payload_outputs

        outputs = at_least_float32(compute_payload_outputs(model, texts)).cpu().numpy()
        return outputs, np.zeros(len(texts), np.int64)
    if not texts:
        return np.zeros((0, num_outputs), np.float32), np.zeros(0, np.int64)
    objective = build_unlabelled_examples(model, [as_tuple(text) for text in texts])
    examples = objective.build(np.arange(len(texts)), EpochRng(0))
    batched = ExampleBatches(model, examples, objective.pad_token_id)
    logits = np.zeros((len(texts), num_outputs), np.float32)
    with eval_mode(model.network):
        for chosen in batched.batches():
            logits[chosen] = batched.outputs(chosen).cpu().numpy()
    return logits, objective.required_lengths(slice(None))[:, 0]


def compute_mean_logits(model: TextModel, texts: Sequence[TextOrPair]) -> np.ndarray:
    """The logits of each text (N, V). A text that is too long is split at sentences, and its logits are the mean."""
    max_length = max_sequence_length(model.config)
    room = max_length - SpecialTokenTemplate.from_tokenizer(model.tokenizer).num_special_tokens()

    def fits(part: str) -> bool:
        return len(model.tokenizer.encode(part, add_special_tokens=False)) <= room

    parts: list[TextOrPair] = []
    owner: list[int] = []
    for number, text in enumerate(texts):
        spans = [] if not isinstance(text, str) or fits(text) else fit_spans(str(text), fits)
        parts += [str(text)[start:end] for start, end in spans] or [text]
        owner += [number] * max(1, len(spans))
    logits, lengths = compute_logits(model, parts)
    check_text_lengths(parts, lengths, max_length)  # a pair of texts cannot be split
    sums = np.zeros((len(texts), logits.shape[1]))
    np.add.at(sums, owner, logits)
    mean: np.ndarray = sums / np.bincount(owner, minlength=len(texts))[:, None]
    return mean


def record_text(record: Record) -> Any:
    """A record's text, its two texts, its image or its sound."""
    for name in ("image", "audio"):
        if name in record.fields:
            return record.fields[name]
    second = record.fields.get("second")
    return (record.fields["text"], second) if isinstance(second, str) else record.fields["text"]
