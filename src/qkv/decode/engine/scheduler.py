"""Which requests run, which wait, and which pages they hold. First come, first served.

Pages are allocated one by one as sequences grow. When they run out, cached prefixes that nobody uses are evicted first.
Then the newest running request is preempted: it frees its pages, waits at the head of the queue, and is prefilled again
later; its generated tokens are kept. The oldest request is never preempted, and no request may need more than all
pages, so every request ends.
"""

from collections import deque
from dataclasses import dataclass

from qkv.decode.engine.pages import PagePool
from qkv.decode.engine.request import Request


@dataclass
class EngineStats:
    """Counters of an engine."""

    steps: int = 0
    prompt_tokens: int = 0  # prompt tokens that the model has read
    reused_tokens: int = 0  # prompt tokens found in pages of other requests instead
    generated_tokens: int = 0
    preemptions: int = 0  # how often a request had to free its pages for an older one


class Scheduler:
    """The queue, the running requests and their pages."""

    def __init__(self, page_pool: PagePool, max_sequences: int, max_prefill_tokens: int, stats: EngineStats) -> None:
        self.page_pool, self.max_sequences, self.max_prefill_tokens, self.stats = (
            page_pool,
            max_sequences,
            max_prefill_tokens,
            stats,
        )
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # the oldest first
        self.version = 0  # increases whenever a running request joins, leaves or takes pages

    def reserve_pages(self) -> None:
        """Allocate a page to each running request whose next token needs one; preempt the newest if there is none."""
        for request in list(self.running):  # the oldest first
            while request.state == "running" and self.page_pool.pages_for(len(request.tokens)) > request.num_pages:
                if self.page_pool.num_free:
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
        """Start waiting requests, in their order, as long as there are pages; returns them."""
        joined: list[Request] = []
        budget = self.max_prefill_tokens
        while self.waiting and len(self.running) < self.max_sequences:
            request = self.waiting[0]
            # The last token must be read in any case: its logits give the next token.
            request.shared_pages = self.page_pool.match_prefix(request.source, request.tokens[:-1])
            self.page_pool.retain(request.shared_pages)
            new = self.page_pool.pages_for(len(request.tokens)) - len(request.shared_pages)
            # One page for each running request stays in reserve, lest a new request be preempted at the next step.
            crowded = bool(self.running) and new + len(self.running) > self.page_pool.num_free
            request.num_cached = len(request.shared_pages) * self.page_pool.page_size
            if crowded or (joined and request.num_uncached > budget):
                self._release_pages(request)
                break
            self.waiting.popleft()
            request.own_pages = self.page_pool.allocate(new)
            request.state = "running"
            self.running.append(request)
            joined.append(request)
            if request.num_uncached > 1:
                # Shared before they are written: requests that join in one step are read together, layer by layer.
                # (A request with a single token to read runs with the others, after that.)
                self.share_full_pages(request, len(request.tokens))
            budget -= request.num_uncached
            self.stats.reused_tokens += request.num_cached
            self.stats.prompt_tokens += request.num_uncached
            self.version += 1
        return joined

    def share_full_pages(self, request: Request, num_cached: int) -> None:
        """Let other requests share the pages that are full once `num_cached` tokens are cached."""
        size = self.page_pool.page_size
        while request.can_share_next_page and (len(request.shared_pages) + 1) * size <= num_cached:
            first = len(request.shared_pages) * size
            tokens = tuple(request.tokens[first : first + size])
            above = request.shared_pages[-1] if request.shared_pages else None
            one = self.page_pool.insert_prefix(request.source, above, tokens, request.own_pages[0])
            if one is None:
                request.can_share_next_page = False  # another request cached the same tokens; each keeps its own page
            else:
                request.shared_pages.append(one)
                del request.own_pages[0]

    def remove(self, request: Request) -> None:
        """Remove a request from the queue or the batch, and free its pages."""
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
