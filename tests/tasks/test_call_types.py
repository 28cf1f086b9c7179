"""The types of calls: editors complete options, and type checkers refuse those that do not exist."""

import re
from pathlib import Path

import pytest

from qkv.tasks import call_types, calls
from qkv.tasks.write_call_types import TEXT_TASKS, call_type_name, render_call_types

SNIPPET = """
def use(translate: TranslateCall, classify: ClassifyCall, answer: AnswerCall) -> None:
    reveal_type(translate("a", beam=3))
    reveal_type(translate(["a", "b"], beam=3, batch_size=4))
    reveal_type(translate(iter(["a"])))
    reveal_type(classify([("a", "b")]))
    reveal_type(answer(["q"], "c"))
    translate(["a", "b"], beem=3)
    translate("a", beam="three")
    classify("a", too_long="cut")
"""
REVEALED = ("GeneratedText", "list[GeneratedText]", "Iterator[GeneratedText]", "list[ClassPrediction]", "list[Answer]")


def test_the_file_of_types_is_current() -> None:
    text = Path(call_types.__file__).read_text(encoding="utf-8")
    assert text == render_call_types(), "run python docs/task_pages.py"
    source = Path(calls.__file__).read_text(encoding="utf-8")
    for task in TEXT_TASKS:
        assert f"        {task}: {call_type_name(task)}\n" in source


def test_a_type_checker_knows_options_and_results(tmp_path: Path) -> None:
    """Without the modules of the results, which would take a minute to check."""
    api = pytest.importorskip("mypy.api", reason="checks types; pip install qkv[dev]")
    alone = re.sub(r"from qkv\.\S+ import (\w+)", r"class \1: ...", render_call_types())
    alone = alone.replace("class OnProgress: ...", "from typing import Any as OnProgress")
    file = tmp_path / "snippet.py"
    file.write_text(alone + SNIPPET, encoding="utf-8")
    out, _, _ = api.run(["--no-incremental", "--config-file=", str(file)])
    revealed = [line.partition("Revealed type is ")[2].strip('"') for line in out.splitlines() if "Revealed" in line]
    assert tuple(re.sub(r"\b(snippet|typing)\.", "", one) for one in revealed) == REVEALED
    wrong = sorted({line.split(":")[1] for line in out.splitlines() if ": error:" in line}, key=int)
    last = (alone + SNIPPET).rstrip().count("\n") + 1
    assert wrong == [str(last - 2), str(last - 1), str(last)], out
