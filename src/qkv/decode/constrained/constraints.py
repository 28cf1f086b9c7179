r"""Constrained decoding: the text matches a regular expression, a JSON schema or a grammar.

    m.generate("…", constraint=qkv.decode.regex(r"\d{4}-\d\d-\d\d"))

The library llguidance matches the constraint byte by byte and computes which tokens may come next; all others get −∞.
The end-of-sequence token is allowed only where the text is complete, and forced where nothing can follow. A text that
`max_tokens` truncates is the start of one that matches, and its `finish_reason` is "length".

The state of a sequence depends on its tokens only, and is cached by them. So sequences that end, beams that are
replaced and rejected draft tokens need no bookkeeping.

R sequences, V vocabulary
"""

import json
from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from qkv.decode.constrained.token_bytes import TokenBytes
from qkv.errors import QkvError, UsageError
from qkv.text import Tokenizer

MIN_CACHED_STATES = 256
"""Beyond this number (or four per sequence), states are dropped, and recomputed from their tokens if needed."""


def regex(pattern: str) -> "GrammarConstraint":
    """The whole text matches this regular expression.

    The syntax is Rust's: no look-around, no back-references; `\\d` is a digit of any script, `[0-9]` an ASCII one.

    >>> regex("(yes|no)")
    GrammarConstraint('the regular expression (yes|no)')
    """
    return GrammarConstraint(
        f"the regular expression {pattern}", _import_llguidance().LLMatcher.grammar_from_regex(pattern)
    )


def json_schema(schema: str | dict[str, Any] | bool, *, max_whitespace: int = 32) -> "GrammarConstraint":
    """The whole text is JSON that is valid under this schema; `{}` allows any JSON.

    At most `max_whitespace` spaces and line breaks may stand between its parts, because some models would otherwise
    generate nothing else.
    """
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(schema)
    except (ValueError, TypeError) as error:
        raise UsageError(f"a JSON schema must itself be JSON: {error}") from error
    between = (
        {"whitespace_pattern": rf"[ \n\r\t]{{1,{max_whitespace}}}"}
        if max_whitespace > 0
        else {"whitespace_flexible": False}
    )
    return GrammarConstraint(
        "the JSON schema", _import_llguidance().LLMatcher.grammar_from_json_schema(text, overrides=between)
    )


def grammar(lark_grammar: str) -> "GrammarConstraint":
    """The whole text can be derived from `start` of this grammar, in llguidance's variant of Lark's notation."""
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
    """A constraint for any tokenizer: what `GenerationOptions.constraint` takes."""

    def __init__(self, name: str, grammar: str) -> None:
        self.name, self.grammar = name, grammar
        wrong = _import_llguidance().LLMatcher.validate_grammar(grammar)
        if wrong:
            raise UsageError(f"{name} is not a valid constraint: {_first_part(wrong)}")

    def __repr__(self) -> str:
        return f"GrammarConstraint({self.name!r})"

    def make_processor(
        self, tokenizer: Tokenizer | None, eos_token_ids: tuple[int, ...], prompt_length: int
    ) -> "ConstraintProcessor":
        """The logits processor of one batch, whose generated tokens start at column `prompt_length`."""
        if tokenizer is None:
            raise QkvError("a constraint needs a tokenizer, and this model has none")
        if not eos_token_ids:
            raise UsageError(
                "a constraint needs an end-of-sequence token, and this model's config has no eos_token_ids"
            )
        return ConstraintProcessor(self, tokenizer.target, eos_token_ids, prompt_length)


