"""Constrained decoding: the text of a random model matches, and what cannot be constrained is an error."""

import json
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from qkv.blocks import HeadConfig, StackConfig
from qkv.decode import (
    DraftModel,
    Engine,
    GenerationOptions,
    PromptLookup,
    generate,
    grammar,
    json_schema,
    regex,
)
from qkv.decode.constrained import constraints as constrain
from qkv.decode.constrained.token_bytes import TokenBytes
from qkv.errors import QkvError, UsageError
from qkv.models import Config, Network, build
from qkv.text import Tokenizer

needed = pytest.mark.skipif(
    find_spec("llguidance") is None, reason="llguidance is not installed: pip install 'qkv[constrain]'"
)
TEXTS = ["the cat sat on 12 mats", "hello world 345 6789 0", "yes no maybe a b c d e f g", "grüße"] * 5


@cache
def tokenizer(kind: str = "byte") -> Tokenizer:
    if kind == "fallback":  # as SentencePiece has it: what it has no piece for is written in bytes
        words = ["▁", "▁the", "▁cat", "▁hello", "▁yes", "▁no", "▁345", *"abcdefghijklmnopqrstuvwxyz0123456789"]
        pieces = ["<pad>", "<s>", "</s>", "<unk>", *words, *(f"<0x{byte:02X}>" for byte in range(256))]
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        backend = Backend(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        backend.decoder = decoders.Sequence(steps)
        backend.add_special_tokens(pieces[:4])
        return Tokenizer(backend)
    return Tokenizer.train(kind, iter(TEXTS), vocab_size={"byte": 259, "byte-bpe": 290}.get(kind, 80))


@cache
def network(family: str = "decoder", kind: str = "byte", spare: int = 3, seed: int = 0) -> Network:
    """A random model; its vocabulary has some ids more than its tokenizer, as padded ones do."""
    tokens = tokenizer(kind)
    vocab = tokens.vocab_size + spare
    stack = StackConfig(vocab_size=vocab, width=16, layers=1, heads=2, ffn_width=16, position="rotary", init_std=0.5)
    torch.manual_seed(seed)
    config = Config(
        encoder=stack if family == "seq2seq" else None,
        decoder=stack,
        head=HeadConfig(kind="lm", outputs=vocab),
        pad_token_id=tokens.special_tokens.pad,
        decoder_start_token_id=tokens.special_tokens.bos,
        eos_token_ids=(tokens.special_tokens.eos,),  # type: ignore[arg-type]
    )
    return build(config, dtype=torch.float64).eval()


PROMPTS = [[50, 60], [70, 71, 72, 73], [40]]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1.2, "seed": 3},
    "drawn from few": {"temperature": 1.0, "seed": 4, "top_k": 3, "top_p": 0.9, "repetition_penalty": 1.3},
    "beam": {"beam": 4, "num_return_sequences": 2},
}
PATTERNS = [
    r"[0-9]{4}-[0-9]{2}",
    r"(yes|no|maybe)",
    r"[0-9]{1,3}(\.[0-9]{2})? €",
    r"[a-c]*x{2}" + r"|é{2}",
    r"",
    r"(ab?){1,6}",
]


@needed
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["decoder", "seq2seq"])
def test_answers_match_the_pattern(family: str, way: str) -> None:
    for pattern in PATTERNS:
        results = generate(
            network(family),
            PROMPTS,
            GenerationOptions(max_tokens=40, constraint=regex(pattern), **WAYS[way]),
            tokenizer(),
        )
        for result in (one for first in results for one in (first, *first.alternatives)):
            if result.finish_reason == "end":
                assert re.fullmatch(pattern, result.text), (pattern, result.text)
            else:
                assert "*" in pattern, "only an endless answer is cut off"
                assert re.fullmatch("[a-c]*x?", result.text)


