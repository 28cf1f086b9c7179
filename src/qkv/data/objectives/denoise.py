"""Denoising (BART): spoil a text, and write it back whole.

Two ways of spoiling, used together: sentences are put in a random order, and spans of tokens are each replaced by a
single mask token, until 30 % of the tokens are gone. The spans' lengths are Poisson draws of mean 3: one of length 0
puts in a mask where nothing is missing, so the model must also learn how much is missing.
"""

import numpy as np

from qkv.data.draw import Bits, Draw, bits, choose, shuffled, uniform
from qkv.data.examples import Examples, require
from qkv.data.objectives.base import Pieces, TooLong, check_length, need
from qkv.data.objectives.frame import Frame
from qkv.data.objectives.pairs import decoder_start, taught
from qkv.data.objectives.windows import Windowed, Windows
from qkv.data.ragged import Ints, ragged_index, ragged_join, ragged_starts
from qkv.errors import UsageError
from qkv.text import Tokenizer


class Denoise(Windowed):
    """Documents (`ids`) in windows; `permute` needs the field `sentences` (`EncodeText(sentences=True)`).

    `source_length` may be left out: it is then what spoiled texts need.
    """

    def __init__(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        *,
        length: int,
        source_length: int | None = None,
        too_long: TooLong = "split",
        shift: bool = False,
        share: float = 0.3,
        mean_span: float = 3.0,
        permute: bool = False,
        source_frame: Frame | None = None,
    ):
        require(examples, "ids", *(["sentences"] if permute else []))
        if not 0 < share < 1 or mean_span <= 0:
            raise UsageError(f"share = {share} must lie between 0 and 1, and mean_span = {mean_span} be above 0")
        roles = tokenizer.roles
        self.examples = examples
        self.share, self.mean_span, self.permute = share, mean_span, permute
        self.poisson = poisson_table(mean_span)
        self.frame = source_frame or Frame.ends(tokenizer)
        self.mask = need("mask", roles.mask, "denoising")
        self.end = need("end", roles.end, "denoising")
        self.start = decoder_start(tokenizer)
        self.pad = roles.pad or 0
        check_length("length", length, 2)
        if source_length is None:
            spans = share * length / mean_span
            source_length = -(-int((1 - share) * length + spans + 2 * spans**0.5 + self.frame.size() + 1) // 8) * 8
        check_length("source_length", source_length, self.frame.size() + 2)
        self.capacity = (length, source_length)
        self.outputs = frozenset({"labels", "source"})
        self.windows = Windows(examples.lengths("ids"), self._largest(), too_long=too_long, shift=shift)

    def _largest(self) -> int:
        """The longest text that fits both rows, spoiled with one span at least."""
        counts = np.arange(1, self.capacity[0])
        fits = counts - self._gone(counts) + 1 + self.frame.size() <= self.capacity[1]
        return int(counts[fits].max())

    def _gone(self, count: Ints) -> Ints:
        """How many tokens of texts of `count` tokens are taken away."""
        return np.clip(np.floor(count * self.share + 0.5).astype(np.int64), 1, count)

    def _spans(self, count: Ints, keys: Bits) -> tuple[Ints, Ints]:
        """How many spans each text loses, and their lengths, end to end."""
        gone = self._gone(count)
        kept = count - gone
        # No more spans than tokens gone or places to put them, nor than the source row has room for; and of the draws
        # that chance may ask for, as many as are ever needed. The last span takes what is still missing.
        room = self.capacity[1] - self.frame.size() - kept
        usual = gone / self.mean_span
        most = np.minimum(
            np.minimum(gone, kept + 1), np.minimum(room, (usual + 6 * np.sqrt(usual) + 8).astype(np.int64))
        )
        drawn = uniform(bits(keys[:, None], np.arange(int(most.max()))))  # (n, K)
        reached = np.cumsum(np.searchsorted(self.poisson, drawn, "right"), axis=1)
        done = reached >= gone[:, None]
        spans = np.minimum(np.where(done.any(axis=1), done.argmax(axis=1) + 1, most), most)
        reached[np.arange(len(count)), spans - 1] = gone
        lengths = np.diff(reached, axis=1, prepend=0)
        return spans, lengths[np.arange(lengths.shape[1]) < spans[:, None]]

    def lengths(self, examples: Ints, draw: Draw) -> Ints:
        count = self.windows.locate(examples, draw)[2]
        spans, _ = self._spans(count, draw.keys("span lengths", examples))
        return np.stack([count + 1, count - self._gone(count) + spans + self.frame.size()], axis=1)

    def build(self, examples: Ints, draw: Draw) -> Pieces:
        record, first, count = self.windows.locate(examples, draw)
        tokens, _ = self.examples.gather("ids", record, first, count)
        ids, labels, lengths = taught(tokens, count, self.start, self.end)
        if self.permute:
            tokens = self._permuted(tokens, record, first, count, draw.keys("sentences", examples))
        source, source_lengths = self._spoiled(tokens, count, examples, draw)
        source, source_lengths = self.frame.ids((source, source_lengths))
        return Pieces(lengths=lengths, ids=ids, labels=labels, source_lengths=source_lengths, source_ids=source)

    def _permuted(self, tokens: Ints, record: Ints, first: Ints, count: Ints, keys: Bits) -> Ints:
        """The tokens with the sentences of each window in a random order."""
        starts, offsets = self.examples.gather("sentences", record)
        window = np.repeat(np.arange(len(record)), np.diff(offsets))
        local = starts - first[window]
        inside = (local > 0) & (local < count[window])
        begins = np.zeros(len(tokens) + 1, bool)  # where a sentence, or a window, begins
        begins[ragged_starts(count)[window[inside]] + local[inside]] = True
        begins[ragged_starts(count)] = True
        place = np.flatnonzero(begins[:-1])
        size = np.diff(place, append=len(tokens))
        owner = np.repeat(np.arange(len(count)), count)[place]
        order = shuffled(keys, np.bincount(owner, minlength=len(count)))
        permuted: Ints = tokens[ragged_index(place[order], size[order])]
        return permuted

    def _spoiled(self, tokens: Ints, count: Ints, examples: Ints, draw: Draw) -> tuple[Ints, Ints]:
        """Texts with spans replaced by masks: (flat, lengths)."""
        spans, span_lengths = self._spans(count, draw.keys("span lengths", examples))
        kept = count - self._gone(count)
        # A span may stand before each kept token and at the end: kept + 1 gaps, of which some hold one span each.
        gaps = kept + 1
        masked = choose(draw.keys("span places", examples), gaps, spans)  # (all gaps,)
        missing = np.zeros(len(masked), np.int64)
        missing[masked] = span_lengths
        has_token = np.ones(len(masked), bool)
        has_token[np.cumsum(gaps) - 1] = False  # the last gap of a text has no token after it
        # Token of gap g: as many places on as gaps of its text precede it and tokens are missing up to it.
        index = np.cumsum(has_token) - has_token + np.cumsum(missing)
        flat, _ = ragged_join(
            [
                (np.full(int(masked.sum()), self.mask, np.int32), masked.astype(np.int64)),
                (tokens[index[has_token]], has_token.astype(np.int64)),
            ]
        )
        return flat, kept + spans


def poisson_table(mean: float) -> np.ndarray:
    """The cumulative Poisson probabilities: `searchsorted(table, uniform, "right")` is a Poisson draw.

    >>> [round(p, 3) for p in poisson_table(3.0)[:3].tolist()]
    [0.05, 0.199, 0.423]
    """
    term, total, table = np.exp(-mean), 0.0, []
    for k in range(1, 1000):
        total += term
        table.append(total)
        term *= mean / k
        if term < 1e-18 and k > mean:
            break
    return np.array(table)
