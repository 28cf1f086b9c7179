"""Every public name has a docstring: modules, module-level functions and classes, and their public methods."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def undocumented(tree: ast.Module, name: str, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """The public names of a module without a docstring. A method may inherit the docstring of the one it overrides."""
    if ast.get_docstring(tree) is None:
        yield name
    for node in public(tree):
        if ast.get_docstring(node) is None:
            yield f"{name}.{node.name}"
        for method in public(node) if isinstance(node, ast.ClassDef) else ():
            if not is_exempt(method) and not is_documented(node, method.name, classes):
                yield f"{name}.{node.name}.{method.name}"


def public(node: ast.Module | ast.ClassDef) -> Iterator[Function | ast.ClassDef]:
    for inner in node.body:
        if isinstance(inner, Function | ast.ClassDef) and not inner.name.startswith("_"):
            yield inner


def is_documented(owner: ast.ClassDef, method: str, classes: dict[str, ast.ClassDef]) -> bool:
    """Whether a class or one of its bases in qkv documents a method."""
    if any(node.name == method and ast.get_docstring(node) is not None for node in public(owner)):
        return True
    bases = [classes[base.id] for base in owner.bases if isinstance(base, ast.Name) and base.id in classes]
    return any(is_documented(base, method, classes) for base in bases)


def is_exempt(node: Function | ast.ClassDef) -> bool:
    """Whether this is an overload or a setter, which is documented by the function itself."""
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(name == "overload" or name.endswith(".setter") for name in names)


def classes_in(trees: list[ast.Module]) -> dict[str, ast.ClassDef]:
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def test_every_public_name_has_a_docstring() -> None:
    paths = sorted(ROOT.rglob("*.py"))
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    classes = classes_in(trees)
    missing = [
        name
        for path, tree in zip(paths, trees, strict=True)
        for name in undocumented(tree, str(path.relative_to(ROOT)), classes)
    ]
    assert not missing, "\n".join(["these have no docstring:", *missing])


def test_a_missing_docstring_would_be_found() -> None:
    methods = '    """Doc."""\n    def run(self): ...\n    def stop(self): ...\n'
    documented = '    """Doc."""\n    def run(self): ...\n    def stop(self):\n        """Doc."""\n'
    tree = ast.parse(f'"""Doc."""\nclass A:\n{documented}class B(A):\n{methods}')
    tree.body += ast.parse("def go(): ...\ndef _private(): ...\n").body
    assert list(undocumented(tree, "m", classes_in([tree]))) == ["m.A.run", "m.B.run", "m.go"]


def test_no_class_name_is_defined_twice() -> None:
    """`classes_in` also counts on this: it finds a base class by its name."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))]
    counts = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, count in counts.items() if count > 1] == []
