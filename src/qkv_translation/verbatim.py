"""Texts that a translator copies unchanged: URLs, e-mail addresses, paths, list markers, and unseen symbols such as
emoji.

A tokenizer that splits text into bytes can encode every symbol. But if its training text did not have the symbol, the
model has learned nothing about these bytes and may write anything for the whole sentence. So the model reads the
sentence without URLs and unseen symbols; they are inserted into the translation between the corresponding words.
Quotation marks and dashes that the tokenizer never saw are replaced by their ASCII form, or by a comma.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from unicodedata import category

from qkv.tasks.run.generate import GeneratedText, WordLink
from qkv.tasks.run.translation.processors import FindLinks
from qkv.text import Tokenizer
from qkv.text.sentences import MONTHS, OPENING_MARKS, CharSpan, strip_span
from qkv.text.tokenizer import SYMBOLS_KEY
from qkv.text.words import split_words

URL = re.compile(r"(?<!\w)(?:https?://|www\.\w)[^\s<>\"]*[^\s<>\"'.,;:!?)\]»”…]", re.IGNORECASE)
EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
FILE_PATH = re.compile(
    r"(?<![\w/.-])"
    r"(?:(?:~|\.\.?|/\w[\w.-]*)/[\w./-]*\w"  # ~/notes, ../a, /etc/hosts
    r"|(?:[A-Za-z_][\w.-]*/)+[\w-]+\.(?=\w*[a-z])[a-z0-9]{1,5}(?!\w))"  # src/main.py
)
BULLET = re.compile(r"[-–—*•·]\s+")
ITEM_NUMBER = re.compile(r"\(?\d{1,3}[.)]\s+(?=([^\W\d_]+))")
PAIRED_MARKS = {"(": ")", "[": "]", '"': '"', "'": "'", "“": "”", "«": "»", "<": ">"}
QUOTED = re.compile(r'["“„«][^"“”„«»]*["”“»]|\([^()]*\)')
PARENTHETICAL = re.compile(r"(?<!\w)(?:\(([^()\[\]]+)\)|\[([^()\[\]]+)\])(?!\w)")
PLAIN_FORMS = dict.fromkeys("“”„‟", '"') | dict.fromkeys("‘’‚", "'") | dict.fromkeys("‐‑–", "-") | {"—": ","}
DASHES = "–—"
CLAUSE_MARKS = (",", ":", ";")
MIN_SYMBOL_BYTES = 3  # in UTF-8; the usual characters of European languages have fewer bytes
NUM_BYTES = 256
MAX_SPECIAL_TOKENS = 32
MAX_ALIGNED_WORDS = 64
"""In longer sentences, copies are inserted at the same fraction of the words: an alignment takes quadratic time."""


def make_symbol_check(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Make a function that returns whether a character is a symbol or punctuation mark that the tokenizer never saw.

    A tokenizer that was trained by a run lists the symbols of its training text. For other tokenizers, a symbol counts
    as seen if it is in the text of a token, or has only one or two bytes in UTF-8. A vocabulary of single bytes shows
    nothing about its training text, so no symbol counts as unseen.
    """
    listed = tokenizer.config.get(SYMBOLS_KEY)
    is_byte_vocabulary = tokenizer.vocab_size <= NUM_BYTES + MAX_SPECIAL_TOKENS and tokenizer.special_tokens.unk is None

    @cache
    def is_unseen(character: str) -> bool:
        if category(character)[0] not in "PS":
            return False
        if isinstance(listed, str):
            return character not in listed
        if is_byte_vocabulary or len(character.encode("utf-8", "replace")) < MIN_SYMBOL_BYTES:
            return False
        ids = [i for text in (character, f" {character}") for i in tokenizer.encode(text, add_special_tokens=False)]
        return not any(character in tokenizer.decode([i]) for i in ids)

    return is_unseen


def inner_span(text: str, span: CharSpan) -> CharSpan:
    """The span of a sentence without a list marker (a bullet or a number) and without quotation marks or brackets
    around it.

    >>> inner_span("2. Next", (0, 7)), inner_span("3. Mai 2021", (0, 11)), inner_span("“Yes.”", (0, 6))
    ((3, 7), (0, 11), (1, 5))
    """
    start, end = span
    number = ITEM_NUMBER.match(text, start, end)
    if number and number[1].lower() not in MONTHS:
        start = number.end()
    elif bullet := BULLET.match(text, start, end):
        start = bullet.end()
    return (start + 1, end - 1) if QUOTED.fullmatch(text, start, end) else (start, end)


def strip_clause_mark(text: str, span: CharSpan) -> CharSpan:
    """The span without the comma, colon or semicolon at its end, as in "Dear Tom,".

    >>> strip_clause_mark("Dear Tom,", (0, 9)), strip_clause_mark("Yes.", (0, 4))
    ((0, 8), (0, 4))
    """
    start, end = span
    return strip_span(text, (start, end - 1)) if text[start:end].endswith(CLAUSE_MARKS) else span


