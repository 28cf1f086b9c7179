"""SQuAD's articles → paragraphs → questions, flattened to one record for each question.

Versions 1.1 and 2.0: an unanswerable question has no answers. Fields: `id`, `question`, `context`, `answers` (texts)
and `starts` (their first characters in the context), the last two of equal length.
"""

from collections.abc import Iterator
from typing import Any

from qkv.data.problems import InvalidRecord


def is_squad(document: Any) -> bool:
    """Whether the document has SQuAD's structure."""
    articles = document.get("data") if isinstance(document, dict) else None
    return isinstance(articles, list) and any(
        isinstance(article, dict) and "paragraphs" in article for article in articles[:10]
    )


def squad_rows(document: dict[str, Any]) -> Iterator[dict[str, Any] | InvalidRecord]:
    """One row for each question; a malformed question gives an `InvalidRecord`."""
    for article in document["data"]:
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            yield InvalidRecord("an article without paragraphs", "missing field")
            continue
        for paragraph in paragraphs:
            context = paragraph.get("context") if isinstance(paragraph, dict) else None
            questions = paragraph.get("qas") if isinstance(paragraph, dict) else None
            if not isinstance(context, str) or not isinstance(questions, list):
                yield InvalidRecord("a paragraph without context or qas", "missing field")
                continue
            yield from (_question_row(question, context) for question in questions)


def _question_row(question: Any, context: str) -> dict[str, Any] | InvalidRecord:
    if not isinstance(question, dict) or not isinstance(question.get("question"), str):
        return InvalidRecord("a question without text", "missing field")
    name = str(question.get("id", ""))
    answers = question.get("answers")
    if not isinstance(answers, list):
        return InvalidRecord(f"question {name!r} has no list of answers", "missing field")
    texts, starts = [], []
    for answer in answers if not question.get("is_impossible") else []:
        text = answer.get("text") if isinstance(answer, dict) else None
        start = answer.get("answer_start") if isinstance(answer, dict) else None
        if not isinstance(text, str) or type(start) is not int:
            return InvalidRecord(f"question {name!r}: an answer without text or answer_start", "missing field")
        if start < 0 or context[start : start + len(text)] != text:
            reason = f"question {name!r}: the answer {text[:40]!r} is not at character {start} of the context"
            return InvalidRecord(reason, "misplaced answer")
        texts.append(text)
        starts.append(start)
    return {"id": name, "question": question["question"], "context": context, "answers": texts, "starts": starts}
