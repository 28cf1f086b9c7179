"""Rules for every source file: what it may import, whether it may print, and that it does not unpickle."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
ROOT = SOURCE / "qkv"
PLUGINS = ("qkv_bench", "qkv_lab", "qkv_translation")
"""Packages beside qkv: they may import qkv, and qkv never imports them."""

# The packages of qkv that each package may import, besides itself and EVERYONE. Some packages do not exist yet.
EVERYONE = {"errors", "files", "lazy", "openmp", "plugins", "progress", "sandbox", "tables", "values"}
MAY_IMPORT: dict[str, set[str]] = {
    "text": set(),
    "page": set(),
    "blocks": set(),
    "arguments": set(),
    "images": {"blocks"},
    "sounds": {"blocks"},
    "data": {"text", "blocks", "images", "sounds"},
    "models": {"text", "blocks", "images", "sounds"},
    "store": {"text", "blocks", "images", "sounds", "data", "models"},
    "train": {"text", "blocks", "images", "sounds", "data", "models", "store"},
    "decode": {"text", "blocks", "images", "sounds", "data", "models", "store"},
}
MAY_IMPORT["inside"] = {"page", "train", "decode", *MAY_IMPORT["train"]}
MAY_IMPORT["tasks"] = {"inside", *MAY_IMPORT["inside"]}
MAY_IMPORT["api"] = {"arguments", "tasks", *MAY_IMPORT["tasks"]}
MAY_IMPORT["search"] = {"api", *MAY_IMPORT["api"]}
MAY_IMPORT["render"] = {"api", "search", *MAY_IMPORT["api"]}
MAY_IMPORT["serve"] = {"render", *MAY_IMPORT["render"]}
MAY_IMPORT["cli"] = {"serve", *MAY_IMPORT["serve"]}
MAY_IMPORT["__main__"] = {"cli"}
MAY_IMPORT["__init__"] = set(MAY_IMPORT["search"]) | {"search"}


def trees_of(folder: Path) -> dict[Path, ast.Module]:
    """The syntax trees of all files of a package, by their paths in it."""
    paths = sorted(folder.rglob("*.py"))
    return {path.relative_to(folder): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


TREES = trees_of(ROOT)
PLUGIN_TREES = {Path(name) / path: tree for name in PLUGINS for path, tree in trees_of(SOURCE / name).items()}


def layer_of(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    return ".".join(["qkv", *path.with_suffix("").parts]).removesuffix(".__init__")


MODULES = {module_of(path) for path in TREES}


def imported_modules(tree: ast.AST) -> set[str]:
    """The modules of qkv that a file imports, at its top or inside functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= (inside & MODULES) or {str(node.module)}
            if inside - MODULES:
                names.add(str(node.module))
    return names & MODULES


