"""Numbers that a translation has lost: "3 May 2022" → "32 mai 2022".

A small translator copies common numbers and garbles others, such as prices and telephone numbers. If a number of a
sentence is not in its translation, the sentence is translated again with a common number as a stand-in. If the stand-in
is in the new translation, it is replaced by the number as it was written; if not, the first translation stays.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from unicodedata import category

from qkv.tasks.results import GeneratedText, WordLink
from qkv.text.sentences import CharSpan

# A number with its separators, not inside a word such as "12B" or "1st". Hours with a.m. and p.m. become other numbers.
NUMBER = re.compile(r"(?<![\w.,:/-])(?>\+?\d+(?:[ .,:/-]\d+)*)(?!\w|\s?[ap]\.?m\b)", re.IGNORECASE)
DIGITS = re.compile(r"\d+")
# By the number of digits (at most): common numbers, years, telephone numbers.
STAND_INS = {
    3: ("24", "36", "47", "58", "69"),
    6: ("1985", "1974", "1963", "1992", "1958"),
    99: ("555-0187", "555-0142", "555-0163"),
}

Edit = tuple[int, int, str]  # a span of a text, and the text that replaces it


@dataclass(frozen=True)
class StandIns:
    """A sentence with stand-ins for some of its numbers. Each edit has the place of a stand-in, and the number."""

    sentence: str
    text: str
    edits: list[Edit]

    def restore_numbers(self, result: GeneratedText) -> GeneratedText | None:
        """The translation of `text` as that of the sentence; None if it does not have each stand-in once."""
        edits = list[Edit]()
        for start, end, number in self.edits:
            found = list(re.finditer(rf"(?<!\d){self.text[start:end]}(?!\d)", result.text))
            if len(found) != 1:
                return None
            edits.append((*found[0].span(), number))
        text = apply_edits(result.text, sorted(edits))
        others = [self.restore_numbers(other) for other in result.alternatives]
        links = list[WordLink]()
        for link in result.alignment:
            first, last = move_span((link.source_start, link.source_end), self.edits)
            start, end = move_span((link.target_start, link.target_end), edits)
            links.append(WordLink(self.sentence[first:last], text[start:end], first, last, start, end, link.weight))
        return replace(
            result, source=self.sentence, text=text, alternatives=[one for one in others if one], alignment=links
        )


def replace_lost_numbers(sentence: str, translation: str) -> StandIns | None:
    """The sentence with stand-ins for the numbers that its translation does not have; None if there is none to replace.

    >>> replace_lost_numbers("It cost $12.99 in 1990.", "Ça a coûté 12 dollars en 1990.").text
    'It cost $24 in 1990.'
    """
    kept, taken, edits = DIGITS.findall(translation), set(DIGITS.findall(sentence)), list[Edit]()
    for match in NUMBER.finditer(sentence):
        groups = DIGITS.findall(match[0])
        joined = "".join(groups)
        if joined in kept or all(group in kept for group in groups):
            for group in [joined] if joined in kept else groups:
                if group in kept:
                    kept.remove(group)
            continue
        stand_in = next((one for one in stand_ins(sentence, match) if taken.isdisjoint(DIGITS.findall(one)[-1:])), None)
        if stand_in is None:
            return None
        taken.update(DIGITS.findall(stand_in)[-1:])
        edits.append((*match.span(), stand_in))
    if not edits:
        return None
    places = [move_span((start, end), edits) for start, end, _ in edits]
    numbers = [sentence[start:end] for start, end, _ in edits]
    back = [(*place, number) for place, number in zip(places, numbers, strict=True)]
    return StandIns(sentence, apply_edits(sentence, edits), back)


def stand_ins(sentence: str, number: re.Match[str]) -> tuple[str, ...]:
    """The stand-ins for a number: a price gets small ones, because a translator has seen few large prices."""
    is_price = category(sentence[number.start() - 1 : number.start()] or " ") == "Sc"
    num_digits = 1 if is_price else sum(map(str.isdigit, number[0]))
    return next(several for most, several in STAND_INS.items() if num_digits <= most or most == max(STAND_INS))


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The text with its spans replaced; the edits are in order."""
    parts, position = list[str](), 0
    for start, end, new in edits:
        parts += [text[position:start], new]
        position = end
    return "".join(parts) + text[position:]


def move_span(span: CharSpan, edits: Sequence[Edit]) -> CharSpan:
    """A span after the edits; it must not begin or end inside an edited span.

    >>> move_span((3, 5), [(0, 2, "long")]), move_span((3, 5), [(3, 5, "long")])
    ((5, 7), (3, 7))
    """
    moved = [at + sum(len(new) - (end - start) for start, end, new in edits if end <= at) for at in span]
    return moved[0], moved[1]
