"""The vectors that enter the first block: token embedding, position, and their sum.

T tokens, W width of the embedding
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.blocks import Embedding, Stack
from qkv.inside.tokens import TokenList
from qkv.page import Packed, pack_signed

MAX_DIMENSIONS = 128
"""A picture shows this many dimensions of a vector at most."""


@torch.no_grad()
def describe_embedding(
    stack: Stack,
    embedding: Embedding,
    token_list: TokenList,
    residual: Tensor,
    token_type_ids: Sequence[int] | None = None,
) -> dict[str, Any]:
    """The embedding of a sequence as part of a document. `residual` (T, C) is what the first block reads.

    At the placeholders of a payload, that is the vector of the front end instead of the sum of the parts.
    """
    device, ids = embedding.token.weight.device, token_list.ids
    tokens, layout = torch.tensor([ids], device=device), token_list.layout()
    layout = layout._replace(positions=layout.positions.to(device))
    positions = layout.positions
    parts = [("token embedding", embedding.token(tokens)[0] * embedding.scale)]
    added = embedding.position_vectors(positions)
    if added is not None:
        parts.append(("position", added[0]))
    if embedding.types is not None:
        types = torch.tensor(token_type_ids or [0] * len(ids), device=device)
        parts.append(("token type", embedding.types(types)))
    is_changed = embedding.norm is not None or embedding.project is not None or embedding.mask_token_id is not None
    if is_changed or len(parts) > 1:
        name_of_sum = "sum" if embedding.norm is None else "sum, normed"
        parts.append((f"{name_of_sum}: input of layer 0", residual))
    norms = {name: [round(norm, 4) for norm in values.float().norm(dim=-1).tolist()] for name, values in parts}
    described: list[dict[str, Any]] = [
        {"name": name, "values": _packed(values), "norms": norms[name]} for name, values in parts
    ]
    if stack.config.position == "rotary":
        # If some layers have no window, their table comes first.
        cosines = next(iter(stack.rotary_tables(residual[None], layout).values())).cos[0, 0]
        half = cosines.shape[-1] // 2
        described.append({"name": "cosine of the rotary angles", "values": _packed(cosines[:, :half]), "norms": None})
    width = embedding.token.embedding_dim
    return {
        "sequence": stack.name,
        "position_kind": stack.config.position,
        "width": width,
        "shown": min(width, MAX_DIMENSIONS),
        "parts": described,
    }


def _packed(values: Tensor) -> Packed:
    return pack_signed(values[:, :MAX_DIMENSIONS].float().cpu().numpy())
