"""Fill in: say the words that are hidden in a text ("Paris is the [MASK] of France.")."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch.nn import functional as F

from qkv.data.draw import Draw
from qkv.data.encode import EncodeText
from qkv.data.examples import MemoryExamples
from qkv.data.objectives import IGNORE, MaskedLM, Pieces
from qkv.data.objectives.base import need
from qkv.data.problems import Problems
from qkv.data.records import Record
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network
from qkv.tasks import metrics as measure
from qkv.tasks.layout import Laid, batches, room
from qkv.tasks.task import Evaluation, Progress, Usable, choose, evaluating, tokenizer_of
from qkv.text import Tokenizer
from qkv.train.watch import Sample

METRICS = ("masked_accuracy", "loss", "perplexity")
SEED = 0  # of what is hidden: the same words each time


@dataclass(frozen=True)
class Filled:
    """A text with its gaps filled, and for each gap the likeliest words with their probabilities."""

    text: str
    gaps: list[dict[str, float]]


def run(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    texts: Sequence[str],
    *,
    best: int = 5,
    batch: int = 32,
    progress: Progress | None = None,
) -> list[Filled]:
    """The likeliest word for each mask in each text; the mask is written as the tokenizer spells it."""
    reader = tokenizer_of(tokenizer)
    mask = need("mask", reader.roles.mask, "filling gaps")
    rows = [reader.encode(text, parse_special=True) for text in texts]
    for number, row in enumerate(rows):
        if mask not in row:
            raise UsageError(f"text {number + 1} has no gap to fill: write {reader.token(mask)} where one is")
    lengths = np.array([len(row) for row in rows], np.int64)
    labels = [np.where(np.array(row) == mask, mask, IGNORE) for row in rows]
    pieces = Pieces(lengths, np.concatenate([*rows, []]).astype(np.int64), np.concatenate([*labels, []]))
    results: list[Filled] = [Filled("", [])] * len(rows)
    laid = Laid(network, pieces, config.pad or 0)
    with evaluating(network):
        for chosen in batches(lengths, batch, progress):
            found = [logits.softmax(-1).topk(min(best, logits.shape[-1])) for logits, _ in laid.at_labels(chosen)]
            likely = [pair for top in found for pair in zip(top.values.tolist(), top.indices.tolist(), strict=True)]
            ready = iter(likely)
            for i in chosen:
                places = [place for place, token in enumerate(rows[i]) if token == mask]
                mine = [next(ready) for _ in places]
                whole = list(rows[i])
                for place, (_, tokens) in zip(places, mine, strict=True):
                    whole[place] = tokens[0]
                gaps = [
                    {reader.decode([t]).strip() or str(reader.token(t)): p for p, t in zip(*one, strict=True)}
                    for one in mine
                ]
                results[i] = Filled(reader.decode(whole), gaps)
    return results


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
    samples: int = 3,
    share: float = 0.15,
    length: int = 0,
) -> Evaluation:
    """Hide `share` of the tokens as in training (the same ones each time) and see how many are said rightly."""
    reader = tokenizer_of(tokenizer)
    usable = Usable.of(records, text=str)
    names = choose(metrics, known(config, records), METRICS)
    problems = Problems(max_bad=1)
    examples = MemoryExamples.encoded(usable.records, EncodeText(reader), problems)
    notes = [*usable.notes, *([str(problems.summary())] if problems.bad else [])]
    objective = MaskedLM(examples, reader, length=length or room(config), share=share)
    count = objective.count(Draw(SEED))
    if count == 0:
        raise QkvError(f"none of the {len(records):,} records has text that this model can read")
    pieces = objective.build(np.arange(count), Draw(SEED))
    laid = Laid(network, pieces, objective.pad)
    right = hidden = 0
    nats = 0.0
    said: dict[int, list[int]] = {}
    with evaluating(network):
        for chosen in batches(pieces.lengths, batch, progress):
            guesses: list[int] = []
            for logits, labels in laid.at_labels(chosen):
                best = logits.argmax(-1)
                right += int((best == labels).sum())
                hidden += len(labels)
                nats += float(F.cross_entropy(logits, labels, reduction="none").cpu().double().sum())
                guesses += best.tolist()
            _hand_out(guesses, laid, chosen, samples, said)
    loss = nats / max(hidden, 1)
    scores = {"masked_accuracy": right / max(hidden, 1), "loss": loss, "perplexity": measure.perplexity(loss)}
    if objective.tally.split:
        notes.append(f"{objective.tally.split:,} texts were read in windows of {objective.capacity[0]:,} tokens")
    shown = [_shown(reader, laid, i, said[i]) for i in sorted(said)]
    return Evaluation(
        {name: scores[name] for name in names},
        shown,
        names[0] if metrics else METRICS[0],
        len(usable.records),
        tuple(notes),
    )


def _hand_out(guesses: list[int], laid: Laid, chosen: Sequence[int], most: int, said: dict[int, list[int]]) -> None:
    """Keep the guesses of the first examples, which lie end to end for a batch."""
    assert laid.labels is not None
    place = 0
    for i in chosen:
        count = int((laid.labels[i] != IGNORE).sum())
        if i < most:
            said[i] = guesses[place : place + count]
        place += count


def _shown(tokenizer: Tokenizer, laid: Laid, i: int, guesses: Sequence[int]) -> Sample:
    """What the model saw, the words it says are hidden, and those that are."""
    assert laid.labels is not None
    hidden = [int(label) for label in laid.labels[i] if label != IGNORE]
    seen = tokenizer.decode(laid.ids[i].tolist(), skip_special=False)

    def listed(ids: Sequence[int]) -> str:
        return " · ".join(tokenizer.decode([number]).strip() for number in ids)

    return Sample(seen, listed(guesses), listed(hidden))
