"""Sentence pairs: read them, normalise their typography, and split them by English sentence."""

import gzip
import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

Pair = tuple[str, str]
SEED = "en-fr"
PARTS = {"test": 30, "valid": 10}  # per 1,000 English sentences; the rest is for training

CONTRACTIONS = {
    "won't": "will not",
    "can't": "can not",
    "cannot": "can not",
    "let's": "let us",
    "n't": " not",
    "'m": " am",
    "'re": " are",
    "'ll": " will",
    "'ve": " have",
    "'d": " would",
    "'s": " is",
}


def hash_number(text: str) -> int:
    """A number that depends only on the text and the seed."""
    return int.from_bytes(blake2b(f"{SEED}:{text}".encode(), digest_size=8).digest())


def normalise(text: str) -> str:
    """The text with plain spaces and apostrophes, and without invisible characters."""
    return " ".join(text.replace("’", "'").replace("‘", "'").replace("\u200b", "").replace("\xad", "").split())


def normalise_french(text: str) -> str:
    """The same, with a space before ? ! and ; as French typography has it.

    >>> normalise_french("Où vas-tu\u202f? Attends!")
    'Où vas-tu ? Attends !'
    """
    return re.sub(r"(?<=[^\s?!;])([?!;]+)", r" \1", normalise(text))


def sentence_key(english: str) -> str:
    """What near-identical sentences have in common: no case, no punctuation, no contractions.

    >>> sentence_key("I'm sorry!") == sentence_key("I am sorry.")
    True
    """
    text = normalise(english).casefold()
    for short, long in CONTRACTIONS.items():
        text = text.replace(short, long)
    return " ".join(re.findall(r"\w+", text))


def find_part(english: str) -> str:
    """The part that a sentence belongs to: test, valid or train."""
    number = hash_number(sentence_key(english)) % 1000
    return "test" if number < PARTS["test"] else "valid" if number < sum(PARTS.values()) else "train"


def read_download(path: Path) -> list[Pair]:
    """The pairs of ManyThings' fra.txt, compressed or not: English, tab, French, and sometimes an attribution."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as file:
        rows = [line.rstrip("\r\n").split("\t") for line in file]
    return [(row[0], row[1]) for row in rows if len(row) >= 2]


def read_texts(path: Path) -> list[str]:
    """The lines of a table, without the names of its columns."""
    return path.read_text(encoding="utf-8").split("\n")[1:-1]


def read_pairs(path: Path) -> list[Pair]:
    """The rows of a table with two columns."""
    return [(source, target) for source, target in (line.split("\t") for line in read_texts(path))]


def write_texts(path: Path, texts: Sequence[str]) -> None:
    """Write texts as a table with the column `text`."""
    path.write_text("\n".join(["text", *texts, ""]), encoding="utf-8", newline="\n")


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write pairs as a table with the columns `source` and `target`."""
    lines = ["source\ttarget", *(f"{source}\t{target}" for source, target in pairs), ""]
    path.write_text("\n".join(lines), encoding="utf-8", newline="\n")


def split_pairs(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    """The pairs of each part. Training and validation pairs are normalised; test pairs stay as they are."""
    parts: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    for english, french in pairs:
        part = find_part(english)
        clean = (english, french) if part == "test" else (normalise(english), normalise_french(french))
        parts[part].append(clean)
    return {part: list(dict.fromkeys(several)) for part, several in parts.items()}


def group_references(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """The French sentences of each English one. Their order is random but always the same."""
    grouped: dict[str, list[str]] = {}
    for english, french in pairs:
        grouped.setdefault(english, []).append(french)
    return {english: sorted(several, key=hash_number) for english, several in grouped.items()}


def typing_variants(pairs: Iterable[Pair]) -> list[Pair]:
    """Copies of a few pairs, typed as people type: without the full stop, in another case, with curly apostrophes."""
    variants: list[Pair] = []
    for english, french in pairs:
        number = hash_number(english + french) % 100
        if number < 4 and english.endswith(".") and french.endswith("."):
            variants.append((english[:-1], french[:-1]))
        elif 4 <= number < 8:
            variants.append((english.lower(), french))
        elif number == 8:
            variants.append((english.upper(), french.upper()))
        elif "'" in english and 9 <= number < 13:
            variants.append((english.replace("'", "’"), french))
    return variants
