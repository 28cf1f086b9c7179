"""Proteins from files to predictions: `qkv init` recognises them, and each task trains, runs and is evaluated."""

import json
import random
import tomllib
from pathlib import Path

import pytest

import qkv
from qkv.errors import QkvError, UsageError
from qkv.tasks.starters.recipe import starter_recipe
from qkv.tasks.train import train
from qkv.text.residues import AMINO_ACIDS
from qkv.train.recipe.recipe_file import read

SMALL = ["model.width=32", "model.layers=1", "train.minutes=0", "train.steps=8", "train.eval_examples=8"]


def sequences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(AMINO_ACIDS, k=rng.randint(12, 40))) for _ in range(count)]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """The files that biologists have: FASTA, tables of peptides and of mutants, labels of residues."""
    folder = tmp_path_factory.mktemp("proteins")
    found = sequences(60)
    (folder / "proteins.fasta").write_text("".join(f">p{i}\n{one[:20]}\n{one[20:]}\n" for i, one in enumerate(found)))
    rows = "".join(f"p{i},{one},{'amp' if one.count('K') > 1 else 'other'}\n" for i, one in enumerate(found))
    (folder / "peptides.csv").write_text("name,sequence,label\n" + rows)
    rows = "".join(f"{one},{one.count('K') / len(one):.3f}\n" for one in found)
    (folder / "mutants.csv").write_text("sequence,score\n" + rows)
    (folder / "measured.csv").write_text("sequence,label\n" + rows)
    helix = str.maketrans(AMINO_ACIDS, "".join("H" if one in "AELM" else "C" for one in AMINO_ACIDS))
    (folder / "residues.txt").write_text("".join(f">p\n{one}\n{one.translate(helix)}\n" for one in found))
    conll = "\n".join("".join(f"{a}\t{a.translate(helix)}\n" for a in one) for one in found)
    (folder / "residues.conll").write_text(conll)
    spaced = "".join(f"{' '.join(one)},{' '.join(one.translate(helix))} \n" for one in found)
    (folder / "spaced.csv").write_text("tokens,tags\n" + spaced)
    return folder


def train_starter(task: str, file: Path, tmp_path: Path) -> qkv.Model:
    path = tmp_path / f"{task}.toml"
    path.write_text(starter_recipe(task, [str(file)], run=str(tmp_path / task)))
    train(read(path, [f"data.cache_dir={tmp_path / 'cache'}", *SMALL]))
    return qkv.load(tmp_path / task)


@pytest.mark.parametrize(
    ("task", "name", "columns"),
    [
        ("fill", "proteins.fasta", {"text": "sequence"}),
        ("classify", "peptides.csv", {"text": "sequence", "label": "label"}),
        ("classify", "mutants.csv", {"text": "sequence", "score": "score"}),
        ("classify", "measured.csv", {"text": "sequence", "score": "label"}),  # numbers with decimals are no classes
        ("embed", "mutants.csv", {"first": "sequence", "score": "score"}),
        ("embed", "measured.csv", {"first": "sequence", "score": "label"}),
        ("embed", "peptides.csv", {"first": "sequence", "label": "label"}),
        ("tag", "residues.txt", {}),
        ("tag", "residues.conll", {}),
        ("tag", "spaced.csv", {}),
    ],
)
def test_init_recognises_proteins(task, name, columns, files):
    recipe = tomllib.loads(starter_recipe(task, [str(files / name)]))
    assert recipe["data"]["modality"] == "protein"
    assert recipe["data"].get("columns", {}) == columns
    assert recipe["tokenizer"] == {"kind": "char"}


@pytest.mark.parametrize("task", ["classify", "embed"])
def test_variants_of_one_protein_are_recognised_by_their_length(task, files, tmp_path):
    """Proteins of different lengths are the control."""
    path, notes = tmp_path / "variants.csv", []
    path.write_text("sequence,score\n" + "".join(f"{'MKTAYIAKQRQISFVKSH'[:17]}{one},0.5\n" for one in AMINO_ACIDS))
    recipe = tomllib.loads(starter_recipe(task, [str(path)], notes=notes))
    assert recipe["model"]["head"]["one_hot_positions"] == 20
    assert "nearly all proteins have 18 residues" in " ".join(notes)
    others = tomllib.loads(starter_recipe(task, [str(files / "mutants.csv")]))
    assert "one_hot_positions" not in others["model"].get("head", {})


