"""The model of a run: a preset, a checkpoint or a modern stack, fitted to the tokenizer, the objective and the rows."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch

from qkv.blocks import HeadConfig, RotaryScaling, StackConfig
from qkv.errors import QkvError, UsageError, suggest_name
from qkv.models import Config, Network, build
from qkv.models.tables.presets import find_preset as find_preset
from qkv.store.model_folder import StoredModel, assign_parameters
from qkv.text import Tokenizer
from qkv.train.adapt import add_lora, freeze
from qkv.train.recipe.check import FAMILIES
from qkv.train.recipe.schema import Recipe
from qkv.train.run.load import load_saved_model

T = TypeVar("T")
DEFAULT_WIDTH, DEFAULT_LAYERS, DEFAULT_DROPOUT = 256, 4, 0.1
OVERRIDABLE_FIELDS = {
    "dropout",
    "attention_dropout",
    "ffn_dropout",
    "sliding_window",
    "sliding_window_layers",
    "rotary_base",
    "rotary_scaling",
}
"""What may be changed of a trained model: nothing that its weights were made for."""
HEAD_KINDS = {
    "seq2seq": "lm",
    "causal_lm": "lm",
    "span_corruption": "lm",
    "denoising": "lm",
    "masked_lm": "mlm",
    "next_sentence": "mlm",
    "classification": "classify",
    "tagging": "tag",
    "question_answering": "span",
    "contrastive": "embed",
}


@dataclass(frozen=True)
class ModelRequirements:
    """What the data and the tokenizer ask of a model."""

    tokenizer: Tokenizer
    classes: tuple[str, ...] = ()
    is_regression: bool = False  # classify: a number instead of a class
    has_text_pairs: bool = False  # two texts in a row, told apart by their types
    max_length: int = 512  # of a row; a new stack is made for it


def build_config(recipe: Recipe, requirements: ModelRequirements) -> Config:
    """The config that a recipe means."""
    section, kind = recipe.model, recipe.objective.kind
    if section.from_:
        return _checkpoint_config(recipe, requirements)
    base = find_preset(section.preset) if section.preset else None
    family = (base.family if base else "") or section.family or FAMILIES[kind][0]
    if family not in FAMILIES[kind] or section.family not in ("", family):
        raise UsageError(
            f"model.preset = {section.preset!r} is a model with {_describe_family(family)}, and {section.family or kind} needs "
            f"{' or '.join(_describe_family(one) for one in FAMILIES[kind])}; choose another preset, or leave it out"
        )
    stacks = {}
    for side in ("encoder", "decoder"):
        if family not in (side, "seq2seq"):
            if side in section.overrides:
                raise UsageError(f"[model.{side}] is given, but this model has {_describe_family(family)} alone")
            continue
        changes = {**_shared_overrides(section.overrides), **section.overrides.get(side, {})}
        tokenizer = (
            requirements.tokenizer if side == "encoder" or family == "decoder" else requirements.tokenizer.target
        )
        where = f"model.{side}" if family == "seq2seq" else "model"
        given = getattr(base, side) if base else None
        stack = given if given is not None else modern_stack(changes, requirements)
        stacks[side] = override_stack(stack, {"vocab_size": tokenizer.vocab_size, **changes}, where)
        _check_vocabulary(stacks[side], tokenizer, where)
    stack = stacks.get("decoder") or stacks["encoder"]
    shared = section.share_embeddings and (base is None or base.share_embeddings)
    head = build_head_config(recipe, requirements, stack, family, base.head if base else None)
    return _config(
        **stacks,
        head=head,
        share_embeddings=family == "seq2seq" and shared and requirements.tokenizer.target is requirements.tokenizer,
        architecture=base.architecture if base else "",
        **special_ids(requirements.tokenizer, family),
    )


def _config(**values: Any) -> Config:
    try:
        return Config(**values)
    except ValueError as error:
        raise UsageError(f"[model]: {error}") from error


def _describe_family(family: str) -> str:
    return {"encoder": "an encoder", "decoder": "a decoder", "seq2seq": "an encoder and a decoder"}.get(family, family)


def _shared_overrides(change: Mapping[str, Any]) -> dict[str, Any]:
    """What is changed of every stack."""
    return {name: value for name, value in change.items() if name not in ("encoder", "decoder", "head")}


def special_ids(tokenizer: Tokenizer, family: str) -> dict[str, Any]:
    """The special tokens that a network itself needs to know."""
    roles = tokenizer.target.special_tokens
    start = roles.bos if roles.bos is not None else roles.pad if family == "seq2seq" else None
    return {
        "pad_token_id": roles.pad,
        "decoder_start_token_id": start,
        "eos_token_ids": () if roles.eos is None else (roles.eos,),
    }


# -------------------------------------------------------------------- stacks


def modern_stack(overrides: Mapping[str, Any], requirements: ModelRequirements) -> StackConfig:
    """A stack as one would build it today, at the sizes given: norms before the parts, rotary positions, SwiGLU.

    >>> from types import SimpleNamespace
    >>> stack = modern_stack({"width": 128}, ModelRequirements(SimpleNamespace(vocab_size=100)))
    >>> stack.heads, stack.ffn_width
    (4, 352)
    """
    width = overrides.get("width", DEFAULT_WIDTH)
    gated = overrides.get("feedforward", "swiglu").endswith("glu") or "glu_" in overrides.get("feedforward", "")
    inner = -(-int(width * 8 / 3) // 32) * 32 if gated else 4 * width
    usual = {
        "vocab_size": requirements.tokenizer.vocab_size,
        "width": width,
        "layers": DEFAULT_LAYERS,
        "heads": default_num_heads(width),
        "ffn_width": inner,
        "position": "rotary",
        "max_positions": max(requirements.max_length, 1),
        "norm": "rmsnorm",
        "norm_affine": "gain" if overrides.get("norm", "rmsnorm") == "rmsnorm" else "gain_bias",
        "feedforward": "swiglu",
        "bias": "none",
        "token_types": 2 if requirements.has_text_pairs else 0,
        "dropout": DEFAULT_DROPOUT,
        "init": "scaled",
    }
    return construct(StackConfig, {**usual, **_parse_rotary_scaling(overrides)}, "model")


def default_num_heads(width: int) -> int:
    """As many heads as give them 32 coordinates each (64 in a wide model), or a little more where it must be."""
    size = 64 if width >= 512 else 32
    return next((n for n in range(max(1, width // size), 0, -1) if width % n == 0 and width // n % 2 == 0), 1)


def override_stack(stack: StackConfig, overrides: Mapping[str, Any], where: str) -> StackConfig:
    """A stack with some fields changed, and those that followed from the changed ones worked out again."""
    known = [field.name for field in fields(StackConfig)]
    for name in overrides:
        if name not in known:
            raise UsageError(f"{where} has no field {name!r}; {suggest_name(name, known)}")
    values = {name: getattr(stack, name) for name in known}
    follows = {
        "head_dim": stack.head_dim == stack.width // stack.heads and {"width", "heads"} & overrides.keys(),
        "kv_heads": stack.kv_heads == stack.heads and "heads" in overrides,
        "num_layer_groups": stack.num_layer_groups == stack.layers and "layers" in overrides,
        "rotary_base_sliding": stack.rotary_base_sliding == stack.rotary_base and "rotary_base" in overrides,
    }
    values |= {name: 0 for name, again in follows.items() if again}
    if "width" in overrides:
        values["ffn_width"] = -(-stack.ffn_width * overrides["width"] // stack.width // 8) * 8
        if "heads" not in overrides and overrides["width"] % stack.heads:
            values["heads"] = default_num_heads(overrides["width"])
            values["kv_heads"] = 0
    if "layers" in overrides:
        values["sliding_window_layers"] = tuple(
            layer for layer in stack.sliding_window_layers if layer < overrides["layers"]
        )
    return construct(StackConfig, {**values, **_parse_rotary_scaling(overrides)}, where)


def _parse_rotary_scaling(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, with a table of rotary scaling made what it stands for."""
    scaling = overrides.get("rotary_scaling")
    if not isinstance(scaling, Mapping):
        return dict(overrides)
    return {**overrides, "rotary_scaling": construct(RotaryScaling, scaling, "model.rotary_scaling")}


