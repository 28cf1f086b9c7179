"""Look: gather what happens inside a model on one text into a page (`qkv.inside.look`)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qkv.blocks.inputs import Prompt
from qkv.decode import GenerationOptions, generate
from qkv.decode.runner import start_token
from qkv.errors import UsageError
from qkv.inside.look.document import LookOptions, document_sites, make_document, make_mask_document
from qkv.inside.look.page import Look
from qkv.inside.look.search import describe_search
from qkv.inside.substitutions import score_substitutions
from qkv.models import Config, Network
from qkv.models.runtime import eval_mode
from qkv.page import pack_signed
from qkv.tasks.run.generate import limit_new_tokens, prompt_ids
from qkv.tasks.run.trace import Text, encode_text, trace_text
from qkv.tasks.text_model import require_tokenizer
from qkv.text import Tokenizer

MAX_TOKENS = 512
"""A page shows this many tokens of a sequence at most: the patterns grow with its square."""


def look_at_text(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    text: Text,
    target: str | Sequence[int] | None = None,
    *,
    options: LookOptions,
    search: GenerationOptions | None = None,
) -> Look:
    """Trace a text and describe everything that the page shows. `search` adds the tree of a beam search."""
    ids, token_type_ids = encode_text(tokenizer, config, text)
    check_num_tokens(len(ids), "the text")
    trace = trace_text(network, tokenizer, config, text, target, sites=document_sites(config, options))
    check_num_tokens(max(map(len, trace.tokens.values())), "the target")
    if isinstance(ids, Prompt):
        note = "At placeholders, the vectors of the front end replace the embeddings."
        options = replace(options, notes=(*options.notes, note))
    notes = [*list_unknown_tokens(tokenizer, ids), *list_unread_masks(tokenizer, text, ids)]
    options = replace(options, notes=(*options.notes, *notes))
    parts = {}
    if tokenizer is not None and tokenizer.reads_residues and config.head.kind == "mlm" and isinstance(text, str):
        parts["substitutions"] = describe_substitutions(network, tokenizer, text)
    if isinstance(ids, Prompt) and "patches" in ids.inputs.payloads and options.shows_all_attention:
        from qkv.inside.look.pictures import describe_pictures

        parts["picture"] = describe_pictures(network, trace, ids)
    if search is not None:
        stack = config.stack
        num_prompt = 1 if config.family == "seq2seq" else len(ids)
        if stack.has_max_positions and num_prompt >= stack.max_positions:
            note = f"There is no beam search: the text fills all {stack.max_positions} positions of the model."
            options = replace(options, notes=(*options.notes, note))
        else:
            parts["search"] = search_from(network, tokenizer, ids, search, num_prompt)
    return Look(make_document(network, trace, tokenizer, options, parts, token_type_ids))


def describe_substitutions(network: Network, tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """The scores of all single substitutions of a protein, as the page draws them: amino acids in rows."""
    found = score_substitutions(network, tokenizer, text)
    return {
        "sequence": found.sequence,
        "amino_acids": found.amino_acids,
        "scores": pack_signed(found.scores.T.numpy()),
        "pseudo_perplexity": round(found.pseudo_perplexity, 4),
    }


def list_unknown_tokens(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """A note that counts the unknown tokens of a text; no note if all are known."""
    unk = None if tokenizer is None else tokenizer.special_tokens.unk
    count = 0 if unk is None else list(ids).count(unk)
    return [f"{count} of {len(ids)} tokens of the text are not in the vocabulary."] if count else []


def list_unread_masks(tokenizer: Tokenizer | None, text: Text, ids: Sequence[int]) -> list[str]:
    """A note if a text has the mask token of other models, which this tokenizer reads as plain text."""
    mask = None if tokenizer is None else tokenizer.special_tokens.mask
    if tokenizer is None or mask is None or mask in ids:
        return []
    written = [spelling for spelling in ("[MASK]", "<mask>") if spelling in str(text)]
    return [f"{written[0]} is plain text for this model; its mask is {tokenizer.id_to_token(mask)}."] if written else []


def search_from(
    network: Network, tokenizer: Tokenizer | None, ids: Sequence[int], search: GenerationOptions, num_prompt: int
) -> dict[str, Any]:
    """Run a beam search and describe it. The length of the text is limited by the model's positions after `num_prompt`
    tokens.
    """
    limit = limit_new_tokens(network.config, search.max_tokens, num_prompt)
    search = replace(search, max_tokens=limit, return_search_steps=True)
    with eval_mode(network):
        result = generate(network, [ids], search, tokenizer)[0]
    return describe_search(result, search, tokenizer)


def check_num_tokens(num_tokens: int, subject: str) -> None:
    """Raise an error if a sequence is too long for a page."""
    if num_tokens > MAX_TOKENS:
        raise UsageError(f"{subject} has {num_tokens:,} tokens, and a page shows at most {MAX_TOKENS}; shorten it")


def look_at_mask(
    network: Network,
    tokenizer: Tokenizer | None,
    config: Config,
    texts: Sequence[str],
    targets: Sequence[str] = (),
    *,
    length: int | None = None,
    options: LookOptions,
) -> Look:
    """Pack texts into one sequence, pad it to `length` tokens, and describe the masks of the model.

    The texts are separate documents. An encoder-decoder without targets shows the mask of its encoder only.
    """
    known = require_tokenizer(tokenizer)
    sequences = {}
    if network.has_source:
        if targets and len(targets) != len(texts):
            raise UsageError(f"{len(targets)} targets for {len(texts)} texts; give one --target for each text, or none")
        sequences["encoder"] = _pack([known.encode(text) for text in texts], length, config)
        if targets:
            inputs = [
                [start_token(network), *known.target.encode(target, add_special_tokens=False)] for target in targets
            ]
            sequences["decoder"] = _pack(inputs, length, config)
    else:
        if targets:
            raise UsageError(f"--target is for an encoder-decoder; this model is {config.family}-only, so leave it out")
        sequences[config.family] = _pack([prompt_ids(known, config, text) for text in texts], length, config)
    return Look(make_mask_document(network, sequences, tokenizer, options))


def _pack(documents: Sequence[list[int]], length: int | None, config: Config) -> tuple[list[int], list[int]]:
    """The ids of packed documents with padding on the right, and their document ids."""
    ids = [i for document in documents for i in document]
    document_ids = [n for n, document in enumerate(documents, start=1) for _ in document]
    length = len(ids) if length is None else length
    if length < len(ids):
        raise UsageError(f"--length {length}: the texts have {len(ids)} tokens; give a larger length or shorter texts")
    check_num_tokens(length, "the packed sequence")
    padding = length - len(ids)
    return ids + [config.pad_token_id or 0] * padding, document_ids + [0] * padding
