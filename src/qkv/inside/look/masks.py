"""The mask with the reason of each cell: why a query may not attend to a key.

T queries, S keys
"""

from typing import Any

import numpy as np
import torch

from qkv.blocks import Mask
from qkv.page import pack

REASONS = ("visible", "padding", "other document", "future", "outside the window")
"""The reasons by number; `page/static/mask_reasons.js` has the same order."""


def mask_reasons(mask: Mask) -> np.ndarray:
    """The reason of each cell, (T, S): 0 if the query may attend to the key. Of several reasons, the first counts."""
    query_documents, key_documents = (ids[0] for ids in mask.document_id_pair())
    query_positions, key_positions = mask.query.positions[0][:, None], mask.key.positions[0][None, :]
    distance = query_positions - key_positions
    padding = (query_documents == 0)[:, None] | (key_documents == 0)[None, :]
    reasons = torch.zeros(len(query_documents), len(key_documents), dtype=torch.uint8)
    if mask.window:
        reasons[distance.abs() > mask.window] = 4
    if mask.causal:
        reasons[distance < 0] = 3
    reasons[query_documents[:, None] != key_documents[None, :]] = 2
    reasons[padding] = 1
    return reasons.numpy()


def describe_mask(mask: Mask, layers: list[int]) -> dict[str, Any]:
    """A mask as part of a document. `fully_masked_queries` attend to no key; some of them are `padding_queries`."""
    reasons = mask_reasons(mask)
    blind = np.flatnonzero((reasons != 0).all(axis=1)).tolist()
    query_documents = mask.document_id_pair()[0][0]
    return {
        "layers": layers,
        "causal": mask.causal,
        "window": mask.window,
        "reasons": pack(reasons),
        "num_masked": int((reasons != 0).sum()),
        "fully_masked_queries": blind,
        "padding_queries": (query_documents == 0).nonzero()[:, 0].tolist(),
    }
