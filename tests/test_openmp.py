"""The command line limits the spinning of torch's threads before torch is loaded, unless the user has set it."""

import os
import subprocess
import sys

import pytest

from qkv import cli, openmp
from qkv.openmp import SPIN_COUNT, busy_seconds, fraction_in_use, limit_spinning

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
PROGRAM = "from qkv import cli; cli.run_command = lambda: __import__('torch').get_num_threads() * 0; cli.main()"
"""The command line with a command that only loads torch."""


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("user_settings", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_settings_of_the_user_are_kept(user_settings: dict[str, str], busy: bool) -> None:
    environment = dict(user_settings)
    limit_spinning(environment, busy)
    assert environment == user_settings


@pytest.mark.parametrize(
    ("verb", "used", "spins"), [("train", 0.9, 0), ("train", 0.1, SPIN_COUNT), ("info", 0.9, SPIN_COUNT)]
)
def test_training_on_busy_cores_does_not_spin(
    verb: str, used: float, spins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that pytest restores it afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["qkv", verb])
    monkeypatch.setattr(cli, "fraction_in_use", lambda: used)
    monkeypatch.setattr(cli, "run_command", lambda: 0)
    with pytest.raises(SystemExit):
        cli.main()
    assert os.environ["GOMP_SPINCOUNT"] == str(spins)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch comes with another OpenMP")
@pytest.mark.parametrize(("user_settings", "spins"), [({}, SPIN_COUNT), ({"GOMP_SPINCOUNT": "7"}, 7)])
def test_libgomp_reads_the_setting(user_settings: dict[str, str], spins: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment |= {"OMP_DISPLAY_ENV": "verbose", **user_settings}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr


def stat(*busy: float) -> str:
    """The content of /proc/stat for cores that were busy for these numbers of seconds."""
    ticks = os.sysconf("SC_CLK_TCK")
    lines = [f"cpu{n} {int(w * ticks)} 0 0 {900 * ticks} 9 0" for n, w in enumerate(busy)]
    return "\n".join(["cpu  7 7 7 7", *lines, "intr 12 0 5"])


def test_idle_time_is_not_work_and_other_cores_are_not_ours() -> None:
    assert busy_seconds(stat(4.0, 2.0, 50.0), {0, 1}) == 6.0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/stat")
def test_the_fraction_of_our_cores_that_other_programs_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of our two cores is busy all the time; a third core, which is also busy, is not ours."""
    texts, clock = iter([stat(4.0, 2.0, 7.0), stat(4.5, 2.0, 7.5)]), iter([10.0, 10.5])
    monkeypatch.setattr(openmp.Path, "exists", lambda self: True)
    monkeypatch.setattr(openmp.Path, "read_text", lambda self: next(texts))
    monkeypatch.setattr(openmp.os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(openmp.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(openmp.time, "sleep", lambda seconds: None)
    assert fraction_in_use() == 0.5
