"""A table of what the older tokenizer files do not contain: the special tokens, template and layout of each family.

A `tokenizer.json` contains all of this and does not need the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
FAIRSEQ_TOKENS = {
    "bos": "<s>",
    "pad": "<pad>",
    "eos": "</s>",
    "unk": "<unk>",
    "mask": "<mask>",
    "cls": "<s>",
    "sep": "</s>",
}
MBART_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
MBART50_LANGUAGES = (
    MBART_LANGUAGES + " "
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE "
    "ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)


@dataclass(frozen=True)
class TokenizerFamily:
    """A family of tokenizers. `settings` are the defaults for keys of tokenizer_config.json."""

    special_tokens: Mapping[str, str]  # role → spelling
    template: str = "none"
    # "as-is": a piece's id is its index in the SentencePiece file. "fairseq": <s> <pad> </s> <unk>, then the pieces of
    # the file from the fourth on, then the languages, then <mask>.
    layout: str = "as-is"
    languages: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, TokenizerFamily] = {
    "bert": TokenizerFamily(BERT_TOKENS, "bert", settings={"do_lower_case": True}),
    "gpt2": TokenizerFamily({"bos": "<|endoftext|>", "eos": "<|endoftext|>"}),
    "roberta": TokenizerFamily(FAIRSEQ_TOKENS, "roberta"),
    "t5": TokenizerFamily({"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}, "eos", settings={"extra_ids": 100}),
    "mt5": TokenizerFamily({"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}, "eos"),  # its file contains the sentinels
    "albert": TokenizerFamily(BERT_TOKENS, "bert", settings={"do_lower_case": True, "keep_accents": False}),
    "xlmroberta": TokenizerFamily(FAIRSEQ_TOKENS, "roberta", "fairseq"),
    "mbart": TokenizerFamily(
        FAIRSEQ_TOKENS, "eos-language", "fairseq", tuple(MBART_LANGUAGES.split()), {"src_lang": "en_XX"}
    ),
    "mbart50": TokenizerFamily(
        FAIRSEQ_TOKENS, "language-eos", "fairseq", tuple(MBART50_LANGUAGES.split()), {"src_lang": "en_XX"}
    ),
    "llama": TokenizerFamily({"bos": "<s>", "eos": "</s>", "unk": "<unk>"}, settings={"add_bos_token": True}),
    "gemma": TokenizerFamily(
        {"bos": "<bos>", "eos": "<eos>", "pad": "<pad>", "unk": "<unk>"}, settings={"add_bos_token": True}
    ),
    "marian": TokenizerFamily({"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}, "eos"),
    "esm": TokenizerFamily({role: f"<{role}>" for role in ("cls", "pad", "eos", "unk", "mask")}, "cls-eos"),
    "plain": TokenizerFamily({}),
}
FAMILY_ALIASES = {
    "distilbert": "bert",
    "electra": "bert",
    "mobilebert": "bert",
    "bart": "roberta",
    "longformer": "roberta",
    "opt": "gpt2",
    "gemma2": "gemma",
    "mistral": "llama",
    "mixtral": "llama",
    "codellama": "llama",
}


def find_family(config: Mapping[str, Any], model_config: Mapping[str, Any], default: str) -> TokenizerFamily:
    """The family named by the tokenizer's class or the model's type in a folder's files; else `default`."""
    for name in (config.get("tokenizer_class"), model_config.get("tokenizer_class"), model_config.get("model_type")):
        if not isinstance(name, str):
            continue
        short = name.removesuffix("Fast").removesuffix("Tokenizer").lower().replace("-", "").replace("_", "")
        short = FAMILY_ALIASES.get(short, short)
        if short in FAMILIES:
            return FAMILIES[short]
    return FAMILIES[default]
