"""Training a tokenizer of any kind, from files or from strings.

| kind        | pieces                                  | text comes back                                            |
|-------------|-----------------------------------------|------------------------------------------------------------|
| `byte-bpe`  | merged bytes, as GPT-2                  | exactly, whatever it is                                    |
| `byte`      | the 256 bytes, nothing to learn         | exactly, whatever it is                                    |
| `bpe`       | merged characters, as SentencePiece     | where its characters were seen; spaces become single       |
| `unigram`   | likely pieces, as SentencePiece and T5  | as `bpe`                                                   |
| `wordpiece` | word starts and `##` continuations      | in BERT's spacing; if asked, lower case without accents    |
| `char`      | the most frequent characters            | where its characters were seen                             |
| `word`      | the most frequent words between spaces  | where its words were seen; spaces become single            |

The same texts give the same tokenizer, but for `unigram`: the library sums its probabilities in an order that varies,
so pieces at the edge of the vocabulary may differ from one training to the next.
"""

import json
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from qkv.errors import UsageError, nearest
from qkv.text import roles as role_table
from qkv.text import template as templates
from qkv.text.roles import Roles
from qkv.text.sentencepiece import SPACE
from qkv.text.source import Texts
from qkv.text.stream import BYTES

Source = str | os.PathLike[str] | Iterable[str] | Iterable[os.PathLike[str]]
Progress = Callable[[int, int], None]

KINDS = ("byte-bpe", "bpe", "wordpiece", "unigram", "char", "byte", "word")
LOSSLESS = ("byte-bpe", "byte")  # nothing is unknown to these
CONTINUATION = "##"


def train(
    kind: str,
    source: Source,
    size: int,
    *,
    roles: Iterable[str] | Mapping[str, str] | None = None,
    sentinels: int = 0,
    template: str = "none",
    lowercase: bool = False,
    min_count: int = 2,
    progress: Progress | None = None,
) -> tuple[Backend, Roles]:
    """A tokenizer with at most `size` ids, special tokens included.

    `source`: a file, or a list of files (UTF-8 text); any other iterable is the text itself, string by string.
    `roles`: the special tokens to make, in the order of their ids from 0; a mapping gives their spellings. If not
    given: pad, start, end, and unknown for the kinds that can meet a text they have no piece for.
    `template`: what encoding lays around a text, by name (`qkv.text.template.TEMPLATES`).
    `min_count`: pieces and words seen less often are not learnt (characters are, as far as there is room).
    `progress(done, total)`: bytes of files, or number of strings; the total is 0 where it is not known.
    """
    if kind not in KINDS:
        raise UsageError(f"no tokenizer is of the kind {kind!r}; {nearest(kind, KINDS)}")
    if roles is None:
        roles = ("pad", "start", "end") if kind in LOSSLESS else ("pad", "start", "end", "unknown")
    spellings = role_table.choose(roles)
    if kind not in LOSSLESS and "unknown" not in spellings:
        raise UsageError(f"a {kind!r} tokenizer meets text it has no piece for: give it the role 'unknown'")
    special = list(dict.fromkeys([*spellings.values(), *map(role_table.sentinel, range(sentinels))]))
    least = len(special) + (256 if kind in LOSSLESS else 1)
    if size < least:
        raise UsageError(f"size = {size} is too small for kind {kind!r} with these roles: at least {least}")

    texts = Texts(source, progress)
    try:
        backend = BUILDERS[kind](iter(texts), size, special, spellings.get("unknown", ""), lowercase, min_count)
    except Exception as error:
        raise (texts.error or error) from None
    if kind != "byte":
        texts.finish()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens = {role: (text, vocabulary[text]) for role, text in spellings.items()}
    backend.post_processor = templates.processor(template, tokens)
    ids = {role: number for role, (_, number) in tokens.items()}
    marks = tuple(vocabulary[role_table.sentinel(number)] for number in range(sentinels))
    return backend, Roles(**ids, sentinels=marks)


# -------------------------------------------------------------------- one builder per kind


def byte_bpe(texts: Iterator[str], size: int, special: list[str], _: str, lowercase: bool, least: int) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        min_frequency=least,
        initial_alphabet=sorted(BYTES),
        show_progress=False,
    )
    return learn(backend, trainer, texts, lowercase)


def bpe(texts: Iterator[str], size: int, special: list[str], unknown: str, lowercase: bool, least: int) -> Backend:
    backend = Backend(models.BPE(unk_token=unknown, fuse_unk=True))
    spaced(backend)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        min_frequency=least,
        limit_alphabet=size - len(special),
        show_progress=False,
    )
    return learn(backend, trainer, texts, lowercase)


