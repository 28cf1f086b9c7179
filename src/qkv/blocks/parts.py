"""The table of parts: which module each name in a config builds, what it costs, and which of its values a tap can see.

    slot          field of the config   its module                                        arguments of build and cost
    attention     attention             forward(x, mask, rotary, cache, tap)              config, cross
    feedforward   feedforward           forward(x, tap)                                   config
    norm          norm                  forward(x)                                        config, width
    position      position              see below                                         config
    block         block                 forward(x, mask, rotary, cache, source, tap)      config, cross, skip_norm
                                        or a whole stack (`is_stack`): see below          config, name, causal, cross

A position acts in one place: its vectors are added to the embedding, `forward(positions)`; it rotates queries and keys,
`forward(positions, dtype, window)`, which returns an object with `rotate(x)`; or it is a bias of the scores,
`forward(query_positions, key_positions, dtype)`, which is also built with `causal`.

A whole stack has the methods `forward`, `new_cache` and `build_cross_cache` of `Stack`, and the attributes `config`,
`name`, `causal`, `norm` and `gradient_checkpointing`. Its cache has `batch_size`, `is_default`, `next_positions` and
`reorder`, as `RecurrentCache` has. The recurrent layers are such parts.

A part of your own is one more row (`register_part`). CONTRIBUTING.md has an example.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, cast

from qkv.blocks.cost import (
    PartCost,
    attention_cost,
    experts_cost,
    feedforward_cost,
    layernorm_cost,
    learned_position_cost,
    no_cost,
    recurrent_activations,
    recurrent_cost,
    rmsnorm_cost,
    t5_position_cost,
)
from qkv.tables import OpenTable

StackConfig = Any  # `qkv.blocks.config` imports this module
Slot = Literal["attention", "feedforward", "norm", "position", "block"]
Place = Literal["embedding", "rotation", "scores", "none"]


@dataclass(frozen=True)
class PartRow:
    """One row of the table."""

    build: Callable[..., Any] | str  # "module:name" is imported when the part is first built
    options: Mapping[str, Any] = field(default_factory=dict)  # more keyword arguments of `build` and `cost`
    cost: Callable[..., PartCost] | None = None  # None: parameters are counted, and FLOPs are unknown
    sites: tuple[str, ...] = ()  # the names of its values that a tap can see, in the order of computation
    place: Place = "none"  # where a position acts
    is_limited: bool = False  # a position that ends at `max_positions`
    is_stack: bool = False  # a block part that builds a whole stack
    gated: bool = False  # a feed-forward with a gate, whose default width is 2/3 of the width of one without
    init: Callable[[Any, StackConfig], None] | None = None  # samples the weights of a module of this part
    aux_loss: Callable[[Any], Any] | None = None  # module → a loss of its last forward pass, which training adds
    fixed_shapes: bool = True  # batches of one shape have tensors of the same shapes inside; CUDA graphs need this
    cache: Callable[[StackConfig], Mapping[str, tuple[int, ...]]] | None = None
    # The state that decoding keeps for each sequence and layer, besides keys and values: name → shape.
    fields: tuple[str, ...] = ()  # the fields of the config that this part reads and other parts may not
    read_only_sites: tuple[str, ...] = ()  # the sites that a tap cannot change
    check: Callable[[StackConfig, str], None] | None = None  # raises ValueError for a stack with this config and name
    # Of a whole stack: whether a layer has a site. None: every layer has all of them.
    has_site: Callable[[StackConfig, int, str], bool] | None = None
    # Of a whole stack: the numbers that training keeps, if `cost` cannot state them for each token and layer.
    activations: Callable[..., int] | None = None

    def make(self, *arguments: Any, **named: Any) -> Any:
        """Build the part."""
        build = self.build
        if isinstance(build, str):
            module, _, name = build.partition(":")
            build = cast(Callable[..., Any], getattr(import_module(module), name))
        module = build(*arguments, **self.options, **named)
        if self.init is not None or self.aux_loss is not None:
            module.part_row = self
        return module


def _block_cost(stack: StackConfig, *, cross: bool = False, skip_norm: bool = False) -> PartCost:
    """The cost of a `Block`: attention, feed-forward, and the norms around them."""
    sublayers = 3 if cross else 2
    streams = (9 if stack.dropout else 7) + (4 if cross else 0)
    total = PartCost({}, 0, activations=streams * stack.width)
    total += part_cost("attention", stack) + part_cost("feedforward", stack)
    if cross:
        total += part_cost("attention", stack, cross=True)
    if stack.qk_norm == "head":
        for _ in range(2 * (sublayers - 1)):
            total += part_cost("norm", stack, stack.head_dim)
    if stack.layer_scale:
        total += PartCost({"gains": sublayers * stack.width}, 0)
    for _ in range(sublayers * (2 if stack.norm_placement == "sandwich" else 1) - skip_norm):
        total += part_cost("norm", stack, stack.width)
    return total


SELF_SITES = ("q", "k", "v", "scores", "pattern", "z")
MLP_SITES = ("mlp_pre", "mlp_post")
BLOCK_SITES = (
    *("resid_pre", "<attention>", "attn_out", "resid_mid", "<cross>", "cross_out", "cross_mid"),
    *("<feedforward>", "mlp_out", "resid_post"),
)
"""`<…>` stands for the sites of the part; those of cross-attention begin with "cross_"."""


def _feedforward(**options: Any) -> PartRow:
    gated = options.get("gated", False)
    return PartRow("qkv.blocks.feedforward:FeedForward", options, feedforward_cost, MLP_SITES, gated=gated)


def _check_directions(config: StackConfig, name: str) -> None:
    if name == "encoder" and config.width % 2:
        raise ValueError(f"encoder: width = {config.width} must be even: each direction of the layers has half")


def _recurrent(layer: str) -> PartRow:
    def has_site(config: StackConfig, layer: int, site: str) -> bool:
        return site == "state" or (layer == 0 and config.recurrent_attention == "additive")

    return PartRow(
        "qkv.blocks.recurrent:RecurrentStack",
        {"layer": layer},
        recurrent_cost,
        ("cross_pattern", "state"),
        is_stack=True,
        fixed_shapes=False,
        fields=("recurrent_attention",),
        has_site=has_site,
        read_only_sites=("cross_pattern",),  # every later state depends on it
        check=_check_directions,
        activations=recurrent_activations,
    )


PARTS: dict[str, OpenTable[PartRow]] = {
    "attention": OpenTable(
        "attention", {"softmax": PartRow("qkv.blocks.attention:make_attention", cost=attention_cost, sites=SELF_SITES)}
    ),
    "feedforward": OpenTable(
        "feedforward",
        {
            "relu": _feedforward(activation="relu"),
            "relu2": _feedforward(activation="relu2"),
            "gelu": _feedforward(activation="gelu"),
            "gelu_tanh": _feedforward(activation="gelu_tanh"),
            "quick_gelu": _feedforward(activation="quick_gelu"),
            "silu": _feedforward(activation="silu"),
            "reglu": _feedforward(activation="relu", gated=True),
            "reglu2": _feedforward(activation="relu2", gated=True),
            "geglu": _feedforward(activation="gelu", gated=True),
            "geglu_tanh": _feedforward(activation="gelu_tanh", gated=True),
            "swiglu": _feedforward(activation="silu", gated=True),
            "moe": PartRow(
                "qkv.blocks.experts:Experts",
                {"activation": "silu", "gated": True},
                experts_cost,
                ("routing",),
                gated=True,
                aux_loss=lambda module: module.auxiliary_loss(),
                fixed_shapes=False,
                fields=("experts", "experts_per_token", "router_softmax", "balance_loss", "router_z_loss"),
            ),
        },
    ),
    "norm": OpenTable(
        "norm",
        {
            "layernorm": PartRow("qkv.blocks.norm:layer_norm", cost=layernorm_cost),
            "rmsnorm": PartRow("qkv.blocks.norm:rms_norm", cost=rmsnorm_cost),
            "none": PartRow("torch.nn:Identity", cost=no_cost),  # no norm anywhere, also not in the head
        },
    ),
    "position": OpenTable(
        "position",
        {
            "sinusoidal": PartRow(
                "qkv.blocks.position:SinusoidalPositions", {"split": False}, no_cost, place="embedding"
            ),
            "sinusoidal_split": PartRow(
                "qkv.blocks.position:SinusoidalPositions", {"split": True}, no_cost, place="embedding"
            ),
            "learned": PartRow(
                "qkv.blocks.position:LearnedPositions", cost=learned_position_cost, place="embedding", is_limited=True
            ),
            "rotary": PartRow("qkv.blocks.position:RotaryPositions", cost=no_cost, place="rotation"),
            "alibi": PartRow("qkv.blocks.position:ScoreBias", {"learned": False}, no_cost, place="scores"),
            "t5": PartRow("qkv.blocks.position:ScoreBias", {"learned": True}, t5_position_cost, place="scores"),
            "none": PartRow("torch.nn:Identity", cost=no_cost),
        },
    ),
    "block": OpenTable(
        "block",
        {
            "transformer": PartRow("qkv.blocks.block:Block", cost=_block_cost, sites=BLOCK_SITES),
            "rnn": _recurrent("RNN"),
            "gru": _recurrent("GRU"),
            "lstm": _recurrent("LSTM"),
        },
    ),
}
COMPONENTS = {"attention": "attention", "feedforward": "mlp", "norm": "norms", "position": "position", "block": "block"}
"""The component whose parameters a part counts as, if it states no cost."""


class StackParts(Collection[str]):
    """The names of the block parts that build a whole stack, such as "lstm": values of `model.family`."""

    def __contains__(self, name: object) -> bool:
        return name in PARTS["block"] and PARTS["block"][str(name)].is_stack

    def __iter__(self) -> Iterator[str]:
        return (name for name, row in PARTS["block"].items() if row.is_stack)

    def __len__(self) -> int:
        return sum(1 for _ in self)


STACK_PARTS = StackParts()


def register_part(
    slot: Slot,
    name: str,
    *,
    build: Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    cost: Callable[..., PartCost] | None = None,
    init: Callable[[Any, StackConfig], None] | None = None,
    sites: Sequence[str] = (),
    gated: bool = False,
    aux_loss: Callable[[Any], Any] | None = None,
    cache: Callable[[StackConfig], Mapping[str, tuple[int, ...]]] | None = None,
    place: Place = "none",
    is_limited: bool = False,
    is_stack: bool = False,
    fixed_shapes: bool = True,
    fields: Sequence[str] = (),
    replace: bool = False,
) -> None:
    """Add a part of your own to the table. A config whose field `slot` has the value `name` then builds it.

    build       gets the arguments that the table at the top of `qkv.blocks.parts` lists, and returns a module
    options     more keyword arguments of `build` and `cost`
    cost        gets the arguments of `build` and returns a `PartCost`. Without it, parameters are counted, and FLOPs
                are unknown
    init        (module, config): samples the weights. Without it, linear maps, embeddings and norms start as in every
                model, and a module with a method `init_weights(config)` samples its own
    sites       the names with which the part calls its tap
    gated       a feed-forward that has a gate: by default it is narrower, so that it has as many parameters
    aux_loss    (module): a loss of the last forward pass, such as the balance of experts. Training adds it
    cache       (config): the state that decoding keeps for each sequence, name → shape. An attention or a block reads
                and writes `cache.state[name]`, (B, *shape), which starts at 0. Keys and values need no entry
    place       of a position: "embedding", "rotation" or "scores"
    is_limited  a position that ends at `max_positions`
    is_stack    a block part that builds a whole stack; a recipe names it as model.family
    fixed_shapes  False if the shapes of its tensors depend on their values, so that training runs without CUDA graphs
    fields      of a whole stack: the fields of `StackConfig` that it reads, besides `SHARED_FIELDS`
    replace     allows the name of an earlier call
    """
    table = OpenTable("slot", PARTS).find(slot)
    if slot == "position":
        OpenTable("place", dict.fromkeys(("embedding", "rotation", "scores"), "")).find(place, "place")
    if gated and slot != "feedforward":
        raise ValueError(f"gated is for a feedforward, not for the {slot} {name!r}; leave it out")
    if cache is not None and (slot not in ("attention", "block") or is_stack):
        raise ValueError(
            f"cache is for an attention or a block, whose forward pass gets the cache, not for the {slot} {name!r}; "
            "leave it out" + (": a stack has a method new_cache" if is_stack else "")
        )
    row = PartRow(
        build,
        dict(options or {}),
        cost,
        tuple(sites),
        place,
        is_limited,
        is_stack,
        gated,
        init=init,
        aux_loss=aux_loss,
        fixed_shapes=fixed_shapes,
        cache=cache,
        fields=tuple(fields),
    )
    table.register(name, row, replace=replace)


SHARED_FIELDS = frozenset(
    {
        *("vocab_size", "width", "layers", "embedding_width", "embedding_window"),
        *("max_positions", "embedding_scale", "token_types"),
        *("norm", "norm_affine", "norm_eps", "embedding_norm"),  # of the embedding and the head
        *("block", "dropout", "init", "init_std"),
    }
)
"""The fields of a `StackConfig` that apply to every stack. The others apply to blocks, or to the parts that name them
(`PartRow.fields`)."""


def applies(field: str, block: str) -> bool:
    """Return whether a field of a `StackConfig` applies to a stack of this kind of block.

    >>> applies("heads", "transformer"), applies("heads", "lstm"), applies("recurrent_attention", "lstm")
    (True, False, True)
    """
    row = PARTS["block"][block]
    return not row.is_stack or field in SHARED_FIELDS or field in row.fields


def find_part(slot: Slot, config: StackConfig) -> PartRow:
    """Return the row that a config names."""
    return PARTS[slot].find(getattr(config, slot), slot)


def make_part(slot: Slot, config: StackConfig, *arguments: Any, **named: Any) -> Any:
    """Build the part that a config names."""
    return find_part(slot, config).make(config, *arguments, **named)


def make_position(config: StackConfig, place: Place, **named: Any) -> Any:
    """Build the position encoding of a config if it acts in this place, else return None."""
    part = find_part("position", config)
    return part.make(config, **named) if part.place == place else None


def state_shapes(config: StackConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the state that decoding keeps for each sequence and layer, besides keys and values."""
    rows = [find_part(slot, config) for slot in ("block", "attention")]
    return {name: tuple(shape) for row in rows if row.cache for name, shape in row.cache(config).items()}


