"""Causal language modelling (GPT): at every position of a document, predict the next token.

A document is a sequence of BOS, its tokens and EOS. A long document is cut into consecutive windows, so every token is
predicted exactly once in an epoch. Chats are trained in the same way, with a loss mask that selects the answers.
"""

from typing import Any

import numpy as np

from qkv.data.cache.examples import EncodedExamples
from qkv.data.cache.writer import RecordEncoder
from qkv.data.encode.chat import EncodeChat
from qkv.data.encode.payloads import EncodePayloads
from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, Objective, TooLongPolicy, check_length
from qkv.data.objectives.table import ANY_LENGTH, TEXT_FIELD, ObjectiveSetup, ObjectiveSpec, RecordField, RequiredTokens
from qkv.data.objectives.windows import WindowObjective, encode_documents
from qkv.data.ragged import IntArray, ragged_index, ragged_starts
from qkv.data.stream.random_bits import EpochRng
from qkv.text import Tokenizer


class CausalLMObjective(WindowObjective):
    """Next-token prediction over documents (`ids`).

    `loss_mask_field` names a field with a 0 or 1 for each token. Only tokens with a 1 are predicted (chat answers).
    `add_bos_eos` puts the BOS token (EOS if there is none) before each document and EOS after it.
    """

    name = "causal_lm"

    def __init__(
        self,
        examples: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        too_long: TooLongPolicy = "split",
        random_offset: bool = False,
        loss_mask_field: str | None = None,
        add_bos_eos: bool = True,
    ):
        super().__init__(examples, tokenizer, "ids", *([loss_mask_field] if loss_mask_field else []))
        check_length("max_length", max_length, 1)
        special = tokenizer.special_tokens
        bos = special.bos if special.bos is not None else special.eos
        self.bos = (bos,) if add_bos_eos and bos is not None else ()
        self.eos = (special.eos,) if add_bos_eos and special.eos is not None else ()
        self.loss_mask_field = loss_mask_field
        self.max_lengths = (max_length,)
        # n tokens give n − 1 predictions, because no token follows the last one.
        extra = len(self.bos) + len(self.eos) - 1
        self.cut_windows(max_length, too_long, random_offset, extra_units=extra)

    def lengths(self, examples: IntArray, rng: EpochRng) -> IntArray:
        """The number of predictions in each window: (n, 1)."""
        return self.windows.locate(examples, rng)[2][:, None]

    def build(self, examples: IntArray, rng: EpochRng) -> FlatExamples:
        """Windows of documents, with the next token as the label."""
        record, first, count = self.windows.locate(examples, rng)
        tokens = slice_with_bos_eos(self.examples, "ids", record, first, count + 1, self.bos, self.eos)
        inputs = ragged_index(ragged_starts(count + 1), count)  # all but the last token of each window
        labels = tokens[inputs + 1]
        if self.loss_mask_field:
            ones = (1,) * len(self.bos), (1,) * len(self.eos)
            loss_mask = slice_with_bos_eos(self.examples, self.loss_mask_field, record, first, count + 1, *ones)
            labels = np.where(loss_mask[inputs + 1] != 0, labels, IGNORE_INDEX)
        return FlatExamples(count, tokens[inputs], {"tokens": labels})


def slice_with_bos_eos(
    examples: EncodedExamples,
    field: str,
    record: IntArray,
    start: IntArray,
    count: IntArray,
    bos: tuple[int, ...],
    eos: tuple[int, ...],
) -> IntArray:
    """Slices of records that are extended by `bos` at the start and by `eos` at the end, each empty or one id.

    Slice i has the tokens start[i] … start[i] + count[i] − 1 of the extended record. The slices are concatenated.
    """
    length = np.asarray(examples.lengths(field)[record], np.int64)
    begin = np.clip(start - len(bos), 0, length)
    end = np.clip(start + count - len(bos), 0, length)
    tokens, _ = examples.gather(field, record, begin, end - begin)
    if not bos and not eos:
        return tokens
    slice_start = ragged_starts(count)
    flat = np.full(int(count.sum()), eos[0] if eos else 0, np.int32)
    flat[ragged_index(slice_start + begin - (start - len(bos)), end - begin)] = tokens
    if bos:
        flat[slice_start[start == 0]] = bos[0]
    return flat


def special_tokens(options: Any) -> RequiredTokens:
    """BOS and EOS; with `add_bos_eos = false` neither of them, because the model would never learn to generate them."""
    return RequiredTokens(("pad", "bos", "eos"), "bos") if options.add_bos_eos else RequiredTokens(("pad",))


def make_encoder(setup: ObjectiveSetup) -> RecordEncoder:
    """The encoder of chats if the records have messages, else of documents."""
    texts = EncodeChat(setup.tokenizer) if "messages" in setup.fields else encode_documents(setup)
    payloads = {field: (field, format) for field, format in setup.payloads.items()}
    return EncodePayloads(texts, payloads) if payloads else texts


def make_examples(setup: ObjectiveSetup, encoded: EncodedExamples) -> Objective:
    """Documents or chats. In a chat only the answers are predicted, and the template already adds special tokens."""
    if setup.payloads:
        from qkv.data.objectives.payload_lm import make_interleaved

        return make_interleaved(setup, encoded)
    is_chat = "messages" in setup.fields
    options: dict[str, Any] = {"add_bos_eos": setup.options.add_bos_eos}
    if is_chat:
        options = {"add_bos_eos": False, "loss_mask_field": "answer"}
    return CausalLMObjective(encoded, setup.tokenizer, **setup.window_kwargs, **options)


SPEC = ObjectiveSpec(
    name="causal_lm",
    families=("decoder",),
    head="lm",
    fields=(
        RecordField("text", TEXT_FIELD.column_names, optional=True),
        RecordField("messages", ("conversation", "conversations", "turns", "chat"), "messages", optional=True),
        # A chat of one question and its answer; the records that are encoded have `messages`.
        RecordField("instruction", ("prompt", "question"), optional=True),
        RecordField("input", ("context",), optional=True, only_with="instruction", is_sparse=True),
        RecordField("response", ("output", "completion", "answer"), only_with="instruction"),
    ),
    alternatives=(("text", "messages", "instruction"),),
    reads_documents=True,
    required_tokens=special_tokens,
    too_long_policies=ANY_LENGTH,
    options=("random_offset", "add_bos_eos", "label_smoothing"),
    reads_payloads=True,
    make_encoder=make_encoder,
    make_examples=make_examples,
)
