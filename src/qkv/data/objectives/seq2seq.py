"""Sequence to sequence: read a source, write its target; and what all encoder-decoder objectives share.

Teacher forcing: the decoder is shown the start token and the target, and says the target and the end token.
"""

import numpy as np

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.objectives.base import FlatExamples, TooLongPolicy, check_length, require_token
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.whole_records import WholeRecords
from qkv.data.ragged import Ints, ragged_index, ragged_join, ragged_starts
from qkv.data.stream.random_bits import EpochRng
from qkv.text import Tokenizer


class Seq2SeqLM(WholeRecords):
    """Examples with `source` and `target`. Without `source_length`, the rows have the data's own proportions.

    A target that is cut ends where the row ends, without an end token: the model is not taught to stop there. The
    tokenizer is the target's; where the source has its own, give `source_frame=Frame.ends(source_tokenizer)`.
    """

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        max_source_length: int | None = None,
        too_long: TooLongPolicy = "error",
        source_template: SpecialTokenTemplate | None = None,
        decoder_start_token_id: int | None = None,
    ):
        require_fields(examples, "source", "target")
        self.examples = examples
        self.too_long = too_long
        self.source_template = source_template or SpecialTokenTemplate.eos_only(tokenizer)
        self.decoder_start_token_id = (
            find_decoder_start(tokenizer) if decoder_start_token_id is None else decoder_start_token_id
        )
        self.eos_token_id = require_token("end", tokenizer.special_tokens.eos, "sequence to sequence")
        self.pad_token_id = tokenizer.special_tokens.pad or 0
        if max_source_length is None:
            max_source_length = proportional_source_length(max_length, self.required_lengths(slice(None)))
        check_length("length", max_length, 1)
        check_length("source_length", max_source_length, self.source_template.num_special_tokens() + 1)
        self.capacity = (max_length, max_source_length)
        self.num_special_tokens = 1 + self.source_template.num_special_tokens()
        self.outputs = frozenset({"labels", "source"})
        self.count_records()

    def required_lengths(self, examples: Ints | slice) -> Ints:
        target = self.field_lengths("target", examples) + 1
        return np.stack(
            [target, self.field_lengths("source", examples) + self.source_template.num_special_tokens()], axis=1
        )

    def build(self, examples: Ints, rng: EpochRng) -> FlatExamples:
        target_room, source_room = self.capacity
        target = np.minimum(self.field_lengths("target", examples), target_room)
        source = np.minimum(
            self.field_lengths("source", examples), source_room - self.source_template.num_special_tokens()
        )
        nothing = np.zeros_like(target)
        words, _ = self.examples.gather("target", examples, nothing, target)
        ids, labels, lengths = shift_right(words, target, self.decoder_start_token_id, self.eos_token_id, target_room)
        words, _ = self.examples.gather("source", examples, nothing, source)
        source_ids, source_lengths = self.source_template.add_special_tokens((words, source))
        return FlatExamples(lengths, ids, labels, source_lengths=source_lengths, source_ids=source_ids)


def shift_right(
    target: Ints, lengths: Ints, decoder_start_token_id: int, eos_token_id: int, max_length: int | None = None
) -> tuple[Ints, Ints, Ints]:
    """Targets laid end to end → (what the decoder is shown, what it should say, lengths), at most `room` places each.

    >>> shown, said, lengths = shift_right(np.array([7, 8, 9]), np.array([2, 1]), decoder_start_token_id=0, eos_token_id=1)
    >>> shown.tolist(), said.tolist()
    ([0, 7, 8, 0, 9], [7, 8, 1, 9, 1])
    """
    ones = np.ones(len(lengths), np.int64)
    edges = [(np.full(len(lengths), edge, np.int32), ones) for edge in (decoder_start_token_id, eos_token_id)]
    whole, total = ragged_join([edges[0], (target, lengths), edges[1]])
    count = total - 1 if max_length is None else np.minimum(total - 1, max_length)
    shown = ragged_index(ragged_starts(total), count)
    return whole[shown], whole[shown + 1], count


def find_decoder_start(tokenizer: Tokenizer) -> int:
    """What a decoder is shown first: the start token, or padding where there is none (as T5 and Marian do)."""
    roles = tokenizer.special_tokens
    return require_token("start", roles.bos if roles.bos is not None else roles.pad, "an encoder-decoder")


def proportional_source_length(max_length: int, sizes: Ints, multiple: int = 8) -> int:
    """The source row length at which source and target rows fill up together; sizes: (n, 2) target, source."""
    target, source = (float(total) for total in sizes.sum(axis=0))
    return max(multiple, int(np.ceil(max_length * source / max(target, 1.0) / multiple)) * multiple)
