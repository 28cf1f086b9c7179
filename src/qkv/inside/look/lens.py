"""The logit lens of a document: the best tokens after each layer at each position.

L layers and the embedding, T tokens, K tokens of a ranking
"""

from typing import Any

import torch

from qkv.inside.lens import logit_lens
from qkv.inside.tokens import token_text
from qkv.inside.trace import Trace
from qkv.models import Network
from qkv.page import pack
from qkv.text import Tokenizer

TOP_K = 5


def describe_lens(network: Network, trace: Trace, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The predictions after each layer. The targets of a decoder are the next tokens; at the end, its prediction.

    The targets of a masked language model are its own predictions.
    """
    stack = trace.output_stack
    targets = None
    if stack == "decoder":
        targets = [*trace.tokens[stack].ids[1:], int(trace["logits"][-1].argmax())]
    reading = logit_lens(network, trace, targets=targets, top_k=TOP_K)
    side = tokenizer.target if tokenizer is not None and stack == "decoder" else tokenizer
    used = torch.cat([reading.top_ids.flatten(), reading.target_ids]).unique().tolist()
    return {
        "sequence": stack,
        "layers": [
            "embedding" if site.endswith("resid_pre") else f"layer {site.split('.')[1]}" for site in reading.sites
        ],
        "vocabulary": {str(i): token_text(i, side) for i in used},
        "target_name": "next token" if stack == "decoder" else "final prediction",
        "target_ids": reading.target_ids.tolist(),
        "top_ids": pack(reading.top_ids.to(torch.int32).numpy()),
        "top_probs": pack(reading.top_probs.float().numpy()),
        "target_probs": pack(reading.target_probs.float().numpy()),
        "target_ranks": pack(reading.target_ranks.to(torch.int32).numpy()),
    }
