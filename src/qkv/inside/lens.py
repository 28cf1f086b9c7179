"""The logit lens: what a model would predict if it stopped after each layer.

The residual stream after a layer goes through the final norm and the head, as if it were the last one. This works for
decoders, encoder-decoders (their decoder) and masked language models. A post-norm stack has no final norm, because each
of its layers ends with one. `tuned_lens.py` has a variant that is trained.

L recorded sites (layers), T tokens, K tokens in a ranking, C model width, V vocabulary
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from qkv.errors import UsageError
from qkv.inside.sites import require_blocks
from qkv.inside.tokens import TokenList
from qkv.inside.trace import Trace
from qkv.models import Network
from qkv.models.runtime import eval_mode

LENS_SITES = ("*.0.resid_pre", "*.resid_post")
"""The residual stream before the first layer and after each layer."""
RESIDUAL_SITES = (".resid_pre", ".resid_mid", ".cross_mid", ".resid_post")
Translate = Callable[[str, Tensor], Tensor]
"""A function of a site's name and its value (T, C) that returns a vector for the final norm and the head."""


@dataclass(frozen=True)
class LensReading:
    """Predictions at each site and position.

    `target_probs` are the probabilities of one token per position after each layer.
    """

    sites: tuple[str, ...]  # L names, in the order of computation
    tokens: TokenList  # the T tokens at which the predictions are made
    top_ids: Tensor  # (L, T, K) the most probable tokens
    top_probs: Tensor  # (L, T, K)
    entropy: Tensor  # (L, T) in nats
    target_ids: Tensor  # (T,)
    target_probs: Tensor  # (L, T)
    target_ranks: Tensor  # (L, T) 0 is the most probable token


def lens_logits(network: Network, x: Tensor) -> Tensor:
    """Residual stream (…, C) → logits (…, V): the final norm, if the stack has one, and the head."""
    check_vocabulary_head(network)
    stack = network.output_stack
    if stack.norm is not None:
        x = stack.norm(x)
    return network.head.project(x)


def logit_lens(
    network: Network,
    trace: Trace,
    *,
    targets: int | Sequence[int] | None = None,
    top_k: int = 5,
    sites: Sequence[str] = LENS_SITES,
    translate: Translate | None = None,
) -> LensReading:
    """Read the residual stream at each recorded site of the stack under the head.

    `targets` are the tokens whose probabilities are reported: one for each position, or one for all. By default, they
    are the predictions of the last site. `translate` is applied to the residual stream first; a `TunedLens` is one.
    """
    require_blocks(network.config, "the logit lens")
    check_vocabulary_head(network)
    residual = [name for name in trace if name.startswith(trace.output_stack) and name.endswith(RESIDUAL_SITES)]
    names = [name for name in residual if any(fnmatchcase(name, site) for site in sites)]
    if not names:
        raise UsageError(
            f"the trace has none of the sites {', '.join(sites)}; record them: m.trace(text, sites={list(sites)})"
        )
    weight = next(network.parameters())
    with eval_mode(network):

        def read(name: str) -> Tensor:
            x = trace[name].to(weight.device)
            logits = lens_logits(network, x if translate is None else translate(name, x))
            return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)

        last = read(names[-1])
        target_ids = last.argmax(-1) if targets is None else _target_ids(network, trace, targets).to(weight.device)
        rows = [_read_row(read(name), target_ids, top_k) for name in names[:-1]]
        rows.append(_read_row(last, target_ids, top_k))
    columns = [torch.stack(column).cpu() for column in zip(*rows, strict=True)]
    top_ids, top_probs, entropy, target_probs, target_ranks = columns
    tokens = trace.tokens[trace.output_stack]
    return LensReading(tuple(names), tokens, top_ids, top_probs, entropy, target_ids.cpu(), target_probs, target_ranks)


def check_vocabulary_head(network: Network) -> None:
    """Raise an error if the head does not predict tokens."""
    kind = network.config.head.kind
    if kind not in ("lm", "mlm"):
        raise UsageError(f"a lens needs a head that predicts tokens (lm or mlm); this model has a {kind} head")


def _target_ids(network: Network, trace: Trace, targets: int | Sequence[int]) -> Tensor:
    length, vocab_size = len(trace.tokens[trace.output_stack]), network.config.stack.vocab_size
    listed = [targets] * length if isinstance(targets, int) else [int(i) for i in targets]
    if len(listed) != length:
        raise UsageError(f"targets: {len(listed)} tokens for {length} positions; give one token, or one per position")
    wrong = [i for i in listed if not 0 <= i < vocab_size]
    if wrong:
        raise UsageError(f"targets: token id {wrong[0]} is outside this model's vocabulary of {vocab_size}")
    return torch.tensor(listed)


def _read_row(logprobs: Tensor, target_ids: Tensor, top_k: int) -> tuple[Tensor, ...]:
    probs = logprobs.exp()
    top = probs.topk(min(top_k, probs.shape[-1]))
    target_probs = probs.gather(-1, target_ids[:, None])
    ranks = (probs > target_probs).sum(-1)
    return top.indices, top.values, -(probs * logprobs).sum(-1), target_probs[:, 0], ranks
