"""Word alignment: which source word the cross-attention of an encoder-decoder reads for each generated word.

The attention is that of the last layer but one, averaged over its heads: it aligns words better than the last layer,
which prepares the next word (Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models"). A
recurrent decoder has one attention, in its first layer.

T target tokens, S source tokens
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from qkv.decode.runner import start_token
from qkv.errors import UsageError
from qkv.inside import trace
from qkv.models import Seq2Seq
from qkv.tasks.results import GeneratedText, WordLink
from qkv.tasks.task import TextModel
from qkv.text import Tokenizer
from qkv.text.words import split_words


def align_words(model: TextModel, source: str, result: GeneratedText, prompt: str = "") -> list[WordLink]:
    """A link for each word of the result. `prompt` is the text before the source, which has no links."""
    network, tokenizer = model.network, model.tokenizer
    assert isinstance(network, Seq2Seq)
    if not result.ids or not source.strip():
        return []
    ids, offsets = tokenizer.encode_with_offsets(prompt + source, add_special_tokens=True)
    if model.config.is_recurrent:
        if model.config.stack.recurrent_attention == "none":
            raise UsageError(
                'word alignment reads the attention of the decoder, and this model has recurrent_attention = "none"; '
                'train one with "additive", or leave out the alignment'
            )
        layer = 0  # the only layer with attention
    else:
        layer = max(0, model.config.stack.layers - 2)
    site = f"decoder.{layer}.cross_pattern"
    recorded = trace(network, ids, [start_token(network), *result.ids[:-1]], tokenizer=tokenizer, sites=[site])
    weights = recorded[site].double().mean(0).numpy()  # (T, S): row t is the attention that generates token t
    source_words = split_words(source)
    moved = [(start - len(prompt), end - len(prompt)) for start, end in offsets]
    target_words = split_words(result.text)
    source_of = token_words(source, source_words, moved)
    target_of = token_words(result.text, target_words, generated_offsets(tokenizer.target, result.ids))
    links = []
    for number, (start, end) in enumerate(target_words):
        rows = [row for row, word in enumerate(target_of) if word == number]
        totals = np.zeros(len(source_words))
        for column, word in enumerate(source_of):
            if word is not None and rows:
                totals[word] += weights[rows, column].mean()
        if totals.sum() > 0:
            best = int(totals.argmax())
            first, last = source_words[best]
            weight = float(totals[best] / totals.sum())
            links.append(WordLink(source[first:last], result.text[start:end], first, last, start, end, weight))
    return links


def generated_offsets(tokenizer: Tokenizer, ids: Sequence[int]) -> list[tuple[int, int]]:
    """The characters of each generated token in the decoded text."""
    ends = [0, *(len(tokenizer.decode(ids[: number + 1])) for number in range(len(ids)))]
    return list(pairwise(ends))


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
