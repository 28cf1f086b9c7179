"""Files of proteins: FASTA in all its forms, three lines for each protein, and what is wrong with a sequence."""

import gzip

import pytest
from data_fakes import counts, fields_of, write

from qkv.data import DataFiles, Problems
from qkv.data.modalities import load_texts
from qkv.data.records import FileLocation, Record

FASTA = ">one a sensor\nMKTAYIAKQR\nQISFVKSHFS\n\n>two\nGLLDTFKNLALN\n"
ONE, TWO = "MKTAYIAKQRQISFVKSHFS", "GLLDTFKNLALN"


@pytest.mark.parametrize("name", ["a.fasta", "a.fa", "a.FAA", "a.txt", "a.fasta.gz", "a.txt.gz"])
def test_fasta_by_its_extension_or_its_first_lines(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(FASTA.encode()) if name.endswith(".gz") else FASTA.encode())
    assert fields_of(path) == [{"id": "one a sensor", "sequence": ONE}, {"id": "two", "sequence": TWO}]


@pytest.mark.parametrize(
    ("lines", "expected", "category"),
    [
        ("MKTAY\nIAKQR", "MKTAYIAKQR", None),
        ("MKT AYI\n  AKQR ", "MKTAYIAKQR", None),
        ("MKTAYIAKQR\r", "MKTAYIAKQR", "CR LF line ends"),
        ("; a comment\nMKTAY", "MKTAY", None),
        ("mktAYiakqr", "MKTAYIAKQR", "lower case"),
        ("MKTAYIAKQR*", "MKTAYIAKQR", "end of translation"),
        ("MK--TAY.IAKQR", "MKTAYIAKQR", "gaps"),
        ("MKXBZUOJ", "MKXBZUOX", "ambiguous residues"),
        ("MK*TAY", None, "stop inside a sequence"),
        ("MKT1AY", None, "digit in a sequence"),
        ("1 MKTAY 5", None, "digit in a sequence"),
        ("MKT!AY", None, "not a residue"),
        ("ATGGCCATTGTAATGGGCCGC", None, "DNA, not protein"),
        ("auggccauuguaaugggccgc", None, "DNA, not protein"),
        ("GGGGSGGGGSGGGGSGGGGS", "GGGGSGGGGSGGGGSGGGGS", None),
        ("ACGT", "ACGT", None),  # a short peptide may have these letters
        ("", None, "empty sequence"),
    ],
)
def test_what_a_sequence_becomes(tmp_path, lines, expected, category):
    problems = Problems(max_invalid_fraction=1)
    path = write(tmp_path, "a.fasta", f">first\n{lines}\n>last\n{TWO}\n")
    found = [record.fields["sequence"] for record in DataFiles(path).records(problems)]
    assert found == [*([] if expected is None else [expected]), TWO]
    assert (problems.num_seen, problems.num_invalid) == (2, int(expected is None))
    assert category is None or category in counts(problems)
    if expected is None:
        assert f"{path}:1" in str(problems.summary())


def test_lines_before_the_first_header_and_lines_that_cannot_be_read(tmp_path):
    problems = Problems(max_invalid_fraction=1)
    path = write(tmp_path, "a.fasta", b"MKTAY\nMKT\n>bad\nMK\xff\n>good\nMKTAYIAK\n")
    assert [one.fields["id"] for one in DataFiles(path).records(problems)] == ["good"]
    assert {"no header": 1, "invalid UTF-8": 1}.items() <= counts(problems).items()
    assert problems.num_seen == 3


THREE = ">one\nMKTAYIAKQR\nCCHHHHHHCC\n>two\nGLLDTFKNLALN\nCCCHHHHEEEEE\n"


@pytest.mark.parametrize("mark", [">", ""])
@pytest.mark.parametrize("name", ["residues.txt", "residues.3line", "residues.fasta"])
def test_three_lines_for_each_protein(tmp_path, name, mark):
    if not mark and name == "residues.fasta":
        pytest.skip("a FASTA file has marks")
    found = fields_of(write(tmp_path, name, THREE.replace(">", mark)))
    assert found[0] == {"id": "one", "tokens": list("MKTAYIAKQR"), "tags": list("CCHHHHHHCC")}
    assert found[1] == {"id": "two", "tokens": list(TWO), "tags": list("CCCHHHHEEEEE")}


def test_a_sequence_of_two_lines_is_not_one_with_labels(tmp_path):
    path = write(tmp_path, "a.fasta", f">one\n{ONE}\n{ONE[::-1]}\n>two\n{TWO}\n{TWO[::-1]}\n")
    assert fields_of(path)[0] == {"id": "one", "sequence": ONE + ONE[::-1]}


def test_labels_that_do_not_fit_are_a_problem(tmp_path):
    problems = Problems(max_invalid_fraction=1)
    text = THREE + ">three\nMKTAY\nCCC\n>four\nMKTAY\n"
    found = list(DataFiles(write(tmp_path, "a.3line", text)).records(problems))
    assert len(found) == 2
    assert counts(problems) == {"uneven lengths": 2}
    assert "5 residues, but 3 labels" in str(problems.summary())


def test_sequences_and_labels_of_a_table():
    """Texts and lists in other files, as `data.modality = "protein"` reads them."""

    def load(fields):
        problems = Problems(max_invalid_fraction=1)
        record = Record(fields, FileLocation("a.csv", 2))
        found = [one.fields for one in load_texts([record], "protein", ["text", "tokens"], problems)]
        return found, sorted(counts(problems))

    assert load({"text": "mktay*", "label": "x"})[0] == [{"text": "MKTAY", "label": "x"}]
    assert load({"tokens": ["m", "K"], "tags": ["H", "E"]})[0] == [{"tokens": ["M", "K"], "tags": ["H", "E"]}]
    assert load({"text": "MK3"}) == ([], ["digit in a sequence"])
    assert load({"tokens": ["M", "-"], "tags": ["H", "E"]}) == ([], ["gaps", "uneven lists"])
