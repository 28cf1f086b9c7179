"""Build the site, offline: python docs/build_site.py [--out FOLDER]. `make docs` calls this file.

The pages are the Markdown files of the repository, in the order of mkdocs.yml, and a reference that is generated from
the code: every key of a recipe, every command and option, every public name, every class of errors. A link to a file
that is not a page, such as a source file, becomes its name. A broken link or anchor is an error.
"""

import argparse
import importlib
import inspect
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import qkv
from qkv.cli import make_app
from qkv.cli.plugins import register_plugins
from qkv.cli.recipe import schema_text

ROOT = Path(__file__).parent.parent
TOP_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "bench/RESULTS.md", "release/README.md")
OTHER_PAGES = ("src/qkv/bundled/en-fr/README.md",)
ASSETS = ("site.css", "site.js", "iframe-worker.js")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
BARE_FENCE = re.compile(r"(?ms)^```.*?^```")


def stage(folder: Path) -> None:
    """Write all pages and pictures below `folder`, at the places that they have in the repository."""
    docs = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    pages = [*TOP_PAGES, *OTHER_PAGES, *docs]
    pictures = [path for suffix in ("svg", "png") for path in (ROOT / "docs").rglob(f"pictures/*.{suffix}")]
    for path in pictures:
        copy(path, folder / path.relative_to(ROOT))
    for name in ASSETS:
        copy(ROOT / "docs" / name, folder / name)
    for name in pages:
        text = unlink((ROOT / name).read_text(encoding="utf-8"), Path(name), set(pages))
        write(folder / name, text)
    for name, text in reference().items():
        write(folder / "reference" / name, text)


def unlink(text: str, page: Path, pages: set[str]) -> str:
    """Replace links to files that are not on the site by their words."""

    def replace(match: re.Match[str]) -> str:
        mark, words, target, anchor = match.groups()
        if mark or not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        found = (ROOT / page.parent / target).resolve().relative_to(ROOT).as_posix()
        if found in pages:
            return match[0]
        if not (ROOT / found).exists():
            sys.exit(f"{page}: {target} does not exist")
        index = next((one for one in (f"{found}/README.md",) if one in pages), "")
        return f"[{words}]({target.rstrip('/')}/README.md{anchor or ''})" if index else words

    parts, end = [], 0
    for fence in BARE_FENCE.finditer(text):  # code stays as it is
        parts += [LINK.sub(replace, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(replace, text[end:])])


# ------------------------------------------------------------------ the reference


def reference() -> dict[str, str]:
    """The generated pages, by the name of their file."""
    return {
        "recipe.md": recipe_page(json.loads(schema_text())),
        "commands.md": commands_page(),
        "python.md": python_page(),
        "errors.md": errors_page(),
    }


def recipe_page(schema: dict[str, Any]) -> str:
    """Every key of a recipe."""
    lines = [
        "# Keys of a recipe",
        "",
        "A recipe is a TOML file. [Training](../docs/training.md) explains the keys.",
        "",
    ]
    for name, one in schema["properties"].items():
        if "properties" not in one:
            lines += [f"**`{name}`**: {one['description']}", ""]
    for name, section in schema["properties"].items():
        if "properties" in section:
            lines += [f"## [{name}] {{ #{name} }}", "", section.get("description", ""), "", *key_table(section, name)]
    return "\n".join(lines)


def key_table(section: dict[str, Any], path: str) -> Iterator[str]:
    """The rows of a section, and the tables inside it."""
    yield from ("| key | value | default | |", "|---|---|---|---|")
    tables = {}
    for key, one in section["properties"].items():
        if "properties" in one:
            tables[f"{path}.{key}"] = one
            continue
        default = f"`{json.dumps(one['default'], ensure_ascii=False)}`" if "default" in one else ""
        cells = (f"`{key}`", describe_value(one), default, one.get("description", ""))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""
    for name, one in tables.items():
        yield from (f"### [{name}] {{ #{name} }}", "", *key_table(one, name))


