"""All checks of `qkv doctor`, in the order in which they run. To add a check, write a function and add a row.

A row has the title of the check and the function.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from qkv.inside.doctor import activity, leaks, learning, orientation, structure
from qkv.inside.doctor.finding import Finding
from qkv.inside.doctor.subject import Subject
from qkv.progress import OnProgress

Check = Callable[[Subject], Finding]

CHECKS: dict[str, tuple[str, Check]] = {
    "tokenizer": ("tokenizer fits", structure.check_tokenizer),
    "tied": ("tied weights are tied", structure.check_tied),
    "gradients": ("gradient reaches every parameter", learning.check_gradients),
    "source": ("output depends on the source (or the context)", structure.check_source),
    "payload": ("output depends on the payload", structure.check_payload),
    "orientation": ("images are read as in training", orientation.check_orientation),
    "future": ("no leak from the future", leaks.check_future),
    "padding": ("no leak from padding", leaks.check_padding),
    "neighbours": ("no leak from neighbours", leaks.check_neighbours),
    "cache": ("cached equals uncached", structure.check_cache),
    "heads": ("no dead heads", activity.check_heads),
    "neurons": ("no dead neurons", activity.check_neurons),
    "experts": ("no dead experts", activity.check_experts),
    "activations": ("scale of activations", activity.check_activation_scales),
    "gradient_scales": ("scale of gradients", activity.check_gradient_scales),
    "initial_loss": ("loss at the start", learning.check_initial_loss),
    "overfit": ("one batch can be overfitted", learning.check_overfit),
    "lr": ("learning rate", learning.check_lr),
}


def run_check(name: str, subject: Subject) -> Finding:
    """Run the check of this name, always with the same random numbers."""
    title, check = CHECKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return replace(check(subject), check=title)


def examine(subject: Subject, progress: OnProgress | None = None) -> list[Finding]:
    """Run all checks. A check that raises an error is a failed check, so that the others still run."""
    findings = []
    for number, name in enumerate(CHECKS):
        if progress is not None:
            progress(number, len(CHECKS))
        try:
            findings.append(run_check(name, subject))
        except Exception as error:  # a broken network may raise anything
            what = f"the network raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            advice = "mend this error first; the other findings may have the same cause"
            findings.append(Finding("failed", what, advice, check=name))
    if progress is not None:
        progress(len(CHECKS), len(CHECKS))
    return findings