def construct(config_class: type[T], values: Mapping[str, Any], where: str) -> T:
    """A config from values; what is impossible in it is the user's to correct."""
    try:
        return config_class(**values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"[{where}]: {error}") from error


def _check_vocabulary(stack: StackConfig, tokenizer: Tokenizer, where: str) -> None:
    if tokenizer.vocab_size > stack.vocab_size:
        raise UsageError(
            f"the tokenizer has {tokenizer.vocab_size:,} ids and [{where}] a vocabulary of {stack.vocab_size:,} only: leave vocab "
            "out, raise it, or lower tokenizer.vocab_size"
        )


# -------------------------------------------------------------------- heads


def build_head_config(
    recipe: Recipe, requirements: ModelRequirements, stack: StackConfig, family: str, base: HeadConfig | None = None
) -> HeadConfig:
    """The head that an objective needs; the given one where it already is of that kind."""
    kind: Any = HEAD_KINDS[recipe.objective.kind]
    usual: dict[str, Any] = {"kind": kind}
    match kind:
        case "lm":
            usual |= {"outputs": stack.vocab_size, "tied": True}
        case "mlm":
            usual |= {"outputs": stack.vocab_size, "tied": True, "dense": "gelu", "dense_norm": True, "bias": True}
        case "classify":
            usual |= {"dense": "tanh", "bias": True, "dropout": DEFAULT_DROPOUT}
        case "tag":
            usual |= {"bias": True, "dropout": DEFAULT_DROPOUT}
        case "span":
            usual |= {"outputs": 2, "bias": True}
        case "embed":
            usual |= {"pool": "mean", "normalize": True}
    if base is not None and base.kind == kind:
        usual |= {name: getattr(base, name) for name in ("pool", "dense", "dense_bias", "dense_norm", "bias")}
        usual |= {name: getattr(base, name) for name in ("scale", "normalize", "dropout")}
        if kind in ("lm", "mlm"):
            usual["tied"] = base.tied
    if kind in ("lm", "mlm"):
        usual["tied"] = usual["tied"] and recipe.model.tie_embeddings
    if recipe.objective.kind == "next_sentence":
        usual["sentence_outputs"] = 2
    if kind in ("classify", "tag"):
        usual |= {
            "labels": requirements.classes,
            "outputs": 1 if requirements.is_regression else len(requirements.classes),
        }
    if kind == "classify" and family == "decoder":
        usual["pool"] = "last"  # the only one that has seen the whole text
    return construct(HeadConfig, {**usual, **recipe.model.overrides.get("head", {})}, "model.head")


