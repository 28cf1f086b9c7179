"""A mixture of experts: a router sends each token to a few of many feed-forward networks.

    p = softmax(router(x))        y = Σ wₑ · expertₑ(x), over the k experts with the largest pₑ

The weights w are those p, or with `router_softmax = "chosen"` the softmax over the chosen experts only (Mixtral). So a
model has the parameters of all experts, and a token costs as much as k of them. A token that is not sent to an expert
teaches it nothing, so training adds two losses (Fedus et al. 2021, Zoph et al. 2022) over the N tokens of a batch:

    balance    E · Σ fₑ · mean(pₑ)      fₑ the fraction of tokens that are sent to expert e; k if all are used equally
    z-loss     mean(logsumexp(router(x))²), which keeps the logits of the router small

N tokens, E experts, C model width
"""

from typing import Any

import torch
from torch import Tensor, nn

from qkv.blocks.config import StackConfig
from qkv.blocks.feedforward import FeedForward
from qkv.blocks.tap import LayerTap


class Experts(nn.Module):
    """A router and its experts, applied to each token separately."""

    def __init__(self, config: StackConfig, *, activation: str, gated: bool) -> None:
        super().__init__()
        self.num_chosen, self.softmax = config.experts_per_token, config.router_softmax
        self.balance_loss, self.router_z_loss = config.balance_loss, config.router_z_loss
        self.router = nn.Linear(config.width, config.experts, bias=False)
        experts = (FeedForward(config, activation=activation, gated=gated) for _ in range(config.experts))
        self.experts = nn.ModuleList(experts)
        self.routed: tuple[Tensor, Tensor] | None = None  # logits and weights (N, E) of the last training batch

    def forward(self, x: Tensor, tap: LayerTap | None = None) -> Tensor:
        """x (B, T, C) → (B, T, C)."""
        logits = self.router(x)  # (B, T, E)
        weights = self.route(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        self.routed = (logits.flatten(0, -2), weights.flatten(0, -2)) if self.training else None
        if tap:
            weights = tap("routing", weights)
        tokens, weights = x.flatten(0, -2), weights.flatten(0, -2)
        out = torch.zeros_like(tokens)
        for expert, weight in zip(self.experts, weights.unbind(-1), strict=True):
            chosen = weight.nonzero()[:, 0]
            update = expert(tokens[chosen]) * weight[chosen, None]
            out = out.index_add(0, chosen, update.to(out.dtype))
        return out.view_as(x)

    def route(self, logits: Tensor) -> Tensor:
        """Logits (…, E) → the weight of each expert, (…, E), which is 0 for all but the chosen ones."""
        values, chosen = (logits if self.softmax == "chosen" else logits.softmax(-1)).topk(self.num_chosen, dim=-1)
        if self.softmax == "chosen":
            values = values.softmax(-1)
        return torch.zeros_like(logits).scatter(-1, chosen, values)

    def __getstate__(self) -> dict[str, Any]:
        """Copies have no logits, because a tensor that autograd computed cannot be copied."""
        return {**self.__dict__, "routed": None}

    def auxiliary_loss(self) -> Tensor:
        """The losses of the last training batch, each times its coefficient."""
        if self.routed is None:
            return torch.zeros((), device=self.router.weight.device)
        logits, weights = (one.to(torch.promote_types(one.dtype, torch.float32)) for one in self.routed)
        fractions = (weights > 0).to(logits.dtype).mean(0)
        balance = len(fractions) * (fractions * logits.softmax(-1).mean(0)).sum()
        return self.balance_loss * balance + self.router_z_loss * logits.logsumexp(-1).square().mean()
