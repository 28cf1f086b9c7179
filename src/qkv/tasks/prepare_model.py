"""The model of a run: a preset, a checkpoint or a modern stack, fitted to the tokenizer, the objective and the rows."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch

from qkv.blocks import HeadConfig, RotaryScaling, StackConfig
from qkv.errors import QkvError, UsageError, nearest
from qkv.models import Config, Network, build
from qkv.models.presets import find as find_preset
from qkv.store.folder import Stored, place
from qkv.text import Tokenizer
from qkv.train.adapt import add_lora, freeze
from qkv.train.midway import read_fixed
from qkv.train.recipe import Recipe
from qkv.train.recipe_check import FAMILIES

T = TypeVar("T")
WIDTH, LAYERS, DROPOUT = 256, 4, 0.1
LEAVES_WEIGHTS = {
    "dropout",
    "attention_dropout",
    "ffn_dropout",
    "window",
    "windowed_layers",
    "rotary_base",
    "rotary_scaling",
}
"""What may be changed of a trained model: nothing that its weights were made for."""
HEAD_KINDS = {
    "pairs": "lm",
    "next_token": "lm",
    "spans": "lm",
    "denoise": "lm",
    "masked": "mlm",
    "masked_sentences": "mlm",
    "classify": "classify",
    "tags": "tag",
    "answers": "span",
    "contrast": "embed",
}


@dataclass(frozen=True)
class Wanted:
    """What the data and the tokenizer ask of a model."""

    tokenizer: Tokenizer
    classes: tuple[str, ...] = ()
    scored: bool = False  # classify: a number instead of a class
    paired: bool = False  # two texts in a row, told apart by their types
    length: int = 512  # of a row; a new stack is made for it


def config_for(recipe: Recipe, wanted: Wanted) -> Config:
    """The config that a recipe means."""
    section, kind = recipe.model, recipe.objective.kind
    if section.from_:
        return _trained(recipe, wanted)
    base = find_preset(section.preset) if section.preset else None
    family = (base.family if base else "") or section.family or FAMILIES[kind][0]
    if family not in FAMILIES[kind] or section.family not in ("", family):
        raise UsageError(
            f"model.preset = {section.preset!r} is a model with {_told(family)}, and {section.family or kind} needs "
            f"{' or '.join(_told(one) for one in FAMILIES[kind])}; choose another preset, or leave it out"
        )
    stacks = {}
    for side in ("encoder", "decoder"):
        if family not in (side, "seq2seq"):
            if side in section.change:
                raise UsageError(f"[model.{side}] is given, but this model has {_told(family)} alone")
            continue
        changes = {**_plain(section.change), **section.change.get(side, {})}
        tokenizer = wanted.tokenizer if side == "encoder" or family == "decoder" else wanted.tokenizer.target
        where = f"model.{side}" if family == "seq2seq" else "model"
        given = getattr(base, side) if base else None
        stack = given if given is not None else modern(changes, wanted)
        stacks[side] = changed(stack, {"vocab": tokenizer.size, **changes}, where)
        _check_vocabulary(stacks[side], tokenizer, where)
    stack = stacks.get("decoder") or stacks["encoder"]
    shared = section.shared_embedding and (base is None or base.shared_embedding)
    head = head_for(recipe, wanted, stack, family, base.head if base else None)
    return _config(
        **stacks,
        head=head,
        shared_embedding=family == "seq2seq" and shared and wanted.tokenizer.target is wanted.tokenizer,
        architecture=base.architecture if base else "",
        **special_ids(wanted.tokenizer, family),
    )


def _config(**values: Any) -> Config:
    try:
        return Config(**values)
    except ValueError as error:
        raise UsageError(f"[model]: {error}") from error


def _told(family: str) -> str:
    return {"encoder": "an encoder", "decoder": "a decoder", "seq2seq": "an encoder and a decoder"}.get(family, family)


def _plain(change: Mapping[str, Any]) -> dict[str, Any]:
    """What is changed of every stack."""
    return {name: value for name, value in change.items() if name not in ("encoder", "decoder", "head")}


def special_ids(tokenizer: Tokenizer, family: str) -> dict[str, Any]:
    """The special tokens that a network itself needs to know."""
    roles = tokenizer.target.roles
    start = roles.start if roles.start is not None else roles.pad if family == "seq2seq" else None
    return {"pad": roles.pad, "start": start, "end": () if roles.end is None else (roles.end,)}


# -------------------------------------------------------------------- stacks


def modern(changes: Mapping[str, Any], wanted: Wanted) -> StackConfig:
    """A stack as one would build it today, at the sizes given: norms before the parts, rotary positions, SwiGLU.

    >>> from types import SimpleNamespace
    >>> stack = modern({"width": 128}, Wanted(SimpleNamespace(size=100)))
    >>> stack.heads, stack.ffn_width
    (4, 352)
    """
    width = changes.get("width", WIDTH)
    gated = changes.get("feedforward", "swiglu").endswith("glu") or "glu_" in changes.get("feedforward", "")
    inner = -(-int(width * 8 / 3) // 32) * 32 if gated else 4 * width
    usual = {
        "vocab": wanted.tokenizer.size,
        "width": width,
        "layers": LAYERS,
        "heads": heads_for(width),
        "ffn_width": inner,
        "position": "rotary",
        "max_positions": max(wanted.length, 1),
        "norm": "rmsnorm",
        "norm_affine": "gain" if changes.get("norm", "rmsnorm") == "rmsnorm" else "gain_bias",
        "feedforward": "swiglu",
        "bias": "none",
        "types": 2 if wanted.paired else 0,
        "dropout": DROPOUT,
        "init": "scaled",
    }
    return made(StackConfig, {**usual, **_scaled(changes)}, "model")


def heads_for(width: int) -> int:
    """As many heads as give them 32 coordinates each (64 in a wide model), or a little more where it must be."""
    size = 64 if width >= 512 else 32
    return next((n for n in range(max(1, width // size), 0, -1) if width % n == 0 and width // n % 2 == 0), 1)


def changed(stack: StackConfig, changes: Mapping[str, Any], where: str) -> StackConfig:
    """A stack with some fields changed, and those that followed from the changed ones worked out again."""
    known = [field.name for field in fields(StackConfig)]
    for name in changes:
        if name not in known:
            raise UsageError(f"{where} has no field {name!r}; {nearest(name, known)}")
    values = {name: getattr(stack, name) for name in known}
    follows = {
        "head_width": stack.head_width == stack.width // stack.heads and {"width", "heads"} & changes.keys(),
        "kv_heads": stack.kv_heads == stack.heads and "heads" in changes,
        "distinct_layers": stack.distinct_layers == stack.layers and "layers" in changes,
        "rotary_base_windowed": stack.rotary_base_windowed == stack.rotary_base and "rotary_base" in changes,
    }
    values |= {name: 0 for name, again in follows.items() if again}
    if "width" in changes:
        values["ffn_width"] = -(-stack.ffn_width * changes["width"] // stack.width // 8) * 8
        if "heads" not in changes and changes["width"] % stack.heads:
            values["heads"] = heads_for(changes["width"])
            values["kv_heads"] = 0
    if "layers" in changes:
        values["windowed_layers"] = tuple(layer for layer in stack.windowed_layers if layer < changes["layers"])
    return made(StackConfig, {**values, **_scaled(changes)}, where)


def _scaled(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, with a table of rotary scaling made what it stands for."""
    scaling = changes.get("rotary_scaling")
    if not isinstance(scaling, Mapping):
        return dict(changes)
    return {**changes, "rotary_scaling": made(RotaryScaling, scaling, "model.rotary_scaling")}


