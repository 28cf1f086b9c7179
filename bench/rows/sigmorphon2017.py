"""Morphological inflection (SIGMORPHON 2017, task 1, high setting): the form of a lemma for given features.

Data: sigmorphon2017/LANGUAGE-train-high (10,000 forms). Test: LANGUAGE-test or LANGUAGE-uncovered-test if it is there,
else LANGUAGE-dev, which is then used for nothing else: 250 training forms are held out for validation.
Published: none that we have checked; Wu, Cotterell & Hulden 2021 is the model that we follow.
Goal: the accuracy of the shared task's best systems, near 95 % on average.
"""

from pathlib import Path
from typing import Any

from rows import frame

VARIANTS = ("english", "finnish", "arabic", "german")
SPACE = "␣"
RECIPE = """
[data]
max_length = 128
max_source_length = 128

[tokenizer]
kind = "word"             # words are characters, and features such as +PST
vocab_size = 2000
min_frequency = 1

[model]
width = 256
heads = 4
ffn_width = 1024
feedforward = "gelu"
layers = 4
dropout = 0.3

[objective]
kind = "seq2seq"
label_smoothing = 0.1

[train]
steps = 3000
batch_tokens = 10_240     # about 400 forms
optimizer = "muon"
lr = 4e-3
weight_decay = 0.1
warmup = 200
schedule = "linear"
num_workers = 2
eval_every = 1000
eval_examples = 250
metric = "exact_match"
ema_decay = 0.995
"""


def spell(word: str) -> str:
    """The characters of a word between spaces.

    >>> spell("give up")
    'g i v e ␣ u p'
    """
    return " ".join(word.replace(" ", SPACE))


def unspell(text: str) -> str:
    """The inverse of `spell`."""
    return text.replace(" ", "").replace(SPACE, " ")


def read(path: Path) -> list[dict[str, str]]:
    """Features and lemma as the source, the form as the target."""
    rows = [line.split("\t") for line in frame.read_lines(path)]
    return [
        {"source": " ".join(f"+{one}" for one in features.split(";")) + " " + spell(lemma), "target": spell(form)}
        for lemma, form, features in rows
    ]


def find_test(data: Path, language: str) -> Path:
    """The test file, or the dev file if there is none."""
    folder = data / "sigmorphon2017"
    parts = [part for part in ("test", "uncovered-test", "dev") if any(folder.glob(f"{language}-{part}*"))]
    return folder / f"{language}-{parts[0] if parts else 'dev'}"


def run(data: Path, out: Path, seed: int, quick: bool, variant: str) -> dict[str, Any]:
    """Train a character model of one language, and inflect the test lemmas with beam 5."""
    train = read(data / "sigmorphon2017" / f"{variant}-train-high")
    train, valid = frame.hold_out(frame.shorten(train, quick), 250)
    test_file = find_test(data, variant)
    changes = frame.write_parts(out, train=train, valid=valid)
    trained = frame.train(RECIPE, out, changes, seed=seed, quick=quick)
    predictions = [
        {
            "source": line["source"],
            "prediction": unspell(line["prediction"]),
            "references": [unspell(one) for one in line["references"]],
        }
        for line in frame.generate(trained, frame.shorten(read(test_file), quick), beam=5)
    ]
    frame.write_jsonl(out / "predictions.jsonl", predictions)
    return {**trained.to_dict(), "tested on": test_file.name}


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """The percentage of forms that are right."""
    return {"accuracy": frame.exact_match(predictions)}
