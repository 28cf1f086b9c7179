"""Spans of a text as tags of its words: names or slots that JSON gives by characters, by their text, or as segments.

Three forms become words with tags B-…, I-… and O:

    "Fly to New York", [{"start": 7, "end": 15, "label": "city"}]     also [[7, 15, "city"]]
    "Fly to New York", {"city": "New York"}                           the first place where the text of a slot occurs
    [{"text": "Fly to "}, {"text": "New York", "entity": "city"}]      the pieces of the text
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from qkv.data.problems import InvalidRecord, Problems
from qkv.data.records import Record
from qkv.text.words import split_words

START_KEYS = ("start", "start_offset", "begin", "from", "start_char")
END_KEYS = ("end", "end_offset", "stop", "to", "end_char")
LABEL_KEYS = ("label", "entity", "tag", "type", "slot", "entity_type", "entity_group", "slot_name", "labels")
Span = tuple[int, int, str]


def tag_spans(records: Iterable[Record], tokens: str, tags: str, problems: Problems) -> Iterator[Record]:
    """The records with words and tags in place of a text and its spans; others as they are.

    A span outside of its text, and spans that overlap, make a record invalid.
    """
    for record in records:
        text, spans = record.fields.get(tokens), record.fields.get(tags)
        try:
            if is_segments(text):
                words, names = _tag_words(*_join_segments(text))
            elif isinstance(text, str) and is_spans(spans):
                words, names = _tag_words(text, _find_spans(text, spans))
            else:
                yield record
                continue
        except InvalidRecord as invalid:
            problems.leave_out(invalid, record.location)
            continue
        yield replace(record, fields={**record.fields, tokens: words, tags: names})


def is_segments(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Whether a value is the pieces of a text.

    >>> is_segments([{"text": "Play "}, {"text": "Yesterday", "entity": "song"}]), is_segments(["Play", "Yesterday"])
    (True, False)
    """
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(one, dict) and isinstance(one.get("text"), str) and not any(key in one for key in START_KEYS)
            for one in value
        )
    )


def is_spans(value: Any) -> bool:
    """Whether a value is a list of spans, or slots with their texts.

    >>> is_spans([[0, 5, "PER"]]), is_spans([{"start": 0, "end": 5, "label": "PER"}]), is_spans({"city": "Rome"})
    (True, True, True)
    >>> is_spans(["B-PER", "O"]), is_spans([])
    (False, True)
    """
    if isinstance(value, dict):
        return all(isinstance(text, str) for text in value.values())
    return isinstance(value, list) and all(
        (isinstance(one, dict) and any(key in one for key in START_KEYS))
        or (isinstance(one, list) and len(one) >= 3 and type(one[0]) is type(one[1]) is int)
        for one in value
    )


def _find_spans(text: str, spans: Any) -> list[Span]:
    if isinstance(spans, Mapping):
        found = []
        for name, part in spans.items():
            start = text.find(part)
            if start < 0:
                raise InvalidRecord(f"the text has no {part!r}, which is its {name}", "misplaced span")
            found.append((start, start + len(part), name))
        return found
    return [_read_span(one) for one in spans]


def _read_span(one: Any) -> Span:
    if isinstance(one, dict):
        start, end, label = (_first(one, keys) for keys in (START_KEYS, END_KEYS, LABEL_KEYS))
        label = label[0] if isinstance(label, list) and label else label
    else:
        start, end, label = one[:3]
    if type(start) is not int or type(end) is not int or not isinstance(label, str) or not label:
        raise InvalidRecord(f"a span needs a start, an end and a label, but is {one}", "misplaced span")
    return start, end, label


def _first(one: Mapping[str, Any], keys: Iterable[str]) -> Any:
    return next((one[key] for key in keys if key in one), None)


def _join_segments(segments: list[dict[str, Any]]) -> tuple[str, list[Span]]:
    text, spans = "", []
    for segment in segments:
        label = _first(segment, LABEL_KEYS)
        if isinstance(label, str) and label:
            spans.append((len(text), len(text) + len(segment["text"]), label))
        text += segment["text"]
    return text, spans


def _tag_words(text: str, spans: list[Span]) -> tuple[list[str], list[str]]:
    """The words of a text and their tags; a word that a span begins or ends within is cut there.

    >>> _tag_words("Fly to New York.", [(7, 15, "city")])
    (['Fly', 'to', 'New', 'York', '.'], ['O', 'O', 'B-city', 'I-city', 'O'])
    """
    words: list[str] = []
    tags: list[str] = []
    position = 0
    for start, end, label in [*sorted(spans), (len(text), len(text), "")]:
        if not position <= start <= end <= len(text):
            problem = "overlaps another" if start < position else f"is outside of a text of {len(text)} characters"
            raise InvalidRecord(f"the span {start} to {end} ({label}) {problem}", "misplaced span")
        outside = text[position:start]
        for piece, first, others in ((outside, "O", "O"), (text[start:end], f"B-{label}", f"I-{label}")):
            found = [piece[a:b] for a, b in split_words(piece)]
            words += found
            tags += [first, *[others] * (len(found) - 1)] if found else []
        position = end
    return words, tags
