"""Packages and functions that are imported when they are first used."""

import ast
import re
from pathlib import Path

import pytest

import qkv
import qkv.decode
from qkv.lazy import lazy_function, lazy_names

SOURCE = Path(qkv.__file__).parent.parent
ROOT = Path(qkv.__file__).parent
PATH = re.compile(r"qkv\w*(\.\w+)+:\w+")
LAZY_PACKAGES = [path for path in sorted(ROOT.rglob("__init__.py")) if "lazy_names(" in path.read_text("utf-8")]


def test_a_name_is_imported_from_its_module_and_kept() -> None:
    import_name = lazy_names("qkv.decode", {"options": "GenerationOptions"})
    assert import_name("GenerationOptions") is vars(qkv.decode)["GenerationOptions"]
    with pytest.raises(AttributeError, match=r"module 'qkv\.decode' has no attribute 'Nothing'"):
        import_name("Nothing")


def test_a_function_is_imported_when_it_is_called() -> None:
    assert lazy_function("math:hypot")(3, 4) == 5
    with pytest.raises(ModuleNotFoundError, match="qkv_nothing"):
        lazy_function("qkv_nothing:hypot")()


def defined_names(path: Path) -> set[str]:
    """What a file defines or imports at its top."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for target in getattr(node, "targets", [getattr(node, "target", node)]):
            found.add(getattr(target, "name", getattr(target, "id", "")))
        found |= {alias.asname or alias.name for alias in getattr(node, "names", [])}
    return found


def test_everything_that_is_imported_later_exists() -> None:
    """The rows of open tables and the functions of `lazy_function`, such as "qkv.train.optim.muon:make_muon"."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and PATH.fullmatch(node.value):
                found.add(node.value)
    assert len(found) > 20
    for lazy in sorted(found):
        module, name = lazy.split(":")
        path = SOURCE / module.replace(".", "/")
        assert name in defined_names(path / "__init__.py" if path.is_dir() else path.with_suffix(".py")), lazy


@pytest.mark.parametrize("path", LAZY_PACKAGES, ids=lambda path: path.parent.name)
def test_a_lazy_package_has_the_same_names_for_programs_and_for_type_checkers(path: Path) -> None:
    """The imports below `TYPE_CHECKING`, the table of `lazy_names`, and `__all__`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ".".join(["qkv", *path.parent.relative_to(ROOT).parts])
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: str(node.module)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    (call,) = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy_names"]
    table = ast.literal_eval(call.args[1])
    lazy = {name: f"{package}.{module}" for module, names in table.items() for name in names.split()}
    if package == "qkv":
        typed.pop("train")  # a package that can be called
    assert lazy == typed
    module = __import__(package, fromlist=["__all__"])
    assert set(lazy) <= set(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    shadowed = {part.stem for part in path.parent.iterdir()} & set(lazy)
    assert not shadowed, "importing a module with the name of a function would hide the function"
