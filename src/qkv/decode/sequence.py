"""A sequence that is being generated: its tokens, its text, the part of the text already emitted, and stop strings."""

from collections.abc import Callable
from dataclasses import dataclass, field

from qkv.decode.options import GenerationOptions
from qkv.decode.result import FinishReason, GenerationResult, TokenLogprob
from qkv.text import StreamDecoder

OnText = Callable[[int, str], None]
"""Called with the index of a prompt and a new chunk of its text. Chunks never split a character."""


@dataclass
class GeneratedSequence:
    """A sequence that is being generated."""

    index: int
    ids: list[int] = field(default_factory=list)
    score: float = 0.0
    # All tokens with the end-of-sequence token, their log-probabilities, and the alternatives of some, by index.
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: dict[int, dict[int, float]] = field(default_factory=dict)
    text: str = ""
    num_emitted_chars: int = 0
    stream_decoder: StreamDecoder | None = None

    def append(
        self,
        token: int,
        logprob: float,
        options: GenerationOptions,
        eos_token_ids: tuple[int, ...],
        alternatives: dict[int, float] | None = None,
    ) -> FinishReason | None:
        """Append a token. Return the reason to stop, or None if generation continues."""
        self.score += logprob
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if alternatives:
            self.alternatives[len(self.tokens) - 1] = alternatives
        if token in eos_token_ids:
            return "end"
        self.ids.append(token)
        if self.stream_decoder is not None:
            self.text += self.stream_decoder.push(token)
            if options.stop and self.truncate_at_stop(options.stop):
                return "stop"
        return "length" if len(self.logprobs) == options.max_tokens else None

    def truncate_at_stop(self, stops: tuple[str, ...]) -> bool:
        """Truncate the text at the first stop string and return whether there is one. It may span several tokens."""
        found = [start for start in (self.text.find(stop) for stop in stops) if start >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.stream_decoder = None
        return bool(found)

    def emit_text(self, options: GenerationOptions, on_text: OnText | None, is_last: bool) -> None:
        """Emit the new text, except an ending that may be the start of a stop string."""
        if is_last and self.stream_decoder is not None:
            self.text += self.stream_decoder.finish()
            self.stream_decoder = None
        withheld = 0 if is_last else max((stop_prefix_length(self.text, stop) for stop in options.stop), default=0)
        end = len(self.text) - withheld
        if on_text is not None and end > self.num_emitted_chars:
            on_text(self.index, self.text[self.num_emitted_chars : end])
            self.num_emitted_chars = end

    def to_result(self, finish_reason: FinishReason) -> GenerationResult:
        """Return the result of the finished sequence."""
        pairs = enumerate(zip(self.tokens, self.logprobs, strict=True))
        logprobs = [TokenLogprob(token, logprob, self.alternatives.get(i, {})) for i, (token, logprob) in pairs]
        return GenerationResult(self.text, self.ids, self.score, finish_reason, logprobs)


def stop_prefix_length(text: str, stop: str) -> int:
    """Return the length of the longest ending of the text that is the start of a stop string."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
