"""Stop signals, in separate processes: one signal, two signals, and while the main thread is stuck."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import pytest

from qkv.train.run import signals
from qkv.train.run.signals import StopSignals

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

HEAD = """
import hashlib, os, signal, sys, time
from qkv.train.run import signals
from qkv.train.run.signals import StopSignals

signals.SAME_REQUEST_SECONDS, signals.DEADLINE_SECONDS = 0.2, 1.0  # so that nobody waits for these tests

def ready():
    print("ready", flush=True)

def stuck():
    # One long call in C, as a collective is: until it returns, Python runs no handler.
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""


def start(code: str) -> subprocess.Popen:
    """A new Python that runs `code` and has said that it is ready."""
    command = [sys.executable, "-c", HEAD + textwrap.dedent(code)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def ended(process: subprocess.Popen) -> tuple[int, str]:
    """How it ended and what it wrote; a process that does not end by itself fails the test."""
    try:
        out, error = process.communicate(timeout=20)
    finally:
        process.kill()
    assert "Traceback" not in error, error
    return process.returncode, out


def insist(process: subprocess.Popen, number: int) -> None:
    """Send the signal again until the process ends: on a busy machine, two signals may count as one."""
    end = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < end:
        process.send_signal(number)
        time.sleep(0.3)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_loop_after_its_step(number, code):
    process = start("""
        with StopSignals() as stop:
            ready()
            while not stop.requested:
                time.sleep(0.01)
            print("saved")
        sys.exit(128 + stop.requested if stop.requested else 0)
    """)
    process.send_signal(number)
    assert ended(process) == (code, "saved\n")


def test_a_second_signal_ends_the_process_at_once():
    process = start("""
        with StopSignals() as stop:
            ready()
            while True:
                stop.requested, time.sleep(0.01)
    """)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.4)
    assert process.poll() is None, "the first alone does not"
    insist(process, signal.SIGINT)
    assert ended(process) == (130, "")


def test_a_second_signal_ends_a_process_that_is_stuck():
    process = start("""
        with StopSignals() as stop:
            ready()
            stuck()
    """)
    insist(process, signal.SIGTERM)
    assert ended(process) == (143, "")


def test_signals_close_together_are_one_request():
    """Ctrl-C reaches every process of a run, and then torchrun sends SIGTERM on top of it."""
    process = start("""
        signals.SAME_REQUEST_SECONDS = 10
        with StopSignals() as stop:
            ready()
            while not stop.requested:
                time.sleep(0.01)
            time.sleep(0.4)
            print("saved")
        sys.exit(128 + stop.requested if stop.requested else 0)
    """)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    code, out = ended(process)
    assert (code in (130, 143), out) == (True, "saved\n")


def test_one_of_several_processes_that_is_stuck_ends_when_it_is_asked_to():
    process = start("""
        with StopSignals(multi_process=True) as stop:
            ready()
            stuck()
    """)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "")


def test_a_process_alone_has_no_deadline():
    process = start("""
        with StopSignals() as stop:
            ready()
            time.sleep(1.5)
            print("in its own time")
        sys.exit(128 + stop.requested if stop.requested else 0)
    """)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "in its own time\n")


@pytest.mark.parametrize(
    "meanwhile", ["stop.acknowledge(); time.sleep(2)", "[(stop.requested, time.sleep(.1)) for _ in range(20)]"]
)
def test_a_request_that_is_being_acted_upon_has_no_deadline(meanwhile):
    process = start(f"""
        with StopSignals(multi_process=True) as stop:
            ready()
            while not stop.requested:
                time.sleep(0.01)
            {meanwhile}
            print("saved")
        sys.exit(128 + stop.requested if stop.requested else 0)
    """)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "saved\n")


def test_what_is_no_deadline_has_no_deadline_and_what_follows_has_one_again():
    """An evaluation may take longer than any step. When it is over, a process that is stuck is ended as before."""
    process = start("""
        with StopSignals(multi_process=True) as stop:
            with stop.no_deadline():
                ready()
                time.sleep(2.5)
            print("evaluated", flush=True)
            stuck()
    """)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "evaluated\n")


