"""Match the columns of the user's data to the fields that an objective reads.

Every objective has its own field names (`source` and `target`, `text` and `label`, …), and the records that are encoded
have these names. A recipe can assign columns in `data.columns`; otherwise columns are recognised by common names. If no
column is recognised for a field, training stops with an error; `qkv init` and `qkv eval` guess the column
(`guess_columns.py`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from qkv.data import Problems, Record
from qkv.data.modalities import TextModality
from qkv.data.objectives.table import OBJECTIVES, RecordField
from qkv.data.proteins import COLUMN_NAMES
from qkv.data.readers.columns import get_nested
from qkv.errors import UsageError, suggest_name
from qkv.sounds.config import SOUND_FIELD
from qkv.text.residues import look_like_proteins


class UnrecognisedColumns(UsageError):
    """No column is recognised as a field that an objective needs. Programs may guess columns and try again."""

    def __init__(
        self,
        problem: str,
        advice: str,
        names: Sequence[str],
        records: Sequence[Record] = (),
        formats: Collection[str] = (),
    ) -> None:
        super().__init__(f"{problem}. {advice}")
        self.problem, self.advice = problem, advice
        self.names, self.records, self.formats = names, records, formats  # columns, first records, formats of files


def field_names(kind: str) -> list[str]:
    """The fields of an objective's records.

    >>> field_names("tagging")
    ['tokens', 'tags']
    """
    return [field.name for field in OBJECTIVES[kind].fields]


def check_columns(kind: str, columns: Mapping[str, str], where: str = "data.columns", reader: str = "") -> None:
    """Raise an error if `columns` has a field that the objective does not have."""
    known = field_names(kind)
    for name in columns:
        if name not in known:
            raise UsageError(f"{where}: {reader or kind} has no field {name!r}; {suggest_name(name, known)}")


def check_num_classes(classes: Collection[str], data_name: str, problems: Problems) -> None:
    """Raise an error if there are fewer than two classes to choose from."""
    if len(classes) < 2:
        invalid = f"\n{problems.summary()}" if problems.num_invalid else ""
        raise UsageError(
            f"{data_name}: all labels are {', '.join(classes) or 'missing'}, but a classifier needs at least two "
            f"classes; if the label is in another column, name it in data.columns (qkv init: --columns){invalid}"
        )


def match_columns(kind: str, names: Iterable[str], data_name: str) -> dict[str, str]:
    """Map each field to a column by the columns' names, in upper or lower case.

    If there is no column for a field, an error says what to do.

    >>> match_columns("seq2seq", ["written", "iso", "language"], "dates")
    {'source': 'written', 'target': 'iso'}
    """
    names = list(names)
    found: dict[str, str] = {}
    for field in OBJECTIVES[kind].fields:
        known = known_columns(field, names)
        if known and known[0] not in found.values():
            found[field.name] = known[0]
    is_single = any(one.unless and one.name not in found for one in OBJECTIVES[kind].fields)
    if is_single and found.get("score", "").lower() == "label":  # only the score of a pair can have this name
        found["label"] = found.pop("score")
    found = drop_alternatives(kind, found)
    missing = OBJECTIVES[kind].describe_missing(found)
    if missing:
        example = ", ".join(f'{name.partition(" or ")[0]} = "…"' for name in missing)
        raise UnrecognisedColumns(
            f"{data_name}: no column is recognised as the {' and the '.join(missing)} that {kind} needs; the columns "
            f"are {', '.join(names)}",
            f"Write data.columns = {{{example}}} (numbers from 0, if a table has no header line)",
            names,
        )
    return found


def known_columns(field: RecordField, names: Sequence[str]) -> list[str]:
    """The columns whose names are known for a field, in upper or lower case, the most usual name first.

    >>> known_columns(RecordField("label", ("topic", "class")), ["Class", "topic", "text"])
    ['topic', 'Class']
    """
    by_lower = {name.lower(): name for name in reversed(names)} | {name: name for name in names}
    known = (field.name, *field.column_names, *(COLUMN_NAMES if field.modality in ("text", "words") else ()))
    return [by_lower[name] for name in known if name in by_lower]


def find_modality(kind: str, records: Sequence[Record], columns: Mapping[str, str] | None = None) -> TextModality:
    """The modality of the texts in these records, or "" for text: proteins are recognised by their letters.

    `columns` has the columns of fields that the records do not have.
    """
    fields = [field.name for field in OBJECTIVES[kind].fields if field.modality in ("text", "words")]
    for column in {(columns or {}).get(name, name) for name in fields}:
        values = [value for record in records if (value := get_nested(record.fields, column)) is not None]
        texts = ["".join(map(str, value)) if isinstance(value, list) else str(value) for value in values]
        if look_like_proteins(texts, are_named=column.lower() in COLUMN_NAMES):
            return "protein"
    return ""


def drop_alternatives(kind: str, found: Mapping[str, str]) -> dict[str, str]:
    """Remove fields that are not read beside others, such as a score beside a label."""
    spec = OBJECTIVES[kind]
    groups = (sorted(group, key=lambda name: name != SOUND_FIELD) for group in spec.alternatives)  # not its transcript
    dropped = {name for group in groups for name in [name for name in group if name in found][1:]}
    for one in spec.fields:  # a single text has a label or a score, and a pair only a score
        if one.unless and {one.name, "score"} & found.keys():
            dropped.add("label")
    kept = {name: column for name, column in found.items() if name not in dropped}
    dropped = {field.name for field in spec.fields if field.only_with and field.only_with not in kept}
    return {name: column for name, column in kept.items() if name not in dropped}
