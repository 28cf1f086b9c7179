r"""Constrained decoding: answers that match a regular expression, a JSON schema or a grammar, whatever the model says.

    m.generate("…", constraint=qkv.decode.regex(r"\d{4}-\d\d-\d\d"))

The library llguidance follows the constraint, byte by byte, and says which tokens may come next; all others get −∞.
The end comes when the answer is complete, and may come only then. An answer that is cut off by `max_tokens` is a
beginning of one that matches, and its reason says "length".

A row's state depends on its tokens alone, so it is kept by them: rows that end, beams that fork and guesses that
are taken back need no telling. Rows are followed independently of each other.

R rows, V vocabulary
"""

import json
from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from qkv.decode.spelling import Spelling
from qkv.errors import QkvError, UsageError
from qkv.text import Tokenizer

STATES = 256
"""How many states are kept at least; one that was dropped is worked out again from its tokens."""


def regex(pattern: str) -> "Guide":
    """The whole answer matches this regular expression (Rust's syntax: no look-around, no references back; `\\d` is a
    digit of any script, `[0-9]` an ASCII one).

    >>> regex("(yes|no)")
    Guide('the regular expression (yes|no)')
    """
    return Guide(f"the regular expression {pattern}", _library().LLMatcher.grammar_from_regex(pattern))


def json_schema(schema: str | dict[str, Any] | bool, *, spaces: int = 32) -> "Guide":
    """The whole answer is JSON that is valid under this schema; `{}` is any JSON.

    Between its parts there may be so many spaces and line breaks, and no more, lest a model that likes them writes
    nothing else.
    """
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(schema)
    except (ValueError, TypeError) as error:
        raise UsageError(f"a JSON schema must itself be JSON: {error}") from error
    between = {"whitespace_pattern": rf"[ \n\r\t]{{1,{spaces}}}"} if spaces > 0 else {"whitespace_flexible": False}
    return Guide("the JSON schema", _library().LLMatcher.grammar_from_json_schema(text, overrides=between))


def grammar(lark: str) -> "Guide":
    """The whole answer can be derived from `start` of this grammar, in Lark's notation as llguidance has it."""
    return Guide("the grammar", _library().LLMatcher.grammar_from_lark(lark))


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise QkvError(
            "constrained decoding needs the library llguidance; install it with: pip install 'qkv[constrain]'"
        ) from error
    return llguidance


class Guide:
    """A constraint, ready for any tokenizer; what `Options.constraint` takes."""

    def __init__(self, name: str, rules: str) -> None:
        self.name, self.rules = name, rules
        wrong = _library().LLMatcher.validate_grammar(rules)
        if wrong:
            raise UsageError(f"{name} cannot be followed: {_in_short(wrong)}")

    def __repr__(self) -> str:
        return f"Guide({self.name!r})"

    def begin(self, tokenizer: Tokenizer | None, end: tuple[int, ...], start: int) -> "Follow":
        """The filter of one batch, whose rows' answers are the tokens from column `start` on."""
        if tokenizer is None:
            raise QkvError("a constraint is about text: it needs a tokenizer, and this model has none")
        if not end:
            raise UsageError("this model's config names no end token, so a constrained answer could not end")
        return Follow(self, tokenizer.target, end, start)


