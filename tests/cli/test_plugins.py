"""Commands of other packages: found by their entry points, imported only when they are needed."""

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from qkv.cli import plugins
from qkv.errors import QkvError

COUNT = EntryPoint("count", "toy_commands:count", plugins.GROUP)
BROKEN = EntryPoint("broken", "toy_missing:command", plugins.GROUP)
MODULE = EntryPoint("toy", "toy_commands", plugins.MODULES)
MISSING = EntryPoint("missing", "toy_missing", plugins.MODULES)
TOY = '''
"""Toy commands."""

def count(word: str) -> None:
    """Count letters."""
    print(len(word))
'''


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    """An app without commands, on a machine with a plugin that works and one whose module is missing."""
    (tmp_path / "toy_commands.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "toy_commands", raising=False)
    known = EntryPoints([COUNT, BROKEN, MODULE, MISSING])
    monkeypatch.setattr(plugins, "entry_points", lambda group: known.select(group=group))
    return App(help_format="plaintext")


def test_a_plugin_is_imported_only_when_it_is_called(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    app.command(lambda: None, name="own")
    plugins.register_plugins(app, ["own"])
    assert "count" not in app
    assert "toy_commands" not in sys.modules
    plugins.register_plugins(app, ["count", "word"])
    plugins.register_plugins(app, ["count", "word"])  # registered once
    app(["count", "word"], exit_on_error=False, result_action="return_value")
    assert capsys.readouterr() == ("4\n", "")


@pytest.mark.parametrize("arguments", [["--help"], [], ["cuont"]])
def test_a_list_of_commands_has_all_plugins(app: App, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    plugins.register_plugins(app, arguments)
    assert "count" in app
    assert "broken" not in app
    assert "qkv broken: cannot import toy_missing:command" in capsys.readouterr().err


def test_a_plugin_that_cannot_be_imported_is_an_error(app: App) -> None:
    with pytest.raises(QkvError, match=r"cannot import toy_missing:command .*; install"):
        plugins.register_plugins(app, ["broken"])


def test_modules_that_register_parts_are_imported(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    plugins.import_installed_plugins()
    assert "toy_commands" in sys.modules
    message = (
        "qkv: plugin missing: cannot import toy_missing (No module named 'toy_missing'); install its package again"
    )
    assert capsys.readouterr().err == f"{message}\n"


def test_a_plugin_does_not_replace_a_command(app: App) -> None:
    app.command(lambda: None, name="count")
    plugins.register_plugins(app, ["count"])
    assert "toy_commands" not in sys.modules


def test_without_any_plugin_an_unknown_command_has_a_note(monkeypatch: pytest.MonkeyPatch, run_qkv: Any) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: EntryPoints())
    assert "install qkv with pip" in run_qkv(["no-such-command"], 2).err


def test_the_help_lists_the_plugins_of_qkv_without_torch() -> None:
    program = "import sys; from qkv.cli import run_command; code = run_command(['--help']); "
    program += "print([name for name in ('torch', 'qkv_lab.run') if name in sys.modules], code)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("[] 0\n"), done.stdout + done.stderr
    assert "│ lab " in done.stdout
    assert "│ bench " in done.stdout