@dataclass(frozen=True)
class CopiedText:
    """A text that the model does not read. In the sentence, it is before character `position` of the text that the
    model reads.
    """

    text: str
    position: int
    is_after_space: bool
    is_before_space: bool


@dataclass(frozen=True)
class MaskedSource:
    """The text that the model reads, the index in the sentence of each of its characters, and the texts that are
    copied.
    """

    sentence: str  # as it was written
    text: str
    copied: list[CopiedText]
    origins: list[int]

    def insert_copies(self, result: GeneratedText, find_links: FindLinks) -> GeneratedText:
        """The translation of the sentence, with the copied texts. `find_links` returns a word alignment, if needed."""
        places = [(self._find_place(one, result, find_links), one) for one in self.copied]
        text, position, lengths = "", 0, list[tuple[int, int]]()
        for place, one in sorted(places, key=lambda item: item[0]):
            text += result.text[position:place]
            position, following = place, result.text[place : place + 1]
            needs_space = one.is_before_space and (following.isalnum() or (following and following in OPENING_MARKS))
            copy = one.text + " " * bool(needs_space)
            if one.is_after_space and text and not text[-1].isspace():
                copy = " " + copy
            text += copy
            lengths.append((place, len(copy)))
        text += result.text[position:]
        links = [self._restore_link(link, text, lengths) for link in result.alignment]
        return replace(result, source=self.sentence, text=text, alignment=links)

    def _find_place(self, copied: CopiedText, result: GeneratedText, find_links: FindLinks) -> int:
        """The index in the translation at which a text is inserted."""
        if copied.position in (0, len(self.text)):
            return 0 if copied.position == 0 else len(result.text)
        target_words = [span for span in split_words(result.text) if result.text[span[0]].isalnum()]
        source_words = [span for span in split_words(self.text) if self.text[span[0]].isalnum()]
        # the word that the text touches, as in "€20" or "Apple™", if the translation has it once
        touches_next = not copied.is_before_space and self.text[copied.position].isalnum()
        for start, end in source_words:
            if (touches_next and start == copied.position) or (not copied.is_after_space and end == copied.position):
                same = [span for span in target_words if result.text[span[0] : span[1]] == self.text[start:end]]
                if len(same) == 1:
                    return same[0][0] if start == copied.position else same[0][1]
        if source_words and source_words[-1][0] < copied.position:
            return target_words[-1][1] if target_words else len(result.text)
        if len(source_words) > MAX_ALIGNED_WORDS:
            num_before = sum(start < copied.position for start, _ in source_words)
            gap = len(target_words) * num_before // len(source_words)
        else:  # the gap that leaves the fewest translated words on the wrong side of the copied text
            is_before = {link.target_start: link.source_start < copied.position for link in find_links(result)}
            wrong = [sum(is_before.values())]
            for start, _ in target_words:
                wrong.append(wrong[-1] + {True: -1, False: 1, None: 0}[is_before.get(start)])
            gap = wrong.index(min(wrong))
        if touches_next and gap < len(target_words):
            return target_words[gap][0]
        return target_words[gap - 1][1] if gap else 0

    def _restore_link(self, link: WordLink, text: str, lengths: list[tuple[int, int]]) -> WordLink:
        """Convert a link to the sentence and the translation with the copied texts."""
        shift = sum(length for place, length in lengths if place <= link.target_start)
        first, last = self.origins[link.source_start], self.origins[link.source_end - 1] + 1
        start, end = link.target_start + shift, link.target_end + shift
        return WordLink(self.sentence[first:last], text[start:end], first, last, start, end, link.weight)


def find_parentheticals(text: str, is_unseen: Callable[[str], bool]) -> list[tuple[CharSpan, str]]:
    """The texts in brackets, if the tokenizer never saw brackets, with their spans.

    >>> find_parentheticals("He (my brother) wrote f(x).", "()".__contains__)
    [((3, 15), 'my brother')]
    """
    urls = [extend_url(text, *match.span()) for match in URL.finditer(text)]
    found = [(one.span(), one[1] or one[2]) for one in PARENTHETICAL.finditer(text) if is_unseen(text[one.start()])]

    def is_in_url(start: int, end: int) -> bool:
        number = bisect_left(urls, (start, 0)) - 1  # the last URL that begins before
        return number >= 0 and end <= urls[number][1]

    return [one for one in found if not is_in_url(*one[0])]


def is_translated(parenthetical: str, text: str) -> bool:
    """Whether a text in brackets is translated: it has a word in lower case, or everything is in capitals. Names and
    numbers are copied.

    >>> is_translated("my brother", "Tom (my brother)"), is_translated("United Nations", "the UN (United Nations)")
    (True, False)
    >>> is_translated("AND I", "TOM (AND I)"), is_translated("3-2", "3-2")
    (True, False)
    """
    words = split_words(parenthetical)
    return any(parenthetical[start].islower() for start, _ in words) or (text.isupper() and len(words) > 1)


