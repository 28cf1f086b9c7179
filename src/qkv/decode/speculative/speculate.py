"""Speculative decoding: a draft proposes some tokens, one forward pass of the model verifies them all.

A forward pass over five tokens costs little more than one over a single token, because the time goes into reading the
weights. Greedy decoding gives the same text as without a draft. Sampling gives a text of the same distribution: a token
g that was sampled from q, where the model has p, is accepted with probability min(1, p(g)/q(g)); otherwise a token is
sampled from the residual max(0, p − q). Together that is exactly p (Leviathan et al. 2023, Chen et al. 2023).

A proposal that was not sampled, such as that of a prompt look-up, is accepted if the model samples the same token. This
uses the random numbers of decoding without a draft, so the same seed gives the same text.

V vocabulary
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.decode.cache_edits import crop_cache
from qkv.decode.filters import make_filters
from qkv.decode.loop import GenerationCall
from qkv.decode.result import GenerationResult
from qkv.decode.runner import ModelRunner, promote_to_float32
from qkv.decode.sampling import argmax, make_generators, sample
from qkv.decode.selection import NonFiniteLogits, no_token_allowed, token_logprobs
from qkv.errors import UsageError
from qkv.models import Seq2Seq


@dataclass
class SpeculativeResult(GenerationResult):
    """A generated text, and how many of the proposed tokens were accepted."""

    num_forward_passes: int = 0  # of the model; without a draft there is one for each token
    num_proposed: int = 0
    num_accepted: int = 0

    @property
    def acceptance_rate(self) -> float:
        """The fraction of proposed tokens that were accepted."""
        return self.num_accepted / self.num_proposed if self.num_proposed else 0.0


def generate_speculatively(call: GenerationCall, *, cpu: bool = False) -> list[SpeculativeResult]:
    """A result for each prompt. Prompts run one after another, since speculation is for the latency of one text.

    With `cpu`, sources are encoded by `cpu.encoder`.
    """
    if call.options.beam > 1:
        raise UsageError(
            f"beam = {call.options.beam}: speculative decoding has no beam search; set beam = 1 or leave out draft"
        )
    return [_generate_one(call, index, cpu) for index in range(len(call.prompts))]


def _generate_one(call: GenerationCall, index: int, cpu: bool) -> SpeculativeResult:
    prompt, draft, eos_token_ids = call.prompts[index], call.draft, call.eos_token_ids
    assert draft is not None
    runner, bound = call.start([prompt], cpu=cpu)
    options = bound.options
    tokens: list[int] = runner.tokens[0].tolist()
    filters = make_filters(options, eos_token_ids, len(tokens))
    generator = make_generators(options.seed, 1)[0] if options.temperature > 0 else None
    source = prompt if isinstance(call.network, Seq2Seq) else None
    proposer = draft.make_proposer(call.network, source, filters, generator)
    result = SpeculativeResult("", [], 0.0, "length")
    sequence = call.new_sequence(index)
    while True:
        # Verifying n proposed tokens gives up to n + 1 tokens, so the last one that may come is never proposed.
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
            finish_reason = sequence.append(token, logprob, options, eos_token_ids)
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
    """The next token, given the model's logits (1, V): the proposed one if it is accepted, else another one.

    A rejected token cannot be sampled again: q was larger than p there, so its residual is 0.
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
    """For each token, the probability that it is accepted once it is proposed: min(1, p/q), (V,)."""
    return torch.where(q > 0, p / q, 1.0).clamp(max=1.0)


def residual_distribution(p: Tensor, q: Tensor) -> Tensor:
    """max(0, p − q), (V,): what rejected proposals are replaced from."""
    residual = (p - q).clamp(min=0.0)
    return residual if bool(residual.any()) else p  # p = q: rejections come from rounding alone


def _verify(runner: ModelRunner, token_ids: list[int], num_logits: int) -> Tensor:
    """Read tokens; returns the model's logits after each of the last `num_logits` of them, (num_logits, V)."""
    ids = torch.tensor([token_ids], device=runner.tokens.device)
    if isinstance(runner.network, Seq2Seq):
        assert runner.cross_cache is not None
        x, _ = runner.network.hidden(ids, runner.cross_cache, cache=runner.cache)
    else:
        x, _ = runner.network.hidden(ids, cache=runner.cache)
    return promote_to_float32(runner.network.head.project(x[0, -num_logits:]))
