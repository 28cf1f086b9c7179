"""Masked language modelling (BERT): hide some tokens, say what they were, seeing both sides."""

from dataclasses import dataclass

import numpy as np

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, TooLongPolicy, check_length, require_token
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.windows import WindowedDocuments, Windows
from qkv.data.ragged import Ints, ragged_starts
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
    """How tokens are hidden: `share` are chosen; of those 80 % become the mask, 10 % a random token, 10 % stay."""

    mask_token_id: int
    vocab_size: int
    special_ids: tuple[int, ...] = ()  # never drawn as a random token
    mask_prob: float = 0.15
    replace_prob: float = 0.8
    random_prob: float = 0.1

    def __post_init__(self) -> None:
        if not (
            0 < self.mask_prob < 1
            and self.replace_prob >= 0
            and self.random_prob >= 0
            and self.replace_prob + self.random_prob <= 1
        ):
            raise UsageError(
                f"masking: share = {self.mask_prob} must lie between 0 and 1, and masked = {self.replace_prob} and "
                f"random = {self.random_prob} must not add up to more than 1"
            )

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, mask_prob: float = 0.15) -> "TokenMasking":
        special = tuple(sorted(number for number in tokenizer.special_ids if number < tokenizer.vocab_size))
        return cls(
            require_token("mask", tokenizer.special_tokens.mask, "masked language modelling"),
            tokenizer.vocab_size,
            special,
            mask_prob,
        )

    def __call__(self, tokens: Ints, lengths: Ints, random_keys: Bits, words: Ints | None = None) -> tuple[Ints, Ints]:
        """Texts laid end to end → (what the model sees, labels). At least one token of each text is hidden.

        `words` numbers the word of each token: then whole words are hidden.
        """
        budget = np.clip(np.floor(self.mask_prob * lengths + 0.5).astype(np.int64), np.minimum(lengths, 1), lengths)
        if words is None:
            chosen = choose_in_groups(random_keys, lengths, budget)
        else:
            chosen = choose_whole_words(random_keys, lengths, budget, words)
        place = np.flatnonzero(chosen)
        text = np.repeat(np.arange(len(lengths)), lengths)[place]
        counter = 2 * (place - ragged_starts(lengths)[text])
        fate = to_uniform(random_bits(~random_keys[text], counter))  # ~: streams apart from those that chose
        strange = self._non_special_id(
            to_integers(random_bits(~random_keys[text], counter + 1), self.vocab_size - len(self.special_ids))
        )
        shown = np.where(
            fate < self.replace_prob,
            self.mask_token_id,
            np.where(fate < self.replace_prob + self.random_prob, strange, tokens[place]),
        )
        seen = np.array(tokens)
        seen[place] = shown
        labels = np.where(chosen, tokens, IGNORE_INDEX)
        return seen, labels

    def _non_special_id(self, rank: Ints) -> Ints:
        """The rank-th id that is not special."""
        special = np.asarray(self.special_ids, np.int64)
        return rank + np.searchsorted(special - np.arange(len(special)), rank, "right")


def choose_whole_words(keys: Bits, lengths: Ints, budget: Ints, words: Ints) -> np.ndarray:
    """Choose whole words at random until each text's budget of tokens is met: flat bool over the tokens.

    A word counts as inside the budget when at least half of it is, which keeps the share right on average.
    """
    text = np.repeat(np.arange(len(lengths)), lengths)  # (tokens,)
    begins = np.ones(len(words), bool)
    begins[1:] = (words[1:] != words[:-1]) | (text[1:] != text[:-1])
    first = np.flatnonzero(begins)  # (words,)
    size = np.diff(first, append=len(words))
    owner = text[first]
    per_text = np.bincount(owner, minlength=len(lengths))
    order = shuffle_groups(keys, per_text)  # words in random order, text by text
    before = np.cumsum(size[order]) - size[order]
    opening = ragged_starts(per_text)[owner]  # each text's first place in the order; texts keep their places in it
    before = before - before[np.minimum(opening, len(before) - 1)]  # tokens that the text's earlier words took
    inside = (before + size[order] / 2 <= budget[owner]) | (before == 0)
    chosen = np.zeros(len(first), bool)
    chosen[order[inside]] = True
    return np.repeat(chosen, size)


class MaskedLM(WindowedDocuments):
    """Documents (`ids`) in windows, framed as the tokenizer's template frames a text, with hidden tokens.

    `whole_words` needs the field `words` (`EncodeText(words=True)`).
    """

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
        template: SpecialTokenTemplate | None = None,
    ):
        require_fields(examples, "ids", *(["words"] if whole_word_masking else []))
        self.examples = examples
        self.template = template or SpecialTokenTemplate.from_tokenizer(tokenizer)
        check_length("length", max_length, self.template.num_special_tokens() + 1)
        self.masking = TokenMasking.from_tokenizer(tokenizer, mask_prob)
        self.whole_word_masking = whole_word_masking
        self.pad_token_id = tokenizer.special_tokens.pad or 0
        self.capacity = (max_length,)
        self.outputs = frozenset({"labels"})
        special = self.template.num_special_tokens()
        self.windows = Windows(
            examples.lengths("ids"),
            max_length - special,
            too_long=too_long,
            random_offset=random_offset,
            num_special_tokens=special,
        )

    def lengths(self, examples: Ints, rng: EpochRng) -> Ints:
        return self.windows.locate(examples, rng)[2][:, None] + self.template.num_special_tokens()

    def build(self, examples: Ints, rng: EpochRng) -> FlatExamples:
        record, first, count = self.windows.locate(examples, rng)
        tokens, _ = self.examples.gather("ids", record, first, count)
        words = self.examples.gather("words", record, first, count)[0] if self.whole_word_masking else None
        seen, labels = self.masking(tokens, count, rng.keys("mask", examples), words)
        ids, lengths = self.template.add_special_tokens((seen, count))
        return FlatExamples(lengths=lengths, ids=ids, labels=self.template.align_labels(IGNORE_INDEX, (labels, count)))
