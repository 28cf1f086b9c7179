"""Which columns of the user's data are the fields that an objective reads.

Every objective has its own names for them (`source` and `target`, `text` and `label`, …), and records reach the encoder
under these. A recipe says which column is which in `data.columns`; where it does not, columns are recognised by the
names that people give them. What is not recognised is asked for, never guessed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qkv.data.readers.columns import names_of
from qkv.data.records import Record
from qkv.errors import UsageError, nearest


@dataclass(frozen=True)
class Field:
    """A field of an objective's records, and the names under which files have it."""

    name: str
    known: tuple[str, ...] = ()
    optional: bool = False


DOCUMENTS = (
    Field("text", ("content", "document", "body", "article", "story"), optional=True),
    Field("messages", ("conversation", "conversations", "turns", "chat"), optional=True),
)
FIELDS: dict[str, tuple[Field, ...]] = {
    "pairs": (
        Field("source", ("src", "input", "document", "article", "written", "words", "question", "prompt", "text")),
        Field("target", ("tgt", "trg", "output", "summary", "iso", "digits", "answer", "completion", "translation")),
    ),
    "next_token": DOCUMENTS,
    "masked": (Field("text", DOCUMENTS[0].known),),
    "masked_sentences": (Field("text", DOCUMENTS[0].known),),
    "spans": (Field("text", DOCUMENTS[0].known),),
    "denoise": (Field("text", DOCUMENTS[0].known),),
    "classify": (
        Field("text", ("sentence", "sentence1", "premise", "first", "content", "review", "question", "text1", "a")),
        Field("second", ("sentence2", "hypothesis", "question2", "text2", "b"), optional=True),
        Field("label", ("class", "category", "sentiment", "topic", "intent"), optional=True),
        Field("score", ("similarity", "rating", "value"), optional=True),
    ),
    "tags": (
        Field("tokens", ("words", "form", "forms")),
        Field("tags", ("ner_tags", "pos_tags", "labels", "upos", "ner", "pos")),
    ),
    "answers": (
        Field("question", ("query",)),
        Field("context", ("passage", "document")),
        Field("answers", ("answers.text",)),
        Field("starts", ("answers.answer_start", "answer_start", "answer_starts")),
    ),
    "contrast": (
        Field("first", ("anchor", "query", "question", "sentence1", "text1", "a")),
        Field("second", ("positive", "document", "passage", "answer", "sentence2", "text2", "b")),
        Field("score", ("similarity", "label"), optional=True),
    ),
}


def check_columns(kind: str, columns: Mapping[str, str]) -> None:
    """Raise where `data.columns` names a field that the objective does not have."""
    known = [field.name for field in FIELDS[kind]]
    for name in columns:
        if name not in known:
            raise UsageError(f"data.columns: {kind} has no field {name!r}; {nearest(name, known)}")


def recognise(kind: str, names: Iterable[str], told: str) -> dict[str, str]:
    """Field → column, by the columns' names; an error that says what to write where one is not recognised.

    >>> recognise("pairs", ["written", "iso", "language"], "dates")
    {'source': 'written', 'target': 'iso'}
    """
    names = list(names)
    found: dict[str, str] = {}
    for field in FIELDS[kind]:
        column = next((name for name in (field.name, *field.known) if name in names), None)
        if column is not None and column not in found.values():
            found[field.name] = column
    if kind == "next_token" and "text" in found:
        found.pop("messages", None)
    if "label" in found:
        found.pop("score", None)
    missing = [field.name for field in FIELDS[kind] if field.name not in found and not field.optional]
    if kind == "next_token" and not found:
        missing = ["text"]
    if kind == "classify" and not {"label", "score"} & found.keys():
        missing.append("label")
    if missing:
        example = ", ".join(f'{name} = "…"' for name in missing)
        raise UsageError(
            f"{told}: its columns are {', '.join(names)}; which of them is the {' and the '.join(missing)}? "
            f"Write data.columns = {{{example}}} (a table without a header line: by number, from 0)"
        )
    return found


def columns_of(kind: str, record: Record, told: str) -> dict[str, str]:
    """Field → column of data whose first record is `record`."""
    return recognise(kind, names_of(record.fields), told)