def lazy_modules(tree: ast.AST) -> set[str]:
    """The modules that an open table imports when a row is first used, such as "qkv.train.optim.muon:make_muon"."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {text.partition(":")[0] for text in texts if re.fullmatch(r"qkv(\.\w+)+:\w+", text)} & MODULES


def imported_layers(tree: ast.AST) -> set[str]:
    return {name.split(".")[1] for name in imported_modules(tree) | lazy_modules(tree) if "." in name}


def test_imports_point_from_the_upper_layers_to_the_lower_ones() -> None:
    wrong = []
    for path, tree in TREES.items():
        layer = layer_of(path)
        if layer in EVERYONE:
            allowed = EVERYONE if path.parent.parts else EVERYONE - {layer}
        else:
            allowed = MAY_IMPORT[layer] | {layer} | EVERYONE
        wrong += [f"{path} may not import {name}" for name in sorted(imported_layers(tree) - allowed)]
    assert not wrong


def test_there_are_no_import_cycles() -> None:
    """Imports inside functions count, too."""
    imports = {module_of(path): imported_modules(tree) - {module_of(path)} for path, tree in TREES.items()}
    done: set[str] = set()

    def visit(module: str, chain: list[str]) -> Iterator[str]:
        if module in chain:
            yield " → ".join([*chain[chain.index(module) :], module])
        elif module not in done:
            for imported in sorted(imports[module]):
                yield from visit(imported, [*chain, module])
            done.add(module)

    cycles = [cycle for module in sorted(imports) for cycle in visit(module, [])]
    assert not cycles


def test_blocks_import_only_torch_values_and_tables_of_names() -> None:
    wrong = [
        f"{path} imports {name}"
        for path, tree in TREES.items()
        if layer_of(path) == "blocks"
        for name in imported_layers(tree) - {"blocks", "lazy", "tables", "values"}
    ]
    assert not wrong


def test_wrong_imports_would_be_found() -> None:
    assert imported_layers(ast.parse("def f():\n    from qkv.models import build\n")) == {"models"}
    assert imported_layers(ast.parse("import qkv.store.weights as x\nfrom qkv import api\n")) == {"store", "api"}
    assert imported_layers(ast.parse("ROWS = {'a': 'qkv.decode.loop:decode_loop'}")) == {"decode"}


def imported_names(tree: ast.AST) -> Iterator[str]:
    """The full names of everything that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong_imports_of_plugin(plugin: str, tree: ast.AST) -> list[str]:
    """What a plugin may not import: private names, the other plugin, and commands other than what commands share."""
    wrong = []
    for name in imported_names(tree):
        package, *rest = name.split(".")
        is_private = package in ("qkv", *PLUGINS) and any(
            part.startswith("_") and part != "__version__" for part in rest
        )
        is_command = rest[:1] == ["cli"] and rest[1:2] != ["shared"]
        if is_private or (package == "qkv" and is_command) or package in set(PLUGINS) - {plugin}:
            wrong.append(name)
    return wrong


def test_plugins_import_only_what_any_user_can_import() -> None:
    wrong = [
        f"{path} may not import {name}"
        for path, tree in PLUGIN_TREES.items()
        for name in wrong_imports_of_plugin(path.parts[0], tree)
    ]
    assert not wrong


def test_qkv_never_imports_a_plugin() -> None:
    wrong = [
        f"{path} imports {name}"
        for path, tree in TREES.items()
        for name in imported_names(tree)
        if name.split(".")[0] in PLUGINS
    ]
    assert not wrong


def test_wrong_imports_of_a_plugin_would_be_found() -> None:
    source = (
        "import qkv_lab.run\nfrom qkv.cli import run\nfrom qkv.cli.shared import Json\nfrom qkv.api import _x, Model\n"
    )
    found = wrong_imports_of_plugin("qkv_bench", ast.parse(source))
    assert found == ["qkv_lab.run", "qkv.cli.run", "qkv.api._x"]


PRINTS = {"cli", "render", "serve", "__main__"}


def test_nothing_below_the_command_line_prints() -> None:
    prints = [
        f"{path}:{node.lineno}"
        for path, tree in TREES.items()
        if layer_of(path) not in PRINTS
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints


UNSAFE_MODULES = {"pickle", "dill", "cloudpickle", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "torch.load", "np.load", "numpy.load"}


def test_nothing_unpickles_or_runs_code_when_it_loads() -> None:
    """Trap 22: nothing imports a pickle module, calls torch.load, or evaluates text as code."""
    unsafe = []
    for path, tree in {**TREES, **PLUGIN_TREES}.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found = {alias.name.split(".")[0] for alias in node.names} & UNSAFE_MODULES
            elif isinstance(node, ast.ImportFrom):
                found = {str(node.module).split(".")[0]} & UNSAFE_MODULES
            elif isinstance(node, ast.Call) and not _is_safe_numpy(node):
                found = {ast.unparse(node.func)} & UNSAFE_CALLS
            else:
                continue
            unsafe += [f"{path}:{node.lineno}: {name}" for name in found]
    assert not unsafe


def _is_safe_numpy(call: ast.Call) -> bool:
    """Whether this is numpy.load with allow_pickle=False, which reads plain arrays only."""
    return ast.unparse(call.func).endswith("p.load") and any(
        k.arg == "allow_pickle" and ast.unparse(k.value) == "False" for k in call.keywords
    )
