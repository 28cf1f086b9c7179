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
from qkv.text import folder as folders
from qkv.text import roles as role_table
from qkv.text import train as training
from qkv.text.files import write
from qkv.text.marian import Side
from qkv.text.reader import plain_reader
from qkv.text.roles import Roles
from qkv.text.source import check_text
from qkv.text.stream import Plan, StreamDecoder

# Part of every fingerprint: raise it when the ids of the same text from the same file change.
ENCODING_VERSION = 1


class Tokenizer:
    """Text to ids and back.

    >>> tokenizer = Tokenizer.train("byte", iter([]), size=260, roles=["pad", "end"], template="end")
    >>> tokenizer.encode("hé")
    [106, 197, 171, 1]
    >>> tokenizer.decode([106, 197, 171, 1])
    'hé'
    """

    backend: Backend  # what decodes and is saved; it reads special tokens' spellings as special tokens
    roles: Roles
    target: "Tokenizer"  # for the target texts of pairs and for what a model writes: itself, but for Marian and mBART
    config: dict[str, Any]  # the folder's tokenizer_config.json; carried along, so that nothing in it is lost

    def __init__(
        self,
        backend: Backend,
        config: Mapping[str, Any] | None = None,
        roles: Roles | None = None,
        *,
        side: Side | None = None,
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
        self.roles = roles if roles is not None else role_table.find(backend, self.config)
        self.target = target if target is not None else self
        self._parser = backend if side is None else side.reading
        self._reader = plain_reader(self._parser)
        self._ids = None if side is None else side.ids  # from the parser's ids to the vocabulary's
        self._files = dict(files or {})

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes: all but the reader, whose switch against special tokens would not travel."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_reader", "_stream_plan")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reader = plain_reader(self._parser)

    # ---------------------------------------------------------------- text to ids

    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """The ids of a text, or of two laid out as the model's template lays a pair.

        `special=True` adds what the template adds. The spelling of a special token inside the text is ordinary text
        unless `parse_special=True`: ask for it where the text is a prompt of your own ("Paris is [MASK].", a chat
        template), never for data.
        """
        return self._numbers(self._encode(text, pair, special, parse_special).ids)

    def encode_typed(
        self, text: str, pair: str | None = None, *, parse_special: bool = False
    ) -> tuple[list[int], list[int]]:
        """The ids with the template, and beside each its sentence type (0 for the first text, 1 for BERT's second)."""
        encoding = self._encode(text, pair, True, parse_special)
        return self._numbers(encoding.ids), encoding.type_ids

    def encode_batch(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """The ids of many texts at once, on all cores."""
        texts = list(texts)
        if not {str}.issuperset(map(type, texts)):  # the backend would take a tuple for a pair
            for number, text in enumerate(texts):
                check_text(text, f"text {number} of the batch")
        try:
            encodings = self._reader.encode_batch_fast(texts, add_special_tokens=special)
        except (TypeError, ValueError):
            for number, text in enumerate(texts):
                check_text(text, f"text {number} of the batch")
            raise
        if self._ids is None:
            return [encoding.ids for encoding in encodings]
        return [self._numbers(encoding.ids) for encoding in encodings]

    def encode_offsets(self, text: str, *, special: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids, and beside each the characters of `text` that it stands for, as (first, one past the last)."""
        try:
            encoding = self._reader.encode(text, add_special_tokens=special)
        except (TypeError, ValueError):
            check_text(text, "the text")
            raise
        return self._numbers(encoding.ids), encoding.offsets

    def _numbers(self, ids: list[int]) -> list[int]:
        return ids if self._ids is None else [self._ids[number] for number in ids]

    def _encode(self, text: str, pair: str | None, special: bool, parse_special: bool) -> Any:
        if not isinstance(text, str):  # the backend would take a list for a pair
            check_text(text, "the text")
        source = self._parser if parse_special else self._reader
        try:  # the batch call, though for one, because it does not track offsets
            return source.encode_batch_fast([text if pair is None else (text, pair)], add_special_tokens=special)[0]
        except (TypeError, ValueError):
            check_text(text, "the text")
            if pair is not None:
                check_text(pair, "the second text")
            raise

    # ---------------------------------------------------------------- ids to text

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of the ids (a list, an array or a tensor); an id beyond the vocabulary has no text."""
        numbers = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        try:
            return self.backend.decode(numbers, skip_special_tokens=skip_special)
        except OverflowError:
            wrong = next(number for number in numbers if not 0 <= number < 2**32)
            raise UsageError(f"{wrong} is not a token id: ids are counted from 0") from None

    def stream(self, *, skip_special: bool = True) -> StreamDecoder:
        """A decoder that takes ids one by one and gives text as soon as it is certain.

        >>> tokenizer = Tokenizer.train("byte", iter([]), size=259)
        >>> stream = tokenizer.stream()
        >>> [stream.push(number) for number in tokenizer.encode("hé", special=False)] + [stream.finish()]
        ['h', '', 'é', '']
        """
        return StreamDecoder(self.backend, skip_special, self._stream_plan)

    @cached_property
    def _stream_plan(self) -> Plan:
        return Plan.of(self.backend)

    # ---------------------------------------------------------------- what it holds

    @cached_property
    def size(self) -> int:
        """How many ids there are: the largest one plus one. A model's embedding needs at least so many rows."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens, those without a role included."""
        return frozenset(n for n, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides the ids: the same tokenizer has the same one on any machine."""
        parts = {"encoding": ENCODING_VERSION, "roles": role_table.table(self.roles), "ids": self._ids}
        parts["file"] = json.loads(self.backend.to_str())
        if self._parser is not self.backend:
            parts["reading"] = json.loads(self._parser.to_str())
        text = json.dumps(stable(parts), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def token(self, number: int) -> str | None:
        """The vocabulary's own spelling of an id, None where it has none."""
        return self.backend.id_to_token(number)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        known = {role: number for role, number in role_table.table(self.roles).items() if isinstance(number, int)}
        listed = [f"{role}={number}" for role, number in known.items()]
        listed += [f"{len(self.roles.sentinels)} sentinels"] if self.roles.sentinels else []
        return f"Tokenizer({type(self.backend.model).__name__}, size={self.size}, {', '.join(listed)})"

    # ---------------------------------------------------------------- files

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`: both we and transformers read the same roles back."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        config |= self.config | role_table.write(self.roles, self.backend, self.config)
        for name, data in (self._files or {folders.TOKENIZER: self.backend.to_str(pretty=True).encode()}).items():
            write(path / name, data)
        write(path / folders.CONFIG, (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Read a `tokenizer.json`, or a folder that holds one or the older files (see `qkv.text.folder`)."""
        parts = folders.load(Path(path))
        if parts.paired is not None:
            target = cls.of_side(parts.paired.target, parts)
            return cls.of_side(parts.paired.source, parts, target)
        roles = role_table.find(parts.backend, parts.config, parts.model_config)
        if parts.target is not None:
            return cls(parts.backend, parts.config, roles, target=cls(parts.target, parts.config, roles))
        return cls(parts.backend, parts.config, roles)

    @classmethod
    def of_side(cls, side: Side, parts: folders.Parts, target: "Tokenizer | None" = None) -> "Tokenizer":
        """One side of Marian's pair of tokenizers."""
        roles = role_table.find(side.vocabulary, parts.config, parts.model_config)
        files = parts.paired.files if parts.paired is not None else None
        return cls(side.vocabulary, parts.config, roles, side=side, target=target, files=files)

    @classmethod
    def train(
        cls,
        kind: str,
        source: training.Source,
        size: int,
        *,
        roles: Iterable[str] | Mapping[str, str] | None = None,
        sentinels: int = 0,
        template: str = "none",
        lowercase: bool = False,
        min_count: int = 2,
        progress: training.Progress | None = None,
    ) -> "Tokenizer":
        """Train a tokenizer of at most `size` ids; `qkv.text.train` describes the kinds and the options.

        `source` is a file, or a list of files; any other iterable is the text itself, string by string.

        >>> tokenizer = Tokenizer.train("word", iter(["the cat sat on the mat the end"]), 20, min_count=1)
        >>> tokenizer.decode(tokenizer.encode("the cat"))
        'the cat'
        """
        backend, found = training.train(
            kind,
            source,
            size,
            roles=roles,
            sentinels=sentinels,
            template=template,
            lowercase=lowercase,
            min_count=min_count,
            progress=progress,
        )
        return cls(backend, None, found)


def stable(value: Any) -> Any:
    """A JSON value without what varies between machines: null entries, which come and go between versions of the
    library, and the last digits of numbers, which its own reading and writing does not keep."""
    if isinstance(value, dict):
        return {key: stable(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, float):
        return struct.unpack("f", struct.pack("f", value))[0]
    return [stable(inner) for inner in value] if isinstance(value, list | tuple) else value
