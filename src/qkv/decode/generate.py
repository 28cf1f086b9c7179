"""The loop: run the model, filter the logits, choose, until every row has ended.

For decoder-only and encoder-decoder models alike: what differs is what a prompt is. A decoder goes on from its
prompt; an encoder-decoder reads a source and goes on from its start token.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from qkv.blocks.gpu import on
from qkv.decode import static_beam, static_step
from qkv.decode.beam import beam_search
from qkv.decode.choice import Choice, NotNumbers, heard, logprobs_of
from qkv.decode.choose import generators_of, numbers_of
from qkv.decode.filters import filters_of, settled
from qkv.decode.graph_run import GraphRun
from qkv.decode.options import Options
from qkv.decode.result import Result, TokenLogprob
from qkv.decode.run import Run, check_room, flush_right
from qkv.decode.static import write_greedy
from qkv.decode.static_beam import search_static
from qkv.decode.writing import OnText, Writing
from qkv.errors import QkvError
from qkv.models import Decoder, Network, Seq2Seq
from qkv.text import Tokenizer


@torch.inference_mode()
def generate(
    network: Network,
    prompts: Sequence[Sequence[int]],
    options: Options,
    tokenizer: Tokenizer | None = None,
    on_text: OnText | None = None,
) -> list[Result]:
    """A result for each prompt (a source, for an encoder-decoder), in order."""
    options.check(network.config)
    assert isinstance(network, Decoder | Seq2Seq)
    if options.stop and tokenizer is None:
        raise QkvError("stop texts need a tokenizer, and this model has none")
    if not prompts:
        return []
    with on(next(network.parameters()).device):
        return _generate(network, prompts, options, tokenizer, on_text)


def _generate(
    network: Decoder | Seq2Seq,
    prompts: Sequence[Sequence[int]],
    options: Options,
    tokenizer: Tokenizer | None,
    on_text: OnText | None,
) -> list[Result]:
    run = start(network, prompts, options)
    end = network.config.end
    options = options.bound(tokenizer, end, run.tokens.shape[1])
    if options.beam > 1:
        found = _from_search(run, options, end, tokenizer)
        for row, result in enumerate(found if on_text is not None else ()):  # nothing is sure before the search ends
            on_text(row, result.text)  # type: ignore[misc]
        return found
    if not (run.tokens.is_cuda and static_step.fits(network)):
        return _write(run, options, end, tokenizer, on_text)
    plain = options.temperature == 0 and not options.logprobs and not filters_of(options, end, 0)
    if plain and on_text is None:
        return _write_static(run, options, end, tokenizer)
    return _write(GraphRun(run, options.max_tokens, compiled=options.compiled), options, end, tokenizer, on_text)


def start(network: Decoder | Seq2Seq, prompts: Sequence[Sequence[int]], options: Options) -> Run:
    """A run that is ready to prefill, or an error that names the limit."""
    targets, sources = openings(network, prompts, options)
    run = Run(network, targets, room=options.max_tokens)
    if sources is not None:
        run.read_source(sources)
    return run


def openings(
    network: Decoder | Seq2Seq, prompts: Sequence[Sequence[int]], options: Options
) -> tuple[list[list[int]], Sequence[Sequence[int]] | None]:
    """What each row's decoder goes on from, and the sources of an encoder-decoder; an error where it does not fit."""
    if isinstance(network, Seq2Seq):
        first = network.config.start
        if first is None:
            raise QkvError("this model's config names no start token, so its decoder cannot begin")
        targets, sources = [[first, *options.prefix]] * len(prompts), prompts
    else:
        targets, sources = [[*prompt, *options.prefix] for prompt in prompts], None
    check_room(network, targets, sources, options.max_tokens)
    return targets, sources


def _write(
    run: Run | GraphRun, options: Options, end: tuple[int, ...], tokenizer: Tokenizer | None, on_text: OnText | None
) -> list[Result]:
    """Greedy, or sampling: one way on for each row."""
    rows = run.tokens.shape[0]
    filters = filters_of(options, end, run.tokens.shape[1])
    generators = generators_of(options.seed, rows) if options.temperature > 0 else []
    live = [Writing(i, stream=tokenizer.target.stream() if tokenizer else None) for i in range(rows)]
    results: list[Result | None] = [None] * rows
    choice = Choice(filters, options.logprobs, settled(options))
    logits = run.prefill()
    for _ in range(options.max_tokens):
        numbers = numbers_of([generators[w.number] for w in live]) if generators else None
        told = run.choose(choice, logits, numbers)
        logprobs, troubles = zip(*heard(told), strict=True)
        for trouble in filter(None, troubles):
            raise trouble
        going = []
        for row, (writing, logprob) in enumerate(zip(live, logprobs, strict=True)):
            reason = writing.take(logprob.id, logprob, options, end)
            if reason or on_text is not None:
                writing.hand_out(options, on_text, last=reason is not None)
            if reason is None:
                going.append(row)
            else:
                results[writing.number] = writing.result(reason)
        if not going:
            break
        live, chosen = [live[row] for row in going], told[:, 0].long()
        if len(going) < len(chosen):
            index = torch.tensor(going, device=chosen.device)
            run.keep(index)
            chosen = chosen[index]
        logits = run.step(chosen)
    assert all(result is not None for result in results)
    return [result for result in results if result is not None]


