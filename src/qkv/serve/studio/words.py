"""The answer for a text without one of its words: which words does the answer depend on?"""

from typing import Any

from qkv.api import Model
from qkv.errors import UsageError
from qkv.serve.studio.document import check_num_tokens
from qkv.serve.studio.requests import MAX_WORDS, TraceRequest
from qkv.serve.studio.results import find_results, read_text
from qkv.serve.studio.switches import make_edits
from qkv.text.words import split_words


def leave_words_out(model: Model, request: TraceRequest) -> dict[str, Any]:
    """The answer to the text, and to the text without each of its words."""
    check_num_tokens(len(read_text(model, request.text)[0]), "text")
    spans = split_words(request.text)
    if len(spans) > MAX_WORDS:
        raise UsageError(f"the text has {len(spans)} words, and at most {MAX_WORDS} are left out in turn; shorten it")
    shorter = [remove_word(request.text, start, end) for start, end in spans]
    usable = [number for number, text in enumerate(shorter) if text.strip()]
    edits = make_edits(model.config, request.off)
    answers = find_results(model, [request.text, *(shorter[number] for number in usable)], edits)
    return {
        "answer": answers[0].text,
        "words": [
            {"word": request.text[slice(*spans[number])], "text": shorter[number], "answer": answer.text}
            for number, answer in zip(usable, answers[1:], strict=True)
        ],
    }


def remove_word(text: str, start: int, end: int) -> str:
    """The text without the characters of a word, and without the space that would be left over.

    >>> remove_word("the red cat", 4, 7), remove_word("a cat", 2, 5)
    ('the cat', 'a')
    """
    before, after = text[:start], text[end:]
    if not before or before[-1].isspace():
        after = after.removeprefix(" ")
    return (before + after).rstrip() if not after.strip() else before + after
