"""Train the English→French translator that comes with qkv, from the Tatoeba pairs: eight phases, each one command.

    python examples/en_fr/make.py split out --data fra.txt.gz     # parts by English sentence
    python examples/en_fr/make.py language out --minutes 2        # optional: a language model writes new sentences
    python examples/en_fr/make.py teachers out --minutes 6        # three large models, side by side
    python examples/en_fr/make.py distil out                      # their translations, and the consensus of these
    python examples/en_fr/make.py students out --minutes 6        # small models, side by side
    python examples/en_fr/make.py polish out --minutes 7          # the better student, on generated pairs too
    python examples/en_fr/make.py test out                        # int8; translates the test part and the probes
    python examples/en_fr/make.py score out                       # BLEU and chrF with intervals

The pairs are at https://www.manythings.org/anki/ (fra-eng.zip). With one H200, all phases take about 25 minutes. A
phase that has finished is skipped, and a training run that was interrupted resumes. Further `key=value` words change
the recipes, for example `model.width=64 train.device=cpu` for a trial on a laptop.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from checks import make_checks, score_checks
from consensus import choose_consensus, collect_votes
from generated import generate_pairs
from pairs import (
    Pair,
    group_references,
    normalise,
    normalise_french,
    read_download,
    read_pairs,
    read_texts,
    sentence_key,
    split_pairs,
    typing_variants,
    write_pairs,
    write_texts,
)
from swapped import has_same_numbers, keeps_names

import qkv
from qkv.decode import GenerationOptions, generate
from qkv.tasks.metrics.bootstrap import confidence_intervals
from qkv.tasks.metrics.translation import chrf, sacrebleu

HERE = Path(__file__).parent
TEACHERS = {
    "teacher-1": ["train.seed=1"],
    "teacher-2": ["train.seed=2", "tokenizer.vocab_size=5000", "train.optimizer=muon", "train.lr=5e-3"],
    "teacher-3": ["train.seed=3", "tokenizer.kind=unigram"],
}
STUDENTS = {
    "student-adamw": ["train.seed=1"],
    "student-muon": ["train.seed=1", "train.optimizer=muon", "train.lr=5e-3"],
}
POLISHED, MEAN = "polished", "mean"
POLISHED_WEIGHT = 0.85  # of the polished student in the mean with the student itself; chosen on the validation part
BEST_STUDENT = "student-muon-int8"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def log(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", flush=True)


def wait(processes: dict[str, "subprocess.Popen[bytes]"]) -> None:
    """Wait for all processes. One that failed is an error, when the others have ended."""
    failed = [name for name, process in processes.items() if process.wait()]
    if failed:
        raise SystemExit(f"{', '.join(failed)} failed; see the .log files, and start the phase again to resume")


def train(out: Path, recipe: str, runs: dict[str, list[str]], minutes: float, changes: list[str]) -> None:
    """Train runs of a recipe side by side, each for the same time."""
    processes = {}
    for name, own in runs.items():
        run = out / name
        if (run / "model.safetensors").exists():
            continue
        words = [str(HERE / recipe), f"data.cache_dir={out / 'cache'}", f"run={run}", f"train.minutes={minutes}"]
        words += own + changes
        command = [sys.executable, "-m", "qkv", "train", *([str(run)] if (run / "checkpoints").exists() else words)]
        with (out / f"{name}.json").open("wb") as result, (out / f"{name}.log").open("ab") as messages:
            processes[name] = subprocess.Popen([*command, "--json"], stdout=result, stderr=messages)
    wait(processes)
    for name in processes:
        log(f"{name}: {json.dumps(json.loads((out / f'{name}.json').read_text()))[:400]}")


def split(out: Path, data: Path) -> None:
    """Write train.tsv, valid.tsv, test.tsv, and english.tsv for the language model."""
    parts = split_pairs(read_download(data))
    for part, pairs in parts.items():
        write_pairs(out / f"{part}.tsv", pairs)
    english = list(dict.fromkeys(source for source, _ in parts["train"]))
    write_texts(out / "english.tsv", english)
    log(", ".join(f"{part}: {len(pairs):,} pairs" for part, pairs in parts.items()))


def sample_english(out: Path, count: int) -> None:
    """Write samples.tsv: new English sentences, none of which is in the data or among the probes."""
    model = qkv.load(out / "language", device=DEVICE, dtype="bfloat16" if DEVICE == "cuda" else None)
    assert model.tokenizer is not None
    start = model.tokenizer.special_tokens.bos
    assert start is not None
    known = {
        sentence_key(source) for part in ("train", "valid", "test") for source, _ in read_pairs(out / f"{part}.tsv")
    }
    known |= {sentence_key(english) for _, english in read_pairs(HERE / "probes.tsv")}
    options = GenerationOptions(max_tokens=40, temperature=1.0, top_p=0.95)
    batch = 2048 if DEVICE == "cuda" else 64
    sampled: dict[str, None] = {}
    torch.manual_seed(0)
    for _ in range(4 * math.ceil(count / batch)):
        for result in generate(model.network, [[start]] * batch, options, model.tokenizer):
            text = normalise(result.text)
            is_sentence = (
                result.finish_reason == "end" and len(text) > 1 and text.isprintable() and "\ufffd" not in text
            )
            if is_sentence and sentence_key(text) not in known:
                sampled[text] = None
        if len(sampled) >= count:
            break
    (out / "samples.tsv").write_text(
        "text\n" + "".join(f"{text}\n" for text in list(sampled)[:count]), encoding="utf-8"
    )
    log(f"{min(count, len(sampled)):,} new English sentences")


def translate(out: Path, teacher: str, shard: int, shards: int, beam: int) -> None:
    """Write the best hypotheses of one teacher for one shard of the English sentences, with relative probabilities."""
    samples = out / "samples.tsv"
    texts = (read_texts(out / "english.tsv") + (read_texts(samples) if samples.exists() else []))[shard::shards]
    model = qkv.load(out / teacher, device=DEVICE, dtype="bfloat16" if DEVICE == "cuda" else None)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode_batch(texts, add_special_tokens=True)
    order = sorted(range(len(texts)), key=lambda i: -len(ids[i]))
    batch = 512 if DEVICE == "cuda" else 64
    path = out / f"{teacher}-{shard}.jsonl"
    with path.with_suffix(".part").open("w", encoding="utf-8") as file:
        for first in range(0, len(order), batch):
            chosen = order[first : first + batch]
            limit = len(ids[chosen[0]]) * 3 // 2 + 8
            options = GenerationOptions(max_tokens=limit, beam=beam, num_return_sequences=beam)
            found = generate(model.network, [ids[i] for i in chosen], options, model.tokenizer)
            for i, result in zip(chosen, found, strict=True):
                ended = [
                    one for one in (result, *result.alternatives) if one.finish_reason == "end" and one.text.strip()
                ]
                logprobs = [
                    one.score * (len(one.ids) + 1) for one in ended
                ]  # a score is the mean of all tokens and EOS
                weights = [math.exp(logprob - max(logprobs)) for logprob in logprobs]
                several = [(normalise_french(one.text), weight) for one, weight in zip(ended, weights, strict=True)]
                file.write(json.dumps([texts[i], several], ensure_ascii=False) + "\n")
    path.with_suffix(".part").rename(path)


def consensus_of(row: tuple[str, list[list[tuple[str, float]]], list[str]]) -> Pair | None:
    """The pair of an English sentence and the consensus of its translations, if there are any."""
    english, candidates, human = row
    votes = collect_votes([several for several in candidates if several], human)
    return (english, choose_consensus(votes)) if votes else None


def distil(out: Path, shards: int, beam: int) -> None:
    """Write student.tsv: the human pairs, and the consensus of the translations of each sentence."""
    words = [sys.executable, __file__, "translate", str(out), "--shards", str(shards), "--beam", str(beam)]
    tasks = {(name, shard): out / f"{name}-{shard}.jsonl" for name in TEACHERS for shard in range(shards)}
    wait({
        f"{name}, shard {shard}": subprocess.Popen([*words, "--teacher", name, "--shard", str(shard)])
        for (name, shard), path in tasks.items()
        if not path.exists()
    })  # fmt: skip
    log("translated")
    candidates: dict[str, list[list[tuple[str, float]]]] = {}
    for path in tasks.values():
        for line in path.read_text(encoding="utf-8").splitlines():
            english, several = json.loads(line)
            candidates.setdefault(english, []).append(several)
    pairs = read_pairs(out / "train.tsv")
    human = group_references(pairs)
    rows = [(english, several, human.get(english, [])) for english, several in candidates.items()]
    with ProcessPoolExecutor() as pool:
        chosen = [pair for pair in pool.map(consensus_of, rows, chunksize=1000) if pair]
    together = list(dict.fromkeys(pairs + chosen))
    write_pairs(out / "student.tsv", [*together, *typing_variants(together)])
    log(f"student.tsv: {len(pairs):,} human pairs, {len(together) - len(pairs):,} more by consensus")


def polish(out: Path, minutes: float, count: int, start: str, changes: list[str]) -> None:
    """Train a student on, with its own translations, the human pairs, and `count` generated pairs.

    Pairs whose numbers in digits differ are left out, and translations without a name of the sentence that a human
    translation has, so that the student learns to copy. The result is the mean of the weights before and after.
    """
    path = out / "polish.tsv"
    if path.exists():
        log(f"{path} is used as it is; delete it to make other pairs")
    else:
        model = qkv.load(out / start, device=DEVICE)
        texts, human = read_texts(out / "english.tsv"), read_pairs(out / "train.tsv")
        references = group_references(human)
        results = model.generate_lines(texts, beam=5 if DEVICE == "cuda" else 1, max_tokens=96, batch_size=512)
        own = [
            (text, normalise_french(result.text))
            for text, result in zip(texts, results, strict=True)
            if result.finish_reason == "end" and result.text.strip()
        ]
        own = [pair for pair in own if keeps_names(pair, references[pair[0]])]
        held_out = [source for part in ("valid", "test") for source, _ in read_pairs(out / f"{part}.tsv")]
        held_out += [english for _, english in read_pairs(HERE / "probes.tsv")]
        held_out += [english for _, english, _ in make_checks(read_pairs(out / "test.tsv"))]
        generated = generate_pairs(human, count, held_out)
        together = [pair for pair in dict.fromkeys(human + own + generated) if has_same_numbers(pair)]
        write_pairs(path, [*together, *typing_variants(together)])
        log(f"polish.tsv: {len(human):,} human pairs, {len(own):,} of the student, {len(generated):,} generated")
    own_keys = [f"data.train={path}", f"data.valid={out}/valid.tsv", f"model.from={out / start}"]
    own_keys += ["train.optimizer=muon", *([] if any("train.lr=" in one for one in changes) else ["train.lr=3e-3"])]
    train(out, "student.toml", {POLISHED: own_keys}, minutes, changes)
    model, student = qkv.load(out / POLISHED), qkv.load(out / start)
    old, new = student.network.state_dict(), model.network.state_dict()
    model.network.load_state_dict({name: old[name].lerp(new[name], POLISHED_WEIGHT) for name in new})
    model.save(out / MEAN)


def test(out: Path) -> None:
    """Store the students in int8, and translate the test part, the checks and the probes: translations.tsv."""
    for name in [*STUDENTS, POLISHED, MEAN]:
        if (out / name / "model.safetensors").exists():
            qkv.load(out / name).save(out / f"{name}-int8", int8=True)
    pairs = read_pairs(out / "test.tsv")
    sentences = [
        *group_references(pairs),
        *(english for _, english, _ in make_checks(pairs)),
        *(text for _, text in read_pairs(HERE / "probes.tsv")),
    ]
    columns = {"english": sentences}
    for name in [name + end for name in [*STUDENTS, POLISHED, MEAN] for end in ("", "-int8")] + list(TEACHERS):
        if (out / name / "model.safetensors").exists():
            model = qkv.load(out / name, device=DEVICE)
            for beam in (1, 5):
                results = model.generate_lines(sentences, beam=beam, max_tokens=96, batch_size=256)
                columns[f"{name}, beam {beam}"] = [" ".join(result.text.split()) for result in results]
                log(f"{name}, beam {beam}: {columns[f'{name}, beam {beam}'][-1]}")
    rows = [columns, *zip(*columns.values(), strict=True)]
    (out / "translations.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def score(out: Path) -> None:
    """Score the translations of the test part and of the checks. Writes scores.json."""
    pairs = read_pairs(out / "test.tsv")
    references, checks = group_references(pairs), make_checks(pairs)
    first = [several[0] for several in references.values()]
    trained = {normalise_french(target).casefold() for _, target in read_pairs(out / "train.tsv")}
    unseen = [i for i, text in enumerate(first) if normalise_french(text).casefold() not in trained]
    lines = (out / "translations.tsv").read_text(encoding="utf-8").split("\n")[:-1]
    names, *rows = [line.split("\t") for line in lines]
    found: dict[str, Any] = {"test sentences": len(first), "with a reference that is not in training": len(unseen)}
    for name, column in list(zip(names, zip(*rows, strict=True), strict=True))[1:]:
        texts = list(column[: len(first)])
        found[name] = {
            "one reference": corpus_scores(texts, [[text] for text in first]),
            "references that are not in training": corpus_scores(
                [texts[i] for i in unseen], [[first[i]] for i in unseen]
            ),
            "all references": corpus_scores(texts, list(references.values())),
            "checks": score_checks(checks, column[len(first) : len(first) + len(checks)]),
        }
        log(f"{name}: {found[name]}")
    (out / "scores.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def corpus_scores(texts: list[str], references: list[list[str]]) -> dict[str, list[float]]:
    """BLEU and chrF as sacreBLEU computes them by default, each with the ends of its 95 % bootstrap interval."""
    scores = {"bleu": sacrebleu(texts, references), "chrf": chrf(texts, references)}
    intervals = confidence_intervals(scores)
    return {name: [round(float(value), 2) for value in (score, *intervals[name])] for name, score in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "phase", choices=["split", "language", "teachers", "translate", "distil", "students", "polish", "test", "score"]
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("changes", nargs="*", help="key=value for the recipes, as model.width=64")
    parser.add_argument("--data", type=Path, help="split: the pairs, fra.txt or fra.txt.gz")
    parser.add_argument("--minutes", type=float, default=6.0, help="the time of each training run")
    parser.add_argument("--samples", type=int, default=200_000, help="language: the number of new sentences")
    parser.add_argument("--generated", type=int, default=180_000, help="polish: the number of generated pairs")
    parser.add_argument("--start", default=BEST_STUDENT, help="polish: the student, a folder in OUT")
    parser.add_argument("--beam", type=int, default=4, help="distil: the number of hypotheses of each teacher")
    parser.add_argument("--shards", type=int, default=2, help="distil: processes for each teacher")
    parser.add_argument("--teacher", help=argparse.SUPPRESS)
    parser.add_argument("--shard", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_intermixed_args()
    out: Path = asked.out
    out.mkdir(parents=True, exist_ok=True)
    pairs = [f"data.train={out}/train.tsv", f"data.valid={out}/valid.tsv"]
    match asked.phase:
        case "split":
            split(out, asked.data)
        case "language":
            own = {"language": [f"data.train={out}/english.tsv"]}
            train(out, "language.toml", own, asked.minutes, asked.changes)
            if not (out / "samples.tsv").exists():
                sample_english(out, asked.samples)
        case "teachers":
            runs = {name: [*pairs, *own] for name, own in TEACHERS.items()}
            train(out, "teacher.toml", runs, asked.minutes, asked.changes)
        case "translate":
            translate(out, asked.teacher, asked.shard, asked.shards, asked.beam)
        case "distil":
            if not (out / "student.tsv").exists():
                distil(out, asked.shards, asked.beam)
        case "students":
            pairs[0] = f"data.train={out}/student.tsv"
            runs = {name: [*pairs, *own] for name, own in STUDENTS.items()}
            train(out, "student.toml", runs, asked.minutes, asked.changes)
        case "polish":
            polish(out, asked.minutes, asked.generated, asked.start, asked.changes)
        case "test":
            test(out)
        case "score":
            score(out)


if __name__ == "__main__":
    main()
