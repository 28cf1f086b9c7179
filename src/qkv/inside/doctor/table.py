"""All checks of `qkv doctor`, in the order in which they run. To add a check, write a function and add a row."""

from collections.abc import Callable

import torch

from qkv.inside.doctor import activity, leaks, learning, structure
from qkv.inside.doctor.finding import Finding, failed
from qkv.inside.doctor.subject import Subject
from qkv.progress import OnProgress

Check = Callable[[Subject], Finding]

CHECKS: dict[str, Check] = {
    "tokenizer": structure.check_tokenizer,
    "tied": structure.check_tied,
    "gradients": learning.check_gradients,
    "source": structure.check_source,
    "future": leaks.check_future,
    "padding": leaks.check_padding,
    "neighbours": leaks.check_neighbours,
    "cache": structure.check_cache,
    "heads": activity.check_heads,
    "neurons": activity.check_neurons,
    "activations": activity.check_activation_scales,
    "gradient_scales": activity.check_gradient_scales,
    "initial_loss": learning.check_initial_loss,
    "overfit": learning.check_overfit,
    "lr": learning.check_lr,
}


def examine(subject: Subject, progress: OnProgress | None = None) -> list[Finding]:
    """Run all checks. A check that raises an error is a failed check, so that the others still run."""
    findings = []
    for number, (name, check) in enumerate(CHECKS.items()):
        if progress is not None:
            progress(number, len(CHECKS))
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                findings.append(check(subject))
        except Exception as error:  # a broken network may raise anything
            findings.append(
                failed(
                    name,
                    f"the network raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
                    "mend this error first; the other findings may have the same cause",
                )
            )
    if progress is not None:
        progress(len(CHECKS), len(CHECKS))
    return findings
