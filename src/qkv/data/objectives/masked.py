"""Masked language modelling (BERT): hide some tokens, say what they were, seeing both sides."""

from dataclasses import dataclass

import numpy as np

from qkv.data.draw import Bits, Draw, below, bits, choose, shuffled, uniform
from qkv.data.examples import Examples, require
from qkv.data.objectives.base import IGNORE, Pieces, TooLong, check_length, need
from qkv.data.objectives.frame import Frame
from qkv.data.objectives.windows import Windowed, Windows
from qkv.data.ragged import Ints, ragged_starts
from qkv.errors import UsageError
from qkv.text import Tokenizer


@dataclass(frozen=True)
class Masking:
    """How tokens are hidden: `share` are chosen; of those 80 % become the mask, 10 % a random token, 10 % stay."""

    mask: int
    vocabulary: int
    special: tuple[int, ...] = ()  # never drawn as a random token
    share: float = 0.15
    masked: float = 0.8
    random: float = 0.1

    def __post_init__(self) -> None:
        if not (0 < self.share < 1 and self.masked >= 0 and self.random >= 0 and self.masked + self.random <= 1):
            raise UsageError(
                f"masking: share = {self.share} must lie between 0 and 1, and masked = {self.masked} and "
                f"random = {self.random} must not add up to more than 1"
            )

    @classmethod
    def of(cls, tokenizer: Tokenizer, share: float = 0.15) -> "Masking":
        special = tuple(sorted(number for number in tokenizer.special_ids if number < tokenizer.size))
        return cls(need("mask", tokenizer.roles.mask, "masked language modelling"), tokenizer.size, special, share)

    def __call__(self, tokens: Ints, lengths: Ints, keys: Bits, words: Ints | None = None) -> tuple[Ints, Ints]:
        """Texts laid end to end → (what the model sees, labels). At least one token of each text is hidden.

        `words` numbers the word of each token: then whole words are hidden.
        """
        budget = np.clip(np.floor(self.share * lengths + 0.5).astype(np.int64), np.minimum(lengths, 1), lengths)
        if words is None:
            chosen = choose(keys, lengths, budget)
        else:
            chosen = choose_words(keys, lengths, budget, words)
        place = np.flatnonzero(chosen)
        text = np.repeat(np.arange(len(lengths)), lengths)[place]
        counter = 2 * (place - ragged_starts(lengths)[text])
        fate = uniform(bits(~keys[text], counter))  # ~: streams apart from those that chose
        strange = self._ordinary(below(bits(~keys[text], counter + 1), self.vocabulary - len(self.special)))
        shown = np.where(
            fate < self.masked, self.mask, np.where(fate < self.masked + self.random, strange, tokens[place])
        )
        seen = np.array(tokens)
        seen[place] = shown
        labels = np.where(chosen, tokens, IGNORE)
        return seen, labels

    def _ordinary(self, rank: Ints) -> Ints:
        """The rank-th id that is not special."""
        special = np.asarray(self.special, np.int64)
        return rank + np.searchsorted(special - np.arange(len(special)), rank, "right")


def choose_words(keys: Bits, lengths: Ints, budget: Ints, words: Ints) -> np.ndarray:
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
    order = shuffled(keys, per_text)  # words in random order, text by text
    before = np.cumsum(size[order]) - size[order]
    opening = ragged_starts(per_text)[owner]  # each text's first place in the order; texts keep their places in it
    before = before - before[np.minimum(opening, len(before) - 1)]  # tokens that the text's earlier words took
    inside = (before + size[order] / 2 <= budget[owner]) | (before == 0)
    chosen = np.zeros(len(first), bool)
    chosen[order[inside]] = True
    return np.repeat(chosen, size)


class MaskedLM(Windowed):
    """Documents (`ids`) in windows, framed as the tokenizer's template frames a text, with hidden tokens.

    `whole_words` needs the field `words` (`EncodeText(words=True)`).
    """

    def __init__(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        *,
        length: int,
        too_long: TooLong = "split",
        shift: bool = False,
        share: float = 0.15,
        whole_words: bool = False,
        frame: Frame | None = None,
    ):
        require(examples, "ids", *(["words"] if whole_words else []))
        self.examples = examples
        self.frame = frame or Frame.of(tokenizer)
        check_length("length", length, self.frame.size() + 1)
        self.masking = Masking.of(tokenizer, share)
        self.whole_words = whole_words
        self.pad = tokenizer.roles.pad or 0
        self.capacity = (length,)
        self.outputs = frozenset({"labels"})
        special = self.frame.size()
        self.windows = Windows(examples.lengths("ids"), length - special, too_long=too_long, shift=shift, frame=special)

    def lengths(self, examples: Ints, draw: Draw) -> Ints:
        return self.windows.locate(examples, draw)[2][:, None] + self.frame.size()

    def build(self, examples: Ints, draw: Draw) -> Pieces:
        record, first, count = self.windows.locate(examples, draw)
        tokens, _ = self.examples.gather("ids", record, first, count)
        words = self.examples.gather("words", record, first, count)[0] if self.whole_words else None
        seen, labels = self.masking(tokens, count, draw.keys("mask", examples), words)
        ids, lengths = self.frame.ids((seen, count))
        return Pieces(lengths=lengths, ids=ids, labels=self.frame.spread(IGNORE, (labels, count)))