# -------------------------------------------------------------------- checkpoints


def _checkpoint_config(recipe: Recipe, requirements: ModelRequirements) -> Config:
    """The config of the checkpoint that training goes on from, under the head that the objective needs."""
    section, kind = recipe.model, recipe.objective.kind
    found = load_saved_model(section.from_, device="meta").config
    if found.family not in FAMILIES[kind] or section.family not in ("", found.family):
        raise UsageError(
            f"model.from = {section.from_!r} is a model with {_describe_family(found.family)}, and {section.family or kind} needs "
            f"{' or '.join(_describe_family(one) for one in FAMILIES[kind])}"
        )
    stacks: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        stack: StackConfig | None = getattr(found, side)
        if stack is None:
            if side in section.overrides:
                raise UsageError(
                    f"[model.{side}] is given, but {section.from_} has {_describe_family(found.family)} alone"
                )
            continue
        changes = {**_shared_overrides(section.overrides), **section.overrides.get(side, {})}
        free = OVERRIDABLE_FIELDS | ({"max_positions"} if not stack.has_max_positions else set())
        fixed = [name for name in changes if name not in free and changes[name] != getattr(stack, name)]
        if fixed:
            raise UsageError(
                f"model.{fixed[0]} = {changes[fixed[0]]!r} is not what {section.from_} was trained with "
                f"({getattr(stack, fixed[0])!r}); of a checkpoint you may change {', '.join(sorted(free))}"
            )
        stacks[side] = override_stack(stack, changes, f"model.{side}")
        tokenizer = (
            requirements.tokenizer if side == "encoder" or found.family == "decoder" else requirements.tokenizer.target
        )
        if tokenizer.vocab_size > stack.vocab_size:
            raise QkvError(
                f"the tokenizer has {tokenizer.vocab_size:,} ids and {section.from_} a vocabulary of {stack.vocab_size:,}: they "
                "do not belong together; leave tokenizer.from out to take the checkpoint's own"
            )
    head = found.head
    if head.kind != HEAD_KINDS[kind] or not _has_required_outputs(head, requirements, recipe):
        head = build_head_config(recipe, requirements, stacks.get("decoder") or stacks["encoder"], found.family)
    elif "head" in section.overrides:
        head = construct(HeadConfig, {**_values(head), **section.overrides["head"]}, "model.head")
    ids = special_ids(requirements.tokenizer, found.family)
    ids = {name: value for name, value in ids.items() if getattr(found, name) in (None, ())}  # 0 is an id
    return replace(found, **stacks, head=head, **ids)


