"""Tagging from scratch: what `qkv init` and spaCy's blank pipeline reach in the same time, both at their defaults.

    pip install --target PEERS spacy
    OMP_NUM_THREADS=1 PYTHONPATH=src:PEERS python bench/tagging.py SETS --names es --minutes 1.5 --seeds 3 --out OUT

SETS has a folder for each set, with train.jsonl and dev.jsonl: `{"tokens": […], "tags": […]}` a line. A budget is the
time that the threads of a program compute (`train.cpu_minutes`), so that other programs on the machine change little;
with `--wall`, it is time on a clock. Each run is a line of JSON: the F1 of entities in the dev file, computed by the
same function for all, or the accuracy of tags that are not BIO tags. `word` gives each word its most frequent tag.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

Sentence = tuple[list[str], list[str]]


def read(path: Path) -> list[Sentence]:
    """The words and tags of each sentence."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").strip().split("\n")]
    return [(row["tokens"], row["tags"]) for row in rows]


def score(predicted: list[list[str]], expected: list[list[str]]) -> float:
    """The F1 of entities, or the accuracy of other tags; in percent."""
    from qkv.tasks import metrics
    from qkv.tasks.verbs.tag import count_tags

    has_entities = metrics.is_entity_tagging(sorted({tag for tags in expected for tag in tags}))
    found = (
        metrics.entity_scores(predicted, expected)["f1"]
        if has_entities
        else count_tags(predicted, expected).precision()
    )
    return 100 * found if found <= 1 else found


def run_word(folder: Path, out: Path, minutes: float, seed: int, wall: bool, changes: list[str]) -> Any:
    """The most frequent tag of each word; the most frequent one of all for other words."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for words, tags in read(folder / "train.jsonl"):
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
            counts[""][tag] += 1
    return {
        "tags": [[counts.get(w, counts[""]).most_common(1)[0][0] for w in one] for one, _ in read(folder / "dev.jsonl")]
    }


def run_qkv(folder: Path, out: Path, minutes: float, seed: int, wall: bool, changes: list[str]) -> Any:
    """`qkv init tag` and `qkv train`, with their defaults for this time."""
    import qkv

    recipe = out / "recipe.toml"
    program = [sys.executable, "-m", "qkv"]
    words = ["init", "tag", str(folder / "train.jsonl"), "--minutes", str(minutes), "--out", str(recipe)]
    subprocess.run([*program, *words], check=True, stdout=subprocess.DEVNULL)
    budget = [] if wall else ["train.minutes=0", f"train.cpu_minutes={minutes}"]
    words = ["train", str(recipe), f"run={out / 'run'}", f"train.seed={seed}", "--json", *budget, *changes]
    with (out / "log.txt").open("w") as log:
        said = subprocess.run([*program, *words], check=True, stdout=subprocess.PIPE, stderr=log, text=True).stdout
    model = qkv.load(out / "run")
    tagged = model.tag([tuple(words) for words, _ in read(folder / "dev.jsonl")])
    return {"tags": [[word.tag for word in one.words] for one in tagged], "steps": json.loads(said)["step"]}


def run_spacy(folder: Path, out: Path, minutes: float, seed: int, wall: bool, changes: list[str]) -> Any:
    """spaCy's blank pipeline with the batches, the dropout and the averages of its training, until the time is up."""
    clock = time.monotonic if wall else time.process_time
    begin = clock()
    import spacy
    from spacy.tokens import Doc
    from spacy.training import Example, biluo_tags_to_spans, iob_to_biluo
    from spacy.training.batchers import minibatch_by_words
    from spacy.util import compounding, fix_random_seed

    from qkv.tasks import metrics

    fix_random_seed(seed)
    nlp, sentences = spacy.blank("xx"), read(folder / "train.jsonl")
    has_entities = metrics.is_entity_tagging(sorted({tag for _, tags in sentences for tag in tags}))
    pipe: Any = nlp.add_pipe("ner" if has_entities else "tagger")
    examples = []
    for words, tags in sentences:
        doc, gold = Doc(nlp.vocab, words=words), Doc(nlp.vocab, words=words)
        if has_entities:
            gold.ents = biluo_tags_to_spans(gold, iob_to_biluo(tags))
        else:
            for token, tag in zip(gold, tags, strict=True):
                token.tag_ = tag
        examples.append(Example(doc, gold))
    optimizer = nlp.initialize(lambda: examples)
    epochs, sizes = 0.0, compounding(100, 1000, 1.001)
    while clock() - begin < 60 * minutes:
        random.shuffle(examples)
        done = 0
        for batch in minibatch_by_words(examples, size=sizes, discard_oversize=False):
            nlp.update(batch, drop=0.1, sgd=optimizer)
            done += len(batch)
            if clock() - begin >= 60 * minutes:
                break
        epochs += done / len(examples)
    with nlp.use_params(optimizer.averages):
        docs = [Doc(nlp.vocab, words=words) for words, _ in read(folder / "dev.jsonl")]
        docs = list(pipe.pipe(docs))
    if not has_entities:
        return {"tags": [[token.tag_ for token in doc] for doc in docs], "epochs": epochs}
    tags = [[f"{t.ent_iob_}-{t.ent_type_}" if t.ent_iob_ in "BI" and t.ent_type_ else "O" for t in doc] for doc in docs]
    return {"tags": tags, "epochs": epochs}


RUNS = {"word": run_word, "qkv": run_qkv, "spacy": run_spacy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--names", nargs="+", required=True)
    parser.add_argument("--programs", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--minutes", type=float, default=1.5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes of the recipe of qkv")
    parser.add_argument("--label", default="")
    args = parser.parse_args()
    for name in args.names:
        expected = [tags for _, tags in read(args.sets / name / "dev.jsonl")]
        for program in args.programs:
            for seed in range(args.first_seed, args.first_seed + (1 if program == "word" else args.seeds)):
                out = args.out / f"{name}-{program}{args.label}-{args.minutes:g}-{seed}"
                out.mkdir(parents=True, exist_ok=True)
                begin = os.times()
                found = RUNS[program](args.sets / name, out, args.minutes, seed, args.wall, args.set)
                used = sum(b - a for a, b in zip(begin[:4], os.times()[:4], strict=True))
                line = {"set": name, "program": program + args.label, "minutes": args.minutes, "seed": seed}
                line |= {"score": round(score(found.pop("tags"), expected), 2), "processor_seconds": round(used)}
                print(json.dumps(line | found), flush=True)
                with (args.out / "tagging.jsonl").open("a") as log:
                    log.write(json.dumps(line | found) + "\n")


if __name__ == "__main__":
    main()
