"""Published models as data. The table of an architecture is used for both import and export.

architecture   the classes of tables, and the functions that convert configs and weights with them
common_rows    rows that several architectures share
presets        the configs of published models
summary        the parameters, FLOPs and memory of a model
image_rows     rows of models of images
bert  distilbert  modernbert  esm  gpt2  gpt_neox  llama  gemma2  t5  bart  whisper  vit  clip
               one table for each architecture
"""

from typing import TYPE_CHECKING

from qkv.errors import QkvError, suggest_name
from qkv.lazy import lazy_names
from qkv.tables import OpenTable

if TYPE_CHECKING:
    from qkv.models.tables.architecture import (
        Architecture,
        HeadTable,
        UnsupportedConfigError,
        map_parameters,
        read_config,
        write_config,
        write_weights,
    )
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "architecture": "Architecture HeadTable UnsupportedConfigError map_parameters read_config write_config "
            "write_weights"
        },
    )

ARCHITECTURES: "OpenTable[Architecture]" = OpenTable(
    "architecture",
    lazy={
        "bert": "qkv.models.tables.bert:BERT",
        "roberta": "qkv.models.tables.bert:ROBERTA",
        "distilbert": "qkv.models.tables.distilbert:DISTILBERT",
        "albert": "qkv.models.tables.bert:ALBERT",
        "electra": "qkv.models.tables.bert:ELECTRA",
        "esm": "qkv.models.tables.esm:ESM",
        "modernbert": "qkv.models.tables.modernbert:MODERNBERT",
        "gpt2": "qkv.models.tables.gpt2:GPT2",
        "gpt_neox": "qkv.models.tables.gpt_neox:GPT_NEOX",
        "llama": "qkv.models.tables.llama:LLAMA",
        "mistral": "qkv.models.tables.llama:MISTRAL",
        "qwen2": "qkv.models.tables.llama:QWEN2",
        "qwen3": "qkv.models.tables.llama:QWEN3",
        "mixtral": "qkv.models.tables.mixture:MIXTRAL",
        "qwen3_moe": "qkv.models.tables.mixture:QWEN3_MOE",
        "gemma2": "qkv.models.tables.gemma2:GEMMA2",
        "t5": "qkv.models.tables.t5:T5",
        "mt5": "qkv.models.tables.t5:MT5",
        "bart": "qkv.models.tables.bart:BART",
        "mbart": "qkv.models.tables.bart:MBART",
        "marian": "qkv.models.tables.bart:MARIAN",
        "whisper": "qkv.models.tables.whisper:WHISPER",
        "vit": "qkv.models.tables.vit:VIT",
        "clip_vision_model": "qkv.models.tables.clip:VISION",
        "clip_text_model": "qkv.models.tables.clip:TEXT",
    },
)


def find_architecture(name: str) -> "Architecture":
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
