"""Checks that train a copy of the network for a few steps: gradients, the initial loss, overfitting, learning rate."""

import math
import time
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import nn

from qkv.blocks import Inputs
from qkv.data.load.batch import Batch
from qkv.inside.doctor.finding import Finding, failed, passed, skipped, warned
from qkv.inside.doctor.subject import Subject, keep_labels, take_sequences
from qkv.models import Network
from qkv.train.optim.optimizers import make_optimizer, set_lr
from qkv.train.recipe.schema import TrainSection

GRADIENT_STEPS = 2
"""Adapters that start at 0 pass no gradient in the first step, but in the second."""
OVERFIT_POSITIONS, OVERFIT_LABELS = 128, 32
OVERFIT_STEPS, OVERFIT_SECONDS, OVERFIT_LR = 200, 20.0, 1e-3
OVERFIT_FRACTION, OVERFIT_LOSS = 0.2, 0.05
"""A batch is overfitted if its loss falls below this fraction of the loss at the start, or below this value."""
RANGE_FACTORS = (0.01, 0.1, 1.0, 10.0)
RANGE_STEPS, RANGE_WARMUP, RANGE_SECONDS = 12, 3, 20.0
"""The learning-rate range test takes this many steps at each factor × train.lr."""
MIN_GAIN = 1e-3
"""A loss that falls by a smaller fraction hardly falls at all."""
MAX_SHOWN = 4


def join_names(names: Iterable[str]) -> str:
    """Join the names. If the list is long, only the first few are named, and the others are counted."""
    listed = list(names)
    more = f" and {len(listed) - MAX_SHOWN} more" if len(listed) > MAX_SHOWN else ""
    return ", ".join(listed[:MAX_SHOWN]) + more


def no_loss() -> Finding:
    """The finding of a check that needs a loss, for a model without one."""
    return skipped("the model has no head with a loss", "give a recipe to examine how it is trained")


def reads_tokens(inputs: Inputs) -> bool:
    """Whether a token of these inputs keeps its embedding: not all of them are placeholders of a payload."""
    is_token = torch.ones(inputs.ids.numel(), dtype=torch.bool, device=inputs.ids.device)
    if inputs.document_ids is not None:
        is_token = inputs.document_ids.flatten() != 0
    for payload in inputs.payloads.values():
        is_token = is_token.index_fill(0, payload.rows, False)
    return bool(is_token.any())


def check_gradients(subject: Subject) -> Finding:
    """Every parameter that is trained must get a finite gradient that is not 0."""
    if not subject.has_loss:
        return no_loss()
    network = subject.copy()
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if "classes" not in subject.batch.labels:  # the next-sentence head is not trained by this objective
        trained = {name: p for name, p in trained.items() if not name.startswith("head.sentence.")}
    if not reads_tokens(subject.batch.inputs):  # the vectors of a front end replace those of all tokens
        trained.pop("embedding.token.weight", None)
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-4)
    reached: set[str] = set()
    for _ in range(GRADIENT_STEPS):
        optimizer.zero_grad()
        loss = subject.loss(network)
        if loss.requires_grad:
            loss.backward()
        gradients = {name: p.grad for name, p in trained.items() if p.grad is not None}
        wrong = [name for name, grad in gradients.items() if not bool(grad.isfinite().all())]
        if wrong:
            return failed(
                f"the gradient of {join_names(wrong)} is not finite",
                "look for a division by 0, a log or a square root of 0, or weights that are not finite",
                parameters=wrong,
            )
        reached |= {name for name, grad in gradients.items() if bool(grad.any())}
        optimizer.step()
    missing = [name for name in trained if name not in reached]
    if missing:
        return failed(
            f"{len(missing)} of {len(trained)} parameters get no gradient: {join_names(missing)}",
            "they are never trained; look for a detach(), torch.no_grad(), or a part whose output is not used, or "
            "freeze them on purpose with model.freeze",
            parameters=missing,
        )
    frozen = sum(not p.requires_grad for p in network.parameters())
    return passed(f"{len(trained)} parameters" + (f", {frozen} more are frozen" if frozen else ""))


def check_initial_loss(subject: Subject) -> Finding:
    """The loss of new weights must be about the loss of a uniform guess: the logarithm of the number of classes."""
    head = subject.config.head
    if not subject.is_new or head.kind not in ("lm", "mlm", "tag", "classify") or head.outputs < 2:
        return skipped("only for new weights of a model that predicts tokens or classes")
    if head.next_sentence_classes:
        return skipped("the loss is the sum of two heads")
    with torch.no_grad():
        loss = float(subject.loss(subject.copy()))
    guess, guessed = math.log(head.outputs), f"a uniform guess among {head.outputs:,}"
    if "label_sets" in subject.batch.labels:
        guess, guessed = head.outputs * math.log(2), f"a probability of 0.5 for each of {head.outputs:,} labels"
    text = f"{loss:.2f}; {guessed} has {guess:.2f}"
    if not math.isfinite(loss):
        return failed(f"the loss is {loss}", "look for weights or activations that are not finite", loss=loss)
    if loss > 2 * guess + 1:
        return warned(
            text,
            "the initial weights are too large, and the first steps only shrink them; lower model.init_std",
            loss=loss,
            guess=guess,
        )
    return passed(text, loss=loss, guess=guess)


