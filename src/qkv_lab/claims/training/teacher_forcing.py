"""Teacher forcing: the model never reads its own errors in training. When they add up, and what training gains."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from qkv import Config, HeadConfig, StackConfig, Tokenizer, build
from qkv.models import Network
from qkv.models.runtime import eval_mode
from qkv_lab.claim import Chart, Check, Claim, Quote
from qkv_lab.experiment import Experiment
from qkv_lab.table import Point, Table

ACCURACY = "token accuracy"
RULE = "steps that follow the rule"
STEPS = "sequential steps of a training pass"
TRUE, OWN, INDEPENDENT = "reads the true tokens", "reads its own output", "product of the accuracies so far"
AFTER_ERROR = "reads its own output, after an error"
SUM, HALF, LOOKUP = "running sum", "running sum, half of the pairs", "digit by digit"
BASE = 10  # digits are 0 … 9, and sums are modulo 10
ILLEGIBLE = "x"
RECIPE = {
    "objective.kind": "causal_lm",
    "tokenizer.kind": "word",
    "tokenizer.min_frequency": 1,
    "model.width": 64,
    "model.layers": 1,
    "model.heads": 4,
    "model.dropout": 0.0,
    "model.init_std": 0.1,
    "train.batch_tokens": 1024,
    "train.lr": 3e-3,
    "train.eval_examples": 1,
}


@dataclass(frozen=True)
class TeacherForcingSettings:
    """Lines and digits of the tasks, the fraction of digits that cannot be read, and training steps."""

    tasks: tuple[str, ...] = (SUM, HALF, LOOKUP)
    train_lines: int = 4000
    test_lines: int = 400
    num_digits: int = 16
    illegible_fraction: float = 0.05
    steps: int = 320
    lengths: tuple[int, ...] = (8, 16, 32, 64)


class Line(NamedTuple):
    """Digits, whether each of them is legible, and the target of each digit."""

    digits: list[int]
    legible: list[bool]
    targets: list[int]

    def __str__(self) -> str:
        source = [f"d{d}" if legible else ILLEGIBLE for d, legible in zip(self.digits, self.legible, strict=True)]
        return " ".join([*source, "=", *(f"s{target}" for target in self.targets)])


def make_line(rng: Random, task: str, settings: TeacherForcingSettings) -> Line:
    """A random line of a task."""
    line, last = Line([], [], []), 0
    for _ in range(settings.num_digits):
        digits = [d for d in range(BASE) if task != HALF or (last * last + 3 * d + last * d) % 4 < 2]
        digit = rng.choice(digits)
        last = (3 * digit if task == LOOKUP else last + digit) % BASE
        line.digits.append(digit)
        line.legible.append(rng.random() >= settings.illegible_fraction)
        line.targets.append(last)
    return line


def run(experiment: Experiment) -> Iterator[Point]:
    """Train on each task, and let the model read the true tokens and its own; count sequential steps."""
    settings = experiment.settings
    for task in settings.tasks:
        rng = Random(experiment.seed)
        keys = {**RECIPE, "data.max_length": 2 * settings.num_digits + 3, "train.steps": settings.steps}
        for split, count in (("train", settings.train_lines), ("valid", 8)):
            lines = (str(make_line(rng, task, settings)) for _ in range(count))
            keys[f"data.{split}"] = experiment.write_texts(f"{task} {split}.jsonl", lines)
        trained = experiment.train(task, keys)
        test = [make_line(rng, task, settings) for _ in range(settings.test_lines)]
        digits, legible, targets = (torch.tensor(values) for values in zip(*test, strict=True))
        guided, free = predict(trained.network, trained.tokenizer, test)
        if task != HALF:
            yield from score_positions(task, guided == targets, free == targets)
        if task != LOOKUP:
            yield Point(RULE, TRUE, task, follow_rule(digits, targets, guided, legible))
            yield Point(RULE, AFTER_ERROR, task, follow_rule(digits, free, free, legible, free != targets))
    for length in settings.lengths:
        for name, block in (("Transformer", "transformer"), ("LSTM", "lstm")):
            network = build_small_decoder(block)
            yield Point(STEPS, f"{name} {TRUE}", length, count_steps(network, length, num_calls=1))
            yield Point(STEPS, f"{name} {OWN}", length, count_steps(network, length, num_calls=length))


@torch.no_grad()
def predict(network: Network, tokenizer: Tokenizer, lines: list[Line]) -> tuple[Tensor, Tensor]:
    """The predicted targets (N, T) if the network reads the true targets, and if it reads its own predictions."""
    bos, num_targets = tokenizer.special_tokens.bos, len(lines[0].targets)
    ids = torch.tensor([[bos, *tokenizer.encode(str(line), add_special_tokens=False)] for line in lines])
    with eval_mode(network):
        guided = network(ids[:, :-1])[:, -num_targets:].argmax(dim=2)
        free = ids[:, :-num_targets]
        for _ in range(num_targets):
            free = torch.cat([free, network(free)[:, -1:].argmax(dim=2)], dim=1)
    values = torch.full((tokenizer.vocab_size,), -1)
    for target in range(BASE):
        values[tokenizer.encode(f"s{target}", add_special_tokens=False)] = target
    return values[guided], values[free[:, -num_targets:]]


def score_positions(task: str, guided: Tensor, free: Tensor) -> Iterator[Point]:
    """The accuracy at each position, and what independent errors would give if none of them could be repaired."""
    expected = 1.0
    for position in range(guided.shape[1]):
        accuracy = guided[:, position].float().mean().item()
        expected *= accuracy
        yield Point(ACCURACY, f"{task}, {TRUE}", position + 1, accuracy)
        yield Point(ACCURACY, f"{task}, {OWN}", position + 1, free[:, position].float().mean().item())
        if task == SUM:
            yield Point(ACCURACY, f"{task}, {INDEPENDENT}", position + 1, expected)
            free_of_errors = free[:, : position + 1].all(dim=1).float().mean().item()
            assert free_of_errors == guided[:, : position + 1].all(dim=1).float().mean().item()


def follow_rule(digits: Tensor, read: Tensor, predicted: Tensor, legible: Tensor, after: Tensor | None = None) -> float:
    """The fraction of predictions that are the sum of the last token read and a legible digit.

    With `after`, only predictions after a token where it is True.
    """
    follows = predicted[:, 1:] == (read[:, :-1] + digits[:, 1:]) % BASE
    counted = legible[:, 1:] if after is None else legible[:, 1:] & after[:, :-1]
    return follows[counted].float().mean().item() if counted.any() else 1.0


def build_small_decoder(block: str) -> Network:
    """A decoder of one layer with random weights."""
    sizes = {"vocab_size": BASE, "width": 8, "layers": 1}
    stack = StackConfig(**sizes, heads=1, ffn_width=8, block=block)  # type: ignore[arg-type]
    network = build(Config(decoder=stack, head=HeadConfig(kind="lm", outputs=BASE)))
    return network


@torch.no_grad()
def count_steps(network: Network, length: int, num_calls: int) -> int:
    """The steps that run one after another if a sequence is read in `num_calls` calls.

    A call of a Transformer reads all its tokens at once. A recurrent layer takes one step for each token.
    """
    steps: list[int] = []
    count = network.output_stack.register_forward_hook(
        lambda stack, inputs, out: steps.append(1 if network.config.has_blocks else inputs[0].shape[1])
    )
    cache = network.new_cache(1, length)
    for ids in torch.zeros(1, length, dtype=torch.long).chunk(num_calls, dim=1):
        network(ids, cache=cache)
    count.remove()
    return sum(steps)


def check(table: Table) -> list[Check]:
    """Errors add up where a token depends on the last output; unseen contexts make it worse; otherwise they do not."""
    last = table.xs(ACCURACY)[-1]
    ends = {name: table.mean(ACCURACY, name, last) for name in table.series(ACCURACY)}
    guided, free, product = (ends[f"{SUM}, {name}"] for name in (TRUE, OWN, INDEPENDENT))
    lookup = [ends.get(f"{LOOKUP}, {name}", 1.0) for name in (TRUE, OWN)]
    tasks = [task for task in (SUM, HALF) if table.has(RULE, TRUE, task)]
    rules = [[table.mean(RULE, name, task) for name in (TRUE, AFTER_ERROR)] for task in tasks]
    lost = [true_read - after for true_read, after in rules]
    length = table.xs(STEPS)[-1]
    steps = [table.mean(STEPS, name, length) for name in table.series(STEPS)]
    return [
        Check(
            f"errors add up in a running sum: at token {last}, a model that reads its own output has an accuracy "
            "within 0.08 of the product of the accuracies at all tokens so far, and at least 0.2 below its accuracy "
            "when it reads the true tokens",
            abs(free - product) <= 0.08 and free <= guided - 0.2,
            f"{free:.2f} with its own output, product {product:.2f}, {guided:.2f} with the true tokens",
        ),
        Check(
            "errors do not add up if a token does not depend on the last output (difference below 0.02)",
            abs(lookup[0] - lookup[1]) < 0.02,
            f"{lookup[0]:.3f} with the true tokens, {lookup[1]:.3f} with its own",
        ),
        Check(
            "after an error, the model takes wrong steps (at least 0.1 more of them) only in contexts that training "
            "does not have; otherwise it follows the rule as before (difference below 0.02)",
            abs(lost[0]) < 0.02 and lost[-1] >= 0.1,
            "; ".join(f"{task}: {a:.2f} → {b:.2f}" for task, (a, b) in zip(tasks, rules, strict=True)),
        ),
        Check(
            "teacher forcing trains all positions of a Transformer in one step, and an LSTM in one step per token",
            steps == [1, length, length, length],
            f"{steps[0]:.0f} and {steps[2]:.0f} steps for {length} tokens; else {steps[1]:.0f} and {steps[3]:.0f}",
        ),
    ]


def example() -> None:
    """The idea in a few lines."""
    accuracy = 0.95  # of one step, given the true tokens
    for length in (1, 10, 100):
        whole = accuracy**length
        print(f"{length} tokens: the true tokens are read: {accuracy:.3f}; its own, errors stay: {whole:.3f}")


CLAIM = Claim(
    name="teacher-forcing",
    chapter="training",
    title="Teacher forcing: when errors add up, and when they do not",
    quotes=(
        Quote(
            "Teacher forcing means always giving the ground truth, which stabilizes training but creates *exposure "
            "bias* (the model never practices recovering from its own mistakes).",
            "inside",
        ),
        Quote("without step-by-step manual feeding as in RNNs.", "inside"),
    ),
    question="How much worse is a model when it reads its own output instead of the true tokens?",
    method="A source has 16 digits, of which one in 20 is illegible, so the model has to guess there. The target is "
    "the running sum of the digits modulo 10, or another digit for each digit. In a third task, only half of the pairs "
    "of a sum and a digit ever occur. The model is trained with teacher forcing. Then it reads the true target up to "
    "each position, or its own. The errors would be independent if the accuracy with its own output were the product "
    "of the accuracies of all tokens so far.",
    lesson="With greedy decoding, the probability that the first n tokens are all right is the same in both modes. "
    "They differ only after the first error. In a running sum a wrong token makes all later ones wrong, even if every "
    "later step is right: this is what the target demands, and not a fault of the training. Where a token depends on "
    "the source alone, the model recovers at once. Exposure bias in the strict sense, wrong steps after an error, "
    "appears only when the error leads to a context that training does not have. In return, a Transformer learns from "
    "all positions in one pass. An LSTM also reads the true tokens, but one after another.",
    limits="The tasks are artificial, and errors come from missing information, so their rate is known. A model of "
    "text is always in contexts that it has never seen, and it generalises to some of them. Operations within a step "
    "are counted in path-length.",
    settings={
        "mini": TeacherForcingSettings((SUM,), 40, 16, num_digits=6, steps=4, lengths=(4, 8)),
        "small": TeacherForcingSettings(),
        "full": TeacherForcingSettings(train_lines=20_000, test_lines=2000, num_digits=32, steps=1500),
    },
    run=run,
    check=check,
    charts=(
        Chart(measure=ACCURACY, x="position of the token in the target"),
        Chart(measure=RULE, x="task"),
        Chart(measure=STEPS, x="tokens", log_x=True, log_y=True),
    ),
    example=example,
)
