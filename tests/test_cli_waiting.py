"""The command line tells torch's threads how to wait: early enough, and only where the user has not."""

import os
import subprocess
import sys

import pytest

from qkv import cli
from qkv.cli.waiting import SPINS, wait_briefly, worked

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
PROGRAM = "from qkv import cli; cli.call = lambda: __import__('torch').get_num_threads() * 0; cli.main()"
"""The command line with a verb that loads torch and does nothing else."""


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("said", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_what_the_user_says_stands(said: dict[str, str], busy: bool) -> None:
    environment = dict(said)
    wait_briefly(environment, busy)
    assert environment == said


@pytest.mark.parametrize(("verb", "used", "spins"), [("train", 1.8, 0), ("train", 0.1, SPINS), ("info", 1.8, SPINS)])
def test_training_where_others_use_the_cores_does_not_spin(
    verb: str, used: float, spins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["qkv", verb])
    monkeypatch.setattr(cli, "cores_in_use", lambda: used)
    monkeypatch.setattr(cli, "call", lambda: 0)
    with pytest.raises(SystemExit):
        cli.main()
    assert os.environ["GOMP_SPINCOUNT"] == str(spins)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch comes with another OpenMP")
@pytest.mark.parametrize(("said", "spins"), [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, 7)])
def test_the_library_that_torch_loads_has_heard_it(said: dict[str, str], spins: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment |= {"OMP_DISPLAY_ENV": "verbose", **said}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr


def test_idle_time_is_not_work() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert worked(f"cpu  {ticks} {ticks} {2 * ticks} 900 9 0 0 0 0 0\ncpu0 5 5 5 5") == 4.0
