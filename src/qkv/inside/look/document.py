"""The document of a page: everything that it shows of one text, as JSON values.

`views` lists the views for which it has numbers, and the page consists of these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from qkv.blocks import SequenceLayout, make_layout
from qkv.blocks.parts import layer_sites
from qkv.errors import UsageError, count_nouns
from qkv.inside.attention import head_summaries
from qkv.inside.look.attention import (
    DESCRIPTIONS,
    TITLES,
    AttentionKind,
    choose_exact_heads,
    describe_attention,
    describe_masks,
)
from qkv.inside.look.embeddings import describe_embedding
from qkv.inside.look.lens import describe_lens
from qkv.inside.look.neurons import describe_layer, unit_site
from qkv.inside.look.sequences import group_words, start_document
from qkv.inside.sites import require_blocks
from qkv.inside.tokens import TokenList, list_tokens
from qkv.inside.trace import Trace
from qkv.models import Config, Network
from qkv.page import WEIGHT_ERROR
from qkv.text import Tokenizer

VIEWS = ("embeddings", "attention", "neurons", "mask", "lens", "alignment")
"""The views of a trace, besides its tokens. A model may lack some of them."""

FAMILY_NAMES = {"encoder": "encoder-only model", "decoder": "decoder-only model", "seq2seq": "encoder-decoder"}
MAX_WEIGHTS = 50_000_000
"""A page with this number of attention weights has about 30 MB."""


@dataclass(frozen=True)
class LookOptions:
    """What to show. `layers` and `heads` are numbers from 0, of every stack; None shows all of them.

    `exact` adds q, k and v of the heads that fit into a page, from which it computes their numbers step by step.
    """

    model_name: str = "model"
    title: str = ""
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    views: tuple[str, ...] = VIEWS
    exact: bool = True

    @property
    def shows_all_attention(self) -> bool:
        """Whether a trace for the page has the patterns of all layers and heads."""
        return self.shows_attention and self.layers is None and self.heads is None

    @property
    def shows_attention(self) -> bool:
        """Whether one of the views needs the attention patterns."""
        return not {"attention", "mask", "alignment"}.isdisjoint(self.views)


def make_document(
    network: Network,
    trace: Trace,
    tokenizer: Tokenizer | None,
    options: LookOptions,
    parts: Mapping[str, Any],
    token_type_ids: Sequence[int] | None = None,
) -> dict[str, Any]:
    """The document of a trace that has the sites of `document_sites`.

    `parts` are further views, such as "search", which are added as they are.

    `token_type_ids` are the token types of an encoder's text; None stands for zeros.
    """
    config = network.config
    options = limit_views(config, options)
    layouts = {name: tokens.layout() for name, tokens in trace.tokens.items()}
    kinds = list_attentions(network, layouts)
    stacks = [kind.stack for kind in kinds if kind.name != "cross"]
    document = describe_model(config, trace.tokens, tokenizer, options)
    available = {"embeddings", "neurons"}
    if config.head.kind in ("lm", "mlm") and "lens" in options.views:
        available.add("lens")
    if "embeddings" in options.views:
        document["embeddings"] = [
            describe_embedding(
                stack,
                network.embeddings[stack.name],
                trace.tokens[stack.name],
                trace[f"{stack.name}.0.resid_pre"],
                token_type_ids,
            )
            for stack in stacks
        ]
    if options.shows_attention:
        document["attention"] = describe_attentions(kinds, trace, config, options)
        available |= {"attention", "mask"}
        document["footer"] = describe_rounding(document["attention"])
        if document["attention"][-1]["name"] == "cross" and config.head.kind == "lm":
            document["alignment"] = {"attention": "cross", "written": describe_output_tokens(trace, tokenizer)}
            available.add("alignment")
    if "neurons" in options.views:
        document["neurons"] = {
            "layers": [
                describe_layer(network, trace.values, stack, layer, tokenizer)
                for stack in stacks
                for layer in _choose(options.layers, stack.config.layers, "layer", config)
            ]
        }
    if "lens" in options.views and "lens" in available:
        document["lens"] = describe_lens(network, trace, tokenizer)
    document["views"] += [name for name in options.views if name in available]
    for name, part in parts.items():
        document[name] = part
        document["views"].append(name)
    return document


def describe_attentions(
    all_kinds: Sequence[AttentionKind], trace: Trace, config: Config, options: LookOptions
) -> list[dict[str, Any]]:
    """The chosen layers and heads of each attention, with their roles."""
    layers = {kind.name: _choose(options.layers, kind.stack.config.layers, "layer", config) for kind in all_kinds}
    heads = {kind.name: _choose(options.heads, kind.stack.config.heads, "head", config) for kind in all_kinds}
    kinds = [kind for kind in all_kinds if layers[kind.name] and heads[kind.name]]
    check_size(kinds, layers, heads)
    exact_heads = choose_exact_heads(kinds, trace.values, layers, heads) if options.exact else {}
    attention = [
        describe_attention(kind, trace.values, layers[kind.name], heads[kind.name], exact_heads.get(kind.name, ()))
        for kind in kinds
    ]
    add_roles(attention, trace)
    return attention


def describe_rounding(attention: Sequence[Mapping[str, Any]]) -> str:
    """The footer of a page with patterns: how exact their weights are."""
    num_heads = sum(len(part["layers"]) * len(part["heads"]) for part in attention)
    num_exact = sum(len(part["details"]) for part in attention)
    return (
        f"Weights of heads are rounded to {WEIGHT_ERROR:.4f} or better. {num_exact} of {num_heads} heads also have "
        "their q, k and v in float32, from which this page computes the steps. Made by qkv look."
    )


def check_size(kinds: Sequence[AttentionKind], layers: dict[str, list[int]], heads: dict[str, list[int]]) -> None:
    """Raise an error if there are too many attention weights for a page."""
    num_weights = 0
    for kind in kinds:
        num_cells = kind.queries.positions.shape[1] * kind.keys.positions.shape[1]
        num_weights += len(layers[kind.name]) * len(heads[kind.name]) * num_cells
    if num_weights > MAX_WEIGHTS:
        raise UsageError(
            f"all heads together have {num_weights:,} attention weights, and a page shows at most {MAX_WEIGHTS:,}; "
            "choose some with --layers and --heads, or shorten the text"
        )


def add_roles(attention: Sequence[dict[str, Any]], trace: Trace) -> None:
    """Add to each head's summary its mean weights on the previous, the first and the special tokens, and its role.

    The role is the largest of them, if it is more than half of the weight.
    """
    found = {(head_summary.site, head_summary.head): head_summary for head_summary in head_summaries(trace)}
    for part in attention:
        activation = "cross_pattern" if part["name"] == "cross" else "pattern"
        for layer, summaries in zip(part["layers"], part["summaries"], strict=True):
            for head, summary in zip(part["heads"], summaries, strict=True):
                head_summary = found[f"{part['queries']}.{layer}.{activation}", head]
                weights = {"previous token": head_summary.previous_token, "first token": head_summary.first_token}
                weights |= {
                    "special tokens": head_summary.separator,
                    "token after an earlier copy": head_summary.induction,
                }
                roles = {name: round(weight, 4) for name, weight in weights.items() if weight is not None}
                best = max(roles, key=lambda name: roles[name])
                summary["roles"] = roles
                summary["role"] = best if roles[best] > 0.5 else None


def make_mask_document(
    network: Network,
    sequences: Mapping[str, tuple[Sequence[int], Sequence[int]]],
    tokenizer: Tokenizer | None,
    options: LookOptions,
) -> dict[str, Any]:
    """A document of tokens and masks only. `sequences` has the ids and document ids of each stack; id 0 is padding."""
    require_blocks(network.config, "a page of attention masks")
    tokens, layouts = {}, {}
    for name, (ids, document_ids) in sequences.items():
        side = tokenizer.target if tokenizer is not None and name == "decoder" else tokenizer
        tokens[name] = list_tokens(ids, side)
        layouts[name] = make_layout(torch.tensor([list(ids)]), torch.tensor([list(document_ids)]))
    document = describe_model(network.config, tokens, tokenizer, options)
    document["attention"] = []
    for kind in list_attentions(network, layouts):
        layers = _choose(options.layers, kind.stack.config.layers, "layer", network.config)
        if not layers:
            continue
        masks, mask_of_layer = describe_masks(kind, layers)
        part: dict[str, Any] = {"name": kind.name, "title": TITLES[kind.name], "description": DESCRIPTIONS[kind.name]}
        part |= {"queries": kind.stack_name, "keys": kind.key_stack_name, "layers": layers}
        document["attention"].append({**part, "masks": masks, "mask_of_layer": mask_of_layer})
    if not document["attention"]:
        raise UsageError(
            "--layers chooses layers of the decoder, but its mask needs target texts; add a --target for each text"
        )
    document["views"].append("mask")
    return document


def document_sites(config: Config, options: LookOptions) -> list[str]:
    """The sites that `make_document` reads, as glob patterns for `qkv.inside.trace`."""
    require_blocks(config, "this page")
    options = limit_views(config, options)
    sites = [*(["*.0.resid_pre"] if {"embeddings", "lens"} & {*options.views} else []), "logits"]
    if "lens" in options.views:
        sites.append("*.resid_post")
    patterns = ["pattern", *(("q", "k", "v") if options.exact else ())] if options.shows_attention else []
    for stack, stack_config in config.stacks.items():
        has_cross = stack == "decoder" and config.family == "seq2seq"
        units = [unit_site(stack_config)] if "neurons" in options.views else []
        recorded = [*units, *patterns, *(f"cross_{name}" for name in patterns if has_cross)]
        for layer in _choose(options.layers, stack_config.layers, "layer", config):
            sites += [f"{stack}.{layer}.{name}" for name in recorded]
    return sites


VIEW_SITES = {
    "embeddings": ("resid_pre",),
    "lens": ("resid_pre", "resid_post"),
    "neurons": ("mlp_post",),
    **dict.fromkeys(("attention", "mask", "alignment"), ("pattern",)),
}
"""The sites that each view reads in every layer."""


def limit_views(config: Config, options: LookOptions) -> LookOptions:
    """Leave out the views of sites that the parts of a model do not have, with a note.

    The page computes the steps of attention as softmax attention does, so it does this for no other kind.
    """
    cross = config.family == "seq2seq"
    sites = [{*layer_sites(stack, 0, cross=cross and name == "decoder")} for name, stack in config.stacks.items()]
    for have, stack in zip(sites, config.stacks.values(), strict=True):
        if unit_site(stack) in have:
            have.add("mlp_post")  # the view of neurons shows experts, too
    missing = {
        view: [one for one in needed if any(one not in have for have in sites)] for view, needed in VIEW_SITES.items()
    }
    views = tuple(view for view in options.views if not missing.get(view))
    notes = options.notes
    if left_out := [view for view in options.views if view not in views]:
        without = dict.fromkeys(site for view in left_out for site in missing[view])
        notes = (*notes, f"Not shown: {', '.join(left_out)}. The parts of this model have no {', '.join(without)}.")
    is_softmax = all(
        stack.attention == "softmax" and not stack.score_cap and stack.attention_sinks == "none"
        for stack in config.stacks.values()
    )
    return replace(options, views=views, notes=notes, exact=options.exact and is_softmax)


def describe_model(
    config: Config, tokens: Mapping[str, TokenList], tokenizer: Tokenizer | None, options: LookOptions
) -> dict[str, Any]:
    """The beginning of a document of a model."""
    stack = config.stack
    size = f"{count_nouns(stack.layers, 'layer')}, {count_nouns(stack.heads, 'head')}, width {stack.width}"
    if config.family == "seq2seq" and config.encoder is not None:
        size = f"{config.encoder.layers} + {size}"
    title = options.title or " → ".join(join_text(sequence, tokenizer, name) for name, sequence in tokens.items())
    subtitle = f"{options.model_name}: {FAMILY_NAMES[config.family]}, {config.head.kind} head, {size}"
    words = {name: group_words(sequence, tokenizer) for name, sequence in tokens.items()}
    return start_document(title, subtitle, tokens, words) | {"notes": list(options.notes)}


def describe_output_tokens(trace: Trace, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The output token of each decoder position: the next token of the input, or at the last position the argmax."""
    side = None if tokenizer is None else tokenizer.target
    written = list_tokens([*trace.tokens["decoder"].ids[1:], int(trace["logits"][-1].argmax())], side)
    return {"texts": list(written.texts), "words": group_words(written, side)}


