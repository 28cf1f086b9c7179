"""The decoding loop: run the model, filter the logits, choose tokens, until every sequence has ended.

The loop serves decoder-only and encoder-decoder models. A decoder-only model continues its prompt. An encoder-decoder
encodes a source, and its decoder continues the start token. This loop and `beam.py` are the reference: every faster
backend must give the same results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from qkv.decode.beam import BeamState, Hypothesis, beam_search
from qkv.decode.filters import has_stateless_filters, make_filters
from qkv.decode.options import GenerationOptions
from qkv.decode.result import FinishReason, GenerationResult, TokenLogprob
from qkv.decode.runner import ModelRunner, TokenRunner, make_runner
from qkv.decode.sampling import draw_uniforms, make_generators
from qkv.decode.selection import NonFiniteLogits, TokenSelector, unpack_step_output
from qkv.decode.sequence import GeneratedSequence, OnText
from qkv.errors import QkvError
from qkv.models import Network
from qkv.text import Tokenizer

if TYPE_CHECKING:
    from qkv.decode.speculative.draft import Draft


@dataclass(frozen=True)
class GenerationCall:
    """The checked arguments of one `generate` call."""

    network: Network
    prompts: Sequence[Sequence[int]]
    options: GenerationOptions
    tokenizer: Tokenizer | None = None
    on_text: OnText | None = None
    draft: "Draft | None" = None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a sequence."""
        return self.network.config.eos_token_ids

    def prepare_batch(
        self, prompts: Sequence[Sequence[int]] | None = None, *, cpu: bool = False
    ) -> tuple[ModelRunner, "GenerationCall"]:
        """Return a runner for `prompts` (default: all), and a copy of this call for that batch.

        If this call has a constraint, the copy has a logits processor in its place.
        """
        runner = make_runner(self.network, self.prompts if prompts is None else prompts, self.options, cpu=cpu)
        options = self.options.bind_constraint(self.tokenizer, self.eos_token_ids, runner.tokens.shape[1])
        return runner, replace(self, options=options)

    def new_sequence(self, index: int) -> GeneratedSequence:
        """Return an empty sequence for prompt `index`."""
        return GeneratedSequence(index, stream_decoder=self.tokenizer.target.stream() if self.tokenizer else None)

    def decode_text(self, ids: list[int]) -> str:
        """Decode token ids to text. The text is empty if there is no tokenizer."""
        return self.tokenizer.target.decode(ids) if self.tokenizer is not None else ""


def generate_with_runner(call: GenerationCall, *, cpu: bool = False) -> list[GenerationResult]:
    """Decode greedily, by sampling or by beam search. With `cpu`, steps run in `CpuStep`, else in the network."""
    runner, call = call.prepare_batch(cpu=cpu)
    if call.options.beam > 1:
        return search_results(call, beam_search(runner, call.options, call.eos_token_ids))
    return decode_loop(runner, call)


def decode_loop(runner: TokenRunner, call: GenerationCall) -> list[GenerationResult]:
    """Decode greedily or by sampling, and return one result per prompt."""
    options, eos_token_ids = call.options, call.eos_token_ids
    batch_size, prompt_length = runner.tokens.shape
    filters = make_filters(options, eos_token_ids, prompt_length)
    generators = make_generators(options.seed, batch_size) if options.temperature > 0 else []
    active = [call.new_sequence(i) for i in range(batch_size)]
    results: dict[int, GenerationResult] = {}
    selector = TokenSelector(filters, options.logprobs, has_stateless_filters(options))
    logits = runner.prefill()
    for _ in range(options.max_tokens):
        uniforms = draw_uniforms([generators[sequence.index] for sequence in active]) if generators else None
        step_output = runner.select(selector, logits, uniforms)
        logprobs, errors = zip(*unpack_step_output(step_output), strict=True)
        for error in filter(None, errors):
            raise error
        remaining = []
        for row, (sequence, logprob) in enumerate(zip(active, logprobs, strict=True)):
            token, alternatives = logprob.id, logprob.alternatives
            finish_reason = sequence.append(token, logprob.logprob, options, eos_token_ids, alternatives)
            if finish_reason or call.on_text is not None:
                sequence.emit_text(options, call.on_text, is_last=finish_reason is not None)
            if finish_reason is None:
                remaining.append(row)
            else:
                results[sequence.index] = sequence.to_result(finish_reason)
        if not remaining:
            break
        active, token_ids = [active[row] for row in remaining], step_output[:, 0].long()
        if len(remaining) < len(token_ids):
            indices = torch.tensor(remaining, device=token_ids.device)
            runner.keep(indices)
            token_ids = token_ids[indices]
        logits = runner.step(token_ids)
    return [results[i] for i in range(batch_size)]


def result_until_stop(call: GenerationCall, index: int, logprobs: Sequence[TokenLogprob]) -> GenerationResult:
    """Build a result from tokens that were generated without regard to stop strings, and cut it at the first stop
    string.
    """
    sequence = call.new_sequence(index)
    reasons = (sequence.append(one.id, one.logprob, call.options, call.eos_token_ids) for one in logprobs)
    finish_reason = next(reason for reason in reasons if reason is not None)
    sequence.emit_text(call.options, None, is_last=True)
    return sequence.to_result(finish_reason)


def search_results(call: GenerationCall, states: Sequence[BeamState]) -> list[GenerationResult]:
    """Return the results of a beam search, each with its alternatives, and emit each text as one chunk."""
    options = call.options
    results = []
    for state in states:
        if not state.finished:
            has_nan_weights = any(bool(weight.isnan().any()) for weight in call.network.parameters())
            if has_nan_weights or not make_filters(options, call.eos_token_ids, 0):
                raise NonFiniteLogits()
            raise QkvError(
                "beam search found no sequence, because the filters or the constraint forbid every continuation; "
                "relax suppress_tokens, no_repeat_ngram_size, logits_processors or constraint"
            )
        ranked = [_hypothesis_result(call, hypothesis) for hypothesis in state.finished[: options.num_return_sequences]]
        results.append(replace(ranked[0], alternatives=ranked[1:], search_steps=state.search_steps))
    if call.on_text is not None:
        for index, result in enumerate(results):
            call.on_text(index, result.text)
    return results


def _hypothesis_result(call: GenerationCall, hypothesis: Hypothesis) -> GenerationResult:
    finish_reason: FinishReason = "end" if hypothesis.ended else "length"
    ids = hypothesis.ids[:-1] if hypothesis.ended else hypothesis.ids
    text = call.decode_text(ids)
    if any(stop in text for stop in call.options.stop):
        truncated = result_until_stop(call, 0, [TokenLogprob(token, 0.0) for token in ids])
        text, ids, finish_reason = truncated.text, truncated.ids, "stop"
    return GenerationResult(text, ids, hypothesis.normalized_score, finish_reason)
