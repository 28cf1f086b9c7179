"""The tokens of a text: their ids, and how to show them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from qkv.blocks import Inputs, SequenceLayout, make_layout
from qkv.blocks.inputs import Payload, Prompt
from qkv.blocks.words import WordsConfig
from qkv.data.encode.words import word_features
from qkv.text import Tokenizer


@dataclass(frozen=True)
class TokenList:
    """The tokens that one stack reads."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]  # the text of each token; "#7" if there is no tokenizer
    special: tuple[bool, ...]  # whether each token is a special token
    positions: tuple[int, ...] = ()  # the positions of a text with payloads; (): 0, 1, 2, …

    def __len__(self) -> int:
        return len(self.ids)

    def layout(self) -> SequenceLayout:
        """The layout of the tokens as one sequence."""
        positions = torch.tensor([self.positions]) if self.positions else None
        return make_layout(torch.tensor([self.ids]), None, positions)


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> Prompt:
    """Return words as the input of a model that reads their hashed features."""
    ids = tokenizer.encode(" ".join(words))
    if not words:
        return Prompt(Inputs(torch.tensor([ids])))
    is_word = [token not in tokenizer.special_ids for token in ids]
    rows = torch.tensor(is_word).nonzero()[:, 0]
    sizes, lengths = torch.tensor([[len(words), 1]]), torch.tensor([len(words)])
    payload = Payload(torch.from_numpy(word_features(words)), rows, sizes, lengths)
    left = iter(words)
    texts = [next(left) if one else token_text(token, tokenizer) for one, token in zip(is_word, ids, strict=True)]
    return Prompt(Inputs(torch.tensor([ids]), payloads={WordsConfig.kind: payload}), texts)


def list_tokens(ids: Sequence[int], tokenizer: Tokenizer | None) -> TokenList:
    """Return token ids with their texts. Without a tokenizer, the text of id 7 is "#7"."""
    positions = tuple(ids.positions) if isinstance(ids, Prompt) else ()
    texts = ids.texts if isinstance(ids, Prompt) else ()
    ids = tuple(int(i) for i in ids)
    special = tokenizer.special_ids if tokenizer is not None else frozenset()
    texts = texts or tuple(token_text(i, tokenizer) for i in ids)
    return TokenList(ids, texts, tuple(i in special for i in ids), positions)


def token_text(token_id: int, tokenizer: Tokenizer | None) -> str:
    """Return the text of one token, with its leading space if it has one.

    A byte-level token that is only a part of a character is shown as the vocabulary spells it.
    """
    spelling = None if tokenizer is None else tokenizer.id_to_token(token_id)
    if tokenizer is None or spelling is None:
        return f"#{token_id}"
    if token_id in tokenizer.special_ids:
        return spelling
    if "▁" in spelling:  # SentencePiece marks the start of a word
        return spelling.replace("▁", " ")
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    return text if text and "\ufffd" not in text else spelling
