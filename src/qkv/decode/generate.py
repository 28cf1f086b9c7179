"""The loop: run the model, filter the logits, choose, until every row has ended.

For decoder-only and encoder-decoder models alike: what differs is what a prompt is. A decoder goes on from its
prompt; an encoder-decoder reads a source and goes on from its start token.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from qkv.blocks.kernels.gpu import device_guard
from qkv.decode.beam import beam_search
from qkv.decode.filters import are_stateless, make_filters
from qkv.decode.gpu import beam as static_beam
from qkv.decode.gpu import static_runner as static_step
from qkv.decode.gpu.beam import static_beam_search
from qkv.decode.gpu.graph_runner import GraphRunner
from qkv.decode.gpu.graphs import decode_greedy
from qkv.decode.options import GenerationOptions
from qkv.decode.result import GenerationResult, TokenLogprob
from qkv.decode.runner import ModelRunner, check_max_length, left_pad
from qkv.decode.sampling import draw_uniforms, make_generators
from qkv.decode.selection import NonFiniteLogits, TokenSelector, token_logprobs, unpack_step_output
from qkv.decode.sequence import GeneratedSequence, OnText
from qkv.errors import QkvError
from qkv.models import Decoder, Network, Seq2Seq
from qkv.text import Tokenizer


@torch.inference_mode()
def generate(
    network: Network,
    prompts: Sequence[Sequence[int]],
    options: GenerationOptions,
    tokenizer: Tokenizer | None = None,
    on_text: OnText | None = None,
) -> list[GenerationResult]:
    """A result for each prompt (a source, for an encoder-decoder), in order."""
    options.check(network.config)
    assert isinstance(network, Decoder | Seq2Seq)
    if options.stop and tokenizer is None:
        raise QkvError("stop texts need a tokenizer, and this model has none")
    if not prompts:
        return []
    with device_guard(next(network.parameters()).device):
        return _generate(network, prompts, options, tokenizer, on_text)


def _generate(
    network: Decoder | Seq2Seq,
    prompts: Sequence[Sequence[int]],
    options: GenerationOptions,
    tokenizer: Tokenizer | None,
    on_text: OnText | None,
) -> list[GenerationResult]:
    run = make_runner(network, prompts, options)
    end = network.config.eos_token_ids
    options = options.bind_constraint(tokenizer, end, run.tokens.shape[1])
    if options.beam > 1:
        found = _from_search(run, options, end, tokenizer)
        for row, result in enumerate(found if on_text is not None else ()):  # nothing is sure before the search ends
            on_text(row, result.text)  # type: ignore[misc]
        return found
    if not (run.tokens.is_cuda and static_step.is_supported(network)):
        return decode_loop(run, options, end, tokenizer, on_text)
    plain = options.temperature == 0 and not options.logprobs and not make_filters(options, end, 0)
    if plain and on_text is None:
        return _write_static(run, options, end, tokenizer)
    return decode_loop(GraphRunner(run, options.max_tokens, compiled=options.compile), options, end, tokenizer, on_text)


def make_runner(
    network: Decoder | Seq2Seq, prompts: Sequence[Sequence[int]], options: GenerationOptions
) -> ModelRunner:
    """A run that is ready to prefill, or an error that names the limit."""
    targets, sources = decoder_inputs(network, prompts, options)
    run = ModelRunner(network, targets, max_new_tokens=options.max_tokens)
    if sources is not None:
        run.encode_sources(sources)
    return run


def decoder_inputs(
    network: Decoder | Seq2Seq, prompts: Sequence[Sequence[int]], options: GenerationOptions
) -> tuple[list[list[int]], Sequence[Sequence[int]] | None]:
    """What each row's decoder goes on from, and the sources of an encoder-decoder; an error where it does not fit."""
    if isinstance(network, Seq2Seq):
        first = network.config.decoder_start_token_id
        if first is None:
            raise QkvError("this model's config names no start token, so its decoder cannot begin")
        targets, sources = [[first, *options.prefix]] * len(prompts), prompts
    else:
        targets, sources = [[*prompt, *options.prefix] for prompt in prompts], None
    check_max_length(network, targets, sources, options.max_tokens)
    return targets, sources


def decode_loop(
    runner: ModelRunner | GraphRunner,
    options: GenerationOptions,
    eos_token_ids: tuple[int, ...],
    tokenizer: Tokenizer | None,
    on_text: OnText | None,
) -> list[GenerationResult]:
    """Greedy, or sampling: one way on for each row."""
    rows = runner.tokens.shape[0]
    filters = make_filters(options, eos_token_ids, runner.tokens.shape[1])
    generators = make_generators(options.seed, rows) if options.temperature > 0 else []
    live = [GeneratedSequence(i, stream_decoder=tokenizer.target.stream() if tokenizer else None) for i in range(rows)]
    results: list[GenerationResult | None] = [None] * rows
    choice = TokenSelector(filters, options.logprobs, are_stateless(options))
    logits = runner.prefill()
    for _ in range(options.max_tokens):
        numbers = draw_uniforms([generators[w.index] for w in live]) if generators else None
        told = runner.select(choice, logits, numbers)
        logprobs, troubles = zip(*unpack_step_output(told), strict=True)
        for trouble in filter(None, troubles):
            raise trouble
        going = []
        for row, (writing, logprob) in enumerate(zip(live, logprobs, strict=True)):
            reason = writing.append(logprob.id, logprob, options, eos_token_ids)
            if reason or on_text is not None:
                writing.emit_text(options, on_text, is_last=reason is not None)
            if reason is None:
                going.append(row)
            else:
                results[writing.index] = writing.to_result(reason)
        if not going:
            break
        live, chosen = [live[row] for row in going], told[:, 0].long()
        if len(going) < len(chosen):
            index = torch.tensor(going, device=chosen.device)
            runner.keep(index)
            chosen = chosen[index]
        logits = runner.step(chosen)
    assert all(result is not None for result in results)
    return [result for result in results if result is not None]


