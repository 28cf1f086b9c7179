"""Next token (GPT): at every place of a document, say which token follows.

A document is laid out as start, its tokens, end; windows of it follow each other so that every token is predicted
exactly once an epoch. The same with the loss on some tokens only is how chats are learnt.
"""

import numpy as np

from qkv.data.cache.examples import EncodedExamples, require_fields
from qkv.data.objectives.base import IGNORE_INDEX, FlatExamples, TooLongPolicy, check_length
from qkv.data.objectives.windows import WindowedDocuments, Windows
from qkv.data.ragged import Ints, ragged_index, ragged_starts
from qkv.data.stream.random_bits import EpochRng
from qkv.text import Tokenizer


class CausalLM(WindowedDocuments):
    """Documents (`ids`) as rows of next-token prediction.

    `trained` names a field of 0s and 1s beside the tokens: only those marked 1 are learnt (a chat's answers). `framed`
    lays the start token (the end token where there is none) before a document and the end token after it.
    """

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
        require_fields(examples, "ids", *([loss_mask_field] if loss_mask_field else []))
        check_length("length", max_length, 1)
        roles = tokenizer.special_tokens
        first = roles.bos if roles.bos is not None else roles.eos
        self.examples = examples
        self.bos = (first,) if add_bos_eos and first is not None else ()
        self.eos = (roles.eos,) if add_bos_eos and roles.eos is not None else ()
        self.loss_mask_field = loss_mask_field
        self.pad_token_id = roles.pad or 0
        self.capacity = (max_length,)
        self.outputs = frozenset({"labels"})
        # n tokens in a row give n − 1 predictions: the last one has nothing after it.
        extra = len(self.bos) + len(self.eos) - 1
        self.windows = Windows(
            examples.lengths("ids"), max_length, extra_units=extra, too_long=too_long, random_offset=random_offset
        )

    def lengths(self, examples: Ints, rng: EpochRng) -> Ints:
        return self.windows.locate(examples, rng)[2][:, None]

    def build(self, examples: Ints, rng: EpochRng) -> FlatExamples:
        record, first, count = self.windows.locate(examples, rng)
        tokens = slice_with_bos_eos(self.examples, "ids", record, first, count + 1, self.bos, self.eos)
        inputs = ragged_index(ragged_starts(count + 1), count)  # all but the last token of each window
        labels = tokens[inputs + 1]
        if self.loss_mask_field:
            ones = (1,) * len(self.bos), (1,) * len(self.eos)
            marks = slice_with_bos_eos(self.examples, self.loss_mask_field, record, first, count + 1, *ones)
            labels = np.where(marks[inputs + 1] != 0, labels, IGNORE_INDEX)
        return FlatExamples(lengths=count, ids=tokens[inputs], labels=labels)


def slice_with_bos_eos(
    examples: EncodedExamples,
    field: str,
    record: Ints,
    start: Ints,
    count: Ints,
    bos: tuple[int, ...],
    eos: tuple[int, ...],
) -> Ints:
    """Slices of records as if each had the ids `first` (none or one) before and `last` (none or one) after its tokens.

    Slice i is places start[i] … start[i] + count[i] − 1 of the framed record; all lie inside it. Flat.
    """
    length = np.asarray(examples.lengths(field)[record], np.int64)
    begin = np.clip(start - len(bos), 0, length)
    end = np.clip(start + count - len(bos), 0, length)
    tokens, _ = examples.gather(field, record, begin, end - begin)
    place = ragged_starts(count)
    if not bos and not eos:
        return tokens
    flat = np.full(int(count.sum()), eos[0] if eos else 0, np.int32)
    flat[ragged_index(place + begin - (start - len(bos)), end - begin)] = tokens
    if bos:
        flat[place[start == 0]] = bos[0]
    return flat
