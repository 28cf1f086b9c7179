"""The engine: many requests written at once, each joining and leaving when it pleases. What a server stands on.

    engine = Engine(network, tokenizer)
    request = engine.submit(prompt, Options(max_tokens=100))
    for piece in engine.stream(request): ...

A step writes one token to every running text. A text that ends frees its place and its pages, and the next in line
takes them; first come, first served, and nobody is overtaken. What a request writes does not depend on who else is
there: it is what `generate` writes for it alone.

Keys and values live in pages that are taken as texts grow (`qkv.decode.pages`); who gets them, and who makes room when
they run out, is the `qkv.decode.schedule`.

Threads: `submit`, `cancel` and `wait` may be called from any thread at any time; `step` and all that drives it
(`stream`, `result`, `run`) too, since steps take turns. A server may give steps to one thread that loops over
`wait` and `step`, and listen with `on_change`.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from qkv.blocks import CrossCache, SelfCache
from qkv.decode import sources, static_step
from qkv.decode.choice import heard, told_of
from qkv.decode.choose import by_number, generators_of, likeliest, numbers_of
from qkv.decode.engine_step import EngineSteps
from qkv.decode.fast_cpu import FastStep, fits
from qkv.decode.filters import filters_of
from qkv.decode.generate import openings
from qkv.decode.options import Options
from qkv.decode.pages import PagedCache, Pages
from qkv.decode.request import OnChange, Request, State
from qkv.decode.result import Result
from qkv.decode.run import exact, flush_right, next_logits
from qkv.decode.schedule import Counts, Schedule
from qkv.decode.writing import Writing
from qkv.errors import QkvError, UsageError
from qkv.models import Decoder, Network, Seq2Seq
from qkv.text import Tokenizer


@dataclass(eq=False)
class Batch:
    """The memory of some requests, laid out for the model; good until one comes, goes, or takes a page."""

    version: int
    group: list[Request]
    cross: CrossCache | None
    cache: PagedCache | None = None


class Engine:
    """Writes `rows` texts at a time, in `pages` pages of `page_size` tokens; see the module's own words."""

    def __init__(
        self,
        network: Network,
        tokenizer: Tokenizer | None = None,
        *,
        rows: int = 16,
        pages: int = 1024,
        page_size: int = 16,
        read_at_once: int = 4096,
    ) -> None:
        """A step reads prompts of at most `read_at_once` tokens together (or one prompt, if it is longer), so that
        newcomers do not hold up those who are writing."""
        for name, value in (("rows", rows), ("pages", pages), ("page_size", page_size), ("read_at_once", read_at_once)):
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} = {value!r}: a whole number from 1 on")
        Options().check(network.config)
        assert isinstance(network, Decoder | Seq2Seq)
        self.network, self.tokenizer = network, tokenizer
        self.counts = Counts()
        like = network.new_cache(1, 1)
        self.pages = Pages(like, pages, page_size)
        self._fast = FastStep(network) if fits(network, like) else None
        on_gpu = like.keys[0].is_cuda and static_step.fits(network)
        self._frames = EngineSteps(network, self.pages) if on_gpu else None
        self._schedule = Schedule(self.pages, rows, read_at_once, self.counts)
        self._end = network.config.end
        self._arrivals: deque[Request] = deque()  # submitted, not yet seen by a step
        self._batch: Batch | None = None  # of the last step that all wrote in
        self._submitted = 0
        self._gate = threading.Lock()  # numbers and arrivals
        self._turn = threading.RLock()  # one step at a time
        self._work = threading.Event()

    # ---------------------------------------------------------------- asking

    def submit(self, prompt: Sequence[int], options: Options, on_change: OnChange | None = None) -> Request:
        """Ask for a text after this prompt (for an encoder-decoder: an answer to this source). Returns at once.

        What could never be written is refused here, with the limit named.
        """
        options.check(self.network.config)
        if options.beam > 1:
            raise UsageError(
                f"beam = {options.beam}: the engine writes one text a request; search with qkv.decode.generate"
            )
        if options.stop and self.tokenizer is None:
            raise QkvError("stop texts need a tokenizer, and this model has none")
        config = self.network.config
        vocab = (config.encoder or config.stack).vocab
        wrong = next((token for token in prompt if not 0 <= token < vocab), None)
        if wrong is not None:
            raise UsageError(f"token id {wrong} is outside this model's vocabulary of {vocab}")
        assert isinstance(self.network, Decoder | Seq2Seq)
        (tokens,), source = openings(self.network, [prompt], options)
        longest = len(tokens) + options.max_tokens - 1  # the last token is chosen, and not read again
        if self.pages.needed(longest) > self.pages.count:
            raise UsageError(
                f"{len(tokens)} tokens and up to {options.max_tokens} new ones need {self.pages.needed(longest)} pages "
                f"of {self.pages.size}, and this engine has {self.pages.count}; shorten the prompt, lower max_tokens, "
                "or give the engine more pages"
            )
        bound = options.bound(self.tokenizer, self._end, len(tokens))
        request = Request(
            number=-1,
            options=options,
            tokens=tokens,
            source=None if source is None else tuple(source[0]),
            filters=filters_of(bound, self._end, len(tokens)),
            generator=generators_of(options.seed, 1)[0] if options.temperature > 0 else None,
            writing=Writing(0, stream=self.tokenizer.target.stream() if self.tokenizer else None),
            on_change=on_change,
        )
        with self._gate:
            request.number = request.writing.number = self._submitted
            self._submitted += 1
            self._arrivals.append(request)
        self._work.set()
        return request

    def cancel(self, request: Request) -> None:
        """Ask for a request to end; the next step frees what it holds. One that has ended stays as it is."""
        request.cancelling = True
        self._work.set()

    # ---------------------------------------------------------------- driving

    def stream(self, request: Request) -> Iterator[str]:
        """Its text, piece by piece, never half a character. Takes steps, for everyone, while there is none."""
        while True:
            last = request.finished
            while request.pieces:
                yield request.pieces.popleft()
            if last:
                break
            with self._turn:
                if not (request.finished or request.pieces):
                    self.step()
        self._raise(request)

    def result(self, request: Request) -> Result:
        """Take steps, for everyone, until this request has ended; an error where it was cancelled or has failed."""
        while not request.finished:
            with self._turn:
                if not request.finished:
                    self.step()
        self._raise(request)
        assert request.result is not None
        return request.result

    def run(self) -> None:
        """Take steps until there is nothing left to do."""
        while self.step():
            pass

    def wait(self, timeout: float | None = None) -> bool:
        """Block until there is something to do: whether there is."""
        return self._work.wait(timeout)

    @torch.inference_mode()
    def step(self) -> bool:
        """Write one token to every running text, after those that now fit have joined; whether any are left."""
        schedule = self._schedule
        with self._turn:
            self.counts.steps += 1
            self._open()
            schedule.make_room()
            joined = schedule.admit()
            self._read_sources(joined)
            # Newcomers are read first: others of them, with one token left to read, may share their pages.
            reading = [request for request in schedule.running if request.unread > 1]
            going_on = [request for request in schedule.running if request.unread == 1]
            for group in (reading, going_on):
                if group := [request for request in group if not request.finished]:
                    self._advance(group, joined)
            for request in (*reading, *going_on):
                self._tell(request)
            self._work.clear()
            left = bool(schedule.running or schedule.waiting or self._arrivals)
            if left:
                self._work.set()
            return left

    # ---------------------------------------------------------------- the parts of a step

    def _open(self) -> None:
        """Let arrivals into the line, and those go who were cancelled."""
        with self._gate:
            self._schedule.waiting += self._arrivals
            self._arrivals.clear()
        for request in [*self._schedule.running, *self._schedule.waiting]:
            if request.cancelling:
                self._finish(request, "cancelled")
                self._tell(request)

    def _read_sources(self, joined: list[Request]) -> None:
        """The sources of those who have just joined, but for those who were set back and still have theirs."""
        unread = [request for request in joined if request.source is not None and request.cross is None]
        if not unread:
            return
        assert isinstance(self.network, Seq2Seq)
        try:
            read = sources.read(self.network, [request.source for request in unread if request.source is not None])
        except Exception as error:
            self._fail(joined, error)
            return
        for request, cross in zip(unread, read, strict=True):
            request.cross = cross

    def _advance(self, group: list[Request], joined: list[Request]) -> None:
        """One more token for each of these."""
        try:
            logits = self._logits(group)
        except Exception as error:
            self._fail(list(dict.fromkeys([*group, *joined])), error)
            return
        for request in group:
            request.filled = len(request.tokens)
            self._schedule.make_known(request, request.filled)
        self._write(group, logits)

    def _logits(self, group: list[Request]) -> Tensor:
        """What the model says comes next in each text, (R, V)."""
        batch = self._batch
        if batch is None or batch.version != self._schedule.version or batch.group != group:
            held = [request.cross for request in group if request.cross is not None]
            same = batch is not None and batch.group == group  # but for their pages
            cross = batch.cross if batch is not None and same else sources.join(held) if held else None
            batch = Batch(self._schedule.version, group, cross)
        self._batch = None  # until the model has run: a step that is broken off leaves the cache half advanced
        logits = self._run(batch)
        self._batch = batch
        return exact(logits)

    def _run(self, batch: Batch) -> Tensor:
        group = batch.group
        if self._frames is not None and self._frames.take(group):
            batch.cache = None  # it would not hear of this step
            return self._frames(batch, group, batch.cross)
        if batch.cache is None:
            batch.cache = PagedCache.of(self.pages, [r.table for r in group], [r.filled for r in group])
        cache = cast(SelfCache, batch.cache)  # it is none, but has all that a stack asks of one
        fed = [request.tokens[request.filled :] for request in group]
        padded = flush_right(fed, self.pages.keys[0].device)
        if self._fast is not None and padded.shape[1] == 1:
            return self._fast(padded[:, 0], cache, batch.cross)
        segment = None if len({len(row) for row in fed}) == 1 else (padded >= 0).long()
        ids, position = padded.clamp(min=0), cache.next_positions(padded, segment)
        return next_logits(self.network, ids, segment, position, cache=cache, cross=batch.cross)

    def _write(self, group: list[Request], raw: Tensor) -> None:
        """Filter, choose, and add a token to each text."""
        filtered = self._filter(group, raw)
        chosen = likeliest(filtered)
        drawing = [row for row, request in enumerate(group) if request.generator is not None]
        if drawing:
            numbers = numbers_of([r.generator for r in group if r.generator is not None])
            chosen[drawing] = by_number(filtered[drawing], numbers.to(raw.device))
        most = max(request.options.logprobs for request in group)
        for request, (logprob, trouble) in zip(group, heard(told_of(raw, filtered, chosen, most)), strict=True):
            if request.finished:  # its filter has raised
                continue
            if trouble is not None:
                self._finish(request, "failed", error=trouble)
                continue
            logprob.alternatives = dict(list(logprob.alternatives.items())[: request.options.logprobs])
            request.tokens.append(logprob.id)
            self.counts.written += 1
            reason = request.writing.take(logprob.id, logprob, request.options, self._end)
            request.writing.hand_out(request.options, request.hear, last=reason is not None)
            if reason is not None:
                self._finish(request, "done", result=request.writing.result(reason))

    def _filter(self, group: list[Request], raw: Tensor) -> Tensor:
        """Each row by its own request's filters; one that raises ends its own request alone."""
        if not any(request.filters for request in group):
            return raw
        out = raw.clone()
        for row, request in enumerate(group):
            if not request.filters:
                continue
            tokens = torch.tensor([request.tokens], device=raw.device)
            logits = raw[row : row + 1]
            try:
                for apply in request.filters:
                    logits = apply(logits, tokens)
            except Exception as error:
                self._finish(request, "failed", error=error)
            else:
                out[row] = logits[0]
        return out

    # ---------------------------------------------------------------- ending

    def _finish(
        self, request: Request, state: State, *, result: Result | None = None, error: Exception | None = None
    ) -> None:
        """A request leaves, with what it holds."""
        self._schedule.leave(request)
        request.cross = None
        request.result, request.error = result, error
        request.state = state

    def _fail(self, requests: list[Request], error: Exception) -> None:
        """Those whose batch went wrong, and those who joined in the same step and may share its unwritten pages."""
        for request in requests:
            if not request.finished:
                self._finish(request, "failed", error=error)
        self.pages.forget()

    def _tell(self, request: Request) -> None:
        if request.on_change is not None:
            try:
                request.on_change(request)
            except Exception as error:
                if not request.finished:
                    self._finish(request, "failed", error=error)

    def _raise(self, request: Request) -> None:
        if request.error is not None:
            raise request.error
        if request.state == "cancelled":
            raise QkvError(f"request {request.number} was cancelled after {len(request.ids)} tokens")
