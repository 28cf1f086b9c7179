"""Parts of speech in texts from the web (Universal Dependencies, English Web Treebank).

Data: ud_english_ewt/en_ewt-ud-*.conllu: 12,544 training sentences, of which a twentieth is for validation. Dev (2,001)
is only scored, and so is test (2,077) if its file is there. Words are those of the treebank.
Published: none that we have checked.
Goal: the accuracy of universal tags, and an explanation of the gap to larger models. MiniLM reads lower case, in which
proper nouns look like nouns; the scores by tag show what that costs.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from rows import encoders, frame

CHANGES = {"train.epochs": 12, "train.batch_tokens": 4096, "data.valid_fraction": 0.05}
NUM_CONFUSIONS = 6


def read(path: Path) -> list[dict[str, Any]]:
    """The sentences of a file: words and universal tags."""
    found = []
    for block in frame.read_text(path).split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n") if line and not line.startswith("#")]
        words = [row for row in rows if row[0].isdecimal()]  # without ranges (3-4) and empty nodes (5.1)
        if words:
            found.append({"tokens": [row[1] for row in words], "tags": [row[3] for row in words]})
    return found


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Train on the sentences, and tag those of dev and test."""
    folder = data / "ud_english_ewt"
    train = encoders.sample(read(folder / "en_ewt-ud-train.conllu"), quick)
    changes = {
        **encoders.write_parts(out, {"train": train}, quick),
        **CHANGES,
        "model.from": encoders.find_minilm(data),
    }
    trained = frame.train(encoders.TAGGER, out, changes, seed=seed, quick=quick)
    model, lines = trained.load(), []
    for part in ("dev", "test"):
        path = folder / f"en_ewt-ud-{part}.conllu"
        if part == "dev" or encoders.has_file(path):
            lines += encoders.tag(model, encoders.sample(read(path), quick), part)
    frame.write_jsonl(out / "predictions.jsonl", lines)
    return trained.to_dict()


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The accuracy, the accuracy without regard to the difference of noun and proper noun, and frequent confusions."""
    scores: dict[str, Any] = {}
    for part, lines in encoders.split_parts(predictions).items():
        scores[part] = encoders.tag_accuracy(lines)
        scores[f"{part}, nouns and proper nouns as one tag"] = encoders.tag_accuracy(
            [merge_nouns(line) for line in lines]
        )
        wrong = Counter(
            f"{theirs} tagged {ours}"
            for line in lines
            for ours, theirs in zip(line["prediction"], line["tags"], strict=True)
            if ours != theirs
        )
        scores[f"{part}, most frequent errors of {wrong.total()}"] = dict(wrong.most_common(NUM_CONFUSIONS))
    return scores


def merge_nouns(line: Any) -> dict[str, Any]:
    """The line with NOUN in the place of PROPN."""
    both = {name: [tag.replace("PROPN", "NOUN") for tag in line[name]] for name in ("prediction", "tags")}
    return {**line, **both}
