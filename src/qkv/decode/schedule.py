"""Who is written now, who waits, and what memory each of them has. First come, first served; nobody is overtaken.

Pages are taken one by one as texts grow. When they run out, beginnings that nobody uses are forgotten first; then the
youngest text is set back: it gives up its pages, waits at the head of the line, and is read again later. What it has
written stays written. The oldest is never set back, and no text may need more than all pages, so all of them end.
"""

from collections import deque
from dataclasses import dataclass

from qkv.decode.pages import Pages
from qkv.decode.request import Request


@dataclass
class Counts:
    """What an engine has done so far, in tokens where nothing else is said."""

    steps: int = 0
    read: int = 0  # of prompts, by the model
    reused: int = 0  # of prompts, found in pages of other texts instead
    written: int = 0
    set_back: int = 0  # how often a text had to make room for an older one


class Schedule:
    """The line, the running texts and their pages."""

    def __init__(self, pages: Pages, rows: int, read_at_once: int, counts: Counts) -> None:
        self.pages, self.rows, self.read_at_once, self.counts = pages, rows, read_at_once, counts
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # the oldest first
        self.version = 0  # rises whenever a running text comes, goes, or has other pages

    def make_room(self) -> None:
        """A page for each running text whose next token begins one; where there is none, the youngest is set back."""
        for request in list(self.running):  # the oldest first
            while request.state == "running" and self.pages.needed(len(request.tokens)) > request.held:
                if self.pages.free:
                    request.own += self.pages.take(1)
                    self.version += 1
                else:
                    self._set_back(self.running[-1])

    def _set_back(self, request: Request) -> None:
        self.leave(request)
        request.state = "waiting"
        self.waiting.appendleft(request)
        self.counts.set_back += 1

    def admit(self) -> list[Request]:
        """Those in line that have a place and pages now, in their order; they are running then."""
        joined: list[Request] = []
        budget = self.read_at_once
        while self.waiting and len(self.running) < self.rows:
            request = self.waiting[0]
            # The last token must be read in any case: its vector says what comes next.
            request.known = self.pages.find(request.source, request.tokens[:-1])
            self.pages.hold(request.known)
            new = self.pages.needed(len(request.tokens)) - len(request.known)
            # A page for each running text stays in reserve: who is let in should not be set back at the next step.
            crowded = bool(self.running) and new + len(self.running) > self.pages.free
            request.filled = len(request.known) * self.pages.size
            if crowded or (joined and request.unread > budget):
                self._release(request)
                break
            self.waiting.popleft()
            request.own = self.pages.take(new)
            request.state = "running"
            self.running.append(request)
            joined.append(request)
            if request.unread > 1:
                # Before they are written: those who join now are read in one go, layer by layer, and may share them.
                # (One that has a single token to read goes on with the others, after that.)
                self.make_known(request, len(request.tokens))
            budget -= request.unread
            self.counts.reused += request.filled
            self.counts.read += request.unread
            self.version += 1
        return joined

    def make_known(self, request: Request, filled: int) -> None:
        """Let others share the pages that are full once `filled` tokens stand there."""
        size = self.pages.size
        while request.known_so_far and (len(request.known) + 1) * size <= filled:
            first = len(request.known) * size
            tokens = tuple(request.tokens[first : first + size])
            above = request.known[-1] if request.known else None
            one = self.pages.make_known(request.source, above, tokens, request.own[0])
            if one is None:
                request.known_so_far = False  # two have written the same; each keeps its own
            else:
                request.known.append(one)
                del request.own[0]

    def leave(self, request: Request) -> None:
        """A request goes, from wherever it is, and frees what it holds."""
        if request.state == "running":
            self.running.remove(request)
            self.version += 1
        elif request.state == "waiting":
            self.waiting.remove(request)
        self._release(request)

    def _release(self, request: Request) -> None:
        self.pages.let_go(request.known)
        self.pages.give_back(request.own)
        request.known, request.own, request.filled, request.known_so_far = [], [], 0, True
