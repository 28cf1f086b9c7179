r"""Constrained decoding: the text matches a regular expression, a JSON schema or a grammar.

    m.generate("…", constraint=qkv.decode.regex(r"\d{4}-\d\d-\d\d"))

The library llguidance matches the constraint byte by byte and computes which tokens may come next. All other tokens get
a logit of −∞. The end-of-sequence token is allowed only if the text is complete, and forced if nothing can follow. If
`max_tokens` truncates a text, it is the start of a text that matches, and its `finish_reason` is "length".

The matcher's state depends only on the generated tokens, and is cached with these tokens as the key. So nothing has to
be updated when a sequence ends, a beam is replaced or a draft token is rejected.

R sequences, V vocabulary
"""

import json
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.decode.constrained.bounds import check_grammar, check_repetitions, check_schema
from qkv.decode.constrained.token_bytes import TokenBytes
from qkv.errors import QkvError, UsageError
from qkv.sandbox import ProcessLimits, shared_sandbox
from qkv.text import Tokenizer

WORKER = Path(__file__).with_name("constraint_worker.py")
CHECK_LIMITS = ProcessLimits(max_seconds=2, max_bytes=2**27, max_wall_seconds=30.0)
TokenMask = np.ndarray[Any, np.dtype[np.bool_]]
MIN_STATE_CACHE_SIZE = 32
"""At most this many states stay cached, or four per sequence if that is more. The oldest are dropped, and recomputed
when needed."""


def regex(pattern: str) -> "GrammarConstraint":
    """Constrain the whole text to match this regular expression.

    The syntax is Rust's, without look-around and back-references. `\\d` is a digit of any script, `[0-9]` an ASCII one.

    >>> regex("(yes|no)")
    GrammarConstraint('the regular expression (yes|no)')
    """
    name = f"the regular expression {pattern}"
    check_repetitions(name, pattern)
    return GrammarConstraint(name, _import_llguidance().LLMatcher.grammar_from_regex(pattern))


def json_schema(schema: str | dict[str, Any] | bool, *, max_whitespace: int = 32) -> "GrammarConstraint":
    """Constrain the whole text to be JSON that is valid under this schema. `{}` allows any JSON.

    At most `max_whitespace` spaces and line breaks may separate two parts, because some models would otherwise generate
    whitespace without end.
    """
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(schema)
    except RecursionError:
        raise UsageError("the JSON schema is nested too deeply; make it flatter, for example with $defs") from None
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"the JSON schema is not JSON itself: {error}; pass a dictionary, or a string that json.loads can read"
        ) from error
    check_schema(schema)
    between = (
        {"whitespace_pattern": rf"[ \n\r\t]{{1,{max_whitespace}}}"}
        if max_whitespace > 0
        else {"whitespace_flexible": False}
    )
    matcher = _import_llguidance().LLMatcher
    try:
        return GrammarConstraint("the JSON schema", matcher.grammar_from_json_schema(text, overrides=between))
    except ValueError as error:  # llguidance has its own limit of nesting
        raise UsageError(f"the JSON schema is not a valid constraint: {_first_part(str(error))}") from None


def grammar(lark_grammar: str) -> "GrammarConstraint":
    """Constrain the whole text to the rule `start` of this grammar, in llguidance's variant of Lark's syntax."""
    check_grammar(lark_grammar)
    return GrammarConstraint("the grammar", _import_llguidance().LLMatcher.grammar_from_lark(lark_grammar))


def _import_llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise QkvError(
            "constrained decoding needs the library llguidance; install it with: pip install 'qkv[constrain]'"
        ) from error
    return llguidance


