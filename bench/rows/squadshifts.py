"""Questions about reviews and comments, whose answers are spans of the text (SQuADShifts: Amazon and Reddit).

Data: squadshifts/*.json: 9,885 questions about 2,050 Amazon reviews, 9,803 about 2,035 Reddit comments. Both are split
80/10/10 by article with the seed 0. An Amazon article has about five reviews of different products; Reddit is a single
article, so each comment counts as one. One model is trained on both. If the files of the other two domains are there,
new_wiki_v1.0.json and nyt_v1.0.json, all their questions are a test of articles of a kind that was not trained on.
Unanswerable questions are generated in every part: every third question is also paired with another text of the part,
the first that does not contain any of its answers in the order in which BM25 ranks texts for the question.
Published: models that were trained on SQuAD and scored on all questions: BERT-large Amazon 82.5 F1 and 69.4 exact
match, Reddit 82.2 and 70.8; people 92.6 F1 on Amazon (squadshifts/results.json).
Goal: EM and F1 from MiniLM, on the questions that have an answer, and with the unanswerable ones.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

from qkv.search.ranking import rank_matches
from qkv.tasks import metrics
from qkv.text.bm25 import BM25, InvertedIndexBuilder
from rows import encoders, frame

FILES = {"amazon": "amazon_reviews_v1.0.json", "reddit": "reddit_v1.0.json"}
OTHER_FILES = {"new_wiki": "new_wiki_v1.0.json", "nyt": "nyt_v1.0.json"}
UNANSWERABLE_EVERY = 3  # questions for each unanswerable one
NUM_CANDIDATES = 20
SPLIT_SEED = 0

RECIPE = """
[data]
max_length = 384

[objective]
kind = "question_answering"
overlap = 128

[train]
epochs = 4
batch_tokens = 8192
lr = 2e-4
head_lr_factor = 5
schedule = "linear"
warmup = 0.1
eval_examples = 300
eval_every = 400
keep_checkpoints = 1
"""


def read(data: Path, quick: bool) -> dict[str, list[dict[str, Any]]]:
    """The records of each part: train, valid, and a test part for each domain."""
    parts: dict[str, list[dict[str, Any]]] = {"train": [], "valid": []}
    for domain, name in FILES.items():
        document = json.loads(frame.read_text(data / "squadshifts" / name))
        articles = [article["paragraphs"] for article in document["data"]]
        if len(articles) == 1:
            articles = [[paragraph] for paragraph in articles[0]]
        Random(SPLIT_SEED).shuffle(articles)
        articles = articles[: frame.QUICK_RECORDS] if quick else articles
        ends = [0, len(articles) * 8 // 10, len(articles) * 9 // 10, len(articles)]
        for part, start, end in zip(("train", "valid", domain), ends, ends[1:], strict=False):
            parts[part] = parts.get(part, []) + make_records(articles[start:end], domain)
    for domain, name in OTHER_FILES.items():
        if encoders.has_file(path := data / "squadshifts" / name):
            articles = [article["paragraphs"] for article in json.loads(frame.read_text(path))["data"]]
            parts[domain] = make_records(articles[:2] if quick else articles, domain)
    return parts


def make_records(articles: list[Any], domain: str) -> list[dict[str, Any]]:
    """The questions of a part, and unanswerable ones made from them."""
    passages = [paragraph["context"] for article in articles for paragraph in article]
    builder = InvertedIndexBuilder()
    for passage in passages:
        builder.add(passage)
    index = BM25(builder.arrays())
    records = []
    for article in articles:
        for paragraph in article:
            for question in paragraph["qas"]:
                text, context = question["question"].strip(), paragraph["context"]
                answers = {one["text"]: one["answer_start"] for one in question["answers"]}
                fields = {"question": text, "context": context, "domain": domain}
                records.append({**fields, "answers": list(answers), "starts": list(answers.values())})
                if len(records) % (UNANSWERABLE_EVERY + 1) == 0:
                    found = [
                        passages[i]
                        for i in rank_matches(index.scores(text), NUM_CANDIDATES)[0]
                        if passages[i] != context
                    ]
                    wrong = [one for one in found if not any(answer.lower() in one.lower() for answer in answers)]
                    if wrong:
                        records.append({**fields, "context": wrong[0], "answers": [], "starts": []})
    return records


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Train on both domains, and answer the test questions: with a free choice, and always with an answer."""
    parts = read(data, quick)
    files = encoders.write_parts(out, {part: parts.pop(part) for part in ("train", "valid")}, quick)
    changes = {**files, "model.from": encoders.find_minilm(data)}
    trained = frame.train(RECIPE, out, changes, seed=seed, quick=quick)
    model, lines = trained.load(), []
    for domain, records in parts.items():
        pairs = [(one["question"], one["context"]) for one in records]
        free = model.answer(pairs, batch_size=encoders.BATCH_SIZE)
        forced = model.answer(pairs, batch_size=encoders.BATCH_SIZE, no_answer=False)
        for record, one, other in zip(records, free, forced, strict=True):
            found = {"prediction": one.text, "probability": one.probability, "forced": other.text}
            lines.append({"part": domain, "question": record["question"], "answers": record["answers"], **found})
    frame.write_jsonl(out / "predictions.jsonl", lines)
    return trained.to_dict()


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """SQuAD's exact match and F1 of each domain.

    `answerable`: only questions with an answer, and always a span as the prediction, as in the published scores. `all`:
    with the unanswerable questions, and a free choice. `rejected` are the percentages of questions for which the model
    finds no answer.
    """
    scores: dict[str, Any] = {}
    for domain, lines in encoders.split_parts(predictions).items():
        answerable = [line for line in lines if line["answers"]]
        rest = [line for line in lines if not line["answers"]]
        for name, chosen, field in (("answerable", answerable, "forced"), ("all", lines, "prediction")):
            for metric in (metrics.answer_f1, metrics.answer_exact_match):
                found = metric([line[field] for line in chosen], [line["answers"] for line in chosen])
                scores[f"{domain}, {name}, {metric.__name__}"] = encoders.with_interval(found)
        for name, chosen in (("unanswerable", rest), ("answerable", answerable)):
            rejected = metrics.mean_score([not line["prediction"] for line in chosen])
            scores[f"{domain}, {name}, rejected"] = encoders.with_interval(rejected)
    return scores
