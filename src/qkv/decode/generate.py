"""The loop: run the model, filter the logits, choose, until every row has ended.

For decoder-only and encoder-decoder models alike: what differs is what a prompt is. A decoder goes on from its
prompt; an encoder-decoder reads a source and goes on from its start token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from qkv.decode.beam import beam_search
from qkv.decode.choose import draw, generators_of, likeliest
from qkv.decode.filters import filters_of
from qkv.decode.options import Options
from qkv.decode.result import Result, TokenLogprob
from qkv.decode.run import Run, check_room, flush_right
from qkv.errors import QkvError
from qkv.models import Decoder, Network, Seq2Seq
from qkv.text import StreamDecoder, Tokenizer

OnText = Callable[[int, str], None]
"""Called with a row's number and a new piece of its text, never half a character."""


@dataclass
class Writing:
    """One row while it is being written."""

    number: int
    ids: list[int] = field(default_factory=list)
    score: float = 0.0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    text: str = ""
    shown: int = 0  # how much of the text was handed out
    stream: StreamDecoder | None = None


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
    run = start(network, prompts, options)
    end = network.config.end
    if options.beam > 1:
        return _from_search(run, options, end, tokenizer)
    return _write(run, options, end, tokenizer, on_text)


def start(network: Decoder | Seq2Seq, prompts: Sequence[Sequence[int]], options: Options) -> Run:
    """A run that is ready to prefill, or an error that names the limit."""
    if isinstance(network, Seq2Seq):
        first = network.config.start
        if first is None:
            raise QkvError("this model's config names no start token, so its decoder cannot begin")
        targets = [[first, *options.prefix]] * len(prompts)
        check_room(network, targets, prompts, options.max_tokens)
        run = Run(network, targets, room=options.max_tokens)
        run.read_source(prompts)
        return run
    targets = [[*prompt, *options.prefix] for prompt in prompts]
    check_room(network, targets, None, options.max_tokens)
    return Run(network, targets, room=options.max_tokens)


def _write(
    run: Run, options: Options, end: tuple[int, ...], tokenizer: Tokenizer | None, on_text: OnText | None
) -> list[Result]:
    """Greedy, or sampling: one way on for each row."""
    rows = run.tokens.shape[0]
    filters = filters_of(options, end, run.tokens.shape[1])
    generators = generators_of(options.seed, rows) if options.temperature > 0 else []
    live = [Writing(i, stream=tokenizer.stream() if tokenizer else None) for i in range(rows)]
    results: list[Result | None] = [None] * rows
    logits = run.prefill()
    for _ in range(options.max_tokens):
        raw = logits
        for apply in filters:
            logits = apply(logits, run.tokens)
        if options.temperature > 0:
            chosen = draw(logits, [generators[w.number] for w in live])
        else:
            chosen = likeliest(logits)
        logprobs = _logprobs(raw, chosen, options.logprobs)
        going = []
        for row, (writing, token) in enumerate(zip(live, chosen.tolist(), strict=True)):
            reason = _take(writing, token, logprobs[row], options, end)
            if reason or on_text is not None:
                _hand_out(writing, options, on_text, last=reason is not None)
            if reason is None:
                going.append(row)
            else:
                results[writing.number] = _result(writing, reason)
        if not going:
            break
        live = [live[row] for row in going]
        if len(going) < len(chosen):
            index = torch.tensor(going, device=chosen.device)
            run.keep(index)
            chosen = chosen[index]
        logits = run.step(chosen)
    assert all(result is not None for result in results)
    return [result for result in results if result is not None]


def _take(writing: Writing, token: int, logprob: TokenLogprob, options: Options, end: tuple[int, ...]) -> str | None:
    """Add a token to a row; the reason to stop, if there is one."""
    writing.score += logprob.logprob
    writing.logprobs.append(logprob)
    if token in end:
        return "end"
    writing.ids.append(token)
    if writing.stream is not None:
        writing.text += writing.stream.push(token)
        if options.stop and _cut(writing, options.stop):
            return "stop"
    return "length" if len(writing.logprobs) == options.max_tokens else None


def _cut(writing: Writing, stops: tuple[str, ...]) -> bool:
    """Cut the text at the first stop text in it, which may span tokens."""
    places = [place for place in (writing.text.find(stop) for stop in stops) if place >= 0]
    if places:
        writing.text = writing.text[: min(places)]
        writing.stream = None
    return bool(places)


def _hand_out(writing: Writing, options: Options, on_text: OnText | None, last: bool) -> None:
    """Pass on the text that can no longer become part of a stop text."""
    if last and writing.stream is not None:
        writing.text += writing.stream.finish()
        writing.stream = None
    hold = 0 if last else max((_overlap(writing.text, stop) for stop in options.stop), default=0)
    until = len(writing.text) - hold
    if on_text is not None and until > writing.shown:
        on_text(writing.number, writing.text[writing.shown : until])
        writing.shown = until


def _overlap(text: str, stop: str) -> int:
    """How many last characters of the text begin the stop text."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


def _result(writing: Writing, reason: str) -> Result:
    return Result(writing.text, writing.ids, writing.score, reason, writing.logprobs)  # type: ignore[arg-type]


def _logprobs(logits: Tensor, chosen: Tensor, alternatives: int) -> list[TokenLogprob]:
    """The model's own log-probabilities, before any filter."""
    every = logits.double().log_softmax(-1)
    values = every.gather(1, chosen[:, None])[:, 0].tolist()
    out = [TokenLogprob(token, value) for token, value in zip(chosen.tolist(), values, strict=True)]
    if alternatives:
        best, ids = every.topk(alternatives)
        for entry, row_ids, row_best in zip(out, ids.tolist(), best.tolist(), strict=True):
            entry.alternatives = dict(zip(row_ids, row_best, strict=True))
    return out


def _from_search(run: Run, options: Options, end: tuple[int, ...], tokenizer: Tokenizer | None) -> list[Result]:
    results = []
    for search in beam_search(run, options, end):
        if not search.finished:
            raise QkvError("no way on was allowed, so the search found nothing; loosen the filters")
        ranked = []
        for hypothesis in search.finished[: options.best]:
            ids = hypothesis.ids[:-1] if hypothesis.ended else hypothesis.ids
            text = tokenizer.decode(ids) if tokenizer is not None else ""
            cut = Writing(0, text=text)
            stopped = bool(options.stop) and _cut(cut, options.stop)
            reason = "stop" if stopped else "end" if hypothesis.ended else "length"
            ranked.append(Result(cut.text, ids, hypothesis.worth, reason))  # type: ignore[arg-type]
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
        out.append(_logprobs(logits, torch.as_tensor(target, device=device), 0))
    return out
