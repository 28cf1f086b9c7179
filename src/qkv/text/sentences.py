"""Split a text into sentences, and into parts that a model can read.

`sentence_breaks` is a simple rule that training uses. `split_sentences` also knows abbreviations, initials, numbered
lists and German dates, so that a sentence reaches a translator whole. Both take linear time in any text.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from unicodedata import category

CharSpan = tuple[int, int]  # first character, last character + 1

# A sentence may begin after white space, and always begins after an ideographic full stop. The first character decides
# whether an alternative matches, so there is no backtracking, and the search takes linear time in any text.
SENTENCE_GAP = re.compile(r"\s+|[。！？]+[」』）]*\s*")
SENTENCE_ENDINGS = (".", "!", "?", "…")
CLOSING_MARKS = "\"'”’»)]"
OPENING_MARKS = "\"'“„‘«([¿¡—–-"
MAX_WORD_CHARS = 24  # a longer word is not an abbreviation


def word_set(words: str) -> frozenset[str]:
    """A set of words from a text."""
    return frozenset(words.split())


TITLES = word_set("mr mrs ms dr prof hr fr st mt gen col lt sgt capt rev hon pres gov sen rep mme mlle sr sra srta")
ABBREVIATIONS = word_set("e.g i.e cf vs al approx z.b d.h u.a s.o s.u bzw ca inkl ggf evtl p.ex c.-à-d")
NUMBERED = word_set("no nr nos fig figs vol p pp s art abs sec ch eq tab ref")
"""Abbreviations before a number: "No. 5" is one sentence, but "No. I will not." is two."""
MONTHS = word_set("januar februar märz april mai juni juli august september oktober november dezember")
# The nearest of these to the middle is where a part that is too long is split; the first kind that occurs is used.
CLAUSE_ENDS = (re.compile(r"[;:,،、，–—]\s*"), re.compile(r"\s+"))


def sentence_breaks(text: str) -> list[int]:
    """The indices at which sentences begin: after an end mark, closing marks and white space, or on a new line."""
    return [gap.end() for gap in _sentence_gaps(text)]


def _sentence_gaps(text: str) -> Iterator[re.Match[str]]:
    for gap in SENTENCE_GAP.finditer(text):
        before = text[max(0, gap.start() - 4) : gap.start()].rstrip(CLOSING_MARKS)
        if not gap[0].isspace() or "\n" in gap[0] or before.endswith(SENTENCE_ENDINGS):
            yield gap


def split_sentences(text: str) -> list[CharSpan]:
    """The spans of the sentences, without the white space around them.

    >>> text = "Dr. Who met J. Smith. He left!\\nOn 3.5."
    >>> [text[start:end] for start, end in split_sentences(text)]
    ['Dr. Who met J. Smith.', 'He left!', 'On 3.5.']
    """
    spans, start = [], 0
    for gap in _sentence_gaps(text):
        end = gap.start() if gap[0].isspace() else gap.end()
        if not gap[0].isspace() or "\n" in gap[0] or _ends_sentence(text, start, gap):
            spans.append((start, end))
            start = gap.end()
    spans.append((start, len(text)))
    stripped = [strip_span(text, span) for span in spans]
    return [(first, last) for first, last in stripped if first < last]


def _ends_sentence(text: str, start: int, gap: re.Match[str]) -> bool:
    """Whether a sentence that begins at `start` ends before a gap of spaces that follows an end mark."""
    following = text[gap.end() : gap.end() + MAX_WORD_CHARS].lstrip(OPENING_MARKS)
    if following[:1].islower():
        return False
    before = text[max(start, gap.start() - MAX_WORD_CHARS) : gap.start()]
    if not before.endswith("."):
        return True
    word = before[:-1].split()[-1].lstrip(OPENING_MARKS) if before[:-1].split() else ""
    if word.lower() in TITLES or word.lower() in ABBREVIATIONS:
        return False
    if word.lower() in NUMBERED and following[:1].isdigit():
        return False
    if len(word) == 1 and word.isupper() and word != "I":  # an initial
        return False
    if word.isdigit() and len(word) <= 2:  # the number of an item, or a German date
        is_item = text[start : start + 4].split()[:1] == [f"{word}."] and gap.start() - start <= 4
        next_word = re.match(r"\w*", following)
        return not is_item and not (next_word and next_word[0].lower() in MONTHS)
    return True


def strip_span(text: str, span: CharSpan) -> CharSpan:
    """The span without white space around it."""
    start, end = span
    stripped = text[start:end].lstrip()
    start = end - len(stripped)
    return start, start + len(stripped.rstrip())


def split_to_fit(text: str, span: CharSpan, fits: Callable[[str], bool]) -> list[CharSpan]:
    """Split a span until each part fits: near the middle, after a clause, else between words, else anywhere."""
    start, end = span
    if end - start <= 1 or fits(text[start:end]):
        return [span]
    middle, quarter = (start + end) // 2, (end - start) // 4
    for pattern in CLAUSE_ENDS:  # in the middle half, so that every split makes progress
        found = [
            match.end() for match in pattern.finditer(text, start + quarter, end - quarter) if start < match.end() < end
        ]
        if found:
            cut = min(found, key=lambda position: abs(position - middle))
            break
    else:
        cut = next((i for i in range(middle, min(end, middle + 16)) if not category(text[i]).startswith("M")), middle)
    halves = [strip_span(text, (start, cut)), strip_span(text, (cut, end))]
    return [part for half in halves if half[0] < half[1] for part in split_to_fit(text, half, fits)]


def merge_to_fit(text: str, spans: Sequence[CharSpan], fits: Callable[[str], bool]) -> list[CharSpan]:
    """Merge adjacent spans into spans that are as long as fits.

    >>> text = "One. Two. Three."
    >>> [text[a:b] for a, b in merge_to_fit(text, split_sentences(text), lambda part: len(part) < 10)]
    ['One. Two.', 'Three.']
    """
    merged: list[CharSpan] = []
    for start, end in spans:
        if merged and fits(text[merged[-1][0] : end]):
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def fit_spans(text: str, fits: Callable[[str], bool]) -> list[CharSpan]:
    """Split a text into spans that fit, at the ends of sentences where possible."""
    spans = [part for sentence in split_sentences(text) for part in split_to_fit(text, sentence, fits)]
    return merge_to_fit(text, spans, fits)
