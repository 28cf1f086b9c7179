"""CONTRIBUTING.md, "Add a task": its example is one file, which all commands, the server and the studio then know."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prepare_samples import WORDS
from serving import client

import qkv
from qkv.cli import run_command
from qkv.data.objectives.table import OBJECTIVES
from qkv.serve.studio.results import find_results
from qkv.tasks.table import TASKS, find_task
from qkv.tasks.task_page import BEGIN, END, insert_reference, render_page

ROOT = Path(__file__).parents[2]
BUILT_IN_TASKS = [name for name in TASKS if name != "reverse"]
TEXT = "the red cat"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the example as an installed package, and a model that was trained with it for a few steps."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Add a task\n")[1].split("\n## ")[0]
    (file,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(file.splitlines()) <= 80
    folder = tmp_path_factory.mktemp("toy")
    (folder / "reverse.py").write_text(file, encoding="utf-8")
    (folder / "toy-1.dist-info").mkdir()
    (folder / "toy-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (folder / "toy-1.dist-info/entry_points.txt").write_text("[qkv.plugins]\nreverse = reverse\n")
    for name, count in (("texts.txt", 120), ("test.txt", 10)):
        lines = [" ".join(WORDS[i * k % len(WORDS)] for k in range(1, 4)) + f" {i}" for i in range(count)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        patched.chdir(folder)
        assert run_command(["init", "reverse", "texts.txt", "--test", "test.txt"]) == 0
        changes = [
            "train.steps=20",
            "train.minutes=0",
            "train.lr=3e-3",
            "model.layers=1",
            "model.width=32",
            "train.device=cpu",
        ]
        assert run_command(["train", "reverse.toml", *changes]) == 0
        yield folder
    TASKS.unregister("reverse")
    OBJECTIVES.unregister("reverse")
    del sys.modules["reverse"]


@pytest.fixture(scope="module")
def model(toy: Path) -> qkv.Model:
    return qkv.load(toy / "runs/reverse")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The JSON that a command prints."""
    capsys.readouterr()
    assert run_command([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_recipe_and_the_model_name_the_task(toy: Path, model: qkv.Model) -> None:
    recipe = (toy / "reverse.toml").read_text()
    assert recipe.startswith("# A text from right to left.")
    assert 'kind = "reverse"' in recipe
    assert (model.config.family, model.config.task, find_task(model.config).name) == ("seq2seq", "reverse", "reverse")


def test_the_objective_learns_the_reversed_text(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = run(capsys, "train", "reverse.toml", "run=other", "--dry-run")["first_examples"]
    assert examples
    for parts in (one["parts"] for one in examples):
        assert parts["target"].removesuffix("</s>") == parts["source"].removesuffix("</s>")[::-1]


def test_all_ways_to_a_result_agree(toy: Path, model: qkv.Model, capsys: pytest.CaptureFixture[str]) -> None:
    expected, short = model.reverse(TEXT).to_dict(), model.reverse(TEXT, max_chars=3).to_dict()
    assert expected["text"][:3] == short["text"]
    assert len(expected["text"]) > 3
    assert find_results(model, [TEXT])[0].to_dict()["result"] == model.run(TEXT).to_dict() == expected
    assert run(capsys, "run", "runs/reverse", TEXT) == {"input": TEXT, **expected}
    assert run(capsys, "run", "runs/reverse", TEXT, "--max-chars", "3") == {"input": TEXT, **short}
    with client({"toy": model}) as server:
        assert server.post("/reverse", json={"texts": TEXT}).json()["results"] == [expected]
        assert server.post("/reverse", json={"texts": TEXT, "max_chars": 3}).json()["results"] == [short]
        wrong = server.post("/reverse", json={"texts": TEXT, "max_chars": 0})
        assert (wrong.status_code, wrong.json()["error"]["message"]) == (400, "max_chars = 0 must be at least 1")
        document = server.get("/openapi.json").json()
    assert document["paths"]["/reverse"]["post"]["summary"] == "Write texts from right to left."
    assert "max_chars" in document["components"]["schemas"]["ReverseRequest"]["properties"]
    with pytest.raises(qkv.UsageError, match="max_chars = 0 must be at least 1"):
        model.reverse(TEXT, max_chars=0)


def test_evaluation_and_report(toy: Path, model: qkv.Model, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "eval", "runs/reverse")
    assert found["metrics"] == {"exact": pytest.approx(model.evaluate("test.txt").metrics["exact"])}
    report = run(capsys, "report", "runs/reverse")
    assert report["task"] == "reverse"
    assert report["score"]["metric"] == "exact"
    assert "copy" in json.dumps(report["score"])


def test_the_page_of_the_task_has_its_options_results_metrics_and_baselines(toy: Path) -> None:
    page = render_page(TASKS["reverse"])
    assert page.startswith("# Reverse\n\nA model that writes a text from right to left.\n")
    for line in (
        "| Python | `m.reverse(texts)` |",
        "| HTTP | `POST /reverse` |",
        "| recipe | `qkv init reverse FILE` |",
        "| metrics | `exact` |",
        "| baselines | copy |",
        "| `max_chars` | integer, 1 to 1,000 | `100` | The maximum number of characters of the result. |",
        "| `text` | string | The text from right to left. |",
    ):
        assert f"\n{line}\n" in page


@pytest.mark.parametrize("name", BUILT_IN_TASKS)
def test_the_references_of_the_pages_on_tasks_follow_their_declarations(name: str) -> None:
    page = (ROOT / f"docs/tasks/{name}.md").read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert insert_reference(page, TASKS[name]) == page, "run python docs/task_pages.py"