def part_cost(slot: Slot, config: StackConfig, *arguments: Any, **named: Any) -> PartCost:
    """Return the cost of the part that a config names. Parameters that it does not state are counted on a new part."""
    part = find_part(slot, config)
    cost = PartCost() if part.cost is None else part.cost(config, *arguments, **part.options, **named)
    if cost.flops is None:
        cost = dataclasses.replace(cost, unstated=(f"{slot} = {getattr(config, slot)!r}",))
    if cost.parameters is not None:
        return cost
    if slot == "position" and part.place == "scores":
        named["causal"] = True
    number = count_new_parameters(lambda: part.make(config, *arguments, **named))
    return dataclasses.replace(cost, parameters={COMPONENTS[slot]: number})


def count_new_parameters(build: Callable[[], Any]) -> int:
    """Return the number of parameters of the module that `build` returns. It is built without memory."""
    import torch

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())


def layer_sites(config: StackConfig, layer: int, *, cross: bool) -> list[str]:
    """Return the sites of a layer, in the order of computation."""
    block = find_part("block", config)
    names = _expand_sites(block, find_part("attention", config).sites, find_part("feedforward", config).sites)
    return [
        name
        for name in names
        if (cross or not name.startswith("cross_"))
        and (name != "resid_mid" or config.residual != "parallel")
        and (block.has_site is None or block.has_site(config, layer, name))
    ]


def all_sites() -> list[str]:
    """Return the sites that the parts in the table have, and "final", the output of a stack."""
    attention, feedforward = (
        [site for part in PARTS[slot].values() for site in part.sites] for slot in ("attention", "feedforward")
    )
    names = [site for block in PARTS["block"].values() for site in _expand_sites(block, attention, feedforward)]
    return list(dict.fromkeys((*names, "final")))


def _expand_sites(block: PartRow, attention: Sequence[str], feedforward: Sequence[str]) -> list[str]:
    inner = {
        "<attention>": attention,
        "<cross>": [f"cross_{site}" for site in attention],
        "<feedforward>": feedforward,
    }
    return [name for site in block.sites for name in inner.get(site, (site,))]
