"""Tables of renamed recipe keys, recipe values and `config.json` fields, for error messages.

Old names are not accepted: a recipe, run folder or model folder that has one is refused with an error that gives the
new name.
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
        "key": "records_key",
        "scale": "max_score",
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
    "head": {"unit": "normalize", "sentence_outputs": "next_sentence_classes"},
}
"""Old name → new name, for each section of a recipe, then for a config and its parts."""

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
    "stack.embedding_norm": {"added": "extra", "first": "replaces_first"},
}
"""Recipe key or config field → its renamed values, old → new."""

_STACKS: dict[str, tuple[str, ...]] = {"encoder": ("stack",), "decoder": ("stack",), "head": ("head",)}
_NESTED: dict[str, dict[str, tuple[str, ...]]] = {
    "recipe": {"model": ("model", "stack"), **{name: (name,) for name in ("data", "tokenizer", "objective", "train")}},
    "model": _STACKS,
    "config": _STACKS,
    "stack": {"rotary_scaling": ("rotary_scaling",)},
}
"""For each kind of table, the tables inside it, each with the parts of RENAMED that apply to its names."""


def find_old_names(values: Mapping[str, Any], *parts: str, path: str = "") -> list[str]:
    """Find all old names and values in a table and in the tables inside it.

    `parts` is "recipe" or "config" for the outermost table.

    >>> find_old_names({"train": {"clip": 1.0}, "model": {"encoder": {"window": 8}}}, "recipe")
    ['train.clip → max_grad_norm', 'model.encoder.window → sliding_window']
    """
    found: list[str] = []
    for name, value in values.items():
        key = f"{path}.{name}" if path else name
        found += [f"{key} → {RENAMED[part][name]}" for part in parts if name in RENAMED.get(part, {})][:1]
        for part in parts:
            if isinstance(value, str) and value in RENAMED_VALUES.get(f"{part}.{name}", {}):
                found.append(f'{key} = "{value}" → "{RENAMED_VALUES[f"{part}.{name}"][value]}"')
            if isinstance(value, dict) and name in _NESTED.get(part, {}):
                found += find_old_names(value, *_NESTED[part][name], path=key)
    return found


def describe_old_names(where: str, found: list[str]) -> str:
    """The error message for a file that has old names."""
    return (
        f"{where}: written for an older qkv; these names have changed:\n  "
        + "\n  ".join(found)
        + "\nReplace them by the new names"
    )
