"""Sentences in capital letters: a translator that was trained on ordinary text reads them in lower case."""

from dataclasses import replace

from qkv.tasks.run.generate import GeneratedText
from qkv.text import Tokenizer

MIN_CAPITALS = 4  # a word with fewer capitals may be an abbreviation


def lower_capitals(text: str, tokenizer: Tokenizer) -> str:
    """A sentence in capital letters as it is usually written, except for names; any other sentence unchanged.

    A tokenizer that was trained on capitals has tokens for whole words of them. So if the capitals do not have more
    tokens than lower case, they stay.
    """
    if sum(map(str.isupper, text)) < MIN_CAPITALS or any(map(str.islower, text)):
        return text
    first = next(i for i, character in enumerate(text) if character.isupper())
    lowered = text[: first + 1] + "".join(map(_lower, text[first + 1 :]))
    lengths = [len(tokenizer.encode(one, add_special_tokens=False)) for one in (text, lowered)]
    return lowered if lengths[1] < lengths[0] else text


def write_capitals(result: GeneratedText, prefix: str = "") -> GeneratedText:
    """A translation in capital letters after its prefix, with its alternatives.

    Its length does not change, so links stay right.
    """
    first = len(prefix) if result.text.startswith(prefix) else 0
    return replace(
        result,
        text=result.text[:first] + "".join(map(_upper, result.text[first:])),
        alternatives=[write_capitals(other, prefix) for other in result.alternatives],
    )


def _lower(character: str) -> str:
    return character.lower() if len(character.lower()) == 1 else character


def _upper(character: str) -> str:
    return character.upper() if len(character.upper()) == 1 else character