def unigram(texts: Iterator[str], size: int, special: list[str], unknown: str, lowercase: bool, _: int) -> Backend:
    backend = Backend(models.Unigram())
    spaced(backend)
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=special, unk_token=unknown, show_progress=False)
    backend = learn(backend, trainer, texts, lowercase)
    # Scores in float32, as SentencePiece keeps them: written to a file and read back they then stay what they are.
    model = json.loads(backend.to_str())["model"]
    pieces = [(piece, struct.unpack("f", struct.pack("f", score))[0]) for piece, score in model["vocab"]]
    backend.model = models.Unigram(pieces, model["unk_id"], model["byte_fallback"])
    return backend


def wordpiece(
    texts: Iterator[str], size: int, special: list[str], unknown: str, lowercase: bool, least: int
) -> Backend:
    """Learnt by the library's BPE trainer on words with a mark before them: a piece with the mark starts a word, any
    other continues one. (Its WordPiece trainer breaks ties by the order of a hash table, so that two runs differ.)"""
    words = pre_tokenizers.BertPreTokenizer()
    learner = Backend(models.BPE())
    learner.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    learner.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Metaspace(replacement=SPACE)])
    trainer = trainers.BpeTrainer(
        vocab_size=size + size // 8 + 256, min_frequency=least, limit_alphabet=size - len(special), show_progress=False
    )
    learn(learner, trainer, texts, False)
    learnt = [piece for piece in in_order(learner) if piece != SPACE]
    single = [piece for piece in learnt if len(piece) == 1]
    # Punctuation and Chinese characters are words by themselves, and continue none.
    inside = [c for c in single if len(words.pre_tokenize_str(spread(learner, "a" + c))) == 1]
    marked = [piece.removeprefix(SPACE) if piece.startswith(SPACE) else CONTINUATION + piece for piece in learnt]
    merged = [piece for piece, plain in zip(marked, learnt, strict=True) if len(plain) > 1]
    pieces = list(dict.fromkeys([*special, *single, *(CONTINUATION + c for c in inside), *merged]))[:size]
    backend = Backend(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token=unknown))
    backend.normalizer, backend.pre_tokenizer = learner.normalizer, words
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return backend


def in_order(backend: Backend) -> list[str]:
    """The vocabulary in the order of ids."""
    vocabulary = backend.get_vocab()
    return sorted(vocabulary, key=lambda piece: vocabulary[piece])


def spread(backend: Backend, text: str) -> str:
    """A text as the normaliser leaves it: BERT's lays spaces around Chinese characters."""
    return backend.normalizer.normalize_str(text) if backend.normalizer is not None else text


def word(texts: Iterator[str], size: int, special: list[str], unknown: str, lowercase: bool, least: int) -> Backend:
    backend = Backend(models.WordLevel(unk_token=unknown))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, special_tokens=special, min_frequency=least, show_progress=False
    )
    return learn(backend, trainer, texts, lowercase)


def char(texts: Iterator[str], size: int, special: list[str], unknown: str, lowercase: bool, _: int) -> Backend:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.lower() if lowercase else text)
    common = sorted(counts, key=lambda character: (-counts[character], character))
    vocabulary = {
        piece: number for number, piece in enumerate((special + [c for c in common if c not in special])[:size])
    }
    backend = Backend(models.BPE(vocabulary, [], unk_token=unknown))
    backend.normalizer = normalizers.Lowercase() if lowercase else None
    backend.decoder = decoders.Fuse()
    return backend


def byte(texts: Iterator[str], size: int, special: list[str], _: str, lowercase: bool, __: int) -> Backend:
    alphabet = sorted(BYTES, key=lambda character: BYTES[character])
    vocabulary = {piece: number for number, piece in enumerate(special + alphabet)}
    backend = Backend(models.BPE(vocabulary, []))
    backend.normalizer = normalizers.Lowercase() if lowercase else None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


BUILDERS: dict[str, Callable[..., Backend]] = {
    "byte-bpe": byte_bpe,
    "bpe": bpe,
    "unigram": unigram,
    "wordpiece": wordpiece,
    "word": word,
    "char": char,
    "byte": byte,
}


def spaced(backend: Backend) -> None:
    """SentencePiece's way with spaces: runs of white space are one space, written ▁ and kept with the word after it."""
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]  # the pattern first: it is the cheaper one
    )
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()


def learn(backend: Backend, trainer: Any, texts: Iterator[str], lowercase: bool) -> Backend:
    """Run a trainer of the library over the texts."""
    if lowercase:
        steps = (
            [normalizers.Lowercase()] if backend.normalizer is None else [normalizers.Lowercase(), backend.normalizer]
        )
        backend.normalizer = normalizers.Sequence(steps)
    backend.train_from_iterator(texts, trainer)
    return backend
