"""The trace of a text as a document, which the page draws with the views of `qkv.page`."""

from collections.abc import Mapping
from typing import Any

from qkv.api import Model
from qkv.errors import UsageError
from qkv.inside import SparseAutoencoder
from qkv.inside.look.document import VIEWS, LookOptions, document_sites, make_document
from qkv.serve.studio.alignment import describe_alignment
from qkv.serve.studio.neurons import describe_features
from qkv.serve.studio.next_token import describe_next
from qkv.serve.studio.requests import MAX_TOKENS, TraceRequest
from qkv.serve.studio.results import ResultCache, read_text, split_pair
from qkv.serve.studio.switches import list_stacks, make_edits
from qkv.tasks.run.look import list_unknown_tokens, list_unread_masks
from qkv.tasks.run.trace import trace_text

MAX_TRACE_BYTES = 256 * 2**20
Autoencoders = Mapping[str, SparseAutoencoder]
"""The sparse autoencoders of a model, by name."""


def trace_document(
    model: Model, request: TraceRequest, autoencoders: Autoencoders, results: ResultCache
) -> dict[str, Any]:
    """Trace a text with some parts switched off; describe the requested views and the result."""
    config, tokenizer = model.config, model.tokenizer
    edits = make_edits(config, request.off)
    ids, token_types = read_text(model, request.text)
    check_num_tokens(len(ids), "text")
    shown, shown_with_all = (results.find(model, request.text, off) for off in (request.off, ()))
    target: str | list[int] | None = None
    if config.family == "seq2seq":
        target = shown.ids if request.target is None else request.target
    notes = [*list_unknown_tokens(tokenizer, ids), *list_unread_masks(tokenizer, request.text, ids)]
    options = LookOptions(
        model_name=request.model,
        layers=None if request.layer is None else (request.layer,),
        heads=None if request.head is None else (request.head,),
        notes=tuple(notes),
        views=tuple(view for view in request.views if view in VIEWS),
        exact=request.head is not None,
    )
    features = autoencoders if "features" in request.views else {}
    sites = [*document_sites(config, options), *(one.config.site for one in features.values())]
    trace = trace_text(
        *(model.network, tokenizer, config, split_pair(config, request.text), target),
        sites=sites,
        edits=edits,
        max_bytes=MAX_TRACE_BYTES,
    )
    check_num_tokens(max(map(len, trace.tokens.values())), "target")
    parts: dict[str, Any] = {}
    if "next" in request.views and (described := describe_next(model, trace, request.position)) is not None:
        parts["next"] = described
    if "word_alignment" in request.views and config.family == "seq2seq" and config.head.kind == "lm":
        parts["word_alignment"] = describe_alignment(model, request.text, trace.tokens["decoder"].ids[1:], edits)
    document = make_document(model.network, trace, tokenizer, options, parts, token_types)
    if features:
        document["neurons"]["layers"] += describe_features(model, trace, features)
    return document | {"answer": {**shown.to_dict(), "with_all": shown_with_all.text}}


def check_num_tokens(num_tokens: int, name: str) -> None:
    """Raise an error if a sequence is too long to be drawn."""
    if num_tokens > MAX_TOKENS:
        raise UsageError(f"the {name} has {num_tokens:,} tokens, and the studio shows at most {MAX_TOKENS}; shorten it")


def describe_model(model: Model, name: str, examples: list[str], autoencoders: Autoencoders) -> dict[str, Any]:
    """The properties of a model that the page needs before it traces a text."""
    config = model.config
    tokenizer = model.tokenizer
    mask_id = None if tokenizer is None else tokenizer.special_tokens.mask
    mask = None if mask_id is None or tokenizer is None else tokenizer.id_to_token(mask_id)
    masked = config.head.kind == "mlm" and mask is not None
    return {
        "name": name,
        "family": config.family,
        "head": config.head.kind,
        "parameters": sum(parameter.numel() for parameter in model.network.parameters()),
        "stacks": list_stacks(config),
        "max_tokens": min(MAX_TOKENS, config.stack.max_positions) if config.stack.has_max_positions else MAX_TOKENS,
        "mask": mask,
        "examples": examples or [f"The cat {mask if masked else 'sat'} on the mat."],
        "autoencoders": list(autoencoders),
    }
