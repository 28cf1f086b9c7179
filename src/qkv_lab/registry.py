"""Find claims: each file in `claims/` defines one, named `CLAIM`; so does a file of one's own."""

import sys
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

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


def load_claim(path: Path) -> Claim:
    """The claim of a file of one's own, which is run as a module."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file; give the file of a claim, or a name that qkv lab lists")
    name = f"qkv_lab_claim_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    claim = getattr(module, "CLAIM", None)
    if not isinstance(claim, Claim):
        raise UsageError(f"{path}: it has no CLAIM; end the file with CLAIM = Claim(…), as in CONTRIBUTING.md")
    return claim


def find_claim(name: str) -> Claim:
    """The claim of a name, or of a file that ends in .py. An unknown name is an error."""
    if name.endswith(".py"):
        return load_claim(Path(name))
    known = all_claims()
    if name not in known:
        raise UsageError(f"unknown claim {name!r}; {suggest_name(name, known)}. qkv lab lists all claims")
    return known[name]