@needed
def test_without_the_constraint_none_of_them_matches() -> None:
    for result in generate(network(), PROMPTS, GenerationOptions(max_tokens=40), tokenizer()):
        assert not any(re.fullmatch(pattern, result.text) for pattern in PATTERNS)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["cat", "dog", None]},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "tame": {"type": "boolean"},
    },
    "required": ["name", "ages"],
    "additionalProperties": False,
}


def valid(value: Any) -> bool:
    """The schema, in Python."""
    return (
        isinstance(value, dict)
        and {"name", "ages"} <= set(value) <= {"name", "kind", "ages", "tame"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 5
        and value.get("kind") in ("cat", "dog", None)
        and isinstance(value["ages"], list)
        and len(value["ages"]) <= 3
        and all(type(age) is int and 0 <= age <= 99 for age in value["ages"])
        and type(value.get("tame", True)) is bool
    )


@needed
@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)], ids=["table", "text"])
@pytest.mark.parametrize("way", WAYS)
def test_answers_are_json_that_is_valid_under_the_schema(schema: Any, way: str) -> None:
    options = GenerationOptions(max_tokens=150, constraint=json_schema(schema, max_whitespace=1), **WAYS[way])
    for result in generate(network(), PROMPTS, options, tokenizer()):
        assert result.finish_reason == "end"
        assert valid(json.loads(result.text)), result.text


@needed
def test_many_draws_are_valid_and_differ() -> None:
    rule, seen = json_schema(SCHEMA, max_whitespace=1), set()
    for seed in range(8):
        options = GenerationOptions(max_tokens=150, temperature=1.5, seed=seed, constraint=rule)
        for result in generate(network(), PROMPTS, options, tokenizer()):
            assert valid(json.loads(result.text))
            seen.add(result.text)
    assert len(seen) > 15


@needed
def test_spaces_in_json_come_to_an_end() -> None:
    """A random model likes line breaks; an answer has other parts too."""
    options = GenerationOptions(max_tokens=400, constraint=json_schema({"enum": [[1, 2], {"a": 1}]}))
    for result in generate(network(), PROMPTS, options, tokenizer()):
        assert json.loads(result.text) in ([1, 2], {"a": 1})
        assert not re.search(r"\s{33}", result.text)


@needed
@pytest.mark.parametrize("way", WAYS)
def test_answers_can_be_derived_from_the_grammar(way: str) -> None:
    """Brackets that close: no regular expression knows that."""
    rule = grammar('start: pair pair?\npair: "(" pair? ")" | "[" pair? "]"')
    for result in generate(
        network(), PROMPTS, GenerationOptions(max_tokens=60, constraint=rule, **WAYS[way]), tokenizer()
    ):
        left = result.text
        assert left
        while "()" in left or "[]" in left:
            left = left.replace("()", "").replace("[]", "")
        assert not left if result.finish_reason == "end" else set(left) <= {"(", "["}


# ── Against a slow reference: the words that match, written out ──────────────────────────────────────────────────


def go_on(words: set[str], answer: str) -> set[int]:
    """The tokens that may follow, by looking at all words."""
    tokens = tokenizer()
    out = {tokens.encode(word[len(answer)])[0] for word in words if word.startswith(answer) and word != answer}
    return out | ({tokens.special_tokens.eos} if answer in words else set())  # type: ignore[arg-type]


WORDS = st.sets(st.text("abc", max_size=5), min_size=1, max_size=6)


@needed
@settings(max_examples=30, deadline=None)
@given(words=WORDS)
def test_what_may_follow_is_what_some_word_goes_on_with(words: set[str]) -> None:
    tokens = tokenizer()
    apply = regex("|".join(sorted(words))).make_processor(tokens, (2,), prompt_length=3)
    beginnings = sorted({word[:n] for word in words for n in range(len(word) + 1)})
    for beginning in beginnings:  # in an order in which few are known from before
        row = torch.tensor([[-1, 5, 6, *tokens.encode(beginning)]])
        allowed = (apply(torch.zeros(1, tokens.vocab_size), row)[0] == 0).nonzero()[:, 0].tolist()
        assert set(allowed) == go_on(words, beginning)


