"""The model of a run: a preset, a checkpoint or a modern stack, fitted to the tokenizer and the objective."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch

from qkv.blocks import HeadConfig, RotaryScaling, StackConfig
from qkv.blocks.back_ends import BackEndConfig
from qkv.blocks.front_ends import FrontEndConfig
from qkv.blocks.parts import PARTS, applies
from qkv.blocks.words import WordsConfig
from qkv.data.objectives.table import OBJECTIVES
from qkv.errors import QkvError, UsageError, suggest_name
from qkv.models import Config, Network, build
from qkv.models.tables.presets import find_preset
from qkv.sounds.config import GriffinLimConfig
from qkv.store.model_folder import StoredModel, assign_parameters
from qkv.text import Tokenizer
from qkv.text.word_features import NUM_FEATURES
from qkv.train.adapt import add_lora, freeze
from qkv.train.recipe.schema import Recipe
from qkv.train.recipe.table import MODEL_TABLES
from qkv.train.run.load import load_model

T = TypeVar("T")
DEFAULT_WIDTH = 256
DEFAULT_LAYERS = 4
DEFAULT_PART_LAYERS = 2
DEFAULT_DROPOUT = 0.1
OVERRIDABLE_FIELDS = {
    "dropout",
    "attention_dropout",
    "ffn_dropout",
    "drop_path",
    "sliding_window",
    "sliding_window_layers",
    "rotary_base",
    "rotary_scaling",
}
"""The fields that may be overridden on a trained model, because they do not change the shapes of its weights."""
MAX_FINE_TUNING_LR = 5e-4  # Adam's learning rate above which fine-tuning usually forgets; a note says so
FAMILY_NAMES = {"encoder": "an encoder", "decoder": "a decoder", "seq2seq": "an encoder and a decoder"}


@dataclass(frozen=True)
class ModelRequirements:
    """What the data and the tokenizer require of a model."""

    tokenizer: Tokenizer
    classes: tuple[str, ...] = ()
    is_regression: bool = False  # classification: the model predicts a number instead of a class
    multi_label: bool = False  # classification: a text may have several labels
    tags_in_order: bool = False  # tagging: no tag continues an entity that has not begun
    token_types: int = 0  # what distinguishes the tokens of a sequence, such as those of two texts
    max_length: int = 512  # tokens of the longest sequence, and the number of positions of a new stack
    front_ends: tuple[FrontEndConfig, ...] = ()  # the configs for the payloads in the records
    back_ends: tuple[BackEndConfig, ...] = ()  # their codes are the ids after the ids of the tokenizer

    def tokenizer_for(self, side: str, family: str) -> Tokenizer:
        """The tokenizer of a stack: the decoder of an encoder-decoder uses the target tokenizer."""
        return self.tokenizer.target if side == "decoder" and family == "seq2seq" else self.tokenizer


def build_config(recipe: Recipe, requirements: ModelRequirements) -> Config:
    """The config of the model that a recipe describes."""
    section = recipe.model
    if section.from_:
        return _checkpoint_config(recipe, requirements)
    base = find_preset(section.preset) if section.preset else None
    stack_part = section.stack_part
    given = "" if stack_part else section.family
    family = (base.family if base else "") or given or OBJECTIVES[recipe.objective.kind].families[0]
    _check_family(recipe, family)
    stacks = {}
    for side in ("encoder", "decoder"):
        if family not in (side, "seq2seq"):
            _check_no_overrides(section.overrides, side, "this model", family)
            continue
        overrides = _side_overrides(section.overrides, side)
        if stack_part:
            # A recipe may keep the keys of a Transformer when only `model.family` changes.
            kept = {name: value for name, value in overrides.items() if name not in _ignored_keys(recipe)}
            overrides = {"block": stack_part, **kept}
        tokenizer = requirements.tokenizer_for(side, family)
        where = f"model.{side}" if family == "seq2seq" else "model"
        preset = getattr(base, side) if base else None
        make = part_stack if stack_part else modern_stack
        stack = preset if preset is not None else make(overrides, requirements)
        num_ids = max([tokenizer.vocab_size, *(one.ids.stop for one in requirements.back_ends)])
        stacks[side] = override_stack(stack, {"vocab_size": num_ids, **overrides}, where)
        if tokenizer.vocab_size > stacks[side].vocab_size:
            raise UsageError(
                f"[{where}] vocab_size = {stacks[side].vocab_size:,} is too small: the tokenizer has "
                f"{tokenizer.vocab_size:,} ids; leave vocab_size out, raise it, or lower tokenizer.vocab_size"
            )
    stack = stacks.get("decoder") or stacks["encoder"]
    shares = section.share_embeddings and (base is None or base.share_embeddings)
    same_tokenizer = requirements.tokenizer.target is requirements.tokenizer
    values = {
        **stacks,
        "head": build_head_config(recipe, requirements, stack, family, base.head if base else None),
        "front_ends": requirements.front_ends,
        "back_ends": requirements.back_ends,
        "share_embeddings": family == "seq2seq" and shares and same_tokenizer,
        "architecture": base.architecture if base else "",
        **special_ids(requirements.tokenizer, family),
    }
    return construct_config(Config, values, "model")


def _check_family(recipe: Recipe, family: str) -> None:
    """Raise an error if a model's family differs from `model.family`, or cannot learn the objective."""
    section, kind = recipe.model, recipe.objective.kind
    model = f"model.from = {section.from_!r}" if section.from_ else f"model.preset = {section.preset!r}"
    is_new = not section.preset and not section.from_
    if section.family not in ("", family) and not (is_new and section.stack_part):
        raise UsageError(
            f"{model} has {FAMILY_NAMES[family]}, but model.family = {section.family!r}; leave one of the two out"
        )
    families = OBJECTIVES[kind].families
    if family not in families:
        needed = " or ".join(FAMILY_NAMES[one] for one in families)
        raise UsageError(
            f"{model} has {FAMILY_NAMES[family]}, but objective.kind = {kind!r} needs {needed}; choose another model "
            "or another objective"
        )


