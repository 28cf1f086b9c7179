"""Extractive question answering (SQuAD): predict the first and last token of the answer to a question in a passage.

    [CLS] question [SEP] window of the passage [SEP]

A long passage is cut into overlapping windows, so that an answer that is cut by one window is complete in another. In a
window without the complete answer, both labels are position 0, as in BERT.
"""

import numpy as np

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.objectives.base import (
    ExampleCounts,
    FlatExamples,
    Objective,
    TooLongPolicy,
    check_choice,
    check_length,
    describe_record,
    too_long_error,
)
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.window_index import WindowIndex
from qkv.data.ragged import IntArray
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError
from qkv.text import Tokenizer

TOO_LONG_CHOICES = ("error", "skip", "truncate")


class QuestionAnsweringObjective(Objective):
    """Records with `question`, `context` and `answer` (its first and last token in the context; −1, −1 if none).

    Consecutive windows share `overlap` tokens. `too_long` is the policy for questions with more than
    `max_question_length` tokens; passages may have any length.
    """

    optional_fields = frozenset({"token_type_ids", "answer_spans"})

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        overlap: int = 128,
        max_question_length: int = 64,
        too_long: TooLongPolicy = "error",
    ):
        super().__init__(examples, tokenizer, "question", "context", "answer")
        check_choice("too_long", too_long, TOO_LONG_CHOICES)
        self.template = SpecialTokenTemplate.from_tokenizer(tokenizer)
        self.num_special_tokens = self.template.num_special_tokens(pair=True)
        self.max_question_length = max_question_length
        self.overlap = overlap
        self.too_long = too_long
        check_length("max_length", max_length, self.num_special_tokens + max_question_length + 1)
        room = max_length - self.num_special_tokens - max_question_length
        if not 0 <= overlap < room:
            raise UsageError(
                f"overlap = {overlap} is not possible: beside a question of {max_question_length} tokens, a sequence "
                f"of {max_length} tokens has room for {room} tokens of the passage, and overlap must be smaller. Lower "
                "overlap, or raise max_length"
            )
        self.max_lengths = (max_length,)
        self.index = WindowIndex(len(examples), self._num_windows)
        self.counts = self._count()

    def num_examples(self, rng: EpochRng) -> int:
        """The number of windows of all passages."""
        return self.index.total

    def origin(self, example: int, rng: EpochRng) -> str:
        """The record and the passage's token range of a window, for messages."""
        record, _, first, length = (int(part[0]) for part in self.locate(np.array([example])))
        return describe_record(self.examples, record, first, length)

    def locate(self, examples: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """(n,) window numbers → (record, question length, first token of the window in the context, window length)."""
        record, number = self.index.locate(examples)
        question, room, context = self._lengths_of(record)
        first = number * (room - self.overlap)
        return record, question, first, np.minimum(context - first, room)

    def lengths(self, examples: IntArray, rng: EpochRng) -> IntArray:
        """The length of question and window with special tokens: (n, 1)."""
        _, question, _, window = self.locate(examples)
        lengths: IntArray = question + window + self.num_special_tokens
        return lengths[:, None]

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Questions with a window of their passage, and the position of the answer in it."""
        record, question, first, window = self.locate(examples)
        question_ids, _ = self.examples.gather("question", record, np.zeros_like(question), question)
        passage_ids, _ = self.examples.gather("context", record, first, window)
        ids, lengths = self.template.add_special_tokens((question_ids, question), (passage_ids, window))
        answer = self.examples.gather("answer", record)[0].reshape(-1, 2)
        is_inside = (answer[:, 0] >= first) & (answer[:, 1] < first + window) & (answer[:, 0] >= 0)
        offset = self.passage_start(question) - first
        return FlatExamples(
            lengths,
            ids,
            token_type_ids=self.template.token_type_ids(question, window),
            answer_spans=np.where(is_inside[:, None], answer + offset[:, None], 0),
        )

    def character_spans(self, examples: IntArray, spans: IntArray) -> tuple[IntArray, IntArray]:
        """Convert spans (n, 2) of positions in examples to (record, start and end characters in its context (n, 2)).

        A span outside the passage, such as the "no answer" position 0, gives −1, −1. The fields `begins` and `ends` of
        `EncodeAnswer` are needed.
        """
        require_fields(self.examples, "begins", "ends")
        record, question, first, window = self.locate(examples)
        in_window = np.asarray(spans) - self.passage_start(question)[:, None]
        is_valid = (in_window[:, 0] >= 0) & (in_window[:, 0] <= in_window[:, 1]) & (in_window[:, 1] < window)
        in_context = np.where(is_valid[:, None], in_window + first[:, None], 0)
        ones = np.ones(len(record), np.int64)
        start, _ = self.examples.gather("begins", record, in_context[:, 0], ones)
        end, _ = self.examples.gather("ends", record, in_context[:, 1], ones)
        return record, np.where(is_valid[:, None], np.stack([start, end], axis=1), -1)

    def passage_start(self, question: IntArray) -> IntArray:
        """The position in an example where its window of the passage begins."""
        return len(self.template.prefix) + question + len(self.template.separator)

    def _lengths_of(self, records: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """(question length after truncation, room for the passage in a sequence, passage length)."""
        whole = np.asarray(self.examples.lengths("question")[records], np.int64)
        question = np.minimum(whole, self.max_question_length)
        context = np.asarray(self.examples.lengths("context")[records], np.int64)
        return question, self.max_lengths[0] - self.num_special_tokens - question, context

    def _num_windows(self, records: IntArray) -> IntArray:
        _, room, context = self._lengths_of(records)
        counts = 1 + -(-np.maximum(context - room, 0) // (room - self.overlap))
        is_left_out = context == 0
        if self.too_long == "skip":
            is_left_out |= np.asarray(self.examples.lengths("question")[records]) > self.max_question_length
        return np.where(is_left_out, 0, counts)

    def _count(self) -> ExampleCounts:
        records = np.arange(len(self.examples))
        whole = np.asarray(self.examples.lengths("question"), np.int64)
        question, _, context = self._lengths_of(records)
        is_long = whole > self.max_question_length
        if self.too_long == "error" and is_long.any():
            sides = [("max_question_length", whole, self.max_question_length)]
            raise too_long_error(is_long, sides, TOO_LONG_CHOICES)
        skipped = int(is_long.sum()) if self.too_long == "skip" else 0
        lost_tokens = int((whole + context if skipped else whole - question)[is_long].sum())
        return ExampleCounts(
            records=len(records),
            examples=self.index.total,
            tokens=int(whole.sum() + context.sum()) - lost_tokens,
            split=int((self._num_windows(records) > 1).sum()),
            empty=int((context == 0).sum()),
            skipped=skipped,
            truncated=int(is_long.sum()) - skipped,
            lost_tokens=lost_tokens,
        )
