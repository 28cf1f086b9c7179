"""Environments that few programs are tried in: a clock that jumps, 64 open files, Python -O, no UTF-8, no home folder.

And files that are replaced between a check and the use, other event loops, and clients that leave early.
"""

import io
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from fault_runs import difference, newest, tiny, train, written
from serving import served, wait_until
from task_models import decoder

import qkv
from qkv.cli import run_command
from qkv.errors import UsageError
from qkv.models.bfloat16 import _PROBE
from qkv.serve.http import open_files
from qkv.serve.settings import ServeSettings
from qkv.store.weights import Weights
from qkv.tasks.prepare.sources import cache_root
from qkv.train.recipe.schema import DataSection

PLAIN = {"ema_decay": 0.0, "num_workers": 0, "micro_batch_tokens": 0, "steps": 6, "save_every": 2, "eval_every": 100}
JUMPING_CLOCK = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long calls;
static long offset(void) { long all[] = {0, -800000000L, 2000000000L, -1L, 3600L}; return all[(calls++ / 7) % 5]; }
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += offset();
    return failed;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process whose wall clock jumps by decades with every seventh call."""
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc) to build a clock that jumps")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(JUMPING_CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "clock.so", "clock.c"], cwd=folder, check=True)
    return {"LD_PRELOAD": str(folder / "clock.so")}


def test_a_run_is_the_same_where_nothing_is_as_usual(tmp_path: Path, clock: dict[str, str]) -> None:
    """Without assertions, with 64 open files, in ASCII, without a home folder, while the clock jumps."""
    usual, odd = tiny(tmp_path, "usual", train=PLAIN), tiny(tmp_path, "odd", train=PLAIN)
    train(usual)
    environment = {**os.environ, **clock, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("HOME", None)
    done = subprocess.run(
        [sys.executable, "-O", "-m", "qkv", "train", str(written(odd))], env=environment, preexec_fn=few_files,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert difference(newest(odd.run), newest(usual.run)) == ""


def test_a_server_accepts_no_more_connections_than_it_may_open(tmp_path: Path, clock: dict[str, str]) -> None:
    decoder(max_positions=64).save(tmp_path / "model")
    command = [sys.executable, "-m", "qkv", "serve", str(tmp_path / "model"), "--port", "0", "--json"]
    with subprocess.Popen(
        command, env={**os.environ, **clock}, preexec_fn=few_files, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            url = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["url"]
            address = ("127.0.0.1", int(url.rpartition(":")[2]))
            opened = [socket.create_connection(address, timeout=10) for _ in range(40)]
            answers = [connection.recv(1000) for connection in opened[-10:]]
            for connection in opened:
                connection.close()
            wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 200)
            body = {"prompt": "the", "max_tokens": 2}
            assert httpx.post(f"{url}/v1/completions", json=body, timeout=30).status_code == 200
        finally:
            process.terminate()
        _, log = process.communicate(timeout=30)
    assert any(answer.startswith((b"HTTP/1.1 503", b"HTTP/1.1 429")) for answer in answers)
    assert "raise the limit with ulimit -n" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("limits", "connections", "changed"),
    [((4096, 4096), 1024, False), ((256, 4096), 1024, False), ((64, 64), 24, True), ((1024, 1024), 744, True)],
)
def test_the_number_of_connections_fits_the_limit_of_open_files(
    limits: tuple[int, int], connections: int, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, values: raised.append(values))
    settings, backlog, note = open_files.fit_to_open_files(ServeSettings())
    assert (settings.max_connections, bool(note)) == (connections, changed)
    assert settings.max_connections_per_address <= settings.max_connections
    assert max(limits) >= settings.max_connections + backlog + open_files.RESERVED_FILES or not changed
    assert bool(raised) == (limits[0] < 1024 + open_files.MAX_BACKLOG + open_files.RESERVED_FILES)


def test_output_that_a_locale_cannot_write_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii", write_through=True))
    assert run_command(["run", "en-fr", "It is summer."]) == 0
    assert output.getvalue() == b"C'est l'\\xe9t\\xe9.\n"


def test_a_cache_without_a_home_folder_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("QKV_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", fail)
    with pytest.raises(UsageError, match=r"no home folder .* set \$HOME, \$QKV_CACHE or data\.cache_dir"):
        cache_root(DataSection())
    assert cache_root(DataSection(cache_dir=str(tmp_path))) == tmp_path


def test_checks_in_other_processes_do_not_depend_on_assertions() -> None:
    """PYTHONOPTIMIZE is inherited, and removes them."""
    assert "assert" not in _PROBE


def test_weights_that_are_replaced_while_a_model_loads_are_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that was checked is the one that is read.

    A file that is cut in place ends the process, because it is mapped.
    """
    decoder().save(tmp_path / "model")
    before = qkv.load(tmp_path / "model").network.state_dict()
    get = Weights.get

    def replace_first(self: Weights, name: str) -> Any:
        (tmp_path / "other").write_bytes(b"not safetensors")
        os.replace(tmp_path / "other", tmp_path / "model" / "model.safetensors")
        return get(self, name)

    monkeypatch.setattr(Weights, "get", replace_first)
    after = qkv.load(tmp_path / "model").network.state_dict()
    assert all(value.equal(after[name]) for name, value in before.items())


def test_the_limits_of_connections_hold_with_other_event_loops() -> None:
    """uvicorn takes uvloop and httptools where they are installed."""
    pytest.importorskip("httptools", reason="httptools is not installed")
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    with served({"text": decoder()}, header_seconds=0.2, max_connections_per_address=3) as (url, _):
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        slow = socket.create_connection(address, timeout=10)
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")
        several = [socket.create_connection(address, timeout=10) for _ in range(4)]
        assert several[-1].recv(1000).startswith(b"HTTP/1.1 429")
        for connection in [slow, *several]:
            connection.close()
        wait_until(lambda: httpx.get(f"{url}/healthz").status_code == 200)


def test_clients_that_leave_while_their_constraint_is_compiled_leave_nothing_behind() -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    with served({"text": decoder(max_positions=128)}) as (url, _):
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for number in range(12):
            body = json.dumps(
                {"prompt": "the", "n": 8, "max_tokens": 8, "regex": f"(a{{50}}){{{60 + number}}}b"}
            ).encode()
            lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
            head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode()
            with socket.create_connection(address, timeout=10) as connection:
                connection.sendall(head + body)
        wait_until(lambda: 'of="generations"} 0' in httpx.get(f"{url}/metrics").text)
        body = {"prompt": "the", "max_tokens": 4, "regex": "a+"}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=30).status_code == 200
