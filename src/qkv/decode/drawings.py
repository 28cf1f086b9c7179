"""Draw the codes that a model has generated: sequences of codes become images or sounds."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.models import Network
from qkv.models.runtime import eval_mode


class Drawing(NamedTuple):
    """The image or sound of the codes ids[start:end]."""

    kind: str  # the name of the back end
    start: int
    end: int
    values: Tensor  # pixels or samples, as the back end returns them


def draw(network: Network, ids: Sequence[int]) -> list[Drawing]:
    """Draw each maximal sequence of codes of one back end. All other ids are text."""
    drawings, start = [], 0
    for kind, run in groupby(ids, lambda token: find_back_end(network, token)):
        end = start + len(list(run))
        if kind:
            first = next(back_end.first_id for back_end in network.config.back_ends if back_end.kind == kind)
            codes = torch.tensor([token - first for token in ids[start:end]], device=network.device)
            with eval_mode(network):
                drawings.append(Drawing(kind, start, end, network.back_ends[kind](codes)))
        start = end
    return drawings


def find_back_end(network: Network, token: int) -> str:
    """The name of the back end that draws a token; "" for text."""
    return next((back_end.kind for back_end in network.config.back_ends if token in back_end.ids), "")
