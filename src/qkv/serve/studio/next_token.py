"""The distribution over the next token, or over the labels of a classifier, at one position.

The page gets all logits, sorted, because temperature, top-k and top-p depend on all of them. It names only the first.

T tokens, V vocabulary
"""

from collections.abc import Sequence
from typing import Any

import torch

from qkv.api import Model
from qkv.errors import UsageError
from qkv.inside import Trace
from qkv.inside.tokens import token_text
from qkv.page import pack
from qkv.serve.studio.results import label_text

NUM_NAMED = 100
KINDS = {
    "lm": ("token", "The next token after"),
    "mlm": ("token", "The token at"),
    "classify": ("label", "The label of the text"),
    "tag": ("label", "The tag of"),
}
"""The heads whose outputs are a distribution: what it is over, and the heading of its picture."""


def describe_next(model: Model, trace: Trace, position: int | None) -> dict[str, Any] | None:
    """The logits at a position, largest first; None for a head without such a distribution."""
    head, logits = model.config.head, trace["logits"].float()
    if head.kind not in KINDS or head.outputs < 2:
        return None
    tokens = trace.tokens[trace.output_stack]
    is_pooled = logits.dim() == 1
    if position is None:
        position = default_position(model, tokens.ids)
    if not is_pooled and position >= len(tokens):
        raise UsageError(f"position {position}: the text has {len(tokens)} tokens; choose from 0 … {len(tokens) - 1}")
    row, order = (logits if is_pooled else logits[position]).sort(descending=True)
    tokenizer = None if model.tokenizer is None else model.tokenizer.target
    kind, heading = KINDS[head.kind]
    named = order[:NUM_NAMED].tolist()
    return {
        "kind": kind,
        "sequence": None if is_pooled else trace.output_stack,
        "position": None if is_pooled else position,
        "predicts": heading,
        "ids": named,
        "texts": [label_text(head.labels, i) if kind == "label" else token_text(i, tokenizer) for i in named],
        "logits": pack(row.to(torch.float32).numpy()),
        "temperature": head.temperature,
        "multi_label": head.multi_label,
    }


def default_position(model: Model, ids: Sequence[int]) -> int:
    """The last token of a decoder, the start of an encoder-decoder, and the first mask of a masked language model."""
    if model.config.family == "decoder":
        return len(ids) - 1
    mask = None if model.tokenizer is None else model.tokenizer.special_tokens.mask
    is_masked = mask is not None and model.config.family == "encoder" and mask in ids
    return list(ids).index(mask) if is_masked else 0  # type: ignore[arg-type]