def _check_no_overrides(overrides: Mapping[str, Any], side: str, model: str, family: str) -> None:
    if side in overrides:
        raise UsageError(f"[model.{side}] is given, but {model} has only {FAMILY_NAMES[family]}; remove this section")


def _side_overrides(overrides: Mapping[str, Any], side: str) -> dict[str, Any]:
    """The overrides of one stack. Overrides of this side take precedence over overrides of all stacks."""
    shared = {name: value for name, value in overrides.items() if name not in MODEL_TABLES}
    return {**shared, **overrides.get(side, {})}


def make_words_config(recipe: Recipe, tokenizer: Tokenizer) -> list[WordsConfig]:
    """The front end of a new model that reads words, with the recipe's `model.words`; a checkpoint has its own."""
    if recipe.model.from_ or not tokenizer.hashes_words:
        return []
    if not OBJECTIVES[recipe.objective.kind].hashes_words:
        readers = " and ".join(name for name, spec in OBJECTIVES.items() if spec.hashes_words)
        raise UsageError(
            f"a hash tokenizer has one token for all words, which {recipe.objective.kind} cannot read, only {readers}; "
            'set tokenizer.kind = "byte-bpe"'
        )
    values = {"features": NUM_FEATURES, **recipe.model.overrides.get("words", {})}
    return [construct_config(WordsConfig, values, "model.words")]


def special_ids(tokenizer: Tokenizer, family: str) -> dict[str, Any]:
    """The special token ids of a config, by field."""
    special = tokenizer.target.special_tokens
    start = special.bos if special.bos is not None else special.pad if family == "seq2seq" else None
    eos = () if special.eos is None else (special.eos,)
    return {"pad_token_id": special.pad, "decoder_start_token_id": start, "eos_token_ids": eos}


# -------------------------------------------------------------------- stacks