def check_overfit(subject: Subject) -> Finding:
    """A model that works can memorise a few labels within some steps."""
    if not subject.has_loss:
        return no_loss()
    network = subject.copy()
    batch = keep_labels(take_sequences(subject.batch, OVERFIT_POSITIONS), OVERFIT_LABELS)
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], lr=OVERFIT_LR, weight_decay=0.0)
    start = lowest = float("nan")
    began, step = time.monotonic(), 0
    for step in range(OVERFIT_STEPS):
        optimizer.zero_grad()
        loss = subject.loss(network, batch)
        value = float(loss.detach())
        start = value if step == 0 else start
        lowest = value if step == 0 else min(lowest, value)
        goal = max(OVERFIT_FRACTION * start, OVERFIT_LOSS)
        if value <= goal:
            if step == 0:
                return passed(f"the loss is only {value:.3g} already", start=start, end=value, steps=step)
            return passed(f"loss {start:.3g} → {value:.3g} in {step} steps", start=start, end=value, steps=step)
        if time.monotonic() - began > OVERFIT_SECONDS or not math.isfinite(value) or not loss.requires_grad:
            break
        loss.backward()
        optimizer.step()
    text = f"loss {start:.3g} → {lowest:.3g} in {step + 1} steps"
    values = {"start": start, "end": lowest, "steps": step + 1}
    if step + 1 < OVERFIT_STEPS and lowest < 0.8 * start:
        return warned(f"{text}, then the time was up", "the loss falls; use a smaller model to be sure", **values)
    return failed(
        text,
        "the model cannot even memorise this batch; check that labels belong to their inputs, that the optimizer gets "
        "all parameters, and the checks of gradients and scales",
        **values,
    )


def check_lr(subject: Subject) -> Finding:
    """A short range test: the loss after a few steps, with the recipe's learning rate and with neighbouring ones."""
    section = subject.train
    if section is None:
        return skipped("there is no recipe", "to check a learning rate, give the recipe")
    if not subject.is_new:
        return skipped("the weights are already trained", "to check its learning rate, give the recipe file")
    if not subject.has_loss:
        return no_loss()
    began, losses = time.monotonic(), {}
    start = float(subject.loss(subject.copy()).detach())
    for factor in sorted(RANGE_FACTORS, key=lambda factor: abs(math.log(factor))):  # the recipe's own comes first
        if time.monotonic() - began < RANGE_SECONDS:
            losses[factor * section.lr] = loss_after_training(subject, section, factor * section.lr)
    finite = {lr: loss for lr, loss in losses.items() if math.isfinite(loss)}
    listed = ", ".join(f"{lr:.1g}: {losses[lr]:.3g}" for lr in sorted(losses))
    text = f"loss {start:.3g}; after {RANGE_STEPS} steps at each learning rate {listed}"
    values = {"start": start, "losses": {f"{lr:g}": loss for lr, loss in sorted(losses.items())}, "lr": section.lr}
    best = min(finite, key=lambda lr: finite[lr], default=None)
    mine = losses[section.lr]
    better = f"; {best:.1g} learns fastest here" if best is not None and best != section.lr else ""
    if not math.isfinite(mine) or mine > 1.1 * start + 0.1:
        return failed(text, f"train.lr = {section.lr:g} is too high: the loss rises; lower it{better}", **values)
    if best is not None and start - mine < max(0.05 * (start - finite[best]), MIN_GAIN * start):
        side = "high" if best < section.lr else "low"
        return warned(text, f"train.lr = {section.lr:g} may be too {side}: the loss hardly falls{better}", **values)
    return passed(text, **values)


def loss_after_training(subject: Subject, section: TrainSection, lr: float) -> float:
    """The mean loss of the last steps of a short training with warm-up, on one batch."""
    network = subject.copy()
    trained = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
    optimizer = make_optimizer(trained, replace(section, lr=lr))
    losses = []
    for step in range(RANGE_STEPS):
        set_lr(optimizer, lr * min(1.0, (step + 1) / RANGE_WARMUP))
        losses.append(train_step(subject, network, subject.batch, optimizer, section.max_grad_norm))
    with torch.no_grad():
        losses.append(float(subject.loss(network)))
    return sum(losses[-3:]) / 3


def train_step(
    subject: Subject, network: Network, batch: Batch, optimizer: torch.optim.Optimizer, max_grad_norm: float
) -> float:
    """Take one step, and return the loss before it."""
    optimizer.zero_grad()
    loss = subject.loss(network, batch)
    if loss.requires_grad:
        loss.backward()
    if max_grad_norm:
        nn.utils.clip_grad_norm_(network.parameters(), max_grad_norm)
    optimizer.step()
    return float(loss.detach())
