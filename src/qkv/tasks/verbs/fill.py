"""Fill: predict masked words ("Paris is the [MASK] of France.")."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Literal

import numpy as np

from qkv.data.encode.encoders import EncodeText
from qkv.data.objectives import IGNORE_INDEX, FlatExamples
from qkv.data.objectives.base import require_token
from qkv.data.objectives.masked_lm import MaskedLMObjective
from qkv.data.problems import Problems
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError
from qkv.models.runtime import eval_mode
from qkv.tasks.evaluation import EvaluationOptions, Scored, select_metrics, select_usable
from qkv.tasks.results import Result, Row, one_line
from qkv.tasks.run.example_batches import ExampleBatches, max_sequence_length
from qkv.tasks.run.long_texts import check_text_lengths
from qkv.tasks.run.token_losses import TokenLosses, compute_token_losses, encode_records
from qkv.tasks.starters.starter import Starter
from qkv.tasks.task import Task, TaskOptions
from qkv.tasks.text_model import TextModel
from qkv.text import Tokenizer
from qkv.train.watch import Sample
from qkv.values import Limits

log = logging.getLogger("qkv")

USUAL_MASK = "[MASK]"
MASKING_RNG = EpochRng(0)  # the seed of the masks, so that every evaluation masks the same words


@dataclass(frozen=True, kw_only=True)
class FillOptions(TaskOptions):
    """Options of `m.fill`."""

    top: Annotated[int, Limits(1, 1_000_000), "The number of candidates for each mask."] = 5
    too_long: Annotated[
        Literal["window", "error"],
        'For a text with too many tokens: "window", which reads the tokens around the masks, or "error".',
    ] = "window"


@dataclass(frozen=True, kw_only=True)
class FillEvaluation(EvaluationOptions):
    """Options of an evaluation of masked words."""

    max_length: int = 0  # tokens of a window; 0: the model's number of positions
    mask_prob: float = 0.15  # probability of masking a token


@dataclass(frozen=True, repr=False)
class FilledText(Result):
    """A text with its masks filled in, and the most likely words for each mask with their probabilities."""

    text: Annotated[str, "The text with the most likely word in place of each mask."]
    candidates: Annotated[list[dict[str, float]], "For each mask, the most likely words with their probabilities."]

    def summary(self) -> str:
        return " ".join(self.text.splitlines())

    def rows(self) -> list[Row]:
        """A row for each rank, with two columns for each mask."""
        columns = [
            [(one_line(word) or repr(word), f"{p:.4f}") for word, p in candidate.items()]
            for candidate in self.candidates
        ]
        return [sum(cells, ()) for cells in zip_longest(*columns, fillvalue=("", ""))]


class FillTask(Task):
    """Fill in masked words."""

    name = "fill"
    description = "fills in masked words"
    question = "Fill in masked words."
    title = "Masks filled in"
    example_inputs = ("your [MASK] text",)
    objective = "masked_lm"
    inputs, target = ("text",), "text"
    metrics = ("masked_accuracy", "loss", "perplexity")
    max_samples = 3
    reads_documents = True
    Options, EvalOptions, results = FillOptions, FillEvaluation, (FilledText,)
    starter_name = "pretrain"
    starter = Starter(
        "An encoder that predicts masked words, as BERT; a start for classify, tag and others.",
        "corpus.txt",
        512,
        preset="bert-base",
        exportable_preset="bert-base",
        objective_lines=(
            ("mask_prob", 0.15, "fraction of tokens to mask"),
            ("whole_word_masking", False, "true: mask whole words, not single subwords"),
        ),
    )

    def decode(self, model: TextModel, texts: Sequence[str], options: FillOptions) -> list[FilledText]:
        """The most likely words for each mask. A mask is written as the tokenizer spells it, or [MASK].

        The model reads a text with too many tokens around the masks, several times if they are far apart; the log
        counts these texts.
        """
        tokenizer = model.tokenizer
        mask = require_token("mask", tokenizer.special_tokens.mask, "filling in masked words")
        spelling = str(tokenizer.id_to_token(mask))
        texts = [text.replace(USUAL_MASK, spelling) for text in texts]
        if any(starts_with_space(token) and len(token) > 1 for token in tokenizer.backend.get_vocab()):
            # The space before a word is part of its token, so a mask replaces the space as well.
            texts = [text.replace(f" {spelling}", spelling) for text in texts]
        ids = [tokenizer.encode(text, parse_special_tokens=True) for text in texts]
        for number, sequence in enumerate(ids):
            if mask not in sequence:
                raise UsageError(f"text {number + 1} has nothing to fill in; write {spelling} for the missing word")
        stack = model.config.stack
        max_length = stack.max_positions if stack.has_max_positions else max(map(len, ids), default=1)
        if options.too_long == "error":
            check_text_lengths(texts, np.array([len(sequence) for sequence in ids]), max_length, options)
        elif num_long := sum(len(sequence) > max_length for sequence in ids):
            log.warning(
                f"{num_long:,} of {len(ids):,} texts are longer than {max_length:,} tokens: only the tokens around "
                "their masks were read"
            )
        windows = [(i, start) for i, sequence in enumerate(ids) for start in window_starts(sequence, mask, max_length)]
        parts = [ids[i][start : start + max_length] for i, start in windows]
        lengths = np.array([len(part) for part in parts], np.int64)
        flat = np.concatenate([*parts, []]).astype(np.int64)
        labels = np.where(flat == mask, mask, IGNORE_INDEX)
        found: list[dict[int, tuple[list[float], list[int]]]] = [{} for _ in ids]  # position → probabilities and tokens
        batched = ExampleBatches(model, FlatExamples(lengths, flat, {"tokens": labels}), model.config.pad_token_id or 0)
        with eval_mode(model.network):
            for chosen in batched.batches():
                predictions: list[tuple[list[float], list[int]]] = []  # of all masks of the batch
                for logits, _ in batched.labelled_logits(chosen):
                    best = logits.softmax(-1).topk(min(options.top, logits.shape[-1]))
                    predictions += zip(best.values.tolist(), best.indices.tolist(), strict=True)
                remaining = iter(predictions)
                for number in chosen:
                    i, start = windows[number]
                    for position in mask_positions(parts[number], mask):
                        found[i].setdefault(start + position, next(remaining))
        return [_fill_text(tokenizer, text.split(spelling), found[i]) for i, text in enumerate(texts)]

    def score_records(
        self, model: TextModel, records: Sequence[Record], options: FillEvaluation, notes: list[str]
    ) -> Scored:
        """Mask tokens as in training, with a fixed seed, and compare the predictions with the original tokens."""
        usable = select_usable(records, notes, text=str)
        names = select_metrics(options.metrics, self.metrics, self.metrics)
        usable, encoded = encode_records(usable, EncodeText(model.tokenizer), Problems(max_invalid_fraction=1), notes)
        max_length = options.max_length or max_sequence_length(model.config)
        objective = MaskedLMObjective(encoded, model.tokenizer, max_length=max_length, mask_prob=options.mask_prob)
        texts, count = [record.fields["text"] for record in usable], options.max_samples or 0
        found = compute_token_losses(model, objective, texts, MASKING_RNG, count)
        if objective.counts.split:
            notes.append(
                f"{objective.counts.split:,} texts were read in windows of {objective.max_lengths[0]:,} tokens"
            )
        samples = [make_sample(model.tokenizer, found, i) for i in sorted(found.predictions)]
        scores = found.scores()
        return Scored({name: scores[name] for name in names}, samples, names[0], len(usable))


def starts_with_space(token: str) -> bool:
    """Whether the text of a token of byte-level BPE or SentencePiece begins with a space."""
    return token.startswith(("Ġ", "▁"))


def mask_positions(ids: Sequence[int], mask: int) -> list[int]:
    """The positions of the masks."""
    return [position for position, token in enumerate(ids) if token == mask]


def window_starts(ids: Sequence[int], mask: int, max_length: int) -> list[int]:
    """The first tokens of windows of `max_length` tokens. Each window has the maximum number of masks near its middle.

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
    """Join the pieces of text between masks with the most likely word at each mask; also return all candidates."""
    filled, candidates = pieces[0], []
    for piece, (_, (probabilities, tokens)) in zip(pieces[1:], sorted(predictions.items()), strict=False):
        word = tokenizer.decode(tokens[:1])  # empty for a special token
        if word.startswith("##"):  # WordPiece: continues the word before the mask
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


def make_sample(tokenizer: Tokenizer, found: TokenLosses, i: int) -> Sample:
    """The masked text of a window, the predicted words, and the original ones."""

    def join_words(ids: Sequence[int]) -> str:
        return " · ".join(tokenizer.decode([token]).strip() for token in ids)

    assert found.windows.labels is not None
    masked = tokenizer.decode(found.windows.ids[i].tolist(), skip_special_tokens=False)
    original = [int(label) for label in found.windows.labels[i] if label != IGNORE_INDEX]
    return Sample(masked, join_words(found.predictions[i]), join_words(original))


FILL = FillTask()
