"""Train a tokenizer of any kind, from files or from strings.

| kind        | tokens                                     | decoding gives the text back                           |
|-------------|--------------------------------------------|--------------------------------------------------------|
| `byte-bpe`  | byte-level BPE, as GPT-2                   | exactly, for any text                                  |
| `byte`      | the 256 bytes, no training                 | exactly, for any text                                  |
| `bpe`       | BPE over characters, as SentencePiece      | if all characters are known; runs of spaces become one |
| `unigram`   | Unigram, as SentencePiece and T5           | as `bpe`                                               |
| `wordpiece` | WordPiece with `##` continuations, as BERT | with BERT's spacing; in lower case with `lowercase`    |
| `char`      | the most frequent characters               | if all characters are known                            |
| `word`      | the most frequent words between spaces     | if all words are known; runs of spaces become one      |
| `special`   | only special tokens, no training           | never: it is for models that read no texts             |
| `hash`      | one token for all words, no training       | never: a front end of the model reads the words        |

The same texts give the same tokenizer, except for `unigram`: the library adds its probabilities in a varying order, so
the rarest tokens of the vocabulary may differ between two trainings.
"""

import json
import os
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from qkv.errors import UsageError
from qkv.progress import OnProgress
from qkv.text.formats.sentencepiece import SPACE
from qkv.text.kinds import TOKENIZER_KINDS, TokenizerKind
from qkv.text.special_tokens import SpecialTokens, make_post_processor, resolve_spellings, sentinel_token
from qkv.text.stream_decoder import BYTE_OF_CHAR
from qkv.text.training_text import TrainingTexts
from qkv.text.word_features import ANY_WORD

TextSource = str | os.PathLike[str] | Iterable[str] | Iterable[os.PathLike[str]]

CONTINUATION_PREFIX = "##"


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
    """A tokenizer with at most `vocab_size` tokens, special tokens included.

    `source`: a file, or a list of files (UTF-8 text); any other iterable yields the training texts themselves.
    `special_tokens`: the roles to create tokens for, in the order of their ids from 0; a mapping also gives their
        spellings. Default: pad, bos, eos, and unk for the kinds that cannot encode every text.
    `template`: the special tokens that encoding adds, by name (`qkv.text.special_tokens.TEMPLATES`).
    `min_frequency`: rarer tokens are not learned, except single characters, which are kept while `vocab_size` allows.
    `progress(done, total)`: bytes of files, or number of strings; the total is 0 if it is not known.
    """
    row = TOKENIZER_KINDS.find(kind, "kind")
    if special_tokens is None:
        special_tokens = ("pad", "bos", "eos") if row.is_byte_level else ("pad", "bos", "eos", "unk")
    spellings = resolve_spellings(special_tokens)
    if row.reads_texts and not row.is_byte_level and "unk" not in spellings:
        raise UsageError(f"a {kind!r} tokenizer cannot encode every text: add the role 'unk' to special_tokens")
    special = list(dict.fromkeys([*spellings.values(), *map(sentinel_token, range(num_sentinels))]))
    min_size = len(special) + row.min_tokens
    if vocab_size < min_size:
        raise UsageError(
            f"vocab_size = {vocab_size} is too small for a {kind!r} tokenizer with these special tokens; "
            f"give at least {min_size}"
        )

    texts = TrainingTexts(source, progress)
    try:
        options = TrainerOptions(vocab_size, special, spellings.get("unk", ""), lowercase, min_frequency)
        backend: Backend = row.train(iter(texts), options)
    except Exception as error:
        raise (texts.source_error or error) from None
    if kind not in ("byte", "special", "hash"):
        texts.finish()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens = {role: (text, vocabulary[text]) for role, text in spellings.items()}
    backend.post_processor = make_post_processor(template, tokens)
    ids = {role: token_id for role, (_, token_id) in tokens.items()}
    sentinels = tuple(vocabulary[sentinel_token(number)] for number in range(num_sentinels))
    return backend, SpecialTokens(**ids, sentinels=sentinels)


@dataclass(frozen=True)
class TrainerOptions:
    """The options of the functions below, one for each kind of tokenizer."""

    vocab_size: int
    special: list[str]  # the spellings of the special tokens, in the order of their ids
    unk: str
    lowercase: bool
    min_frequency: int

    @property
    def trainer_kwargs(self) -> dict[str, Any]:
        """Keyword arguments that the library's trainers have in common."""
        names = {"vocab_size": self.vocab_size, "special_tokens": self.special, "min_frequency": self.min_frequency}
        return {**names, "show_progress": False}


