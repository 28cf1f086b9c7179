"""Marian's tokenizer: a SentencePiece model for each language, and a vocabulary with other ids than theirs.

A text is split by the SentencePiece model of its language, and each piece is looked up in `vocab.json` (or, for the
target language, in `target_vocab.json` if the vocabularies are separate). So each side has a backend that encodes into
SentencePiece's ids, a table from these ids to the vocabulary's ids, and a second backend with the vocabulary for
decoding.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from qkv.errors import QkvError
from qkv.files import read_bytes
from qkv.text.formats import legacy, sentencepiece
from qkv.text.formats.sentencepiece import SPACE
from qkv.text.formats.sentencepiece_backend import build_backend
from qkv.text.formats.vocabulary import read_vocabulary
from qkv.text.special_tokens import make_post_processor

MARIAN_FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")


@dataclass(frozen=True)
class MarianSide:
    """The tokenizer of one language."""

    subword_backend: Backend  # encodes, into the ids of the SentencePiece model
    piece_to_vocab_id: list[int]  # id of the SentencePiece model → id of the vocabulary
    vocab_backend: Backend  # decodes


@dataclass(frozen=True)
class MarianTokenizers:
    """The tokenizers of both languages, and the bytes of their files, which are saved unchanged."""

    source: MarianSide
    target: MarianSide
    files: dict[str, bytes]


def load_marian(folder: Path, config: dict[str, Any]) -> MarianTokenizers:
    """Read Marian's files."""
    names = [name for name in MARIAN_FILES if (folder / name).is_file()]
    vocab = folder / "vocab.json"
    separate = bool(config.get("separate_vocabs")) and "target_vocab.json" in names
    target_vocab = folder / "target_vocab.json" if separate else vocab
    return MarianTokenizers(
        load_side(folder / "source.spm", vocab, config),
        load_side(folder / "target.spm", target_vocab, config),
        {name: read_bytes(folder / name) for name in names},
    )


def load_side(model_file: Path, vocab_file: Path, config: dict[str, Any]) -> MarianSide:
    """Read the tokenizer of one language from its SentencePiece model and its vocabulary."""
    ids = read_vocabulary(vocab_file)
    special = [text for role in ("unk", "eos", "pad") if (text := legacy.special_token_text(config, role))]
    if missing := [text for text in special if text not in ids]:
        raise QkvError(f"{vocab_file}: the special token {missing[0]!r} is missing; this file is of another tokenizer")
    unk, eos = special[0], special[1]
    special_tokens = [AddedToken(text, special=True, normalized=False) for text in special]

    vocab_backend = Backend(models.WordLevel(ids, unk_token=unk))
    vocab_backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    vocab_backend.add_special_tokens(special_tokens)

    subword_backend = build_backend(sentencepiece.read_model(model_file))
    subword_backend.add_special_tokens(special_tokens)
    # In multilingual models the first word is the target language, ">>fra<<", which SentencePiece must not split.
    codes = sorted(text for text in ids if text.startswith(">>") and text.endswith("<<"))
    subword_backend.add_tokens([AddedToken(text, lstrip=True, rstrip=True, normalized=False) for text in codes])
    piece_ids = subword_backend.get_vocab(with_added_tokens=True)
    subword_backend.post_processor = make_post_processor("eos", {"eos": (eos, piece_ids[eos])})
    piece_to_vocab_id = [ids[unk]] * (max(piece_ids.values()) + 1)
    for piece, piece_id in piece_ids.items():
        piece_to_vocab_id[piece_id] = ids.get(piece, ids[unk])
    return MarianSide(subword_backend, piece_to_vocab_id, vocab_backend)
