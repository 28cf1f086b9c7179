"""Build the sdist and the wheel, check what they contain, and write them to a folder.

Only files that git tracks are packed. The sdist has the packages in src and `TOP_FILES`; the wheel is built from the
sdist and has the packages only. Both are reproducible: two builds of one commit are equal, byte for byte, because all
times are the time of the commit, and owners and permissions are fixed. `make dist` calls this file.
"""

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOP_FILES = ("CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml")
GENERATED = {"PKG-INFO", "setup.cfg", *(f"src/qkv.egg-info/{name}" for name in (
    "PKG-INFO", "SOURCES.txt", "dependency_links.txt", "entry_points.txt", "requires.txt", "top_level.txt"
))}  # fmt: skip
"""What setuptools adds to an sdist."""
DIST_INFO = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
HOOK = "import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Run a command, and return the last line that it prints."""
    process = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{process.stdout}{process.stderr}")
    return process.stdout.strip().splitlines()[-1] if process.stdout.strip() else ""


def tracked_files() -> list[str]:
    """The files to pack, relative to the root of the repository."""
    listed = subprocess.run(["git", "ls-files", "-z", "--", "src", *TOP_FILES], cwd=ROOT, capture_output=True)
    return sorted(name for name in listed.stdout.decode().split("\0") if name)


def stage(folder: Path, files: list[str]) -> None:
    """Copy the files, with the same permissions everywhere."""
    for name in files:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
        target.chmod(0o644)


def pack(source: Path, target: Path, time: int) -> None:
    """Write the archive of setuptools again, sorted, without the names of users and the times of this build."""
    content = io.BytesIO()
    with tarfile.open(source) as old, tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as new:
        for entry in sorted((one for one in old if one.isfile()), key=lambda one: one.name):
            clean = tarfile.TarInfo(entry.name)
            clean.size, clean.mtime, clean.mode = entry.size, time, 0o644
            new.addfile(clean, old.extractfile(entry))
    with target.open("wb") as file, gzip.GzipFile("", "wb", 9, file, time) as zipped:
        zipped.write(content.getvalue())


def build(out: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist. Return their paths."""
    time = run(["git", "log", "-1", "--format=%ct"], ROOT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stage(folder / "tree", tracked_files())
        for kind in ("made", "unpacked"):
            (folder / kind).mkdir()
        hook = [sys.executable, "-c", HOOK.format(kind="sdist"), str(folder / "made")]
        sdist = run(hook, folder / "tree", SOURCE_DATE_EPOCH=time)
        pack(folder / "made" / sdist, out / sdist, int(time))
        with tarfile.open(out / sdist) as archive:
            archive.extractall(folder / "unpacked", filter="data")
        (root,) = (folder / "unpacked").iterdir()
        hook = [sys.executable, "-c", HOOK.format(kind="wheel"), str(out)]
        wheel = run(hook, root, SOURCE_DATE_EPOCH=time)
    return out / sdist, out / wheel


def check(sdist: Path, wheel: Path) -> None:
    """Exit with an error if a file is missing, or if there is one too many."""
    files = set(tracked_files())
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    compare(sdist.name, packed, files | GENERATED)
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.partition(".dist-info/")[2] or f"src/{name}" for name in archive.namelist()}
    compare(wheel.name, packed, {name for name in files if name.startswith("src/")} | DIST_INFO)


def compare(name: str, packed: set[str], expected: set[str]) -> None:
    """Exit with an error if the packed files are not the expected ones."""
    problems = [f"{path} is missing" for path in sorted(expected - packed)]
    problems += [f"{path} does not belong there" for path in sorted(packed - expected)]
    if problems:
        sys.exit(f"{name}: " + f"\n{name}: ".join(problems))


def main() -> None:
    """Build twice, compare both builds, and print the sizes and hashes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder to write (default: dist)")
    parser.add_argument("--once", action="store_true", help="build once, without comparing two builds")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    built = build(options.out)
    check(*built)
    if not options.once:
        with tempfile.TemporaryDirectory() as second:
            for path, other in zip(built, build(Path(second)), strict=True):
                if path.read_bytes() != other.read_bytes():
                    sys.exit(f"{path.name}: two builds of the same commit differ")
    for path in built:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB  sha256 {digest}")


if __name__ == "__main__":
    main()