def test_the_time_of_what_is_no_deadline_is_not_taken_for_a_steps(monkeypatch):
    """Steps of 6 s may take twice as long before a process is taken to be stuck; an evaluation does not count."""
    now = 0.0
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now))
    stop = StopSignals(multi_process=True)
    now = 6.0  # a step, up to its evaluation
    with stop.no_deadline():
        now = 1006.0
        assert stop._deadline(first=7.0) > 1006
    now = 1007.0
    assert stop.requested is None
    assert stop._deadline(first=0.0) == 1007 + 2 * 6


def test_long_steps_have_a_longer_deadline():
    """Two looks were a second apart, so that twice a second may pass before the process is taken to be stuck."""
    process = start("""
        with StopSignals(multi_process=True) as stop:
            stop.requested
            time.sleep(1)
            stop.requested
            ready()
            time.sleep(1.2)
            print("saved" if stop.requested else "never asked")
        sys.exit(128 + stop.requested if stop.requested else 0)
    """)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "saved\n")


def test_a_signal_to_a_forked_process_does_not_look_like_one_to_the_parent():
    process = start("""
        with StopSignals() as stop:
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            for _ in range(20):
                os.kill(child, signal.SIGTERM)
                time.sleep(0.01)
            ready()
            time.sleep(0.3)
            print(stop.requested)
            os.kill(child, signal.SIGKILL)
    """)
    assert ended(process) == (0, "None\n")


def test_a_signal_that_was_ignored_stays_ignored():
    """As SIGINT is in a job that a shell has put into the background."""
    process = start("""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with StopSignals() as stop:
            ready()
            time.sleep(0.5)
            print(stop.requested)
    """)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (0, "None\n")


def test_everything_is_as_before_when_the_block_ends():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    threads = set(threading.enumerate())
    descriptor = signal.set_wakeup_fd(-1)  # an event loop of another test may have set one
    signal.set_wakeup_fd(descriptor)
    with StopSignals() as stop:
        assert signal.getsignal(signal.SIGTERM) != before[1]
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested == signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(descriptor) == descriptor
    assert "stop signals" not in {thread.name for thread in set(threading.enumerate()) - threads}


def test_blocks_may_be_nested():
    """The inner block leaves the outer one working, and the outer one restores what was there before."""
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as outer:
        with StopSignals():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        assert outer.requested == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_outside_the_main_thread_nothing_is_asked_and_nothing_breaks():
    found: list[object] = []

    def work() -> None:
        with StopSignals() as stop:
            found.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [None]


def test_in_work_that_can_be_abandoned_a_signal_raises_and_what_follows_is_saved():
    process = start("""
        with StopSignals() as stop:
            try:
                with stop.use_mode("raise"):
                    ready()
                    time.sleep(60)
            except signals.StopRequested as error:
                print("saved after", error.number)
    """)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (0, "saved after 15\n")


def test_a_signal_that_came_before_raises_when_such_work_begins():
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(signals.StopRequested), stop.use_mode("raise"):
            pytest.fail("the block is not entered")
        assert stop.mode == "finish"


def test_where_nothing_is_lost_a_process_that_is_stuck_ends_with_the_first_signal():
    process = start("""
        signals.ABORT_SECONDS = 0.3
        with StopSignals(mode="abort") as stop:
            ready()
            try:
                stuck()
            except signals.StopRequested as error:  # if it came before the process was stuck
                sys.exit(128 + error.number)
    """)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "")


@pytest.mark.parametrize("mode", ["finish", "raise", "abort"])
def test_a_stop_is_announced_even_while_the_process_is_stuck(mode):
    process = start(f"""
        signals.ABORT_SECONDS = 0.3
        with StopSignals(mode="{mode}") as stop:
            ready()
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**6)
    """)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=30)
    assert f"SIGTERM: {signals.ANNOUNCEMENTS[mode]}" in error