def made(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """A config from values; what is impossible in it is the user's to correct."""
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"[{where}]: {error}") from error


def _check_vocabulary(stack: StackConfig, tokenizer: Tokenizer, where: str) -> None:
    if tokenizer.size > stack.vocab:
        raise UsageError(
            f"the tokenizer has {tokenizer.size:,} ids and [{where}] a vocabulary of {stack.vocab:,} only: leave vocab "
            "out, raise it, or lower tokenizer.size"
        )


# -------------------------------------------------------------------- heads


def head_for(
    recipe: Recipe, wanted: Wanted, stack: StackConfig, family: str, given: HeadConfig | None = None
) -> HeadConfig:
    """The head that an objective needs; the given one where it already is of that kind."""
    kind: Any = HEAD_KINDS[recipe.objective.kind]
    usual: dict[str, Any] = {"kind": kind}
    match kind:
        case "lm":
            usual |= {"outputs": stack.vocab, "tied": True}
        case "mlm":
            usual |= {"outputs": stack.vocab, "tied": True, "dense": "gelu", "dense_norm": True, "bias": True}
        case "classify":
            usual |= {"dense": "tanh", "bias": True, "dropout": DROPOUT}
        case "tag":
            usual |= {"bias": True, "dropout": DROPOUT}
        case "span":
            usual |= {"outputs": 2, "bias": True}
        case "embed":
            usual |= {"pool": "mean", "unit": True}
    if given is not None and given.kind == kind:
        usual |= {name: getattr(given, name) for name in ("pool", "dense", "dense_bias", "dense_norm", "bias")}
        usual |= {name: getattr(given, name) for name in ("scale", "unit", "dropout")}
        if kind in ("lm", "mlm"):
            usual["tied"] = given.tied
    if kind in ("lm", "mlm"):
        usual["tied"] = usual["tied"] and recipe.model.tied
    if recipe.objective.kind == "masked_sentences":
        usual["sentence_outputs"] = 2
    if kind in ("classify", "tag"):
        usual |= {"labels": wanted.classes, "outputs": 1 if wanted.scored else len(wanted.classes)}
    if kind == "classify" and family == "decoder":
        usual["pool"] = "last"  # the only one that has seen the whole text
    return made(HeadConfig, {**usual, **recipe.model.change.get("head", {})}, "model.head")