@needed
@settings(max_examples=20, deadline=None)
@given(words=WORDS, length_penalty=st.sampled_from([0.0, 1.0]))
def test_a_wide_beam_finds_the_best_of_all_words(words: set[str], length_penalty: float) -> None:
    tokens = tokenizer()
    options = GenerationOptions(
        beam=40, max_tokens=8, length_penalty=length_penalty, constraint=regex("|".join(sorted(words)))
    )
    found = generate(network(), [PROMPTS[0]], options, tokens)[0]

    def worth(word: str) -> float:
        total, ids = 0.0, [*PROMPTS[0]]
        for place in range(len(word) + 1):
            with torch.inference_mode():
                logits = network()(torch.tensor([ids]))[0, -1]  # type: ignore[operator]
            allowed = sorted(go_on(words, word[:place]))
            token = tokens.encode(word[place])[0] if place < len(word) else tokens.special_tokens.eos
            total += float(logits[allowed].log_softmax(-1)[allowed.index(token)])
            ids.append(token)
        return total / (len(word) + 1) ** length_penalty

    best = max(words, key=worth)
    assert found.score == pytest.approx(worth(best), abs=1e-9)
    assert worth(found.text) == pytest.approx(worth(best), abs=1e-9)


# ── Rows, engines, guesses ───────────────────────────────────────────────────────────────────────────────────────


@needed
@pytest.mark.parametrize("way", ["greedy", "drawn", "beam"])
def test_rows_are_followed_independently(way: str) -> None:
    options = GenerationOptions(max_tokens=150, constraint=json_schema(SCHEMA, max_whitespace=1), **WAYS[way])
    together = generate(network(), PROMPTS, options, tokenizer())
    assert len({len(result.ids) for result in together}) > 1
    for prompt, result in zip(PROMPTS, together, strict=True):
        assert generate(network(), [prompt], options, tokenizer())[0].text == result.text


@needed
def test_states_that_were_dropped_are_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    options = GenerationOptions(
        max_tokens=60, constraint=json_schema(SCHEMA, max_whitespace=1), temperature=1.0, seed=1
    )
    wanted = [result.text for result in generate(network(), PROMPTS, options, tokenizer())]
    clear = constrain.ConstraintProcessor._state

    def forgetful(self: constrain.ConstraintProcessor, *rest: Any) -> Any:
        self._states.clear()
        return clear(self, *rest)

    monkeypatch.setattr(constrain.ConstraintProcessor, "_state", forgetful)
    assert [result.text for result in generate(network(), PROMPTS, options, tokenizer())] == wanted


@needed
def test_the_engine_follows_each_request_s_own_constraint() -> None:
    asked = [
        (
            PROMPTS[0],
            GenerationOptions(max_tokens=90, constraint=json_schema(SCHEMA, max_whitespace=1), temperature=1.0, seed=2),
        ),
        (PROMPTS[1], GenerationOptions(max_tokens=9, constraint=regex(r"[0-9]{2,8}"))),
        (PROMPTS[2], GenerationOptions(max_tokens=9)),
        (PROMPTS[0], GenerationOptions(max_tokens=9, constraint=regex(r"[0-9]{2,8}"))),
    ]
    engine = Engine(network(), tokenizer(), max_sequences=2, num_pages=12, page_size=8)
    requests = [engine.submit(prompt, options) for prompt, options in asked]
    engine.run()
    with pytest.raises(QkvError, match="no text of this tokenizer's tokens can match"):
        engine.submit(PROMPTS[2], GenerationOptions(max_tokens=9, constraint=regex(r"no [^\s\S]")))
    for (prompt, options), request in zip(asked, requests, strict=True):
        assert request.ids == generate(network(), [prompt], options, tokenizer())[0].ids
    assert engine.page_pool.num_available == engine.page_pool.num_pages


