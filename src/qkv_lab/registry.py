"""Find claims: each file in `claims/` defines one, named `CLAIM`."""

from functools import cache
from importlib import import_module

from qkv import UsageError
from qkv.errors import suggest_name
from qkv_lab.claim import Claim
from qkv_lab.claims import ORDER


@cache
def all_claims() -> dict[str, Claim]:
    """All claims by name, in the order of `claims.ORDER`."""
    modules = [f"{chapter}.{name.replace('-', '_')}" for chapter, names in ORDER.items() for name in names]
    claims = [import_module(f"qkv_lab.claims.{module}").CLAIM for module in modules]
    return {claim.name: claim for claim in claims}


def find_claim(name: str) -> Claim:
    """The claim of a name. An unknown name is an error."""
    known = all_claims()
    if name not in known:
        raise UsageError(f"unknown claim {name!r}; {suggest_name(name, known)}. qkv lab lists all claims")
    return known[name]
