"""Proteins as texts: the letters of residues, the vocabulary of ESM, and what tells a sequence from other texts."""

import re
from collections.abc import Collection, Iterable, Mapping
from statistics import fmean, pstdev

from tokenizers import Regex, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
AMBIGUOUS = "BJXZ"
"""B is D or N, Z is E or Q, J is I or L, and X is any residue."""
RESIDUES = frozenset(AMINO_ACIDS + AMBIGUOUS + "UO")  # and selenocysteine and pyrrolysine
GAPS = ".-"
ESM_TOKENS = ("<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO", *GAPS, "<null_1>", "<mask>")
SPELLING = re.compile(r"<.+>|\[.+\]")  # of a special token
NUCLEOTIDES = frozenset("ACGTUN")
MIN_DNA = 15  # shorter sequences of these letters may be peptides
KMER = 3  # residues of a word, where texts are compared by their words
MIN_SEQUENCE = 8  # a shorter text of capitals may be a word
MIN_STANDARD = 0.95  # the fraction of the 20 amino acids among the letters of a protein; of English words it is 0.88
MAX_RESIDUE_TOKENS = 256  # of a vocabulary of residues; larger ones are not looked at
MIN_LETTERS = 8  # different ones in all texts together; codes have fewer

PROPERTIES = {
    "A": (1.8, 88.6, 0.0),
    "C": (2.5, 108.5, 0.68),
    "D": (-3.5, 111.1, 0.69),
    "E": (-3.5, 138.4, 0.4),
    "F": (2.8, 189.9, 0.54),
    "G": (-0.4, 60.1, 1.0),
    "H": (-3.2, 153.2, 0.61),
    "I": (4.5, 166.7, 0.41),
    "K": (-3.9, 168.6, 0.26),
    "L": (3.8, 166.7, 0.21),
    "M": (1.9, 162.9, 0.24),
    "N": (-3.5, 114.1, 0.65),
    "P": (-1.6, 112.7, 3.16),
    "Q": (-3.5, 143.8, 0.39),
    "R": (-4.5, 173.4, 0.21),
    "S": (-0.8, 89.0, 0.5),
    "T": (-0.7, 116.1, 0.66),
    "V": (4.2, 140.0, 0.61),
    "W": (-0.9, 227.8, 0.49),
    "Y": (-1.3, 193.6, 0.53),
}
"""Hydropathy (Kyte and Doolittle 1982), volume in Å³ (Zamyatnin 1972), cost in a helix (Pace and Scholtz 1998)."""
GROUPS = ("KR", "DE", "FWYH", "VIT", "P", "G", "STNQ")
"""Positive, negative, aromatic, branched at the β carbon, proline, glycine, polar without charge."""


def describe_residues(tokens: Iterable[str | None]) -> list[list[float]]:
    """The properties of each token that is an amino acid, each with mean 0 and variance 1; zeros for other tokens.

    >>> [len(one) for one in describe_residues(["A", "<pad>"])], describe_residues(["<pad>"])[0][0]
    ([10, 10], 0.0)
    """
    columns = [*zip(*(PROPERTIES[residue] for residue in AMINO_ACIDS), strict=True)]
    columns += [tuple(float(residue in group) for residue in AMINO_ACIDS) for group in GROUPS]
    scaled = [[(value - fmean(column)) / pstdev(column) for value in column] for column in columns]
    by_residue = dict(zip(AMINO_ACIDS, map(list, zip(*scaled, strict=True)), strict=True))
    return [by_residue.get(token or "", [0.0] * len(columns)) for token in tokens]


def looks_like_dna(sequence: str) -> bool:
    """Whether a sequence has only letters of nucleotides, at least three of them.

    >>> looks_like_dna("ATGGCCATTGTAATGGGCC"), looks_like_dna("GLLDTFKNLALNAAKSAG"), looks_like_dna("GGGGSGGGGSGGGGS")
    (True, False, False)
    """
    letters = set(sequence.upper())
    return len(sequence) >= MIN_DNA and letters <= NUCLEOTIDES and len(letters - {"N"}) >= 3


def look_like_proteins(texts: Collection[str], *, are_named: bool = False) -> bool:
    """Whether texts are sequences of residues: nine of ten are one word of these letters.

    Without a column name that says so (`are_named`), they must be long capitals with the frequencies of proteins.

    >>> look_like_proteins(["MKTAYIAKQRQISFVK", "GLLDTFKNLALNAAKSAG"]), look_like_proteins(["POSITIVE", "NEGATIVE"])
    (True, False)
    """
    stripped = [join_letters(text).strip().rstrip("*") for text in texts]
    words = [text for text in stripped if text and not set(text.upper()) - RESIDUES - set(GAPS)]
    letters = "".join(words)
    if not words or 10 * len(words) < 9 * len(stripped):
        return False
    if are_named:
        return True
    standard = sum(map(letters.count, AMINO_ACIDS))
    is_long = len(letters) >= MIN_SEQUENCE * len(words) and len(set(letters)) >= MIN_LETTERS
    return is_long and standard >= MIN_STANDARD * len(letters) and not any(map(looks_like_dna, words))


def join_letters(text: str) -> str:
    """A text of single letters with a space between them without the spaces; any other text as it is.

    >>> join_letters("M K T"), join_letters("a text")
    ('MKT', 'a text')
    """
    return text if text[1::2].strip() else text[::2]


def split_kmers(text: str) -> list[str]:
    """The overlapping words of three residues of a sequence; none if the text is not one sequence of capitals.

    The residues may have a space between them.

    >>> split_kmers("MKTAYIAK"), split_kmers("M K T A Y I A K")[:2], split_kmers("POSITIVE ideas")
    (['mkt', 'kta', 'tay', 'ayi', 'yia', 'iak'], ['mkt', 'kta'], [])
    """
    text = join_letters(text)
    if len(text) < MIN_SEQUENCE or not text.isupper() or not RESIDUES.issuperset(text):
        return []
    return [text[start : start + KMER].lower() for start in range(len(text) - KMER + 1)]


def is_residue_vocabulary(tokens: Collection[str]) -> bool:
    """Whether a vocabulary has the amino acids, and nothing else but gaps and special tokens."""
    if len(tokens) > MAX_RESIDUE_TOKENS:
        return False
    letters = {token for token in tokens if not SPELLING.fullmatch(token)}
    return letters.issuperset(AMINO_ACIDS) and letters <= RESIDUES | set(GAPS) | {"*", ""}


def make_residue_backend(vocabulary: Mapping[str, int], unk: str) -> Backend:
    """A tokenizer with one token for each residue. It reads lower case as capitals.

    It skips white space, gaps and the `*` at the end of a translation.
    """
    backend = Backend(models.BPE(dict(vocabulary), [], unk_token=unk))
    skip = normalizers.Replace(Regex(r"[\s.\-]|\*\s*\z"), "")
    capitals = [normalizers.Replace(letter.lower(), letter) for letter in sorted(RESIDUES)]
    backend.normalizer = normalizers.Sequence([skip, *capitals])
    backend.decoder = decoders.Fuse()
    return backend
