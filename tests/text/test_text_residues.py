"""Tokens of residues: any way to write a sequence gives the same ids, and only vocabularies of residues are known."""

import pytest

from qkv.text import Tokenizer
from qkv.text.residues import AMINO_ACIDS, look_like_proteins

PROTEIN = "MKTAYIAKQRQISFVKSHFSRQ"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.for_proteins()


@pytest.mark.parametrize(
    "written", [PROTEIN.lower(), " ".join(PROTEIN), PROTEIN + "*", f"{PROTEIN[:9]}-.\n{PROTEIN[9:]}"]
)
def test_ways_to_write_a_sequence(tokenizer, written):
    assert tokenizer.encode(written) == tokenizer.encode(PROTEIN)
    assert tokenizer.decode(tokenizer.encode(written)) == PROTEIN


def test_tokens_know_their_letters(tokenizer):
    ids, offsets = tokenizer.encode_with_offsets("M k-T")
    assert (tokenizer.decode(ids), offsets) == ("MKT", [(0, 1), (2, 3), (4, 5)])
    assert tokenizer.special_tokens.unk in tokenizer.encode("MK!")


def test_a_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.reads_residues


def test_a_vocabulary_of_bert_with_residues(tmp_path):
    """ProtBERT and AntiBERTy have the files of BERT, and one letter a line."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *AMINO_ACIDS]))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("AC[MASK]D", parse_special_tokens=True) == [2, 5, 6, 4, 7, 3]
    assert tokenizer.encode("a c d") == [2, 5, 6, 7, 3]
    assert tokenizer.reads_residues


def test_words_are_not_residues():
    assert not Tokenizer.train("char", iter(["some text", AMINO_ACIDS]), 100).reads_residues
    assert not Tokenizer.train("byte", iter([]), 300).reads_residues


@pytest.mark.parametrize(
    ("texts", "is_protein", "is_named_protein"),
    [
        ([PROTEIN, "GLLDTFKNLALNAAKSAG"], True, True),
        ([PROTEIN.lower()], False, True),  # lower case may be a word; a column named `sequence` has proteins
        (["POSITIVE", "NEGATIVE"], False, True),
        (["THIS IS A TEXT IN CAPITALS"], False, False),
        (["ATGGCCATTGTAATGGGCC"], False, True),  # so that the problem is named when it is read
        ([], False, False),
        ([PROTEIN] * 19 + ["12"], True, True),
        ([PROTEIN, "a text", "12"], False, False),
    ],
)
def test_proteins_are_recognised(texts, is_protein, is_named_protein):
    assert look_like_proteins(texts) == is_protein
    assert look_like_proteins(texts, are_named=True) == is_named_protein