def adapt_parenthetical(parenthetical: str, translation: str) -> str:
    """The translation of a text in brackets, without the capital and the end mark of a sentence.

    >>> adapt_parenthetical("my brother", "Mon frère !")
    'mon frère'
    """
    text = translation.rstrip(" .!?\xa0\u202f") if parenthetical[-1:].isalnum() else translation
    return text[:1].lower() + text[1:] if parenthetical[:1].islower() else text


def leave_out_copied(
    text: str, is_unseen: Callable[[str], bool], translations: Mapping[str, str] | None = None
) -> MaskedSource:
    """Separate a sentence into the text that the model reads and the texts that are copied, with the brackets around
    them.

    Texts in brackets are inserted like copies, translated if `translations` has them.

    >>> source = leave_out_copied("I ♥ it – really (https://example.org)!", "♥–".__contains__)
    >>> source.text, [one.text for one in source.copied]
    ('I it, really!', ['♥', '(https://example.org)'])
    """
    characters, origins, copied, position = list[str](), list[int](), list[CopiedText](), 0

    def drop_spaces() -> None:
        while characters and characters[-1].isspace():
            del characters[-1], origins[-1]

    def read_until(end: int) -> None:
        for i in range(position, end):
            plain = plain_form(text, i, is_unseen)
            if plain.startswith(","):
                drop_spaces()
            characters.extend(plain)
            origins.extend([i] * len(plain))

    parentheticals = dict(find_parentheticals(text, is_unseen))
    for first, last in copied_spans(text, is_unseen, list(parentheticals)):
        while first > position and last < len(text) and PAIRED_MARKS.get(text[first - 1]) == text[last]:
            first, last = first - 1, last + 1
        read_until(first)
        is_after_space = first == 0 or text[first - 1].isspace()
        is_before_space = last == len(text) or text[last].isspace()
        position = last
        if is_after_space and not text[last : last + 1].isalnum():  # keep the spaces on one side only
            drop_spaces()
        while not characters and position < len(text) and text[position].isspace():
            position += 1
        copy, end = "", first
        for (start, stop), parenthetical in parentheticals.items():
            if first <= start and stop <= last:
                copy += text[end : start + 1] + (translations or {}).get(parenthetical, parenthetical)
                end = stop - 1
        copy += text[end:last]
        copied.append(CopiedText(copy, len(characters), is_after_space, is_before_space))
    read_until(len(text))
    return MaskedSource(text, "".join(characters), copied, origins)


def plain_form(text: str, index: int, is_unseen: Callable[[str], bool]) -> str:
    """The form of a character that the model reads: an unseen dash between clauses becomes a comma, other unseen marks
    ASCII.

    >>> [plain_form(text, 1, "–“".__contains__) for text in ("1–2", "a– b", "a–, b", "(“a", "(„a")]
    ['-', ',', ',', '"', '„']
    """
    character, following = text[index], text[index + 1 : index + 2]
    if character not in PLAIN_FORMS or not is_unseen(character):
        return character
    is_hyphen = text[index - 1 : index].isalnum() and following.isalnum() and character != "—"
    if character in DASHES and not is_hyphen:
        return ", " if following.isalnum() else ","
    return PLAIN_FORMS[character]


def copied_spans(
    text: str, is_unseen: Callable[[str], bool], parentheticals: Sequence[CharSpan] = ()
) -> list[CharSpan]:
    """The spans of parentheticals, URLs, e-mail addresses, paths of files and unseen symbols, in order.

    A symbol inside a word stays in it.
    """
    urls = (extend_url(text, *match.span()) for match in URL.finditer(text))
    addresses = [*parentheticals, *(span for span in urls if not overlaps(span, parentheticals))]
    for pattern in (EMAIL, FILE_PATH):
        addresses += [match.span() for match in pattern.finditer(text) if not overlaps(match.span(), addresses)]
    found = list(addresses)
    for start, end in split_words(text):
        inside_word = is_word_part(text[start - 1 : start]) and is_word_part(text[end : end + 1])
        if text[start] in PLAIN_FORMS or inside_word or overlaps((start, end), addresses):
            continue
        if is_unseen(text[start]):
            found.append((start, end))
    merged = list[CharSpan]()
    for start, end in sorted(found):
        if merged and merged[-1][1] == start:
            start = merged.pop()[0]
        merged.append((start, end))
    return merged


def overlaps(span: CharSpan, others: Sequence[CharSpan]) -> bool:
    """Whether a span shares characters with another."""
    return any(start < span[1] and span[0] < end for start, end in others)


def extend_url(text: str, start: int, end: int) -> CharSpan:
    """The span of a URL, extended by a closing bracket if the URL contains the opening one: https://example.org/a_(b)."""
    url = text[start:end]
    return start, end + (url.count("(") > url.count(")") and text[end : end + 1] == ")")


def is_word_part(character: str) -> bool:
    """Whether a character is a letter, or a mark such as a combining accent."""
    return character != "" and category(character)[0] in "LM"
