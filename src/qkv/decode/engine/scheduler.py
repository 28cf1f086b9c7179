"""The scheduler decides which requests run, which wait, and which pages they get. First come, first served.

Pages are allocated one by one as sequences grow. When no page is free, cached pages without holders are evicted first.
Then the newest running request is preempted: it frees its pages, keeps its generated tokens, waits at the head of the
queue, and is prefilled again later. The oldest request is never preempted, and `Engine.submit` refuses a request that
needs more pages than there are. So every request ends.
"""

from collections import deque
from dataclasses import dataclass

from qkv.decode.engine.pages import PagePool
from qkv.decode.engine.request import Request


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

    def __init__(self, page_pool: PagePool, max_sequences: int, max_prefill_tokens: int, stats: EngineStats) -> None:
        self.page_pool, self.stats = page_pool, stats
        self.max_sequences, self.max_prefill_tokens = max_sequences, max_prefill_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # the oldest request first
        self.version = 0  # increases when a request starts, stops or gets a page

    def reserve_pages(self) -> None:
        """Allocate a page to each running request that needs one. If none is free, preempt the newest request."""
        for request in list(self.running):
            while request.state == "running" and self.page_pool.pages_for(len(request.tokens)) > request.num_pages:
                if self.page_pool.num_available:
                    request.own_pages += self.page_pool.allocate(1)
                    self.version += 1
                else:
                    self._preempt(self.running[-1])

    def _preempt(self, request: Request) -> None:
        self.remove(request)
        request.state = "waiting"
        self.waiting.appendleft(request)
        self.stats.preemptions += 1

    def admit(self) -> list[Request]:
        """Start waiting requests, in order, while there are enough pages. Returns the started requests."""
        joined: list[Request] = []
        budget = self.max_prefill_tokens
        while self.waiting and len(self.running) < self.max_sequences:
            request = self.waiting[0]
            # The last token is always read again, because its logits are needed.
            request.shared_pages = self.page_pool.match_prefix(request.source, request.tokens[:-1])
            self.page_pool.retain(request.shared_pages)
            new = self.page_pool.pages_for(len(request.tokens)) - len(request.shared_pages)
            # Each running request may need a page in the next step. Keep one for each, to avoid a preemption then.
            lacks_pages = bool(self.running) and new + len(self.running) > self.page_pool.num_available
            request.num_cached = len(request.shared_pages) * self.page_pool.page_size
            if lacks_pages or (joined and request.num_uncached > budget):
                self._release_pages(request)
                break
            self.waiting.popleft()
            request.own_pages = self.page_pool.allocate(new)
            request.state = "running"
            self.running.append(request)
            joined.append(request)
            if request.num_uncached > 1:
                # The pages are shared before they are written. That is safe: requests that start in one step are
                # prefilled in one forward pass, in which each layer writes all keys before attention reads them.
                # A request with one uncached token runs in the second forward pass of the step, so its pages are shared
                # only after that.
                self.share_full_pages(request, len(request.tokens))
            budget -= request.num_uncached
            self.stats.reused_tokens += request.num_cached
            self.stats.prompt_tokens += request.num_uncached
            self.version += 1
        return joined

    def share_full_pages(self, request: Request, num_cached: int) -> None:
        """Let other requests share the pages that the first `num_cached` tokens of a request fill completely."""
        size = self.page_pool.page_size
        while request.can_share_next_page and (len(request.shared_pages) + 1) * size <= num_cached:
            first = len(request.shared_pages) * size
            tokens = tuple(request.tokens[first : first + size])
            parent = request.shared_pages[-1] if request.shared_pages else None
            node = self.page_pool.insert_prefix(request.source, parent, tokens, request.own_pages[0])
            if node is None:
                request.can_share_next_page = False  # another request cached the same prefix; each keeps its own page
            else:
                request.shared_pages.append(node)
                del request.own_pages[0]

    def remove(self, request: Request) -> None:
        """Remove a request from the queue or from the running requests, and free its pages."""
        if request.state == "running":
            self.running.remove(request)
            self.version += 1
        elif request.state == "waiting":
            self.waiting.remove(request)
        self._release_pages(request)

    def _release_pages(self, request: Request) -> None:
        self.page_pool.release(request.shared_pages)
        self.page_pool.free_pages(request.own_pages)
        request.shared_pages, request.own_pages, request.num_cached, request.can_share_next_page = [], [], 0, True