@needed
@pytest.mark.parametrize("draft", [PromptLookup(), DraftModel(network(seed=1))], ids=["look-up", "draft model"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_guesses_follow_the_constraint_too(draft: Any, temperature: float) -> None:
    options = GenerationOptions(
        max_tokens=120, constraint=json_schema(SCHEMA, max_whitespace=1), temperature=temperature, seed=5
    )
    for prompt in PROMPTS:
        result = generate(network(), [prompt], options, tokenizer(), draft=draft)[0]
        assert valid(json.loads(result.text))
        if temperature == 0.0 or isinstance(draft, PromptLookup):
            assert result.ids == generate(network(), [prompt], options, tokenizer())[0].ids
        assert result.num_forward_passes < len(result.logprobs), (
            "what the schema leaves no choice about is guessed right"
        )


@needed
def test_a_constraint_is_compiled_once_for_all_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    make = constrain.Matchers.__init__

    def count(self: constrain.Matchers, *arguments: Any) -> None:
        compiled.append(arguments)
        make(self, *arguments)

    monkeypatch.setattr(constrain.Matchers, "__init__", count)
    rule = regex(r"[0-9]{2,8}")
    engine = Engine(network(), tokenizer(), max_sequences=2, num_pages=12, page_size=8)
    for prompt in PROMPTS:
        engine.submit(prompt, GenerationOptions(max_tokens=9, constraint=rule))
    assert len(compiled) == 1, "before the first step"
    engine.run()
    generate(network(), PROMPTS, GenerationOptions(max_tokens=9, constraint=rule), tokenizer())
    assert len(compiled) == 1


# ── Tokenizers ───────────────────────────────────────────────────────────────────────────────────────────────────


@needed
@pytest.mark.parametrize("kind", ["byte-bpe", "bpe", "unigram", "wordpiece", "char", "word", "fallback"])
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_tokenizer(kind: str, way: str) -> None:
    """A first word's space, continued words, words with spaces before them: what counts is the text in the end."""
    pattern = r"(hello|the cat)( (yes|no|345)){1,3}"
    options = GenerationOptions(max_tokens=30, constraint=regex(pattern), **WAYS[way])
    for family in ("decoder", "seq2seq"):
        for result in generate(network(family, kind), [[5], [7, 6]], options, tokenizer(kind)):
            assert result.finish_reason == "end"
            assert re.fullmatch(pattern, result.text), result.text
            assert tokenizer(kind).decode(result.ids) == result.text


@needed
@pytest.mark.parametrize("kind", ["byte", "byte-bpe", "bpe", "unigram", "wordpiece", "char", "word"])
def test_what_tokens_write_together_is_what_the_tokenizer_decodes(kind: str) -> None:
    tokens = tokenizer(kind)
    spelling = TokenBytes(tokens, tokens.vocab_size + 2)
    ids = [number for number in range(tokens.vocab_size) if number not in tokens.special_ids]
    torch.manual_seed(0)
    for _ in range(50):
        some = [ids[i] for i in torch.randint(len(ids), (6,)).tolist()]
        assert spelling.to_bytes(some, at_start=True).decode(errors="replace") == tokens.decode(some)
    assert spelling.later_bytes[tokens.vocab_size] == b""
    assert all(spelling.later_bytes[number] == b"" for number in tokens.special_ids)
    for beginning in (True, False):
        cut = spelling.tokenize(b"hello 12\xff", at_start=beginning)
        spelt = [
            bytes([n - tokens.vocab_size - 2]) if n >= tokens.vocab_size + 2 else spelling.later_bytes[n] for n in cut
        ]
        if beginning and cut[0] < tokens.vocab_size:
            spelt[0] = spelling.first_bytes[cut[0]]
        assert b"".join(spelt) == b"hello 12\xff", "what no token writes is an id that no model has"


@needed
@pytest.mark.parametrize("way", WAYS)
def test_characters_that_take_several_byte_tokens(way: str) -> None:
    tokens = tokenizer("fallback")
    options = GenerationOptions(max_tokens=30, constraint=regex("[é€]{1,3} ?(yes|中)"), **WAYS[way])
    for result in generate(network(kind="fallback"), [[5], [7, 6]], options, tokens):
        assert re.fullmatch("[é€]{1,3} ?(yes|中)", result.text), result.text
        assert tokens.decode(result.ids) == result.text


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────────────


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@needed
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: regex("("), "the regular expression .* is not a valid constraint: .*unclosed group"),
        (lambda: regex("(?=a)b"), "look-around"),
        (lambda: json_schema({"type": "nope"}), "the JSON schema is not a valid constraint: Invalid type: nope"),
        (lambda: json_schema({"type": "integer", "minimum": 5, "maximum": 3}), "Unsatisfiable"),
        (lambda: json_schema("{"), "the JSON schema is not JSON itself"),
        (lambda: json_schema({"enum": [{1, 2}]}), "the JSON schema is not JSON itself"),
        (lambda: grammar("start: nothing"), "unknown name"),
        (lambda: json_schema(nested(200)), "recursion limit exceeded"),
        (lambda: json_schema(nested(100_000)), "nested too deeply"),
    ],
)
def test_a_wrong_constraint_is_refused_when_it_is_made(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=re.compile(message, re.DOTALL)):
        make()


