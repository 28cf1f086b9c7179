"""Several texts in one row, told apart by their segment numbers, say what each says alone in transformers.

That is where offsets of positions (RoBERTa, BART), buckets of distances (T5), windows, and heads that read a first
or last token would go wrong, and where one text could leak into another.
"""

import pytest
import torch
from reference_models import FLOAT64, Pair, apart, cases, packed, pair
from torch import Tensor
from torch.nn import functional as F

from qkv.blocks import Inputs

ROWS = [[0, 1], [2]]
"""Which texts lie in which row: the second row has one text and more padding."""


def lay(texts: list[Tensor], pad: int) -> tuple[Tensor, Tensor]:
    """Texts in rows as ROWS has it, and their segments."""
    rows = [packed([texts[i] for i in row], pad) for row in ROWS]
    longest = max(ids.shape[1] for ids, _ in rows)
    ids = torch.cat([F.pad(ids, (0, longest - ids.shape[1]), value=pad) for ids, _ in rows])
    segment = torch.cat([F.pad(segment, (0, longest - segment.shape[1])) for _, segment in rows])
    return ids, segment


def answers(two: Pair, said: Tensor, segment: Tensor) -> list[Tensor]:
    """The answer to each text, in the order of the texts."""
    out: dict[int, Tensor] = {}
    for r, row in enumerate(ROWS):
        for e, text in enumerate(row):
            out[text] = said[r, e] if two.pooled else said[r, segment[r] == e + 1]
    return [out[i] for i in range(len(out))]


@pytest.mark.parametrize("case", cases())
@torch.no_grad()
def test_texts_in_one_row_say_what_they_say_alone(case):
    two = pair(case)
    network = two.ours().network
    ids, segment = lay([text.ids for text in two.texts], two.pad)
    if two.seq2seq:
        source, source_segment = lay([text.source for text in two.texts], two.pad)
        said = network(
            Inputs(
                ids,
                document_ids=segment,
                source=Inputs(source, document_ids=source_segment, max_documents=2),
                max_documents=2,
            )
        )
    elif two.texts[0].types is not None:
        said = network(
            Inputs(
                ids, document_ids=segment, token_type_ids=lay([text.types for text in two.texts], 0)[0], max_documents=2
            )
        )
    else:
        said = network(Inputs(ids, document_ids=segment, max_documents=2))
    for ours, theirs in zip(answers(two, said, segment), two.truth, strict=True):
        assert apart(ours, theirs) < FLOAT64


@pytest.mark.parametrize("case", ["bert:BertForMaskedLM", "gpt2:GPT2LMHeadModel", "t5:T5ForConditionalGeneration"])
@torch.no_grad()
def test_one_segment_number_for_two_texts_mixes_them(case):
    """The control: without the right numbers the row is one long text, and the check above would fail."""
    two = pair(case)
    network = two.ours().network
    ids, segment = lay([text.ids for text in two.texts], two.pad)
    one = (segment != 0).long()
    if two.seq2seq:
        source, source_segment = lay([text.source for text in two.texts], two.pad)
        said = network(Inputs(ids, document_ids=one, source=Inputs(source, document_ids=(source_segment != 0).long())))
    else:
        said = network(Inputs(ids, document_ids=one))
    assert apart(answers(two, said, segment)[1], two.truth[1]) > 1e-3
