"""The tap records or changes activations inside a model, without hooks or globals.

A site has a name such as `"decoder.3.cross_pattern"`: the stack, the layer, the activation. Each part states its sites
in the table in `parts.py`. The sites of a Transformer, in the order in which a block computes them:

    resid_pre                                  the residual stream before the block
    q k v  scores  pattern  z  attn_out        self-attention: projections, scores before and after the softmax,
                                               weighted values per head, and the output
    resid_mid                                  the residual stream after attention
    cross_q … cross_z  cross_out  cross_mid    the same for cross-attention
    mlp_pre  mlp_post  mlp_out                 the feed-forward: before and after its activation, and its output
    routing                                    instead of these two, in a mixture: the weight of each expert, (B, T, E)
    resid_post                                 the residual stream after the block
    final                                      `"decoder.final"`: after the last norm, what the head reads

A recurrent stack has `state` in each layer, the outputs (B, T, C) that the next layer reads, and `final`. With additive
attention it has `"decoder.0.cross_pattern"`, (B, 1, T, S), which cannot be changed.

`attn_out`, `cross_out` and `mlp_out` are taken before dropout and, in a sandwich block, before the second norm.

Shapes: residual stream (B, T, C); q and z (B, H, T, D); k and v (B, KV, S, D); scores and pattern (B, H, T, S).
If only some positions are `selected` in a forward pass, the sites after the attention of the last block have shape
(N, …). If attention itself runs only for Q queries of each sequence, `scores`, `pattern` and `z` of the last block are
(B, H, Q, …). With n beams per source, `cross_scores`, `cross_pattern` and `cross_z` have the queries of all
beams of a source on one axis: (B, H, n·T, …).

A fused kernel does not give access to `scores` and `pattern`. To record them, the tap computes them from q, k and the
mask, and the fused attention kernel still computes the output. Changing one of them makes that layer use the eager
reference.
"""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from torch import Tensor

from qkv.blocks.mask import SequenceLayout
from qkv.blocks.parts import all_sites

STACK_NAMES = ("encoder", "decoder")
Change = Callable[[Tensor], Tensor]


class Tap:
    """Records the sites that match one of the glob patterns in `record`.

    `change` maps glob patterns to functions. A function gets the value at each matching site, and returns a new one.
    `heads` limits the heads whose scores and patterns are recorded (default: all). A change applies to all heads.

    >>> tap = Tap(record=["decoder.*.pattern"])
    >>> tap.matches("decoder.3.pattern"), tap.matches("decoder.3.z")
    (True, False)
    """

    def __init__(
        self,
        record: Iterable[str] = (),
        change: Mapping[str, Change] | None = None,
        heads: Iterable[int] | None = None,
    ) -> None:
        self.record = tuple(record)
        self.heads = None if heads is None else tuple(heads)
        self.change = dict(change or {})
        for pattern in (*self.record, *self.change):
            site = pattern.rsplit(".", 1)[-1]
            if not any(fnmatchcase(known, site) for known in all_sites()):
                raise ValueError(f"no site matches {pattern!r}; the last part must be one of {', '.join(all_sites())}")
            stack, dot, _ = pattern.partition(".")
            if dot and not any(fnmatchcase(known, stack) for known in STACK_NAMES):
                raise ValueError(f"no site matches {pattern!r}; the first part must be one of {', '.join(STACK_NAMES)}")
        self.values: dict[str, Tensor] = {}
        # Stack name → the layout of its input; "source" → the layout of cross-attention's keys. A stack sets its layout
        # before its first block, so that a subclass of Tap knows the document ids and positions of the tokens.
        self.layouts: dict[str, SequenceLayout] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.values:
            recorded = ", ".join(self.values) or "nothing"
            raise KeyError(f"nothing was recorded at {name!r}; recorded: {recorded}")
        return self.values[name]

    def matches(self, name: str) -> bool:
        """Whether this site is recorded or changed."""
        return any(fnmatchcase(name, pattern) for pattern in (*self.record, *self.change))

    def changes(self, name: str) -> bool:
        """Whether this site is changed."""
        return any(fnmatchcase(name, pattern) for pattern in self.change)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        for pattern, change in self.change.items():
            if fnmatchcase(name, pattern):
                value = change(value)
        if any(fnmatchcase(name, pattern) for pattern in self.record):
            self.values[name] = value
        return value


class LayerTap:
    """A tap for one layer, which adds the prefix to each site: `LayerTap(tap, "decoder.3")("z", z)`."""

    def __init__(self, tap: Tap, prefix: str) -> None:
        self.tap, self.prefix, self.heads = tap, prefix, tap.heads

    def matches(self, site: str) -> bool:
        """Whether this site is recorded or changed."""
        return self.tap.matches(f"{self.prefix}.{site}")

    def changes(self, site: str) -> bool:
        """Whether this site is changed."""
        return self.tap.changes(f"{self.prefix}.{site}")

    def __call__(self, site: str, value: Tensor) -> Tensor:
        return self.tap(f"{self.prefix}.{site}", value)
