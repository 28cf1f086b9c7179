"""Match the columns of the user's data to the fields that an objective reads.

Every objective has its own field names (`source` and `target`, `text` and `label`, …), and the records that are encoded
have these names. A recipe can assign columns in `data.columns`; otherwise columns are recognised by common names. If no
column is recognised for a field, training stops with an error; `qkv init` and `qkv eval` guess the column.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from qkv.data import Problems, Record
from qkv.data.objectives.table import OBJECTIVES
from qkv.data.readers.columns import get_nested, is_number
from qkv.errors import UsageError, suggest_name
from qkv.text.bm25 import normalized_words

COPIED_FRACTION = 0.9
"""A column is a copy of another if more than this fraction of its values have the same words."""


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
    by_lower = {name.lower(): name for name in reversed(names)} | {name: name for name in names}
    spec = OBJECTIVES[kind]
    found: dict[str, str] = {}
    for field in spec.fields:
        known = (field.name, *field.column_names)
        column = next((by_lower[name] for name in known if name in by_lower), None)
        if column is not None and column not in found.values():
            found[field.name] = column
    for group in spec.alternatives:
        for name in [name for name in group if name in found][1:]:
            found.pop(name)
    for field in spec.fields:
        if field.only_with and field.only_with not in found:
            found.pop(field.name, None)
    missing = spec.describe_missing(found)
    if missing:
        example = ", ".join(f'{name.partition(" or ")[0]} = "…"' for name in missing)
        raise UnrecognisedColumns(
            f"{data_name}: no column is recognised as the {' and the '.join(missing)} that {kind} needs; the columns "
            f"are {', '.join(names)}",
            f"Write data.columns = {{{example}}} (numbers from 0, if a table has no header line)",
            names,
        )
    return found


def guess_columns(kind: str, names: Sequence[str], records: Sequence[Record] = ()) -> dict[str, str]:
    """Assign the columns, in their order, to the required fields; the user can correct the guess.

    Columns of ids are left out; if too few remain, an id that occurs repeatedly may be a label. The label of a
    classifier is the column with the fewest different values (a score, if they are fractions), its text is the longest
    of the other columns, and another text of similar length makes a pair.
    The texts of embeddings are the first columns that are not numbers, and the next column of numbers is the score.

    >>> guess_columns("seq2seq", ["en", "de"])
    {'source': 'en', 'target': 'de'}
    """
    required = OBJECTIVES[kind].required_fields
    values = {name: [str(get_nested(record.fields, name)) for record in records] for name in names}
    ids = {name for name in names if is_id_column(name, values[name])}
    columns = [name for name in names if name not in ids]
    has_label = OBJECTIVES[kind].class_field == "label"
    if has_label and len(columns) < len(required):
        columns = [name for name in names if name not in ids or len(set(values[name])) < len(values[name])]
    if has_label and records and len(columns) >= len(required):
        return _guess_class_columns(columns, values)
    numbers = [name for name in columns if records and all(map(is_number, values[name]))]
    texts = [name for name in columns if kind != "contrastive" or name not in numbers]
    if len(texts) < len(required):
        raise UsageError(
            f"the data has the columns {', '.join(names)}, but {kind} needs {len(required)} ({', '.join(required)}); "
            "add the missing columns"
        )
    guessed = dict(zip(required, texts, strict=False))
    after = columns[columns.index(texts[len(required) - 1]) + 1 :]
    score = next((name for name in after if kind == "contrastive" and name in numbers), None)
    return guessed if score is None else {**guessed, "score": score}


def _guess_class_columns(columns: Sequence[str], values: Mapping[str, Sequence[str]]) -> dict[str, str]:
    lengths = {name: sum(map(len, values[name])) for name in columns}
    label = min(columns, key=lambda name: (len(set(values[name])), lengths[name]))
    others = [name for name in columns if name != label]
    words = [name for name in others if any(map(str.isalpha, "".join(values[name])))]  # no numbers and dates
    others = [name for name in others if is_text_column(values[name])] or words or others
    longest = max(others, key=lambda name: lengths[name])
    texts = [name for name in others if 2 * lengths[name] >= lengths[longest]]
    if len(texts) != 2 or is_copy(*(values[name] for name in texts)):
        texts = [longest]
    is_score = all(map(is_number, values[label])) and any(float(value) % 1 for value in values[label])
    return {**dict(zip(("text", "second"), texts, strict=False)), "score" if is_score else "label": label}


def is_id_column(name: str, values: Sequence[str]) -> bool:
    """Whether a column has ids: its name is `id`, or ends like `user_id`, and no value has spaces.

    >>> is_id_column("user_id", ["u1", "u2"]), is_id_column("text_id", ["Selamat pagi", "Terima kasih"])
    (True, False)
    """
    return name.lower().split("_")[-1] == "id" and not any(" " in value.strip() for value in values)


def is_text_column(values: Sequence[str]) -> bool:
    """Whether most values have several words.

    >>> is_text_column(["so good", "bad", "not bad"]), is_text_column(["2021-05-03 10:03", "2021-05-04 11:17"])
    (True, False)
    """
    num_texts = sum(sum(map(str.isalpha, normalized_words(value))) > 1 for value in values)
    return 2 * num_texts > len(values)


def is_copy(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether nearly all pairs of values have the same words, as a text and its normalised form have."""
    num_same = sum(normalized_words(a) == normalized_words(b) for a, b in zip(first, second, strict=True))
    return num_same > COPIED_FRACTION * len(first)
