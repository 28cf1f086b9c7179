"""Extractive question answering (SQuAD): predict the first and last token of the answer to a question in a passage.

    [CLS] question [SEP] window of the passage [SEP]

A long passage is cut into overlapping windows, so that an answer that is cut by one window is complete in another. In a
window without the complete answer, both labels are position 0, as in BERT.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.encode.align import char_span_to_tokens
from qkv.data.encode.encoders import EncodedFields, EncodeOneByOne, encode_fingerprint
from qkv.data.modalities import get_field
from qkv.data.objectives.base import (
    ExampleCounts,
    FlatExamples,
    Label,
    Objective,
    TooLongPolicy,
    check_choice,
    check_length,
    describe_record,
    too_long_error,
)
from qkv.data.objectives.loss import ForwardPass, LossSums
from qkv.data.objectives.table import WHOLE, ObjectiveSpec, RecordField, bert_tokens
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.objectives.window_index import WindowIndex
from qkv.data.problems import InvalidRecord
from qkv.data.ragged import IntArray
from qkv.data.records import Record
from qkv.data.stream.random_bits import EpochRng
from qkv.errors import UsageError
from qkv.text import Tokenizer

TOO_LONG_CHOICES = ("error", "skip", "truncate")
LABELS = (
    Label("span_starts", "document", is_position=True),
    Label("span_ends", "document", is_position=True, is_counted=False),
)


class EncodeAnswer(EncodeOneByOne):
    """Encodes questions about a context, as in SQuAD.

    The fields are `question` and `context` (token ids), `begins` and `ends` (the characters of each context token),
    and `answer` (the first and last token of the first answer, or −1, −1 if there is none).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        question: str = "question",
        context: str = "context",
        answers: str = "answers",
        starts: str = "starts",
    ):
        self.tokenizer = tokenizer
        self.record_fields = (question, context, answers, starts)
        self.fields = ("question", "context", "begins", "ends", "answer")
        self.fingerprint = encode_fingerprint("answer", tokenizer, *self.record_fields)

    def encode_one(self, record: Record) -> EncodedFields:
        """Encode one question."""
        modalities = (field.modality for field in SPEC.fields)
        question, context, answers, starts = map(get_field, [record] * 4, self.record_fields, modalities)
        ids, offsets = self.tokenizer.encode_with_offsets(context)
        span: tuple[int, int] | None = (-1, -1)
        if answers:
            if len(starts) != len(answers):
                raise InvalidRecord(f"there are {len(answers)} answers, but {len(starts)} starts", "uneven lists")
            text, start = answers[0], starts[0]
            span = char_span_to_tokens(offsets, start, start + len(text))
            if span is None:
                raise InvalidRecord(f"no token of the context overlaps the answer {text!r}", "misplaced answer")
        return {
            "question": self.tokenizer.encode(question, add_special_tokens=False),
            "context": ids,
            "begins": [begin for begin, _ in offsets],
            "ends": [end for _, end in offsets],
            "answer": list(span or ()),
        }


class QuestionAnsweringObjective(Objective):
    """Records with `question`, `context` and `answer` (its first and last token in the context; −1, −1 if none).

    Consecutive windows share `overlap` tokens. `too_long` is the policy for questions with more than
    `max_question_length` tokens; passages may have any length.
    """

    name = "question_answering"
    labels = LABELS
    has_token_types = True

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
                f"overlap = {overlap} must be less than {room}, the tokens that a sequence of {max_length} tokens has "
                f"for the passage beside a question of {max_question_length} tokens. Lower overlap, or raise max_length"
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
        starts, ends = np.where(is_inside[:, None], answer + offset[:, None], 0).T
        return FlatExamples(
            lengths,
            ids,
            {"span_starts": starts, "span_ends": ends},
            token_type_ids=self.template.token_type_ids(question, window),
        )

    def describe_labels(
        self, ids: IntArray, labels: Mapping[str, np.ndarray], decode: Callable[[Any], str], classes: Sequence[str]
    ) -> dict[str, str]:
        """The answer, or that there is none."""
        first, last = int(labels["span_starts"]), int(labels["span_ends"])
        return {"answer": decode(ids[first : last + 1]) if first else "none in this window"}

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


def span_loss(run: ForwardPass) -> LossSums:
    """The loss of the start and the end of answers, each a softmax over the positions of its document."""
    from qkv.blocks.head import document_membership

    assert run.inputs.document_ids is not None
    x, _ = run.hidden()
    out = run.head.project(x).float()  # (B, T, 2)
    member = document_membership(run.inputs.document_ids, run.inputs.max_documents)  # (B, E, T)
    member = member | ~member.any(-1, keepdim=True)  # a missing document has no label, but must not give NaN
    losses = []
    for side, name in enumerate(("span_starts", "span_ends")):
        logits = out[:, None, :, side].masked_fill(~member, float("-inf"))  # (B, E, T)
        losses.append(run.cross_entropy(logits.flatten(0, 1), run.labels[name].flatten()) / 2)
    return LossSums(documents=losses[0] + losses[1])


SPEC = ObjectiveSpec(
    name="question_answering",
    families=("encoder",),
    head="span",
    fields=(
        RecordField("question", ("query",)),
        RecordField("context", ("passage", "document")),
        RecordField("answers", ("answers.text",), "texts"),
        RecordField("starts", ("answers.answer_start", "answer_start", "answer_starts"), "numbers"),
    ),
    pair_field="context",
    group_by="context",
    required_tokens=bert_tokens,
    too_long_policies=WHOLE,
    options=("overlap",),
    make_encoder=lambda setup: EncodeAnswer(setup.tokenizer),
    make_examples=lambda setup, encoded: QuestionAnsweringObjective(
        encoded, setup.tokenizer, **setup.sequence_kwargs, overlap=setup.options.overlap
    ),
    loss=span_loss,
    labels=lambda head: LABELS,
)
