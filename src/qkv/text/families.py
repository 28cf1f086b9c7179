"""What the older tokenizer files leave unsaid, as a table: per family, its special tokens, template and layout.

A `tokenizer.json` says all of this itself and never comes here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BERT = {"pad": "[PAD]", "unknown": "[UNK]", "classify": "[CLS]", "separator": "[SEP]", "mask": "[MASK]"}
FAIRSEQ = {
    "start": "<s>",
    "pad": "<pad>",
    "end": "</s>",
    "unknown": "<unk>",
    "mask": "<mask>",
    "classify": "<s>",
    "separator": "</s>",
}
MBART = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
MBART50 = (
    MBART + " "
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE "
    "ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)


@dataclass(frozen=True)
class Family:
    """One family of tokenizers; `settings` stand in for keys that a folder's tokenizer_config.json does not have."""

    spellings: Mapping[str, str]  # role -> special token
    template: str = "none"
    # "as-is": ids are places in the SentencePiece file. "fairseq": <s> <pad> </s> <unk>, then the file from its fourth
    # piece on, then the languages, then <mask>.
    layout: str = "as-is"
    languages: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "bert": Family(BERT, "bert", settings={"do_lower_case": True}),
    "gpt2": Family({"start": "<|endoftext|>", "end": "<|endoftext|>"}),
    "roberta": Family(FAIRSEQ, "roberta"),
    "t5": Family({"pad": "<pad>", "end": "</s>", "unknown": "<unk>"}, "end", settings={"extra_ids": 100}),
    "mt5": Family({"pad": "<pad>", "end": "</s>", "unknown": "<unk>"}, "end"),  # its sentinels are in the file
    "albert": Family(BERT, "bert", settings={"do_lower_case": True, "keep_accents": False}),
    "xlmroberta": Family(FAIRSEQ, "roberta", "fairseq"),
    "mbart": Family(FAIRSEQ, "end-language", "fairseq", tuple(MBART.split()), {"src_lang": "en_XX"}),
    "mbart50": Family(FAIRSEQ, "language-end", "fairseq", tuple(MBART50.split()), {"src_lang": "en_XX"}),
    "llama": Family({"start": "<s>", "end": "</s>", "unknown": "<unk>"}, settings={"add_bos_token": True}),
    "gemma": Family(
        {"start": "<bos>", "end": "<eos>", "pad": "<pad>", "unknown": "<unk>"}, settings={"add_bos_token": True}
    ),
    "marian": Family({"end": "</s>", "unknown": "<unk>", "pad": "<pad>"}, "end"),
    "plain": Family({}),
}
SAME = {
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


def find(config: Mapping[str, Any], model_config: Mapping[str, Any], otherwise: str) -> Family:
    """The family that a folder's files name, by the tokenizer's class or else the model's type; else `otherwise`."""
    for name in (config.get("tokenizer_class"), model_config.get("tokenizer_class"), model_config.get("model_type")):
        if not isinstance(name, str):
            continue
        short = name.removesuffix("Fast").removesuffix("Tokenizer").lower().replace("-", "").replace("_", "")
        short = SAME.get(short, short)
        if short in FAMILIES:
            return FAMILIES[short]
    return FAMILIES[otherwise]
