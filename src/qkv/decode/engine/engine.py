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
from qkv.decode.backend import CPU, ENGINE_BACKENDS, GPU, choose_backend
from qkv.decode.cpu.step import CpuStep
from qkv.decode.engine import sources
from qkv.decode.engine.graphs import EngineGraphs
from qkv.decode.engine.pages import PagedCache, PagePool
from qkv.decode.engine.request import OnChange, Request, RequestState
from qkv.decode.engine.scheduler import EngineStats, Scheduler
from qkv.decode.filters import make_filters
from qkv.decode.options import GenerationOptions
from qkv.decode.result import GenerationResult
from qkv.decode.runner import decoder_inputs, left_pad, next_logits, promote_to_float32
from qkv.decode.sampling import argmax, draw_uniforms, make_generators, sample_by_inverse_cdf
from qkv.decode.selection import pack_step_output, unpack_step_output
from qkv.decode.sequence import GeneratedSequence
from qkv.errors import QkvError, UsageError
from qkv.models import Decoder, Network, Seq2Seq
from qkv.text import Tokenizer


@dataclass(eq=False)
class EngineBatch:
    """The memory of some requests, laid out for the model; good until one comes, goes, or takes a page."""

    version: int
    requests: list[Request]
    cross_cache: CrossCache | None
    cache: PagedCache | None = None


