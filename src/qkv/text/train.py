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

from qkv.errors import UsageError, suggest_name
from qkv.progress import OnProgress
from qkv.text import special_tokens as role_table
from qkv.text import templates
from qkv.text.formats.sentencepiece import SPACE
from qkv.text.special_tokens import SpecialTokens
from qkv.text.stream_decoder import BYTE_OF_CHAR
from qkv.text.training_text import TrainingTexts

TextSource = str | os.PathLike[str] | Iterable[str] | Iterable[os.PathLike[str]]

TOKENIZER_KINDS = ("byte-bpe", "bpe", "wordpiece", "unigram", "char", "byte", "word")
BYTE_LEVEL_KINDS = ("byte-bpe", "byte")  # nothing is unknown to these
CONTINUATION = "##"


def train_backend(
    kind: str,
    source: TextSource,
    vocab_size: int,
    *,
    special_tokens: Iterable[str] | Mapping[str, str] | None = None,
    num_sentinels: int = 0,
    template: str = "none",
    lowercase: bool = False,
    min_frequency: int = 2,
    progress: OnProgress | None = None,
) -> tuple[Backend, SpecialTokens]:
    """A tokenizer with at most `size` ids, special tokens included.

    `source`: a file, or a list of files (UTF-8 text); any other iterable is the text itself, string by string.
    `roles`: the special tokens to make, in the order of their ids from 0; a mapping gives their spellings. If not
    given: pad, start, end, and unknown for the kinds that can meet a text they have no piece for.
    `template`: what encoding lays around a text, by name (`qkv.text.template.TEMPLATES`).
    `min_count`: pieces and words seen less often are not learnt (characters are, as far as there is room).
    `progress(done, total)`: bytes of files, or number of strings; the total is 0 where it is not known.
    """
    if kind not in TOKENIZER_KINDS:
        raise UsageError(f"no tokenizer is of the kind {kind!r}; {suggest_name(kind, TOKENIZER_KINDS)}")
    if special_tokens is None:
        special_tokens = ("pad", "bos", "eos") if kind in BYTE_LEVEL_KINDS else ("pad", "bos", "eos", "unk")
    spellings = role_table.resolve_spellings(special_tokens)
    if kind not in BYTE_LEVEL_KINDS and "unk" not in spellings:
        raise UsageError(f"a {kind!r} tokenizer meets text it has no piece for: give it the role 'unk'")
    special = list(dict.fromkeys([*spellings.values(), *map(role_table.sentinel_token, range(num_sentinels))]))
    least = len(special) + (256 if kind in BYTE_LEVEL_KINDS else 1)
    if vocab_size < least:
        raise UsageError(f"size = {vocab_size} is too small for kind {kind!r} with these roles: at least {least}")

    texts = TrainingTexts(source, progress)
    try:
        backend = BUILDERS[kind](iter(texts), vocab_size, special, spellings.get("unk", ""), lowercase, min_frequency)
    except Exception as error:
        raise (texts.source_error or error) from None
    if kind != "byte":
        texts.finish()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens = {role: (text, vocabulary[text]) for role, text in spellings.items()}
    backend.post_processor = templates.make_post_processor(template, tokens)
    ids = {role: number for role, (_, number) in tokens.items()}
    marks = tuple(vocabulary[role_table.sentinel_token(number)] for number in range(num_sentinels))
    return backend, SpecialTokens(**ids, sentinels=marks)


# -------------------------------------------------------------------- one builder per kind


def train_byte_bpe(
    texts: Iterator[str], vocab_size: int, special: list[str], _: str, lowercase: bool, min_frequency: int
) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        min_frequency=min_frequency,
        initial_alphabet=sorted(BYTE_OF_CHAR),
        show_progress=False,
    )
    return run_trainer(backend, trainer, texts, lowercase)


def train_bpe(
    texts: Iterator[str], vocab_size: int, special: list[str], unk: str, lowercase: bool, min_frequency: int
) -> Backend:
    backend = Backend(models.BPE(unk_token=unk, fuse_unk=True))
    use_sentencepiece_spacing(backend)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        min_frequency=min_frequency,
        limit_alphabet=vocab_size - len(special),
        show_progress=False,
    )
    return run_trainer(backend, trainer, texts, lowercase)


def train_unigram(
    texts: Iterator[str], vocab_size: int, special: list[str], unk: str, lowercase: bool, _: int
) -> Backend:
    backend = Backend(models.Unigram())
    use_sentencepiece_spacing(backend)
    trainer = trainers.UnigramTrainer(vocab_size=vocab_size, special_tokens=special, unk_token=unk, show_progress=False)
    backend = run_trainer(backend, trainer, texts, lowercase)
    # Scores in float32, as SentencePiece keeps them: written to a file and read back they then stay what they are.
    model = json.loads(backend.to_str())["model"]
    pieces = [(piece, struct.unpack("f", struct.pack("f", score))[0]) for piece, score in model["vocab"]]
    backend.model = models.Unigram(pieces, model["unk_id"], model["byte_fallback"])
    return backend