def describe_value(schema: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"] if choice != "") or "text"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(describe_value(member) for member in schema["anyOf"]))
    names = {
        "string": "text",
        "integer": "whole number",
        "boolean": "true or false",
        "array": "list",
        "object": "table",
    }
    limits = [
        f"{sign} {schema[key]:g}"
        for key, sign in (("minimum", "≥"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in schema and abs(schema[key]) < 2**20
    ]
    return ", ".join([names.get(schema.get("type", ""), schema.get("type", "anything")), *limits])


def commands_page() -> str:
    """Every command and option."""
    app = make_app([], with_run=True)
    register_plugins(app, [])
    text = app.generate_docs(output_format="markdown", recursive=True)
    text = re.sub(r"(?m)^(Examples?:)\n(?=    )", r"\1\n\n", text)
    text = re.sub(r"(?m)^(?=(    qkv|Translate, with|[A-Z][^\n]*:  +qkv))", "", text)
    return text.replace("# qkv\n", "# Commands\n", 1)


def python_page() -> str:
    """Every public name, with its signature and its documentation."""
    lines = ["# Python", "", "The names that `import qkv` offers.", ""]
    for name in qkv.__all__:
        if name.startswith("__"):
            continue
        member = getattr(qkv, name)
        lines += [f"## qkv.{name} {{ #{name} }}", "", *describe_member(name, member)]
        if inspect.isclass(member):
            for method in sorted(one for one in dir(member) if not one.startswith("_")):
                found = inspect.getattr_static(member, method)
                function = getattr(found, "__func__", found)
                if inspect.isfunction(function) and function.__doc__ and (function.__module__ or "").startswith("qkv"):
                    lines += [f"### {name}.{method} {{ #{name}.{method} }}", "", *describe_member(method, function)]
    return "\n".join(lines)


def describe_member(name: str, member: Any) -> list[str]:
    """The signature and the documentation of a class or a function."""
    documentation = inspect.getdoc(member) or ""
    documentation = re.sub(r"(?m)^(\w[^\n]*)\n(?=( {4}|>>>))", r"\1\n\n", documentation)
    documentation = re.sub(r"(?ms)^>>> .*?(?=\n\n|\Z)", lambda match: f"```pycon\n{match[0]}\n```", documentation)
    try:
        signature = f"{name}{inspect.signature(member)}"
    except (TypeError, ValueError):
        return [documentation, ""]
    return ["```python", re.sub(r"<factory>|<object object at .*?>", "…", signature), "```", "", documentation, ""]


def errors_page() -> str:
    """Every class of errors that qkv raises."""
    for module in pkgutil.walk_packages(qkv.__path__, "qkv."):
        if not re.search(r"(triton|kernels|__main__|worker)$", module.name):
            importlib.import_module(module.name)
    lines = [
        "# Errors",
        "",
        "An error that a user can cause is a `QkvError`. Its message says what is wrong, where, and what to do next.",
        "",
        "| class | is a | module | |",
        "|---|---|---|---|",
    ]
    for error in sorted(find_subclasses(qkv.QkvError), key=lambda one: (one is not qkv.QkvError, one.__name__)):
        bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
        summary = (inspect.getdoc(error) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        lines.append(f"| `{error.__name__}` | {bases} | `{error.__module__}` | {summary} |")
    return "\n".join([*lines, ""])


def find_subclasses(parent: type) -> set[type]:
    """A class and all classes that inherit from it."""
    return {parent}.union(*(find_subclasses(child) for child in parent.__subclasses__()))


# ------------------------------------------------------------------ files


def copy(source: Path, target: Path) -> None:
    """Copy a file into a new folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def write(path: Path, text: str) -> None:
    """Write a page into a new folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def run_mkdocs(folder: Path, out: Path) -> None:
    """Build the site from the pages and the mkdocs.yml of a folder. A broken link ends the program."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(folder / "mkdocs.yml")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        [*command, "--site-dir", str(out.resolve())], capture_output=True, text=True, env=environment
    )
    if built.returncode:
        sys.exit(f"{built.stdout}{built.stderr}\nthe site was not built; mend the pages that the lines above name")
    for page in out.rglob("*.html"):  # an empty cell names no column
        page.write_text(page.read_text(encoding="utf-8").replace("<th></th>", "<td></td>"), encoding="utf-8")


def main() -> None:
    """Stage the pages, and build the site from them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="the folder to write (default: site)")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory(prefix="qkv-site-") as name:
        folder = Path(name)
        stage(folder / "pages")
        copy(ROOT / "docs/mkdocs.yml", folder / "mkdocs.yml")
        run_mkdocs(folder, out)
    print(f"wrote {out}; open {out}/index.html")


if __name__ == "__main__":
    main()
