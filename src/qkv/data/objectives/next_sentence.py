"""Masked language modelling with next-sentence prediction (BERT's original pretraining).

A document is cut into segments of at most half a sequence, at sentence ends if possible. Two consecutive segments are
one example. In half of the examples, the second segment is swapped with the second segment of an example from another
document. The model predicts whether the second segment follows the first (0) or not (1). Segments are swapped and not
sampled, so every token is used exactly once in an epoch.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.encode.encoders import EncodeText
from qkv.data.objectives.base import (
    IGNORE_INDEX,
    TOKEN_LABELS,
    ExampleCounts,
    FlatExamples,
    Label,
    Objective,
    check_length,
    describe_record,
)
from qkv.data.objectives.loss import ForwardPass, LossSums
from qkv.data.objectives.masked_lm import TokenMasking, masking_options
from qkv.data.objectives.table import TEXT_FIELD, ObjectiveSpec, bert_tokens
from qkv.data.objectives.template import SpecialTokenTemplate
from qkv.data.ragged import IntArray, ragged_join
from qkv.data.stream.random_bits import EpochRng, to_uniform
from qkv.errors import UsageError
from qkv.text import Tokenizer

RECORDS_PER_READ = 4096  # the number of records that are read and cut at a time
LABELS = (TOKEN_LABELS, Label("classes", "document"))
CLASSES = ("the second text follows the first", "it does not")


class NextSentenceObjective(Objective):
    """Documents (`ids`, `sentences`) as pairs of segments with masked tokens.

    If a document has an odd number of segments, the last one is an example without a next-sentence label.
    """

    name = "next_sentence"
    labels = LABELS
    has_token_types = True

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        mask_prob: float = 0.15,
        whole_word_masking: bool = False,
    ):
        super().__init__(examples, tokenizer, "ids", "sentences", *(["words"] if whole_word_masking else []))
        self.template = SpecialTokenTemplate.from_tokenizer(tokenizer)
        if not self.template.separator:
            raise UsageError(
                "next-sentence prediction needs a separator between two texts, and this tokenizer has no sep or eos "
                "token; train or load a tokenizer that has one"
            )
        num_special_tokens = self.template.num_special_tokens(pair=True)
        check_length("max_length", max_length, num_special_tokens + 2)
        self.masking = TokenMasking.from_tokenizer(tokenizer, mask_prob)
        self.whole_word_masking = whole_word_masking
        self.max_lengths = (max_length,)
        # (N, 4): record, start of the first segment, its length, length of the second segment or 0
        self.segment_pairs = cut_into_pairs(examples, (max_length - num_special_tokens) // 2)
        tokens = np.asarray(examples.lengths("ids"), np.int64)
        self.counts = ExampleCounts(
            records=len(tokens),
            examples=len(self.segment_pairs),
            tokens=int(tokens.sum()),
            split=int((np.bincount(self.segment_pairs[:, 0], minlength=len(tokens)) > 1).sum()),
            empty=int((tokens == 0).sum()),
        )

    def num_examples(self, rng: EpochRng) -> int:
        """The number of segment pairs."""
        return len(self.segment_pairs)

    def describe_labels(
        self, ids: IntArray, labels: Mapping[str, np.ndarray], decode: Callable[[Any], str], classes: Sequence[str]
    ) -> dict[str, str]:
        """The masked tokens, and whether the second text follows the first."""
        parts = super().describe_labels(ids, labels, decode, classes)
        number = int(labels["classes"])
        return parts if number == IGNORE_INDEX else {**parts, "class": CLASSES[number]}

    def origin(self, example: int, rng: EpochRng) -> str:
        """The record and token range of a segment pair before swapping, for messages."""
        record, start, one, two = (int(value) for value in self.segment_pairs[example])
        return describe_record(self.examples, record, start, one + two)

    def swap_partner(self, examples: IntArray, rng: EpochRng) -> IntArray:
        """For each example, the example that its second segment comes from: itself, or its partner in a swap."""
        n = len(self.segment_pairs)
        # The partner of example i is (c − i) mod n for a random c. The partner of the partner is i again.
        other = (rng.hash64("partner") % n - np.asarray(examples)) % n
        wants_swap = to_uniform(rng.keys("exchange", np.minimum(examples, other))) < 0.5
        mine, theirs = self.segment_pairs[examples], self.segment_pairs[other]
        can_swap = (mine[:, 3] > 0) & (theirs[:, 3] > 0) & (mine[:, 0] != theirs[:, 0])
        return np.where(wants_swap & can_swap, other, examples)

    def lengths(self, examples: IntArray, rng: EpochRng) -> IntArray:
        """The length of both segments with special tokens: (n, 1)."""
        first = self.segment_pairs[examples, 2]
        second = self.segment_pairs[self.swap_partner(examples, rng), 3]
        separator = np.where(second > 0, len(self.template.separator), 0)
        lengths: IntArray = first + second + self.template.num_special_tokens() + separator
        return lengths[:, None]

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Pairs of segments with masked tokens, token types, and whether the second segment follows the first."""
        owner = self.swap_partner(examples, rng)
        record, start, one, _ = self.segment_pairs[examples].T
        other_record, other_start, other_one, two = self.segment_pairs[owner].T
        lengths_in_turn = np.stack([one, two], axis=1).reshape(-1)
        is_second = np.repeat(np.tile([False, True], len(one)), lengths_in_turn)  # (tokens,)

        def gather_pairs(field: str) -> IntArray:
            """Both segments of each example, concatenated."""
            first_segment, _ = self.examples.gather(field, record, start, one)
            second_segment, _ = self.examples.gather(field, other_record, other_start + other_one, two)
            return ragged_join([(first_segment, one), (second_segment, two)])[0]

        # Make the word indices of the two segments distinct.
        words = 2 * gather_pairs("words") + is_second if self.whole_word_masking else None
        masked, labels = self.masking(gather_pairs("ids"), one + two, rng.keys("mask", examples), words)
        ids, lengths = self.template.add_special_tokens((masked[~is_second], one), (masked[is_second], two))
        return FlatExamples(
            lengths=lengths,
            ids=ids,
            labels={
                "tokens": self.template.align_labels(IGNORE_INDEX, (labels[~is_second], one), (labels[is_second], two)),
                "classes": np.where(two > 0, (owner != examples).astype(np.int64), IGNORE_INDEX),
            },
            token_type_ids=self.template.token_type_ids(one, two),
        )


