"""Fill: predict masked words ("Paris is the [MASK] of France.")."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np
from torch.nn import functional as F

from qkv.data.encode.encoders import EncodeText
from qkv.data.objectives import IGNORE_INDEX, FlatExamples
from qkv.data.objectives.base import require_token
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.problems import Problems
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError
from qkv.models import Config
from qkv.models.runtime.eval_mode import eval_mode
from qkv.progress import OnProgress
from qkv.tasks import metrics
from qkv.tasks.metrics.text_units import TextUnits
from qkv.tasks.results import FilledText
from qkv.tasks.run.example_batches import ExampleBatches, batches, max_sequence_length
from qkv.tasks.run.language import encode_records, label_units
from qkv.tasks.run.long_texts import check_text_lengths, check_too_long
from qkv.tasks.task import Evaluation, EvaluationOptions, TextModel, check_count, select_metrics, select_usable
from qkv.text import Tokenizer
from qkv.train.watch import Sample

log = logging.getLogger("qkv")

METRICS = OBJECTIVES["masked_lm"].metrics[""]
USUAL_MASK = "[MASK]"
TOO_LONG_CHOICES = ("window", "error")
MASKING_RNG = EpochRng(0)  # every evaluation masks the same words


def run(
    model: TextModel,
    texts: Sequence[str],
    *,
    top: int = 5,
    too_long: str = "window",
    batch_size: int = 32,
    progress: OnProgress | None = None,
) -> list[FilledText]:
    """The `top` most likely words for each mask in each text. A mask is written as the tokenizer spells it, or [MASK].

    `too_long` is what happens to a text with too many tokens: "window", where the model reads the tokens around the
    masks, several times if they are far apart, and the log counts these texts; or "error".
    """
    check_count("top", top)
    check_too_long(too_long, TOO_LONG_CHOICES)
    tokenizer = model.tokenizer
    mask = require_token("mask", tokenizer.special_tokens.mask, "filling in masked words")
    spelling = str(tokenizer.id_to_token(mask))
    texts = [text.replace(USUAL_MASK, spelling) for text in texts]
    if any(starts_with_space(token) and len(token) > 1 for token in tokenizer.backend.get_vocab()):
        # The space before a word is part of its token, so a mask replaces both.
        texts = [text.replace(f" {spelling}", spelling) for text in texts]
    ids = [tokenizer.encode(text, parse_special_tokens=True) for text in texts]
    for number, sequence in enumerate(ids):
        if mask not in sequence:
            raise UsageError(f"text {number + 1} has nothing to fill in; write {spelling} for the missing word")
    stack = model.config.stack
    max_length = stack.max_positions if stack.has_max_positions else max(map(len, ids), default=1)
    if too_long == "error":
        check_text_lengths(texts, np.array([len(one) for one in ids]), max_length, TOO_LONG_CHOICES)
    elif num_long := sum(len(sequence) > max_length for sequence in ids):
        log.warning(
            f"{num_long:,} of {len(ids):,} texts are longer than {max_length:,} tokens: only the tokens around their "
            "masks were read"
        )
    windows = [(i, start) for i, sequence in enumerate(ids) for start in window_starts(sequence, mask, max_length)]
    parts = [ids[i][start : start + max_length] for i, start in windows]
    lengths = np.array([len(part) for part in parts], np.int64)
    flat = np.concatenate([*parts, []]).astype(np.int64)
    labels = np.where(flat == mask, mask, IGNORE_INDEX)
    found: list[dict[int, tuple[list[float], list[int]]]] = [{} for _ in ids]  # position → probabilities and tokens
    batched = ExampleBatches(
        model.network, FlatExamples(lengths, flat, {"tokens": labels}), model.config.pad_token_id or 0
    )
    with eval_mode(model.network):
        for chosen in batches(lengths, batch_size, progress):
            predictions: list[tuple[list[float], list[int]]] = []  # of all masks of the batch
            for logits, _ in batched.labelled_logits(chosen):
                best = logits.softmax(-1).topk(min(top, logits.shape[-1]))
                predictions += zip(best.values.tolist(), best.indices.tolist(), strict=True)
            remaining = iter(predictions)
            for number in chosen:
                i, start = windows[number]
                for position in mask_positions(parts[number], mask):
                    found[i].setdefault(start + position, next(remaining))
    return [_fill_text(tokenizer, text.split(spelling), found[i]) for i, text in enumerate(texts)]


def starts_with_space(token: str) -> bool:
    """Whether the text of a token of byte-level BPE or SentencePiece begins with a space."""
    return token.startswith(("Ġ", "▁"))


def mask_positions(ids: Sequence[int], mask: int) -> list[int]:
    """The positions of the masks."""
    return [position for position, token in enumerate(ids) if token == mask]


def window_starts(ids: Sequence[int], mask: int, max_length: int) -> list[int]:
    """The first tokens of windows of `max_length` tokens, each with as many masks as fit near its middle.

    >>> window_starts([7, 0, 7, 7, 7, 7, 7, 7, 0, 0, 7, 7], mask=0, max_length=4)
    [0, 7]
    """
    starts = []
    positions = mask_positions(ids, mask)
    while positions:
        fitting = [position for position in positions if position < positions[0] + max_length]
        middle = (fitting[0] + fitting[-1] + 1 - max_length) // 2
        starts.append(max(0, min(middle, len(ids) - max_length)))
        positions = positions[len(fitting) :]
    return starts


def _fill_text(
    tokenizer: Tokenizer, pieces: Sequence[str], predictions: Mapping[int, tuple[list[float], list[int]]]
) -> FilledText:
    """The text, given as its pieces between masks, with the most likely word at each mask; and all candidates."""
    filled, candidates = pieces[0], []
    for piece, (_, (probabilities, tokens)) in zip(pieces[1:], sorted(predictions.items()), strict=False):
        word = tokenizer.decode(tokens[:1])  # empty for a special token
        if word.startswith("##"):  # WordPiece: the end of the word before it
            filled, word = filled.rstrip(), word[2:]
        if starts_with_space(str(tokenizer.id_to_token(tokens[0]))):
            word = f" {word.strip()}" if filled and not filled[-1].isspace() else word.strip()
        filled += word + piece
        words: dict[str, float] = {}
        for token, probability in zip(tokens, probabilities, strict=True):
            text = tokenizer.decode([token])  # empty for a special token
            words.setdefault(text.strip() or text or str(tokenizer.id_to_token(token)), probability)
        candidates.append(words)
    return FilledText(filled, candidates)


def available_metrics(config: Config, records: Sequence[Record]) -> tuple[str, ...]:
    """The metrics, the main one first."""
    return METRICS


def evaluate(model: TextModel, records: Sequence[Record], options: EvaluationOptions) -> Evaluation:
    """Mask tokens as in training, always the same ones, and compare the predictions with the original tokens."""
    tokenizer = model.tokenizer
    usable, notes = select_usable(records, text=str)
    names = select_metrics(options.metrics, METRICS, METRICS)
    problems = Problems(max_invalid_fraction=1)
    usable, encoded = encode_records(usable, EncodeText(tokenizer), problems)
    notes += [str(problems.summary())] if problems.num_invalid else []
    max_length = options.max_length or max_sequence_length(model.config)
    objective = MaskedLMObjective(encoded, tokenizer, max_length=max_length, mask_prob=options.mask_prob)
    num_windows = objective.num_examples(MASKING_RNG)
    examples = objective.build(np.arange(num_windows), MASKING_RNG)
    batched = ExampleBatches(model.network, examples, objective.pad_token_id)
    units = TextUnits([record.fields["text"] for record in usable])
    unit_of_label = label_units(objective, batched, units, MASKING_RNG)
    right, nats = np.zeros(units.num_units), np.zeros(units.num_units)
    masked = np.bincount(np.concatenate(unit_of_label), minlength=units.num_units)
    shown: dict[int, list[int]] = {}  # the predictions of the first examples
    with eval_mode(model.network):
        for chosen in batches(examples.lengths, options.batch_size, options.progress):
            unit_of_mask = np.concatenate([unit_of_label[i] for i in chosen])
            predictions: list[int] = []
            for logits, labels in batched.labelled_logits(chosen):
                own = unit_of_mask[len(predictions) : len(predictions) + len(labels)]
                best = logits.argmax(-1)
                np.add.at(right, own, (best == labels).cpu().numpy())
                np.add.at(nats, own, F.cross_entropy(logits, labels, reduction="none").cpu().double().numpy())
                predictions += best.tolist()
            start = 0
            for i in chosen:
                end = start + len(unit_of_label[i])
                if i < (options.max_samples or 0):
                    shown[i] = predictions[start:end]
                start = end
    loss = metrics.ratio_score(nats, masked)
    scores = {
        "masked_accuracy": metrics.ratio_score(right, masked),
        "loss": loss,
        "perplexity": metrics.Score(len(nats), lambda weights: metrics.perplexity(loss.weighted(weights))),
    }
    if objective.counts.split:
        notes.append(f"{objective.counts.split:,} texts were read in windows of {objective.max_lengths[0]:,} tokens")
    samples = [_make_sample(tokenizer, batched, i, shown[i]) for i in sorted(shown)]
    chosen_scores: dict[str, float] = {name: scores[name] for name in names}
    return Evaluation(chosen_scores, samples, names[0], len(usable), tuple(notes))


def _masked_ids(batched: ExampleBatches, i: int) -> list[int]:
    """The original ids of an example's masked tokens."""
    assert batched.labels is not None
    return [int(label) for label in batched.labels[i] if label != IGNORE_INDEX]


def _make_sample(tokenizer: Tokenizer, batched: ExampleBatches, i: int, predictions: Sequence[int]) -> Sample:
    """The masked text, the predicted words, and the original ones."""

    def join_words(ids: Sequence[int]) -> str:
        return " · ".join(tokenizer.decode([token]).strip() for token in ids)

    masked = tokenizer.decode(batched.ids[i].tolist(), skip_special_tokens=False)
    return Sample(masked, join_words(predictions), join_words(_masked_ids(batched, i)))
