"""The engine: continuous batching. Requests join and leave a running batch; a server is built on it.

    engine = Engine(network, tokenizer)
    request = engine.submit(prompt, GenerationOptions(max_tokens=100))
    for text in engine.stream(request): ...

A step generates one token for every running request. A request that ends frees its pages, and the next one in the queue
takes them, first come, first served. The result of a request does not depend on the others: it is what `generate`
returns for it alone.

Keys and values are stored in pages that are allocated as sequences grow (`pages.py`). The scheduler decides who gets
pages, and who is preempted when they run out (`scheduler.py`).

Threads: `submit`, `cancel` and `wait` may be called from any thread at any time. So may `step` and what drives it
(`stream`, `result`, `run`), since a lock serialises steps. A server can run a thread that loops over `wait` and `step`,
and be notified through `on_change`.
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
    """The caches of some requests as one batch; valid until a request joins, leaves or takes a page."""

    version: int
    requests: list[Request]
    cross_cache: CrossCache | None
    cache: PagedCache | None = None


class Engine:
    """Runs up to `max_sequences` requests at a time, in `num_pages` pages of `page_size` tokens."""

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
        """A step prefills at most `max_prefill_tokens` prompt tokens (or one prompt, if it is longer), so that new
        requests do not hold up running ones."""
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
        self._arrivals: deque[Request] = deque()  # submitted, not yet queued by a step
        self._batch: EngineBatch | None = None  # of the last step
        self._num_submitted = 0
        self._submit_lock = threading.Lock()  # request ids and arrivals
        self._step_lock = threading.RLock()  # one step at a time
        self._has_work = threading.Event()

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, prompt: Sequence[int], options: GenerationOptions, on_change: OnChange | None = None) -> Request:
        """Queue a request for a continuation of this prompt (for an encoder-decoder: this source). Returns immediately.

        Raises an error that names the limit if the request could never run.
        """
        options.check(self.network.config)
        if options.beam > 1:
            raise UsageError(
                f"beam = {options.beam}: the engine has no beam search; set beam = 1, or use qkv.decode.generate"
            )
        if options.stop and self.tokenizer is None:
            raise QkvError("stop strings need a tokenizer, and this model has none")
        config = self.network.config
        vocab = (config.encoder or config.stack).vocab_size
        wrong = next((token for token in prompt if not 0 <= token < vocab), None)
        if wrong is not None:
            raise UsageError(f"token id {wrong} is outside this model's vocabulary of {vocab}")
        assert isinstance(self.network, Decoder | Seq2Seq)
        (tokens,), source = decoder_inputs(self.network, [prompt], options)
        pool = self.page_pool
        max_pages = pool.pages_for(len(tokens) + options.max_tokens - 1)  # the last token is not read
        if max_pages > pool.num_pages:
            raise UsageError(
                f"{len(tokens)} tokens and up to {options.max_tokens} new ones need {max_pages} pages "
                f"of {pool.page_size}, and this engine has {pool.num_pages}; shorten the prompt, lower max_tokens, "
                "or raise num_pages"
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
        """Cancel a request; the next step frees its pages. A finished request stays as it is."""
        request.cancel_requested = True
        self._has_work.set()

    # ── Driving ──────────────────────────────────────────────────────────────────────────────────────────────────

    def stream(self, request: Request) -> Iterator[str]:
        """The text of a request in chunks, which never split a character. Runs steps, for all requests, to get more."""
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
        """Run steps, for all requests, until this one has ended; raises an error if it was cancelled or failed."""
        while not request.is_finished:
            with self._step_lock:
                if not request.is_finished:
                    self.step()
        self._raise_failure(request)
        assert request.result is not None
        return request.result

    def run(self) -> None:
        """Run steps until all requests have ended."""
        while self.step():
            pass

    def wait(self, timeout: float | None = None) -> bool:
        """Block until there is work, or until the timeout; returns whether there is work."""
        return self._has_work.wait(timeout)

    @torch.inference_mode()
    def step(self) -> bool:
        """Admit requests that fit, then generate one token for each running one; returns whether any are left."""
        schedule = self._scheduler
        with self._step_lock:
            self.stats.steps += 1
            self._take_arrivals()
            schedule.reserve_pages()
            joined = schedule.admit()
            self._encode_sources(joined)
            # New prompts are read first: requests with one token left to read may share their pages.
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

    # ── Parts of a step ──────────────────────────────────────────────────────────────────────────────────────────

    def _take_arrivals(self) -> None:
        """Queue new requests, and remove cancelled ones."""
        with self._submit_lock:
            self._scheduler.waiting += self._arrivals
            self._arrivals.clear()
        for request in [*self._scheduler.running, *self._scheduler.waiting]:
            if request.cancel_requested:
                self._finish(request, "cancelled")
                self._notify(request)

    def _encode_sources(self, joined: list[Request]) -> None:
        """Encode the sources of requests that have just joined. Preempted requests still have theirs."""
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
        """Generate one more token for each of these requests."""
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
        """The logits of the next token of each request, (R, V)."""
        batch = self._batch
        if batch is None or batch.version != self._scheduler.version or batch.requests != requests:
            held = [request.cross_cache for request in requests if request.cross_cache is not None]
            same = batch is not None and batch.requests == requests  # other pages at most
            cross = batch.cross_cache if batch is not None and same else sources.batch_sources(held) if held else None
            batch = EngineBatch(self._scheduler.version, requests, cross)
        self._batch = None  # until the model has run: an interrupted step leaves the cache half updated
        logits = self._run_model(batch)
        self._batch = batch
        return promote_to_float32(logits)

    def _run_model(self, batch: EngineBatch) -> Tensor:
        group = batch.requests
        if self._graphs is not None and self._graphs.supports(group):
            batch.cache = None  # the cache does not take part in this step
            return self._graphs(batch, group, batch.cross_cache)
        if batch.cache is None:
            batch.cache = PagedCache.from_page_tables(
                self.page_pool, [r.page_table for r in group], [r.num_cached for r in group]
            )
        cache = cast(SelfCache, batch.cache)  # it has the methods that a stack calls
        fed = [request.tokens[request.num_cached :] for request in group]
        padded = left_pad(fed, self.page_pool.keys[0].device)
        if self._cpu_step is not None and padded.shape[1] == 1:
            return self._cpu_step(padded[:, 0], cache, batch.cross_cache)
        segment = None if len({len(row) for row in fed}) == 1 else (padded >= 0).long()
        ids, position = padded.clamp(min=0), cache.next_positions(padded, segment)
        return next_logits(self.network, ids, segment, position, cache=cache, cross_cache=batch.cross_cache)

    def _select_tokens(self, requests: list[Request], logits: Tensor) -> None:
        """Filter the logits, choose a token for each request, and append it."""
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
            if request.is_finished:  # its filter raised an error
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
        """Apply each request's own filters to its row. A filter that raises an error ends its own request only."""
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

    # ── Ending ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(
        self,
        request: Request,
        state: RequestState,
        *,
        result: GenerationResult | None = None,
        error: Exception | None = None,
    ) -> None:
        """End a request and free its pages."""
        self._scheduler.remove(request)
        request.cross_cache = None
        request.result, request.error = result, error
        request.state = state

    def _fail(self, requests: list[Request], error: Exception) -> None:
        """Fail the requests of a batch, and those that joined in the same step and may share its unwritten pages."""
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
