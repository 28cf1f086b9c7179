"""Ctrl-C never prints a traceback: not during the imports, not in a command, and not at the end."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
moment = sys.argv.pop()

def press():
    os.kill(os.getpid(), signal.SIGINT)

if moment == "import":
    class Finder:
        def find_spec(self, name, path, target=None):
            if name == "qkv.cli":
                press()
    sys.meta_path.insert(0, Finder())
else:
    from qkv import cli
    class App:
        def __call__(self, *arguments, **options):
            if moment == "command":
                press()
        def __contains__(self, name):
            return True
    cli.make_app = lambda *arguments: App()
    if moment == "exit":
        import atexit
        atexit.register(press)
from qkv.__main__ import main
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("moment", "codes"), [("import", [130]), ("command", [130]), ("exit", [-signal.SIGINT])])
def test_ctrl_c_prints_no_traceback(moment: str, codes: list[int]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, moment], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert done.returncode in codes, done.stderr
    assert ("interrupted" in done.stderr) == (moment != "exit")
