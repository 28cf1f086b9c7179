"""Contact maps from attention, against those of transformers."""

import pytest
import torch

import qkv
from qkv.errors import UsageError
from qkv.inside import ContactMap, map_contacts, read_contact_weights
from qkv.text import Tokenizer
from qkv.text.residues import ESM_TOKENS

transformers = pytest.importorskip("transformers")
PROTEIN = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"


@pytest.fixture(scope="module")
def esm(tmp_path_factory):
    """An ESM-2 with random weights, and its folder."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.EsmConfig(
        vocab_size=33, position_embedding_type="rotary", token_dropout=True, mask_token_id=32, pad_token_id=1, **sizes
    )
    config._attn_implementation = "eager"  # other implementations do not return attention weights
    model = transformers.EsmForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("esm")
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(ESM_TOKENS))
    return model, folder


def test_contacts_equal_those_of_transformers(esm):
    theirs, folder = esm
    ours = qkv.load(folder)
    found = map_contacts(ours.network, ours.tokenizer, PROTEIN, read_contact_weights(folder))
    ids = torch.tensor([ours.tokenizer.encode(PROTEIN)])
    with torch.no_grad():
        expected = theirs.predict_contacts(ids, torch.ones_like(ids))[0]
    assert found.are_probabilities
    assert found.sequence == PROTEIN
    assert torch.allclose(found.scores, expected, atol=1e-5)
    assert expected.std() > 1e-3, "a control: the map is not flat"
    plain = map_contacts(ours.network, ours.tokenizer, PROTEIN, heads=[(1, 0)])
    assert not plain.are_probabilities
    assert torch.allclose(plain.scores.sum(-1), torch.zeros(len(PROTEIN)), atol=1e-4), "the correction removes means"


def test_the_top_pairs_are_far_apart_and_their_precision_is_counted():
    scores = torch.zeros(30, 30)
    scores[0, 29] = scores[2, 27] = 1.0
    scores[3, 5] = 9.0
    found = ContactMap("A" * 30, scores, are_probabilities=False)
    assert found.top(2)[0] == (1, 30, 1.0)
    assert found.top(1, min_separation=1)[0][:2] == (4, 6)
    assert found.precision({(30, 1), (7, 9)}, count=2) == 0.5


def test_what_has_no_contacts_is_refused(esm, tmp_path):
    _, folder = esm
    model = qkv.load(folder)
    with pytest.raises(UsageError, match="fewer than two residues"):
        map_contacts(model.network, model.tokenizer, "M")
    with pytest.raises(UsageError, match="no safetensors file there has a contact head"):
        read_contact_weights(tmp_path)
    words = Tokenizer.train("byte", iter([]), 300)
    with pytest.raises(UsageError, match="need an encoder of proteins"):
        map_contacts(model.network, words, PROTEIN)
    weights = read_contact_weights(folder)
    with pytest.raises(UsageError, match="3 weights, but the model has 4 heads"):
        map_contacts(model.network, model.tokenizer, PROTEIN, weights._replace(weight=weights.weight[:3]))
