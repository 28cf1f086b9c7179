"""Next-token prediction over images or sounds, and texts: one decoder reads both in one sequence."""

from collections.abc import Mapping

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, TooLongPolicy, require_token
from qkv.data.objectives.record_objective import RecordObjective
from qkv.data.objectives.table import ObjectiveSetup
from qkv.data.payloads import FlatPayloads, PayloadField, PayloadFormat, PayloadSlot
from qkv.data.ragged import IntArray, Ragged, ragged_index, ragged_join, ragged_starts
from qkv.data.stream.random_bits import EpochRng
from qkv.text import Tokenizer


class PayloadLMObjective(RecordObjective):
    """Next-token prediction over records with payloads and a text (`text`), such as an image and its caption.

    A sequence is BOS, the placeholders of the payloads, the text and EOS. With `prompt`, a text and EOS come before the
    text: a question, for instance. Only the text is predicted. All placeholders of a payload have the same position, so
    they attend to each other in both directions.
    """

    name = "causal_lm"

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        formats: Mapping[str, PayloadFormat],
        max_length: int,
        text: str = "ids",
        prompt: str = "",
        too_long: TooLongPolicy = "error",
    ):
        super().__init__(examples, tokenizer, text, *([prompt] if prompt else []), *formats)
        special = tokenizer.special_tokens
        bos = special.bos if special.bos is not None else special.eos
        self.prefix = () if bos is None else (bos,)
        self.suffix = () if special.eos is None else (special.eos,)
        self.separator = (require_token("eos", special.eos, "a prompt before a text"),) if prompt else ()
        self.text, self.prompt = text, prompt
        self.payload_fields = [PayloadField(examples, name, format) for name, format in formats.items()]
        self.payloads = tuple(map(PayloadSlot, {format.kind: format for format in formats.values()}.values()))
        self.too_long = too_long
        self.max_lengths = (max_length,)
        # No token follows the last one, so it is not an input.
        self.num_special_tokens = len(self.prefix) + len(self.separator) + len(self.suffix) - 1
        for field in self.payload_fields:
            field.check_lengths("max_length", max_length, too_long, self.num_special_tokens + 1)
        self.count_records()

    def required_lengths(self, examples: IntArray | slice) -> IntArray:
        """The number of inputs of each record: (n, 1)."""
        lengths = self.field_lengths(self.text, examples) + self.num_special_tokens
        if self.prompt:
            lengths = lengths + self.field_lengths(self.prompt, examples)
        for field in self.payload_fields:
            lengths = lengths + field.lengths[examples]
        return lengths[:, None]

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Payloads and texts, with the next token of the text as the label."""
        count = np.minimum(self.required_lengths(examples)[:, 0], self.max_lengths[0])
        placeholders = [field.placeholders(examples, self.pad_token_id) for field in self.payload_fields]
        prompt = [repeat(self.prefix, len(examples)), *placeholders]
        if self.prompt:
            prompt.append(self.gather_first(self.prompt, examples, self.field_lengths(self.prompt, examples)))
            prompt.append(repeat(self.separator, len(examples)))
        text = self.gather_first(self.text, examples, self.field_lengths(self.text, examples))
        parts = [*prompt, text, repeat(self.suffix, len(examples))]
        tokens, whole = ragged_join(parts)
        inputs = ragged_index(ragged_starts(whole), count)
        index = ragged_index(np.zeros_like(count), count)  # of each input in its sequence
        num_prompt = np.repeat(sum(lengths for _, lengths in prompt), count)  # tokens before the text
        found: dict[str, list[FlatPayloads]] = {slot.format.kind: [] for slot in self.payloads}
        first: IntArray | int = len(self.prefix)
        for field, (_, lengths) in zip(self.payload_fields, placeholders, strict=True):
            found[field.format.kind].append(field.read(examples, rng, count, first))
            first = first + lengths
        return FlatExamples(
            count,
            tokens[inputs],
            {"tokens": np.where(index + 1 >= num_prompt, tokens[inputs + 1], IGNORE_INDEX)},
            positions=count_positions(parts, 1, len(placeholders))[inputs],
            payloads=[FlatPayloads.join(several) for several in found.values()],
        )


def repeat(ids: tuple[int, ...], count: int) -> Ragged:
    """The same ids in each of several sequences."""
    return np.tile(np.asarray(ids, np.int32), count), np.full(count, len(ids), np.int64)


def count_positions(parts: list[Ragged], first: int, num_payloads: int) -> IntArray:
    """The position of each token of sequences that are joined from parts.

    It grows by 1 with each token, but all placeholders of a payload have the same one. `num_payloads` parts after part
    `first` − 1 are payloads.

    >>> ones = np.ones(1, np.int64)
    >>> count_positions([(ones, ones), (np.zeros(3), 3 * ones), (ones, ones)], 1, 1).tolist()
    [0, 1, 1, 1, 2]
    """
    steps: list[Ragged] = []
    for number, (values, lengths) in enumerate(parts):
        grows = np.ones(len(values), np.int64)
        if first <= number < first + num_payloads:
            grows[:] = 0
            grows[ragged_starts(lengths)[lengths > 0]] = 1
        steps.append((grows, lengths))
    flat, lengths = ragged_join(steps)
    total = np.cumsum(flat)
    starts = ragged_starts(lengths)
    positions: IntArray = total - np.repeat(total[starts], lengths)
    return positions


def make_interleaved(
    setup: ObjectiveSetup, encoded: EncodedExamples, *, text: str = "ids", prompt: str = ""
) -> PayloadLMObjective:
    """The examples of a decoder that reads payloads and texts."""
    too_long = "error" if setup.too_long == "split" else setup.too_long
    return PayloadLMObjective(
        encoded,
        setup.tokenizer,
        formats=setup.payloads,
        max_length=setup.max_length,
        text=text,
        prompt=prompt,
        too_long=too_long,
    )