class GrammarConstraint:
    """A constraint for `GenerationOptions.constraint`. It works with any tokenizer."""

    def __init__(self, name: str, grammar: str) -> None:
        """Check the grammar in a process of its own, because it could crash the native library."""
        self.name, self.grammar = name, grammar
        self._matchers: dict[ConstraintVocabulary, Matchers] = {}
        _import_llguidance()
        (found,) = shared_sandbox(WORKER, CHECK_LIMITS).run(None, [grammar])
        if "error" in found:
            raise UsageError(f"{name} cannot be compiled: {found['error']}; make it smaller")
        if found["result"]:
            raise UsageError(f"{name} is not a valid constraint: {_first_part(found['result'])}")

    def __repr__(self) -> str:
        return f"GrammarConstraint({self.name!r})"

    def compile(self, tokenizer: Tokenizer | None, eos_token_ids: tuple[int, ...]) -> "Matchers":
        """Return the matchers for a tokenizer. They are made at the first call, which may take a second."""
        if tokenizer is None:
            raise QkvError(
                f"constraint = {self!r}: a constraint needs a tokenizer, and this model has none; "
                "pass a tokenizer or leave out constraint"
            )
        if not eos_token_ids:
            raise UsageError(
                f"constraint = {self!r}: a constraint needs an end-of-sequence token, and this model's config has no "
                "eos_token_ids; set eos_token_ids in the model's config"
            )
        with _compile_lock:
            vocabulary = constraint_vocabulary(tokenizer.target, eos_token_ids)
            if vocabulary not in self._matchers:
                self._matchers[vocabulary] = Matchers(self, vocabulary)
            return self._matchers[vocabulary]

    def make_processor(
        self, tokenizer: Tokenizer | None, eos_token_ids: tuple[int, ...], prompt_length: int
    ) -> "ConstraintProcessor":
        """Return the logits processor for one batch, whose generated tokens start at column `prompt_length`."""
        return ConstraintProcessor(self.compile(tokenizer, eos_token_ids), prompt_length)


class Matchers:
    """A constraint compiled for one vocabulary. All texts share it: each continues a copy of `later`."""

    def __init__(self, constraint: GrammarConstraint, vocabulary: "ConstraintVocabulary") -> None:
        """Raises an error if no token can be the first."""
        matcher = _import_llguidance().LLMatcher
        self.vocabulary = vocabulary
        self.later = matcher(vocabulary.later, constraint.grammar, log_level=0)
        first = matcher(vocabulary.first, constraint.grammar, log_level=0)
        self.first_mask = self.allowed_tokens(first)
        if not self.first_mask.any():
            reason = _first_part(first.get_error()) or "no token can be the first"
            raise QkvError(
                f"no text of this tokenizer's tokens can match {constraint.name}: {reason}; "
                "change the constraint, or use a tokenizer that has its characters"
            )

    def allowed_tokens(self, state: Any) -> TokenMask:
        """Return a mask (V,) of the tokens that may follow. It is all False if none may."""
        bits = np.frombuffer(state.compute_bitmask(), dtype=np.uint8)
        if state.is_error():
            return np.zeros(self.vocabulary.size, dtype=np.bool_)
        return np.unpackbits(bits, count=self.vocabulary.size, bitorder="little").astype(np.bool_)


class ConstraintProcessor:
    """A logits processor that allows only tokens after which the text can still match the constraint."""

    def __init__(self, matchers: Matchers, prompt_length: int) -> None:
        self.matchers, self.prompt_length = matchers, prompt_length
        # From generated tokens to the matcher after them, or to None if they do not match.
        self._states: OrderedDict[tuple[int, ...], Any] = OrderedDict()

    def __call__(self, logits: Tensor, tokens: Tensor) -> Tensor:
        generated = [tuple(ids) for ids in tokens[:, self.prompt_length :].tolist()]
        masks = torch.from_numpy(np.stack([self._allowed_tokens(ids) for ids in generated]))
        while len(self._states) > max(MIN_STATE_CACHE_SIZE, 4 * len(generated)):
            self._states.popitem(last=False)
        # The ids of a padded vocabulary have no token.
        allowed = F.pad(masks, (0, logits.shape[1] - masks.shape[1]), value=False)  # (R, V)
        return logits.masked_fill(~allowed.to(logits.device), float("-inf"))

    def _allowed_tokens(self, generated: tuple[int, ...]) -> TokenMask:
        if not generated:
            return self.matchers.first_mask
        state = self._state(generated)
        if state is None:
            # Only placeholders violate the constraint, such as beams with a score of −∞. They cannot win: allow all.
            return np.ones(self.matchers.vocabulary.size, dtype=np.bool_)
        return self.matchers.allowed_tokens(state)

    def _state(self, generated: tuple[int, ...]) -> Any:
        """Return the matcher after these tokens. It continues from the longest cached prefix: all tokens but a few."""
        vocabulary, num_cached = self.matchers.vocabulary, len(generated)
        while num_cached and generated[:num_cached] not in self._states:
            num_cached -= 1
        state = self._states[generated[:num_cached]] if num_cached else self.matchers.later
        if num_cached < len(generated) and state is not None:
            state = state.deep_copy()
            for index in range(num_cached, len(generated)):
                if not state.consume_tokens(vocabulary.matcher_ids(generated[index], at_start=index == 0)):
                    state = None
                    break
        self._states[generated] = state
        self._states.move_to_end(generated)
        return state


