"""Checks of the values in a `StackConfig`, a `RotaryScaling` and a `HeadConfig`.

These classes call the checks when they are created, so the parameters here have the type `Any`.
"""

from dataclasses import fields
from typing import Any

from qkv.blocks.parts import PARTS, applies
from qkv.values import check


def check_scaling(scaling: Any) -> None:
    """Raise ValueError if a `RotaryScaling` is wrong."""
    check(scaling)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if high <= low:
        raise ValueError(f"high_freq_factor = {high} must be above low_freq_factor = {low}")
    if scaling.beta_fast <= scaling.beta_slow:
        raise ValueError(f"beta_fast = {scaling.beta_fast} must be above beta_slow = {scaling.beta_slow}")
    if scaling.attention_factor and scaling.kind != "yarn":
        raise ValueError(f'attention_factor is for kind = "yarn", not for "{scaling.kind}"; leave it out')


def check_part_names(stack: Any) -> None:
    """Raise ValueError if a `StackConfig` names a part that is not in the table of parts."""
    for slot, table in PARTS.items():
        name = getattr(stack, slot)
        if name not in table:
            raise ValueError(f"{table.describe_unknown(name, slot)}; register parts of your own first (register_part)")


def check_stack_values(stack: Any) -> None:
    """Raise ValueError if a field of a `StackConfig` has a wrong type or lies outside its range."""
    check(stack)
    if any(not 0 <= layer < stack.layers for layer in stack.sliding_window_layers):
        raise ValueError(f"sliding_window_layers = {stack.sliding_window_layers} must lie in 0 … {stack.layers - 1}")
    if not stack.head_dim and stack.width % stack.heads:
        raise ValueError(
            f"width = {stack.width} does not divide into heads = {stack.heads}; "
            "set head_dim, or choose a width that is a multiple of heads"
        )


def check_stack_combinations(stack: Any) -> None:
    """Raise ValueError for fields that exclude each other. Default values of 0 are already replaced."""
    if stack.heads % stack.kv_heads:
        raise ValueError(f"heads = {stack.heads} must be a multiple of kv_heads = {stack.kv_heads}")
    if not 1 <= stack.num_layer_groups <= stack.layers:
        raise ValueError(f"num_layer_groups = {stack.num_layer_groups} must lie in 1 … layers = {stack.layers}")
    if stack.position == "rotary" and (stack.rotary_dim % 2 or not stack.rotary_dim):
        raise ValueError(
            f"head_dim × rotary_fraction = {stack.rotary_dim} must be even and not 0: rotary positions rotate pairs"
        )
    if stack.position in ("sinusoidal", "sinusoidal_split") and (stack.embedding_width or stack.width) % 2:
        name = "embedding_width" if stack.embedding_width else "width"
        raise ValueError(f"{name} = {getattr(stack, name)} must be even: sinusoidal positions come in pairs")
    if stack.position == "t5" and (stack.relative_buckets < 4 or stack.relative_buckets % 2):
        raise ValueError(f"relative_buckets = {stack.relative_buckets} must be even and at least 4")
    if stack.position == "t5" and stack.relative_max_distance <= stack.relative_buckets // 2:
        raise ValueError(
            f"relative_max_distance = {stack.relative_max_distance} must be above half of "
            f"relative_buckets = {stack.relative_buckets}"
        )
    if stack.residual == "parallel" and stack.norm_placement == "post":
        raise ValueError('residual = "parallel" needs norm_placement = "pre" or "sandwich", not "post"')
    if stack.embedding_scale == "unmasked" and stack.mask_token_id is None:
        raise ValueError('embedding_scale = "unmasked" needs mask_token_id, the id of the mask token')
    if stack.experts_per_token > stack.experts:
        raise ValueError(f"experts_per_token = {stack.experts_per_token} must be at most experts = {stack.experts}")
    if stack.value_residual != "none" and (stack.attention, stack.block) != ("softmax", "transformer"):
        raise ValueError(
            f'value_residual = "{stack.value_residual}" needs attention = "softmax" and block = "transformer", which '
            "mix the values of layer 0 with their own; leave it out"
        )
    is_shared = stack.num_layer_groups < stack.layers
    if stack.embedding_norm == "replaces_first" and (stack.norm_placement == "post" or is_shared):
        raise ValueError('embedding_norm = "replaces_first" needs a block 0 that starts with a norm and is not shared')