def _write_static(
    run: ModelRunner, options: GenerationOptions, end: tuple[int, ...], tokenizer: Tokenizer | None
) -> list[GenerationResult]:
    """Greedy, all on the device; the host reads what was written when it is done."""
    written = decode_greedy(run, end, options.max_tokens, compiled=options.compile)
    if bool(written.logprobs.isnan().any()):
        raise NonFiniteLogits()
    results = []
    for row, (tokens, logprobs) in enumerate(zip(written.tokens.tolist(), written.logprobs.tolist(), strict=True)):
        count = tokens.index(-1) if -1 in tokens else len(tokens)
        taken = [TokenLogprob(token, logprob) for token, logprob in zip(tokens[:count], logprobs, strict=False)]
        if options.stop:  # a stop text may end a row earlier than its tokens do
            results.append(_truncate_at_stop(row, taken, options, end, tokenizer))
            continue
        ended = tokens[count - 1] in end
        ids = tokens[: count - ended]
        text = tokenizer.target.decode(ids) if tokenizer is not None else ""
        results.append(GenerationResult(text, ids, sum(logprobs[:count]), "end" if ended else "length", taken))
    return results


def _truncate_at_stop(
    index: int,
    logprobs: list[TokenLogprob],
    options: GenerationOptions,
    eos_token_ids: tuple[int, ...],
    tokenizer: Tokenizer | None,
) -> GenerationResult:
    writing = GeneratedSequence(index, stream_decoder=tokenizer.target.stream() if tokenizer else None)
    reasons = (writing.append(one.id, one, options, eos_token_ids) for one in logprobs)
    reason = next(reason for reason in reasons if reason is not None)
    writing.emit_text(options, None, is_last=True)
    return writing.to_result(reason)


def _from_search(
    run: ModelRunner, options: GenerationOptions, end: tuple[int, ...], tokenizer: Tokenizer | None
) -> list[GenerationResult]:
    static = run.tokens.is_cuda and static_beam.is_supported(run, options)
    results = []
    for search in (static_beam_search if static else beam_search)(run, options, end):
        damaged = not search.finished and any(bool(p.isnan().any()) for p in run.network.parameters())
        if damaged or not (search.finished or make_filters(options, end, 0)):
            raise NonFiniteLogits()
        if not search.finished:
            raise QkvError("no way on was allowed, so the search found nothing; loosen the filters")
        ranked = []
        for hypothesis in search.finished[: options.num_return_sequences]:
            ids = hypothesis.ids[:-1] if hypothesis.ended else hypothesis.ids
            text = tokenizer.target.decode(ids) if tokenizer is not None else ""
            reason = "end" if hypothesis.ended else "length"
            if options.stop and any(stop in text for stop in options.stop):
                again = _truncate_at_stop(0, [TokenLogprob(token, 0.0) for token in ids], options, (), tokenizer)
                text, ids, reason = again.text, again.ids, "stop"
            ranked.append(GenerationResult(text, ids, hypothesis.normalized_score, reason))  # type: ignore[arg-type]
        results.append(replace(ranked[0], alternatives=ranked[1:], search_steps=search.search_steps))
    return results


@torch.inference_mode()
def score(
    network: Network, prompts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[list[TokenLogprob]]:
    """The log-probability of each token of each target, given its prompt (or source), all positions at once."""
    GenerationOptions(max_tokens=1).check(network.config)
    assert isinstance(network, Decoder | Seq2Seq)
    device = next(network.parameters()).device
    if isinstance(network, Seq2Seq):
        if network.config.decoder_start_token_id is None:
            raise QkvError("this model's config names no start token, so its decoder cannot begin")
        inputs = [[network.config.decoder_start_token_id, *target[:-1]] for target in targets]
        check_max_length(network, inputs, prompts, 0)
        source = left_pad(prompts, device)
        memory = network.encode(source.clamp(min=0), (source >= 0).long())
        padded = left_pad(inputs, device)
        x, _ = network.hidden(padded.clamp(min=0), memory, (padded >= 0).long())
    else:
        inputs = [[*prompt, *target[:-1]] for prompt, target in zip(prompts, targets, strict=True)]
        check_max_length(network, inputs, None, 0)
        padded = left_pad(inputs, device)
        x, _ = network.hidden(padded.clamp(min=0), (padded >= 0).long())
    out = []
    for row, target in enumerate(targets):
        logits = network.head.project(x[row, x.shape[1] - len(target) :])
        out.append(token_logprobs(logits, torch.as_tensor(target, device=device), 0))
    return out