def test_the_modality_is_said_and_can_be_chosen(files, tmp_path, run_qkv, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run_qkv(["init", "classify", str(files / "peptides.csv")])
    assert "the texts are proteins, recognised by their letters" in found.out
    run_qkv(["init", "classify", str(files / "peptides.csv"), "--modality", "text", "--out", "text.toml"])
    assert tomllib.loads(Path("text.toml").read_text())["tokenizer"]["kind"] == "wordpiece"
    rows = "".join(f"{one.lower()},{i % 2}\n" for i, one in enumerate(sequences(9)))
    (tmp_path / "lower.csv").write_text("mine,label\n" + rows)
    run_qkv(["init", "classify", "lower.csv", "--out", "lower.toml"])
    assert "modality" not in tomllib.loads(Path("lower.toml").read_text())["data"]
    run_qkv(["init", "classify", "lower.csv", "--modality", "protein", "--out", "forced.toml"])
    assert tomllib.loads(Path("forced.toml").read_text())["data"]["modality"] == "protein"


def test_fill(files, tmp_path):
    model = train_starter("fill", files / "proteins.fasta", tmp_path)
    found = model.fill("MKTA[MASK]IAKQR", top=3)
    assert len(found.text) == 10
    assert len(found.candidates[0]) == 3
    assert found.text == model.fill("mkta<mask>iakqr").text.upper()
    assert set(model.evaluate(str(files / "proteins.fasta")).metrics) >= {"masked_accuracy", "perplexity"}


def test_classify(files, tmp_path):
    model = train_starter("classify", files / "peptides.csv", tmp_path)
    found = model.classify(["MKTAYIAKQRQIS", "mktayiakqrqis*"])
    assert found[0].label in ("amp", "other")
    assert found[0].probability == pytest.approx(found[1].probability)
    with pytest.raises(UsageError, match="text 2 has only the letters of nucleotides"):
        model.classify(["MKTAYIAKQR", "ATGGCCATTGTAATGGGCC"])
    assert 0 <= model.evaluate(str(files / "peptides.csv")).metrics["accuracy"] <= 1


def test_embed_from_scores(files, tmp_path):
    """Single sequences with a score become pairs, so that near vectors have near scores."""
    model = train_starter("embed", files / "mutants.csv", tmp_path)
    assert model.embed(["MKTAYIAKQR", "GLLDTFKNLALN"]).shape == (2, model.config.stack.width)
    found = model.evaluate(str(files / "mutants.csv"))
    assert found.num_records == 8 * 60
    assert -1 <= found.metrics["spearman"] <= 1


def test_tag(files, tmp_path):
    model = train_starter("tag", files / "residues.txt", tmp_path)
    found = model.tag("MKTA YIAK")
    assert [one.word for one in found.words] == list("MKTAYIAK")
    assert [(one.start, one.end) for one in found.words][3:5] == [(3, 4), (5, 6)]
    assert {one.tag for one in found.words} <= {"H", "C"}
    other = model.tag([list("MKTAYIAK")])[0]
    assert [one.tag for one in other.words] == [one.tag for one in found.words]
    names = ("residues.txt", "residues.conll", "spaced.csv")
    assert len({model.evaluate(str(files / name)).metrics["accuracy"] for name in names}) == 1


def test_bad_files_are_named(tmp_path):
    rows = "".join(f"{one},{i % 2}\n" for i, one in enumerate(sequences(30)))
    dna = "".join(f"{'ATGGCCATTGTAATGGGCC' * 2},{i % 2}\n" for i in range(20))
    (tmp_path / "dna.csv").write_text("sequence,label\n" + rows + dna)
    with pytest.raises(QkvError, match=r"DNA, not protein: 20 in .*dna\.csv"):
        train_starter("classify", tmp_path / "dna.csv", tmp_path)
    (tmp_path / "dna.fasta").write_text(">gene\n" + "ATGGCCATTGTAATGGGCC" * 9 + "\n")
    with pytest.raises(QkvError, match="has only the letters of nucleotides; translate it"):
        starter_recipe("fill", [str(tmp_path / "dna.fasta")])


def test_data_says_that_a_column_has_proteins(files, run_qkv):
    for name in ("peptides.csv", "proteins.fasta"):
        stats = json.loads(run_qkv(["data", str(files / name), "--json"]).out)
        assert {one["name"]: one["value_type"] for one in stats["fields"]}["sequence"] == "protein"