def _values(head: HeadConfig) -> dict[str, Any]:
    return {field.name: getattr(head, field.name) for field in fields(head)}


def _has_required_outputs(head: HeadConfig, requirements: ModelRequirements, recipe: Recipe) -> bool:
    """Whether a checkpoint's head says what is to be learnt."""
    if recipe.objective.kind == "next_sentence":
        return head.sentence_outputs == 2
    if head.kind not in ("classify", "tag"):
        return True
    return head.outputs == 1 if requirements.is_regression else head.labels == requirements.classes


def needs_new_head(recipe: Recipe, config: Config) -> bool:
    """Whether the checkpoint has no such head; one that differs in its dropout alone is still the checkpoint's."""
    found = load_saved_model(recipe.model.from_, device="meta").config
    return replace(found.head, dropout=config.head.dropout) != config.head


def load_base_model(recipe: Recipe, config: Config, device: str) -> StoredModel:
    """The checkpoint under the config's head."""
    head = config.head if needs_new_head(recipe, config) else None
    return load_saved_model(recipe.model.from_, device=device, head=head, dtype=torch.float32)


def checkpoint_notes(recipe: Recipe, config: Config, tokenizer: Tokenizer) -> list[str]:
    """What the user should know of the checkpoint that training goes on from: what is ignored, what starts afresh."""
    if not recipe.model.from_:
        return []
    found = load_base_model(recipe, config, "meta")
    if found.tokenizer is None or found.tokenizer.fingerprint == tokenizer.fingerprint:
        return found.notes
    other = "model.from was trained with another tokenizer: what its embedding knows is of other pieces"
    return [*found.notes, other]


def apply_adapters(network: Network, recipe: Recipe, config: Config) -> Network:
    """The network with what stays frozen frozen, and low-rank additions where the recipe has them.

    A head that the checkpoint did not have is trained besides the additions.
    """
    model = recipe.model
    if model.freeze:
        freeze(network, model.freeze)
    if model.lora_rank:
        also = ("head.*",) if needs_new_head(recipe, config) else ()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.train.seed)  # the same additions in every process
            add_lora(network, model.lora_rank, model.lora_alpha, model.lora_targets, also_train=also)
    return network


def build_network(recipe: Recipe, config: Config, device: torch.device | str = "cpu") -> Network:
    """The network to train, in float32: fresh weights drawn from the recipe's seed, or the checkpoint's."""
    device = torch.device(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.train.seed)
        if not recipe.model.from_:
            return build(config).to(device)
        network = build(config, device="meta")
        assign_parameters(
            network, dict(load_base_model(recipe, config, "cpu").network.named_parameters()), device, torch.float32
        )
    return network
