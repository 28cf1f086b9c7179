"""The modality `protein`: a text of residues, as files have it, becomes one in capitals without gaps."""

from qkv.data.problems import InvalidRecord, Problems
from qkv.data.records import FileLocation
from qkv.text.residues import AMBIGUOUS, GAPS, RESIDUES, looks_like_dna

COLUMN_NAMES = ("sequence", "seq", "protein", "peptide", "protein_sequence", "peptide_sequence", "aa_seq", "primary")
"""Names of columns that have proteins."""


def load_sequence(text: str, problems: Problems, location: FileLocation) -> str:
    """The residues of a text, in capitals. Notes count what was changed; `InvalidRecord` says why it is no protein."""
    sequence = "".join(text.split())
    if sequence.endswith("*"):
        problems.note("end of translation", location, "the * at the end of a sequence is left out")
        sequence = sequence.rstrip("*")
    if any(gap in sequence for gap in GAPS):
        problems.note("gaps", location, "gaps (- and .) are left out")
        sequence = "".join(residue for residue in sequence if residue not in GAPS)
    if sequence != sequence.upper():
        problems.note("lower case", location, "lower-case residues are read as capitals")
        sequence = sequence.upper()
    if not sequence:
        raise InvalidRecord("the sequence has no residues", "empty sequence")
    if wrong := set(sequence) - RESIDUES:
        first = next(residue for residue in sequence if residue in wrong)
        raise InvalidRecord(*describe_wrong(first, sequence.index(first) + 1))
    if looks_like_dna(sequence):
        reason = f"{sequence[:20]}… has only the letters of nucleotides; translate it, and give the protein"
        raise InvalidRecord(reason, "DNA, not protein")
    if any(residue in AMBIGUOUS for residue in sequence):
        problems.note("ambiguous residues", location, "B, X and Z are tokens of their own; J (I or L) is read as X")
        sequence = sequence.replace("J", "X")
    return sequence


def describe_wrong(residue: str, position: int) -> tuple[str, str]:
    """The reason and the category of a character that is not a residue."""
    if residue.isdigit():
        return f"the digit {residue!r} at residue {position}; a sequence has only letters", "digit in a sequence"
    if residue == "*":
        return f"a stop (*) at residue {position}, before the end of the sequence", "stop inside a sequence"
    return f"{residue!r} at residue {position} is not the letter of a residue", "not a residue"
