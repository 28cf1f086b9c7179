"""Scores of substitutions against the obvious: one masked copy of the protein at a time."""

import math
from dataclasses import replace

import pytest
import torch

import qkv
from qkv.errors import UsageError
from qkv.inside import score_substitutions
from qkv.models.tables.presets import find_preset
from qkv.text import Tokenizer

PROTEIN = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"


@pytest.fixture(scope="module")
def model() -> qkv.Model:
    config = find_preset("esm2-8m", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    stack = replace(config.stack, init_std=0.5)
    return qkv.new(replace(config, encoder=stack), tokenizer=Tokenizer.for_proteins(), seed=1)


def test_each_score_is_that_of_one_masked_copy(model):
    found = score_substitutions(model.network, model.tokenizer, PROTEIN)
    assert (found.sequence, found.scores.shape) == (PROTEIN, (len(PROTEIN), 20))
    for number in (1, 7, len(PROTEIN)):
        old = PROTEIN[number - 1]
        text = f"{PROTEIN[: number - 1]}<mask>{PROTEIN[number:]}"
        ids = model.tokenizer.encode(text, parse_special_tokens=True)
        log_probs = model.logits(torch.tensor([ids]))[0, number].log_softmax(-1)
        ids_of = model.tokenizer.backend.token_to_id
        for new in "AW":
            expected = log_probs[ids_of(new)] - log_probs[ids_of(old)]
            assert found.of(f"{old}{number}{new}") == pytest.approx(float(expected), abs=1e-4)
    assert found.of("M1M") == 0
    assert found.pseudo_perplexity > 1


def test_wrong_mutations_and_models_are_refused(model):
    found = score_substitutions(model.network, model.tokenizer, PROTEIN)
    for wrong in ("K1M", "M0K", "M99K", "M1", "M1!"):
        with pytest.raises(UsageError, match="is not a mutation of this protein"):
            found.of(wrong)
    with pytest.raises(UsageError, match="no residue"):
        score_substitutions(model.network, model.tokenizer, "XXBZ")
    words = Tokenizer.train("byte", iter([]), 300, special_tokens=["pad", "mask"])
    with pytest.raises(UsageError, match="need a masked language model of proteins"):
        score_substitutions(model.network, words, PROTEIN)


def test_the_page_has_them(model):
    document = model.look(PROTEIN).document
    shown = document["substitutions"]
    assert "substitutions" in document["views"]
    assert (shown["sequence"], shown["scores"]["shape"]) == (PROTEIN, [20, len(PROTEIN)])
    assert math.isfinite(shown["pseudo_perplexity"])
