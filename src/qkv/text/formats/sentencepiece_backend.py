"""A SentencePiece model as a `tokenizers` backend: same pieces, normaliser, spaces and fallback, so the same ids."""

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
from qkv.text.literal import HIDDEN_TOKEN


def build_backend(
    model: SentencePieceModel,
    *,
    pieces: Sequence[Piece] | None = None,
    pre_normalizers: Sequence[normalizers.Normalizer] = (),
) -> Backend:
    """The backend of a SentencePiece model.

    `pieces` replaces the model's own list where a family lays its vocabulary out otherwise, in the order of ids.
    `before` is what the family does to the text ahead of SentencePiece (lower case, say).
    """
    pieces = list(model.pieces if pieces is None else pieces)
    if model.treat_whitespace_as_suffix or not model.escape_whitespaces:
        raise QkvError("this SentencePiece model writes spaces after words, or not at all, which qkv does not read")
    if model.model_type == UNIGRAM:
        backend = Backend(unigram_model(pieces, model.byte_fallback))
    elif model.model_type == BPE:
        backend = Backend(bpe_model(pieces, model.byte_fallback))
    else:
        raise QkvError("this SentencePiece model is of the word or character type, which qkv does not read")
    backend.normalizer = normalizers.Sequence([*pre_normalizers, *normalizer_steps(model)])
    cuts: list[pre_tokenizers.PreTokenizer] = []
    if model.model_type == UNIGRAM and any(piece.piece_type == BYTE for piece in pieces):
        # "<0x41>" in a text is six characters; uncut, the model would find the piece that stands for a byte.
        cuts.append(pre_tokenizers.Split(Regex("<0x(?=[0-9A-Fa-f]{2}>)"), "isolated"))
    if pieces_stay_within_words(pieces):
        cuts.append(pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=True))
    if cuts:
        backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", int(model.add_dummy_prefix), 0)])
    backend.add_special_tokens(
        [AddedToken(p.text, special=True, normalized=False) for p in pieces if p.piece_type in (CONTROL, UNKNOWN)]
    )
    if model.model_type == BPE:  # SentencePiece's BPE takes these out of the text before it merges
        backend.add_tokens([AddedToken(p.text, normalized=False) for p in pieces if p.piece_type == USER_DEFINED])
    return backend


def unigram_model(pieces: list[Piece], byte_fallback: bool) -> models.Unigram:
    """Pieces by score. A user-defined one always wins: SentencePiece scores it above all that its text could reach."""
    best = max((piece.score for piece in pieces if piece.piece_type == NORMAL), default=0.0)
    scores = {piece.text: len(piece.text) * best - 0.1 for piece in pieces if piece.piece_type == USER_DEFINED}
    unknown = next(number for number, piece in enumerate(pieces) if piece.piece_type == UNKNOWN)
    entries = [
        (HIDDEN_TOKEN.format(number) if piece.piece_type == UNUSED else piece.text, scores.get(piece.text, piece.score))
        for number, piece in enumerate(pieces)
    ]
    return models.Unigram(entries, unknown, byte_fallback)


def bpe_model(pieces: list[Piece], byte_fallback: bool) -> models.BPE:
    """SentencePiece merges the pair whose whole scores best: the same as a list of merges in the order of scores."""
    ids = {piece.text: number for number, piece in enumerate(pieces)}
    mergeable = {piece.text for piece in pieces if piece.piece_type == NORMAL}
    merges: list[tuple[str, str]] = []
    for piece in sorted((p for p in pieces if p.piece_type == NORMAL), key=lambda p: (-p.score, ids[p.text])):
        cuts = [(piece.text[:place], piece.text[place:]) for place in range(1, len(piece.text))]
        merges += sorted((c for c in cuts if mergeable.issuperset(c)), key=lambda c: (ids[c[0]], ids[c[1]]))
    unknown = next(piece.text for piece in pieces if piece.piece_type == UNKNOWN)
    return models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=byte_fallback)


def normalizer_steps(model: SentencePieceModel) -> list[normalizers.Normalizer]:
    """SentencePiece's normaliser: its table of characters, then spaces, then the space before the text."""
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
    """Whether no piece reaches from one word into the next: then words can be read one by one, and remembered."""
    texts = [piece.text for piece in pieces if piece.piece_type in (NORMAL, USER_DEFINED)]
    return SPACE in texts and not any(SPACE in text[1:] for text in texts)
