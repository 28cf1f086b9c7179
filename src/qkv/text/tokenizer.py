"""The tokenizer: text ⇄ ids, with special tokens by role, on the Hugging Face `tokenizers` library.

Nothing is cut, padded or drawn at random here: a loaded file's truncation, padding and BPE dropout are switched off.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from qkv.errors import UsageError
from qkv.progress import OnProgress
from qkv.text import special_tokens as role_table
from qkv.text import train as training
from qkv.text.files import write
from qkv.text.formats import folder as folders
from qkv.text.formats.marian import MarianSide
from qkv.text.literal import make_literal_backend
from qkv.text.special_tokens import SpecialTokens
from qkv.text.stream_decoder import StreamDecoder, StreamPlan
from qkv.text.training_text import check_text

# Part of every fingerprint: raise it when the ids of the same text from the same file change.
ENCODING_VERSION = 1


class Tokenizer:
    """Text to ids and back.

    >>> tokenizer = Tokenizer.train("byte", iter([]), vocab_size=260, special_tokens=["pad", "eos"], template="eos")
    >>> tokenizer.encode("hé")
    [106, 197, 171, 1]
    >>> tokenizer.decode([106, 197, 171, 1])
    'hé'
    """

    backend: Backend  # what decodes and is saved; it reads special tokens' spellings as special tokens
    special_tokens: SpecialTokens
    target: "Tokenizer"  # for the target texts of pairs and for what a model writes: itself, but for Marian and mBART
    config: dict[str, Any]  # the folder's tokenizer_config.json; carried along, so that nothing in it is lost

    def __init__(
        self,
        backend: Backend,
        config: Mapping[str, Any] | None = None,
        special_tokens: SpecialTokens | None = None,
        *,
        side: MarianSide | None = None,
        target: "Tokenizer | None" = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Usually made by `load` or `train`. For Marian, `side` cuts texts in the place of `backend`, and `files` are
        saved in the place of tokenizer.json."""
        backend.no_truncation()
        backend.no_padding()
        if getattr(backend.model, "dropout", None):
            backend.model.dropout = None
        self.backend = backend
        self.config = dict(config or {})
        self.special_tokens = (
            special_tokens if special_tokens is not None else role_table.find_special_tokens(backend, self.config)
        )
        self.target = target if target is not None else self
        self._parser = backend if side is None else side.subword_backend
        self._literal = make_literal_backend(self._parser)
        self._vocab_ids = None if side is None else side.vocab_ids  # from the parser's ids to the vocabulary's
        self._files = dict(files or {})

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes: all but the reader, whose switch against special tokens would not travel."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_literal", "_stream_plan")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._literal = make_literal_backend(self._parser)

    # ---------------------------------------------------------------- text to ids

    def encode(
        self, text: str, pair: str | None = None, *, add_special_tokens: bool = True, parse_special_tokens: bool = False
    ) -> list[int]:
        """The ids of a text, or of two laid out as the model's template lays a pair.

        `add_special_tokens=True` adds what the template adds. The spelling of a special token inside the text is ordinary text
        unless `parse_special_tokens=True`: ask for it where the text is a prompt of your own ("Paris is [MASK].", a chat
        template), never for data.
        """
        return self._to_vocab_ids(self._encode(text, pair, add_special_tokens, parse_special_tokens).ids)

    def encode_with_token_types(
        self, text: str, pair: str | None = None, *, parse_special_tokens: bool = False
    ) -> tuple[list[int], list[int]]:
        """The ids with the template, and beside each its sentence type (0 for the first text, 1 for BERT's second)."""
        encoding = self._encode(text, pair, True, parse_special_tokens)
        return self._to_vocab_ids(encoding.ids), encoding.type_ids

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = False) -> list[list[int]]:
        """The ids of many texts at once, on all cores."""
        texts = list(texts)
        if not {str}.issuperset(map(type, texts)):  # the backend would take a tuple for a pair
            for number, text in enumerate(texts):
                check_text(text, f"text {number} of the batch")
        try:
            encodings = self._literal.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        except (TypeError, ValueError):
            for number, text in enumerate(texts):
                check_text(text, f"text {number} of the batch")
            raise
        if self._vocab_ids is None:
            return [encoding.ids for encoding in encodings]
        return [self._to_vocab_ids(encoding.ids) for encoding in encodings]

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids, and beside each the characters of `text` that it stands for, as (first, one past the last)."""
        try:
            encoding = self._literal.encode(text, add_special_tokens=add_special_tokens)
        except (TypeError, ValueError):
            check_text(text, "the text")
            raise
        return self._to_vocab_ids(encoding.ids), encoding.offsets

    def _to_vocab_ids(self, ids: list[int]) -> list[int]:
        return ids if self._vocab_ids is None else [self._vocab_ids[number] for number in ids]

    def _encode(self, text: str, pair: str | None, add_special_tokens: bool, parse_special_tokens: bool) -> Any:
        if not isinstance(text, str):  # the backend would take a list for a pair
            check_text(text, "the text")
        source = self._parser if parse_special_tokens else self._literal
        try:  # the batch call, though for one, because it does not track offsets
            return source.encode_batch_fast(
                [text if pair is None else (text, pair)], add_special_tokens=add_special_tokens
            )[0]
        except (TypeError, ValueError):
            check_text(text, "the text")
            if pair is not None:
                check_text(pair, "the second text")
            raise

    # ---------------------------------------------------------------- ids to text

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of the ids (a list, an array or a tensor); an id beyond the vocabulary has no text."""
        numbers = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        try:
            return self.backend.decode(numbers, skip_special_tokens=skip_special_tokens)
        except OverflowError:
            wrong = next(number for number in numbers if not 0 <= number < 2**32)
            raise UsageError(f"{wrong} is not a token id: ids are counted from 0") from None

    def stream(self, *, skip_special_tokens: bool = True) -> StreamDecoder:
        """A decoder that takes ids one by one and gives text as soon as it is certain.

        >>> tokenizer = Tokenizer.train("byte", iter([]), vocab_size=259)
        >>> stream = tokenizer.stream()
        >>> [stream.push(number) for number in tokenizer.encode("hé", add_special_tokens=False)] + [stream.finish()]
        ['h', '', 'é', '']
        """
        return StreamDecoder(self.backend, skip_special_tokens, self._stream_plan)

    @cached_property
    def _stream_plan(self) -> StreamPlan:
        return StreamPlan.for_backend(self.backend)

    # ---------------------------------------------------------------- what it holds

    @cached_property
    def vocab_size(self) -> int:
        """How many ids there are: the largest one plus one. A model's embedding needs at least so many rows."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens, those without a role included."""
        return frozenset(n for n, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides the ids: the same tokenizer has the same one on any machine."""
        parts = {"encoding": ENCODING_VERSION, "roles": role_table.table(self.special_tokens), "ids": self._vocab_ids}
        parts["file"] = json.loads(self.backend.to_str())
        if self._parser is not self.backend:
            parts["reading"] = json.loads(self._parser.to_str())
        text = json.dumps(drop_unstable_values(parts), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of an id, None where it has none."""
        return self.backend.id_to_token(token_id)

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        known = {
            role: number for role, number in role_table.table(self.special_tokens).items() if isinstance(number, int)
        }
        listed = [f"{role}={number}" for role, number in known.items()]
        listed += [f"{len(self.special_tokens.sentinels)} sentinels"] if self.special_tokens.sentinels else []
        return f"Tokenizer({type(self.backend.model).__name__}, size={self.vocab_size}, {', '.join(listed)})"

    # ---------------------------------------------------------------- files

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`: both we and transformers read the same roles back."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        config |= self.config | role_table.special_tokens_config(self.special_tokens, self.backend, self.config)
        for name, data in (self._files or {folders.TOKENIZER_FILE: self.backend.to_str(pretty=True).encode()}).items():
            write(path / name, data)
        write(path / folders.CONFIG_FILE, (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Read a `tokenizer.json`, or a folder that holds one or the older files (see `qkv.text.folder`)."""
        parts = folders.load_tokenizer_files(Path(path))
        if parts.marian_tokenizers is not None:
            target = cls.from_marian_side(parts.marian_tokenizers.target, parts)
            return cls.from_marian_side(parts.marian_tokenizers.source, parts, target)
        roles = role_table.find_special_tokens(parts.backend, parts.config, parts.model_config)
        if parts.target_backend is not None:
            return cls(parts.backend, parts.config, roles, target=cls(parts.target_backend, parts.config, roles))
        return cls(parts.backend, parts.config, roles)

    @classmethod
    def from_marian_side(
        cls, side: MarianSide, tokenizer_files: folders.TokenizerFiles, target: "Tokenizer | None" = None
    ) -> "Tokenizer":
        """One side of Marian's pair of tokenizers."""
        roles = role_table.find_special_tokens(side.vocab_backend, tokenizer_files.config, tokenizer_files.model_config)
        files = tokenizer_files.marian_tokenizers.files if tokenizer_files.marian_tokenizers is not None else None
        return cls(side.vocab_backend, tokenizer_files.config, roles, side=side, target=target, files=files)

    @classmethod
    def train(
        cls,
        kind: str,
        source: training.TextSource,
        vocab_size: int,
        *,
        special_tokens: Iterable[str] | Mapping[str, str] | None = None,
        num_sentinels: int = 0,
        template: str = "none",
        lowercase: bool = False,
        min_frequency: int = 2,
        progress: OnProgress | None = None,
    ) -> "Tokenizer":
        """Train a tokenizer of at most `vocab_size` ids; `qkv.text.train` describes the kinds and the options.

        `source` is a file, or a list of files; any other iterable is the text itself, string by string.

        >>> tokenizer = Tokenizer.train("word", iter(["the cat sat on the mat the end"]), 20, min_frequency=1)
        >>> tokenizer.decode(tokenizer.encode("the cat"))
        'the cat'
        """
        backend, found = training.train_backend(
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
        return cls(backend, None, found)


def drop_unstable_values(value: Any) -> Any:
    """A JSON value without what varies between machines: null entries, which come and go between versions of the
    library, and the last digits of numbers, which its own reading and writing does not keep."""
    if isinstance(value, dict):
        return {key: drop_unstable_values(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, float):
        return struct.unpack("f", struct.pack("f", value))[0]
    return [drop_unstable_values(inner) for inner in value] if isinstance(value, list | tuple) else value
