"""Find claims: each module in `claims/` defines one, named `CLAIM`."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from qkv.errors import UsageError, suggest_name
from qkv.lab import claims
from qkv.lab.claim import CHAPTERS, Claim


@cache
def all_claims() -> dict[str, Claim]:
    """All claims by name, in the order of the chapters; within a chapter, in the order of `claims.ORDER`."""
    modules = [import_module(f"{claims.__name__}.{module.name}") for module in iter_modules(claims.__path__)]
    found = [module.CLAIM for module in modules]
    chapters, order = list(CHAPTERS), list(claims.ORDER)
    found.sort(key=lambda claim: (chapters.index(claim.chapter), order.index(claim.name)))
    return {claim.name: claim for claim in found}


def find_claim(name: str) -> Claim:
    """The claim of a name. An unknown name is an error."""
    known = all_claims()
    if name not in known:
        raise UsageError(f"unknown claim {name!r}; {suggest_name(name, known)}. qkv lab lists all claims")
    return known[name]
