"""Masked language modelling (BERT): some tokens are masked, and the model predicts them from the tokens around them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, TooLongPolicy, require_token
from qkv.data.objectives.table import ANY_LENGTH, TEXT_FIELD, ObjectiveSetup, ObjectiveSpec, bert_tokens
from qkv.data.objectives.windows import TemplateWindowObjective, encode_documents
from qkv.data.ragged import IntArray, ragged_starts
from qkv.data.stream.random_bits import (
    Bits,
    EpochRng,
    choose_in_groups,
    random_bits,
    shuffle_groups,
    to_integers,
    to_uniform,
)
from qkv.errors import UsageError
from qkv.text import Tokenizer


@dataclass(frozen=True)
class TokenMasking:
    """Selects the tokens to predict, and replaces them in the input.

    A fraction `mask_prob` of the tokens is selected. Of the selected tokens, a fraction `replace_prob` becomes the mask
    token, a fraction `random_prob` becomes a random token, and the rest stays unchanged.
    """

    mask_token_id: int
    vocab_size: int
    special_ids: tuple[int, ...] = ()  # ids that are never used as a random token
    mask_prob: float = 0.15
    replace_prob: float = 0.8
    random_prob: float = 0.1

    def __post_init__(self) -> None:
        replace, random = self.replace_prob, self.random_prob
        if not (0 < self.mask_prob < 1 and replace >= 0 and random >= 0 and replace + random <= 1):
            raise UsageError(
                f"mask_prob = {self.mask_prob} must be above 0 and below 1; replace_prob = {replace} and random_prob = "
                f"{random} must be at least 0, with a sum of at most 1"
            )

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, mask_prob: float = 0.15) -> "TokenMasking":
        """Masking with a tokenizer's mask token and vocabulary."""
        mask_token_id = require_token("mask", tokenizer.special_tokens.mask, "masked language modelling")
        special_ids = tuple(sorted(number for number in tokenizer.special_ids if number < tokenizer.vocab_size))
        return cls(mask_token_id, tokenizer.vocab_size, special_ids, mask_prob)

    def __call__(
        self, tokens: IntArray, lengths: IntArray, random_keys: Bits, words: IntArray | None = None
    ) -> tuple[IntArray, IntArray]:
        """Concatenated documents → (masked tokens, labels). At least one token of each document is selected.

        If `words`, the index of each token's word, is given, whole words are selected.
        """
        budget = np.clip(np.floor(self.mask_prob * lengths + 0.5).astype(np.int64), np.minimum(lengths, 1), lengths)
        if words is None:
            is_selected = choose_in_groups(random_keys, lengths, budget)
        else:
            is_selected = choose_whole_words(random_keys, lengths, budget, words)
        selected = np.flatnonzero(is_selected)
        document = np.repeat(np.arange(len(lengths)), lengths)[selected]
        counter = 2 * (selected - ragged_starts(lengths)[document])
        keys = ~random_keys[document]  # a second random stream, independent of the one that made the selection
        action = to_uniform(random_bits(keys, counter))
        ordinary = self.vocab_size - len(self.special_ids)
        random_ids = self._non_special_id(to_integers(random_bits(keys, counter + 1), ordinary))
        kept_or_random = np.where(action < self.replace_prob + self.random_prob, random_ids, tokens[selected])
        masked = np.array(tokens)
        masked[selected] = np.where(action < self.replace_prob, self.mask_token_id, kept_or_random)
        return masked, np.where(is_selected, tokens, IGNORE_INDEX)

    def _non_special_id(self, rank: IntArray) -> IntArray:
        """Return the rank-th of the ids that are not special tokens."""
        special = np.asarray(self.special_ids, np.int64)
        return rank + np.searchsorted(special - np.arange(len(special)), rank, "right")


def choose_whole_words(keys: Bits, lengths: IntArray, budget: IntArray, words: IntArray) -> np.ndarray:
    """Choose whole words at random until the token budget of each document is spent: one bool for each token.

    A word is chosen if at least half of its tokens fit in the remaining budget, so the budget is met on average.
    """
    document = np.repeat(np.arange(len(lengths)), lengths)  # (tokens,)
    starts_word = np.ones(len(words), bool)
    starts_word[1:] = (words[1:] != words[:-1]) | (document[1:] != document[:-1])
    first = np.flatnonzero(starts_word)  # (words,)
    size = np.diff(first, append=len(words))
    owner = document[first]
    words_per_document = np.bincount(owner, minlength=len(lengths))
    order = shuffle_groups(keys, words_per_document)  # the words of each document in a random order
    before = np.cumsum(size[order]) - size[order]
    first_in_order = ragged_starts(words_per_document)[owner]  # the index in `order` of each document's first word
    before = before - before[np.minimum(first_in_order, len(before) - 1)]  # tokens in the document's earlier words
    is_within = (before + size[order] / 2 <= budget[owner]) | (before == 0)
    is_chosen = np.zeros(len(first), bool)
    is_chosen[order[is_within]] = True
    return np.repeat(is_chosen, size)


class MaskedLMObjective(TemplateWindowObjective):
    """Windows of documents (`ids`) with special tokens around them and masked tokens to predict.

    `whole_word_masking` needs the field `words` (`EncodeText(words=True)`).
    """

    name = "masked_lm"

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        too_long: TooLongPolicy = "split",
        random_offset: bool = False,
        mask_prob: float = 0.15,
        whole_word_masking: bool = False,
    ):
        fields = ("ids", "words") if whole_word_masking else ("ids",)
        super().__init__(
            examples, tokenizer, *fields, max_length=max_length, too_long=too_long, random_offset=random_offset
        )
        self.masking = TokenMasking.from_tokenizer(tokenizer, mask_prob)
        self.whole_word_masking = whole_word_masking

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Windows with masked tokens, whose original ids are the labels."""
        record, first, count = self.windows.locate(examples, rng)
        tokens, _ = self.examples.gather("ids", record, first, count)
        words = self.examples.gather("words", record, first, count)[0] if self.whole_word_masking else None
        masked, labels = self.masking(tokens, count, rng.keys("mask", examples), words)
        ids, lengths = self.template.add_special_tokens((masked, count))
        return FlatExamples(lengths, ids, {"tokens": self.template.align_labels(IGNORE_INDEX, (labels, count))})


def masking_options(setup: ObjectiveSetup) -> dict[str, Any]:
    """Keyword arguments for masking. The default `mask_prob` is BERT's 15 %."""
    options = setup.options
    return {"mask_prob": options.mask_prob or 0.15, "whole_word_masking": options.whole_word_masking}


SPEC = ObjectiveSpec(
    name="masked_lm",
    families=("encoder",),
    head="mlm",
    fields=(TEXT_FIELD,),
    reads_documents=True,
    required_tokens=bert_tokens,
    too_long_policies=ANY_LENGTH,
    options=("mask_prob", "whole_word_masking", "random_offset", "label_smoothing"),
    make_encoder=encode_documents,
    make_examples=lambda setup, encoded: MaskedLMObjective(
        encoded, setup.tokenizer, **setup.window_kwargs, **masking_options(setup)
    ),
)
