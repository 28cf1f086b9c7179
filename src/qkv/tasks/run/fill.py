"""Fill in: say the words that are hidden in a text ("Paris is the [MASK] of France.")."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch.nn import functional as F

from qkv.data.cache.examples import InMemoryExamples
from qkv.data.encode.encoders import EncodeText
from qkv.data.objectives import IGNORE_INDEX, FlatExamples, MaskedLM
from qkv.data.objectives.base import require_token
from qkv.data.problems import Problems
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks.run.example_batches import ExampleBatches, batches, max_sequence_length
from qkv.tasks.task import Evaluation, ProgressCallback, UsableRecords, evaluating, require_tokenizer, select_metrics
from qkv.text import Tokenizer
from qkv.train.watch import Sample

METRICS = ("masked_accuracy", "loss", "perplexity")
MASKING_SEED = 0  # of what is hidden: the same words each time


@dataclass(frozen=True)
class FilledText:
    """A text with its gaps filled, and for each gap the likeliest words with their probabilities."""

    text: str
    candidates: list[dict[str, float]]


def run(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    texts: Sequence[str],
    *,
    num_candidates: int = 5,
    batch_size: int = 32,
    progress: ProgressCallback | None = None,
) -> list[FilledText]:
    """The likeliest word for each mask in each text; the mask is written as the tokenizer spells it."""
    reader = require_tokenizer(tokenizer)
    mask = require_token("mask", reader.special_tokens.mask, "filling gaps")
    rows = [reader.encode(text, parse_special_tokens=True) for text in texts]
    for number, row in enumerate(rows):
        if mask not in row:
            raise UsageError(f"text {number + 1} has no gap to fill: write {reader.id_to_token(mask)} where one is")
    lengths = np.array([len(row) for row in rows], np.int64)
    labels = [np.where(np.array(row) == mask, mask, IGNORE_INDEX) for row in rows]
    pieces = FlatExamples(lengths, np.concatenate([*rows, []]).astype(np.int64), np.concatenate([*labels, []]))
    results: list[FilledText] = [FilledText("", [])] * len(rows)
    laid = ExampleBatches(network, pieces, config.pad_token_id or 0)
    with evaluating(network):
        for chosen in batches(lengths, batch_size, progress):
            found = [
                logits.softmax(-1).topk(min(num_candidates, logits.shape[-1]))
                for logits, _ in laid.label_logits(chosen)
            ]
            likely = [pair for top in found for pair in zip(top.values.tolist(), top.indices.tolist(), strict=True)]
            ready = iter(likely)
            for i in chosen:
                places = [place for place, token in enumerate(rows[i]) if token == mask]
                mine = [next(ready) for _ in places]
                whole = list(rows[i])
                for place, (_, tokens) in zip(places, mine, strict=True):
                    whole[place] = tokens[0]
                gaps = [
                    {reader.decode([t]).strip() or str(reader.id_to_token(t)): p for p, t in zip(*one, strict=True)}
                    for one in mine
                ]
                results[i] = FilledText(reader.decode(whole), gaps)
    return results


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
    max_samples: int = 3,
    mask_prob: float = 0.15,
    max_length: int = 0,
) -> Evaluation:
    """Hide `share` of the tokens as in training (the same ones each time) and see how many are said rightly."""
    reader = require_tokenizer(tokenizer)
    usable = UsableRecords.select(records, text=str)
    names = select_metrics(metrics, available_metrics(config, records), METRICS)
    problems = Problems(max_invalid_fraction=1)
    examples = InMemoryExamples.from_records(usable.records, EncodeText(reader), problems)
    notes = [*usable.notes, *([str(problems.summary())] if problems.num_invalid else [])]
    objective = MaskedLM(examples, reader, max_length=max_length or max_sequence_length(config), mask_prob=mask_prob)
    count = objective.num_examples(EpochRng(MASKING_SEED))
    if count == 0:
        raise QkvError(f"none of the {len(records):,} records has text that this model can read")
    pieces = objective.build(np.arange(count), EpochRng(MASKING_SEED))
    laid = ExampleBatches(network, pieces, objective.pad_token_id)
    right = hidden = 0
    nats = 0.0
    said: dict[int, list[int]] = {}
    with evaluating(network):
        for chosen in batches(pieces.lengths, batch_size, progress):
            guesses: list[int] = []
            for logits, labels in laid.label_logits(chosen):
                best = logits.argmax(-1)
                right += int((best == labels).sum())
                hidden += len(labels)
                nats += float(F.cross_entropy(logits, labels, reduction="none").cpu().double().sum())
                guesses += best.tolist()
            _collect_predictions(guesses, laid, chosen, max_samples, said)
    loss = nats / max(hidden, 1)
    scores = {"masked_accuracy": right / max(hidden, 1), "loss": loss, "perplexity": measure.perplexity(loss)}
    if objective.tally.split:
        notes.append(f"{objective.tally.split:,} texts were read in windows of {objective.capacity[0]:,} tokens")
    shown = [_make_sample(reader, laid, i, said[i]) for i in sorted(said)]
    return Evaluation(
        {name: scores[name] for name in names},
        shown,
        names[0] if metrics else METRICS[0],
        len(usable.records),
        tuple(notes),
    )


def _collect_predictions(
    guesses: list[int], laid: ExampleBatches, chosen: Sequence[int], most: int, said: dict[int, list[int]]
) -> None:
    """Keep the guesses of the first examples, which lie end to end for a batch."""
    assert laid.labels is not None
    place = 0
    for i in chosen:
        count = int((laid.labels[i] != IGNORE_INDEX).sum())
        if i < most:
            said[i] = guesses[place : place + count]
        place += count


def _make_sample(tokenizer: Tokenizer, laid: ExampleBatches, i: int, guesses: Sequence[int]) -> Sample:
    """What the model saw, the words it says are hidden, and those that are."""
    assert laid.labels is not None
    hidden = [int(label) for label in laid.labels[i] if label != IGNORE_INDEX]
    seen = tokenizer.decode(laid.ids[i].tolist(), skip_special_tokens=False)

    def listed(ids: Sequence[int]) -> str:
        return " · ".join(tokenizer.decode([number]).strip() for number in ids)

    return Sample(seen, listed(guesses), listed(hidden))
