"""The scheduler decides which requests run, which wait, and which pages they get. First come, first served.

Pages are allocated one by one as sequences grow. When no page is free, cached pages without holders are evicted first.
Then the newest running request is preempted: it frees its pages, keeps its generated tokens, waits at the head of the
queue, and is prefilled again later. The oldest request is never preempted, and `Engine.submit` refuses a request that
needs more pages than there are. So every request ends.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from qkv.decode.engine.pages import PagePool
from qkv.decode.engine.request import Request

MAX_RUNNING_PER_NEW_REQUEST = 8
"""New requests are few if there are more than this number of running requests for each of them."""


@dataclass
class EngineStats:
    """The counters of an engine."""

    steps: int = 0
    prompt_tokens: int = 0  # tokens that were prefilled
    reused_tokens: int = 0  # tokens that were found in cached pages, so that no prefill was needed
    generated_tokens: int = 0
    preemptions: int = 0  # how often a request was preempted


class Scheduler:
    """The queue, the running requests and their pages."""

    def __init__(
        self,
        page_pool: PagePool,
        max_sequences: int,
        max_prefill_tokens: int,
        stats: EngineStats,
        *,
        steps_between_admissions: int = 1,
    ) -> None:
        """A few new requests join a large batch only every `steps_between_admissions` steps.

        Prefilling several short prompts takes hardly longer than prefilling one.
        """
        self.page_pool, self.stats = page_pool, stats
        self.max_sequences, self.max_prefill_tokens = max_sequences, max_prefill_tokens
        self.steps_between_admissions, self.last_admission = steps_between_admissions, 0
        self.free_slots = list(range(max_sequences))[::-1]
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # the oldest request first
        self.version = 0  # increases when a request starts, stops or gets a page

    def reserve_pages(self, read_results: Callable[[], None]) -> None:
        """Allocate a page to each running request that needs one. If none is free, preempt the newest request.

        `read_results` waits for the tokens of earlier steps. It is called before a preemption, because a request that
        has ended may free pages, and because a request that is preempted keeps its tokens.
        """
        for request in list(self.running):
            while self._needs_page(request):
                if not self.page_pool.num_available:
                    read_results()
                if not self.page_pool.num_available:
                    self._preempt(self.running[-1])
                elif self._needs_page(request):
                    request.page_table += self.page_pool.allocate(1)
                    request.has_new_pages = True
                    self.version += 1

    def _needs_page(self, request: Request) -> bool:
        is_full = request.num_cached >= len(request.page_table) * self.page_pool.page_size
        return is_full and request.can_decode and request.state == "running"

    def _preempt(self, request: Request) -> None:
        self.remove(request)
        request.state = "waiting"
        self.waiting.appendleft(request)
        self.stats.preemptions += 1

    def admit(self) -> list[Request]:
        """Start waiting requests, in order, while there are enough pages. Returns the started requests."""
        joined: list[Request] = []
        num_new = min(len(self.waiting), len(self.free_slots))
        is_early = self.stats.steps - self.last_admission < self.steps_between_admissions
        if not num_new or (is_early and MAX_RUNNING_PER_NEW_REQUEST * num_new < len(self.running)):
            return joined
        budget = self.max_prefill_tokens - sum(self.prefill_chunks()[1])
        while self.waiting and self.free_slots and budget > 0:
            request = self.waiting[0]
            # The last token is always read again, because its logits are needed.
            request.shared_pages = self.page_pool.match_prefix(request.prefix_key, request.tokens[:-1])
            while not request.can_cut(len(request.shared_pages) * self.page_pool.page_size):
                request.shared_pages.pop()
            self.page_pool.retain(request.shared_pages)
            new = self.page_pool.pages_for(len(request.tokens)) - len(request.shared_pages)
            # Each running request may need a page in the next step. Keep one for each, to avoid a preemption then.
            lacks_pages = bool(self.running) and new + len(self.running) > self.page_pool.num_available
            if lacks_pages:
                self._release_pages(request)
                break
            self.waiting.popleft()
            request.page_table = [node.page for node in request.shared_pages] + self.page_pool.allocate(new)
            request.num_cached = len(request.shared_pages) * self.page_pool.page_size
            request.slot = self.free_slots.pop()
            request.state = "running"
            self.running.append(request)
            joined.append(request)
            self.last_admission = self.stats.steps
            if request.num_uncached > 1:
                # Pages are shared before they are written. That is safe: requests that start in one step are prefilled
                # in this order or in one forward pass, in which each layer writes all keys before attention reads them.
                # A request with one uncached token runs in the last forward pass of the step, so its pages are shared
                # only after that.
                self.share_full_pages(request, request.num_cached + self._chunk_length(request, budget))
            budget -= self._chunk_length(request, budget)
            self.stats.reused_tokens += request.num_cached
            self.stats.prompt_tokens += request.num_uncached
            self.version += 1
        return joined

    def prefill_chunks(self) -> tuple[list[Request], list[int]]:
        """Return the requests to prefill in this step, and the number of tokens of each: `max_prefill_tokens` in all.

        So a long prompt is prefilled over several steps, between which the other requests generate tokens. One request
        gets at most half of the tokens of a step.
        """
        requests, num_tokens, budget = [], [], self.max_prefill_tokens
        for request in self.running:
            if request.length - request.num_cached > 1 and budget > 0:
                requests.append(request)
                num_tokens.append(self._chunk_length(request, budget))
                budget -= num_tokens[-1]
        return requests, num_tokens

    def _chunk_length(self, request: Request, budget: int) -> int:
        return request.chunk_length(min(request.num_uncached, budget, max(1, self.max_prefill_tokens // 2)))

    def share_full_pages(self, request: Request, num_cached: int) -> None:
        """Let other requests share the pages that the first `num_cached` tokens of a request fill completely."""
        size = self.page_pool.page_size
        while request.can_share_next_page and (len(request.shared_pages) + 1) * size <= num_cached:
            first = len(request.shared_pages) * size
            tokens = tuple(request.tokens[first : first + size])
            parent = request.shared_pages[-1] if request.shared_pages else None
            page = request.page_table[len(request.shared_pages)]
            node = self.page_pool.insert_prefix(request.prefix_key, parent, tokens, page)
            if node is None:
                request.can_share_next_page = False  # another request cached the same prefix; each keeps its own page
            else:
                request.shared_pages.append(node)

    def remove(self, request: Request) -> None:
        """Remove a request from the queue or from the running requests, and free its pages."""
        if request.state == "running":
            self.running.remove(request)
            self.free_slots.append(request.slot)
            self.version += 1
        elif request.state == "waiting":
            self.waiting.remove(request)
        self._release_pages(request)

    def _release_pages(self, request: Request) -> None:
        self.page_pool.release(request.shared_pages)
        self.page_pool.free_pages(request.own_pages)
        request.page_table, request.shared_pages, request.can_share_next_page = [], [], True
        request.num_cached = 0
