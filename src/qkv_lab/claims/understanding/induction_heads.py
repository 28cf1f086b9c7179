"""Induction heads appear together with in-context learning, and need two layers of attention."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from qkv import inside
from qkv.inside import Edit, HeadSummary
from qkv.tasks.text_model import TextModel
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment, save_steps
from qkv_lab.scoring import encode_lines, score_tokens
from qkv_lab.table import Point, Table

LOSS = "loss of repeated tokens (nats)"
SCORE = "largest induction score of a head"
ABLATED = "loss of repeated tokens with heads removed (nats)"
ONE, TWO = "1 layer", "2 layers"
NONE, INDUCTION, OTHERS, FIRST = "none", "induction heads", "other heads of their layer", "all heads of layer 0"
COUNT = "heads removed"
RECIPE = {
    "objective.kind": "causal_lm",
    "tokenizer.kind": "word",
    "tokenizer.min_frequency": 1,
    "model.width": 64,
    "model.heads": 8,
    "model.ffn_width": 1,
    "model.position": "alibi",
    "model.dropout": 0.0,
    "model.init": "normal",
    "train.lr": 5e-3,
    "train.schedule": "constant",
    "train.weight_decay": 0.0,
}


@dataclass(frozen=True)
class InductionHeadsSettings:
    """The data and the training of the models."""

    num_words: int = 32
    length: int = 32  # of a document, in words
    documents: int = 4000
    test_documents: int = 48
    batch_documents: int = 32
    steps: int = 480
    save_every: int = 60


def run(experiment: Experiment) -> Iterator[Point]:
    """Train models of one and two layers; along the training, measure the induction scores and the loss."""
    settings, generator = experiment.settings, random.Random(experiment.seed)
    documents = [make_document(settings, generator) for _ in range(settings.documents)]
    tests = [make_document(settings, generator) for _ in range(settings.test_documents)]
    keys = {**RECIPE, **save_steps(settings.save_every), "train.steps": settings.steps}
    keys["data.train"] = experiment.write_texts("train.jsonl", map(" ".join, documents))
    keys["data.valid"] = experiment.write_texts("valid.jsonl", map(" ".join, tests))
    keys["data.max_length"] = settings.length + 2
    keys["train.batch_tokens"] = settings.batch_documents * (settings.length + 2)
    for name, layers in ((ONE, 1), (TWO, 2)):
        tokenizer = experiment.train(name, {**keys, "model.layers": layers}).tokenizer
        for step, network in experiment.snapshots(name):
            model = TextModel(network, tokenizer, network.config)
            heads = summarise_heads(model, tests)
            yield Point(LOSS, name, step, repeated_loss(model, tests))
            yield Point(SCORE, name, step, max(induction_score(head) for head in heads))
    for removed, edits in choose_ablations(heads).items():
        yield Point(ABLATED, TWO, removed, repeated_loss(model, tests, edits))
        yield Point(COUNT, TWO, removed, sum(len(edit.heads or ()) for edit in edits))


def make_document(settings: InductionHeadsSettings, generator: random.Random) -> list[str]:
    """A random segment of different words, repeated to the length of the document.

    The length of the segment is random, so a head cannot find the earlier occurrence by its distance.
    """
    size = generator.randint(settings.length // 8, settings.length // 2 - 1)
    segment = [f"w{number}" for number in generator.sample(range(settings.num_words), size)]
    return [segment[i % size] for i in range(settings.length)]


def repeated_loss(model: TextModel, documents: Sequence[Sequence[str]], edits: Sequence[Edit] = ()) -> float:
    """The mean loss of words whose predecessor has occurred before, so that the context determines them."""
    lines = [" ".join(words) for words in documents]
    losses = score_tokens(model.network, model.tokenizer, lines, edits).losses
    repeated = torch.tensor([[i > len(set(words)) for i in range(len(words))] for words in documents])
    return float(losses[repeated].mean())


def summarise_heads(model: TextModel, documents: Sequence[Sequence[str]]) -> list[HeadSummary]:
    """What each head attends to, as means over documents."""
    examples = encode_lines(model.tokenizer, [" ".join(words) for words in documents])
    traces = inside.trace_many(model.network, examples, sites="*pattern", batch_size=len(examples))
    return inside.head_summaries(traces)


def induction_score(head: HeadSummary) -> float:
    """The mean weight on tokens that follow an earlier occurrence of the query's token."""
    return head.induction or 0.0


def choose_ablations(heads: Sequence[HeadSummary]) -> dict[str, list[Edit]]:
    """What to remove: the heads of the last layer with at least half of its largest score, its others, or layer 0."""
    last = [head for head in heads if head.site == heads[-1].site]
    threshold = max(induction_score(head) for head in last) / 2
    found = [head.head for head in last if induction_score(head) >= threshold]
    others = [head.head for head in last if induction_score(head) < threshold]
    site = last[0].site.replace("pattern", "z")
    return {
        NONE: [],
        INDUCTION: [inside.zero_ablate(site, heads=found)],
        OTHERS: [inside.zero_ablate(site, heads=others)],
        FIRST: [inside.zero_ablate("decoder.0.z", heads=range(len(last)))],
    }


