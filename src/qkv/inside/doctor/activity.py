"""Checks of the activations on a batch: dead heads, neurons and experts, scales by depth.

B batch, T tokens, H heads, D head dim, C model width, F neurons of a layer
"""

import torch
from torch import Tensor, nn

from qkv.blocks import Stack, Tap
from qkv.blocks.attention import Attention
from qkv.inside.doctor.finding import Finding, failed, passed, skipped, warned
from qkv.inside.doctor.learning import join_names
from qkv.inside.doctor.subject import Subject, hidden_states
from qkv.models import Network

DEAD_HEAD_FRACTION = 1e-3
"""A head is dead if it writes less than this fraction of what the heads of its layer write on average."""
DEAD_NEURON_FRACTION = 1e-4
"""A neuron is dead if it never exceeds this fraction of its layer's root mean square."""
WARN_DEAD_NEURONS, FAIL_DEAD_NEURONS = 0.1, 0.9
"""Fractions of the neurons of a layer."""
MIN_UPDATE = 1e-6
"""A block that changes the residual stream by a smaller fraction of its size does nothing."""
MAX_GROWTH, MAX_GRADIENT_RATIO = 1e4, 1e3
"""Larger ratios between the layers of a stack are worth a warning."""


def record(subject: Subject, sites: list[str]) -> tuple[Network, Tap]:
    """Run a copy of the network on the batch, and record sites."""
    network, tap = subject.copy(), Tap(record=sites)
    with torch.no_grad():
        hidden_states(network, subject.batch, tap)
    return network, tap


def token_mask(subject: Subject, stack: Stack) -> Tensor:
    """Return a mask (B, T) that is True at the tokens of a stack and False at padding."""
    inputs = subject.batch.inputs
    if stack.name == "encoder" and inputs.source is not None and subject.config.family == "seq2seq":
        inputs = inputs.source
    assert inputs.document_ids is not None
    return inputs.document_ids != 0


