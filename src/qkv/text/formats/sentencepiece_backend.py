"""A SentencePiece model as a `tokenizers` backend that gives the same ids."""

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from qkv.errors import QkvError
from qkv.text.formats.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
)

UNUSED_TOKEN_FORMAT = "\U0010ffff\U0010fffe{}\U0010ffff\U0010fffe"
"""The name of a piece that no text may have: its id between Unicode noncharacters."""


def build_backend(
    model: SentencePieceModel,
    *,
    pieces: Sequence[Piece] | None = None,
    pre_normalizers: Sequence[normalizers.Normalizer] = (),
) -> Backend:
    """Build the backend of a SentencePiece model.

    `pieces`, in the order of ids, replaces the model's own list for a family with another layout. `pre_normalizers`
    run before SentencePiece's normalizer (lower case, for example).
    """
    pieces = list(model.pieces if pieces is None else pieces)
    if model.treat_whitespace_as_suffix or not model.escape_whitespaces:
        raise QkvError(
            "a SentencePiece model that puts spaces after words, or drops them, is not supported; use a tokenizer.json "
            "of this model if there is one"
        )
    if model.model_type == UNIGRAM:
        backend = Backend(unigram_model(pieces, model.byte_fallback))
    elif model.model_type == BPE:
        backend = Backend(bpe_model(pieces, model.byte_fallback))
    else:
        raise QkvError("a SentencePiece model of the type word or char is not supported; only unigram and bpe are")
    backend.normalizer = normalizers.Sequence([*pre_normalizers, *normalizer_steps(model)])
    splits: list[pre_tokenizers.PreTokenizer] = []
    if model.model_type == UNIGRAM and any(piece.piece_type == BYTE for piece in pieces):
        # "<0x41>" in a text is six characters. Unless it is split, the model would match the byte piece of that name.
        splits.append(pre_tokenizers.Split(Regex("<0x(?=[0-9A-Fa-f]{2}>)"), "isolated"))
    if pieces_stay_within_words(pieces):
        splits.append(pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=True))
    if splits:
        backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", int(model.add_dummy_prefix), 0)])
    backend.add_special_tokens(
        [AddedToken(p.text, special=True, normalized=False) for p in pieces if p.piece_type in (CONTROL, UNKNOWN)]
    )
    if model.model_type == BPE:  # SentencePiece's BPE extracts these from the text before it merges
        backend.add_tokens([AddedToken(p.text, normalized=False) for p in pieces if p.piece_type == USER_DEFINED])
    return backend


def unigram_model(pieces: list[Piece], byte_fallback: bool) -> models.Unigram:
    """A Unigram model. A user-defined piece always wins: SentencePiece scores it above any split of its text."""
    best = max((piece.score for piece in pieces if piece.piece_type == NORMAL), default=0.0)
    scores = {piece.text: len(piece.text) * best - 0.1 for piece in pieces if piece.piece_type == USER_DEFINED}
    unk_id = next(i for i, piece in enumerate(pieces) if piece.piece_type == UNKNOWN)
    entries = [
        (
            UNUSED_TOKEN_FORMAT.format(i) if piece.piece_type == UNUSED else piece.text,
            scores.get(piece.text, piece.score),
        )
        for i, piece in enumerate(pieces)
    ]
    return models.Unigram(entries, unk_id, byte_fallback)


def bpe_model(pieces: list[Piece], byte_fallback: bool) -> models.BPE:
    """A BPE model. SentencePiece merges the pair with the best-scoring result: the same as merges sorted by score."""
    ids = {piece.text: i for i, piece in enumerate(pieces)}
    mergeable = {piece.text for piece in pieces if piece.piece_type == NORMAL}
    merges: list[tuple[str, str]] = []
    for piece in sorted((p for p in pieces if p.piece_type == NORMAL), key=lambda p: (-p.score, ids[p.text])):
        pairs = [(piece.text[:i], piece.text[i:]) for i in range(1, len(piece.text))]
        merges += sorted((p for p in pairs if mergeable.issuperset(p)), key=lambda p: (ids[p[0]], ids[p[1]]))
    unk = next(piece.text for piece in pieces if piece.piece_type == UNKNOWN)
    return models.BPE(ids, merges, unk_token=unk, fuse_unk=True, byte_fallback=byte_fallback)


def normalizer_steps(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    """SentencePiece's normalizer: its character map, then white space, then the space before the text."""
    steps: list[normalizers.Normalizer] = []
    if model.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.precompiled_charsmap))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(f"^ +|[ {SPACE}]+$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    return steps


def pieces_stay_within_words(pieces: list[Piece]) -> bool:
    """Whether no piece spans two words. Then words can be encoded one by one, and cached."""
    texts = [piece.text for piece in pieces if piece.piece_type in (NORMAL, USER_DEFINED)]
    return SPACE in texts and not any(SPACE in text[1:] for text in texts)
