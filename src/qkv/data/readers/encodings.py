"""Recognise the encoding of a text that is not UTF-8 by its first bytes.

A file with a few wrong bytes among valid UTF-8 stays UTF-8: its wrong lines are reported. Only if there are several
characters that are not ASCII, and none of them is valid UTF-8, the file has another encoding. It is the encoding in
which these characters become usual letters of its languages. The user can name the encoding.
"""

import re
from itertools import islice

MIN_CHARACTERS = 3  # with fewer characters that are not ASCII, nothing is decided
MAX_BYTES = 2**18  # of these lines
MAX_LINES = 2000  # lines with such characters that are examined
MIN_SHARE = 0.7  # the fraction of the characters that are not ASCII that must become usual characters
UTF8_CHARACTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
BINARY = re.compile(rb"[\0-\x08\x0e-\x1a]")  # control characters that no text has
HIGH_BYTES = re.compile(rb"[\x80-\xff]+")

KANA, HANGUL = "\u3040-\u30ff", "\uac00-\ud7a3"
HAN = "\u4e00-\u9fff\u3000-\u3003\u3008-\u3011\uff01-\uff5e"
LATIN = "ðþÐÞýÝàáâãäåæçèéêëìíîïñòóôõöøùúûüýßÀÁÂÄÅÆÇÈÉÊËÍÎÑÓÔÖØÚÛÜœŒ«»¡¿°£€“”„‘’…–—§ºª\xa0"
USUAL = (
    ("euc_jp", f"[{KANA}]", f"[{KANA}{HAN}]"),
    ("shift_jis", f"[{KANA}]", f"[{KANA}{HAN}]"),
    ("euc_kr", f"[{HANGUL}]", f"[{HANGUL}]"),
    ("gb18030", f"[{HAN}]", f"[{HAN}]"),
    ("cp1251", "[а-яё]", "[а-яёА-ЯЁ«»—–№]"),
    ("koi8_r", "[а-яё]", "[а-яёА-ЯЁ«»—–№]"),
    ("cp1252", f"[{LATIN}]", f"[{LATIN}]"),
    ("big5", f"[{HAN}]", f"[{HAN}]"),
)
"""Encodings, with the characters of which texts in them have many, and those that are usual in them."""
MIN_FREQUENT = {"shift_jis": 0.25, "euc_jp": 0.25, "cp1251": 0.6, "koi8_r": 0.6}
"""The least share of the first kind of characters, where it differs from `MIN_SHARE`."""
COMMON_FIRST_BYTES = {"gb18030": range(0xB0, 0xD8), "big5": range(0xA4, 0xC7)}
"""The first bytes of the frequent characters; those of other encodings are spread evenly."""
EVEN = ("euc_jp", "euc_kr", "gb18030")
"""Encodings whose usual characters are two bytes that are not ASCII."""
BESIDE_LETTERS = re.compile(r"[a-z][³¹±¶¾]|[³¹±¶¾][a-z]")
"""What Central European letters look like among Western European ones: signs inside of words."""


def recognise_encoding(start: bytes) -> str:
    """The encoding of a text by its first bytes; "" if it is UTF-8 or unknown.

    >>> recognise_encoding("Señor, mañana será otro día".encode("latin-1")), recognise_encoding("mañana".encode())
    ('cp1252', '')
    >>> recognise_encoding("Он был дома".encode("koi8-r")), recognise_encoding("これは本です".encode("shift-jis"))
    ('koi8_r', 'shift_jis')
    """
    if start.isascii() or BINARY.search(start):
        return ""
    whole = start.rpartition(b"\n")[0] or start
    text = b"\n".join(islice((line for line in whole.split(b"\n") if not line.isascii()), MAX_LINES))
    text = text[:MAX_BYTES].rpartition(b"\n")[0] or text  # the last line may be cut inside a character
    runs = HIGH_BYTES.findall(text)
    num_high = sum(map(len, runs))
    if num_high < MIN_CHARACTERS or (UTF8_CHARACTER.search(text) and not _is_chance(text, num_high)):
        return ""
    found = next((name for name, frequent, usual in USUAL if _suits(text, runs, name, frequent, usual)), "")
    if found == "cp1252" or (not found and _has_accents(runs)):
        return _find_accents(text, found)
    return found


def _has_accents(runs: list[bytes]) -> bool:
    """Whether the characters stand between other letters, as letters with accents do."""
    return sum(map(len, runs)) <= 2 * len(runs)


def _find_accents(text: bytes, found: str) -> str:
    """The encoding of a language with accents. `found` is the answer if the language is Western European."""
    western = text.decode("latin-1")
    if "ç" in western and ("ð" in western or "þ" in western):  # no Western European language has both
        return "cp1254"
    if ("ø" in western and ("ì" in western or "è" in western)) or BESIDE_LETTERS.search(western):
        return "cp1250" if re.search(r"[\x8a-\x9f]", western) else "iso8859-2"
    return found


def _is_chance(text: bytes, num_high: int) -> bool:
    """Whether so few bytes are valid UTF-8 that this may be chance, as in Chinese texts."""
    return sum(map(len, UTF8_CHARACTER.findall(text))) < num_high / 2


def _suits(text: bytes, runs: list[bytes], encoding: str, frequent: str, usual: str) -> bool:
    """Whether the text can be decoded with an encoding, and the result has the usual characters of its languages."""
    if encoding in EVEN and any(len(run) % 2 for run in runs):
        return False
    if encoding.startswith(("cp", "koi8")) and _has_accents(runs) != (encoding == "cp1252"):
        return False
    try:
        decoded = text.decode(encoding)
    except UnicodeDecodeError:
        return False
    high = [character for character in decoded if character > "\x7f"]
    if encoding in COMMON_FIRST_BYTES:
        firsts = [character.encode(encoding)[0] for character in high if "\u4e00" <= character <= "\u9fff"]
        common = sum(byte in COMMON_FIRST_BYTES[encoding] for byte in firsts)
        if common < 0.8 * len(firsts):
            return False
    num_frequent, num_usual = (sum(1 for one in high if re.match(kind, one)) for kind in (frequent, usual))
    return num_frequent >= MIN_FREQUENT.get(encoding, MIN_SHARE) * len(high) and num_usual >= MIN_SHARE * len(high)
