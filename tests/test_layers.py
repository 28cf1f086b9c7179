"""Imports point one way only: text, blocks → data, models → store → train, decode, inside → tasks → api → … → cli."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "qkv"

# What each part may import of ours, besides itself and the errors that everyone raises.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "text": set(),
    "blocks": set(),
    "data": {"text", "blocks"},
    "models": {"text", "blocks"},
    "store": {"text", "blocks", "data", "models"},
    "train": {"text", "blocks", "data", "models", "store"},
    "decode": {"text", "blocks", "data", "models", "store"},
    "inside": {"text", "blocks", "data", "models", "store"},
}
MAY_IMPORT["tasks"] = {"train", "decode", "inside", *MAY_IMPORT["train"]}
MAY_IMPORT["api"] = {"tasks", *MAY_IMPORT["tasks"]}
MAY_IMPORT["measure"] = {"decode", *MAY_IMPORT["decode"]}
MAY_IMPORT["render"] = {"api", "measure", *MAY_IMPORT["api"]}
MAY_IMPORT["lab"] = MAY_IMPORT["serve"] = {"render", *MAY_IMPORT["render"]}
MAY_IMPORT["cli"] = {"lab", "serve", *MAY_IMPORT["lab"]}
MAY_IMPORT["__main__"] = {"cli"}
MAY_IMPORT["__init__"] = set(MAY_IMPORT["api"]) | {"api"}

FILES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(source: str) -> set[str]:
    """The parts of qkv that a source imports, anywhere in it, under any spelling."""
    parts: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "qkv" else [node.module or ""]
            )
        else:
            continue
        parts |= {name.split(".")[1] for name in names if name.startswith("qkv.")}
    return {part for part in parts if (ROOT / part).exists() or (ROOT / f"{part}.py").exists()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    allowed = MAY_IMPORT[part] | {part} | (set() if part == "blocks" else {"errors"})
    found = imports_of(path.read_text(encoding="utf-8"))
    assert found <= allowed, f"{path.relative_to(ROOT)} may not import {sorted(found - allowed)}"


def test_a_wrong_import_would_be_found() -> None:
    assert imports_of("def f():\n    from qkv.models import build\n") == {"models"}
    assert imports_of("import qkv.store.folder as x\nfrom qkv import api\n") == {"store", "api"}


PRINTS = {"cli", "render", "lab", "serve", "__main__"}


@pytest.mark.parametrize("path", [p for p in FILES if part_of(p) not in PRINTS], ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_below_the_command_line_prints(path: Path) -> None:
    calls = [n.func for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)]
    assert not [call for call in calls if isinstance(call, ast.Name) and call.id == "print"]


UNSAFE = {"pickle", "dill", "cloudpickle", "marshal", "shelve"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_load_path_unpickles_or_runs_code(path: Path) -> None:
    """Trap 22: nothing imports a pickle, calls torch.load, or evaluates text as code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = (
                {alias.name.split(".")[0] for alias in node.names} if isinstance(node, ast.Import) else {node.module}
            )
            assert not modules & UNSAFE
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in {"eval", "exec", "torch.load", "np.load", "numpy.load"} or _is_safe_numpy(node), name


def _is_safe_numpy(call: ast.Call) -> bool:
    """numpy.load without pickles is a plain array."""
    return ast.unparse(call.func).endswith("p.load") and any(
        k.arg == "allow_pickle" and ast.unparse(k.value) == "False" for k in call.keywords
    )
