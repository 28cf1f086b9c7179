"""A stream gives exactly what `decode` gives, for every kind of tokenizer, at the same cost for every id."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from text_strategies import HARD_TEXT, QUICK
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from qkv.text import StreamDecoder, Tokenizer
from qkv.text.kinds import TOKENIZER_KINDS


def streamed(tokenizer: Tokenizer, ids: list[int], *, skip_special_tokens: bool) -> list[str]:
    stream = tokenizer.stream(skip_special_tokens=skip_special_tokens)
    return [stream.push(number) for number in ids] + [stream.finish()]


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@given(text=HARD_TEXT)
@settings(max_examples=120, **QUICK)
def test_a_stream_of_encoded_text_is_its_decoding(kind, trained, text):
    ids = trained[kind].encode(text)
    assert "".join(streamed(trained[kind], ids, skip_special_tokens=True)) == trained[kind].decode(ids)


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
@given(data=st.data())
@settings(max_examples=120, **QUICK)
def test_a_stream_of_any_ids_is_their_decoding(kind, trained, data):
    """Also ids that no text gives: half characters, special tokens in between, continuations first."""
    tokenizer = trained[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=20))
    skip = data.draw(st.booleans())
    assert "".join(streamed(tokenizer, ids, skip_special_tokens=skip)) == tokenizer.decode(
        ids, skip_special_tokens=skip
    )


def llama_like() -> Backend:
    """Pieces with ▁ for spaces, and bytes for what has no piece, decoded as Llama's tokenizer.json says."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁▁"]
    backend = Backend(
        models.BPE({piece: n for n, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def last_mark_backend() -> Backend:
    """Decoded with an end-of-word mark: the last token's text differs from the same token's text elsewhere."""
    backend = Backend(models.WordLevel({"a</w>": 0, "b": 1, "c</w>": 2, "?": 3}, unk_token="?"))
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return backend


def far_reaching_backend() -> Backend:
    """A decoder that rewrites the whole text at the end, where nothing is certain before."""
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "x": 2}, unk_token="x"))
    backend.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "-")])
    return backend


def emptying_backend() -> Backend:
    """Some tokens have no text at all, and the first space is dropped."""
    backend = Backend(models.WordLevel({"a": 0, " ": 1, "-": 2, "b": 3}, unk_token="b"))
    backend.decoder = decoders.Sequence([decoders.Replace("-", ""), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return backend


@pytest.mark.parametrize("make", [llama_like, last_mark_backend, far_reaching_backend, emptying_backend])
@given(data=st.data())
@settings(max_examples=250, **QUICK)
def test_a_stream_is_the_decoding_for_other_decoders(make, data):
    tokenizer = Tokenizer(BACKENDS.setdefault(make, make()))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=16))
    assert "".join(streamed(tokenizer, ids, skip_special_tokens=True)) == tokenizer.decode(ids)


BACKENDS: dict = {}


@given(text=st.text(alphabet="a b▁é🙂日", max_size=12))
@example(text="日本")
@settings(max_examples=300, **QUICK)
def test_byte_fallback_text_comes_back_through_the_stream(text):
    backend = BACKENDS.setdefault(llama_like, llama_like())
    ids = []
    for character in text:
        known = backend.token_to_id(character)
        ids += [known] if known is not None else [3 + byte for byte in character.encode()]
    stream = StreamDecoder(backend)
    assert "".join(map(stream.push, ids)) + stream.finish() == Tokenizer(backend).decode(ids)


def test_a_stream_gives_a_character_with_its_last_byte_and_not_before(trained):
    tokenizer = trained["byte"]
    pieces = streamed(tokenizer, tokenizer.encode("é€😀", add_special_tokens=False), skip_special_tokens=True)
    assert pieces == ["", "é", "", "", "€", "", "", "", "😀", ""]


def test_a_stream_does_not_wait_for_the_end(trained):
    """Each word is given with its own token: nothing is held back that is already certain."""
    for kind in ("bpe", "unigram", "wordpiece", "word", "char"):
        ids = trained[kind].encode("the cat sat", add_special_tokens=False)
        assert streamed(trained[kind], ids, skip_special_tokens=True)[-1] == "", kind


def test_a_finished_stream_starts_anew(trained):
    for tokenizer in trained.values():
        stream, ids = tokenizer.stream(), tokenizer.encode("the cat")
        first = "".join(map(stream.push, ids)) + stream.finish()
        assert "".join(map(stream.push, ids)) + stream.finish() == first


def test_a_stream_decodes_each_token_once(trained):
    """The work of a push does not grow with what came before: count the ids that go through the backend."""
    for kind, tokenizer in trained.items():
        stream = tokenizer.stream()
        counter = CountingBackend(tokenizer.backend)
        stream._backend = counter
        ids = tokenizer.encode("the cat sat on the mat " * 200)
        for number in ids:
            stream.push(number)
        assert counter.generate_batched <= 3 * len(ids), kind


class CountingBackend:
    """A backend that counts the ids it decodes."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.generate_batched = backend, 0

    def id_to_token(self, number: int) -> str | None:
        return self.backend.id_to_token(number)

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        self.generate_batched += len(ids)
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
