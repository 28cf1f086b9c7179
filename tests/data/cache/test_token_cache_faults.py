"""The token cache under fire: killed at any moment, built by two at once, on a full disk, larger than the memory.

Each runs real processes and kills them for real.
"""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from data_fakes import ByteEncode, write

from qkv.data.cache import writer as cache_writer
from qkv.data.cache.folder import build_lock
from qkv.data.cache.token_cache import TokenCache, token_cache
from qkv.data.readers import DataFiles
from qkv.data.records import FileLocation, Record
from qkv.errors import QkvError, UsageError

SHARED = Path(__file__).parents[1]  # data_fakes is there
LINES = 3000

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and limits as POSIX has them")


def python(code: str, *arguments: object) -> subprocess.Popen:
    """A new Python that runs `code` with these arguments."""
    paths = os.pathsep.join([str(SHARED), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


BUILD = """
    import sys, time
    from data_fakes import ByteEncode
    from qkv.data.cache import writer as cache_writer
    from qkv.data.cache.token_cache import token_cache
    from qkv.data.readers import DataFiles

    cache_writer.BATCH_RECORDS = 20
    path, root, stop = sys.argv[1], sys.argv[2], int(sys.argv[3])
    batches = 0

    class Stopping(ByteEncode):
        def __call__(self, records):
            global batches
            batches += 1
            if batches == stop:  # and wait to be killed
                print("here", flush=True)
                time.sleep(60)
            return super().__call__(records)

    cache = token_cache(DataFiles(path), Stopping(), root, workers=1)
    print(batches, len(cache), sum(int(cache[n]["ids"].sum()) for n in range(len(cache))))
"""


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write(tmp_path, "a.txt", "".join(f"line {n}\n" for n in range(LINES)))


def expected_sum() -> int:
    return sum(sum(f"line {n}".encode()) for n in range(LINES))


def folders(root: Path) -> list[str]:
    return sorted(p.suffix for p in root.iterdir() if p.is_dir())  # a cache's own name has no suffix


@pytest.mark.parametrize("batch", [1, 75, LINES // 20])
def test_a_killed_build_leaves_nothing_half_made_and_the_next_one_cleans_up(tmp_path, corpus, batch):
    root = tmp_path / "caches"
    process = python(BUILD, corpus, root, batch)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert folders(root) == [".building"], "killed half-way: only a temporary folder is there"
    cache = token_cache(DataFiles(corpus), ByteEncode(), root)
    assert (len(cache), sum(int(cache[n]["ids"].sum()) for n in range(LINES))) == (LINES, expected_sum())
    assert folders(root) == [""]


@pytest.mark.parametrize("step", ["write_meta", "sync_folder", "rename"])
def test_a_build_killed_while_it_is_installed_is_there_whole_or_not_at_all(tmp_path, corpus, step):
    """SIGKILL before the meta file, before the folder is synced, and between the two renames of a replacement."""
    root = tmp_path / "caches"
    before = token_cache(DataFiles(corpus), ByteEncode(), root) if step == "rename" else None
    if before is not None:
        (before.folder / "ids.tokens.bin").write_bytes(b"cut short")  # so that it is replaced
    code = f"""
        import os, signal, sys
        from pathlib import Path
        from data_fakes import ByteEncode
        import qkv.files
        from qkv.data.cache import token_cache as cache
        from qkv.data.readers import DataFiles

        def die(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)

        step = {step!r}
        if step == "rename":
            rename = Path.rename
            Path.rename = lambda self, target: die() if self.suffix == ".building" else rename(self, target)
        else:
            setattr(cache if step == "write_meta" else qkv.files, step, die)
        cache.token_cache(DataFiles(sys.argv[1]), ByteEncode(), sys.argv[2])
    """
    process = python(code, corpus, root)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert "" not in folders(root), "nothing that could be taken for a cache"
    cache = token_cache(DataFiles(corpus), ByteEncode(), root)
    assert len(cache) == LINES
    assert folders(root) == [""]


def test_what_a_killed_build_of_another_cache_left_is_cleared_and_a_living_one_is_not(tmp_path, corpus):
    root = tmp_path / "caches"
    for name in (".dead.building", ".dead.replaced", ".alive.building"):
        (root / name).mkdir(parents=True)
    with build_lock(root / "alive"):
        token_cache(DataFiles(corpus), ByteEncode(), root)
        assert folders(root) == ["", ".building"]
        assert (root / ".alive.building").exists()


def test_two_processes_that_build_the_same_cache_both_end_with_a_good_one(tmp_path, corpus):
    processes = [python(BUILD, corpus, tmp_path / "caches", 0) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    found = [[int(number) for number in out.split()] for out, _ in outputs]
    assert [numbers[1:] for numbers in found] == [[LINES, expected_sum()]] * 2
    assert sorted(numbers[0] for numbers in found) == [0, LINES // 20], "one encoded, and the other waited"


def test_a_build_survives_the_builder_it_waited_for_being_killed(tmp_path, corpus):
    first = python(BUILD, corpus, tmp_path / "caches", 5)
    assert first.stdout is not None
    assert first.stdout.readline() == "here\n"
    second = python(BUILD, corpus, tmp_path / "caches", 0)
    time.sleep(0.5)  # so that it waits for the lock; if the machine is too busy for that the test is merely easier
    assert second.poll() is None
    first.kill()
    first.communicate()
    out, err = second.communicate(timeout=60)
    assert out.split() == [str(LINES // 20), str(LINES), str(expected_sum())], err


def test_an_encode_that_fails_leaves_nothing(tmp_path, corpus):
    class Failing(ByteEncode):
        def __call__(self, records):
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        token_cache(DataFiles(corpus), Failing(), tmp_path / "caches")
    assert folders(tmp_path / "caches") == []


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path, corpus, monkeypatch):
    def full(self, part, numbers, dtype):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_writer._ArrayWriter, "write", full)
    with pytest.raises(QkvError, match="could not be written: No space left on device"):
        token_cache(DataFiles(corpus), ByteEncode(), tmp_path / "caches")
    assert folders(tmp_path / "caches") == []


def test_a_folder_with_anything_else_in_it_is_never_replaced(tmp_path):
    precious = write(tmp_path, "thesis.txt", "years of work\n")
    with pytest.raises(UsageError, match="contains files that are not of a token cache"):
        TokenCache.build([Record({"text": "x"}, FileLocation("x", 1))], ByteEncode(), tmp_path)
    assert precious.exists()


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    blocked = write(tmp_path, "file", "")
    with pytest.raises(QkvError, match="no token cache can be built in"):
        TokenCache.build([Record({"text": "x"}, FileLocation("x", 1))], ByteEncode(), blocked / "cache")


def test_a_cache_in_use_stays_readable_while_it_is_replaced(tmp_path):
    def build(text: str) -> TokenCache:
        return TokenCache.build([Record({"text": text}, FileLocation("x", 1))], ByteEncode(), tmp_path / "cache")

    old = build("old")
    assert build("new text")[0]["ids"].tolist() == list(b"new text")
    assert old[0]["ids"].tolist() == list(b"old")


# ---------------------------------------------------------------- larger than memory


LIMITED = """
    import resource, sys
    import numpy as np
    from qkv.data.cache.token_cache import token_cache
    from qkv.data.problems import Problems
    from qkv.data.readers import DataFiles

    class Bytes:
        fields = ("ids",)
        fingerprint = "bytes"
        def __call__(self, records):
            return [{"ids": np.frombuffer(r.fields["text"].encode(), np.uint8)} for r in records]

    path, root, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    used = int(status["VmData"].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + megabytes * 2**20, resource.RLIM_INFINITY))
    try:
        np.ones(2 * megabytes * 2**20, np.uint8)
        sys.exit("the limit does not bite")
    except MemoryError:
        pass
    cache = token_cache(DataFiles(path), Bytes(), root, workers=1)
    total, rng = 0, np.random.default_rng(0)
    for start in range(0, len(cache), 1000):
        flat, _ = cache.gather("ids", np.arange(start, min(start + 1000, len(cache))))
        total += int(flat.sum())
    flat, _ = cache.gather("ids", rng.integers(0, len(cache), 1000))
    print(len(cache), int(np.sum(cache.lengths("ids"), dtype=np.int64)), total)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's memory limits")
def test_a_file_many_times_larger_than_the_memory_is_cached_and_read(tmp_path):
    """A file of 160 MB, a cache of 320 MB, and 40 MB of memory beyond what Python and numpy hold from the start."""
    line = bytes(range(65, 65 + 26)) * 38 + b"\n"
    lines = 160 * 2**20 // len(line)
    path = tmp_path / "large.txt"
    with path.open("wb") as out:
        for _ in range(lines // 1000):
            out.write(line * 1000)
        out.write(line * (lines % 1000))
    process = python(LIMITED, path, tmp_path / "caches", 40)
    out_text, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert out_text.split() == [str(lines), str(lines * (len(line) - 1)), str(lines * sum(line[:-1]))]
