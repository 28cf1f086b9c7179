"""A fuzzer: damage files in many ways, and check that each either works or is refused with a clear error.

    python tests/faults/fuzz.py --many              ten thousand cases
    python tests/faults/fuzz.py --cases 500 --seed 3 --area tokenizer
    python tests/faults/fuzz.py --area tokenizer --only 17      one case, with its traceback

A case takes a sound sample (a model folder, a tokenizer, a recipe, a run with checkpoints, a data file), changes it
once or several times, and uses it as a user would. Its outcome must be "works" or "refused" (a `QkvError` of bounded
length), within a limit of CPU time and memory. Anything else is a failure: another exception, a crash, a hang.

Cases run in forked processes, many in each, with timers and a limit on memory. When a process dies, the case that it
was running has failed, and a new process continues with the next one. A case depends only on the seed, its area and
its number.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sys.path.insert(0, str(Path(__file__).parents[1] / "tasks"))

import fuzz_samples
import torch

from qkv.errors import QkvError

MAX_CPU_SECONDS = 10.0  # for one case; the slowest sound sample takes a tenth of a second
MAX_WALL_SECONDS = 120.0  # on a busy machine, a case waits for the CPU; one that takes longer hangs
MAX_MEMORY_GIB = 1.5  # more than the process has before the case
MAX_MESSAGE = 5000
CASES_PER_PROCESS = 50

HOSTILE_NUMBERS = [0, -1, 1, 2, 255, 2**15, 2**24, 2**31 - 1, 2**31, 2**53, 2**62, 2**63, 2**64, 10**30, 10**400]
HOSTILE_FLOATS = [0.5, -0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")]
HOSTILE_TEXTS = ["", " ", "\0", "x" * 20_000, "../../../etc/passwd", "é\U0001f642", "\n", "-1", "NaN", "true", "a.b.c"]
HOSTILE_BYTES = [b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"1e999", b"9" * 5000, b"[" * 2000, b'"', b"'", b",", b"\t"]
HOSTILE_BYTES += [b"\r", b"\n\n", b"\xf0\x9f", b"{}", b"null", b"NaN", b"-", b"#", b"=", b"\\u0000", b"\\ud800"]


@dataclass(frozen=True)
class Outcome:
    """What became of one case."""

    area: str
    case: int
    result: str  # "works", "refused", or what went wrong
    detail: str
    seconds: float  # of CPU time
    memory_mib: float


# -------------------------------------------------------------------- changes


def hostile_value(rng: random.Random) -> Any:
    """A value that no one expects."""
    return rng.choice(
        [
            None,
            True,
            rng.choice(HOSTILE_NUMBERS),
            rng.choice(HOSTILE_FLOATS),
            rng.choice(HOSTILE_TEXTS),
            [],
            {},
            [rng.choice(HOSTILE_NUMBERS)] * rng.choice([1, 3, 1000]),
            {"a": rng.choice(HOSTILE_TEXTS)},
            [[[]]],
        ]
    )


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip bits, or cut, repeat, insert or replace a part."""
    content = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        start = rng.randint(0, len(content))
        end = min(len(content), start + rng.choice([0, 1, 4, 20, 200, 5000]))
        match rng.randrange(6):
            case 0:
                for _ in range(rng.choice([1, 8])):
                    if content:
                        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            case 1:
                del content[start:end]
            case 2:
                content[start:start] = content[start:end] * rng.choice([1, 3, 50])
            case 3:
                content[start:end] = rng.randbytes(rng.choice([1, 4, 16]))
            case 4:
                content[start:end] = rng.choice(HOSTILE_BYTES)
            case _:
                del content[start:]
    return bytes(content)


def change_json(value: Any, rng: random.Random) -> Any:
    """Replace, remove, repeat or rename something inside a JSON value."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.5:
            return value * rng.choice([-1, 2, 3, 10**6]) + rng.choice([0, 1])
        return hostile_value(rng)
    if isinstance(value, list):
        place = rng.randrange(len(value))
        match rng.randrange(8):
            case 0:
                return [one for i, one in enumerate(value) if i != place]
            case 1:
                return [*value, *value[place:]]
            case _:
                return [change_json(one, rng) if i == place else one for i, one in enumerate(value)]
    key = rng.choice(list(value))
    match rng.randrange(8):
        case 0:
            return {name: one for name, one in value.items() if name != key}
        case 1:
            return {(rng.choice(HOSTILE_TEXTS) if name == key else name): one for name, one in value.items()}
        case _:
            return {name: change_json(one, rng) if name == key else one for name, one in value.items()}


def change_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Change the header of a safetensors file, which is JSON, and keep its tensors."""
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    if rng.random() < 0.3:
        old = rng.choice(["F32", "F64", "F16"])
        text = json.dumps(header).replace(f'"{old}"', f'"{rng.choice(["I32", "F16", "U8", "F64", "X"])}"').encode()
    else:
        text = json.dumps(change_json(header, rng)).encode()
    return struct.pack("<Q", rng.choice([len(text)] * 5 + [2**40])) + text + data[8 + size :]


