"""Beyond the trained length, learned, sinusoidal and rotary positions fail; ALiBi and T5's buckets do not."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.decoders import decoder_keys
from qkv_lab.experiment import Experiment
from qkv_lab.markov import MarkovChain, write_walks
from qkv_lab.scoring import score_tokens
from qkv_lab.table import Point, Table

LOSS = "loss (nats per token)"
KINDS = {
    "learned": "learned",
    "sinusoidal": "sinusoidal",
    "rotary": "rotary",
    "T5": "t5",
    "ALiBi": "alibi",
    "none": "none",
}
TRAINED, FAR = 1.0, 4.0
"""Positions, as multiples of the trained length."""


@dataclass(frozen=True)
class PositionsSettings:
    """A language in which order matters, and short training runs on it."""

    num_states: int = 6
    order: int = 2  # the next token depends on the last two
    length: int = 32  # of the training sequences
    width: int = 32
    heads: int = 4
    layers: int = 2
    num_walks: int = 200
    steps: int = 350
    batch_tokens: int = 512
    num_scored: int = 128  # walks of four times the trained length


def run(experiment: Experiment) -> Iterator[Point]:
    """Train a decoder with each kind of position, and score walks that are four times as long."""
    settings = experiment.settings
    chain = MarkovChain(random.Random(experiment.seed), settings.num_states, settings.order)
    data = write_walks(experiment, chain, settings.num_walks, 20 * settings.length, max_length=settings.length)
    long = int(FAR) * settings.length
    scored = [chain.walk(long) for _ in range(settings.num_scored)]
    training = {"train.steps": settings.steps, "train.batch_tokens": settings.batch_tokens, "train.lr": 0.01}
    for name, kind in KINDS.items():
        # The learned table has rows for all positions. T5 shares one bucket beyond half of the trained length.
        change = {"position": kind, "max_positions": long + 1, "heads": settings.heads}
        change |= {"relative_buckets": settings.length // 2, "relative_max_distance": settings.length // 2}
        keys = {**data, **training, **decoder_keys(settings.layers, settings.width, change)}
        trained = experiment.train(name, keys)
        losses = score_tokens(trained.network, trained.tokenizer, scored).losses.mean(dim=0)
        for end in range(settings.length // 2, long + 1, settings.length // 2):
            yield Point(LOSS, name, end / settings.length, losses[end - settings.length // 2 : end].mean().item())


def check(table: Table) -> list[Check]:
    """Only positions that act on distances, and have seen all of them, extrapolate."""
    rise = {name: table.difference(LOSS, (name, FAR), (name, TRAINED)) for name in KINDS}
    within = {name: table.mean(LOSS, name, TRAINED) for name in KINDS}
    best = min(within, key=lambda name: within[name])

    def describe(*names: str) -> str:
        return ", ".join(f"{name} {rise[name][0]:+.2f}" for name in names) + " nats"

    return [
        Check(
            "at 4 times the trained length, the loss with learned and sinusoidal positions is higher (by 0.5 nats)",
            all(rise[name][0] - rise[name][1] > 0.5 for name in ("learned", "sinusoidal")),
            describe("learned", "sinusoidal"),
        ),
        Check(
            "with ALiBi and T5, it is not (by less than 0.2 nats)",
            all(rise[name][0] < 0.2 for name in ("ALiBi", "T5")),
            describe("ALiBi", "T5"),
        ),
        Check(
            "rotary positions do not extrapolate, either, without scaling: the loss is higher (by 0.3 nats)",
            rise["rotary"][0] > 0.3,
            describe("rotary"),
        ),
        Check(
            f"a decoder without positions cannot use order well: within the trained length, it is worse than {best} "
            "(by 0.2 nats)",
            within["none"] - within[best] > 0.2,
            f"{within['none']:.2f} against {within[best]:.2f} nats",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    from qkv.blocks.position import alibi_slopes, sinusoids

    vectors = sinusoids(torch.arange(128)[None], 64)[0].float()
    nearest = torch.cdist(vectors[32:], vectors[:32]).min(dim=1).values
    print(f"sinusoids: each of 0…31 is {torch.cdist(vectors[:31], vectors[1:32]).diag().mean():.1f} from the next")
    print(f"positions 32…127 are up to {nearest.max():.1f} from all of them: the model has not seen such vectors")
    print(f"ALiBi: distance 100 only adds {-100 * alibi_slopes(4, torch.device('cpu'))[0]:.0f} to a score")


CLAIM = Claim(
    name="positions",
    chapter="parts",
    title="Learned, sinusoidal and rotary positions do not extrapolate",
    quotes=(
        Quote("Definitely can’t extrapolate to indices outside 1, … , 𝑛.", "lecture", "of learned positions"),
        Quote(
            "Using sinusoidal positional encoding allows the model to generalize to longer sequences",
            "mechanism",
            "wrong",
        ),
    ),
    question="What is the loss at positions beyond the trained length, for each kind of position encoding?",
    method="Small decoders learn a random language in which each token depends on the two tokens before it, in "
    "sequences of a fixed length. We measure the loss on sequences of four times that length; the best possible one "
    "is 0.69. The learned table has rows for all positions, so those beyond the trained length stay as they were "
    "initialised.",
    lesson="A model extrapolates if long sequences show it nothing new. An untrained row of a learned table is a "
    "random vector. The sinusoids of a new position are well-defined, but the model has never seen that combination "
    "of slow waves, so its attention patterns break. Rotary positions depend only on the distance between two tokens, "
    "but larger distances bring angles that are just as new. ALiBi lowers the score of a key in proportion to its "
    "distance. T5 puts all large distances into one trained bucket, so a distant key gets no more weight than "
    "before, although there are more of them.",
    limits="A language with short dependencies. ALiBi extrapolates because it ignores distant tokens, which would hurt "
    "if they mattered. T5 extrapolates only if its last bucket was trained, so we let that bucket begin below the "
    "trained length. Rotary models are extended by scaling their frequencies and some further training; this is not "
    "tested here.",
    settings={
        "mini": PositionsSettings(length=8, layers=1, num_walks=20, steps=2, num_scored=4),
        "small": PositionsSettings(),
        "full": PositionsSettings(num_states=8, length=64, width=64, num_walks=1000, steps=1000, batch_tokens=1024),
    },
    run=run,
    check=check,
    charts=(Chart(measure=LOSS, x="position / trained length", integer_x=False),),
    example=example,
)
