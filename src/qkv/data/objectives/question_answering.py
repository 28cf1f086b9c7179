"""Answer spans (SQuAD): read a question and a passage, and point at the first and last token of the answer.

    [CLS] question [SEP] part of the passage [SEP]

A passage that does not fit becomes several windows that overlap, so that an answer cut by one lies whole in
another. A window without the whole answer points at place 0, as BERT does.
"""

import numpy as np

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.objectives.base import (
    FlatExamples,
    Tally,
    TooLongPolicy,
    check_choice,
    check_length,
    describe_record,
    too_long_error,
)
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.window_index import WindowIndex
from qkv.data.ragged import Ints
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError
from qkv.text import Tokenizer

TOO_LONG_CHOICES = ("error", "skip", "truncate")


class QuestionAnswering:
    """Examples with `question`, `context` and `answer` (first and last token of the context, or −1, −1 for none).

    Two windows share `overlap` tokens. `too_long` is about questions of more than `question_length` tokens: passages
    are never too long.
    """

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        overlap: int = 128,
        max_question_length: int = 64,
        too_long: TooLongPolicy = "error",
        template: SpecialTokenTemplate | None = None,
    ):
        require_fields(examples, "question", "context", "answer")
        check_choice("too_long", too_long, TOO_LONG_CHOICES)
        self.examples = examples
        self.template = template or SpecialTokenTemplate.from_tokenizer(tokenizer)
        self.max_question_length, self.overlap, self.too_long = max_question_length, overlap, too_long
        self.pad_token_id = tokenizer.special_tokens.pad or 0
        special = self.template.num_special_tokens(pair=True)
        check_length("length", max_length, special + max_question_length + 1)
        if not 0 <= overlap < max_length - special - max_question_length:
            raise UsageError(
                f"overlap = {overlap} leaves nothing of a row of {max_length} beside a question of {max_question_length} "
                "tokens: lower overlap, or raise length"
            )
        self.capacity = (max_length,)
        self.outputs = frozenset({"token_type_ids", "answer_spans"})
        self.index = WindowIndex(len(examples), self._num_windows)
        self.tally = self._make_tally()

    def num_examples(self, rng: EpochRng) -> int:
        return self.index.total

    def origin(self, example: int, rng: EpochRng) -> str:
        record, _, first, size = (int(part[0]) for part in self.locate(np.array([example])))
        return describe_record(self.examples, record, first, size)

    def locate(self, examples: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Windows by number → (record, tokens of its question, where the window begins in the context, its length)."""
        record, number = self.index.locate(examples)
        question, room, context = self._lengths_of(record)
        first = number * (room - self.overlap)
        return record, question, first, np.minimum(context - first, room)

    def lengths(self, examples: Ints, rng: EpochRng) -> Ints:
        _, question, _, size = self.locate(examples)
        places: Ints = question + size + self.template.num_special_tokens(pair=True)
        return places[:, None]

    def build(self, examples: Ints, rng: EpochRng) -> FlatExamples:
        record, question, first, size = self.locate(examples)
        asked, _ = self.examples.gather("question", record, np.zeros_like(question), question)
        passage, _ = self.examples.gather("context", record, first, size)
        ids, lengths = self.template.add_special_tokens((asked, question), (passage, size))
        answer = self.examples.gather("answer", record)[0].reshape(-1, 2)
        inside = (answer[:, 0] >= first) & (answer[:, 1] < first + size) & (answer[:, 0] >= 0)
        place = self.passage_start(question) - first
        spans = np.where(inside[:, None], answer + place[:, None], 0)
        return FlatExamples(
            lengths, ids, token_type_ids=self.template.token_type_ids(question, size), answer_spans=spans
        )

    def character_spans(self, examples: Ints, spans: Ints) -> tuple[Ints, Ints]:
        """Spans of places in examples (n, 2) → (record, the characters of its context (n, 2) as begin and end).

        −1, −1 where a span does not lie in the passage, as that of "no answer" does not. Needs the fields `begins` and
        `ends` (`EncodeAnswer` makes them).
        """
        require_fields(self.examples, "begins", "ends")
        record, question, first, size = self.locate(examples)
        inside = np.asarray(spans) - self.passage_start(question)[:, None]  # places in the window
        known = (inside[:, 0] >= 0) & (inside[:, 0] <= inside[:, 1]) & (inside[:, 1] < size)
        tokens = np.where(known[:, None], inside + first[:, None], 0)  # in the context
        ones = np.ones(len(record), np.int64)
        begin, _ = self.examples.gather("begins", record, tokens[:, 0], ones)
        end, _ = self.examples.gather("ends", record, tokens[:, 1], ones)
        return record, np.where(known[:, None], np.stack([begin, end], axis=1), -1)

    def passage_start(self, question: Ints) -> Ints:
        """The place in an example where its part of the passage begins."""
        return len(self.template.prefix) + question + len(self.template.separator)

    def _lengths_of(self, records: Ints) -> tuple[Ints, Ints, Ints]:
        """(question tokens used, room for the passage beside them, passage tokens)."""
        question = np.minimum(
            np.asarray(self.examples.lengths("question")[records], np.int64), self.max_question_length
        )
        context = np.asarray(self.examples.lengths("context")[records], np.int64)
        return question, self.capacity[0] - self.template.num_special_tokens(pair=True) - question, context

    def _num_windows(self, records: Ints) -> Ints:
        _, room, context = self._lengths_of(records)
        further = np.maximum(context - room, 0)
        counts = 1 + -(-further // (room - self.overlap))
        left_out = context == 0
        if self.too_long == "skip":
            left_out |= np.asarray(self.examples.lengths("question")[records]) > self.max_question_length
        return np.where(left_out, 0, counts)

    def _make_tally(self) -> Tally:
        records = np.arange(len(self.examples))
        whole = np.asarray(self.examples.lengths("question"), np.int64)
        question, _, context = self._lengths_of(records)
        long = whole > self.max_question_length
        if self.too_long == "error" and long.any():
            raise too_long_error(long, [("question_length", whole, self.max_question_length)], TOO_LONG_CHOICES)
        skipped = int(long.sum()) if self.too_long == "skip" else 0
        lost = int((whole + context if skipped else whole - question)[long].sum())
        return Tally(
            records=len(records),
            examples=self.index.total,
            tokens=int(whole.sum() + context.sum()) - lost,
            split=int((self._num_windows(records) > 1).sum()),
            empty=int((context == 0).sum()),
            skipped=skipped,
            truncated=int(long.sum()) - skipped,
            lost_tokens=lost,
        )