def join_text(tokens: TokenList, tokenizer: Tokenizer | None, stack: str) -> str:
    """The text of tokens without special tokens."""
    if tokenizer is None:
        return " ".join(tokens.texts)
    side = tokenizer.target if stack == "decoder" else tokenizer
    return side.decode(tokens.ids).strip()


def list_attentions(network: Network, layouts: Mapping[str, SequenceLayout]) -> list[AttentionKind]:
    """The attentions of a model for which there are layouts: encoder, decoder, cross-attention."""
    kinds = [AttentionKind(name, network.stacks[name], layout, layout) for name, layout in layouts.items()]
    if network.has_source and "decoder" in layouts:
        kinds.append(AttentionKind("cross", network.stacks["decoder"], layouts["decoder"], layouts["encoder"]))
    return kinds


def _choose(chosen: Sequence[int] | None, count: int, noun: str, config: Config) -> list[int]:
    """The chosen layers or heads of a stack with `count` of them.

    The stacks of an encoder-decoder may have different numbers of layers; a number that one of them has is no error.
    """
    largest = max(stack.layers if noun == "layer" else stack.heads for stack in config.stacks.values())
    if chosen is None:
        return list(range(count))
    if not chosen:
        raise UsageError(f"--{noun}s: no {noun} is chosen; choose from 0 … {largest - 1}")
    for number in chosen:
        if not 0 <= number < largest:
            raise UsageError(f"--{noun}s {number}: this model has {noun}s 0 … {largest - 1}; choose from these")
    return sorted({number for number in chosen if number < count})