def check_fields(stack: Any) -> None:
    """Raise ValueError if a field has a value, but none of the chosen parts reads it."""
    for slot, table in PARTS.items():
        chosen = getattr(stack, slot)
        if not isinstance(table[chosen].build, str):
            continue  # a registered part may read any field
        owners: dict[str, list[str]] = {}
        for name, row in table.items():
            for owned in row.fields:
                owners.setdefault(owned, []).append(f'"{name}"')
        for field in (one for one in fields(stack) if one.name in owners and one.name not in table[chosen].fields):
            if (value := getattr(stack, field.name)) != field.default:
                raise ValueError(
                    f"{field.name} = {value!r} is for {slot} = {' or '.join(owners[field.name])}, not for "
                    f'"{chosen}"; leave it out'
                )
    if stack.has_blocks:
        return
    if stack.embedding_norm == "replaces_first":
        raise ValueError(
            f'embedding_norm = "replaces_first" does not apply to block = "{stack.block}", whose layers have '
            'no norm; use "extra" or "none"'
        )
    derived = {
        "heads": 1,
        "kv_heads": 1,
        "head_dim": stack.width,
        "ffn_width": stack.width,
        "num_layer_groups": stack.layers,
        "rotary_base_sliding": stack.rotary_base,
        "position": "none",
    }
    if applies("heads", stack.block):
        derived |= {"kv_heads": stack.heads, "head_dim": stack.width // stack.heads}
    for field in fields(stack):
        value, default = getattr(stack, field.name), derived.get(field.name, field.default)
        if value != default and not applies(field.name, stack.block):
            raise ValueError(
                f'{field.name} = {value!r} does not apply to block = "{stack.block}": it is for Transformer '
                "blocks; leave it out"
            )


def check_head(head: Any) -> None:
    """Raise ValueError if a `HeadConfig` is wrong."""
    check(head)
    if head.labels and head.outputs not in (0, len(head.labels)):
        raise ValueError(f"{len(head.labels)} labels for outputs = {head.outputs}: leave outputs out")
    if head.kind not in ("none", "embed") and not head.outputs and not head.labels:
        raise ValueError(f"a head of kind {head.kind!r} needs outputs (or labels)")
    if head.tied and head.kind not in ("lm", "mlm"):
        raise ValueError(f"tied: only an lm or mlm head can be tied to the embedding, not {head.kind!r}")
    if head.dense_norm and head.dense == "none":
        raise ValueError(
            'dense_norm = True needs a dense layer, but dense = "none"; set dense to an activation such as "gelu"'
        )
    if head.next_sentence_classes and head.kind != "mlm":
        raise ValueError(f"next_sentence_classes is for an mlm head, not {head.kind!r}")
    if head.logit_cap and head.kind not in ("lm", "mlm"):
        raise ValueError(f"logit_cap is for an lm or mlm head, not {head.kind!r}")
    if head.one_hot_positions and (head.kind not in ("classify", "embed") or head.pool != "mean"):
        raise ValueError(
            f'one_hot_positions is for a classify or embed head with pool = "mean", not {head.kind!r} with '
            f'pool = "{head.pool}"; leave it out'
        )
    if head.future_tokens and head.kind != "lm":
        raise ValueError(f"future_tokens is for an lm head, not {head.kind!r}")
    if head.multi_label and head.kind != "classify":
        raise ValueError(f"multi_label is for a classify head, not {head.kind!r}")
    if head.threshold and (head.kind != "classify" or head.multi_label):
        raise ValueError("threshold is for a classify head with one label for each text")
