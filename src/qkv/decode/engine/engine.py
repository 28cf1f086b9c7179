"""The engine: continuous batching. Requests join and leave a running batch. A server can be built on it.

    engine = Engine(network, tokenizer)
    request = engine.submit(prompt, GenerationOptions(max_tokens=100))
    for text in engine.stream(request): ...

A step generates one token for every running request. A request that ends frees its pages, and the next request in the
queue takes them, first come, first served. A long prompt is prefilled in chunks, one in each step, so that it does not
delay the other requests. The result of a request does not depend on the other requests: `generate` returns the same
result for the prompt alone.

On a GPU the host works one step behind: it launches a step, and then reads the tokens of the step before, while the GPU
is busy (`_pending`). So a request that ends with an end-of-sequence token or a stop string takes part in one more step,
whose token is dropped. A filter that depends on the tokens so far makes the host wait for them.

Keys and values are stored in pages that are allocated as sequences grow (`pages.py`). The scheduler decides which
requests get pages, and which are preempted when the pages run out (`scheduler.py`).

Threads: every public method may be called from any thread at any time. A lock ensures that only one step runs at a
time. A server can run `wait` and `step` in a loop in one thread, and pass `on_change` to be notified of new text.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence

import torch

from qkv.blocks import Inputs
from qkv.blocks.inputs import Prompt, as_prompt
from qkv.decode.backend import CPU, ENGINE_BACKENDS, GPU, choose_backend
from qkv.decode.cpu.step import CpuStep
from qkv.decode.engine import sources
from qkv.decode.engine.graphs import EngineGraphs, TokenBatch
from qkv.decode.engine.model import EngineModel
from qkv.decode.engine.next_tokens import PendingTokens, choose_tokens
from qkv.decode.engine.pages import PagePool
from qkv.decode.engine.request import OnChange, Request, RequestState, prefix_key
from qkv.decode.engine.scheduler import EngineStats, Scheduler
from qkv.decode.filters import has_stateless_filters, make_filters
from qkv.decode.options import GenerationOptions, PositiveCount
from qkv.decode.result import GenerationResult
from qkv.decode.runner import decoder_inputs
from qkv.decode.sampling import make_generators
from qkv.decode.selection import step_error, unpack_alternatives
from qkv.decode.sequence import GeneratedSequence
from qkv.errors import QkvError, UsageError
from qkv.models import Network
from qkv.text import Tokenizer
from qkv.values import check_value

STEPS_BETWEEN_ADMISSIONS = 8
"""On a GPU, a busy engine admits new requests once in this number of steps."""


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
        max_prefill_tokens: int = 512,
    ) -> None:
        """A step prefills at most `max_prefill_tokens` prompt tokens, so that new requests do not delay running ones.

        A longer prompt is prefilled over several steps.
        """
        for name, value in (
            ("max_sequences", max_sequences),
            ("num_pages", num_pages),
            ("page_size", page_size),
            ("max_prefill_tokens", max_prefill_tokens),
        ):
            check_value(PositiveCount, value, name)
        GenerationOptions().check(network.config)
        if network.config.keeps_state:
            raise UsageError(
                "the engine needs a model that only keeps keys and values, but this one keeps a state; use "
                "qkv.decode.generate"
            )
        self.network, self.tokenizer = network, tokenizer
        self.stats = EngineStats()
        self.page_pool = PagePool(network.new_cache(1, 1), num_pages, page_size)
        backend = choose_backend(network, GenerationOptions(), backends=ENGINE_BACKENDS)
        is_gpu = backend is GPU
        self._model = EngineModel(
            network,
            self.page_pool,
            cpu_step=CpuStep(network) if backend is CPU else None,
            graphs=EngineGraphs(network, self.page_pool, max_sequences) if is_gpu else None,
        )
        self._scheduler = Scheduler(
            self.page_pool,
            max_sequences,
            max_prefill_tokens,
            self.stats,
            steps_between_admissions=STEPS_BETWEEN_ADMISSIONS if is_gpu else 1,
        )
        self._max_pending_steps = 1 if is_gpu else 0
        self._pending: deque[list[PendingTokens]] = deque()  # the forward passes of each step, the oldest step first
        self._changed: list[Request] = []  # the requests whose `on_change` is called at the end of the step
        self._arrivals: deque[Request] = deque()  # new requests; the next step moves them to the scheduler's queue
        self._cancelled: list[Request] = []  # requests to cancel; the next step removes them
        self._num_submitted = 0
        self._submit_lock = threading.Lock()  # protects _num_submitted, _arrivals and _cancelled
        self._step_lock = threading.RLock()  # ensures that one step runs at a time
        self._has_work = threading.Event()

    # ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(
        self,
        prompt: Sequence[int] | Inputs,
        options: GenerationOptions,
        on_change: OnChange | None = None,
        *,
        eos_token_ids: tuple[int, ...] | None = None,
    ) -> Request:
        """Queue a request for a continuation of this prompt, and return immediately.

        For an encoder-decoder, `prompt` is the source. It may be `Inputs` of one sequence, with payloads.
        `eos_token_ids` replaces the end-of-sequence tokens of the config, because a chat may end with another token
        than a text. Raises an error if the request needs more pages than there are.
        """
        options.check(self.network.config)
        if options.beam > 1:
            raise UsageError(
                f"beam = {options.beam}: the engine has no beam search; set beam = 1, or use qkv.decode.generate"
            )
        if options.tap is not None:
            raise UsageError("tap: the engine runs requests together, without taps; use qkv.decode.generate")
        if options.stop and self.tokenizer is None:
            raise QkvError(
                f"stop = {options.stop!r}: stop strings need a tokenizer, and this engine has none; "
                "pass a tokenizer to Engine or leave out stop"
            )
        config, prompt = self.network.config, as_prompt(prompt)
        vocab_size = (config.encoder or config.stack).vocab_size
        invalid = next((token for token in prompt if not 0 <= token < max(1, vocab_size)), None)
        if invalid is not None:
            raise UsageError(
                f"prompt: token id {invalid} is outside this model's vocabulary of {vocab_size}; "
                f"use ids from 0 to {vocab_size - 1}"
            )
        (tokens,), source = decoder_inputs(self.network, [prompt], options)
        pool = self.page_pool
        max_pages = pool.pages_for(len(tokens) + options.max_tokens - 1)  # the model never reads the last token
        if max_pages > pool.num_pages:
            raise UsageError(
                f"{len(tokens)} tokens and up to {options.max_tokens} new ones need {max_pages} pages "
                f"of {pool.page_size} tokens, and this engine has {pool.num_pages}; shorten the prompt, "
                "lower max_tokens, or raise num_pages"
            )
        ends = config.eos_token_ids if eos_token_ids is None else eos_token_ids
        filters = make_filters(options.bind_constraint(self.tokenizer, ends, len(tokens)), ends, len(tokens))
        request = Request(
            request_id=-1,
            options=options,
            eos_token_ids=ends,
            tokens=list(tokens),
            prompt=tokens if isinstance(tokens, Prompt) else None,
            source=None if source is None else source[0],
            prefix_key=prefix_key(tokens if source is None else source[0], is_source=source is not None),
            filters=filters,
            is_plain=not (filters or options.logprobs or options.temperature > 0),
            has_stateless_filters=has_stateless_filters(options),
            generator=make_generators(options.seed, 1)[0] if options.temperature > 0 else None,
            length=len(tokens),
            max_length=len(tokens) + options.max_tokens,
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
        """Cancel a request. The next step frees its pages. A finished request does not change."""
        with self._submit_lock:
            self._cancelled.append(request)
        self._has_work.set()

    # ── Driving ──────────────────────────────────────────────────────────────────────────────────────────────────

    def stream(self, request: Request) -> Iterator[str]:
        """Yield the text of a request in chunks that never split a character. Runs steps of the engine as needed."""
        while True:
            is_last = request.is_finished
            while request.pending_text:
                yield request.pending_text.popleft()
            if is_last:
                break
            with self._step_lock:
                if not (request.is_finished or request.pending_text):
                    self.step()
        self._raise_failure(request)

    def result(self, request: Request) -> GenerationResult:
        """Run steps of the engine until this request ends. Raises an error if it was cancelled or failed."""
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
        """Block until there is work, or until the timeout in seconds. Returns whether there is work."""
        return self._has_work.wait(timeout)

    @torch.inference_mode()
    def step(self) -> bool:
        """Admit waiting requests, and generate one token for each running one. Returns whether any request is left."""
        scheduler = self._scheduler
        with self._step_lock:
            self.stats.steps += 1
            self._take_arrivals()
            if not all(request.has_stateless_filters for request in scheduler.running):
                self._read_results()
            scheduler.reserve_pages(self._read_results)
            joined = scheduler.admit()
            self._encode_sources(joined)
            launched = self._launch(joined)
            self._read_results(self._max_pending_steps if launched else 0)
            while self._changed:
                self._notify(self._changed.pop(0))
            self._has_work.clear()
            has_work = bool(scheduler.running or scheduler.waiting or self._arrivals)
            if has_work:
                self._has_work.set()
            return has_work

    # ── Parts of a step ──────────────────────────────────────────────────────────────────────────────────────────

    def _take_arrivals(self) -> None:
        """Move new requests to the scheduler's queue, and remove cancelled ones."""
        with self._submit_lock:
            self._scheduler.waiting += self._arrivals
            self._arrivals.clear()
            cancelled = [request for request in self._cancelled if not request.is_finished]
            self._cancelled.clear()
        for request in cancelled:
            self._finish(request, "cancelled")

    def _encode_sources(self, joined: list[Request]) -> None:
        """Encode the sources of the requests that joined. A request that was preempted keeps its encoded source."""
        new = [request for request in joined if request.source is not None and request.cross_cache is None]
        if not new:
            return
        try:
            encoded = sources.encode_sources(self.network, [r.source for r in new if r.source is not None])
        except Exception as error:
            self._fail(joined, error)
            return
        for request, cross_cache in zip(new, encoded, strict=True):
            request.cross_cache = cross_cache

    def _launch(self, joined: list[Request]) -> bool:
        """Run the forward passes of this step. Returns whether there were any."""
        self.page_pool.clear_new_pages()
        prefill = TokenBatch(*self._scheduler.prefill_chunks())
        decoding = [request for request in self._scheduler.running if request.can_decode]
        batches = [prefill] if self._model.graphs is None else self._model.graphs.split(prefill)
        # Prefill runs first, because requests with one uncached token may share pages that it writes.
        batches.append(TokenBatch(decoding, [1] * len(decoding)))
        passes: list[PendingTokens] = []
        self._pending.append(passes)
        num_failed = len(self._changed)
        for batch in batches:
            if len(self._changed) > num_failed:  # an earlier pass has failed, and with it requests of this pass
                left = [(r, n) for r, n in zip(*batch, strict=True) if not r.is_finished]
                batch = TokenBatch([r for r, _ in left], [n for _, n in left])
            if batch.requests:
                passes += self._run_pass(batch, joined)
        return bool(prefill.requests or decoding)

    def _run_pass(self, batch: TokenBatch, joined: list[Request]) -> list[PendingTokens]:
        """Run the model on some tokens of each request. A request that was read to its end gets its next token."""
        try:
            logits, argmax_output = self._model(batch, self._scheduler.version)
        except Exception as error:
            self._fail(list(dict.fromkeys([*batch.requests, *joined])), error)
            return []
        has_next: list[Request | None] = []  # the requests that get a token, by row
        for request, num_tokens in zip(*batch, strict=True):
            request.num_cached += num_tokens
            if num_tokens > 1:
                self._scheduler.share_full_pages(request, request.num_cached)
            has_next.append(request if request.num_cached == request.length else None)
        if not any(has_next):
            return []
        passes, errors = choose_tokens(has_next, logits, argmax_output, self._model.newest_tokens)
        for request, filter_error in errors:
            self._finish(request, "failed", error=filter_error)
        return passes

    def _read_results(self, max_pending_steps: int = 0) -> None:
        """Wait for the tokens of all steps but the last `max_pending_steps`, and append them to their requests."""
        while len(self._pending) > max_pending_steps:
            for tokens in self._pending.popleft():
                for request, (token, logprob, filtered_logit, *alternatives) in tokens.read():
                    if request is None or request.state != "running":
                        continue
                    error = step_error(logprob, filtered_logit)
                    if error is None:
                        self._append_token(request, int(token), logprob, alternatives)
                    else:
                        self._finish(request, "failed", error=error)

    def _append_token(self, request: Request, token: int, logprob: float, alternatives: list[float]) -> None:
        """Append a token that was read. `alternatives` are the last columns of `pack_step_output`."""
        options, sequence = request.options, request.sequence
        request.tokens.append(token)
        if len(request.tokens) > (len(request.shared_pages) + 1) * self.page_pool.page_size:
            self._scheduler.share_full_pages(request, len(request.tokens) - 1)
        self.stats.generated_tokens += 1
        shown = unpack_alternatives(alternatives, options.logprobs) if options.logprobs else None
        reason = sequence.append(token, logprob, options, request.eos_token_ids, shown)
        if sequence.text or reason is not None:
            sequence.emit_text(options, lambda _, text: request.pending_text.append(text), is_last=reason is not None)
        if reason is not None:
            self._finish(request, "done", result=sequence.to_result(reason))
        elif request.on_change is not None:
            self._changed.append(request)

    # ── Ending ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(
        self,
        request: Request,
        state: RequestState,
        *,
        result: GenerationResult | None = None,
        error: Exception | None = None,
    ) -> None:
        """End a request and free its pages. The end of the step calls its `on_change`."""
        self._scheduler.remove(request)
        request.cross_cache = None
        request.result, request.error = result, error
        request.state = state
        self._changed.append(request)

    def _fail(self, requests: list[Request], error: Exception) -> None:
        """Fail these requests.

        Requests that joined in this step may share pages that were never written, so the caller must include them.
        """
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
            raise QkvError(
                f"request {request.request_id} was cancelled after {len(request.ids)} tokens, so it has no result; "
                "read request.text for the text so far"
            )
