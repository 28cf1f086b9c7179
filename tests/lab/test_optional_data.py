"""Claims that measure more with `--data`: the files are read, the measures appear, and wrong files are errors."""

from pathlib import Path

import pytest

from qkv.errors import UsageError
from qkv_lab.claims.running.beam_search import BLEU, read_pairs
from qkv_lab.claims.understanding.layers_probes import TREEBANK
from qkv_lab.claims.uses.word_vectors import DATA_ACCURACY, PRETRAINED, RANDOM, SHUFFLED, read_examples
from qkv_lab.registry import find_claim
from qkv_lab.run import ClaimResult, run_claim

WORDS = ("good", "fine", "bad", "poor")


def run_mini(name: str, data: Path) -> ClaimResult:
    claim = find_claim(name)
    assert claim.optional_data
    result = run_claim(claim, "mini", data=data)
    assert len(claim.charts_of(result.table)) == len(claim.charts), "with data, every chart has its measure"
    assert len(result.checks()) > len(run_claim(claim, "mini").checks()), "and there are further checks"
    return result


def write_examples(path: Path, count: int) -> None:
    rows = [f"it is {WORDS[i % 4]} {i}\t{'yes' if i % 4 < 2 else 'no'}" for i in range(count)]
    path.write_text("text\tlabel\n" + "".join(row + "\n" for row in rows))


def test_word_vectors_of_a_file(tmp_path: Path) -> None:
    write_examples(tmp_path / "train.tsv", 60)
    write_examples(tmp_path / "test.tsv", 8)
    vectors = [f"{word} {0.5 if i < 2 else -0.5} 0.25 -0.125\n" for i, word in enumerate(WORDS)]
    (tmp_path / "vectors.txt").write_text("".join(vectors))
    table = run_mini("word-vectors", tmp_path).table
    assert table.series(DATA_ACCURACY) == [RANDOM, PRETRAINED, SHUFFLED]
    assert table.xs(DATA_ACCURACY) == [20, 40]
    assert all(0 <= value <= 1 for name in (RANDOM, PRETRAINED) for value in table.curve(DATA_ACCURACY, name).values())


def test_word_vectors_need_tables_of_examples(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a folder with train\.tsv, test\.tsv and vectors\.txt"):
        read_examples(tmp_path / "train.tsv")
    (tmp_path / "train.tsv").write_text("good film\tyes\n")
    with pytest.raises(UsageError, match="first line must be text, a tab, and label"):
        read_examples(tmp_path / "train.tsv")


def test_beam_search_with_pairs_has_bleu(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("I am here.\tJe suis ici.\nThe cat sleeps.\tLe chat dort.\nThank you.\tMerci.\n")
    table = run_mini("beam-search", pairs).table
    assert table.xs(BLEU) == [1, 2, 4]
    assert all(0 <= value <= 100 for series in table.series(BLEU) for value in table.curve(BLEU, series).values())


def test_pairs_have_a_tab(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("I am here.\tJe suis ici.\nThe cat sleeps.\n")
    with pytest.raises(UsageError, match="line 2: no pair of sentences"):
        read_pairs(pairs, 10)
    pairs.write_text("a\tb\n" * 5)
    assert len(read_pairs(pairs, 3)) == 3


def test_probes_read_a_treebank(tmp_path: Path) -> None:
    treebank = tmp_path / "tiny.conllu"
    sentence = "1\tDogs\tdog\tNOUN\t_\t_\t2\tnsubj:pass\t_\t_\n2\tbark\tbark\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    treebank.write_text(sentence * 30)
    assert TREEBANK in run_mini("layers-probes", treebank).table.measures()
    treebank.write_text(sentence)
    with pytest.raises(UsageError, match="1 sentences, but this size needs 30"):
        run_claim(find_claim("layers-probes"), "mini", data=treebank)
