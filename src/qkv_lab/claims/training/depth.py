"""Pre-norm trains at every depth; a deep post-norm stack does not. Warm-up helps it, up to a depth."""

from collections.abc import Iterator
from dataclasses import dataclass

from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.decoders import BARE_ADAM, decoder_keys
from qkv_lab.experiment import Experiment
from qkv_lab.markov import MAX_LEARNED_LOSS, write_markov_chain
from qkv_lab.table import Point, Table

LOSS = "validation loss (nats per token)"
PLACEMENTS = {"pre-norm": "pre", "post-norm": "post", "sandwich": "sandwich"}
WARM, COLD = "warm-up", "no warm-up"


@dataclass(frozen=True)
class DepthSettings:
    """Short training runs of shallow and deep stacks."""

    depths: tuple[int, ...] = (2, 8, 64)
    lr: float = 4e-3
    warmup: float = 0.3  # the fraction of the run
    width: int = 32
    num_tokens: int = 30
    num_walks: int = 2000
    steps: int = 100
    batch_tokens: int = 512


def run(experiment: Experiment) -> Iterator[Point]:
    """Train decoders of each depth and norm placement, with and without warm-up."""
    settings = experiment.settings
    data = write_markov_chain(experiment, settings.num_walks, settings.num_tokens)
    sizes = {"train.steps": settings.steps, "train.batch_tokens": settings.batch_tokens}
    training = {**BARE_ADAM, **sizes, "train.lr": settings.lr}
    for depth in settings.depths:
        for norm, placement in PLACEMENTS.items():
            model = decoder_keys(depth, settings.width, {"norm_placement": placement})
            for schedule, warmup in ((COLD, 0.0), (WARM, settings.warmup)):
                name = f"{norm}, {schedule}"
                keys = {**data, **model, **training, "train.warmup": warmup}
                loss = experiment.train(f"{name}, {depth} layers", keys).run_end.metrics["loss"]
                yield Point(LOSS, name, depth, loss)


def check(table: Table) -> list[Check]:
    """Pre-norm learns at every depth; post-norm does not at the largest one, and warm-up helps it."""
    depths = table.xs(LOSS)
    shallow, deep = depths[0], depths[-1]

    def loss(norm: str, schedule: str, depth: float | str) -> float:
        return table.mean(LOSS, f"{norm}, {schedule}", depth)

    def highest(norm: str) -> float:
        return max(loss(norm, schedule, depth) for schedule in (COLD, WARM) for depth in depths)

    cold, warm = (loss("post-norm", schedule, deep) for schedule in (COLD, WARM))
    both = [loss("post-norm", schedule, shallow) for schedule in (COLD, WARM)]
    return [
        Check(
            f"pre-norm learns at every depth, with and without warm-up (loss below {MAX_LEARNED_LOSS:g}); post-norm "
            f"with {deep} layers and no warm-up does not",
            highest("pre-norm") < MAX_LEARNED_LOSS <= cold,
            f"pre-norm at most {highest('pre-norm'):.2f}, post-norm {cold:.2f} nats",
        ),
        Check(
            f"with {shallow} layers, post-norm learns, with and without warm-up",
            max(both) < MAX_LEARNED_LOSS,
            f"{both[0]:.2f} without and {both[1]:.2f} nats with warm-up",
        ),
        Check(
            f"with {deep} layers, warm-up is enough for post-norm to learn",
            warm < MAX_LEARNED_LOSS,
            f"{warm:.2f} nats with warm-up, {cold:.2f} without",
        ),
        Check(
            "norms on both sides of a sublayer (sandwich) learn at every depth, with and without warm-up",
            highest("sandwich") < MAX_LEARNED_LOSS,
            f"at most {highest('sandwich'):.2f} nats",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch

    from qkv_lab.decoders import build_decoder

    ids = torch.randint(50, (4, 17))
    for placement in ("pre", "post", "sandwich"):
        for layers in (2, 32):
            network = build_decoder(layers=layers, width=32, vocab_size=50, norm_placement=placement)
            loss = torch.nn.functional.cross_entropy(network(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            weights = [p for name, p in network.named_parameters() if name.endswith("qkv.weight")]
            first, last = (gradient.norm() for gradient in torch.autograd.grad(loss, [weights[0], weights[-1]]))
            print(f"{placement}, {layers} layers: gradient of the first ÷ the last layer: {first / last:.2f}")


CLAIM = Claim(
    name="depth",
    chapter="training",
    title="Pre-norm trains at every depth, post-norm does not",
    quotes=(
        Quote(
            "The model uses layer normalization and residual connections to stabilize and speed up training.", "review"
        ),
    ),
    question="Which depths can be trained with norms before, after or around each sublayer, with and without warm-up?",
    method="Decoders of 2 to 64 layers learn a Markov chain with Adam, a cosine schedule and no gradient clipping, all "
    "with the same peak learning rate. Warm-up raises it linearly over the first 30 % of the steps.",
    lesson="A residual connection passes the gradient to every layer only if no norm stands in its way. Pre-norm and "
    "sandwich blocks leave the residual stream alone, so that depth does no harm. Post-norm normalises the stream "
    "after each sublayer, and the gradient passes through every one of these norms. Warm-up lets a stack of 8 layers "
    "learn, and not one of 64. It helps deep pre-norm and sandwich stacks, too: with 64 layers their loss is lower.",
    limits="One learning rate, one width and short runs on a synthetic language. A lower learning rate, a longer "
    "warm-up or another initialisation can train deeper post-norm stacks.",
    settings={
        "mini": DepthSettings((1, 2), num_walks=100, steps=2),
        "small": DepthSettings(),
        "full": DepthSettings((2, 4, 8, 16, 32, 64), width=64, num_walks=8000, steps=300),
    },
    run=run,
    check=check,
    charts=(Chart(measure=LOSS, x="layers", log_x=True),),
    example=example,
)