class Follow:
    """A filter that lets each row's answer only go on as its constraint has it."""

    def __init__(self, guide: Guide, tokenizer: Tokenizer, end: tuple[int, ...], start: int) -> None:
        self.guide, self.tokenizer, self.end, self.start = guide, tokenizer, end, start
        self._tokens: Tokens | None = None  # known with the first logits, which have the model's vocabulary
        self._states: OrderedDict[tuple[int, ...], Any] = OrderedDict()  # answer → matcher; None: it does not match

    def __call__(self, logits: Tensor, tokens: Tensor) -> Tensor:
        if self._tokens is None:
            self._tokens = self._begin(tokens_of(self.tokenizer, logits.shape[1], self.end))
        answers = [tuple(row) for row in tokens[:, self.start :].tolist()]
        allowed = torch.from_numpy(np.stack([self._allowed(answer, self._tokens) for answer in answers]))  # (R, V)
        while len(self._states) > max(STATES, 4 * len(answers)):
            self._states.popitem(last=False)
        return logits.masked_fill(~allowed.to(logits.device), float("-inf"))

    def _begin(self, tokens: "Tokens") -> "Tokens":
        """Both matchers of an empty answer, or an error where no answer can begin."""
        matcher = _library().LLMatcher
        self._opening = matcher(tokens.first, self.guide.rules, log_level=0)
        self._empty = matcher(tokens.later, self.guide.rules, log_level=0)
        if not self._allowed((), tokens).any():
            why = _in_short(self._opening.get_error()) or "no token can be the first"
            raise QkvError(f"no answer of this tokenizer's tokens can match {self.guide.name}: {why}")
        return tokens

    def _allowed(self, answer: tuple[int, ...], tokens: "Tokens") -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Which tokens may follow, (V,); none at a dead end."""
        state = self._state(answer, tokens) if answer else self._opening
        if state is None:
            # Only rows that count for nothing leave their constraint, as a beam without a hypothesis: let them be.
            return np.ones(tokens.vocab, dtype=np.bool_)
        bits = np.frombuffer(state.compute_bitmask(), dtype=np.uint8)
        if state.is_error():
            return np.zeros(tokens.vocab, dtype=np.bool_)
        return np.unpackbits(bits, count=tokens.vocab, bitorder="little").astype(np.bool_)

    def _state(self, answer: tuple[int, ...], tokens: "Tokens") -> Any:
        """The matcher after this answer, on from the longest beginning of it that is known: as a rule, all but one."""
        known = len(answer)
        while known and answer[:known] not in self._states:
            known -= 1
        state = self._states[answer[:known]] if known else self._empty
        if known < len(answer) and state is not None:
            state = state.deep_copy()
            for place in range(known, len(answer)):
                if not state.consume_tokens(tokens.read(answer[place], beginning=place == 0)):
                    state = None
                    break
        self._states[answer] = state
        self._states.move_to_end(answer)
        return state


class Tokens:
    """A model's tokens as llguidance knows them.

    It is also told of one more token for each byte, beyond the model's vocabulary: with them it can read what the
    first token of an answer writes, which may differ from what the same token writes later.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int, end: tuple[int, ...]) -> None:
        self.vocab, self.end = vocab, end
        self.spelling = Spelling(tokenizer, vocab)
        self.later = self._tell(self.spelling.later, beginning=False)
        self.first = self.later if self.spelling.alike else self._tell(self.spelling.first, beginning=True)

    def read(self, token: int, *, beginning: bool) -> list[int]:
        """A token as those that write the same later on."""
        if not beginning or self.spelling.alike:
            return [token]
        return [self.vocab + byte for byte in self.spelling.first[token]]

    def _tell(self, spelt: list[bytes], *, beginning: bool) -> Any:
        wordless = {number for number, text in enumerate(spelt) if not text or number in self.end}
        words = [b"<%d>" % number if number in wordless else text for number, text in enumerate(spelt)]
        words += [bytes([byte]) for byte in range(256)]
        told = Told(self.spelling, words, sorted(wordless), self.end[0], beginning)
        library = _library()
        return library.LLTokenizer(library.TokenizerWrapper(told), eos_token=list(self.end))


class Told:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, spelling: Spelling, tokens: list[bytes], special: list[int], end: int, beginning: bool) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, end
        self._spelling, self._beginning = spelling, beginning

    def __call__(self, data: bytes) -> list[int]:
        """How text that the constraint leaves no choice about is cut into tokens."""
        return self._spelling.cut(data, beginning=self._beginning)


_told: WeakKeyDictionary[Tokenizer, dict[tuple[int, tuple[int, ...]], Tokens]] = WeakKeyDictionary()


def tokens_of(tokenizer: Tokenizer, vocab: int, end: tuple[int, ...]) -> Tokens:
    """Told once for each tokenizer: a large vocabulary takes a second."""
    known = _told.setdefault(tokenizer, {})
    if (vocab, end) not in known:
        known[vocab, end] = Tokens(tokenizer, vocab, end)
    return known[vocab, end]


def _in_short(message: str) -> str:
    """The library's message without the dump of its state that may follow."""
    return message.split("<state>")[0].strip()
