"""Match the columns of the user's data to the fields that an objective reads.

Every objective has its own field names (`source` and `target`, `text` and `label`, …), and the records that are encoded
have these names. A recipe can assign columns in `data.columns`; otherwise columns are recognised by common names. If no
column is recognised for a field, an error asks for it.
"""

from collections.abc import Collection, Iterable, Mapping

from qkv.data import Problems
from qkv.data.objectives.table import OBJECTIVES
from qkv.errors import UsageError, suggest_name


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
    preferred = next((name for name in spec.alternatives if name in found), None)
    for name in spec.alternatives:
        if name != preferred:
            found.pop(name, None)
    missing = spec.describe_missing(found)
    if missing:
        example = ", ".join(f'{name.partition(" or ")[0]} = "…"' for name in missing)
        raise UsageError(
            f"{data_name}: no column is recognised as the {' and the '.join(missing)} that {kind} needs; the columns "
            f"are {', '.join(names)}. Write data.columns = {{{example}}} (numbers from 0, if a table has no "
            "header line)"
        )
    return found
