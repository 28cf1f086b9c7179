"""Copying a sequence: attention reads each symbol where it stands, a recurrent state has to hold all of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch.nn import functional as F

from qkv.blocks import Inputs
from qkv.models.runtime import eval_mode
from qkv.tasks.train import TrainingResult
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.claims.families.recall import last_quarter, powers_of_two
from qkv_lab.experiment import Experiment
from qkv_lab.recurrent import comparable_decoders
from qkv_lab.scoring import score_tokens
from qkv_lab.table import Point, Table

ACCURACY = "accuracy of the copied symbols"
LOSS = "validation loss (nats per token)"
PARAMETERS = "parameters"
WINDOW, ADDITIVE = "attention with a window", "LSTM with attention"
MODELS = ("RNN", "LSTM", ADDITIVE, "attention", WINDOW)
NUM_SYMBOLS = 32
SOLVED = 0.95
WINDOWS = 4  # the longest sequence is this number of windows long
RECIPE = {
    "tokenizer.kind": "word",
    "tokenizer.min_frequency": 1,
    "train.batch_tokens": 1024,
    "train.eval_examples": 1,
}
RNN_RATE, RATE = 5e-3, 1e-2
"""Learning rates, chosen in trials with longer sequences."""


@dataclass(frozen=True)
class CopyingSettings:
    """Models, their width, the longest sequence, the number of lines, and training steps."""

    models: tuple[str, ...] = MODELS
    width: int = 32
    max_length: int = 16
    train_lines: int = 40_000
    test_lines: int = 100
    steps: int = 1200
    recurrent_factor: int = 4  # RNN and LSTM train for this many times the steps
    num_evaluations: int = 8


def make_symbols(rng: Random, length: int) -> str:
    """Random symbols, all different."""
    return " ".join(f"s{i}" for i in rng.sample(range(NUM_SYMBOLS), length))


def make_line(symbols: str) -> str:
    """The symbols, a delimiter, and the symbols again."""
    return f"{symbols} copy {symbols}"


def run(experiment: Experiment) -> Iterator[Point]:
    """Train each model on sequences of all lengths, and measure the accuracy of the copy by length."""
    settings, rng = experiment.settings, Random(experiment.seed)
    files = write_files(experiment, rng)
    tests = {n: [make_symbols(rng, n) for _ in range(settings.test_lines)] for n in powers_of_two(settings.max_length)}
    for name in settings.models:
        count = settings.steps * (settings.recurrent_factor if name in ("RNN", "LSTM") else 1)
        steps = {"train.steps": count, "train.eval_every": count // settings.num_evaluations}
        trained = experiment.train(name, {**RECIPE, **steps, **model_keys(settings, name, files)})
        yield Point(PARAMETERS, name, 0, sum(p.numel() for p in trained.network.parameters()))
        for step, loss in experiment.curves(name).validation["loss"]:
            yield Point(LOSS, name, step, loss)
        for length, sequences in tests.items():
            yield Point(ACCURACY, name, length, copy_accuracy(trained, sequences))


def write_files(experiment: Experiment, rng: Random) -> dict[str, dict[str, str]]:
    """Write the same sequences as lines for decoders, and as pairs for an encoder-decoder."""
    settings = experiment.settings
    keys: dict[str, dict[str, str]] = {"lines": {}, "pairs": {}}
    for split, count in (("train", settings.train_lines), ("valid", settings.test_lines)):
        lengths = [round(math.exp(rng.uniform(0, math.log(settings.max_length)))) for _ in range(count)]
        sequences = [make_symbols(rng, length) for length in lengths]
        pairs = ["source\ttarget", *(f"{symbols}\t{symbols}" for symbols in sequences)]
        keys["lines"][f"data.{split}"] = experiment.write_texts(f"{split}.jsonl", map(make_line, sequences))
        keys["pairs"][f"data.{split}"] = experiment.write_lines(f"{split}.tsv", pairs)
    return keys


def model_keys(settings: CopyingSettings, name: str, files: dict[str, dict[str, str]]) -> dict[str, Any]:
    """The keys of a model and its data. All models have about the same number of parameters."""
    longest = settings.max_length
    if name == ADDITIVE:  # an encoder and a decoder, with about 22·W² weights in their layers; the others have 24·C²
        sizes = {"model.width": 2 * round(settings.width * 0.52), "model.layers": 1, "model.dropout": 0.0}
        lengths = {"data.max_length": longest + 2, "data.max_source_length": longest + 1}
        return {
            "objective.kind": "seq2seq",
            "model.family": "lstm",
            "train.lr": RATE,
            **sizes,
            **lengths,
            **files["pairs"],
        }
    base = "attention" if name == WINDOW else name
    keys = {**comparable_decoders(settings.width)[base], **files["lines"]}
    keys |= {"objective.kind": "causal_lm", "data.max_length": 2 * longest + 4}
    keys["train.lr"] = RNN_RATE if name == "RNN" else RATE
    if base == "attention":
        keys["model.position"] = "alibi"
    if name == WINDOW:
        keys["model.sliding_window"] = longest // WINDOWS
    return keys


def copy_accuracy(trained: TrainingResult, sequences: Sequence[str]) -> float:
    """The fraction of copied symbols that are the most probable ones, given the true symbols before them."""
    network, tokenizer, length = trained.network, trained.tokenizer, len(sequences[0].split())
    if not network.has_source:
        correct = score_tokens(network, tokenizer, [make_line(symbols) for symbols in sequences]).correct[:, -length:]
    else:
        ids = torch.tensor([tokenizer.encode(symbols, add_special_tokens=False) for symbols in sequences])
        start, end = network.config.decoder_start_token_id, network.config.eos_token_ids[0]
        assert start is not None
        source, target = F.pad(ids, (0, 1), value=end), F.pad(ids[:, :-1], (1, 0), value=start)
        with torch.no_grad(), eval_mode(network):
            correct = network(Inputs(target, source=Inputs(source))).argmax(dim=-1) == ids
    return correct.float().mean().item()


def check(table: Table) -> list[Check]:
    """Attention copies at every length; a recurrent state loses long sequences; a window ends at its reach."""
    lengths = [int(x) for x in table.xs(ACCURACY)]
    longest = lengths[-1]
    curves = {name: table.curve(ACCURACY, name) for name in table.series(ACCURACY)}
    worst = {name: min(curves[name].values(), default=0) for name in ("attention", ADDITIVE) if name in curves}
    recurrent = {name: curves[name][longest] for name in ("RNN", "LSTM") if name in curves}
    reach = {name: max((x for x in lengths if curve[x] >= SOLVED), default=0) for name, curve in curves.items()}
    falls = all(is_falling(list(curves[name].values())) for name in recurrent)
    compared = [name for name in ("attention", *recurrent) if name in curves]
    ends = {name: last_quarter(list(table.curve(LOSS, name).values())) for name in compared}
    window, reached = curves.get(WINDOW, {}), longest // WINDOWS
    sizes = [table.mean(PARAMETERS, name, 0) for name in table.series(PARAMETERS)]
    return [
        Check(
            f"attention copies at every trained length ({SOLVED} or more); RNN and LSTM copy fewer of the symbols of a "
            f"longer sequence, and with {longest} at most 0.7 of them",
            worst.get("attention", 0) >= SOLVED and max(recurrent.values(), default=1) <= 0.7 and falls,
            f"attention at least {worst.get('attention', 0):.2f}; "
            + ", ".join(f"{name} {value:.2f}" for name, value in recurrent.items())
            + f" (models of {min(sizes):,.0f} to {max(sizes):,.0f} parameters)",
        ),
        Check(
            "attention, RNN and LSTM have converged: the loss falls by less than 0.02 in the last quarter",
            all(before - after < 0.02 for before, after in ends.values()),
            ", ".join(f"{name} {before:.3f} → {after:.3f}" for name, (before, after) in ends.items()),
        ),
        Check(
            "an LSTM copies longer sequences than an RNN",
            reach.get("LSTM", 0) > reach.get("RNN", 0),
            ", ".join(f"{name} up to {reach[name]}" for name in ("LSTM", "RNN") if name in reach) or "not trained",
        ),
        Check(
            f"an LSTM with attention copies at every length as well ({SOLVED} or more)",
            worst.get(ADDITIVE, 0) >= SOLVED,
            f"at least {worst.get(ADDITIVE, 0):.2f}",
        ),
        Check(
            f"with a window of {reached}, two layers copy {reached} symbols ({SOLVED} or more), and {longest} are out "
            "of reach (below 0.15)",
            window.get(reached, 0) >= SOLVED and window.get(longest, 1) < 0.15,
            ", ".join(f"{value:.2f} with {x}" for x, value in window.items() if float(x) >= reached) or "not trained",
        ),
    ]


def is_falling(values: Sequence[float]) -> bool:
    """Whether no value is above the one before it (by more than 0.03)."""
    return all(after <= before + 0.03 for before, after in pairwise(values))


def example() -> None:
    """The idea in a few lines."""
    import torch

    torch.manual_seed(0)
    symbols = torch.nn.functional.normalize(torch.randn(32, 64), dim=1)  # 32 symbols as vectors
    previous = torch.cat([torch.zeros(1, 64), symbols[:-1]])  # what a first layer of attention adds to each key
    state = torch.zeros(64)
    for symbol in symbols:
        state = 0.9 * state + symbol  # a state of fixed size, in which old symbols fade
    for i in (1, 15, 31):
        weights = (previous @ (20 * symbols[i - 1])).softmax(dim=0)  # the query is the symbol before
        rank = int((symbols @ state > symbols[i] @ state).sum())
        print(f"symbol {i}: attention finds {int(weights.argmax())}; in the state, {rank} of 32 symbols are stronger")


CLAIM = Claim(
    name="copying",
    chapter="families",
    title="Attention copies a sequence of any trained length, a state of fixed size does not",
    quotes=(
        Quote("Can freely have long range dependencies. Each token can attend to all others.", "mechanism"),
        Quote("coz hidden state losing info during propagation", "video"),
    ),
    question="How long a sequence can a model repeat?",
    method="A line has 1 to 16 random symbols, all different, a delimiter, and the same symbols again. The distance "
    "from a symbol to its copy is the length of the sequence. All models are trained on the same sequences and have "
    "about equal numbers of parameters: one recurrent layer, two Transformer blocks, or an encoder and a decoder "
    "with one LSTM layer each and additive attention. The window of attention is 4 tokens. Accuracy is measured for "
    "the next symbol, given the true symbols before it. The validation loss of the decoders includes the first half "
    "of each line, which no model can predict.",
    lesson="Attention finds each symbol where it stands: a first layer writes into each token which symbol came "
    "before it, and a second layer looks for the symbol that followed the last copied one. The distance does not "
    "matter, and nothing has to be kept. An RNN or an LSTM has read the whole sequence before it writes the first "
    "copy, so all symbols have to be in its state at once. The gates of an LSTM hold one value over any distance (see "
    "recall), but not sixteen. With attention over the outputs of its encoder, an LSTM copies everything: the limit "
    "is the state, not the recurrence. A sliding window cuts the copy off at its width. One value can pass through a "
    "window for each layer; here the second layer has to find the symbol itself, so only one window is left.",
    limits="All symbols of a sequence are different, so that the last symbol tells which one comes next. Attention "
    "uses ALiBi, whose heads prefer near tokens; with rotary positions, it learned the same, but in several "
    "times more steps. Beyond the trained lengths, attention is worse, too (0.94 and 0.88 in an outside run). A "
    "larger LSTM copies more, and it learns slowly: after 1,200 steps it copied 0.37 of the longest sequences, "
    "after four times as many 0.54 (an outside run). Learning rates and tolerances were chosen after trials "
    "with sequences of up to 32 symbols.",
    settings={
        "mini": CopyingSettings(
            (ADDITIVE, "attention"), 16, 4, train_lines=50, test_lines=4, steps=4, num_evaluations=4
        ),
        "small": CopyingSettings(),
        "full": CopyingSettings(width=64, max_length=32, train_lines=200_000, test_lines=500, steps=4000),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=ACCURACY, x="symbols in the sequence", log_x=True, is_fraction=True),
        Chart(measure=LOSS, x="training steps"),
    ),
    example=example,
)