def _write_static(run: Run, options: Options, end: tuple[int, ...], tokenizer: Tokenizer | None) -> list[Result]:
    """Greedy, all on the device; the host reads what was written when it is done."""
    written = write_greedy(run, end, options.max_tokens, compiled=options.compiled)
    if bool(written.logprobs.isnan().any()):
        raise NotNumbers()
    results = []
    for row, (tokens, logprobs) in enumerate(zip(written.tokens.tolist(), written.logprobs.tolist(), strict=True)):
        count = tokens.index(-1) if -1 in tokens else len(tokens)
        taken = [TokenLogprob(token, logprob) for token, logprob in zip(tokens[:count], logprobs, strict=False)]
        if options.stop:  # a stop text may end a row earlier than its tokens do
            results.append(_until_stop(row, taken, options, end, tokenizer))
            continue
        ended = tokens[count - 1] in end
        ids = tokens[: count - ended]
        text = tokenizer.target.decode(ids) if tokenizer is not None else ""
        results.append(Result(text, ids, sum(logprobs[:count]), "end" if ended else "length", taken))
    return results


def _until_stop(
    row: int, taken: list[TokenLogprob], options: Options, end: tuple[int, ...], tokenizer: Tokenizer | None
) -> Result:
    writing = Writing(row, stream=tokenizer.target.stream() if tokenizer else None)
    reasons = (writing.take(one.id, one, options, end) for one in taken)
    reason = next(reason for reason in reasons if reason is not None)
    writing.hand_out(options, None, last=True)
    return writing.result(reason)


def _from_search(run: Run, options: Options, end: tuple[int, ...], tokenizer: Tokenizer | None) -> list[Result]:
    static = run.tokens.is_cuda and static_beam.fits(run, options)
    results = []
    for search in (search_static if static else beam_search)(run, options, end):
        damaged = not search.finished and any(bool(p.isnan().any()) for p in run.network.parameters())
        if damaged or not (search.finished or filters_of(options, end, 0)):
            raise NotNumbers()
        if not search.finished:
            raise QkvError("no way on was allowed, so the search found nothing; loosen the filters")
        ranked = []
        for hypothesis in search.finished[: options.best]:
            ids = hypothesis.ids[:-1] if hypothesis.ended else hypothesis.ids
            text = tokenizer.target.decode(ids) if tokenizer is not None else ""
            reason = "end" if hypothesis.ended else "length"
            if options.stop and any(stop in text for stop in options.stop):
                again = _until_stop(0, [TokenLogprob(token, 0.0) for token in ids], options, (), tokenizer)
                text, ids, reason = again.text, again.ids, "stop"
            ranked.append(Result(text, ids, hypothesis.worth, reason))  # type: ignore[arg-type]
        results.append(replace(ranked[0], alternatives=ranked[1:], steps=search.steps))
    return results


@torch.inference_mode()
def score(
    network: Network, prompts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[list[TokenLogprob]]:
    """The log-probability of each token of each target, given its prompt (or source), all positions at once."""
    Options(max_tokens=1).check(network.config)
    assert isinstance(network, Decoder | Seq2Seq)
    device = next(network.parameters()).device
    if isinstance(network, Seq2Seq):
        if network.config.start is None:
            raise QkvError("this model's config names no start token, so its decoder cannot begin")
        inputs = [[network.config.start, *target[:-1]] for target in targets]
        check_room(network, inputs, prompts, 0)
        source = flush_right(prompts, device)
        memory = network.encode(source.clamp(min=0), (source >= 0).long())
        padded = flush_right(inputs, device)
        x, _ = network.hidden(padded.clamp(min=0), memory, (padded >= 0).long())
    else:
        inputs = [[*prompt, *target[:-1]] for prompt, target in zip(prompts, targets, strict=True)]
        check_room(network, inputs, None, 0)
        padded = flush_right(inputs, device)
        x, _ = network.hidden(padded.clamp(min=0), (padded >= 0).long())
    out = []
    for row, target in enumerate(targets):
        logits = network.head.read(x[row, x.shape[1] - len(target) :])
        out.append(logprobs_of(logits, torch.as_tensor(target, device=device), 0))
    return out