def train_byte_bpe(texts: Iterator[str], options: TrainerOptions) -> Backend:
    """Byte-level BPE."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(**options.trainer_kwargs, initial_alphabet=sorted(BYTE_OF_CHAR))
    return run_trainer(backend, trainer, texts, options.lowercase)


def train_bpe(texts: Iterator[str], options: TrainerOptions) -> Backend:
    """BPE over characters."""
    backend = Backend(models.BPE(unk_token=options.unk, fuse_unk=True))
    use_sentencepiece_spacing(backend)
    limit_alphabet = options.vocab_size - len(options.special)
    trainer = trainers.BpeTrainer(**options.trainer_kwargs, limit_alphabet=limit_alphabet)
    return run_trainer(backend, trainer, texts, options.lowercase)


def train_unigram(texts: Iterator[str], options: TrainerOptions) -> Backend:
    """Unigram."""
    backend = Backend(models.Unigram())
    use_sentencepiece_spacing(backend)
    trainer = trainers.UnigramTrainer(
        vocab_size=options.vocab_size, special_tokens=options.special, unk_token=options.unk, show_progress=False
    )
    backend = run_trainer(backend, trainer, texts, options.lowercase)
    # Round the scores to float32, as SentencePiece does, so that saving and loading does not change them.
    model = json.loads(backend.to_str())["model"]
    vocabulary = [(token, struct.unpack("f", struct.pack("f", score))[0]) for token, score in model["vocab"]]
    backend.model = models.Unigram(vocabulary, model["unk_id"], model["byte_fallback"])
    return backend


def train_wordpiece(texts: Iterator[str], options: TrainerOptions) -> Backend:
    """WordPiece, learned by the library's BPE trainer.

    Every word gets a mark before it: a token with the mark starts a word, any other continues one. The library's own
    WordPiece trainer breaks ties in the order of a hash table, so two trainings would differ.
    """
    words = pre_tokenizers.BertPreTokenizer()
    normalizer = normalizers.BertNormalizer(lowercase=options.lowercase)
    bpe = Backend(models.BPE())
    bpe.normalizer = normalizer
    bpe.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Metaspace(replacement=SPACE)])
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocab_size + options.vocab_size // 8 + 256,
        min_frequency=options.min_frequency,
        limit_alphabet=options.vocab_size - len(options.special),
        show_progress=False,
    )
    run_trainer(bpe, trainer, texts, False)
    ids = bpe.get_vocab()
    learned = [token for token in sorted(ids, key=lambda token: ids[token]) if token != SPACE]
    characters = [token for token in learned if len(token) == 1]
    # Punctuation and Chinese characters are words by themselves and never continue one.
    inner = [c for c in characters if len(words.pre_tokenize_str(normalizer.normalize_str("a" + c))) == 1]
    merged = [
        token.removeprefix(SPACE) if token.startswith(SPACE) else CONTINUATION_PREFIX + token
        for token in learned
        if len(token) > 1
    ]
    tokens = list(dict.fromkeys([*options.special, *characters, *(CONTINUATION_PREFIX + c for c in inner), *merged]))
    vocabulary = {token: token_id for token_id, token in enumerate(tokens[: options.vocab_size])}
    backend = Backend(models.WordPiece(vocabulary, unk_token=options.unk))
    backend.normalizer = normalizer
    backend.pre_tokenizer = words
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION_PREFIX)
    return backend


def train_word(texts: Iterator[str], options: TrainerOptions) -> Backend:
    """A vocabulary of words."""
    backend = Backend(models.WordLevel(unk_token=options.unk))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return run_trainer(backend, trainers.WordLevelTrainer(**options.trainer_kwargs), texts, options.lowercase)


def make_hash(texts: Iterator[str], options: TrainerOptions) -> Backend:
    """One token for each word between spaces, the same for all words: a front end reads their hashed features."""
    tokens = [*options.special, ANY_WORD]
    backend = Backend(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=ANY_WORD))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def train_char(texts: Iterator[str], options: TrainerOptions) -> Backend:
    """A vocabulary of characters."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.lower() if options.lowercase else text)
    by_frequency = sorted(counts, key=lambda character: (-counts[character], character))
    tokens = list(dict.fromkeys([*options.special, *by_frequency]))[: options.vocab_size]
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, [], unk_token=options.unk))
    backend.normalizer = normalizers.Lowercase() if options.lowercase else None
    backend.decoder = decoders.Fuse()
    return backend


def make_byte(texts: Iterator[str], options: TrainerOptions) -> Backend:
    """A vocabulary of the 256 bytes."""
    tokens = [*options.special, *sorted(BYTE_OF_CHAR, key=lambda character: BYTE_OF_CHAR[character])]
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.normalizer = normalizers.Lowercase() if options.lowercase else None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def make_special(texts: Iterator[str], options: TrainerOptions) -> Backend:
    """A vocabulary of special tokens."""
    return Backend(models.BPE({token: i for i, token in enumerate(options.special)}, []))


BYTE_BPE = TokenizerKind(train_byte_bpe, is_byte_level=True)
BPE = TokenizerKind(train_bpe)
UNIGRAM = TokenizerKind(train_unigram)
WORDPIECE = TokenizerKind(train_wordpiece)
WORD = TokenizerKind(train_word)
CHAR = TokenizerKind(train_char)
BYTE = TokenizerKind(make_byte, is_byte_level=True)
SPECIAL = TokenizerKind(make_special, reads_texts=False)
HASH = TokenizerKind(make_hash, reads_texts=False)


def use_sentencepiece_spacing(backend: Backend) -> None:
    """Treat spaces as SentencePiece does: a run of white space becomes one "▁", which belongs to the word after it."""
    collapse = normalizers.Replace(Regex(r"\s+"), " ")  # before Strip: cheaper in this order
    backend.normalizer = normalizers.Sequence([collapse, normalizers.Strip()])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()


def run_trainer(backend: Backend, trainer: Any, texts: Iterator[str], lowercase: bool) -> Backend:
    """Run one of the library's trainers over the texts."""
    if lowercase:
        steps = [normalizers.Lowercase()]
        backend.normalizer = normalizers.Sequence([*steps, backend.normalizer] if backend.normalizer else steps)
    backend.train_from_iterator(texts, trainer)
    return backend
