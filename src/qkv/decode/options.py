"""The options of one `generate` call, checked before anything runs."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Literal, Protocol, runtime_checkable

from torch import Tensor

from qkv.blocks import Tap
from qkv.decode.result import SearchStep
from qkv.errors import UsageError
from qkv.models import Config
from qkv.text import Tokenizer
from qkv.values import Expected, Limits, check

MAX_COUNT = 2**62
Count = Annotated[int, Limits(0, MAX_COUNT)]
PositiveCount = Annotated[int, Limits(1, MAX_COUNT)]

LogitsProcessor = Annotated[Callable[[Tensor, Tensor], Tensor], Expected("a function of (logits, tokens)")]
"""A function of the logits (R, V) and the tokens so far (R, T), left-padded with −1. It returns logits (R, V)."""

SAMPLING_OPTIONS = frozenset({"top_k", "top_p", "min_p", "seed"})
"""These options have no effect at temperature 0."""
SEARCH_OPTIONS = frozenset(
    {"length_penalty", "length_penalty_kind", "num_return_sequences", "return_search_steps", "on_search_step"}
)
"""These options have an effect only if `beam` is above 1."""


@runtime_checkable
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

    max_tokens: PositiveCount = 64  # the largest number of new tokens
    min_tokens: Count = 0  # the end-of-sequence token is forbidden until this number of new tokens
    # sampling
    temperature: Annotated[float, Limits(0, 1e6)] = 0.0
    top_k: Count = 0  # sample from the k most probable tokens; 0: from all
    # sample from the smallest set of most probable tokens with this total probability
    top_p: Annotated[float, Limits(1e-6, 1)] = 1.0
    # sample from tokens with at least this fraction of the largest probability
    min_p: Annotated[float, Limits(0, 1)] = 0.0
    # the same seed gives the same text, whatever else is in the batch
    seed: Annotated[int, Limits(-(2**63), 2**64 - 1)] | None = None
    # which tokens may be generated
    repetition_penalty: Annotated[float, Limits(1e-3, 1e3)] = 1.0
    no_repeat_ngram_size: Count = 0  # no n-gram of this size occurs twice; 0: no limit
    suppress_tokens: tuple[int, ...] = ()
    # These run after the three options above, and before temperature, top_k, top_p and min_p.
    logits_processors: tuple[LogitsProcessor, ...] = ()
    constraint: Annotated[Constraint | None, Expected("made by qkv.decode.regex, json_schema or grammar")] = None
    prefix: tuple[int, ...] = ()  # tokens appended to the prompt; the result has only what follows them
    stop: tuple[Annotated[str, Limits(1)], ...] = ()  # strings that end the text; they are not part of the result
    # beam search
    beam: PositiveCount = 1
    # α: hypotheses of n tokens are ranked by log-probability / divisor(n). With these limits, n^α and its inverse are
    # finite for all lengths
    length_penalty: Annotated[float, Limits(-10, 10)] = 1.0
    length_penalty_kind: Literal["power", "gnmt"] = "power"  # divisor n^α, or ((5 + n) / 6)^α
    num_return_sequences: PositiveCount = 1
    return_search_steps: bool = False  # store every step of the search in the result
    on_search_step: Callable[[SearchStep], None] | None = None  # called after each step of the search of a prompt
    compile: bool = False  # compile the steps on a GPU: slower to start, then faster
    logprobs: Count = 0  # how many alternative tokens to report at each step
    # changes activations in every forward pass; records the values of the last forward pass
    tap: Annotated[Tap | None, Expected("a qkv.Tap")] = None

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
        check(self)
        if 0 < self.temperature < 1e-6:
            raise UsageError(f"temperature = {self.temperature} must be 0 (greedy) or at least 1e-6")
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

        Options with their default value have no effect, nor have options that another option turns off, such as `top_k`
        at temperature 0.
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


def length_divisor(options: GenerationOptions, length: int) -> float:
    """Return the divisor of the log-probability of a hypothesis with `length` tokens."""
    if options.length_penalty_kind == "gnmt":
        return float(((5.0 + length) / 6.0) ** options.length_penalty)
    return float(length**options.length_penalty)
