"""Names that were changed: keys and values of recipes, and fields of `config.json`. They serve error messages only.

Nothing is read under an old name. A recipe, run folder or model folder that has one is refused with the new name.
"""

from collections.abc import Mapping
from typing import Any

RENAMED: dict[str, dict[str, str]] = {
    "data": {
        "valid_share": "valid_fraction",
        "valid_from": "valid_split_by",
        "examples": "epoch_examples",
        "length": "max_length",
        "source_length": "max_source_length",
        "most_bad": "max_invalid_fraction",
    },
    "tokenizer": {"size": "vocab_size", "min_count": "min_frequency"},
    "model": {"shared_embedding": "share_embeddings", "tied": "tie_embeddings", "lora_on": "lora_targets"},
    "objective": {
        "share": "mask_prob",
        "mean_span": "mean_span_length",
        "whole_words": "whole_word_masking",
        "permute": "permute_sentences",
        "shift": "random_offset",
        "framed": "add_bos_eos",
        "pieces": "label_subwords",
    },
    "train": {
        "micro_batch": "micro_batch_tokens",
        "decay": "decay_parameters",
        "clip": "max_grad_norm",
        "decay_share": "decay_fraction",
        "stream": "residual_dtype",
        "recompute": "gradient_checkpointing",
        "threads": "num_threads",
        "workers": "num_workers",
        "shard": "parallel",
        "beam": "eval_beam",
        "track": "trackers",
        "keep": "keep_checkpoints",
        "ema": "ema_decay",
        "average": "average_checkpoints",
    },
    "config": {
        "shared_embedding": "share_embeddings",
        "pad": "pad_token_id",
        "start": "decoder_start_token_id",
        "end": "eos_token_ids",
    },
    "stack": {
        "vocab": "vocab_size",
        "head_width": "head_dim",
        "distinct_layers": "num_layer_groups",
        "rotary_base_windowed": "rotary_base_sliding",
        "rotary_share": "rotary_fraction",
        "buckets": "relative_buckets",
        "bucket_distance": "relative_max_distance",
        "window": "sliding_window",
        "windowed_layers": "sliding_window_layers",
        "norm_place": "norm_placement",
        "types": "token_types",
    },
    "rotary_scaling": {
        "low": "low_freq_factor",
        "high": "high_freq_factor",
        "original_positions": "original_max_positions",
    },
    "head": {"unit": "normalize"},
}
"""Old name → new name: keys of a recipe by section, then fields of a config and of its parts."""

RENAMED_VALUES: dict[str, dict[str, str]] = {
    "data.too_long": {"cut": "truncate"},
    "objective.kind": {
        "pairs": "seq2seq",
        "next_token": "causal_lm",
        "masked": "masked_lm",
        "masked_sentences": "next_sentence",
        "spans": "span_corruption",
        "denoise": "denoising",
        "classify": "classification",
        "tags": "tagging",
        "answers": "question_answering",
        "contrast": "contrastive",
    },
}
"""Old value → new value, by the recipe's key."""

_STACKS: dict[str, tuple[str, ...]] = {"encoder": ("stack",), "decoder": ("stack",), "head": ("head",)}
_NESTED: dict[str, dict[str, tuple[str, ...]]] = {
    "recipe": {"model": ("model", "stack"), **{name: (name,) for name in ("data", "tokenizer", "objective", "train")}},
    "model": _STACKS,
    "config": _STACKS,
    "stack": {"rotary_scaling": ("rotary_scaling",)},
}
"""Table → the tables inside it, each with the parts of RENAMED that its names are in."""


def find_old_names(values: Mapping[str, Any], *parts: str, path: str = "") -> list[str]:
    """All old names and values in a table and in those inside it. `parts`: "recipe" or "config".

    >>> find_old_names({"train": {"clip": 1.0}, "model": {"encoder": {"window": 8}}}, "recipe")
    ['train.clip → max_grad_norm', 'model.encoder.window → sliding_window']
    """
    found: list[str] = []
    for name, value in values.items():
        key = f"{path}.{name}" if path else name
        found += [f"{key} → {RENAMED[part][name]}" for part in parts if name in RENAMED.get(part, {})][:1]
        if isinstance(value, str) and value in RENAMED_VALUES.get(key, {}):
            found.append(f'{key} = "{value}" → "{RENAMED_VALUES[key][value]}"')
        for part in parts:
            if isinstance(value, dict) and name in _NESTED.get(part, {}):
                found += find_old_names(value, *_NESTED[part][name], path=key)
    return found


def describe_old_names(where: str, found: list[str]) -> str:
    """The error message for a file that has old names."""
    return (
        f"{where}: written for an older qkv, which had other names for these:\n  "
        + "\n  ".join(found)
        + "\nWrite the new names in their place"
    )