def modern_stack(overrides: Mapping[str, Any], requirements: ModelRequirements) -> StackConfig:
    """A stack of a current architecture, with overrides: pre-norm, RMSNorm, rotary positions, SwiGLU.

    >>> from types import SimpleNamespace
    >>> stack = modern_stack({"width": 128}, ModelRequirements(SimpleNamespace(vocab_size=100)))
    >>> stack.heads, stack.ffn_width
    (4, 352)
    """
    width = overrides.get("width", DEFAULT_WIDTH)
    feedforward = PARTS["feedforward"].find(overrides.get("feedforward", "swiglu"), "model.feedforward")
    defaults = {
        "vocab_size": requirements.tokenizer.vocab_size,
        "width": width,
        "layers": DEFAULT_LAYERS,
        "heads": default_num_heads(width),
        "ffn_width": -(-int(width * 8 / 3) // 32) * 32 if feedforward.gated else 4 * width,
        "position": "rotary",
        "max_positions": max(requirements.max_length, 1),
        "norm": "rmsnorm",
        "norm_affine": "gain" if overrides.get("norm", "rmsnorm") == "rmsnorm" else "gain_bias",
        "feedforward": "swiglu",
        "bias": "none",
        "token_types": requirements.token_types,
        "dropout": DEFAULT_DROPOUT,
        "init": "scaled",
    }
    return construct_config(StackConfig, {**defaults, **_parse_rotary_scaling(overrides)}, "model")


def part_stack(overrides: Mapping[str, Any], requirements: ModelRequirements) -> StackConfig:
    """A stack that is one part, such as recurrent layers. The overrides must include `block`.

    The embedding has σ = 1/√C, which suits a tied output matrix, and is multiplied by √C, so that the layers read
    numbers of variance 1.
    """
    defaults = {
        "vocab_size": requirements.tokenizer.vocab_size,
        "width": DEFAULT_WIDTH,
        "layers": DEFAULT_PART_LAYERS,
        "max_positions": max(requirements.max_length, 1),
        "token_types": requirements.token_types,
        "embedding_scale": "sqrt",
        "dropout": DEFAULT_DROPOUT,
        "init": "xavier",
    }
    return construct_config(StackConfig, {**defaults, **overrides}, "model")


def _ignored_keys(recipe: Recipe) -> list[str]:
    """The keys of [model] that do not apply to the part that is the whole stack."""
    section, known = recipe.model, {field.name for field in fields(StackConfig)}
    given = {name for side in ("encoder", "decoder") for name in _side_overrides(section.overrides, side)}
    return sorted(name for name in given & known if not applies(name, section.stack_part))


def ignored_notes(recipe: Recipe) -> list[str]:
    """A note for the user about keys that have no effect, because one part replaces the blocks of a Transformer."""
    if not recipe.model.stack_part or not (ignored := _ignored_keys(recipe)):
        return []
    keys = ", ".join(f"model.{name}" for name in ignored)
    return [f'model.family = "{recipe.model.family}" ignores {keys}, which only Transformers have']


def default_num_heads(width: int) -> int:
    """The number of heads of dimension 32 (64 in a wide model), or of the next larger even divisor of the width."""
    head_dim = 64 if width >= 512 else 32
    return next((n for n in range(max(1, width // head_dim), 0, -1) if width % n == 0 and width // n % 2 == 0), 1)


def override_stack(stack: StackConfig, overrides: Mapping[str, Any], where: str) -> StackConfig:
    """A stack with some fields replaced; fields that are derived from them are computed again."""
    known = [field.name for field in fields(StackConfig)]
    for name in overrides:
        if name not in known:
            raise UsageError(f"{where} has no field {name!r}; {suggest_name(name, known)}")
    values = {name: getattr(stack, name) for name in known}
    derived = {
        "head_dim": stack.head_dim == stack.width // stack.heads and {"width", "heads"} & overrides.keys(),
        "kv_heads": stack.kv_heads == stack.heads and "heads" in overrides,
        "num_layer_groups": stack.num_layer_groups == stack.layers and "layers" in overrides,
        "rotary_base_sliding": stack.rotary_base_sliding == stack.rotary_base and "rotary_base" in overrides,
    }
    values |= {name: 0 for name, is_derived in derived.items() if is_derived}
    if "width" in overrides:
        values["ffn_width"] = -(-stack.ffn_width * overrides["width"] // stack.width // 8) * 8
        if "heads" not in overrides and overrides["width"] % stack.heads:
            values["heads"] = default_num_heads(overrides["width"])
            values["kv_heads"] = 0
    if not stack.has_blocks:
        values |= {"heads": 0, "kv_heads": 0, "head_dim": 0, "ffn_width": 0}
    if "layers" in overrides:
        sliding = tuple(layer for layer in stack.sliding_window_layers if layer < overrides["layers"])
        values["sliding_window_layers"] = sliding
    return construct_config(StackConfig, {**values, **_parse_rotary_scaling(overrides)}, where)


def _parse_rotary_scaling(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides, with `rotary_scaling` as a `RotaryScaling` if it is a table."""
    scaling = overrides.get("rotary_scaling")
    if not isinstance(scaling, Mapping):
        return dict(overrides)
    return {**overrides, "rotary_scaling": construct_config(RotaryScaling, scaling, "model.rotary_scaling")}


def construct_config(config_class: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build a config from values; an invalid value is a usage error that names its section of the recipe."""
    try:
        return config_class(**values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"[{where}]: {error}") from error


# -------------------------------------------------------------------- heads


def build_head_config(
    recipe: Recipe, requirements: ModelRequirements, stack: StackConfig, family: str, base: HeadConfig | None = None
) -> HeadConfig:
    """The head that an objective needs; if `base` is of the same kind, its layers are kept.

    A classifier on an embedding model keeps its pooling.
    """
    spec = OBJECTIVES[recipe.objective.kind]
    kind, dropout = spec.head, DEFAULT_DROPOUT
    defaults: dict[str, dict[str, Any]] = {
        "lm": {"outputs": stack.vocab_size, "tied": True},
        "mlm": {"outputs": stack.vocab_size, "tied": True, "dense": "gelu", "dense_norm": True, "bias": True},
        "classify": {"dense": "tanh", "bias": True, "dropout": dropout},
        "tag": {"bias": True, "dropout": dropout},
        "span": {"outputs": 2, "bias": True},
        "embed": {"pool": "mean", "normalize": True},
        "ctc": {"outputs": requirements.tokenizer.target.vocab_size + 1, "bias": True},  # and the blank
        "frames": {"outputs": count_frame_outputs(requirements), "bias": True},
    }
    values = {"kind": kind, "next_sentence_classes": spec.next_sentence_classes, **defaults[kind]}
    if base is not None and base.kind == kind:
        layers = ("pool", "dense", "dense_bias", "dense_norm", "bias", "scale", "normalize", "dropout")
        values |= {name: getattr(base, name) for name in (*layers, "logit_cap", "future_tokens")}
        if kind in ("lm", "mlm"):
            values["tied"] = base.tied
    if base is not None and base.kind == "embed" and kind == "classify":
        values |= {"pool": base.pool, "dense": "none"}  # a linear layer on the vector that the checkpoint computes
    if kind in ("lm", "mlm"):
        values["tied"] = values["tied"] and recipe.model.tie_embeddings
    if kind in ("classify", "tag"):
        values["labels"] = requirements.classes
        values["outputs"] = 1 if requirements.is_regression else len(requirements.classes)
        values["multi_label"] = requirements.multi_label
    if kind == "tag":
        values["tags_in_order"] = requirements.tags_in_order
    if kind == "classify" and family == "decoder":
        values["pool"] = "last"  # under a causal mask, only the last token attends to the whole text
    elif kind == "classify" and not stack.has_blocks:
        values["pool"] = "mean"  # without attention, the first token need not see the whole text: only a backward state
    return construct_config(HeadConfig, {**values, **recipe.model.overrides.get("head", {})}, "model.head")


def count_frame_outputs(requirements: ModelRequirements) -> int:
    """The numbers that a head for frames computes: what its back end reads, or the frames that the model reads, too."""
    drawn = [one.outputs for one in requirements.back_ends if isinstance(one, GriffinLimConfig)]
    return sum(drawn) or sum(front_end.features for front_end in requirements.front_ends)


# -------------------------------------------------------------------- checkpoints


def _checkpoint_config(recipe: Recipe, requirements: ModelRequirements) -> Config:
    """The config of the checkpoint that training starts from, with the head that the objective needs."""
    section, spec = recipe.model, OBJECTIVES[recipe.objective.kind]
    found = load_model(section.from_, device="meta", unfinished=False).config
    _check_family(recipe, found.family)
    stacks: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        stack: StackConfig | None = getattr(found, side)
        if stack is None:
            _check_no_overrides(section.overrides, side, section.from_, found.family)
            continue
        overrides = _side_overrides(section.overrides, side)
        ignored = _ignored_overrides(stack, overrides)
        kept = {name: value for name, value in overrides.items() if name not in ignored}
        stacks[side] = override_stack(stack, kept, f"model.{side}")
        tokenizer = requirements.tokenizer_for(side, found.family)
        if tokenizer.vocab_size > stack.vocab_size:
            raise QkvError(
                f"the tokenizer has {tokenizer.vocab_size:,} ids, but {section.from_} has a vocabulary of only "
                f"{stack.vocab_size:,}: they do not belong together; leave tokenizer.from out to use the checkpoint's "
                "tokenizer"
            )
    head = uncalibrated(found.head)
    if head.kind != spec.head or not _has_required_outputs(head, requirements, recipe):
        stack = stacks.get("decoder") or stacks["encoder"]
        embedder = head if head.kind == "embed" else None
        head = build_head_config(recipe, requirements, stack, found.family, embedder)
    elif "head" in section.overrides:
        values = {field.name: getattr(head, field.name) for field in fields(head)}
        head = construct_config(HeadConfig, {**values, **section.overrides["head"]}, "model.head")
    ids = special_ids(requirements.tokenizer, found.family)
    # An id may be 0, so the test is for None.
    missing = {name: value for name, value in ids.items() if getattr(found, name) in (None, ())}
    for front_end in requirements.front_ends:
        if front_end not in found.front_ends:
            raise UsageError(
                f"{section.from_} has no front end {front_end.kind!r} with the config {front_end}, which the data "
                "needs; start from a model that has it, or train a new model"
            )
    return replace(found, **stacks, head=head, **missing)


def _ignored_overrides(stack: StackConfig, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides that differ from a checkpoint's stack in fields that determine its weights."""
    fixed = {field.name for field in fields(stack)} - OVERRIDABLE_FIELDS
    if not stack.has_max_positions:
        fixed.remove("max_positions")
    return {name: value for name, value in overrides.items() if name in fixed and value != getattr(stack, name)}


def _has_required_outputs(head: HeadConfig, requirements: ModelRequirements, recipe: Recipe) -> bool:
    """Whether a checkpoint's head has the outputs that the objective needs."""
    classes = OBJECTIVES[recipe.objective.kind].next_sentence_classes
    if classes:
        return head.next_sentence_classes == classes
    if head.kind not in ("classify", "tag"):
        return True
    if requirements.is_regression:
        return head.outputs == 1
    return (head.labels, head.multi_label) == (requirements.classes, requirements.multi_label)


def needs_new_head(recipe: Recipe, config: Config) -> bool:
    """Whether the head must be initialised: it differs from the checkpoint's in more than dropout and calibration."""
    found = load_model(recipe.model.from_, device="meta", unfinished=False).config
    return uncalibrated(replace(found.head, dropout=config.head.dropout)) != uncalibrated(config.head)


def uncalibrated(head: HeadConfig) -> HeadConfig:
    """The head of a checkpoint without its temperature and threshold, which were fitted to its old weights."""
    return replace(head, temperature=1.0, threshold=0.0, out_of_scope="")


def load_base_model(recipe: Recipe, config: Config, device: str) -> StoredModel:
    """Load the checkpoint, with a new head if the objective needs one."""
    head = config.head if needs_new_head(recipe, config) else None
    return load_model(recipe.model.from_, device=device, head=head, dtype=torch.float32, unfinished=False)


def checkpoint_notes(recipe: Recipe, config: Config, tokenizer: Tokenizer) -> list[str]:
    """Notes for the user about the checkpoint: ignored keys and weights, new weights, a different tokenizer."""
    section, lr = recipe.model, recipe.train.lr
    if not section.from_:
        return []
    found = load_base_model(recipe, config, "meta")
    notes = list(found.notes)
    ignored = {
        name: f"{name} = {getattr(stack, name)} instead of {value}"
        for side, stack in config.stacks.items()
        for name, value in _ignored_overrides(stack, _side_overrides(section.overrides, side)).items()
    }
    if ignored:
        notes.append(f"the model has the shape of {section.from_}: {', '.join(ignored.values())}")
    if lr > MAX_FINE_TUNING_LR and not section.lora_rank and recipe.train.optimizer in ("adam", "adamw", "lamb"):
        notes.append(
            f"train.lr = {lr:g} suits a new model and may destroy what {section.from_} has learnt; for fine-tuning try "
            "train.lr=1e-4"
        )
    if found.tokenizer is not None and found.tokenizer.fingerprint != tokenizer.fingerprint:
        notes.append("model.from was trained with another tokenizer: its embeddings do not belong to these tokens")
    return notes


def apply_adapters(network: Network, recipe: Recipe, config: Config) -> Network:
    """Freeze parameters and add LoRA adapters as in the recipe.

    A new head that the checkpoint does not have is trained in full, besides the adapters.
    """
    model = recipe.model
    if model.freeze:
        freeze(network, model.freeze)
    if model.lora_rank:
        also = ("head.*",) if needs_new_head(recipe, config) else ()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.train.seed)  # the same adapters on every rank
            add_lora(network, model.lora_rank, model.lora_alpha, model.lora_targets, also_train=also)
    return network


def build_network(recipe: Recipe, config: Config, device: torch.device | str = "cpu") -> Network:
    """The network to train, in float32, with the checkpoint's weights, or new weights that depend on the seed only."""
    device = torch.device(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.train.seed)
        if not recipe.model.from_:
            return build(config).to(device)
        network = build(config, device="meta")
        weights = dict(load_base_model(recipe, config, "cpu").network.named_parameters())
        assign_parameters(network, weights, device, torch.float32)
    return network
