"""The names of the sites of a model. `qkv.blocks.tap` lists the activations of a block."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from qkv.blocks.parts import layer_sites
from qkv.errors import UsageError, suggest_name
from qkv.inside.trace import LOGITS
from qkv.models import Config

PER_HEAD_SITES = ("q", "k", "v", "scores", "pattern", "z")
MATRIX_SITES = ("scores", "pattern")
"""Sites with a query axis and a key axis."""


def list_sites(config: Config) -> list[str]:
    """Return the names of all sites of a model, in the order of computation, with "logits" last."""
    names = []
    for stack, stack_config in config.stacks.items():
        cross = stack == "decoder" and config.encoder is not None
        for layer in range(stack_config.layers):
            names += [f"{stack}.{layer}.{site}" for site in layer_sites(stack_config, layer, cross=cross)]
        names.append(f"{stack}.final")
    return [*names, LOGITS]


def activation_of(site: str) -> str:
    """Return the last part of a site's name, without "cross_".

    >>> activation_of("decoder.3.cross_q")
    'q'
    """
    return site.rsplit(".", 1)[-1].removeprefix("cross_")


def require_blocks(config: Config, what: str) -> None:
    """Raise an error if a model has no Transformer blocks, which `what` needs, a lens for instance."""
    if not config.has_blocks:
        raise UsageError(
            f"{what} needs Transformer blocks, but this model has {config.stack.block.upper()} layers; trace its own "
            f"sites instead: {', '.join(list_sites(config))}"
        )


def check_sites(config: Config, patterns: str | Iterable[str]) -> list[str]:
    """Return the patterns as a list, and raise an error if one of them matches no site of the model."""
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    known = list_sites(config)
    if not listed:
        raise UsageError('sites: there are none; give at least one, such as "*.pattern"')
    for pattern in listed:
        if not any(fnmatchcase(name, pattern) for name in known):
            examples = ", ".join(dict.fromkeys(name.rsplit(".", 1)[-1] for name in known))
            hint = suggest_name(pattern, known)
            hint = hint if hint.startswith("did") else f"a site is STACK.LAYER.NAME, and the names are {examples}"
            raise UsageError(f"this model has no site {pattern!r}; {hint}")
    return listed
