"""Classification of one or two texts: a class, or a number such as how alike two sentences are."""

import numpy as np

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.objectives.base import FlatExamples, TooLongPolicy, check_length
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.whole_records import WholeRecords
from qkv.data.ragged import Ints
from qkv.data.stream.random_bits import EpochRng
from qkv.text import Tokenizer


class Classification(WholeRecords):
    """Examples with `first`, perhaps `second`, and `label` (or `score`, a number).

    Of two texts that are cut because they do not fit together, the longer gives first.
    """

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        too_long: TooLongPolicy = "error",
        template: SpecialTokenTemplate | None = None,
    ):
        self.target_field = "score" if "score" in examples.fields else "label"
        require_fields(examples, "first", self.target_field)
        self.examples = examples
        self.is_pair = "second" in examples.fields
        self.too_long = too_long
        self.template = template or SpecialTokenTemplate.from_tokenizer(tokenizer)
        check_length("length", max_length, self.template.num_special_tokens(self.is_pair) + 2)
        self.pad_token_id = tokenizer.special_tokens.pad or 0
        self.capacity = (max_length,)
        self.num_special_tokens = self.template.num_special_tokens(self.is_pair)
        self.outputs = frozenset(
            {"scores" if self.target_field == "score" else "class_ids", *(["token_type_ids"] if self.is_pair else [])}
        )
        self.count_records()

    def required_lengths(self, examples: Ints | slice) -> Ints:
        one, two = self._text_lengths(examples)
        places: Ints = one + two + self.template.num_special_tokens(self.is_pair)
        return places[:, None]

    def build(self, examples: Ints, rng: EpochRng) -> FlatExamples:
        one, two = truncate_pair(
            *self._text_lengths(examples), self.capacity[0] - self.template.num_special_tokens(self.is_pair)
        )
        nothing = np.zeros_like(one)
        first = self.examples.gather("first", examples, nothing, one)[0], one
        second = (self.examples.gather("second", examples, nothing, two)[0], two) if self.is_pair else None
        ids, lengths = self.template.add_special_tokens(first, second)
        pieces = FlatExamples(
            lengths, ids, token_type_ids=self.template.token_type_ids(one, two) if self.is_pair else None
        )
        answer, _ = self.examples.gather(self.target_field, examples)
        if self.target_field == "score":
            pieces.scores = answer
        else:
            pieces.class_ids = answer
        return pieces

    def _text_lengths(self, examples: Ints | slice) -> tuple[Ints, Ints]:
        """The lengths of both texts, 0 for one that is not there."""
        one = self.field_lengths("first", examples)
        return one, self.field_lengths("second", examples) if self.is_pair else np.zeros_like(one)


def truncate_pair(one: Ints, two: Ints, max_total: int) -> tuple[Ints, Ints]:
    """Lengths of two texts, cut so that together they fit: the longer gives first.

    >>> [part.tolist() for part in truncate_pair(np.array([9, 2, 4]), np.array([2, 9, 4]), 6)]
    [[4, 2, 3], [2, 4, 3]]
    """
    half = max_total // 2
    kept_one = np.where(two <= half, np.minimum(one, max_total - two), np.minimum(one, max_total - half))
    return kept_one, np.minimum(two, max_total - kept_one)
