"""Token tags (named entities, parts of speech): say the tag of each word.

A word may be several tokens: `EncodeTags` puts its tag on the first of them, or on all.
"""

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, TooLongPolicy, check_length
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.windows import WindowedDocuments, Windows
from qkv.data.ragged import Ints
from qkv.data.stream.random_bits import EpochRng
from qkv.text import Tokenizer


class Tagging(WindowedDocuments):
    """Examples with `ids` and, beside each token, `tags` (a class or `IGNORE`). Split ones keep every tag once."""

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        too_long: TooLongPolicy = "error",
        template: SpecialTokenTemplate | None = None,
    ):
        require_fields(examples, "ids", "tags")
        self.examples = examples
        self.template = template or SpecialTokenTemplate.from_tokenizer(tokenizer)
        check_length("length", max_length, self.template.num_special_tokens() + 1)
        self.pad_token_id = tokenizer.special_tokens.pad or 0
        self.capacity = (max_length,)
        self.outputs = frozenset({"labels"})
        special = self.template.num_special_tokens()
        self.windows = Windows(
            examples.lengths("ids"), max_length - special, too_long=too_long, num_special_tokens=special
        )

    def lengths(self, examples: Ints, rng: EpochRng) -> Ints:
        return self.windows.locate(examples, rng)[2][:, None] + self.template.num_special_tokens()

    def build(self, examples: Ints, rng: EpochRng) -> FlatExamples:
        record, first, count = self.windows.locate(examples, rng)
        ids, lengths = self.template.add_special_tokens((self.examples.gather("ids", record, first, count)[0], count))
        tags, _ = self.examples.gather("tags", record, first, count)
        return FlatExamples(lengths, ids, self.template.align_labels(IGNORE_INDEX, (tags, count)))