# -------------------------------------------------------------------- checkpoints


def _trained(recipe: Recipe, wanted: Wanted) -> Config:
    """The config of the checkpoint that training goes on from, under the head that the objective needs."""
    section, kind = recipe.model, recipe.objective.kind
    found = read_fixed(section.from_, device="meta").config
    if found.family not in FAMILIES[kind] or section.family not in ("", found.family):
        raise UsageError(
            f"model.from = {section.from_!r} is a model with {_told(found.family)}, and {section.family or kind} needs "
            f"{' or '.join(_told(one) for one in FAMILIES[kind])}"
        )
    stacks: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        stack: StackConfig | None = getattr(found, side)
        if stack is None:
            if side in section.change:
                raise UsageError(f"[model.{side}] is given, but {section.from_} has {_told(found.family)} alone")
            continue
        changes = {**_plain(section.change), **section.change.get(side, {})}
        free = LEAVES_WEIGHTS | ({"max_positions"} if not stack.limited else set())
        fixed = [name for name in changes if name not in free and changes[name] != getattr(stack, name)]
        if fixed:
            raise UsageError(
                f"model.{fixed[0]} = {changes[fixed[0]]!r} is not what {section.from_} was trained with "
                f"({getattr(stack, fixed[0])!r}); of a checkpoint you may change {', '.join(sorted(free))}"
            )
        stacks[side] = changed(stack, changes, f"model.{side}")
        tokenizer = wanted.tokenizer if side == "encoder" or found.family == "decoder" else wanted.tokenizer.target
        if tokenizer.size > stack.vocab:
            raise QkvError(
                f"the tokenizer has {tokenizer.size:,} ids and {section.from_} a vocabulary of {stack.vocab:,}: they "
                "do not belong together; leave tokenizer.from out to take the checkpoint's own"
            )
    head = found.head
    if head.kind != HEAD_KINDS[kind] or not _same_answers(head, wanted, recipe):
        head = head_for(recipe, wanted, stacks.get("decoder") or stacks["encoder"], found.family)
    elif "head" in section.change:
        head = made(HeadConfig, {**_values(head), **section.change["head"]}, "model.head")
    ids = special_ids(wanted.tokenizer, found.family)
    ids = {name: value for name, value in ids.items() if getattr(found, name) in (None, ())}  # 0 is an id
    return replace(found, **stacks, head=head, **ids)


def _values(head: HeadConfig) -> dict[str, Any]:
    return {field.name: getattr(head, field.name) for field in fields(head)}


def _same_answers(head: HeadConfig, wanted: Wanted, recipe: Recipe) -> bool:
    """Whether a checkpoint's head says what is to be learnt."""
    if recipe.objective.kind == "masked_sentences":
        return head.sentence_outputs == 2
    if head.kind not in ("classify", "tag"):
        return True
    return head.outputs == 1 if wanted.scored else head.labels == wanted.classes


def fresh_head(recipe: Recipe, config: Config) -> bool:
    """Whether the checkpoint has no such head; one that differs in its dropout alone is still the checkpoint's."""
    found = read_fixed(recipe.model.from_, device="meta").config
    return replace(found.head, dropout=config.head.dropout) != config.head


def stored(recipe: Recipe, config: Config, device: str) -> Stored:
    """The checkpoint under the config's head."""
    head = config.head if fresh_head(recipe, config) else None
    return read_fixed(recipe.model.from_, device=device, head=head, dtype=torch.float32)


def checkpoint_notes(recipe: Recipe, config: Config, tokenizer: Tokenizer) -> list[str]:
    """What the user should know of the checkpoint that training goes on from: what is ignored, what starts afresh."""
    if not recipe.model.from_:
        return []
    found = stored(recipe, config, "meta")
    if found.tokenizer is None or found.tokenizer.fingerprint == tokenizer.fingerprint:
        return found.notes
    other = "model.from was trained with another tokenizer: what its embedding knows is of other pieces"
    return [*found.notes, other]


def adapted(network: Network, recipe: Recipe, config: Config) -> Network:
    """The network with what stays frozen frozen, and low-rank additions where the recipe has them.

    A head that the checkpoint did not have is trained besides the additions.
    """
    model = recipe.model
    if model.freeze:
        freeze(network, model.freeze)
    if model.lora_rank:
        also = ("head.*",) if fresh_head(recipe, config) else ()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.train.seed)  # the same additions in every process
            add_lora(network, model.lora_rank, model.lora_alpha, model.lora_on, also=also)
    return network


def network_for(recipe: Recipe, config: Config, device: torch.device | str = "cpu") -> Network:
    """The network to train, in float32: fresh weights drawn from the recipe's seed, or the checkpoint's."""
    device = torch.device(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.train.seed)
        if not recipe.model.from_:
            return build(config).to(device)
        network = build(config, device="meta")
        place(network, dict(stored(recipe, config, "cpu").network.named_parameters()), device, torch.float32)
    return network
