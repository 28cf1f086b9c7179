"""Which columns of the user's data are the fields that an objective reads.

Every objective has its own names for them (`source` and `target`, `text` and `label`, …), and records reach the encoder
under these. A recipe says which column is which in `data.columns`; where it does not, columns are recognised by the
names that people give them. What is not recognised is asked for, never guessed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qkv.data.readers.columns import nested_names
from qkv.data.records import Record
from qkv.errors import UsageError, suggest_name


@dataclass(frozen=True)
class RecordField:
    """A field of an objective's records, and the names under which files have it."""

    name: str
    column_names: tuple[str, ...] = ()
    optional: bool = False


DOCUMENTS = (
    RecordField("text", ("content", "document", "body", "article", "story"), optional=True),
    RecordField("messages", ("conversation", "conversations", "turns", "chat"), optional=True),
)
FIELDS: dict[str, tuple[RecordField, ...]] = {
    "seq2seq": (
        RecordField(
            "source", ("src", "input", "document", "article", "written", "words", "question", "prompt", "text")
        ),
        RecordField(
            "target", ("tgt", "trg", "output", "summary", "iso", "digits", "answer", "completion", "translation")
        ),
    ),
    "causal_lm": DOCUMENTS,
    "masked_lm": (RecordField("text", DOCUMENTS[0].column_names),),
    "next_sentence": (RecordField("text", DOCUMENTS[0].column_names),),
    "span_corruption": (RecordField("text", DOCUMENTS[0].column_names),),
    "denoising": (RecordField("text", DOCUMENTS[0].column_names),),
    "classification": (
        RecordField(
            "text", ("sentence", "sentence1", "premise", "first", "content", "review", "question", "text1", "a")
        ),
        RecordField("second", ("sentence2", "hypothesis", "question2", "text2", "b"), optional=True),
        RecordField("label", ("class", "category", "sentiment", "topic", "intent"), optional=True),
        RecordField("score", ("similarity", "rating", "value"), optional=True),
    ),
    "tagging": (
        RecordField("tokens", ("words", "form", "forms")),
        RecordField("tags", ("ner_tags", "pos_tags", "labels", "upos", "ner", "pos")),
    ),
    "question_answering": (
        RecordField("question", ("query",)),
        RecordField("context", ("passage", "document")),
        RecordField("answers", ("answers.text",)),
        RecordField("starts", ("answers.answer_start", "answer_start", "answer_starts")),
    ),
    "contrastive": (
        RecordField("first", ("anchor", "query", "question", "sentence1", "text1", "a")),
        RecordField("second", ("positive", "document", "passage", "answer", "sentence2", "text2", "b")),
        RecordField("score", ("similarity", "label"), optional=True),
    ),
}


def check_columns(kind: str, columns: Mapping[str, str]) -> None:
    """Raise where `data.columns` names a field that the objective does not have."""
    known = [field.name for field in FIELDS[kind]]
    for name in columns:
        if name not in known:
            raise UsageError(f"data.columns: {kind} has no field {name!r}; {suggest_name(name, known)}")


def match_columns(kind: str, names: Iterable[str], data_name: str) -> dict[str, str]:
    """Field → column, by the columns' names; an error that says what to write where one is not recognised.

    >>> match_columns("seq2seq", ["written", "iso", "language"], "dates")
    {'source': 'written', 'target': 'iso'}
    """
    names = list(names)
    found: dict[str, str] = {}
    for field in FIELDS[kind]:
        column = next((name for name in (field.name, *field.column_names) if name in names), None)
        if column is not None and column not in found.values():
            found[field.name] = column
    if kind == "causal_lm" and "text" in found:
        found.pop("messages", None)
    if "label" in found:
        found.pop("score", None)
    missing = [field.name for field in FIELDS[kind] if field.name not in found and not field.optional]
    if kind == "causal_lm" and not found:
        missing = ["text"]
    if kind == "classification" and not {"label", "score"} & found.keys():
        missing.append("label")
    if missing:
        example = ", ".join(f'{name} = "…"' for name in missing)
        raise UsageError(
            f"{data_name}: its columns are {', '.join(names)}; which of them is the {' and the '.join(missing)}? "
            f"Write data.columns = {{{example}}} (a table without a header line: by number, from 0)"
        )
    return found


def match_record_columns(kind: str, record: Record, data_name: str) -> dict[str, str]:
    """Field → column of data whose first record is `record`."""
    return match_columns(kind, nested_names(record.fields), data_name)
