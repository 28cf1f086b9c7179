"""What a person may ask of decoding, checked before anything runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, Protocol

from torch import Tensor

from qkv.errors import UsageError, suggest_name
from qkv.models import Config
from qkv.text import Tokenizer

MAX_FLOAT = 1e300
"""A number beyond this is taken for none."""

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""logits (R, V) and the tokens so far (R, T), −1 where there is none → logits (R, V)."""


class Constraint(Protocol):
    """What every answer must look like: `qkv.decode.constrain` makes them from patterns, schemas and grammars."""

    def make_processor(
        self, tokenizer: Tokenizer | None, eos_token_ids: tuple[int, ...], prompt_length: int
    ) -> LogitsProcessor:
        """The filter of one batch, whose rows' answers are the tokens from column `start` on."""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """One decoding request.

    Temperature 0 takes the likeliest token each time; above it, tokens are drawn. `beam` above 1 searches.
    """

    max_tokens: int = 64
    min_tokens: int = 0  # no end before so many
    # sampling
    temperature: float = 0.0
    top_k: int = 0  # draw among the k likeliest; 0: all
    top_p: float = 1.0  # draw among the likeliest that together have this probability
    min_p: float = 0.0  # draw among those at least this share as likely as the likeliest
    seed: int | None = None  # the same seed gives the same text, whatever else is in the batch
    # what may come
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # never the same n tokens in a row twice
    suppress_tokens: tuple[int, ...] = ()
    logits_processors: tuple[LogitsProcessor, ...] = ()  # your own, after those above and before those of sampling
    constraint: Constraint | None = None  # what the answer must match: `qkv.decode.regex`, `json_schema`, `grammar`
    prefix: tuple[int, ...] = ()  # what the answer goes on from, as if it were written already (not given again)
    stop: tuple[str, ...] = ()  # texts that end the answer; they are not part of it
    # search
    beam: int = 1
    length_penalty: float = 1.0  # a hypothesis of n tokens is worth its log-probability / penalty(n)
    length_penalty_kind: Literal["power", "gnmt"] = "power"  # n^α, or ((5 + n) / 6)^α
    num_return_sequences: int = 1  # how many hypotheses to give
    return_search_steps: bool = False  # keep each step of the search
    compile: bool = False  # on a GPU: faster steps of several rows, after a wait for the compiler
    logprobs: int = 0  # how many alternatives to report beside each token

    def check(self, config: Config) -> None:
        """Refuse what this model, or any, cannot do."""
        vocab = config.stack.vocab_size
        if config.decoder is None or config.head.kind != "lm":
            raise UsageError(f"this model has a {config.head.kind} head on its {config.family}: it does not write text")
        self.check_values()
        if self.beam > vocab:
            raise UsageError(f"beam = {self.beam} is wider than the vocabulary of {vocab}")
        if self.logprobs > vocab:
            raise UsageError(f"logprobs = {self.logprobs} is more than the vocabulary of {vocab}")
        for token in (*self.suppress_tokens, *self.prefix):
            if not 0 <= token < vocab:
                raise UsageError(f"token id {token} is outside this model's vocabulary of {vocab}")

    def check_values(self) -> None:
        """Refuse what no model can do."""
        for name, low in (
            ("max_tokens", 1),
            ("min_tokens", 0),
            ("top_k", 0),
            ("no_repeat_ngram_size", 0),
            ("beam", 1),
            ("num_return_sequences", 1),
            ("logprobs", 0),
        ):
            value = getattr(self, name)
            if not is_integer(value) or value < low:
                raise UsageError(f"{name} = {value!r}: a whole number from {low} on")
        for name in ("temperature", "length_penalty", "top_p", "min_p", "repetition_penalty"):
            if not is_finite_number(getattr(self, name)):
                raise UsageError(f"{name} = {getattr(self, name)!r}: not a finite number")
        if self.seed is not None and not (is_integer(self.seed) and -(2**63) <= self.seed < 2**64):
            raise UsageError(f"seed = {self.seed!r}: a whole number of at most 64 bits, or None")
        for name in ("suppress_tokens", "prefix", "stop", "logits_processors"):
            if not isinstance(getattr(self, name), tuple | list):
                raise UsageError(f"{name} = {getattr(self, name)!r}: a tuple or a list of them")
        if self.temperature < 0:
            raise UsageError(f"temperature = {self.temperature}: 0 (the likeliest token) or above")
        if 0 < self.temperature < 1e-6:
            raise UsageError(f"temperature = {self.temperature}: at least 1e-6, or 0 for the likeliest token")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top_p = {self.top_p}: above 0, at most 1")
        if not 0.0 <= self.min_p <= 1.0:
            raise UsageError(f"min_p = {self.min_p}: between 0 and 1")
        if self.repetition_penalty <= 0:
            raise UsageError(f"repetition_penalty = {self.repetition_penalty}: above 0")
        if self.min_tokens > self.max_tokens:
            raise UsageError(f"min_tokens = {self.min_tokens} is more than max_tokens = {self.max_tokens}")
        if self.num_return_sequences > self.beam:
            raise UsageError(f"num_return_sequences = {self.num_return_sequences} is more than beam = {self.beam}")
        if self.beam > 1 and self.temperature > 0:
            raise UsageError("beam search takes no temperature: choose beam = 1 to draw, or temperature = 0 to search")
        for name in ("suppress_tokens", "prefix"):
            if not all(map(is_integer, getattr(self, name))):
                raise UsageError(f"{name} = {getattr(self, name)!r}: token ids, which are whole numbers")
        if not all(isinstance(text, str) and text for text in self.stop):
            raise UsageError(f"stop = {self.stop!r}: texts that are not empty")
        if self.length_penalty_kind not in ("power", "gnmt"):
            hint = suggest_name(str(self.length_penalty_kind), ("power", "gnmt"))
            raise UsageError(f"length_penalty_kind = {self.length_penalty_kind!r} is unknown; {hint}")
        if not all(map(callable, self.logits_processors)):
            raise UsageError(f"logits_processors = {self.logits_processors!r} must be functions of (logits, tokens)")
        if self.constraint is not None and not hasattr(self.constraint, "make_processor"):
            raise UsageError(
                f"constraint = {self.constraint!r}: make one with qkv.decode.regex, json_schema or grammar"
            )

    def bind_constraint(
        self, tokenizer: Tokenizer | None, eos_token_ids: tuple[int, ...], prompt_length: int
    ) -> "GenerationOptions":
        """The same options for one batch, with the constraint as a filter that knows where its rows' answers begin."""
        if self.constraint is None:
            return self
        begun = self.constraint.make_processor(tokenizer, eos_token_ids, prompt_length)
        return replace(self, constraint=None, logits_processors=(*self.logits_processors, begun))


def is_integer(value: object) -> bool:
    """Whether a value is a whole number (truth values are none)."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_finite_number(value: Any) -> bool:
    """Whether a value is a finite number (truth values are none)."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and bool(-MAX_FLOAT < value < MAX_FLOAT)


def length_divisor(options: GenerationOptions, length: int) -> float:
    """What a hypothesis' log-probability is divided by."""
    if options.length_penalty_kind == "gnmt":
        return float(((5.0 + length) / 6.0) ** options.length_penalty)
    return float(length**options.length_penalty)