@needed
@pytest.mark.parametrize("way", WAYS)
def test_an_impossible_constraint_says_so(way: str) -> None:
    def ask(kind: str, pattern: str, **more: Any) -> None:
        options = GenerationOptions(**({"max_tokens": 9, "constraint": regex(pattern)} | WAYS[way] | more))
        generate(network(kind=kind), [[5]], options, tokenizer(kind))

    with pytest.raises(QkvError, match="can match the regular expression a"):
        ask("byte", r"a[^\s\S]")
    with pytest.raises(QkvError, match=r"can match the regular expression \[XYZ\]\+: no token can be the first"):
        ask("char", "[XYZ]+")
    with pytest.raises(QkvError, match=r"every token is forbidden|forbid every continuation"):
        ask("byte", "ab", min_tokens=3)


@needed
def test_a_dead_end_later_on_says_so() -> None:
    """`a` can be written and what must follow it cannot: no token of this tokenizer has a Z."""
    with pytest.raises(QkvError, match=r"every token is forbidden at this step, because .* exclude all of them; relax"):
        generate(
            network(kind="char"), [[5]], GenerationOptions(max_tokens=9, constraint=regex("aZ")), tokenizer("char")
        )


@needed
def test_a_search_goes_around_dead_ends() -> None:
    options = GenerationOptions(max_tokens=9, beam=4, constraint=regex("(aZ|eZ|hZ|cab)"))
    assert generate(network(kind="char"), [[5]], options, tokenizer("char"))[0].text == "cab"


@needed
def test_what_a_constraint_needs() -> None:
    rule = regex("a")
    with pytest.raises(QkvError, match="needs a tokenizer"):
        generate(network(), PROMPTS, GenerationOptions(constraint=rule))
    with pytest.raises(UsageError, match="no eos_token_ids"):
        rule.make_processor(tokenizer(), (), 0)
    with pytest.raises(UsageError, match=r"constraint = 'a\+' must be made by qkv\.decode\.regex, json"):
        generate(network(), PROMPTS, GenerationOptions(constraint="a+"), tokenizer())  # type: ignore[arg-type]


@needed
def test_a_tokenizer_whose_text_is_known_only_in_the_end_is_refused() -> None:
    odd = Tokenizer.train("char", iter(TEXTS), vocab_size=80)
    odd.backend.decoder = decoders.CTC()
    with pytest.raises(UsageError, match="its decoder changes earlier text"):
        generate(network(kind="char"), [[5]], GenerationOptions(constraint=regex("a")), odd)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(QkvError, match=r"pip install 'qkv\[constrain\]'"):
        regex("a+")
