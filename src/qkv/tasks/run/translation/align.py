"""Word alignment: the source word that each generated word depends on most.

Each source word is left out in turn, and the generated text is scored again. The word whose absence lowers the
log-probability of a generated word most is the one that it translates (prediction difference; Li et al. 2019, "On the
Word Alignment from Neural Machine Translation"). The weights of the cross-attention are less reliable: they point to
the position where the encoder has stored a word, which is often the position of its neighbour.

T target tokens, W source words
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from qkv.blocks import Tap
from qkv.decode import score
from qkv.models.runtime import eval_mode
from qkv.tasks.run.generate import WordLink
from qkv.tasks.text_model import TextModel
from qkv.text.words import split_words

SOURCES_PER_BATCH = 32


def align_words(
    model: TextModel,
    source: str,
    target: str,
    target_ids: Sequence[int],
    prompt: str = "",
    make_tap: Callable[[], Tap | None] = lambda: None,
) -> list[WordLink]:
    """A link for each word of the target that depends on a source word. `target_ids` are the tokens of the target.

    `prompt` is the text before the source. `make_tap` makes the tap of each forward pass that scores the target.
    """
    ids, offsets = model.tokenizer.encode_with_offsets(prompt + source, add_special_tokens=True)
    source_words, target_words = split_words(source), split_words(target)
    if not target_ids or not source_words:
        return []
    source_of = token_words(source, source_words, [(start - len(prompt), end - len(prompt)) for start, end in offsets])
    decoder = model.tokenizer.target
    ends = [0, *(len(decoder.decode(target_ids[: number + 1])) for number in range(len(target_ids)))]
    target_of = token_words(target, target_words, list(pairwise(ends)))
    drops = probability_drops(model, ids, source_of, len(source_words), target_ids, make_tap)
    links = []
    for number, (start, end) in enumerate(target_words):
        rows = [row for row, word in enumerate(target_of) if word == number]
        totals = drops[rows].sum(0).clip(min=0)
        if totals.sum() > 0:
            best = int(totals.argmax())
            first, last = source_words[best]
            weight = float(totals[best] / totals.sum())
            links.append(WordLink(source[first:last], target[start:end], first, last, start, end, weight))
    return links


def probability_drops(
    model: TextModel,
    ids: Sequence[int],
    source_of: Sequence[int | None],
    num_words: int,
    target: Sequence[int],
    make_tap: Callable[[], Tap | None] = lambda: None,
) -> np.ndarray:
    """How much the log-probability of each target token falls if each source word is left out (T, W)."""
    if num_words == 1:  # nothing would be left of the source
        return np.ones((len(target), 1))
    without = [[token for token, word in zip(ids, source_of, strict=True) if word != left] for left in range(num_words)]
    sources, scored = [list(ids), *without], list[list[float]]()
    with eval_mode(model.network):
        for start in range(0, len(sources), SOURCES_PER_BATCH):
            batch = sources[start : start + SOURCES_PER_BATCH]
            rows = score(model.network, batch, [target] * len(batch), tap=make_tap())
            scored += [[one.logprob for one in row] for row in rows]
            if model.progress is not None:
                model.progress(min(start + SOURCES_PER_BATCH, len(sources)), len(sources))
    logprobs = np.array(scored).T
    drops: np.ndarray = logprobs[:, :1] - logprobs[:, 1:]
    return drops


def token_words(text: str, words: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> list[int | None]:
    """The number of the word that each token belongs to; None for special tokens and white space."""
    starts, found = [start for start, _ in words], list[int | None]()
    for start, end in offsets:
        while start < end and text[start : start + 1].isspace():
            start += 1
        word = bisect_right(starts, start) - 1
        is_inside = 0 <= start < end and word >= 0 and start < words[word][1]
        found.append(word if is_inside else None)
    return found
