"""The notebooks run from the first cell to the last, with small budgets."""

import os
import re
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="runs notebooks; pip install nbclient ipykernel")
pytest.importorskip("ipykernel", reason="runs notebooks; pip install nbclient ipykernel")
nbformat = pytest.importorskip("nbformat", reason="reads notebooks; pip install nbclient ipykernel")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAX_BYTES = 100_000
SMALL = '{"train.steps": 8, "train.minutes": 0, "train.eval_examples": 4, "data.epoch_examples": 600}'


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    notebook = nbformat.read(path, as_version=4)
    small = SMALL if "dates" in path.read_text(encoding="utf-8") else SMALL.replace(', "data.epoch_examples": 600', "")
    for cell in notebook.cells:
        cell.source = re.sub(r"^BUDGET = .*$", f"BUDGET = {small}", cell.source, flags=re.MULTILINE)
    ran = nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in ran.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert any(cell.outputs for cell in code)


def test_notebooks_are_small() -> None:
    assert len(NOTEBOOKS) >= 3
    assert all(path.stat().st_size <= MAX_BYTES for path in NOTEBOOKS)
