"""`model.vectors`: the embedding of a new model starts from pretrained word vectors (GloVe, word2vec)."""

from qkv.models import Config, Network
from qkv.store.word_vectors import WordVectors, read_word_vectors
from qkv.text import Tokenizer
from qkv.train.recipe.schema import ModelSection

WORD_START_MARKS = ("Ġ", "▁")
"""How byte-level BPE and SentencePiece mark a token that starts a word."""


def load_word_vectors(section: ModelSection, config: Config, tokenizer: Tokenizer) -> WordVectors | None:
    """The vectors for the input embedding (of the source, in an encoder-decoder); None without `model.vectors`."""
    if not section.vectors:
        return None
    stack = config.encoder or config.stack
    return read_word_vectors(
        section.vectors, whole_word_token_ids(tokenizer), stack.embedding_width or stack.width, lowercase=True
    )


def whole_word_token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Map each word that is a single token to its token id.

    Words are written without the word-start mark. If a word exists with and without the mark, the marked token is used.
    """
    plain: dict[str, int] = {}
    marked: dict[str, int] = {}
    for token_id in range(tokenizer.vocab_size):
        token = tokenizer.id_to_token(token_id)
        if token is None or token_id in tokenizer.special_ids:
            continue
        if token.startswith(WORD_START_MARKS):
            marked[tokenizer.decode([token_id]).strip()] = token_id
        else:
            plain[token] = token_id
    return plain | marked


def apply_word_vectors(network: Network, vectors: WordVectors) -> None:
    """Overwrite the embeddings of the tokens that have a vector in the file."""
    vectors.apply(next(iter(network.embeddings.values())).token)
