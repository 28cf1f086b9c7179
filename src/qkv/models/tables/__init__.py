"""Published models as data. The table of an architecture is used for both import and export.

architecture   the classes of tables, and the functions that convert configs and weights with them
common_rows    rows that several architectures share
presets        the configs of published models
summary        the parameters, FLOPs and memory of a model
bert  distilbert  modernbert  gpt2  gpt_neox  llama  t5  bart      one table for each architecture
"""

from qkv.errors import QkvError, suggest_name
from qkv.models.tables.architecture import (
    Architecture,
    HeadTable,
    UnsupportedConfigError,
    map_parameters,
    read_config,
    write_config,
    write_weights,
)
from qkv.models.tables.bart import BART, MARIAN, MBART
from qkv.models.tables.bert import ALBERT, BERT, ELECTRA, ROBERTA
from qkv.models.tables.distilbert import DISTILBERT
from qkv.models.tables.gpt2 import GPT2
from qkv.models.tables.gpt_neox import GPT_NEOX
from qkv.models.tables.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from qkv.models.tables.modernbert import MODERNBERT
from qkv.models.tables.t5 import MT5, T5

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        BERT,
        ROBERTA,
        DISTILBERT,
        ALBERT,
        ELECTRA,
        MODERNBERT,
        GPT2,
        GPT_NEOX,
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        T5,
        MT5,
        BART,
        MBART,
        MARIAN,
    )
}


def find_architecture(name: str) -> Architecture:
    """Return the table of a `model_type`."""
    if name not in ARCHITECTURES:
        raise QkvError(f"config.json: unknown architecture {name!r}; {suggest_name(name, ARCHITECTURES)}")
    return ARCHITECTURES[name]


__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "HeadTable",
    "UnsupportedConfigError",
    "find_architecture",
    "map_parameters",
    "read_config",
    "write_config",
    "write_weights",
]
