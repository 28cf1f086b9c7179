"""Search in abstracts about aerodynamics (Cranfield).

Data: cranfield/: 1,400 abstracts, 225 queries, 1,837 judgements. A file has the title and the text of an abstract. The
index is that of `qkv index` with passages of at most 256 tokens; an abstract ranks as high as its best passage.
Published: none; measured on this data: BM25 0.358, all-MiniLM-L6-v2 0.400 (nDCG@10).
Goal: fused search above both.
"""

from pathlib import Path
from typing import Any

import qkv
from qkv.tasks import metrics
from rows import encoders, frame

METHODS = ("bm25", "dense", "fused")
TOP_PASSAGES = 100
TOP = 10


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Index the abstracts, and search for the queries with each method."""
    folder = data / "cranfield"
    documents = frame.shorten(frame.read_jsonl(folder / "docs.jsonl"), quick)
    texts = out / "data/texts"
    texts.mkdir(parents=True, exist_ok=True)
    for one in documents:
        (texts / f"{one['id']}.txt").write_text(f"{one['title']}\n\n{one['text']}", encoding="utf-8")
    model = qkv.load(encoders.find_minilm(data), device=frame.device(), dtype="float32")
    index = qkv.Index.build(texts, model=model, out=out / "data/index", max_tokens=256)
    relevant: dict[int, dict[int, int]] = {}
    for line in frame.read_lines(folder / "qrels.tsv"):
        query, document, grade = map(int, line.split("\t"))
        relevant.setdefault(query, {})[document] = grade
    queries = frame.shorten(frame.read_jsonl(folder / "queries.jsonl"), quick)
    lines = []
    for method in METHODS:
        results = index.search([query["text"] for query in queries], top=TOP_PASSAGES, method=method)
        for query, result in zip(queries, results, strict=True):
            ranked = list(dict.fromkeys(int(Path(hit.file).stem) for hit in result))
            judged = [one for one, grade in relevant.get(query["id"], {}).items() if grade > 0]
            lines.append({"part": method, "query": query["id"], "prediction": ranked[:TOP], "relevant": judged})
    frame.write_jsonl(out / "predictions.jsonl", lines)
    return {"parameters": sum(one.numel() for one in model.network.parameters()), "seconds": 0.0}


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean nDCG@10 of each method over the queries with a relevant abstract; each judgement above 0 is relevant."""
    scores = {}
    for method, lines in encoders.split_parts(predictions).items():
        judged = [line for line in lines if line["relevant"]]
        relevant = [dict.fromkeys(line["relevant"], 1) for line in judged]
        found = metrics.ndcg([line["prediction"] for line in judged], relevant, k=TOP)
        scores[method] = encoders.with_interval(found, scale=1)
    return scores
