"""Presets and tables agree: what is published reads as the preset, and a preset survives being written and read.

`published_configs.json` has the facts of the models' public config.json files, with the keys that they have there, old
ones too: they are what a folder from the hub will say. BERT and DistilBERT are uncased, "marian" is opus-mt-en-de,
"llama-1.1b" is TinyLlama, and Mistral is v0.1. BART's folder says BartModel, which has no head.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qkv.models import Config
from qkv.models.tables import ARCHITECTURES, presets, read_config, write_config

PUBLIC = sorted(name for name in presets.PRESETS if presets.find_preset(name).architecture)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_preset_survives_writing_and_reading(name):
    config = presets.find_preset(name)
    architecture = ARCHITECTURES[config.architecture]
    theirs, _ = write_config(architecture, config)
    assert read_config(architecture, theirs) == config


def test_only_the_paper_of_2017_has_no_public_layout():
    assert sorted(set(presets.PRESETS) - set(PUBLIC)) == ["transformer-base", "transformer-big"]


PUBLISHED = json.loads((Path(__file__).parent / "published_configs.json").read_text())


def expected(name: str) -> Config:
    """The preset; bert-base-uncased is published without its next-sentence head."""
    config = presets.find_preset(name)
    return replace(config, head=replace(config.head, next_sentence_classes=0)) if name == "bert-base" else config


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_published_reads_as_the_preset(name):
    theirs = PUBLISHED[name]
    assert read_config(ARCHITECTURES[theirs["model_type"]], theirs) == expected(name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_published_is_written_again_with_the_same_facts(name):
    """Where their file and ours have the same key, it has the same value: readers of one can read the other."""
    theirs = PUBLISHED[name]
    ours, _ = write_config(ARCHITECTURES[theirs["model_type"]], expected(name))
    renamed = {"activation_function": "silu"} if name == "marian" else {}  # swish is another name for it
    off = {"rope_scaling", "max_window_layers", "sliding_window", "bos_token_id"}  # said otherwise where they are off
    shared = {key: value for key, value in {**theirs, **renamed}.items() if key in ours and key not in off}
    assert {key: ours[key] for key in shared} == shared
    assert len(shared) > 12