class Engine:
    """Writes `rows` texts at a time, in `pages` pages of `page_size` tokens; see the module's own words."""

    def __init__(
        self,
        network: Network,
        tokenizer: Tokenizer | None = None,
        *,
        max_sequences: int = 16,
        num_pages: int = 1024,
        page_size: int = 16,
        max_prefill_tokens: int = 4096,
    ) -> None:
        """A step reads prompts of at most `read_at_once` tokens together (or one prompt, if it is longer), so that
        newcomers do not hold up those who are writing."""
        for name, value in (
            ("max_sequences", max_sequences),
            ("num_pages", num_pages),
            ("page_size", page_size),
            ("max_prefill_tokens", max_prefill_tokens),
        ):
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} = {value!r}: must be an integer >= 1")
        GenerationOptions().check(network.config)
        assert isinstance(network, Decoder | Seq2Seq)
        self.network, self.tokenizer = network, tokenizer
        self.stats = EngineStats()
        like = network.new_cache(1, 1)
        self.page_pool = PagePool(like, num_pages, page_size)
        backend = choose_backend(network, GenerationOptions(), backends=ENGINE_BACKENDS)
        self._cpu_step = CpuStep(network) if backend is CPU else None
        self._graphs = EngineGraphs(network, self.page_pool) if backend is GPU else None
        self._scheduler = Scheduler(self.page_pool, max_sequences, max_prefill_tokens, self.stats)
        self._eos_token_ids = network.config.eos_token_ids
        self._arrivals: deque[Request] = deque()  # submitted, not yet seen by a step
        self._batch: EngineBatch | None = None  # of the last step that all wrote in
        self._num_submitted = 0
        self._submit_lock = threading.Lock()  # numbers and arrivals
        self._step_lock = threading.RLock()  # one step at a time
        self._has_work = threading.Event()

    # ---------------------------------------------------------------- asking

    def submit(self, prompt: Sequence[int], options: GenerationOptions, on_change: OnChange | None = None) -> Request:
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
        vocab = (config.encoder or config.stack).vocab_size
        wrong = next((token for token in prompt if not 0 <= token < vocab), None)
        if wrong is not None:
            raise UsageError(f"token id {wrong} is outside this model's vocabulary of {vocab}")
        assert isinstance(self.network, Decoder | Seq2Seq)
        (tokens,), source = decoder_inputs(self.network, [prompt], options)
        longest = len(tokens) + options.max_tokens - 1  # the last token is chosen, and not read again
        if self.page_pool.pages_for(longest) > self.page_pool.num_pages:
            raise UsageError(
                f"{len(tokens)} tokens and up to {options.max_tokens} new ones need {self.page_pool.pages_for(longest)} pages "
                f"of {self.page_pool.page_size}, and this engine has {self.page_pool.num_pages}; shorten the prompt, lower max_tokens, "
                "or give the engine more pages"
            )
        bound = options.bind_constraint(self.tokenizer, self._eos_token_ids, len(tokens))
        request = Request(
            request_id=-1,
            options=options,
            tokens=tokens,
            source=None if source is None else tuple(source[0]),
            filters=make_filters(bound, self._eos_token_ids, len(tokens)),
            generator=make_generators(options.seed, 1)[0] if options.temperature > 0 else None,
            sequence=GeneratedSequence(0, stream_decoder=self.tokenizer.target.stream() if self.tokenizer else None),
            on_change=on_change,
        )
        with self._submit_lock:
            request.request_id = request.sequence.index = self._num_submitted
            self._num_submitted += 1
            self._arrivals.append(request)
        self._has_work.set()
        return request

    def cancel(self, request: Request) -> None:
        """Ask for a request to end; the next step frees what it holds. One that has ended stays as it is."""
        request.cancel_requested = True
        self._has_work.set()

    # ---------------------------------------------------------------- driving

    def stream(self, request: Request) -> Iterator[str]:
        """Its text, piece by piece, never half a character. Takes steps, for everyone, while there is none."""
        while True:
            last = request.is_finished
            while request.pending_text:
                yield request.pending_text.popleft()
            if last:
                break
            with self._step_lock:
                if not (request.is_finished or request.pending_text):
                    self.step()
        self._raise_failure(request)

    def result(self, request: Request) -> GenerationResult:
        """Take steps, for everyone, until this request has ended; an error where it was cancelled or has failed."""
        while not request.is_finished:
            with self._step_lock:
                if not request.is_finished:
                    self.step()
        self._raise_failure(request)
        assert request.result is not None
        return request.result

    def run(self) -> None:
        """Take steps until there is nothing left to do."""
        while self.step():
            pass

    def wait(self, timeout: float | None = None) -> bool:
        """Block until there is something to do: whether there is."""
        return self._has_work.wait(timeout)

    @torch.inference_mode()
    def step(self) -> bool:
        """Write one token to every running text, after those that now fit have joined; whether any are left."""
        schedule = self._scheduler
        with self._step_lock:
            self.stats.steps += 1
            self._take_arrivals()
            schedule.reserve_pages()
            joined = schedule.admit()
            self._encode_sources(joined)
            # Newcomers are read first: others of them, with one token left to read, may share their pages.
            reading = [request for request in schedule.running if request.num_uncached > 1]
            going_on = [request for request in schedule.running if request.num_uncached == 1]
            for group in (reading, going_on):
                if group := [request for request in group if not request.is_finished]:
                    self._generate_next(group, joined)
            for request in (*reading, *going_on):
                self._notify(request)
            self._has_work.clear()
            left = bool(schedule.running or schedule.waiting or self._arrivals)
            if left:
                self._has_work.set()
            return left

    # ---------------------------------------------------------------- the parts of a step

    def _take_arrivals(self) -> None:
        """Let arrivals into the line, and those go who were cancelled."""
        with self._submit_lock:
            self._scheduler.waiting += self._arrivals
            self._arrivals.clear()
        for request in [*self._scheduler.running, *self._scheduler.waiting]:
            if request.cancel_requested:
                self._finish(request, "cancelled")
                self._notify(request)

    def _encode_sources(self, joined: list[Request]) -> None:
        """The sources of those who have just joined, but for those who were set back and still have theirs."""
        unread = [request for request in joined if request.source is not None and request.cross_cache is None]
        if not unread:
            return
        assert isinstance(self.network, Seq2Seq)
        try:
            read = sources.encode_sources(
                self.network, [request.source for request in unread if request.source is not None]
            )
        except Exception as error:
            self._fail(joined, error)
            return
        for request, cross in zip(unread, read, strict=True):
            request.cross_cache = cross

    def _generate_next(self, requests: list[Request], joined: list[Request]) -> None:
        """One more token for each of these."""
        try:
            logits = self._logits(requests)
        except Exception as error:
            self._fail(list(dict.fromkeys([*requests, *joined])), error)
            return
        for request in requests:
            request.num_cached = len(request.tokens)
            self._scheduler.share_full_pages(request, request.num_cached)
        self._select_tokens(requests, logits)

    def _logits(self, requests: list[Request]) -> Tensor:
        """What the model says comes next in each text, (R, V)."""
        batch = self._batch
        if batch is None or batch.version != self._scheduler.version or batch.requests != requests:
            held = [request.cross_cache for request in requests if request.cross_cache is not None]
            same = batch is not None and batch.requests == requests  # but for their pages
            cross = batch.cross_cache if batch is not None and same else sources.batch_sources(held) if held else None
            batch = EngineBatch(self._scheduler.version, requests, cross)
        self._batch = None  # until the model has run: a step that is broken off leaves the cache half advanced
        logits = self._run_model(batch)
        self._batch = batch
        return promote_to_float32(logits)

    def _run_model(self, batch: EngineBatch) -> Tensor:
        group = batch.requests
        if self._graphs is not None and self._graphs.supports(group):
            batch.cache = None  # it would not hear of this step
            return self._graphs(batch, group, batch.cross_cache)
        if batch.cache is None:
            batch.cache = PagedCache.from_page_tables(
                self.page_pool, [r.page_table for r in group], [r.num_cached for r in group]
            )
        cache = cast(SelfCache, batch.cache)  # it is none, but has all that a stack asks of one
        fed = [request.tokens[request.num_cached :] for request in group]
        padded = left_pad(fed, self.page_pool.keys[0].device)
        if self._cpu_step is not None and padded.shape[1] == 1:
            return self._cpu_step(padded[:, 0], cache, batch.cross_cache)
        segment = None if len({len(row) for row in fed}) == 1 else (padded >= 0).long()
        ids, position = padded.clamp(min=0), cache.next_positions(padded, segment)
        return next_logits(self.network, ids, segment, position, cache=cache, cross_cache=batch.cross_cache)

    def _select_tokens(self, requests: list[Request], logits: Tensor) -> None:
        """Filter, choose, and add a token to each text."""
        filtered = self._filter(requests, logits)
        chosen = argmax(filtered)
        drawing = [row for row, request in enumerate(requests) if request.generator is not None]
        if drawing:
            numbers = draw_uniforms([r.generator for r in requests if r.generator is not None])
            chosen[drawing] = sample_by_inverse_cdf(filtered[drawing], numbers.to(logits.device))
        most = max(request.options.logprobs for request in requests)
        for request, (logprob, trouble) in zip(
            requests, unpack_step_output(pack_step_output(logits, filtered, chosen, most)), strict=True
        ):
            if request.is_finished:  # its filter has raised
                continue
            if trouble is not None:
                self._finish(request, "failed", error=trouble)
                continue
            logprob.alternatives = dict(list(logprob.alternatives.items())[: request.options.logprobs])
            request.tokens.append(logprob.id)
            self.stats.generated_tokens += 1
            reason = request.sequence.append(logprob.id, logprob, request.options, self._eos_token_ids)
            request.sequence.emit_text(request.options, request.queue_text, is_last=reason is not None)
            if reason is not None:
                self._finish(request, "done", result=request.sequence.to_result(reason))

    def _filter(self, requests: list[Request], raw: Tensor) -> Tensor:
        """Each row by its own request's filters; one that raises ends its own request alone."""
        if not any(request.filters for request in requests):
            return raw
        out = raw.clone()
        for row, request in enumerate(requests):
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
        self,
        request: Request,
        state: RequestState,
        *,
        result: GenerationResult | None = None,
        error: Exception | None = None,
    ) -> None:
        """A request leaves, with what it holds."""
        self._scheduler.remove(request)
        request.cross_cache = None
        request.result, request.error = result, error
        request.state = state

    def _fail(self, requests: list[Request], error: Exception) -> None:
        """Those whose batch went wrong, and those who joined in the same step and may share its unwritten pages."""
        for request in requests:
            if not request.is_finished:
                self._finish(request, "failed", error=error)
        self.page_pool.evict_unused()

    def _notify(self, request: Request) -> None:
        if request.on_change is not None:
            try:
                request.on_change(request)
            except Exception as error:
                if not request.is_finished:
                    self._finish(request, "failed", error=error)

    def _raise_failure(self, request: Request) -> None:
        if request.error is not None:
            raise request.error
        if request.state == "cancelled":
            raise QkvError(f"request {request.request_id} was cancelled after {len(request.ids)} tokens")
