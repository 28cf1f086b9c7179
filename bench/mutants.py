"""Mutation testing of the core: how many small faults do the tests of a file's own folder find?

    make mutants                                              # a seeded sample of 200 faults
    python bench/mutants.py --sample 60 --seed 1 --jobs 2 --out runs/mutants

Each fault changes one comparison, operator, constant or condition, or removes one statement. It is planted in a copy of
the tree, never in the working tree. Then the tests of the same folder that run the changed line are run, the fastest
first, until one fails: the fault is killed. A fault that survives is printed with its line: either a test is missing,
or the change makes no difference. OUT/mutants.json has all results; a second call with the same sample resumes.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "src/qkv/blocks": "tests/blocks",
    "src/qkv/data/objectives": "tests/data/objectives",
    "src/qkv/train/loss": "tests/train/loss",
    "src/qkv/decode": "tests/decode",
}
"""The core, with the folder of the tests of each part."""
ON_A_GPU = ("gpu", "triton", "flex", "varlen", "graph", "paged_kernels", "paged_step", "linear_gelu", "replayed")
"""Parts of names of files that mostly run on a GPU, which the tests of this machine cannot run."""
MAX_TEST_SECONDS = 120.0  # for one fault
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


class Mutant(NamedTuple):
    """A fault: the file, the place of the changed code in it, the code before and after."""

    file: str
    line: int
    start: int  # bytes of the file
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  →  {self.after}"


def mutations(node: ast.AST) -> Iterator[str]:
    """The code of a node after each small change of it."""
    if isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp | ast.AugAssign):
        operators = node.ops if isinstance(node, ast.Compare) else [node.op]
        for i, operator in enumerate(operators):
            if (other := SWAPS.get(type(operator))) is None:
                continue
            if isinstance(node, ast.Compare):
                yield ast.unparse(
                    ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1 :]], node.comparators)
                )
            else:
                fields = {**dict(ast.iter_fields(node)), "op": other()}
                yield ast.unparse(type(node)(**fields))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield ast.unparse(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield repr(not node.value if isinstance(node.value, bool) else node.value + 1)
    if isinstance(node, ast.AugAssign | ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield "pass"


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes inside a node whose changes a test can see: no annotations, messages of errors or assertions."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params") or isinstance(node, ast.JoinedStr):
            continue
        if isinstance(node, ast.Raise | ast.Assert) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            continue
        yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ast.AST))


def find_mutants(path: Path) -> list[Mutant]:
    """All faults that can be planted in a file."""
    source = path.read_bytes()
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    found, nodes = [], [ast.parse(source)]  # type: list[Mutant], list[Any]
    while nodes:
        node = nodes.pop()
        nodes += children(node)
        for after in mutations(node):
            start, end = (starts[line - 1] + column for line, column in ends_of(node))
            code = f"({after})" if isinstance(node, ast.expr) else after
            found.append(Mutant(path.relative_to(ROOT).as_posix(), node.lineno, start, end, ast.unparse(node), code))
    return sorted(found)


def ends_of(node: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """The line and the column of the first byte of a node and of the byte after it."""
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


class Tree:
    """A copy of the tracked files, in which faults are planted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                shutil.copy2(ROOT / name, folder / name)

    def pytest(self, arguments: list[str], timeout: float, **environment: str) -> int:
        """Run pytest here. Returns its exit code; 1 after the timeout, since an endless loop is seen."""
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments]
        paths = {"PYTHONPATH": str(self.folder / "src"), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with (self.folder / "pytest.log").open("w") as log:
            try:
                return subprocess.run(
                    words, cwd=self.folder, env={**os.environ, **paths, **environment}, stdout=log, stderr=log,
                    timeout=timeout, check=False,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                return 1

    def kills(self, mutant: Mutant, tests: list[str], timeout: float) -> bool:
        """Whether one of the tests fails with the fault."""
        path = self.folder / mutant.file
        source = path.read_bytes()
        (self.folder / "tests.txt").write_text("\n".join(tests))
        try:
            self.write(path, source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
            return self.pytest(["@tests.txt"], timeout) != 0
        finally:
            self.write(path, source)

    def write(self, path: Path, source: bytes) -> None:
        """Write a module. Its bytecode goes: it may have the time and the size of the new file."""
        path.write_bytes(source)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def measure_tests(tree: Tree, parts: list[str], out: Path) -> dict[str, dict[str, dict[str, float]]]:
    """For each file and line of the core: the tests of its folder that run it, with their seconds. Kept in OUT."""
    known = out / "tests.json"
    lines: dict[str, dict[str, dict[str, float]]] = json.loads(known.read_text()) if known.exists() else {}
    from xml.etree import ElementTree

    from coverage import CoverageData

    for part in parts:
        tests = FOLDERS[part]
        if any(name.startswith(part) for name in lines):
            continue
        options = [
            "--cov",
            part,
            "--cov-context=test",
            "--cov-report=",
            "--junitxml=times.xml",
            "-o",
            "junit_family=xunit1",
        ]
        begin = time.monotonic()
        if tree.pytest([*options, tests], 3600):
            raise SystemExit(f"{tests} fails without a fault; see {tree.folder / 'pytest.log'}")
        print(f"{tests}: {time.monotonic() - begin:.0f} s with coverage", flush=True)
        cases = ElementTree.parse(tree.folder / "times.xml").iter("testcase")
        seconds = {f"{case.get('file')}::{case.get('name')}": float(case.get("time", 0)) for case in cases}
        data = CoverageData(str(tree.folder / ".coverage"))
        data.read()
        for file in data.measured_files():
            name = Path(file).relative_to(tree.folder).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                ids = {context.rpartition("|")[0] for context in contexts if context}
                lines.setdefault(name, {})[str(line)] = {test: seconds.get(test, 1.0) for test in sorted(ids)}
        known.write_text(json.dumps(lines))
    return lines


def choose_tests(mutant: Mutant, lines: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """The tests that run a line, the fastest first, up to a time limit. A line that runs at import: all of its file."""
    of_file = lines.get(mutant.file, {})
    first = max((int(line) for line in of_file if int(line) <= mutant.line), default=0)  # of a statement of many lines
    found = of_file.get(str(first), {})
    if not found and first:
        found = {test: seconds for tests in of_file.values() for test, seconds in tests.items()}
    chosen, total = [], 0.0
    for test, seconds in sorted(found.items(), key=lambda item: item[1]):
        total += seconds
        if total > MAX_TEST_SECONDS / 2 and chosen:
            break
        chosen.append(test)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="FOLDER", help=", ".join(FOLDERS))
    parser.add_argument("--sample", type=int, default=200, help="the number of faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("runs/mutants"))
    asked = parser.parse_args()
    parts = asked.parts or list(FOLDERS)
    asked.out.mkdir(parents=True, exist_ok=True)
    files = [path for part in parts for path in sorted((ROOT / part).rglob("*.py"))]
    files = [path for path in files if not any(word in path.relative_to(ROOT / "src").as_posix() for word in ON_A_GPU)]
    mutants = [mutant for path in files for mutant in find_mutants(path)]
    sample = random.Random(asked.seed).sample(mutants, min(asked.sample, len(mutants)))
    print(f"{len(sample)} of {len(mutants):,} faults in {len(files)} files, seed {asked.seed}", flush=True)
    record = asked.out / f"mutants-{asked.seed}.json"
    results: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    with tempfile.TemporaryDirectory(prefix="qkv-mutants-") as scratch:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(asked.jobs):
            trees.put(Tree(Path(scratch) / str(number)))
        tree = trees.get()
        lines = measure_tests(tree, parts, asked.out)
        trees.put(tree)

        def work(mutant: Mutant) -> None:
            tests = choose_tests(mutant, lines)
            tree = trees.get()
            killed = bool(tests) and tree.kills(mutant, tests, MAX_TEST_SECONDS)
            trees.put(tree)
            results[str(mutant)] = "killed" if killed else "survived" if tests else "no test runs the line"
            record.write_text(json.dumps(results, indent=1, ensure_ascii=False))
            print(f"{len(results):4} {results[str(mutant)]:22} {mutant}", flush=True)

        with ThreadPoolExecutor(asked.jobs) as pool:
            for running in [pool.submit(work, mutant) for mutant in sample if str(mutant) not in results]:
                running.result()
    chosen = {str(mutant): results[str(mutant)] for mutant in sample}
    print("\n".join(f"{result}: {mutant}" for mutant, result in chosen.items() if result != "killed"))
    counts = Counter(chosen.values())
    print(f"{counts['killed']} of {len(chosen)} killed ({counts['killed'] / len(chosen):.1%}), seed {asked.seed}")


if __name__ == "__main__":
    main()
