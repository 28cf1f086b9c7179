"""Checks that no information reaches a token that must not see it: from the future, padding or neighbours.

Each check runs the network in float64 on random tokens twice, changes what must not matter, and compares the outputs.
"""

from dataclasses import replace

import torch
from torch import Tensor

from qkv.blocks import Inputs
from qkv.inside.doctor.finding import Finding, failed, passed, skipped
from qkv.inside.doctor.subject import Subject, random_ids, token_outputs
from qkv.models import Network

MAX_DIFFERENCE = 1e-6
"""A larger change of an output, relative to the standard deviation of all outputs, is a leak. Rounding in float64 gives
about 1e-12."""
DOCUMENT_LENGTHS = (5, 7)
PAD_TOKENS = 3


def relative_change(before: Tensor, after: Tensor) -> float:
    """The largest change of an output, relative to the standard deviation of the outputs. NaN counts as infinite."""
    change = float((before - after).abs().max() / before.std().clamp(min=1e-30))
    return float("inf") if change != change else change


def document_lengths(subject: Subject) -> tuple[int, int]:
    """The lengths of two documents that the model has enough positions for."""
    limit = min(stack.max_positions for stack in subject.config.stacks.values())
    return min(DOCUMENT_LENGTHS[0], limit), min(DOCUMENT_LENGTHS[1], limit)


def random_source(network: Network, batch_size: int, length: int) -> Inputs | None:
    """A random source for an encoder-decoder."""
    if not network.has_source:
        return None
    return Inputs(random_ids(network.stacks["encoder"].config.vocab_size, batch_size, length, seed=7))


def check_future(subject: Subject) -> Finding:
    """Outputs must not change when later tokens change."""
    if subject.config.family == "encoder":
        return skipped("an encoder attends in both directions")
    network, (_, length) = subject.copy(torch.float64), document_lengths(subject)
    vocab_size = subject.config.stack.vocab_size
    ids = random_ids(vocab_size, 2, length)
    source = random_source(network, 2, length)
    with torch.no_grad():
        before = token_outputs(network, Inputs(ids, source=source))
        worst, where = 0.0, 0
        for first in range(1, length):
            changed = ids.clone()
            changed[:, first:] = (changed[:, first:] + 1) % max(vocab_size, 1)
            after = token_outputs(network, Inputs(changed, source=source))
            change = relative_change(before[:, :first], after[:, :first])
            if change > worst:
                worst, where = change, first
    if worst > MAX_DIFFERENCE:
        return failed(
            f"outputs before position {where} change by {worst:.2g} standard deviations when the tokens from "
            f"position {where} on change",
            "a token sees later tokens, so the training loss means nothing; check that the mask is causal and "
            "that labels are the next tokens",
            change=worst,
            position=where,
        )
    return passed(f"changing later tokens changes no output (at most {worst:.1g})", change=worst)


def pad(ids: Tensor, left: int, right: int, vocab_size: int) -> Inputs:
    """Pad sequences (B, T) with random tokens."""
    size = len(ids)
    parts = [random_ids(vocab_size, size, left, seed=3), ids, random_ids(vocab_size, size, right, seed=4)]
    document_ids = torch.tensor([0] * left + [1] * ids.shape[1] + [0] * right).repeat(size, 1)
    return Inputs(torch.cat(parts, dim=1), document_ids=document_ids)


def check_padding(subject: Subject) -> Finding:
    """Outputs must not change when a sequence is padded, whatever tokens the padding has."""
    vocab_size = subject.config.stack.vocab_size
    network, (length, _) = subject.copy(torch.float64), document_lengths(subject)
    ids, source = random_ids(vocab_size, 2, length), random_source(network, 2, length)
    changes = {}
    with torch.no_grad():
        plain = token_outputs(network, Inputs(ids, source=source))
        for side, (left, right) in {"left": (PAD_TOKENS, 0), "right": (0, PAD_TOKENS)}.items():
            outputs = token_outputs(network, replace(pad(ids, left, right, vocab_size), source=source))
            changes[side] = relative_change(plain, outputs[:, left : left + length])
            if source is not None:
                padded = pad(source.ids, left, right, network.stacks["encoder"].config.vocab_size)
                outputs = token_outputs(network, Inputs(ids, source=padded))
                changes[f"source {side}"] = relative_change(plain, outputs)
    side = max(changes, key=lambda name: changes[name])
    if changes[side] > MAX_DIFFERENCE:
        return failed(
            f"{side}-padding changes the outputs of real tokens by {changes[side]:.2g} standard deviations",
            "results depend on the other sequences of a batch; check that padding has document id 0 and that the "
            "attention mask hides it",
            **changes,
        )
    return passed(f"left- and right-padding change no output (at most {changes[side]:.1g})", **changes)


def check_neighbours(subject: Subject) -> Finding:
    """Outputs of a document must not depend on other documents of its sequence, nor on other sequences."""
    vocab_size = subject.config.stack.vocab_size
    network, lengths = subject.copy(torch.float64), document_lengths(subject)
    parts = [random_ids(vocab_size, 1, length, seed=number) for number, length in enumerate(lengths)]
    sources = [random_source(network, 1, length) for length in lengths]
    document_ids = torch.tensor([[1] * lengths[0] + [2] * lengths[1]])
    packed = both = None
    if sources[0] is not None:
        packed = Inputs(torch.cat([source.ids for source in sources if source], dim=1), document_ids=document_ids)
        both = Inputs(sources[0].ids.repeat(2, 1))
    with torch.no_grad():
        pairs = zip(parts, sources, strict=True)
        alone = [token_outputs(network, Inputs(ids, source=source)) for ids, source in pairs]
        inputs = Inputs(torch.cat(parts, dim=1), document_ids=document_ids, source=packed)
        together = token_outputs(network, inputs)
        batch = parts[0].repeat(2, 1)
        batch[1] = (batch[1] + 1) % max(vocab_size, 1)
        batched = token_outputs(network, Inputs(batch, source=both))[:1]
    changes = {
        "packed document": relative_change(torch.cat(alone, dim=1), together),
        "sequence": relative_change(alone[0], batched),
    }
    neighbour = max(changes, key=lambda name: changes[name])
    if changes[neighbour] > MAX_DIFFERENCE:
        return failed(
            f"another {neighbour} changes the outputs by {changes[neighbour]:.2g} standard deviations",
            "check that attention compares document ids and that positions start at 0 in each document; until then "
            'train with data.layout = "padded"'
            if neighbour == "packed document"
            else "look for an operation over the batch axis, such as batch normalisation",
            **changes,
        )
    return passed(
        f"packed documents and other sequences change no output (at most {changes[neighbour]:.1g})", **changes
    )
