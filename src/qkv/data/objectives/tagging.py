"""Tagging of words (named entities, parts of speech): predict the tag of each word.

A word may have several tokens. `EncodeTags` puts the tag on the first token of the word, or on all its tokens.
"""

from qkv.data.cache.examples import EncodedExamples
from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, TooLongPolicy
from qkv.data.objectives.windows import TemplateWindowObjective
from qkv.data.ragged import IntArray
from qkv.data.stream.random_bits import EpochRng
from qkv.text import Tokenizer


class TaggingObjective(TemplateWindowObjective):
    """Records with `ids` and `tags`: one class, or `IGNORE_INDEX`, for each token."""

    def __init__(
        self, examples: EncodedExamples, tokenizer: Tokenizer, *, max_length: int, too_long: TooLongPolicy = "error"
    ):
        super().__init__(examples, tokenizer, "ids", "tags", max_length=max_length, too_long=too_long)

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Windows of tokens with special tokens, and the tag of each token as its label."""
        record, first, count = self.windows.locate(examples, rng)
        tokens, _ = self.examples.gather("ids", record, first, count)
        tags, _ = self.examples.gather("tags", record, first, count)
        ids, lengths = self.template.add_special_tokens((tokens, count))
        return FlatExamples(lengths, ids, self.template.align_labels(IGNORE_INDEX, (tags, count)))