def change_manifest(data: bytes, rng: random.Random) -> bytes:
    """Change a checkpoint's manifest, and seal it with a valid checksum."""
    body = f'", "content": {json.dumps(change_json(json.loads(data)["content"], rng))}}}\n'.encode()
    return b'{"sha256": "' + sha256(body).hexdigest().encode() + body


def change_toml(data: bytes, rng: random.Random) -> bytes:
    """Replace the value or the key of a line of TOML."""
    lines = data.decode().split("\n")
    place = rng.choice([i for i, line in enumerate(lines) if "=" in line])
    key, _, old = lines[place].partition("=")
    value = hostile_value(rng)
    text = json.dumps(value) if not isinstance(value, float) else repr(value)
    if isinstance(value, dict) or value is None:
        text = "{a = 1}"
    key = rng.choice([key] * 6 + ["a." * 40 + "a", key.strip() + "_", "x"])
    lines[place] = f"{key} = {text if rng.random() < 0.8 else old + rng.choice(['0', '.', ',', ']'])}"
    return "\n".join(lines).encode()


def change_file(path: Path, rng: random.Random) -> None:
    """Change a file: by its format if it has one that we know, else its bytes, or what kind of file it is."""
    choice = rng.random()
    if choice < 0.06:
        path.unlink()
        match rng.randrange(5):
            case 0:
                os.mkfifo(path)
            case 1:
                path.symlink_to(path.name)
            case 2:
                path.mkdir()
            case 3:
                path.symlink_to("/dev/zero")
        return
    data = path.read_bytes()
    structured: Callable[[bytes, random.Random], bytes] | None = {
        ".json": lambda content, rng: json.dumps(change_json(json.loads(content), rng)).encode(),
        ".safetensors": change_safetensors,
        ".toml": change_toml,
    }.get(path.suffix)
    if path.name in ("manifest.json", "best.json"):
        structured = change_manifest
    if path.suffix == ".jsonl":
        structured = change_jsonl
    path.write_bytes((structured if structured and choice < 0.8 else change_bytes)(data, rng))


def change_jsonl(data: bytes, rng: random.Random) -> bytes:
    """Change one line of JSON Lines."""
    lines = data.split(b"\n")
    place = rng.randrange(max(1, len(lines) - 1))
    lines[place] = json.dumps(change_json(json.loads(lines[place]), rng)).encode()
    return b"\n".join(lines)


# -------------------------------------------------------------------- cases


def prepare_case(sample: Path, folder: Path, rng: random.Random, files: Callable[[Path], list[Path]]) -> None:
    """Copy a sample to `folder`, and change some of its files."""
    shutil.copytree(sample, folder)
    for _ in range(rng.choice([1, 1, 1, 2])):
        chosen = [path for path in files(folder) if path.is_file() and not path.is_symlink()]
        if chosen:
            try:
                change_file(rng.choice(chosen), rng)
            except (ValueError, LookupError, TypeError, struct.error, RecursionError, OverflowError):
                continue  # a second change of a file that the first one broke


def run_case(area: "fuzz_samples.Area", samples: Path, case: int, seed: int, work: Path) -> Outcome:
    """Run one case in this process."""
    rng = random.Random(f"{seed} {area.name} {case}")
    sample = rng.choice(sorted((samples / area.name).iterdir()))
    folder = work / sample.name
    prepare_case(sample, folder, rng, area.files)
    before, began = memory_mib(), time.process_time()
    try:
        area.use(folder)
        result, detail = "works", ""
    except QkvError as error:
        result, detail = "refused", str(error)
        if len(detail) > MAX_MESSAGE or not detail:
            result = f"a message of {len(detail)} characters"
    except BaseException as error:
        result, detail = type(error).__name__, traceback.format_exc()
    outcome = Outcome(area.name, case, result, detail, time.process_time() - began, memory_mib() - before)
    shutil.rmtree(folder, ignore_errors=True)
    return outcome


