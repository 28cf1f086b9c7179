"""Parts of a model that are switched off: they add nothing to the residual stream.

decoder.3.head.5      a head of self-attention
decoder.3.cross.5     a head of cross-attention
decoder.3.mlp         a feed-forward network
decoder.3             a layer: its attention and its feed-forward network
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from qkv.blocks import StackConfig
from qkv.errors import UsageError
from qkv.inside import Edit, zero_ablate
from qkv.models import Config

NAME = re.compile(r"(encoder|decoder)\.(\d{1,6})(?:\.(mlp|(head|cross)\.(\d{1,6})))?")


def make_edits(config: Config, off: Iterable[str]) -> list[Edit]:
    """The edits that switch parts off. A name that the model does not have is an error."""
    edits: list[Edit] = []
    heads: dict[str, list[int]] = defaultdict(list)
    for name in dict.fromkeys(off):
        found = NAME.fullmatch(name)
        stack = getattr(config, found[1]) if found else None
        has_cross = found is not None and found[1] == "decoder" and config.encoder is not None
        if found is None or stack is None or not _exists(stack, found, has_cross):
            raise UsageError(f"this model has no part {name[:80]!r}; a part is {describe_parts(config)}")
        layer = f"{found[1]}.{int(found[2])}"
        if found[3] is None:
            outputs = ("attn_out", *(["cross_out"] if has_cross else []), "mlp_out")
            edits += [zero_ablate(f"{layer}.{site}") for site in outputs]
        elif found[3] == "mlp":
            edits.append(zero_ablate(f"{layer}.mlp_out"))
        else:
            heads[f"{layer}.{'z' if found[4] == 'head' else 'cross_z'}"].append(int(found[5]))
    return edits + [zero_ablate(site, heads=numbers) for site, numbers in heads.items()]


def _exists(stack: StackConfig, found: re.Match[str], has_cross: bool) -> bool:
    return (
        int(found[2]) < stack.layers
        and (found[5] is None or int(found[5]) < stack.heads)
        and (found[4] != "cross" or has_cross)
    )


def describe_parts(config: Config) -> str:
    """The names of the parts of a model, for an error message."""
    described = []
    for name, stack in config.stacks.items():
        kinds = "head or cross" if name == "decoder" and config.encoder is not None else "head"
        described.append(
            f"{name}.L, {name}.L.mlp or {name}.L.{{{kinds}}}.H with L < {stack.layers} and H < {stack.heads}"
        )
    return "; ".join(described)


def list_stacks(config: Config) -> list[dict[str, Any]]:
    """The stacks of a model and their sizes, from which the page draws its switches."""
    return [
        {
            "name": name,
            "layers": stack.layers,
            "heads": stack.heads,
            "width": stack.width,
            "cross": name == "decoder" and config.encoder is not None,
        }
        for name, stack in config.stacks.items()
    ]
