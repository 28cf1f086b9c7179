"""Every public name has a docstring: modules, module-level functions and classes, and their public methods."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "qkv"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def undocumented(node: ast.Module | ast.ClassDef, name: str) -> Iterator[str]:
    """The public definitions in a module or class that lack a docstring; overloads and property setters need none."""
    if ast.get_docstring(node) is None:
        yield name
    for inner in node.body:
        if not isinstance(inner, DEFINITIONS) or inner.name.startswith("_"):
            continue
        if isinstance(inner, ast.ClassDef):
            yield from undocumented(inner, f"{name}.{inner.name}")
        elif ast.get_docstring(inner) is None and not has_exempt_decorator(inner):
            yield f"{name}.{inner.name}"


def has_exempt_decorator(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any(name in ("overload", "override") or name.endswith(".setter") for name in names)


def test_every_public_name_has_a_docstring() -> None:
    missing = [
        name
        for path in sorted(ROOT.rglob("*.py"))
        for name in undocumented(ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT)))
    ]
    assert not missing, "\n".join(["these have no docstring:", *missing])


def test_a_missing_docstring_would_be_found() -> None:
    source = '"""Doc."""\nclass A:\n    """Doc."""\n    def run(self): ...\ndef go(): ...\ndef _private(): ...\n'
    assert list(undocumented(ast.parse(source), "m")) == ["m.A.run", "m.go"]
