"""Old names are gone, new names exist, and the error for a recipe or config with an old name gives the new one."""

from dataclasses import fields

import pytest

from qkv.blocks import HeadConfig, RotaryScaling, StackConfig
from qkv.errors import QkvError, UsageError
from qkv.models import Config
from qkv.renamed import RENAMED, RENAMED_VALUES
from qkv.store.config_json import parse_config
from qkv.train.recipe.recipe_file import loads, read
from qkv.train.recipe.schema import Recipe

PARTS = {"config": Config, "stack": StackConfig, "head": HeadConfig, "rotary_scaling": RotaryScaling}


@pytest.mark.parametrize("part", RENAMED)
def test_new_names_exist_and_old_ones_do_not(part: str) -> None:
    known = {field.name for field in fields(PARTS[part] if part in PARTS else type(getattr(Recipe(), part)))}
    assert set(RENAMED[part].values()) <= known
    assert not set(RENAMED[part]) & known


@pytest.mark.parametrize("key", RENAMED_VALUES)
def test_every_old_value_is_refused_with_the_new_one(key: str) -> None:
    section, name = key.replace("stack", "model").split(".")
    for old, new in RENAMED_VALUES[key].items():
        with pytest.raises(UsageError, match=f'{section}.{name} = "{old}" → "{new}"'):
            loads(f'[{section}]\n{name} = "{old}"\n')
        loads(f'[{section}]\n{name} = "{new}"\n')


def test_the_error_for_a_recipe_lists_all_new_names() -> None:
    with pytest.raises(UsageError) as error:
        loads("[train]\nclip = 1.0\nlr = 1.0\n[model]\nwindow = 3\n[model.encoder]\ntypes = 2\n", "runs/a/recipe.toml")
    message = str(error.value)
    assert message.startswith("runs/a/recipe.toml: ")
    for line in ("train.clip → max_grad_norm", "model.window → sliding_window", "model.encoder.types → token_types"):
        assert line in message
    assert "train.lr" not in message


def test_the_error_for_an_override_has_the_new_key() -> None:
    with pytest.raises(UsageError, match=r"the command line: (.|\n)*train\.beam → eval_beam"):
        read("dates", ["train.beam=4"])


def test_the_error_for_a_config_lists_the_new_fields() -> None:
    decoder = {"vocab": 9, "embedding_norm": "first", "rotary_scaling": {"kind": "linear", "low": 1.0}}
    values = {"version": 1, "pad": 0, "decoder": decoder}
    with pytest.raises(QkvError) as error:
        parse_config(values, "models/a/config.json")
    for line in ("pad → pad_token_id", "decoder.vocab → vocab_size", "decoder.rotary_scaling.low → low_freq_factor"):
        assert line in str(error.value)
    assert 'decoder.embedding_norm = "first" → "replaces_first"' in str(error.value)
