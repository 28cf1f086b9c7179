"""The tokenizer: text ⇄ token ids, with special tokens by role, built on the Hugging Face `tokenizers` library.

It never truncates, pads or samples: truncation, padding and BPE dropout of a loaded file are switched off.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Backend

from qkv.errors import QkvError, UsageError, shorten
from qkv.files import write_atomically
from qkv.progress import OnProgress
from qkv.text.formats.folder import CONFIG_FILE, TOKENIZER_FILE, TokenizerFiles, load_tokenizer_files
from qkv.text.special_tokens import SpecialTokens, find_special_tokens, make_literal_backend, special_tokens_config
from qkv.text.stream_decoder import StreamDecoder, StreamPlan
from qkv.text.training_text import check_text
from qkv.text.word_features import ANY_WORD

if TYPE_CHECKING:
    from qkv.text.formats.marian import MarianSide
    from qkv.text.train import TextSource

SYMBOLS_KEY = "training_symbols"
"""In tokenizer_config.json: the symbols and punctuation marks of the text on which the tokenizer was trained."""
ENCODING_VERSION = 1
"""Part of every fingerprint. Raise it when the same file gives other ids for the same text."""


class Tokenizer:
    """Text to token ids and back.

    >>> tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad", "eos"], template="eos")
    >>> tokenizer.encode("hé")
    [106, 197, 171, 1]
    >>> tokenizer.decode([106, 197, 171, 1])
    'hé'
    """

    backend: Backend  # decodes, and is saved; it parses the spellings of special tokens
    special_tokens: SpecialTokens
    target: "Tokenizer"  # for target texts and generated text: the tokenizer itself, except for Marian and mBART
    config: dict[str, Any]  # the folder's tokenizer_config.json, kept so that saving loses nothing

    def __init__(
        self,
        backend: Backend,
        config: Mapping[str, Any] | None = None,
        special_tokens: SpecialTokens | None = None,
        *,
        side: "MarianSide | None" = None,
        target: "Tokenizer | None" = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Usually called by `load` or `train`. For Marian, `side` encodes texts, and `files` are saved as they are."""
        backend.no_truncation()
        backend.no_padding()
        if getattr(backend.model, "dropout", None):
            backend.model.dropout = None
        self.backend = backend
        self.config = dict(config or {})
        self.special_tokens = special_tokens or find_special_tokens(backend, self.config)
        self.target = target if target is not None else self
        self._parser = backend if side is None else side.subword_backend
        self._literal = make_literal_backend(self._parser)
        # Marian: id in the SentencePiece model → id in the vocabulary
        self._piece_to_vocab_id = None if side is None else side.piece_to_vocab_id
        self._files = dict(files or {})

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the literal backend, because pickling would lose its flag `encode_special_tokens`."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_literal", "_stream_plan")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._literal = make_literal_backend(self._parser)

    # ---------------------------------------------------------------- text to ids

    def encode(
        self, text: str, pair: str | None = None, *, add_special_tokens: bool = True, parse_special_tokens: bool = False
    ) -> list[int]:
        """The ids of a text, or of a pair of texts.

        `add_special_tokens=True` adds the special tokens of the template. The spelling of a special token inside the
        text is ordinary text unless `parse_special_tokens=True`: use that for your own prompts ("Paris is [MASK].", a
        chat template), never for data.
        """
        return self._to_vocab_ids(self._encode(text, pair, add_special_tokens, parse_special_tokens).ids)

    def encode_with_token_types(
        self, text: str, pair: str | None = None, *, parse_special_tokens: bool = False
    ) -> tuple[list[int], list[int]]:
        """The ids with the template's special tokens, and their token type ids (1 for the second text in BERT)."""
        encoding = self._encode(text, pair, True, parse_special_tokens)
        return self._to_vocab_ids(encoding.ids), encoding.type_ids

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[list[int]]:
        """The ids of many texts, encoded in parallel on all cores."""
        texts = list(texts)
        if not all(type(text) is str for text in texts):  # the backend would take a tuple for a pair
            self._check_batch(texts)
        try:
            encodings = self._literal.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        except BaseException as error:
            self._check_batch(texts)
            raise _encoding_error(error) from None
        if self._piece_to_vocab_id is None:
            return [encoding.ids for encoding in encodings]
        return [self._to_vocab_ids(encoding.ids) for encoding in encodings]

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids, and for each the characters of `text` that it covers, as (start, end)."""
        try:
            encoding = self._literal.encode(text, add_special_tokens=add_special_tokens)
        except BaseException as error:
            check_text(text, "the text")
            raise _encoding_error(error) from None
        return self._to_vocab_ids(encoding.ids), encoding.offsets

    @staticmethod
    def _check_batch(texts: Sequence[Any]) -> None:
        for number, text in enumerate(texts, 1):
            check_text(text, f"text {number} of the batch")

    def _to_vocab_ids(self, ids: list[int]) -> list[int]:
        return ids if self._piece_to_vocab_id is None else [self._piece_to_vocab_id[i] for i in ids]

    def _encode(self, text: str, pair: str | None, add_special_tokens: bool, parse_special_tokens: bool) -> Any:
        if not isinstance(text, str):  # the backend would take a list for a pair
            check_text(text, "the text")
        backend = self._parser if parse_special_tokens else self._literal
        texts = [text if pair is None else (text, pair)]
        try:  # a batch of one, because the batch call does not compute offsets
            return backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)[0]
        except BaseException as error:
            check_text(text, "the text")
            if pair is not None:
                check_text(pair, "the second text")
            raise _encoding_error(error) from None

    # ---------------------------------------------------------------- ids to text

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids (a list, an array or a tensor). An id outside the vocabulary has no text."""
        token_ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        try:
            return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        except OverflowError:
            wrong = next(i for i in token_ids if not 0 <= i < 2**32)
            raise UsageError(
                f"{wrong} is not a token id: ids are numbers from 0 to the size of the vocabulary"
            ) from None

    def stream(self, *, skip_special_tokens: bool = True) -> StreamDecoder:
        """A decoder that takes ids one by one and returns text as soon as later ids cannot change it.

        >>> tokenizer = Tokenizer.train("byte", iter([]), vocab_size=259)
        >>> stream = tokenizer.stream()
        >>> [stream.push(i) for i in tokenizer.encode("hé", add_special_tokens=False)] + [stream.finish()]
        ['h', '', 'é', '']
        """
        return StreamDecoder(self.backend, skip_special_tokens, self._stream_plan)

    @cached_property
    def _stream_plan(self) -> StreamPlan:
        return StreamPlan.for_backend(self.backend)

    # ---------------------------------------------------------------- what it holds

    @cached_property
    def vocab_size(self) -> int:
        """The largest id plus one. A model's embedding needs at least this many rows."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens, with or without a role."""
        return frozenset(i for i, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @property
    def hashes_words(self) -> bool:
        """Whether all words have the same token, because a front end reads their hashed features."""
        return getattr(self.backend.model, "unk_token", None) == ANY_WORD

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that affects the ids. It is the same on every machine."""
        parts = {"encoding": ENCODING_VERSION, "roles": asdict(self.special_tokens), "ids": self._piece_to_vocab_id}
        parts["file"] = json.loads(self.backend.to_str())
        if self._parser is not self.backend:
            parts["reading"] = json.loads(self._parser.to_str())
        text = json.dumps(drop_unstable_values(parts), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @cached_property
    def reads_residues(self) -> bool:
        """Whether each token is a residue of a protein."""
        from qkv.text.residues import is_residue_vocabulary

        return is_residue_vocabulary(self.backend.get_vocab(with_added_tokens=True))

    def id_to_token(self, token_id: int) -> str | None:
        """The token of an id as the vocabulary spells it; None for an unknown id."""
        return self.backend.id_to_token(token_id)

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        listed = [f"{role}={i}" for role, i in asdict(self.special_tokens).items() if isinstance(i, int)]
        listed += [f"{len(self.special_tokens.sentinels)} sentinels"] if self.special_tokens.sentinels else []
        return f"Tokenizer({type(self.backend.model).__name__}, vocab_size={self.vocab_size}, {', '.join(listed)})"

    # ---------------------------------------------------------------- files

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`. Transformers reads the same special tokens from them."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        config |= self.config | special_tokens_config(self.special_tokens, self.backend, self.config)
        for name, data in (self._files or {TOKENIZER_FILE: self.backend.to_str(pretty=True).encode()}).items():
            write_atomically(path / name, data)
        write_atomically(path / CONFIG_FILE, json.dumps(config, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Read a `tokenizer.json`, or a folder with one or with older files (see `qkv.text.formats.folder`)."""
        try:
            return cls._load(Path(path))
        except QkvError:
            raise
        except Exception as error:  # the library raises plain Exception
            reason = shorten(f"{type(error).__name__}: {error}", 300)
            raise QkvError(
                f"{path}: these tokenizer files cannot be used, because a value in them is missing, of the wrong type "
                f"or contradicts another ({reason}); fetch or save them again"
            ) from error

    @classmethod
    def _load(cls, path: Path) -> "Tokenizer":
        files = load_tokenizer_files(path)
        if files.marian_tokenizers is not None:
            target = cls.from_marian_side(files.marian_tokenizers.target, files)
            return cls.from_marian_side(files.marian_tokenizers.source, files, target)
        special_tokens = find_special_tokens(files.backend, files.config, files.model_config)
        if files.target_backend is None:
            tokenizer = cls(files.backend, files.config, special_tokens)
            for token_id in tokenizer.encode("", ""):  # the tokens that its template adds
                if tokenizer.backend.id_to_token(token_id) is None:
                    raise ValueError(f"its template adds the id {token_id}, which no token has")
            return tokenizer
        target = cls(files.target_backend, files.config, special_tokens)
        return cls(files.backend, files.config, special_tokens, target=target)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """The tokenizer in the metadata of a GGUF file (`qkv.text.formats.gguf`)."""
        from qkv.text.formats.gguf import build_gguf_tokenizer

        try:
            return cls(*build_gguf_tokenizer(metadata))
        except QkvError:
            raise
        except Exception as error:  # the library raises plain Exception
            reason = shorten(f"{type(error).__name__}: {error}", 300)
            raise QkvError(f"its tokenizer cannot be used ({reason}); fetch or convert the file again") from error

    @classmethod
    def from_marian_side(
        cls, side: "MarianSide", files: TokenizerFiles, target: "Tokenizer | None" = None
    ) -> "Tokenizer":
        """The tokenizer of the source or the target language of a Marian model."""
        special_tokens = find_special_tokens(side.vocab_backend, files.config, files.model_config)
        originals = files.marian_tokenizers.files if files.marian_tokenizers is not None else None
        return cls(side.vocab_backend, files.config, special_tokens, side=side, target=target, files=originals)

    @classmethod
    def for_proteins(cls) -> "Tokenizer":
        """The tokenizer of ESM-2: one token for each residue of a protein.

        >>> Tokenizer.for_proteins().encode("MKT")
        [0, 20, 15, 11, 2]
        """
        from qkv.text.formats.legacy import make_esm_backend

        return cls(*make_esm_backend())

    @classmethod
    def without_tokens(cls) -> "Tokenizer":
        """The tokenizer of a model that reads no texts.

        >>> Tokenizer.without_tokens().vocab_size
        0
        """
        return cls.train("special", iter(()), 0, special_tokens=())

    @classmethod
    def train(
        cls,
        kind: str,
        source: "TextSource",
        vocab_size: int,
        *,
        special_tokens: Iterable[str] | Mapping[str, str] | None = None,
        num_sentinels: int = 0,
        template: str = "none",
        lowercase: bool = False,
        min_frequency: int = 2,
        progress: OnProgress | None = None,
    ) -> "Tokenizer":
        """Train a tokenizer of at most `vocab_size` tokens; `qkv.text.train` describes the kinds and the options.

        `source` is a file, or a list of files; any other iterable yields the training texts themselves.

        >>> tokenizer = Tokenizer.train("word", iter(["the cat sat on the mat the end"]), 20, min_frequency=1)
        >>> tokenizer.decode(tokenizer.encode("the cat"))
        'the cat'
        """
        from qkv.text.train import train_backend

        backend, created = train_backend(
            kind,
            source,
            vocab_size,
            special_tokens=special_tokens,
            num_sentinels=num_sentinels,
            template=template,
            lowercase=lowercase,
            min_frequency=min_frequency,
            progress=progress,
        )
        return cls(backend, None, created)


def _encoding_error(error: BaseException) -> BaseException:
    """The error for a text that the library fails to encode: it raises plain Exception, and its panics."""
    if type(error) is not Exception and type(error).__name__ != "PanicException":
        return error
    return QkvError(
        f"the tokenizer cannot encode this text ({shorten(str(error))}), because its parts do not belong together or "
        "it has no token for unknown words; check the files of the tokenizer"
    )


def drop_unstable_values(value: Any) -> Any:
    """A JSON value without the parts that vary between machines.

    That is: null entries, which differ between versions of the library, and the last digits of numbers, which the
    library does not preserve when it writes and reads them.
    """
    if isinstance(value, dict):
        return {key: drop_unstable_values(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, float):
        return struct.unpack("f", struct.pack("f", value))[0]
    return [drop_unstable_values(inner) for inner in value] if isinstance(value, list | tuple) else value
