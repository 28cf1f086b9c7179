"""Greedy decoding on a GPU that does not wait for the CPU, because the argmax is part of the captured step.

Compiled steps of one sequence write a matrix product as a sum. The compiler fuses the sum with the operations around
it into one kernel: the norm before it, and the bias, the gate and the residual sum after it. It cannot fuse a library
call for matrix products. In eager mode the sum is slow, because it writes all elementwise products to memory.

N sequences, V vocabulary, I inputs, O outputs
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.decode.gpu.graphs import GraphedSteps, is_in, run_steps
from qkv.decode.gpu.static_runner import CacheView, StaticRunner
from qkv.decode.runner import ModelRunner
from qkv.models import Network


class GreedyState:
    """The generated tokens, their log-probabilities, and which sequences have ended."""

    def __init__(self, runner: StaticRunner, eos_token_ids: tuple[int, ...], max_new_tokens: int) -> None:
        self.runner, self.eos_token_ids = runner, eos_token_ids
        rows, device = runner.batch_size, runner.mask.device
        self.token = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.ended = torch.zeros(rows, dtype=torch.bool, device=device)
        # Tokens and log-probabilities (N, T), with the end-of-sequence token. After it, tokens are −1.
        self.written = torch.full((rows, max_new_tokens), -1, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(rows, max_new_tokens, dtype=torch.float64, device=device)
        self.num_written = torch.zeros(1, dtype=torch.long, device=device)

    def choose(self, logits: Tensor) -> None:
        """Append the argmax of the logits (N, V) to each sequence that has not ended."""
        best = logits.argmax(-1)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        logprob = logits.log_softmax(-1, dtype=dtype).gather(1, best[:, None])[:, 0].double()
        self.written.index_copy_(1, self.num_written, torch.where(self.ended, -1, best)[:, None])
        self.logprobs.index_copy_(1, self.num_written, torch.where(self.ended, 0.0, logprob)[:, None])
        self.ended.logical_or_(is_in(best, self.eos_token_ids))
        self.token.copy_(best[:, None])
        self.num_written.add_(1)

    def step(self, view: CacheView) -> None:
        """Run the model on the newest token of each sequence, and choose the next one."""
        self.choose(self.runner.logits(self.token, view))


StepFactory = Callable[[Any, GreedyState], Callable[[CacheView], None]]
"""A function that makes a greedy step for a runner, such as the class `FusedGreedyStep`."""


@dataclass(frozen=True)
class Kernels:
    """The Triton kernels that run the steps: a kind of `StaticRunner`, and the greedy step on it."""

    runner_class: type[StaticRunner]
    greedy_step: StepFactory


def network_for_steps(runner: ModelRunner, *, compiled: bool) -> Network:
    """Return the network that the steps run. For compiled steps of one sequence, its linear maps are `MatvecLinear`."""
    if compiled and len(runner.tokens) == 1 and runner.tokens.is_cuda:
        return replace_linears(runner.network, MatvecLinear)
    return runner.network


def greedy_steps(
    runner: ModelRunner,
    eos_token_ids: tuple[int, ...],
    max_new_tokens: int,
    *,
    compiled: bool = False,
    kernels: Kernels | None = None,
) -> tuple[GraphedSteps, GreedyState]:
    """Prefill a new runner and choose the first tokens. Returns the steps that generate the other tokens.

    If `kernels` are given, they run the steps, which are not compiled.
    """
    compiled = compiled and kernels is None
    runner_class = StaticRunner if kernels is None else kernels.runner_class
    static = runner_class(runner, max_new_tokens, network=network_for_steps(runner, compiled=compiled))
    greedy = GreedyState(static, eos_token_ids, max_new_tokens)
    greedy.choose(static.prefill_logits)
    step = greedy.step if kernels is None else kernels.greedy_step(static, greedy)
    return GraphedSteps(static, step, compiled=compiled, uses_buckets=kernels is None), greedy


def decode_greedy(
    runner: ModelRunner,
    eos_token_ids: tuple[int, ...],
    max_new_tokens: int,
    *,
    compiled: bool = False,
    kernels: Kernels | None = None,
) -> GreedyState:
    """Generate up to `max_new_tokens` tokens for each prompt of a new runner.

    Compiled steps are faster, but the first steps wait for the compiler. So they suit long or repeated generation.
    """
    steps, greedy = greedy_steps(runner, eos_token_ids, max_new_tokens, compiled=compiled, kernels=kernels)
    run_steps(steps, max_new_tokens, greedy.ended)
    return greedy


CopiedNetwork = TypeVar("CopiedNetwork", bound=nn.Module)


class MatvecLinear(nn.Module):
    """y = x Wᵀ + b with the weights of a linear map. In compiled code it is a sum if x is one vector."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) → (…, O)."""
        if not is_single_vector(x):
            return F.linear(x, self.weight, self.bias)
        y = (self.weight * x.reshape(-1)).sum(-1)
        if self.bias is not None:
            y = y + self.bias
        return y.view(*x.shape[:-1], -1)


def is_single_vector(x: Tensor) -> bool:
    """Return whether x is one vector and this code is being compiled."""
    return torch.compiler.is_compiling() and x.numel() == x.shape[-1]


def replace_linears(network: CopiedNetwork, make: Callable[[nn.Linear], nn.Module]) -> CopiedNetwork:
    """Return a copy of a network in which `make` replaces each linear map. It shares all weights with the original."""
    # deepcopy takes the replacements and the shared tensors from the memo.
    memo: dict[int, object] = {id(module): make(module) for module in network.modules() if type(module) is nn.Linear}
    memo |= {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, memo=memo)
