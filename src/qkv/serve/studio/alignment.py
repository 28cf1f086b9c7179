"""The word alignment of a source and its translation, by the method of `m.translate(align=True)`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from qkv.api import Model
from qkv.inside import Edit, EditTap
from qkv.serve.studio.requests import MAX_WORDS
from qkv.tasks.run.translation.align import align_words
from qkv.tasks.text_model import TextModel, require_tokenizer
from qkv.text.words import split_words


def describe_alignment(model: Model, source: str, target_ids: Sequence[int], edits: Sequence[Edit]) -> dict[str, Any]:
    """The words of both texts, and links between their numbers. A source that is too long has no links."""
    tokenizer = require_tokenizer(model.tokenizer)
    target = tokenizer.target.decode(target_ids)
    source_words, target_words = split_words(source), split_words(target)
    links = []
    if len(source_words) <= MAX_WORDS:
        text_model = TextModel(model.network, tokenizer, model.config)
        make_tap = partial(EditTap, edits) if edits else lambda: None
        links = align_words(text_model, source, target, target_ids, make_tap=make_tap)
    return {
        "source": [source[start:end] for start, end in source_words],
        "target": [target[start:end] for start, end in target_words],
        "links": [
            {
                "source": source_words.index((link.source_start, link.source_end)),
                "target": target_words.index((link.target_start, link.target_end)),
                "weight": link.weight,
            }
            for link in links
        ],
        "max_words": MAX_WORDS,
    }
