"""The options of one `generate` call, checked before anything runs."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, Protocol

from torch import Tensor

from qkv.blocks import Tap
from qkv.decode.result import SearchStep
from qkv.errors import UsageError, shorten, suggest_name
from qkv.models import Config
from qkv.text import Tokenizer
from qkv.values import Bounds, bounds_problem

MAX_COUNT = 2**62
INTEGER_BOUNDS: dict[str, Bounds] = {
    "max_tokens": (1, MAX_COUNT),
    "min_tokens": (0, MAX_COUNT),
    "top_k": (0, MAX_COUNT),
    "no_repeat_ngram_size": (0, MAX_COUNT),
    "beam": (1, MAX_COUNT),
    "num_return_sequences": (1, MAX_COUNT),
    "logprobs": (0, MAX_COUNT),
}
NUMBER_BOUNDS: dict[str, Bounds] = {
    "temperature": (0, 1e6),
    "top_p": (1e-6, 1),  # the total of float32 probabilities is not more precise
    "min_p": (0, 1),
    "repetition_penalty": (1e-3, 1e3),
    "length_penalty": (-10, 10),  # length^10 and its inverse are finite for all lengths
}

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""A function of the logits (R, V) and the tokens so far (R, T), left-padded with −1. It returns logits (R, V)."""

SAMPLING_OPTIONS = frozenset({"top_k", "top_p", "min_p", "seed"})
"""These options have no effect at temperature 0."""
SEARCH_OPTIONS = frozenset(
    {"length_penalty", "length_penalty_kind", "num_return_sequences", "return_search_steps", "on_search_step"}
)
"""These options have an effect only if `beam` is above 1."""