def memory_mib() -> float:
    """The largest amount of memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_in_process(
    area: "fuzz_samples.Area", samples: Path, cases: list[int], seed: int, work: Path
) -> Iterator[Outcome]:
    """Run cases in one forked process. When it dies, the case that it was running is the last outcome."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        limit_process()
        try:
            with os.fdopen(write, "w") as out:
                for case in cases:
                    set_timers(MAX_CPU_SECONDS, MAX_WALL_SECONDS)
                    outcome = run_case(area, samples, case, seed, work)
                    set_timers(0, 0)
                    print(json.dumps(asdict(outcome)), file=out, flush=True)
        finally:
            os._exit(0)
    os.close(write)
    done = 0
    with os.fdopen(read) as lines:
        for line in lines:
            done += 1
            yield Outcome(**json.loads(line))
    status = os.waitpid(pid, 0)[1]
    if done < len(cases):
        number = -os.waitstatus_to_exitcode(status)
        reason = {
            signal.SIGPROF: f"longer than {MAX_CPU_SECONDS:.0f} s on the CPU",
            signal.SIGALRM: f"longer than {MAX_WALL_SECONDS:.0f} s",
        }.get(number, f"the process ended with {-number}")
        yield Outcome(area.name, cases[done], reason, "", MAX_CPU_SECONDS, 0.0)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()


def set_timers(cpu_seconds: float, wall_seconds: float) -> None:
    """End this process after this much CPU time, or after this much wall time; 0 is no limit."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, wall_seconds)


def limit_process() -> None:
    """Limit the memory of this process, and let the timers end it even inside a library."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(MAX_MEMORY_GIB * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)  # libraries print their panics there


def fuzz(area: "fuzz_samples.Area", samples: Path, num_cases: int, seed: int = 0) -> Iterator[Outcome]:
    """Run the first `num_cases` cases of an area."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / "work"
        work.mkdir()
        next_case = 0
        while next_case < num_cases:
            cases = list(range(next_case, min(num_cases, next_case + CASES_PER_PROCESS)))
            for outcome in run_in_process(area, samples, cases, seed, work):
                next_case = outcome.case + 1
                yield outcome


def make_samples(folder: Path, areas: list["fuzz_samples.Area"]) -> None:
    """Make the sound samples, and use each once: it must work, and loads what a first use loads."""
    torch.set_num_threads(1)
    for area in areas:
        (folder / area.name).mkdir(parents=True)
        area.make(folder / area.name)
        for sample in sorted((folder / area.name).iterdir()):
            area.use(sample)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=300, help="cases of all areas together")
    parser.add_argument("--many", action="store_true", help="ten thousand cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--area", choices=list(fuzz_samples.AREAS))
    parser.add_argument("--only", type=int, help="run only this case of the area, and print its traceback")
    options = parser.parse_args()
    areas = [fuzz_samples.AREAS[options.area]] if options.area else list(fuzz_samples.AREAS.values())
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        samples = Path(name) / "samples"
        make_samples(samples, areas)
        if options.only is not None:
            (Path(name) / "work").mkdir()
            print(run_case(areas[0], samples, options.only, options.seed, Path(name) / "work"))
            return 0
        total = 10_000 if options.many else options.cases
        failures: list[Outcome] = []
        print(f"{'area':12} {'cases':>6} {'works':>6} {'refused':>8} {'failures':>9} {'slowest':>9} {'memory':>9}")
        for area in areas:
            outcomes = []
            for outcome in fuzz(area, samples, -(-total // len(areas)), options.seed):
                outcomes.append(outcome)
                if outcome.result not in ("works", "refused"):
                    failures.append(outcome)
                    lines = outcome.detail.strip().split("\n")
                    print(f"  {area.name} {outcome.case}: {outcome.result}: {lines[-1][:200]}", flush=True)
            counts = Counter(outcome.result for outcome in outcomes)
            print(
                f"{area.name:12} {len(outcomes):6} {counts['works']:6} {counts['refused']:8} "
                f"{len(outcomes) - counts['works'] - counts['refused']:9} "
                f"{max(o.seconds for o in outcomes):7.2f} s {max(o.memory_mib for o in outcomes):5.0f} MiB",
                flush=True,
            )
    kinds = Counter(re.sub(r"\d+", "N", outcome.result) for outcome in failures)
    print(f"{time.monotonic() - began:.0f} s, {len(failures)} failures {dict(kinds) or ''}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
