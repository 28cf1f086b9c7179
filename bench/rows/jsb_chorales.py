"""Bach's chorales as a language (JSB chorales, a grid of sixteenth notes).

Data: jsb_chorales/jsb-chorales-16th.json, its own split: 229 chorales for training, 76 for validation, 77 for test.
Tokens: each step of the grid is four tokens, one for each voice from the highest to the lowest: voice and pitch, such
as S74 A70 T65 B58, or a rest. Steps with fewer than four notes get rests for the lowest voices, because the data
does not name voices. A token | begins each quarter. Training chorales are also transposed by -5 to +6 semitones.
The loss is that of all tokens, divided by the number of voices and steps (notes, with rests), so | is not free.
Published: none that we have checked.
Goal: our loss per note with its interval.
"""

import json
from pathlib import Path
from typing import Any

from rows import frame

VOICES = "SATB"
RECIPE = """
[data]
max_length = 3072
valid_fraction = 0.0

[tokenizer]
kind = "word"
vocab_size = 400
min_frequency = 1

[model]
width = 256
heads = 4
ffn_width = 684
layers = 6
max_positions = 3072
dropout = 0.3

[objective]
kind = "causal_lm"

[train]
steps = 1200
batch_tokens = 36_864
optimizer = "muon"
lr = 4e-3
weight_decay = 0.1
schedule = "cosine"
eval_every = 150
final = "best"
metric = "loss"
max_eval_fraction = 1.0
ema_decay = 0.99
"""


def to_text(steps: list[list[int]], shift: int = 0) -> str:
    """A chorale as text, transposed by a number of semitones.

    >>> to_text([[74, 70, 65, 58], [74, 70]])
    '| S74 A70 T65 B58 S74 A70 T- B-'
    """
    words = []
    for number, notes in enumerate(steps):
        if number % 4 == 0:
            words.append("|")
        pitches = [str(note + shift) for note in notes] + ["-"] * (4 - len(notes))
        words += [voice + pitch for voice, pitch in zip(VOICES, pitches, strict=True)]
    return " ".join(words)


def run(data: Path, out: Path, seed: int, quick: bool) -> dict[str, Any]:
    """Train on all transpositions, and write the loss of each test chorale."""
    parts = json.loads(frame.read_text(data / "jsb_chorales/jsb-chorales-16th.json"))
    if quick:
        parts = {name: [chorale[:40] for chorale in chorales[:4]] for name, chorales in parts.items()}
    train = [{"text": to_text(chorale, shift)} for chorale in parts["train"] for shift in range(-5, 7)]
    valid = [{"text": to_text(chorale)} for chorale in parts["valid"]]
    trained = frame.train(RECIPE, out, frame.write_parts(out, train=train, valid=valid), seed=seed, quick=quick)
    lines = frame.text_losses(trained, [to_text(chorale) for chorale in parts["test"]], max_length=3072)
    predictions = [
        {"nats": line["nats"], "notes": 4 * len(chorale)} for line, chorale in zip(lines, parts["test"], strict=True)
    ]
    frame.write_jsonl(out / "predictions.jsonl", predictions)
    return trained.to_dict()


def score(predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Nats per note. The interval resamples chorales."""
    nats, notes = [line["nats"] for line in predictions], [line["notes"] for line in predictions]
    return {"loss per note": frame.interval(nats, notes)}
