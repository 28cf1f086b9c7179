"""Names of diseases in abstracts of medical papers (NCBI Disease).

Data: ncbi_disease_ner/*.tsv: 5,432/923/940 sentences with BIO tags.
Published: none that we have checked.
Goal: entity F1 of at least 80 from MiniLM.
"""

from pathlib import Path
from typing import Any

from rows import encoders, frame


def read(path: Path) -> list[dict[str, Any]]:
    """The sentences of a file: words and tags."""
    sentences = [
        [line.split("\t") for line in block.split("\n") if line] for block in frame.read_text(path).split("\n\n")
    ]
    return [{"tokens": [row[0] for row in rows], "tags": [row[-1] for row in rows]} for rows in sentences if rows]


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Train on the sentences, and tag those of the test file."""
    folder = data / "ncbi_disease_ner"
    parts = {
        part: encoders.sample(read(folder / f"{name}.tsv"), quick)
        for part, name in (("train", "train"), ("valid", "devel"))
    }
    changes = {**encoders.write_parts(out, parts, quick), "model.from": encoders.find_minilm(data)}
    trained = frame.train(encoders.TAGGER, out, changes, seed=seed, quick=quick)
    test = encoders.sample(read(folder / "test.tsv"), quick)
    frame.write_jsonl(out / "predictions.jsonl", encoders.tag(trained.load(), test, "test"))
    return trained.to_dict()


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The F1 of whole entities."""
    return {"f1": encoders.entity_f1(predictions)}