def cut_into_pairs(examples: EncodedExamples, max_tokens: int) -> IntArray:
    """Cut all documents into pairs of segments of at most `max_tokens` tokens: (N, 4) int64, see `segment_pairs`."""
    pairs: list[tuple[int, int, int, int]] = []
    lengths = np.asarray(examples.lengths("ids"))
    for first in range(0, len(lengths), RECORDS_PER_READ):
        records = np.arange(first, min(first + RECORDS_PER_READ, len(lengths)))
        starts, offsets = examples.gather("sentences", records)
        sentences = starts.tolist()
        for record, begin, end in zip(records.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            pairs += cut_document(record, int(lengths[record]), sentences[begin:end], max_tokens)
    return np.array(pairs, np.int64).reshape(-1, 4)


def cut_document(record: int, length: int, sentences: list[int], max_tokens: int) -> list[tuple[int, int, int, int]]:
    """Cut one document into segment pairs. `sentences` are the tokens at which sentences start.

    >>> cut_document(0, 11, [0, 3, 5, 9], 5)
    [(0, 0, 5, 4), (0, 9, 2, 0)]
    """
    ends = [0]
    while ends[-1] < length:
        limit = min(ends[-1] + max_tokens, length)
        sentence = sentences[bisect_right(sentences, limit) - 1] if limit < length and sentences else limit
        ends.append(sentence if sentence > ends[-1] else limit)
    if len(ends) == 2 and len(sentences) > 1:  # a short document: cut at the sentence end nearest to its middle
        ends.insert(1, min((start for start in sentences if 0 < start < length), key=lambda s: abs(2 * s - length)))
    ends += [ends[-1]] * (len(ends) % 2 == 0)
    return [(record, a, b - a, c - b) for a, b, c in zip(ends[:-1:2], ends[1::2], ends[2::2], strict=True)]


def sentence_loss(run: ForwardPass) -> LossSums:
    """The loss of masked tokens, and of the classifier of pairs."""
    assert run.head.sentence is not None
    x, layout = run.hidden()
    logits = run.head.sentence(x, layout, run.inputs.max_documents)  # (B, E, 2)
    classes = run.cross_entropy(logits.flatten(0, 1), run.labels["classes"].flatten(), run.label_smoothing)
    return LossSums(run.token_losses(x), classes)


SPEC = ObjectiveSpec(
    name="next_sentence",
    families=("encoder",),
    head="mlm",
    next_sentence_classes=2,
    fields=(TEXT_FIELD,),
    pair_field="text",
    reads_documents=True,
    required_tokens=bert_tokens,
    too_long_policies=("split",),
    options=("mask_prob", "whole_word_masking", "label_smoothing"),
    make_encoder=lambda setup: EncodeText(setup.tokenizer, words=setup.options.whole_word_masking, sentences=True),
    make_examples=lambda setup, encoded: NextSentenceObjective(
        encoded, setup.tokenizer, max_length=setup.max_length, **masking_options(setup)
    ),
    loss=sentence_loss,
    labels=lambda head: LABELS,
)
