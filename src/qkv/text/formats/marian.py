"""Marian's tokenizer: two SentencePiece models, one for each side, over a vocabulary of ids that neither of them has.

A text is cut by its side's SentencePiece model, and each piece looked up in `vocab.json` (for the target side in
`target_vocab.json`, where the two sides have separate vocabularies). So a side is a backend that reads with ids
of its own, a table from those to the vocabulary's, and a second backend that only holds the vocabulary, for decoding.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from qkv.errors import QkvError
from qkv.text import templates
from qkv.text.formats import legacy, sentencepiece
from qkv.text.formats import sentencepiece_backend as pieces
from qkv.text.formats.sentencepiece import SPACE

MARIAN_FILES = ("source.spm", "target.spm", "vocab.json", "target_vocab.json")


@dataclass(frozen=True)
class MarianSide:
    """One language's half: reading texts, and the ids it reads them into."""

    subword_backend: Backend
    vocab_ids: list[int]  # the vocabulary's id of each of reading's ids
    vocab_backend: Backend  # decodes


@dataclass(frozen=True)
class MarianTokenizers:
    """Both halves, and the files they came from, which are saved again as they were."""

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
        {name: (folder / name).read_bytes() for name in names},
    )


def load_side(model_file: Path, vocab_file: Path, config: dict[str, Any]) -> MarianSide:
    """One half, from its SentencePiece model and its vocabulary."""
    table = legacy.read_vocabulary(vocab_file)
    special = [text for role in ("unk", "eos", "pad") if (text := legacy.special_token_text(config, role))]
    if missing := [text for text in special if text not in table]:
        raise QkvError(f"{vocab_file}: lacks the special token {missing[0]!r}; it does not belong to this tokenizer")
    unknown, end = special[0], special[1]

    vocabulary = Backend(models.WordLevel(table, unk_token=unknown))
    vocabulary.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    vocabulary.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])

    reading = pieces.build_backend(sentencepiece.read_model(model_file))
    reading.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    # Multilingual models take the wanted language as a first word, ">>fra<<", which SentencePiece must not cut up.
    codes = sorted(text for text in table if text.startswith(">>") and text.endswith("<<"))
    reading.add_tokens([AddedToken(text, lstrip=True, rstrip=True, normalized=False) for text in codes])
    own = reading.get_vocab(with_added_tokens=True)
    reading.post_processor = templates.make_post_processor("eos", {"eos": (end, own[end])})
    ids = [table[unknown]] * (max(own.values()) + 1)
    for token, number in own.items():
        ids[number] = table.get(token, table[unknown])
    return MarianSide(reading, ids, vocabulary)
