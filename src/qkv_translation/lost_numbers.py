"""Numbers that a translation has lost: "3 May 2022" → "32 mai 2022".

A small translator copies common numbers and garbles others, such as prices and telephone numbers. If a number of a
sentence is not in its translation, the sentence is translated again with a common number as a placeholder, which is
then replaced by the original number. The first translation is kept if the new one lacks the placeholder, or loses
another number.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from unicodedata import category

from qkv.tasks.run.generate import GeneratedText, WordLink
from qkv.text.sentences import CharSpan

# A number with its separators, or a calculation such as 3 + 4 = 7, but not inside a word such as "12B" or "1st". Times
# with a.m. or p.m. do not count, because translations write them as different numbers.
NUMBER = re.compile(
    r"(?<![\w.,:/-])(?>[+−-]?\d+(?:(?:[ .,:/-]| ?[+*×÷=<>−-] ?)\d+)*)(?!\w|\s?[ap]\.?m\b)", re.IGNORECASE
)
DIGITS = re.compile(r"\d+")
DECIMALS = re.compile(r"[.,](?!\d{3}(?!\d))\d")  # not thousands
OPERATORS = set("+*×÷=<>")
MIN_DIGITS = 3  # a number with fewer digits may be written in words
# The maximum number of digits → placeholders: common numbers, years, telephone numbers.
PLACEHOLDERS = {
    3: ("24", "36", "47", "58", "69"),
    6: ("1985", "1974", "1963", "1992", "1958"),
    99: ("555-0187", "555-0142", "555-0163"),
}

Edit = tuple[int, int, str]  # a span of a text, and the text that replaces it


@dataclass(frozen=True)
class NumberPlaceholders:
    """A sentence with placeholders for some of its numbers. Each edit is the span of a placeholder, and its number."""

    sentence: str
    text: str
    edits: list[Edit]

    def restore_numbers(self, result: GeneratedText) -> GeneratedText | None:
        """Restore the numbers in the translation of `text`; None if it does not have each placeholder exactly once."""
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


def replace_lost_numbers(sentence: str, translation: str) -> NumberPlaceholders | None:
    """Replace the numbers of the sentence that its translation lacks by placeholders; None if there are none to
    replace.

    A translation without any spurious number may have the number in words or in a different form. In such a
    translation, times and short numbers without a sign are not replaced. 1 is never replaced, because the placeholders
    are plurals.

    >>> replace_lost_numbers("It cost $12.99 in 1990.", "Ça a coûté 12 dollars en 1990.").text
    'It cost $24 in 1990.'
    """
    lost, taken, edits = find_lost_numbers(sentence, translation), set(DIGITS.findall(sentence)), list[Edit]()
    is_garbled = bool(spurious_numbers(sentence, translation))
    for match in lost:
        num_digits = sum(map(str.isdigit, match[0]))
        is_written = (num_digits >= MIN_DIGITS and ":" not in match[0]) or match[0][0] in "−-"
        if match[0] == "1" or not (is_garbled or is_written):
            continue
        placeholder = next(
            (one for one in placeholder_numbers(sentence, match) if taken.isdisjoint(DIGITS.findall(one)[-1:])), None
        )
        if placeholder is not None:
            taken.update(DIGITS.findall(placeholder)[-1:])
            edits.append((*match.span(), placeholder))
    if not edits:
        return None
    places = [move_span((start, end), edits) for start, end, _ in edits]
    numbers = [sentence[start:end] for start, end, _ in edits]
    back = [(*place, number) for place, number in zip(places, numbers, strict=True)]
    return NumberPlaceholders(sentence, apply_edits(sentence, edits), back)


def find_lost_numbers(sentence: str, translation: str) -> list[re.Match[str]]:
    """The numbers of a sentence that are not in its translation. Separators and leading zeros may differ.

    >>> [match[0] for match in find_lost_numbers("On 3/5 we paid 1,250.", "Le 03.05, nous avons payé 125.")]
    ['1,250']
    """
    kept, lost = read_digits(translation), list[re.Match[str]]()
    for match in NUMBER.finditer(sentence):
        found = next((digits for form in written_forms(match[0]) if (digits := read_digits(form)) <= kept), None)
        if found is None:
            lost.append(match)
        else:
            kept -= found
    return lost


def has_more_numbers(sentence: str, new: str, old: str) -> bool:
    """Whether the new translation keeps every number of the sentence that the old one keeps, recovers at least one, and
    does not have more spurious ones.

    >>> has_more_numbers("Ask 407 before 30.", "Demande 407 avant 30.", "Demande 47 avant 30.")
    True
    >>> has_more_numbers("Ask 407 before 30.", "Demande 407.", "Demande 47 avant 30.")
    False
    """
    lost, lost_before = ({match.span() for match in find_lost_numbers(sentence, text)} for text in (new, old))
    return lost < lost_before and spurious_numbers(sentence, new).total() <= spurious_numbers(sentence, old).total()


def spurious_numbers(sentence: str, translation: str) -> Counter[str]:
    """The groups of digits in a translation that do not come from the numbers of the sentence, in any written form."""
    forms = " ".join(form for match in NUMBER.finditer(sentence) for form in written_forms(match[0])[1:])
    return read_digits(translation) - read_digits(sentence) - read_digits(forms)


def written_forms(number: str) -> list[str]:
    """The forms of a number: as it is written and, unless it has decimals or is a calculation, without separators.

    >>> written_forms("1,250"), written_forms("12.5")
    (['1,250', '1250'], ['12.5'])
    """
    return [number] if DECIMALS.search(number) or OPERATORS & set(number) else [number, "".join(DIGITS.findall(number))]


def read_digits(text: str) -> Counter[str]:
    """The groups of digits of a text, without leading zeros, and how often each occurs."""
    return Counter(group.lstrip("0") for group in DIGITS.findall(text))


def placeholder_numbers(sentence: str, number: re.Match[str]) -> tuple[str, ...]:
    """The possible placeholders for a number. A price gets small numbers, because a translator has seen few large
    prices.
    """
    is_price = category(sentence[number.start() - 1 : number.start()] or " ") == "Sc"
    num_digits = 1 if is_price else sum(map(str.isdigit, number[0]))
    return next(several for most, several in PLACEHOLDERS.items() if num_digits <= most or most == max(PLACEHOLDERS))


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Apply edits, which are in order, to a text."""
    parts, position = list[str](), 0
    for start, end, new in edits:
        parts += [text[position:start], new]
        position = end
    return "".join(parts) + text[position:]


def move_span(span: CharSpan, edits: Sequence[Edit]) -> CharSpan:
    """Move a span to its place after the edits; it must not begin or end inside an edited span.

    >>> move_span((3, 5), [(0, 2, "long")]), move_span((3, 5), [(3, 5, "long")])
    ((5, 7), (3, 7))
    """
    moved = [at + sum(len(new) - (end - start) for start, end, new in edits if end <= at) for at in span]
    return moved[0], moved[1]