class Constraint(Protocol):
    """A pattern that every generated text must match. `qkv.decode.regex`, `json_schema` and `grammar` make one."""

    def make_processor(
        self, tokenizer: Tokenizer | None, eos_token_ids: tuple[int, ...], prompt_length: int
    ) -> LogitsProcessor:
        """Return the logits processor for one batch, whose generated tokens start at column `prompt_length`."""


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """The options of one `generate` call.

    Temperature 0 means greedy decoding. Above 0, tokens are sampled. `beam` above 1 means beam search.
    """

    max_tokens: int = 64  # the largest number of new tokens
    min_tokens: int = 0  # the end-of-sequence token is forbidden until this number of new tokens
    # sampling
    temperature: float = 0.0
    top_k: int = 0  # sample from the k most probable tokens; 0: from all
    top_p: float = 1.0  # sample from the smallest set of most probable tokens with this total probability
    min_p: float = 0.0  # sample from tokens with at least this fraction of the largest probability
    seed: int | None = None  # the same seed gives the same text, whatever else is in the batch
    # which tokens may be generated
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # no n-gram of this size occurs twice; 0: no limit
    suppress_tokens: tuple[int, ...] = ()
    # These run after the three options above, and before temperature, top_k, top_p and min_p.
    logits_processors: tuple[LogitsProcessor, ...] = ()
    constraint: Constraint | None = None  # made by `qkv.decode.regex`, `json_schema` or `grammar`
    prefix: tuple[int, ...] = ()  # tokens appended to the prompt; the result has only what follows them
    stop: tuple[str, ...] = ()  # strings that end the text; they are not part of the result
    # beam search
    beam: int = 1
    length_penalty: float = 1.0  # α: hypotheses of n tokens are ranked by log-probability / divisor(n)
    length_penalty_kind: Literal["power", "gnmt"] = "power"  # divisor n^α, or ((5 + n) / 6)^α
    num_return_sequences: int = 1
    return_search_steps: bool = False  # store every step of the search in the result
    on_search_step: Callable[[SearchStep], None] | None = None  # called after each step of the search of a prompt
    compile: bool = False  # compile the steps on a GPU: slower to start, then faster
    logprobs: int = 0  # how many alternative tokens to report at each step
    tap: Tap | None = None  # changes activations in every forward pass; recorded values are those of the last one

    def check(self, config: Config) -> None:
        """Raise an error if a value is invalid, or if this model does not support it."""
        vocab_size = config.stack.vocab_size
        if config.decoder is None or config.head.kind != "lm":
            raise UsageError(
                f"this model cannot generate text, because its family is {config.family!r} and its head "
                f"{config.head.kind!r}; use a model with a decoder and an lm head"
            )
        self.check_values()
        for name in ("beam", "logprobs"):
            if getattr(self, name) > vocab_size:
                raise UsageError(
                    f"{name} = {getattr(self, name)} is larger than this model's vocabulary; "
                    f"it must be at most {vocab_size}"
                )
        for name in ("suppress_tokens", "prefix"):
            for token in getattr(self, name):
                if not 0 <= token < vocab_size:
                    raise UsageError(
                        f"{name}: token id {token} is outside this model's vocabulary of {vocab_size}; "
                        f"use ids from 0 to {vocab_size - 1}"
                    )

    def check_values(self) -> None:
        """Raise an error if a value is invalid for every model."""
        for name, bounds in INTEGER_BOUNDS.items():
            _require(is_integer(getattr(self, name)), name, getattr(self, name), "an integer")
            _check_bounds(name, getattr(self, name), bounds)
        for name, bounds in NUMBER_BOUNDS.items():
            _require(is_number(getattr(self, name)), name, getattr(self, name), "a number")
            _check_bounds(name, getattr(self, name), bounds)
        for name in ("suppress_tokens", "prefix", "stop", "logits_processors"):
            _require(isinstance(getattr(self, name), tuple | list), name, getattr(self, name), "a tuple or a list")
        for name in ("suppress_tokens", "prefix"):
            _require(all(map(is_integer, getattr(self, name))), name, getattr(self, name), "integers (token ids)")
        is_seed = self.seed is None or (is_integer(self.seed) and -(2**63) <= self.seed < 2**64)
        _require(is_seed, "seed", self.seed, "an integer of at most 64 bits, or None")
        is_temperature = self.temperature == 0 or self.temperature >= 1e-6
        _require(is_temperature, "temperature", self.temperature, "0 (greedy) or at least 1e-6")
        are_stops = all(isinstance(text, str) and text for text in self.stop)
        _require(are_stops, "stop", self.stop, "strings that are not empty")
        are_functions = all(map(callable, self.logits_processors))
        _require(are_functions, "logits_processors", self.logits_processors, "functions of (logits, tokens)")
        is_constraint = self.constraint is None or hasattr(self.constraint, "make_processor")
        _require(is_constraint, "constraint", self.constraint, "made by qkv.decode.regex, json_schema or grammar")
        _require(self.tap is None or isinstance(self.tap, Tap), "tap", self.tap, "a qkv.Tap")
        kinds = ("power", "gnmt")
        if self.length_penalty_kind not in kinds:
            hint = suggest_name(str(self.length_penalty_kind), kinds)
            raise UsageError(f"length_penalty_kind = {self.length_penalty_kind!r} is unknown; {hint}")
        for name, limit in (("min_tokens", "max_tokens"), ("num_return_sequences", "beam")):
            if getattr(self, name) > getattr(self, limit):
                raise UsageError(
                    f"{name} = {getattr(self, name)} is larger than {limit} = {getattr(self, limit)}; "
                    f"lower {name} or raise {limit}"
                )
        if self.beam > 1 and self.temperature > 0:
            raise UsageError(
                f"beam = {self.beam} and temperature = {self.temperature}: beam search does not sample; "
                "set beam = 1 to sample, or temperature = 0 to search"
            )

    def in_effect(self, eos_token_ids: tuple[int, ...]) -> frozenset[str]:
        """Return the names of the options that change the result.

        Options at their default do not, nor do options that another option turns off, such as `top_k` at temperature 0.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        names = {name for name, value in values.items() if value != defaults[name] and not _is_empty(value)}
        if self.temperature == 0:
            names -= SAMPLING_OPTIONS
        names -= {"logprobs"} if self.beam > 1 else SEARCH_OPTIONS
        return frozenset(names - (set() if eos_token_ids else {"min_tokens"}))

    def bind_constraint(
        self, tokenizer: Tokenizer | None, eos_token_ids: tuple[int, ...], prompt_length: int
    ) -> "GenerationOptions":
        """Return these options for one batch, with the constraint turned into the last logits processor."""
        if self.constraint is None:
            return self
        processor = self.constraint.make_processor(tokenizer, eos_token_ids, prompt_length)
        return replace(self, constraint=None, logits_processors=(*self.logits_processors, processor))


def _is_empty(value: object) -> bool:
    return isinstance(value, tuple | list) and not value


def _require(condition: bool, name: str, value: object, expected: str) -> None:
    if not condition:
        raise UsageError(f"{name} = {shorten(repr(value))}: must be {expected}")


def _check_bounds(name: str, value: float, bounds: Bounds) -> None:
    if problem := bounds_problem(name, value, bounds):
        raise UsageError(problem)


def is_integer(value: object) -> bool:
    """Return whether a value is an integer. Booleans do not count as integers."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number. Booleans do not count as numbers."""
    return isinstance(value, Real) and not isinstance(value, bool)


def length_divisor(options: GenerationOptions, length: int) -> float:
    """Return the divisor of the log-probability of a hypothesis with `length` tokens."""
    if options.length_penalty_kind == "gnmt":
        return float(((5.0 + length) / 6.0) ** options.length_penalty)
    return float(length**options.length_penalty)