def root_mean_square(x: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """The root mean square over some axes."""
    return x.float().square().mean(dim=dim).sqrt()


def check_heads(subject: Subject) -> Finding:
    """A head is dead if it writes (almost) nothing into the residual stream."""
    dead, total = [], 0
    network, tap = record(subject, ["*.z", "*.cross_z"])
    for stack in network.stacks.values():
        is_token = token_mask(subject, stack)
        for layer in range(stack.config.layers):
            for site, name in (("z", "attention"), ("cross_z", "cross")):
                if f"{stack.name}.{layer}.{site}" not in tap.values:
                    continue  # a registered part may have no heads
                attention = getattr(stack.block_of(layer), name, None)
                if not isinstance(attention, Attention):
                    continue
                z = tap[f"{stack.name}.{layer}.{site}"].transpose(0, 1)[:, is_token]  # (H, N, D)
                weight = attention.out.weight
                by_head = weight.float().view(len(weight), len(z), -1).permute(1, 2, 0)  # (C, H·D) → (H, D, C)
                sizes = root_mean_square(z.float() @ by_head, dim=(1, 2))  # (H,)
                total += len(sizes)
                is_dead = sizes <= DEAD_HEAD_FRACTION * sizes.mean()
                part = "cross head" if site == "cross_z" else "head"
                dead += [f"{stack.name}.{layer} {part} {number}" for number in is_dead.nonzero().flatten().tolist()]
    if dead:
        return warned(
            f"{len(dead)} of {total} heads write nothing: {join_names(dead)}",
            "they cost time and do nothing; prune them, or lower the number of heads or the learning rate",
            dead=dead,
        )
    if not total:
        return skipped("no attention of this model has heads that write through one output matrix")
    return passed(f"all {total} heads write into the residual stream")


def check_neurons(subject: Subject) -> Finding:
    """A neuron is dead if it is never active on the batch."""
    fractions = {}
    network, tap = record(subject, ["*.mlp_post"])
    tokens = 0
    for stack in network.stacks.values():
        is_token = token_mask(subject, stack)
        tokens = max(tokens, int(is_token.sum()))
        for layer in range(stack.config.layers):
            site = f"{stack.name}.{layer}.mlp_post"
            if site not in tap.values:
                continue  # a registered part may have no neurons
            activations = tap[site][is_token].float()  # (N, F)
            is_dead = activations.abs().amax(0) <= DEAD_NEURON_FRACTION * root_mean_square(activations)
            fractions[site.removesuffix(".mlp_post")] = float(is_dead.float().mean())
    if not fractions:
        return skipped("no feed-forward of this model has the site mlp_post")
    worst = max(fractions, key=lambda layer: fractions[layer])
    text = f"{fractions[worst]:.0%} of the neurons of {worst} are never active on {tokens:,} tokens"
    advice = (
        "a high learning rate or a large negative bias can kill ReLU neurons for good; lower the learning rate, use "
        "gelu or swiglu, or check the bias of the feed-forward"
    )
    values = {"dead_fraction": fractions, "tokens": tokens}
    if fractions[worst] >= FAIL_DEAD_NEURONS:
        return failed(text, advice, **values)
    if fractions[worst] > WARN_DEAD_NEURONS:
        return warned(text, advice + "; on more tokens, fewer may be dead", **values)
    return passed(text, **values)


def check_experts(subject: Subject) -> Finding:
    """An expert is dead if the router sends it no token of the batch."""
    network, tap = record(subject, ["*.routing"])
    dead, fractions = [], {}
    for stack in network.stacks.values():
        is_token = token_mask(subject, stack)
        for layer in range(stack.config.layers):
            site = f"{stack.name}.{layer}.routing"
            if site in tap.values:
                used = (tap[site][is_token] != 0).float().mean(0)  # (E,)
                fractions[site.removesuffix(".routing")] = used.tolist()
                dead += [f"{stack.name}.{layer} expert {number}" for number in (used == 0).nonzero().flatten().tolist()]
    if not fractions:
        return skipped("no feed-forward of this model is a mixture of experts")
    total = sum(map(len, fractions.values()))
    if dead:
        return warned(
            f"{len(dead)} of {total} experts get no token: {join_names(dead)}",
            "they have parameters and learn nothing; raise balance_loss, or use fewer experts; on more tokens, fewer "
            "may be dead",
            dead=dead,
            fractions=fractions,
        )
    every = [fraction for layer in fractions.values() for fraction in layer]
    return passed(f"all {total} experts get tokens: {min(every):.0%} to {max(every):.0%} each", fractions=fractions)


def check_activation_scales(subject: Subject) -> Finding:
    """The size of the residual stream by depth, and whether each block changes it."""
    sizes, idle = {}, []
    network, tap = record(subject, ["*.resid_pre", "*.resid_post"])
    if any(f"{name}.0.resid_post" not in tap.values for name in network.stacks):
        return skipped("the blocks of this model have no site resid_post")
    for stack in network.stacks.values():
        is_token = token_mask(subject, stack)
        sizes[stack.name] = [float(root_mean_square(tap[f"{stack.name}.0.resid_pre"][is_token]))]
        for layer in range(stack.config.layers):
            before = tap[f"{stack.name}.{layer}.resid_pre"][is_token]
            after = tap[f"{stack.name}.{layer}.resid_post"][is_token]
            sizes[stack.name].append(float(root_mean_square(after)))
            if float(root_mean_square(after - before)) <= MIN_UPDATE * float(root_mean_square(before)):
                idle.append(f"{stack.name}.{layer}")
    text = "; ".join(f"{stack} {format_scales(values)}" for stack, values in sizes.items())
    text = f"RMS of the residual stream by layer: {text}"
    everything = torch.tensor([value for values in sizes.values() for value in values])
    if not bool(everything.isfinite().all()):
        return failed(
            text,
            "activations are not finite; look for weights that are not finite, a division by 0, or an overflow in "
            "half precision",
            **sizes,
        )
    if idle:
        return failed(
            f"{join_names(idle)} does not change the residual stream",
            "this block does nothing; check that its output projections are not 0 and that its result is added",
            idle=idle,
            **sizes,
        )
    growth = max(max(values) / max(min(values), 1e-30) for values in sizes.values())
    if growth > MAX_GROWTH:
        return warned(
            text,
            'the residual stream grows much; use norm_placement = "pre" with init = "scaled", or check the weights',
            **sizes,
        )
    return passed(text, **sizes)


def check_gradient_scales(subject: Subject) -> Finding:
    """The size of the gradients of each block, by depth: they should neither vanish nor explode."""
    if not subject.has_loss:
        return skipped("the model has no head with a loss")
    network = subject.copy()
    loss = subject.loss(network)
    if not loss.requires_grad:
        return skipped("no parameter is trained")
    loss.backward()
    sizes: dict[str, list[float]] = {}
    for stack in network.stacks.values():
        for block in _list_layers(stack):
            gradients = [p.grad.flatten() for p in block.parameters() if p.grad is not None]
            if gradients:
                sizes.setdefault(stack.name, []).append(float(root_mean_square(torch.cat(gradients))))
    if not sizes:
        return skipped("no stack of this model has a list of layers")
    text = "; ".join(f"{stack} {format_scales(values)}" for stack, values in sizes.items())
    text = f"RMS of the gradient by block: {text}"
    ratio = max((max(values) / max(min(values), 1e-30) for values in sizes.values()), default=1.0)
    if ratio > MAX_GRADIENT_RATIO:
        return warned(
            f"{text} (a ratio of {ratio:.1g})",
            "some blocks hardly learn; use pre-norm, a warm-up, or check the blocks with a small gradient",
            ratio=ratio,
            **sizes,
        )
    return passed(text, ratio=ratio, **sizes)


def _list_layers(stack: nn.Module) -> list[nn.Module]:
    """The blocks of a stack; of a part that is a whole stack, the members of its first list of modules."""
    return next((list(one) for one in stack.children() if isinstance(one, nn.ModuleList)), [])


def format_scales(values: list[float]) -> str:
    """A few numbers in two digits.

    >>> format_scales([0.0212, 1.5, 120.0])
    '0.021 1.5 1.2e+02'
    """
    shown = values if len(values) <= 8 else [*values[:4], *values[-4:]]
    listed = [f"{value:.2g}" for value in shown]
    if len(values) > 8:
        listed.insert(4, "…")
    return " ".join(listed)
