"""AntiBERTy, a published BERT of antibodies: equal to its own package, and it tells antibodies from shuffled ones."""

import random
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv.inside import score_substitutions

HEAVY = (
    "EVQLVQSGPEVKKPGTSVKVSCKASGFTFMSSAVQWVRQARGQRLEWIGWIVIGSGNTNY"
    "AQKFQERVTITRDMSTSTAYMELSSLRSEDTAVYYCAAPYCSSISCNDGFDIWGQGTMVTVS"
)
LIGHT = (
    "DVVMTQTPFSLPVSLGDQASISCRSSQSLVHSNGNTYLHWYLQKPGQSPKLLIYKVSNRFSGVPDRFSGSGSGTDFTLKISRVEAEDLGVYFCSQSTHVPYTFGGGTKLEIK"
)


@pytest.fixture(scope="module")
def package() -> Path:
    found = find_spec("antiberty")
    if found is None or found.origin is None:
        pytest.skip("the package antiberty (0.1.3), which holds the published weights, is not installed")
    return Path(found.origin).parent


@pytest.fixture(scope="module")
def folder(package, tmp_path_factory) -> Path:
    """The published folder with its weights as safetensors, and its vocabulary beside them."""
    published, out = package / "trained_models" / "AntiBERTy_md_smooth", tmp_path_factory.mktemp("antiberty")
    state = torch.load(published / "pytorch_model.bin", weights_only=True, map_location="cpu")
    save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, out / "model.safetensors")
    shutil.copy(published / "config.json", out)
    shutil.copy(package / "trained_models" / "vocab.txt", out)
    return out


@pytest.fixture(scope="module")
def model(folder) -> qkv.Model:
    return qkv.load(folder)


def test_logits_equal_those_of_its_own_package(folder, model, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from antiberty.model.AntiBERTy import AntiBERTy

    monkeypatch.setattr(AntiBERTy, "init_weights", lambda self: None)  # written for an older transformers
    theirs = AntiBERTy(transformers.BertConfig.from_pretrained(folder)).eval()
    missing, unexpected = theirs.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert (missing, unexpected) == ([], ["bert.embeddings.position_ids"])
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=False)
    for sequence in (HEAVY, LIGHT, HEAVY.replace("WI", "[MASK]", 1)):
        pieces = sequence.replace("[MASK]", "_")
        spaced = " ".join("[MASK]" if letter == "_" else letter for letter in pieces)
        ids = torch.tensor([tokenizer(spaced).input_ids])
        assert model.tokenizer.encode(sequence, parse_special_tokens=True) == ids[0].tolist()
        with torch.no_grad():
            expected = theirs(input_ids=ids, attention_mask=torch.ones_like(ids)).prediction_logits
        assert (model.logits(ids) - expected).abs().max() < 1e-4


def test_antibodies_are_likelier_than_shuffled_ones(model):
    shuffled = "".join(random.Random(0).sample(LIGHT, len(LIGHT)))
    own, other = (score_substitutions(model.network, model.tokenizer, one) for one in (LIGHT, shuffled))
    assert own.pseudo_perplexity < 3 < 10 < other.pseudo_perplexity


def test_a_masked_residue_is_filled_in(model):
    """The framework of an antibody hardly varies: the residue that is there, or one like it, is the best."""
    for number in (36, 47, 95):  # W of framework 2, W of IGWI, C of the disulphide bond
        masked = f"{HEAVY[: number - 1]}[MASK]{HEAVY[number:]}"
        assert model.fill(masked).text == HEAVY
