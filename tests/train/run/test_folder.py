"""A run's folder: one job at a time, a log that is never torn, and nobody else's files."""

import json
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from qkv.errors import QkvError
from qkv.train.run.folder import RunFolder, environment


@pytest.fixture
def folder(tmp_path):
    """A run's folder, held."""
    with RunFolder(tmp_path / "run").lock() as folder:
        folder.write_recipe('run = "a"\n')
        yield folder


def begin(path) -> None:
    """The files by which a run's folder is known."""
    (path / "recipe.toml").write_text("")
    (path / "env.json").write_text("{}")


def step(number: int, **more) -> dict:
    return {"kind": "step", "step": number, "loss": 1 / number, **more}


# ---------------------------------------------------------------- one job at a time


def test_a_second_job_is_refused_and_told_who_is_first(folder):
    with pytest.raises(QkvError, match=rf"another job is training here \(process {os.getpid()} on .*, since \d{{4}}-"):  # noqa: SIM117
        with RunFolder(folder.path).lock():
            pass


def test_another_process_is_refused_and_admitted_when_the_first_is_killed(tmp_path):
    hold = """
import sys, time
from qkv.train.run.folder import RunFolder
with RunFolder(sys.argv[1]).lock():
    print("held", flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", hold, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(QkvError, match=f"process {process.pid} on"):  # noqa: SIM117
            with RunFolder(tmp_path / "run").lock():
                pass
    finally:
        process.kill()
        process.communicate()
    with RunFolder(tmp_path / "run").lock() as folder:
        holder = json.loads((folder.path / ".lock.json").read_text())
    assert holder["pid"] == os.getpid()


def test_the_lock_is_free_again_after_an_error(tmp_path):
    with pytest.raises(RuntimeError), RunFolder(tmp_path / "run").lock():
        raise RuntimeError
    with RunFolder(tmp_path / "run").lock():
        pass


def fail(path, error=QkvError, created="tokenizer.json", log=False):
    with suppress(error), RunFolder(path).lock() as folder:
        folder.write_initial_recipe("a = 1")
        (path / created).touch()
        if log:
            folder.append_log({"kind": "note"})
        raise error


def test_an_error_before_the_log_begins_leaves_nothing_behind(tmp_path):
    fail(tmp_path / "runs" / "a")
    assert not any(tmp_path.iterdir())
    (tmp_path / "runs").mkdir()
    fail(tmp_path / "runs" / "a")
    assert [path.name for path in tmp_path.rglob("*")] == ["runs"]  # was there before


@pytest.mark.parametrize("options", [{"log": True}, {"error": KeyboardInterrupt}, {"error": RuntimeError}])
def test_a_run_that_has_begun_or_was_stopped_is_kept(options, tmp_path):
    fail(tmp_path / "run", **options)
    assert RunFolder(tmp_path / "run").is_run
    fail(tmp_path / "run")  # another attempt deletes only its own files
    assert RunFolder(tmp_path / "run").is_run
    assert RunFolder(tmp_path / "run").read_recipe() == "a = 1"


def test_an_error_deletes_nothing_of_a_run_with_a_model_or_checkpoints(tmp_path):
    for name in ("config.json", "checkpoints"):
        with RunFolder(tmp_path / name).lock() as folder:
            folder.write_recipe("a = 1")
            (folder.path / name / "step-000000001").mkdir(parents=True)
        (tmp_path / name / ".lock.json").unlink()
        files = set(folder.path.rglob("*"))
        fail(folder.path)
        assert set(folder.path.rglob("*")) >= files


def test_an_error_deletes_no_file_of_the_user(tmp_path):
    fail(tmp_path / "run", created="notes.txt")
    assert (tmp_path / "run/notes.txt").exists()
    with RunFolder(tmp_path / "run").lock() as folder:  # still a run: the next attempt is not refused
        assert folder.read_recipe() == "a = 1"


def test_taking_the_lock_clears_what_a_killed_run_left(tmp_path):
    left = tmp_path / "run" / "checkpoints" / ".step-000000030.writing"
    with RunFolder(tmp_path / "run").lock() as folder:
        folder.write_recipe("")
        left.mkdir(parents=True)
    with RunFolder(tmp_path / "run").lock():
        assert not left.exists()


# ---------------------------------------------------------------- whose folder


def test_a_new_folder_an_empty_one_and_a_runs_own_are_taken(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new/deep", "empty", "empty"):
        with RunFolder(tmp_path / name).lock() as folder:
            folder.write_recipe("x")
            folder.append_log(step(1))
        assert folder.is_run


def test_a_killed_run_that_had_only_begun_does_not_block_its_folder(tmp_path):
    with RunFolder(tmp_path).lock():
        pass
    (tmp_path / "recipe.toml.partial").write_text("ru")
    with RunFolder(tmp_path).lock() as folder:
        assert not folder.is_run


@pytest.mark.parametrize(
    ("file", "run", "message"),
    [
        ("thesis.txt", ".", r"not a run folder, and not empty \(thesis.txt\)"),
        ("recipe.toml", ".", r"not a run folder, and not empty \(recipe.toml\)"),  # the recipe of one's own project
        ("config.json", ".", r'this folder has a model but no run.*model\.from="'),
        ("run", "run", "this is a file"),
        ("run", "run/deep", r"cannot be used as a run folder \(Not a directory\)"),
    ],
)
def test_a_place_with_other_files_is_refused_and_left_alone(tmp_path, file, run, message):
    (tmp_path / file).write_text("mine")
    with pytest.raises(QkvError, match=message):  # noqa: SIM117
        with RunFolder(tmp_path / run).lock():
            pass
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert (tmp_path / file).read_text() == "mine"
    assert not RunFolder(tmp_path / run).is_run


@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_ended_while_it_prepared_its_data_can_be_started_again(tmp_path, killed):
    """By an error or by a kill: the recipe is there, perhaps a tokenizer, and nothing else."""
    with RunFolder(tmp_path).lock() as folder:
        folder.write_recipe("")
        (tmp_path / "tokenizer.json").write_text("{}")
    if killed:
        (tmp_path / ".lock").touch()
    with RunFolder(tmp_path).lock() as folder:
        assert folder.is_run


def test_a_run_is_under_way_once_it_has_something_to_show(tmp_path):
    shows = {
        "checkpoint": lambda folder: (folder.path / "checkpoints" / "step-000000002").mkdir(parents=True),
        "model": lambda folder: (folder.path / "config.json").write_text("{}"),
        "step": lambda folder: folder.append_log(step(1)),
    }
    for name, show in shows.items():
        with RunFolder(tmp_path / name).lock() as folder:
            folder.write_initial_recipe("")
            folder.write_env("cpu", 1)
            folder.append_log({"kind": "note", "step": 0, "text": "what was prepared"})
            assert folder.is_run
            assert not folder.has_progress
            show(folder)
            assert folder.has_progress


@pytest.mark.parametrize("is_under_way", [False, True])
def test_beginning_again_clears_what_a_failed_attempt_left_but_no_progress(tmp_path, is_under_way):
    logged = step(1) if is_under_way else {"kind": "note", "step": 0, "text": "what was prepared"}
    with RunFolder(tmp_path).lock() as folder:
        folder.write_initial_recipe("first")
        folder.append_log(logged)
        (tmp_path / "tokenizer.json").write_text("{}")
    with RunFolder(tmp_path).lock() as folder:
        folder.write_initial_recipe("second")
        assert (folder.read_recipe(), folder.log_records()) == (("first", [logged]) if is_under_way else ("second", []))
        assert (tmp_path / "tokenizer.json").exists() == is_under_way


# ---------------------------------------------------------------- recipe and environment


def test_the_recipe_is_kept_as_it_is(folder):
    text = 'run = "größer"\r\n[train]\nlr = 1e-3\n'
    folder.write_recipe(text)
    assert RunFolder(folder.path).read_recipe().replace("\r", "") == text.replace("\r", "")


def test_a_folder_without_a_recipe_says_so(tmp_path):
    with pytest.raises(QkvError, match=r"recipe\.toml: no such file"):
        RunFolder(tmp_path).read_recipe()


def test_what_a_run_runs_on_is_written_and_changes_are_told(folder):
    assert folder.write_env("cpu", 2) == []
    env = json.loads((folder.path / "env.json").read_text())
    assert env == environment("cpu", 2)
    assert env.keys() >= {"python", "torch", "qkv", "device", "threads", "system"}
    assert folder.write_env("cpu", 4) == ["threads: 2 → 4"]


def test_the_environment_names_no_person_and_no_place(folder):
    text = json.dumps(environment("cpu", 1))
    assert "/" not in text
    assert (os.environ.get("USER") or "no user") not in text


# ---------------------------------------------------------------- the log


def test_lines_are_there_at_once_and_numbers_exact(folder):
    number = 0.1 + 0.2
    folder.append_log({"kind": "step", "step": 3, "loss": number})
    read = RunFolder(folder.path).log_records()
    assert read == [{"kind": "step", "step": 3, "loss": number}]
    assert repr(number) in (folder.path / "metrics.jsonl").read_text()


def test_what_json_does_not_know_becomes_null(folder):
    folder.append_log({"kind": "step", "step": 3, "loss": float("nan"), "grad_norm": float("inf")})
    assert folder.log_records() == [{"kind": "step", "step": 3, "loss": None, "grad_norm": None}]


def test_later_steps_are_forgotten_and_the_log_goes_on(folder):
    for number in (1, 2, 3, 4):
        folder.append_log(step(number))
        folder.append_log({"kind": "note", "step": number, "text": "größer\u2028"})
    folder.truncate_log(2)
    folder.append_log(step(3, again=True))
    assert [(r["kind"], r["step"]) for r in folder.log_records()] == [
        ("step", 1),
        ("note", 1),
        ("step", 2),
        ("note", 2),
        ("step", 3),
    ]
    assert folder.log_records()[-1]["again"]


def test_a_log_without_later_steps_is_not_touched(folder):
    folder.append_log(step(1))
    before = (folder.path / "metrics.jsonl").stat().st_ino
    folder.truncate_log(1)
    assert (folder.path / "metrics.jsonl").stat().st_ino == before


def test_truncating_before_anything_was_logged_is_no_error(folder):
    folder.truncate_log(0)
    assert folder.log_records() == []


LINES = [json.dumps(step(number)).encode() + b"\n" for number in (1, 2, 3)]


def test_an_incomplete_last_line_is_removed_with_a_note(tmp_path):
    path = tmp_path / "metrics.jsonl"
    begin(tmp_path)
    for missing in range(1, len(LINES[2])):
        path.write_bytes(b"".join(LINES)[:-missing])
        with RunFolder(tmp_path).lock() as folder:
            assert path.read_bytes() == LINES[0] + LINES[1]
            removed = len(LINES[2]) - missing
            assert folder.notes == [f"{path}: the last line was incomplete; {removed} bytes were removed"]
            folder.append_log(step(3))
        assert [record["step"] for record in folder.log_records()] == [1, 2, 3]


def test_zeros_that_a_power_cut_left_are_cut_off(tmp_path):
    begin(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(LINES) + b"\0" * 50 + b"\n" + b"\0" * 7)
    with RunFolder(tmp_path).lock() as folder:
        assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(LINES)
        assert "58 bytes were removed" in folder.notes[0]


def test_a_whole_log_is_not_repaired(tmp_path):
    begin(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(LINES))
    with RunFolder(tmp_path).lock() as folder:
        assert folder.notes == []
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(LINES)