class ConstraintProcessor:
    """A logits processor that allows only the tokens with which a text can still match its constraint."""

    def __init__(
        self, constraint: GrammarConstraint, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...], prompt_length: int
    ) -> None:
        self.constraint, self.tokenizer, self.eos_token_ids, self.prompt_length = (
            constraint,
            tokenizer,
            eos_token_ids,
            prompt_length,
        )
        self._vocabulary: ConstraintVocabulary | None = (
            None  # made from the first logits, which have the size of the vocabulary
        )
        self._states: OrderedDict[tuple[int, ...], Any] = (
            OrderedDict()
        )  # generated tokens → matcher; None: they do not match

    def __call__(self, logits: Tensor, tokens: Tensor) -> Tensor:
        if self._vocabulary is None:
            self._vocabulary = self._start_matchers(
                constraint_vocabulary(self.tokenizer, logits.shape[1], self.eos_token_ids)
            )
        answers = [tuple(row) for row in tokens[:, self.prompt_length :].tolist()]
        allowed = torch.from_numpy(np.stack([self._allowed(answer, self._vocabulary) for answer in answers]))  # (R, V)
        while len(self._states) > max(MIN_CACHED_STATES, 4 * len(answers)):
            self._states.popitem(last=False)
        return logits.masked_fill(~allowed.to(logits.device), float("-inf"))

    def _start_matchers(self, vocabulary: "ConstraintVocabulary") -> "ConstraintVocabulary":
        """Make both matchers of an empty text; raise an error if no token can be the first."""
        matcher = _import_llguidance().LLMatcher
        self._first_matcher = matcher(vocabulary.first, self.constraint.grammar, log_level=0)
        self._later_matcher = matcher(vocabulary.later, self.constraint.grammar, log_level=0)
        if not self._allowed((), vocabulary).any():
            why = _first_part(self._first_matcher.get_error()) or "no token can be the first"
            raise QkvError(f"no text of this tokenizer's tokens can match {self.constraint.name}: {why}")
        return vocabulary

    def _allowed(
        self, answer: tuple[int, ...], vocabulary: "ConstraintVocabulary"
    ) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Which tokens may follow, (V,); none at a dead end."""
        state = self._state(answer, vocabulary) if answer else self._first_matcher
        if state is None:
            # Only placeholders, such as beams without a hypothesis, violate their constraint: allow them everything.
            return np.ones(vocabulary.size, dtype=np.bool_)
        bits = np.frombuffer(state.compute_bitmask(), dtype=np.uint8)
        if state.is_error():
            return np.zeros(vocabulary.size, dtype=np.bool_)
        return np.unpackbits(bits, count=vocabulary.size, bitorder="little").astype(np.bool_)

    def _state(self, answer: tuple[int, ...], vocabulary: "ConstraintVocabulary") -> Any:
        """The matcher after these tokens, continued from their longest cached prefix: usually all tokens but one."""
        known = len(answer)
        while known and answer[:known] not in self._states:
            known -= 1
        state = self._states[answer[:known]] if known else self._later_matcher
        if known < len(answer) and state is not None:
            state = state.deep_copy()
            for place in range(known, len(answer)):
                if not state.consume_tokens(vocabulary.matcher_ids(answer[place], at_start=place == 0)):
                    state = None
                    break
        self._states[answer] = state
        self._states.move_to_end(answer)
        return state


class ConstraintVocabulary:
    """A model's vocabulary as llguidance needs it.

    It has one extra token for each byte, beyond the model's vocabulary. With these the matcher can read the first token
    of a text, whose bytes may differ from those of the same token later on.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int, eos_token_ids: tuple[int, ...]) -> None:
        self.size, self.eos_token_ids = vocab, eos_token_ids
        self.token_bytes = TokenBytes(tokenizer, vocab)
        self.later = self._make_matcher_tokenizer(self.token_bytes.later_bytes, at_start=False)
        self.first = (
            self.later
            if self.token_bytes.is_uniform
            else self._make_matcher_tokenizer(self.token_bytes.first_bytes, at_start=True)
        )

    def matcher_ids(self, token: int, *, at_start: bool) -> list[int]:
        """A token as ids for the matcher: itself, or the bytes of a first token."""
        if not at_start or self.token_bytes.is_uniform:
            return [token]
        return [self.size + byte for byte in self.token_bytes.first_bytes[token]]

    def _make_matcher_tokenizer(self, token_bytes: list[bytes], *, at_start: bool) -> Any:
        wordless = {number for number, text in enumerate(token_bytes) if not text or number in self.eos_token_ids}
        words = [b"<%d>" % number if number in wordless else text for number, text in enumerate(token_bytes)]
        words += [bytes([byte]) for byte in range(256)]
        told = TokenizerAdapter(self.token_bytes, words, sorted(wordless), self.eos_token_ids[0], at_start)
        library = _import_llguidance()
        return library.LLTokenizer(library.TokenizerWrapper(told), eos_token=list(self.eos_token_ids))


class TokenizerAdapter:
    """The interface that llguidance expects of a tokenizer."""

    bos_token_id = None

    def __init__(
        self, token_bytes: TokenBytes, tokens: list[bytes], special: list[int], eos_token_id: int, at_start: bool
    ) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, eos_token_id
        self._token_bytes, self._at_start = token_bytes, at_start

    def __call__(self, data: bytes) -> list[int]:
        """The tokens of text that the constraint leaves no choice about."""
        return self._token_bytes.tokenize(data, at_start=self._at_start)


_vocabularies: WeakKeyDictionary[Tokenizer, dict[tuple[int, tuple[int, ...]], ConstraintVocabulary]] = (
    WeakKeyDictionary()
)


def constraint_vocabulary(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]
) -> ConstraintVocabulary:
    """Made once for each tokenizer, because a large vocabulary takes a second."""
    known = _vocabularies.setdefault(tokenizer, {})
    if (vocab_size, eos_token_ids) not in known:
        known[vocab_size, eos_token_ids] = ConstraintVocabulary(tokenizer, vocab_size, eos_token_ids)
    return known[vocab_size, eos_token_ids]


def _first_part(message: str) -> str:
    """The library's error message without the dump of its state that may follow."""
    return message.split("<state>")[0].strip()