class ConstraintVocabulary:
    """A model's vocabulary in the form that llguidance needs.

    It adds 256 tokens after the model's own, one for each byte. A token may have other bytes at the start of a text
    than later in the text. If so, the first token of a text is passed to the matcher as its bytes, each as one of the
    256 added tokens.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> None:
        self.size, self.eos_token_ids = (
            max(tokenizer.vocab_size, *(token + 1 for token in eos_token_ids)),
            eos_token_ids,
        )
        self.token_bytes = TokenBytes(tokenizer, self.size)
        self.later = self._make_matcher_tokenizer(self.token_bytes.later_bytes, at_start=False)
        self.first = (
            self.later
            if self.token_bytes.is_same_at_start
            else self._make_matcher_tokenizer(self.token_bytes.first_bytes, at_start=True)
        )

    def matcher_ids(self, token: int, *, at_start: bool) -> list[int]:
        """Return the ids that the matcher reads for a token: the token itself, or its bytes at the start of a text."""
        if not at_start or self.token_bytes.is_same_at_start:
            return [token]
        return [self.size + byte for byte in self.token_bytes.first_bytes[token]]

    def _make_matcher_tokenizer(self, token_bytes: list[bytes], *, at_start: bool) -> Any:
        special = {token for token, text in enumerate(token_bytes) if not text or token in self.eos_token_ids}
        tokens = [b"<%d>" % token if token in special else text for token, text in enumerate(token_bytes)]
        tokens += [bytes([byte]) for byte in range(256)]
        adapter = TokenizerAdapter(self.token_bytes, tokens, sorted(special), self.eos_token_ids[0], at_start)
        library = _import_llguidance()
        return library.LLTokenizer(library.TokenizerWrapper(adapter), eos_token=list(self.eos_token_ids))


class TokenizerAdapter:
    """The interface that llguidance expects of a tokenizer."""

    bos_token_id = None

    def __init__(
        self, token_bytes: TokenBytes, tokens: list[bytes], special: list[int], eos_token_id: int, at_start: bool
    ) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, eos_token_id
        self._token_bytes, self._at_start = token_bytes, at_start

    def __call__(self, data: bytes) -> list[int]:
        """Tokenize text that the constraint forces."""
        return self._token_bytes.tokenize(data, at_start=self._at_start)


_vocabularies: WeakKeyDictionary[Tokenizer, dict[tuple[int, ...], ConstraintVocabulary]] = WeakKeyDictionary()
_compile_lock = Lock()  # protects `_vocabularies` and `GrammarConstraint._matchers`


def constraint_vocabulary(tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]) -> ConstraintVocabulary:
    """Return the cached vocabulary of a tokenizer. Making one takes about a second if it is large."""
    cached = _vocabularies.setdefault(tokenizer, {})
    if eos_token_ids not in cached:
        cached[eos_token_ids] = ConstraintVocabulary(tokenizer, eos_token_ids)
    return cached[eos_token_ids]


def _first_part(message: str) -> str:
    """Return llguidance's error message without the dump of its state that may follow."""
    return message.split("<state>")[0].strip()
