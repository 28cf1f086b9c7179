"""One text while it is being written: its tokens, its text so far, what was handed out, and why it stops."""

from collections.abc import Callable
from dataclasses import dataclass, field

from qkv.decode.options import Options
from qkv.decode.result import Reason, Result, TokenLogprob
from qkv.text import StreamDecoder

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

    def take(self, token: int, logprob: TokenLogprob, options: Options, end: tuple[int, ...]) -> Reason | None:
        """Add a token; the reason to stop, if there is one."""
        self.score += logprob.logprob
        self.logprobs.append(logprob)
        if token in end:
            return "end"
        self.ids.append(token)
        if self.stream is not None:
            self.text += self.stream.push(token)
            if options.stop and self.cut(options.stop):
                return "stop"
        return "length" if len(self.logprobs) == options.max_tokens else None

    def cut(self, stops: tuple[str, ...]) -> bool:
        """Cut the text at the first stop text in it, which may span tokens."""
        places = [place for place in (self.text.find(stop) for stop in stops) if place >= 0]
        if places:
            self.text = self.text[: min(places)]
            self.stream = None
        return bool(places)

    def hand_out(self, options: Options, on_text: OnText | None, last: bool) -> None:
        """Pass on the text that can no longer become part of a stop text."""
        if last and self.stream is not None:
            self.text += self.stream.finish()
            self.stream = None
        hold = 0 if last else max((overlap(self.text, stop) for stop in options.stop), default=0)
        until = len(self.text) - hold
        if on_text is not None and until > self.shown:
            on_text(self.number, self.text[self.shown : until])
            self.shown = until

    def result(self, reason: Reason) -> Result:
        return Result(self.text, self.ids, self.score, reason, self.logprobs)


def overlap(text: str, stop: str) -> int:
    """How many last characters of the text begin the stop text."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
