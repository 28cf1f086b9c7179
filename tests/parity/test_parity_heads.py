"""Every architecture and every head of its table says what transformers says: alone, in batches, padded on either side.

The reference is what transformers says of each text alone, in float64. That is the strictest one: a batch, a side of
padding or a packed row that changed anything would show. Where transformers can be given the same padded batch, ours
is held against that too.
"""

import pytest
import torch
from reference_models import FLOAT32, FLOAT64, Pair, apart, cases, lookup, padded, pair
from torch import Tensor

from qkv.blocks import Inputs
from qkv.blocks.head import POOLED_KINDS
from qkv.models.tables import ARCHITECTURES

MOVED_BY_PADDING = ("bart", "mbart", "marian")
"""On the left it counts as positions here, and transformers cannot be told otherwise."""


def comparable(case: str, side: str) -> bool:
    """Whether transformers gives padding on that side no part in its answer: then it is a reference for a batch."""
    variant, table = lookup(case)
    pool = table.fields.get("pool", "first")
    pool = pool if isinstance(pool, str) else pool.read(variant.settings)
    reads_place_0 = (
        table.fields.get("kind") in POOLED_KINDS and pool == "first"
    )  # on the left, a padding token's vector
    return side == "right" or not (reads_place_0 or variant.architecture in MOVED_BY_PADDING)


def real(rows: Tensor, mask: Tensor, pooled: bool) -> Tensor:
    """The answers at real positions; all answers of a head that reads whole texts."""
    return rows if pooled else rows[mask == 1]


def ours_padded(two: Pair, side: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Our answer to all texts in one padded batch, the mask of what the head reads, and the batch for transformers."""
    ids, mask = padded([text.ids for text in two.texts], two.pad, side)
    model = two.ours(dtype)
    if two.seq2seq:
        source, source_mask = padded([text.source for text in two.texts], two.pad, side)
        with torch.no_grad():
            said = model.network(Inputs(ids, document_ids=mask, source=Inputs(source, document_ids=source_mask)))
        theirs = {
            "input_ids": source,
            "attention_mask": source_mask,
            "decoder_input_ids": ids,
            "decoder_attention_mask": mask,
        }
        return said, mask, theirs
    theirs = {"input_ids": ids, "attention_mask": mask}
    types = None
    if two.texts[0].types is not None:
        types, _ = padded([text.types for text in two.texts], 0, side)
        theirs["token_type_ids"] = types
    return model.logits(ids, mask=mask, token_type_ids=types), mask, theirs


def positions(mask: Tensor, two: Pair) -> dict[str, Tensor]:
    """Told where tokens stand, transformers does not count padding; T5 needs no telling, RoBERTa and ESM find out."""
    if two.variant.architecture in ("roberta", "esm", "t5", "mt5"):
        return {}
    return {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("case", cases())
def test_a_text_alone(case, dtype):
    two, limit = pair(case), FLOAT32 if dtype == torch.float32 else FLOAT64
    for text in two.texts:
        source = None if text.source is None else text.source[None]
        types = None if text.types is None else text.types[None]
        said = two.ours(dtype).logits(text.ids[None], source=source, token_type_ids=types)
        assert apart(said[0], two.ask_one(text, dtype)) < limit


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("case", cases())
def test_a_padded_batch_says_what_each_text_says_alone(case, side):
    two = pair(case)
    said, mask, _ = ours_padded(two, side, torch.float64)
    expected = torch.stack(two.truth) if two.pooled else torch.cat(two.truth)
    assert apart(real(said, mask, two.pooled), expected) < FLOAT64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("case", "side"), [(case, side) for case in cases() for side in ("right", "left") if comparable(case, side)]
)
def test_a_padded_batch_says_what_transformers_says_of_it(case, side, dtype):
    two = pair(case)
    said, mask, theirs = ours_padded(two, side, dtype)
    expected = two.ask(dtype, **theirs, **(positions(mask, two) if side == "left" else {}))
    limit = FLOAT32 if dtype == torch.float32 else FLOAT64
    assert apart(real(said, mask, two.pooled), real(expected, mask, two.pooled)) < limit


@pytest.mark.parametrize("case", cases(kinds=("none",), families=("seq2seq",)))
def test_the_vectors_of_the_encoder(case):
    two = pair(case)
    for text in two.texts:
        with torch.no_grad():
            said = two.theirs(input_ids=text.source[None], decoder_input_ids=text.ids[None])
        ours = two.ours(torch.float32).hidden(text.source[None])
        assert apart(ours, said.encoder_last_hidden_state) < FLOAT32


@pytest.mark.parametrize("case", [case for case in cases() if case.endswith("ForPreTraining") and "lectra" not in case])
def test_the_second_head_on_whole_texts(case):
    """BERT's next-sentence head and ALBERT's sentence-order head."""
    two = pair(case)
    network = two.ours(torch.float32).network
    for text in two.texts:
        with torch.no_grad():
            said = two.theirs(input_ids=text.ids[None], token_type_ids=text.types[None])
            ours = network.head.sentence(*network.hidden(Inputs(text.ids[None], token_type_ids=text.types[None])))
        theirs = said.get("seq_relationship_logits", said.get("sop_logits"))
        assert apart(ours, theirs) < FLOAT32


@pytest.mark.parametrize("case", [case for case in cases() if "MultipleChoice" in case])
def test_choices_of_one_question(case):
    """Ids (B, choices, T), padded, give one number for each choice."""
    two = pair(case)
    ids, mask = padded([text.ids for text in two.texts], two.pad, "right")
    ids, mask = ids.repeat(2, 1, 1), mask.repeat(2, 1, 1)
    ids[1, :, 0] = 5
    said = two.ours(torch.float32).logits(ids, mask=mask)
    with torch.no_grad():
        theirs = two.theirs(input_ids=ids, attention_mask=mask).logits
    assert said.shape == (2, 3)
    assert apart(said, theirs) < FLOAT32


def test_every_architecture_and_head_is_tried():
    """A new table without a variant here would otherwise pass unseen."""
    tried = {case.split(":")[1] for case in cases()}
    tried_elsewhere = ("vit", "clip_vision_model", "clip_text_model", "whisper")
    of_texts = (row for name, row in ARCHITECTURES.items() if name not in tried_elsewhere)
    assert {table.class_name for architecture in of_texts for table in architecture.heads} == tried
