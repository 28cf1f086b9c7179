"""ESM, the encoder of proteins: masked tokens in any batch, and the tokens of a folder, as transformers has them."""

import pytest
import torch
from reference_models import FLOAT32, FLOAT64, apart, packed, padded, pair, transformers

from qkv.blocks import Inputs
from qkv.models.tables.presets import find_preset
from qkv.models.tables.summary import summarise_model
from qkv.text import Tokenizer
from qkv.text.residues import ESM_TOKENS

MASK = 6  # in the settings of the variants
PROTEINS = ["MKTAYIAKQRQISFVKSHFSRQ", "GLLDTFKNLALNAAKSAGVSVLNSLSCKLSKTC", "ABCXUZOW"]


@pytest.fixture(params=["esm", "esm-1b"])
def two(request):
    return pair(f"{request.param}:EsmForMaskedLM")


def masked_texts(two):
    """Texts with no, one and all but one token masked."""
    texts = [text.ids.clone() for text in two.texts]
    texts[0][texts[0] == MASK] = MASK + 1
    texts[1][2] = MASK
    texts[2][1:] = MASK
    return texts


@pytest.mark.parametrize("side", ["right", "left"])
def test_masked_tokens_rescale_their_own_text_only(two, side):
    """Token dropout: a batch that is padded or packed says of each text what transformers says of it alone."""
    texts = masked_texts(two)
    truth = [two.ask(input_ids=ids[None])[0] for ids in texts]
    ids, mask = padded(texts, two.pad, side)
    said = two.ours().logits(ids, mask=mask)
    for row, length, expected in zip(range(3), map(len, texts), truth, strict=True):
        assert apart(said[row][mask[row] == 1], expected) < FLOAT64, length
    ids, numbers = packed(texts, two.pad)
    with torch.no_grad():
        said = two.ours().network(Inputs(ids, document_ids=numbers))
    assert apart(said[numbers > 0], torch.cat(truth)) < FLOAT64
    with torch.no_grad():  # the control: as one document, the fraction of masks is another one
        assert apart(two.ours().network(Inputs(ids))[numbers > 0], torch.cat(truth)) > 1e-3


def test_logits_in_float32(two):
    for ids in masked_texts(two):
        found = two.ours(torch.float32).logits(ids[None])[0]
        assert apart(found, two.ask(torch.float32, input_ids=ids[None])[0]) < min(FLOAT32, 1e-5)


def test_a_document_of_masks_only_is_finite(two):
    assert two.ours().logits(torch.full((1, 4), MASK)).isfinite().all()


def test_the_tokens_of_a_folder(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(ESM_TOKENS))
    theirs = transformers.EsmTokenizer(str(tmp_path / "vocab.txt"))
    ours = Tokenizer.load(tmp_path)
    trained = Tokenizer.for_proteins()
    for text in PROTEINS:
        expected = theirs(text).input_ids
        assert ours.encode(text) == trained.encode(text) == expected
    with_mask = "MKT<mask>YIA"
    assert ours.encode(with_mask, parse_special_tokens=True) == theirs(with_mask).input_ids
    assert ours.encode(*PROTEINS[:2]) == theirs(*PROTEINS[:2]).input_ids
    assert ours.reads_residues
    assert trained.reads_residues
    assert (ours.special_tokens, ours.vocab_size) == (trained.special_tokens, 33)


def test_presets_have_the_sizes_of_their_names():
    millions = {"esm2-8m": 7.5, "esm2-35m": 33.5, "esm2-150m": 148.1, "esm2-650m": 651.0, "esm2-3b": 2839.0}
    for name, expected in millions.items():
        config = find_preset(name)
        assert (config.stack.vocab_size, config.stack.mask_token_id) == (33, ESM_TOKENS.index("<mask>"))
        assert round(summarise_model(config).total / 1e6, 1) == expected, name