def check(table: Table) -> list[Check]:
    """Two layers learn from their context, at the same time as induction heads appear; one layer does not."""
    steps = table.xs(LOSS)
    losses, scores = ([table.mean(measure, name, steps[-1]) for name in (ONE, TWO)] for measure in (LOSS, SCORE))
    half_loss, half_score = (step_of_half(table.curve(measure, TWO)) for measure in (LOSS, SCORE))
    kept, without, others = (table.mean(ABLATED, TWO, name) for name in (NONE, INDUCTION, OTHERS))
    return [
        Check(
            "two layers predict repeated tokens with less than a third of the loss of one layer",
            losses[1] < losses[0] / 3,
            f"{losses[1]:.2f} against {losses[0]:.2f} nats",
        ),
        Check(
            "two layers have a head with an induction score above 0.5; one layer has none above 0.2",
            scores[1] > 0.5 and scores[0] < 0.2,
            f"largest scores {scores[1]:.2f} and {scores[0]:.2f}",
        ),
        Check(
            "the score rises and the loss falls together: the steps of half the change differ by a fifth at most",
            abs(half_loss - half_score) <= 0.2 * max(half_loss, half_score),
            f"steps {half_score:.0f} and {half_loss:.0f}",
        ),
        Check(
            "removing the induction heads costs at least three times as much as removing the other heads of the layer",
            without - kept > 3 * (others - kept),
            f"{kept:.2f} nats with all heads, {without:.2f} and {others:.2f} without these "
            f"({table.mean(COUNT, TWO, INDUCTION):.1f} and {table.mean(COUNT, TWO, OTHERS):.1f} heads)",
        ),
    ]


def step_of_half(curve: dict[float | str, float]) -> float:
    """The step at which half of the change from the first to the last value is reached, interpolated."""
    points = [(float(step), value) for step, value in curve.items()]
    first, last = points[0][1], points[-1][1]
    fractions = [(step, (value - first) / (last - first)) for step, value in points]
    for (step, before), (following, after) in pairwise(fractions):
        if after >= 0.5:
            return step + (following - step) * (0.5 - before) / (after - before)
    return points[-1][0]


def example() -> None:
    """The idea in a few lines."""
    import torch

    words = ["the", "cat", "sat", "on", "the", "mat", "and", "the", "cat"]
    previous = torch.tensor([[i - 1 == j for j in range(9)] for i in range(9)], dtype=torch.float)  # layer 0
    tokens = torch.tensor([words.index(word) for word in words])
    one_hot = torch.nn.functional.one_hot(tokens).float()
    keys = previous @ one_hot  # after layer 0, a token knows its predecessor
    matches = one_hot @ keys.T  # layer 1: the query is the token itself
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    pattern = (10 * matches).masked_fill(future, float("-inf")).softmax(dim=1)
    print("after 'the cat', the head attends to:", words[int(pattern[-1].argmax())])


CLAIM = Claim(
    name="induction-heads",
    chapter="understanding",
    title="Two layers of attention learn from the context; one layer cannot",
    quotes=(
        Quote(
            "if we stack two self-attention layers, we get something that looks a lot like a single self-attention "
            "layer",
            "lecture",
            "wrong: two layers can do more than one",
        ),
    ),
    question="When does a model learn to continue a sequence that it has seen once in its context, and which heads "
    "do it?",
    method="A document is a segment of random words that is repeated. From the second occurrence on, the context "
    "determines every word, but no weight can know it in advance. We train decoders with one and two layers, whose "
    "MLPs have a single neuron, so that attention does the work. The induction score of a head is its mean weight on "
    "tokens that follow an earlier occurrence of the current token (Olsson et al. 2022). At the end we remove heads.",
    lesson="An induction head completes a pattern: after A B … A it attends to B and copies it. To find B, its key "
    "must contain the token before B. Only an earlier layer can write this into the residual stream. So the mechanism "
    "needs two layers: the weights of the second layer depend on what the first one has moved. The formula in the "
    "notes leaves this out, because it treats the attention weights as constants. A single layer only learns to "
    "repeat words of the context in any order. In the model with two layers, the head appears and the loss falls "
    "within a short part of the training.",
    limits="The documents are artificial. The models use ALiBi, which gives every head a preference for near tokens, "
    "because the first layer then finds the previous token without learning it; with other positions the change comes "
    "later. In large models, induction heads are one of several mechanisms of in-context learning.",
    settings={
        "mini": InductionHeadsSettings(16, 16, 100, 8, 8, steps=6, save_every=3),
        "small": InductionHeadsSettings(),
        "full": InductionHeadsSettings(128, 96, 20_000, 128, 64, steps=1000, save_every=50),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=LOSS, x="training step"),
        Chart(measure=SCORE, x="training step", is_fraction=True),
        Chart(measure=ABLATED, x="removed heads"),
    ),
    example=example,
)
