"""Who is written now, who waits, and what memory each of them has. First come, first served; nobody is overtaken.

Pages are taken one by one as texts grow. When they run out, beginnings that nobody uses are forgotten first; then the
youngest text is set back: it gives up its pages, waits at the head of the line, and is read again later. What it has
written stays written. The oldest is never set back, and no text may need more than all pages, so all of them end.
"""

from collections import deque
from dataclasses import dataclass

from qkv.decode.engine.pages import PagePool
from qkv.decode.engine.request import Request


@dataclass
class EngineStats:
    """What an engine has done so far, in tokens where nothing else is said."""

    steps: int = 0
    prompt_tokens: int = 0  # of prompts, by the model
    reused_tokens: int = 0  # of prompts, found in pages of other texts instead
    generated_tokens: int = 0
    preemptions: int = 0  # how often a text had to make room for an older one


class Scheduler:
    """The line, the running texts and their pages."""

    def __init__(self, page_pool: PagePool, max_sequences: int, max_prefill_tokens: int, stats: EngineStats) -> None:
        self.page_pool, self.max_sequences, self.max_prefill_tokens, self.stats = (
            page_pool,
            max_sequences,
            max_prefill_tokens,
            stats,
        )
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # the oldest first
        self.version = 0  # rises whenever a running text comes, goes, or has other pages

    def reserve_pages(self) -> None:
        """A page for each running text whose next token begins one; where there is none, the youngest is set back."""
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
        """Those in line that have a place and pages now, in their order; they are running then."""
        joined: list[Request] = []
        budget = self.max_prefill_tokens
        while self.waiting and len(self.running) < self.max_sequences:
            request = self.waiting[0]
            # The last token must be read in any case: its vector says what comes next.
            request.shared_pages = self.page_pool.match_prefix(request.source, request.tokens[:-1])
            self.page_pool.retain(request.shared_pages)
            new = self.page_pool.pages_for(len(request.tokens)) - len(request.shared_pages)
            # A page for each running text stays in reserve: who is let in should not be set back at the next step.
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
                # Before they are written: those who join now are read in one go, layer by layer, and may share them.
                # (One that has a single token to read goes on with the others, after that.)
                self.share_full_pages(request, len(request.tokens))
            budget -= request.num_uncached
            self.stats.reused_tokens += request.num_cached
            self.stats.prompt_tokens += request.num_uncached
            self.version += 1
        return joined

    def share_full_pages(self, request: Request, num_cached: int) -> None:
        """Let others share the pages that are full once `filled` tokens stand there."""
        size = self.page_pool.page_size
        while request.can_share_next_page and (len(request.shared_pages) + 1) * size <= num_cached:
            first = len(request.shared_pages) * size
            tokens = tuple(request.tokens[first : first + size])
            above = request.shared_pages[-1] if request.shared_pages else None
            one = self.page_pool.insert_prefix(request.source, above, tokens, request.own_pages[0])
            if one is None:
                request.can_share_next_page = False  # two have written the same; each keeps its own
            else:
                request.shared_pages.append(one)
                del request.own_pages[0]

    def remove(self, request: Request) -> None:
        """A request goes, from wherever it is, and frees what it holds."""
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
