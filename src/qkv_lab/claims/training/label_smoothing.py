"""Label smoothing lowers the confidence of a classifier: good if the classifier overfits, bad otherwise.

K classes, V words
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from qkv.tasks.calibrate import calibration_error
from qkv.tasks.run.logits import class_names, class_probabilities, compute_logits
from qkv.tasks.text_model import TextModel
from qkv_lab.claim import Chart, Check, Claim
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

CALIBRATION = "expected calibration error"
LOSS = "test loss (nats)"
ACCURACY = "test accuracy"
LITTLE, MORE, TEMPERATURE = "little data", "more data", "little data, fitted temperature"
NUM_WORDS, NUM_TOKENS = 300, 12


@dataclass(frozen=True)
class LabelSmoothingSettings:
    """Random topics, and classifiers that learn to tell them apart."""

    smoothing: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2)
    little: int = 300  # training texts
    more: int = 10_000
    num_test: int = 2000
    steps: int = 250
    num_topics: int = 4


def run(experiment: Experiment) -> Iterator[Point]:
    """Calibration error, loss and accuracy on test texts, by label smoothing and by the amount of training data."""
    settings = experiment.settings
    topics = (0.7 * torch.randn(settings.num_topics, NUM_WORDS)).softmax(dim=1)  # (K, V)
    valid = experiment.write_records("valid.jsonl", make_records(topics, 500))
    test = make_records(topics, settings.num_test)
    for series, size in ((LITTLE, settings.little), (MORE, settings.more)):
        train = experiment.write_records(f"{size}.jsonl", make_records(topics, size))
        for smoothing in settings.smoothing:
            keys = {
                "data.train": train,
                "data.valid": valid,
                "data.max_length": 64,
                "objective.kind": "classification",
                "objective.label_smoothing": smoothing,
                "tokenizer.kind": "word",
                "tokenizer.min_frequency": 1,
                "model.width": 32,
                "model.layers": 1,
                "model.dropout": 0.0,
                "model.head.dropout": 0.0,
                "model.head.pool": "mean",
                "train.steps": settings.steps,
                "train.batch_tokens": 512,
                "train.lr": 3e-3,
            }
            trained = experiment.train(f"{size} {smoothing}", keys)
            model = TextModel(trained.network, trained.tokenizer, trained.config, batch_size=64)
            yield from evaluate(model, test, series, smoothing)


def make_records(topics: Tensor, count: int) -> list[dict[str, str]]:
    """Texts of random words, each from the word distribution of a random topic, which is its label."""
    labels = torch.randint(len(topics), (count,))
    words = torch.multinomial(topics[labels], NUM_TOKENS, replacement=True)
    return [
        {"text": " ".join(f"w{word}" for word in text), "label": f"topic{label}"}
        for text, label in zip(words.tolist(), labels.tolist(), strict=True)
    ]


def evaluate(model: TextModel, test: list[dict[str, str]], series: str, smoothing: float) -> Iterator[Point]:
    """The measures on test texts. The temperature, which qkv fits on validation data, is a series by itself."""
    names = {name: number for number, name in enumerate(class_names(model.config))}
    expected = np.array([names[text["label"]] for text in test])
    logits, _ = compute_logits(model, [text["text"] for text in test])
    plain = replace(model.config, head=replace(model.config.head, temperature=1.0))
    probabilities = class_probabilities(plain, logits)
    yield Point(CALIBRATION, series, smoothing, calibration_error(probabilities, expected))
    if series == LITTLE:
        scaled = class_probabilities(model.config, logits)
        yield Point(CALIBRATION, TEMPERATURE, smoothing, calibration_error(scaled, expected))
    yield Point(LOSS, series, smoothing, -np.log(probabilities[np.arange(len(test)), expected]).mean())
    yield Point(ACCURACY, series, smoothing, (probabilities.argmax(1) == expected).mean())


def check(table: Table) -> list[Check]:
    """Smoothing improves the calibration and the loss of a model that overfits, and worsens them otherwise."""
    plain, usual = 0.0, 0.1
    error = {name: [table.mean(CALIBRATION, name, x) for x in (plain, usual)] for name in table.series(CALIBRATION)}
    loss = {name: [table.mean(LOSS, name, x) for x in (plain, usual)] for name in table.series(LOSS)}
    accuracy = {name: table.difference(ACCURACY, (name, usual), (name, plain)) for name in (LITTLE, MORE)}
    return [
        Check(
            "with little data, a smoothing of 0.1 lowers the calibration error by at least a quarter",
            error[LITTLE][1] < 0.75 * error[LITTLE][0],
            f"{error[LITTLE][0]:.3f} without, {error[LITTLE][1]:.3f} with smoothing",
        ),
        Check(
            "with more data, it raises the calibration error",
            error[MORE][1] > error[MORE][0],
            f"{error[MORE][0]:.3f} without, {error[MORE][1]:.3f} with smoothing",
        ),
        Check(
            "it lowers the loss with little data, and raises it with more data",
            loss[LITTLE][1] < loss[LITTLE][0] and loss[MORE][1] > loss[MORE][0],
            "; ".join(f"{name} {values[0]:.2f} → {values[1]:.2f} nats" for name, values in loss.items()),
        ),
        Check(
            "it improves the accuracy, as in the 2017 paper (by more than the confidence interval)",
            all(mean > half for mean, half in accuracy.values()),
            "; ".join(f"{name} {100 * mean:+.1f} ± {100 * half:.1f} points" for name, (mean, half) in accuracy.items()),
            needs_all_seeds=True,
        ),
        Check(
            "a fitted temperature calibrates the model without smoothing at least as well as smoothing does",
            error[TEMPERATURE][0] <= error[LITTLE][1],
            f"{error[TEMPERATURE][0]:.3f} with a temperature and no smoothing",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    import torch
    from torch.nn import functional as F

    # The best prediction of a class that is certain, among 4 classes: smoothing makes it less than certain.
    logits = torch.zeros(4, requires_grad=True)
    for smoothing in (0.0, 0.1, 0.2):
        optimizer = torch.optim.Adam([logits], lr=0.1)
        for _ in range(300):
            optimizer.zero_grad()
            F.cross_entropy(logits, torch.tensor(0), label_smoothing=smoothing).backward()
            optimizer.step()
        print(f"smoothing {smoothing}: probability {logits.softmax(0)[0]:.3f}, logit gap {logits[0] - logits[1]:.1f}")


CLAIM = Claim(
    name="label-smoothing",
    chapter="training",
    title="Label smoothing lowers confidence, rightly or wrongly",
    quotes=(),
    question="What does label smoothing do to calibration, loss and accuracy?",
    method="A text is twelve words from the word distribution of one of four random topics, and a small encoder "
    "learns the topic. It sees a few hundred texts many times, or thousands of texts once or twice. The expected "
    "calibration error is the difference between confidence and accuracy, averaged over ten bins of confidence. The "
    "loss has no smoothing. As a comparison, a temperature that divides the logits is fitted on validation texts "
    "after training.",
    lesson="With a smoothing of ε, the target of the correct class is 1 − ε + ε/K instead of 1. The loss then has a "
    "finite optimum: the model learns to be wrong with probability ε·(K − 1)/K. A model that has memorised its few "
    "training texts is certain and often wrong, and smoothing corrects that, in calibration and in loss. A model with "
    "enough data is calibrated already, and smoothing makes it doubt too much. Whether accuracy improves is another "
    "question: smoothing changes how sure the model is, more than what it predicts. A temperature fitted after "
    "training needs no retraining, and calibrates in both directions. qkv fits one for every classifier "
    "(`tasks/calibrate.py`).",
    limits="The topics are synthetic, and there are four classes. The 2017 paper smooths over a vocabulary of 37,000 "
    "tokens, and reports a worse perplexity and better BLEU. The lecture notes that we quote elsewhere do not mention "
    "label smoothing.",
    settings={
        "mini": LabelSmoothingSettings((0.0, 0.1), little=50, more=60, num_test=100, steps=3),
        "small": LabelSmoothingSettings(),
        "full": LabelSmoothingSettings((0.0, 0.05, 0.1, 0.2, 0.3), more=100_000, num_test=10_000, steps=2500),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=CALIBRATION, x="label smoothing", integer_x=False),
        Chart(measure=LOSS, x="label smoothing", integer_x=False),
        Chart(measure=ACCURACY, x="label smoothing", integer_x=False),
    ),
    example=example,
)