def train_wordpiece(
    texts: Iterator[str], vocab_size: int, special: list[str], unk: str, lowercase: bool, min_frequency: int
) -> Backend:
    """Learnt by the library's BPE trainer on words with a mark before them: a piece with the mark starts a word, any
    other continues one. (Its WordPiece trainer breaks ties by the order of a hash table, so that two runs differ.)"""
    words = pre_tokenizers.BertPreTokenizer()
    learner = Backend(models.BPE())
    learner.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    learner.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Metaspace(replacement=SPACE)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size + vocab_size // 8 + 256,
        min_frequency=min_frequency,
        limit_alphabet=vocab_size - len(special),
        show_progress=False,
    )
    run_trainer(learner, trainer, texts, False)
    learnt = [piece for piece in tokens_by_id(learner) if piece != SPACE]
    single = [piece for piece in learnt if len(piece) == 1]
    # Punctuation and Chinese characters are words by themselves, and continue none.
    inside = [c for c in single if len(words.pre_tokenize_str(normalize(learner, "a" + c))) == 1]
    marked = [piece.removeprefix(SPACE) if piece.startswith(SPACE) else CONTINUATION + piece for piece in learnt]
    merged = [piece for piece, plain in zip(marked, learnt, strict=True) if len(plain) > 1]
    pieces = list(dict.fromkeys([*special, *single, *(CONTINUATION + c for c in inside), *merged]))[:vocab_size]
    backend = Backend(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token=unk))
    backend.normalizer, backend.pre_tokenizer = learner.normalizer, words
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return backend


def tokens_by_id(backend: Backend) -> list[str]:
    """The vocabulary in the order of ids."""
    vocabulary = backend.get_vocab()
    return sorted(vocabulary, key=lambda piece: vocabulary[piece])


def normalize(backend: Backend, text: str) -> str:
    """A text as the normaliser leaves it: BERT's lays spaces around Chinese characters."""
    return backend.normalizer.normalize_str(text) if backend.normalizer is not None else text


def train_word(
    texts: Iterator[str], vocab_size: int, special: list[str], unk: str, lowercase: bool, min_frequency: int
) -> Backend:
    backend = Backend(models.WordLevel(unk_token=unk))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=special, min_frequency=min_frequency, show_progress=False
    )
    return run_trainer(backend, trainer, texts, lowercase)


def train_char(texts: Iterator[str], vocab_size: int, special: list[str], unk: str, lowercase: bool, _: int) -> Backend:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.lower() if lowercase else text)
    common = sorted(counts, key=lambda character: (-counts[character], character))
    vocabulary = {
        piece: number for number, piece in enumerate((special + [c for c in common if c not in special])[:vocab_size])
    }
    backend = Backend(models.BPE(vocabulary, [], unk_token=unk))
    backend.normalizer = normalizers.Lowercase() if lowercase else None
    backend.decoder = decoders.Fuse()
    return backend


def make_byte(texts: Iterator[str], vocab_size: int, special: list[str], _: str, lowercase: bool, __: int) -> Backend:
    alphabet = sorted(BYTE_OF_CHAR, key=lambda character: BYTE_OF_CHAR[character])
    vocabulary = {piece: number for number, piece in enumerate(special + alphabet)}
    backend = Backend(models.BPE(vocabulary, []))
    backend.normalizer = normalizers.Lowercase() if lowercase else None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


BUILDERS: dict[str, Callable[..., Backend]] = {
    "byte-bpe": train_byte_bpe,
    "bpe": train_bpe,
    "unigram": train_unigram,
    "wordpiece": train_wordpiece,
    "word": train_word,
    "char": train_char,
    "byte": make_byte,
}


def use_sentencepiece_spacing(backend: Backend) -> None:
    """SentencePiece's way with spaces: runs of white space are one space, written ▁ and kept with the word after it."""
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]  # the pattern first: it is the cheaper one
    )
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()


def run_trainer(backend: Backend, trainer: Any, texts: Iterator[str], lowercase: bool) -> Backend:
    """Run a trainer of the library over the texts."""
    if lowercase:
        steps = (
            [normalizers.Lowercase()] if backend.normalizer is None else [normalizers.Lowercase(), backend.normalizer]
        )
        backend.normalizer = normalizers.Sequence(steps)
    backend.train_from_iterator(texts, trainer)
    return backend
