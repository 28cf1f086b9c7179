"""Speculative decoding: a draft proposes some tokens, and one forward pass of the model verifies all of them.

A forward pass over five tokens costs little more than one over a single token, because most of the time goes into
reading the weights. Greedy decoding gives the same text as without a draft. Sampling gives text with the same
distribution as without a draft. Let q be the draft's distribution of a token and p the model's. A token g sampled from
q is accepted with probability min(1, p(g)/q(g)). If it is rejected, a token is sampled from the residual max(0, p − q),
normalized. The resulting token has exactly the distribution p (Leviathan et al. 2023, Chen et al. 2023).

Prompt look-up does not sample its proposals. Such a proposal is accepted if the model samples the same token. This uses
the same random numbers as decoding without a draft, so the same seed gives the same text.

V vocabulary
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.decode.cache_edits import crop_cache
from qkv.decode.cpu.step import is_supported
from qkv.decode.filters import make_filters
from qkv.decode.loop import GenerationCall
from qkv.decode.result import GenerationResult
from qkv.decode.runner import ModelRunner, promote_to_float32
from qkv.decode.sampling import argmax, make_generators, sample
from qkv.decode.selection import NonFiniteLogits, no_token_allowed, token_logprobs
from qkv.errors import UsageError


@dataclass
class SpeculativeResult(GenerationResult):
    """A generated text, with the numbers of proposed and accepted tokens."""

    num_forward_passes: int = 0  # forward passes of the model; decoding without a draft needs one per token
    num_proposed: int = 0
    num_accepted: int = 0

    @property
    def acceptance_rate(self) -> float:
        """The fraction of proposed tokens that were accepted."""
        return self.num_accepted / self.num_proposed if self.num_proposed else 0.0


def generate_speculatively(call: GenerationCall) -> list[SpeculativeResult]:
    """Return one result per prompt. Prompts run one after another: a draft reduces the latency of a single text.

    If the CPU backend supports the network, `cpu.encoder` encodes the sources.
    """
    if call.options.beam > 1:
        raise UsageError(
            f"beam = {call.options.beam}: speculative decoding has no beam search; set beam = 1 or leave out draft"
        )
    cpu = is_supported(call.network)
    return [_generate_one(call, index, cpu) for index in range(len(call.prompts))]


def _generate_one(call: GenerationCall, index: int, cpu: bool) -> SpeculativeResult:
    prompt, draft, eos_token_ids = call.prompts[index], call.draft, call.eos_token_ids
    assert draft is not None
    runner, bound = call.prepare_batch([prompt], cpu=cpu)
    options = bound.options
    tokens: list[int] = runner.tokens[0].tolist()
    filters = make_filters(options, eos_token_ids, len(tokens))
    generator = make_generators(options.seed, 1)[0] if options.temperature > 0 else None
    source = prompt if call.network.has_source else None
    proposer = draft.make_proposer(call.network, source, filters, generator)
    result = SpeculativeResult("", [], 0.0, "length")
    sequence = call.new_sequence(index)
    while True:
        # Verifying n proposed tokens gives up to n + 1 tokens, so propose one less than the tokens that are left.
        max_proposed = options.max_tokens - len(sequence.logprobs) - 1
        proposal = proposer.propose(tokens, min(draft.num_draft_tokens, max_proposed))
        logits = _verify(runner, [*tokens[runner.cache.filled :], *proposal.ids], 1 + len(proposal.ids))
        result.num_forward_passes += 1
        result.num_proposed += len(proposal.ids)
        for i in range(1 + len(proposal.ids)):
            raw = filtered = logits[i : i + 1]
            for apply in filters:
                filtered = apply(filtered, torch.tensor([tokens], device=raw.device))
            if not bool((filtered > float("-inf")).any()):
                raise NonFiniteLogits() if bool(raw.isnan().any()) else no_token_allowed()
            proposed, q = proposal.token(i)
            token = accept_or_resample(filtered, proposed, q, generator)
            tokens.append(token)
            result.num_accepted += token == proposed
            logprob = token_logprobs(raw, torch.tensor([token], device=raw.device), options.logprobs)[0]
            alternatives = logprob.alternatives
            finish_reason = sequence.append(token, logprob.logprob, options, eos_token_ids, alternatives)
            if finish_reason or call.on_text is not None:
                sequence.emit_text(options, call.on_text, is_last=finish_reason is not None)
            if finish_reason is not None:
                vars(result).update(vars(sequence.to_result(finish_reason)))
                return result
            if token != proposed:
                break
        crop_cache(runner.cache, len(tokens) - 1)


def accept_or_resample(
    logits: Tensor, proposed: int | None, q: Tensor | None, generator: torch.Generator | None
) -> int:
    """Return the next token, given the model's logits (1, V): the proposed token if it is accepted, else a different
    token.

    A rejected token g cannot be sampled again, because q(g) > p(g), so its residual is 0.
    """
    if generator is None:
        return int(argmax(logits))
    if proposed is None or q is None:
        return int(sample(logits, [generator]))
    p = logits[0].double().softmax(-1)
    q = q.to(p.device)
    uniform = float(torch.rand((), generator=generator, dtype=torch.float64))
    if uniform < float(acceptance_probabilities(p, q)[proposed]):
        return proposed
    return int(sample(residual_distribution(p, q).log()[None], [generator]))


def acceptance_probabilities(p: Tensor, q: Tensor) -> Tensor:
    """Return the probability with which each token is accepted if it is proposed: min(1, p/q), (V,)."""
    return torch.where(q > 0, p / q, 1.0).clamp(max=1.0)


def residual_distribution(p: Tensor, q: Tensor) -> Tensor:
    """Return max(0, p − q), (V,). If a proposal is rejected, the next token is sampled from this distribution."""
    residual = (p - q).clamp(min=0.0)
    return residual if bool(residual.any()) else p  # if p = q, only rounding can cause a rejection


def _verify(runner: ModelRunner, token_ids: list[int], num_logits: int) -> Tensor:
    """Run the model on new tokens. Returns the logits after each of the last `num_logits` tokens, (num_logits, V)."""
    ids = torch.tensor([token_ids], device=runner.tokens.device)
    x, _ = runner.network.hidden(ids, cache=runner.cache, memory=runner.cross_cache)
    return promote_to_float32(runner.network.head.project(x[0, -num_logits:]))
