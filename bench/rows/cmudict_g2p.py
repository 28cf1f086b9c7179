"""Letters to phonemes (CMUdict, the split of the CNTK repository).

Data: cmudict_g2p/train.txt, dev.txt, test.txt. A test word may have several pronunciations; it is compared with the
nearest one.
Published: word error rate 20.6 % (Transformer, 3 layers of width 256) and 24.4 % (Phonetisaurus), README of
github.com/cmusphinx/g2p-seq2seq, on another split (PRONASYL 2007).
Goal: a word error rate of at most 20.6 %.
"""

from pathlib import Path
from typing import Any

from rows import frame

RECIPE = """
[data]
max_length = 128
max_source_length = 160

[tokenizer]
kind = "word"             # words are letters and phonemes
vocab_size = 200
min_frequency = 1

[model]
width = 256
heads = 4
ffn_width = 1024
feedforward = "gelu"
layers = 4
dropout = 0.2

[objective]
kind = "seq2seq"
label_smoothing = 0.1

[train]
steps = 4000
batch_tokens = 16_384
optimizer = "muon"
lr = 4e-3
weight_decay = 0.1
warmup = 200
schedule = "linear"
num_workers = 2
eval_every = 500
eval_examples = 500
metric = "exact_match"
ema_decay = 0.995
"""


def read(path: Path) -> list[dict[str, str]]:
    """Letters in lower case, so that they differ from phonemes of the same name, and phonemes."""
    pairs = [line.split(maxsplit=1) for line in frame.read_lines(path)]
    return [
        {"source": " ".join(letter.lower() for letter in word), "target": " ".join(phonemes.split())}
        for word, phonemes in pairs
    ]


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Train, and pronounce the test words with beam 5."""
    parts = {
        name: frame.shorten(read(data / "cmudict_g2p" / f"{name}.txt"), quick) for name in ("train", "dev", "test")
    }
    changes = frame.write_parts(out, train=parts["train"], valid=parts["dev"])
    trained = frame.train(RECIPE, out, changes, seed=seed, quick=quick)
    predictions = frame.group_references(frame.generate(trained, parts["test"], beam=5, batch_size=512))
    frame.write_jsonl(out / "predictions.jsonl", predictions)
    return trained.to_dict()


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Word error rate and phoneme error rate against the nearest pronunciation, in per cent."""
    wrong = [line["prediction"] not in line["references"] for line in predictions]
    return {
        "word error rate": frame.interval(wrong, scale=100),
        "phoneme error rate": frame.compute("word_error_rate", predictions, scale=100),
    }
