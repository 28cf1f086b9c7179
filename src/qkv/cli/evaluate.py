"""`qkv eval`: how well a model does on data."""

from pathlib import Path
from typing import Any

from qkv.cli.data import parse_fields
from qkv.cli.shared import Int8, Json, StdoutConsole, StringList, app, print_json, print_notes
from qkv.errors import UsageError
from qkv.train.recipe.schema import DataSection


def run_data_section(model: str) -> DataSection | None:
    """What a model was trained on, where it is the folder of a run."""
    from qkv.train.recipe.recipe_file import read
    from qkv.train.run.load import run_path

    path = run_path(Path(model)) / "recipe.toml"
    return read(path).data if path.exists() else None


def evaluation_data(data: DataSection | None) -> Any:
    """What a recipe keeps for judging: its test files, its validation files, or a built-in dataset's test split."""
    from qkv.data.builtin import DATASETS

    if data is None:
        return ""
    return data.test or data.valid or (data.train if data.train in DATASETS else "")


@app.command(name="eval")
def evaluate(
    model: str,
    /,
    *data: str,
    columns: StringList = None,
    format: str = "",
    split: str = "",
    metric: StringList = None,
    limit: int = 0,
    beam: int = 1,
    batch_size: int = 0,
    samples: int = 5,
    device: str = "cpu",
    int8: Int8 = False,
    json: Json = False,
) -> None:
    """Score a model on data: the metrics of the task that it is made for, and some of what it makes of it.

    Without data, a run is scored on the test or validation files of its own recipe.

    Examples:
        qkv eval runs/dates
        qkv eval runs/dates dates --split test
        qkv eval models/translator source=test.en target=test.de --beam 5 --metric bleu --metric chrf
        qkv eval models/reviews reviews.csv.gz --columns text=review --columns label=stars --json

    Parameters
    ----------
    model
        A model folder or hub id, with a tokenizer.
    data
        Files, globs or folders; field=file for files that go in step; or a dataset that comes with qkv.
    columns
        field=column for each column to read, where their names do not tell.
    format
        The format, where the file's ending does not tell it.
    split
        Of a dataset that comes with qkv: train, valid or test (the usual one).
    metric
        A metric by name; may be given several times. The task's own, if none is given.
    limit
        Only the first so many records; 0: all.
    beam
        Search with so many hypotheses, where the model writes text.
    batch_size
        How many to run at a time; 0: what suits the task.
    samples
        How many examples to show.
    device
        Where to run: cpu, cuda, mps.
    int8
        With the linear maps in int8: what that costs in quality.
    """
    from qkv.api import load
    from qkv.data import Problems
    from qkv.render import evaluation as picture
    from qkv.render.progress import progress_bar
    from qkv.tasks.evaluate import evaluate as judge
    from qkv.tasks.evaluate import find_task
    from qkv.tasks.evaluation_records import load_records
    from qkv.tasks.train import format_files

    trained = run_data_section(model)
    for name, value, least in (
        ("limit", limit, 0),
        ("beam", beam, 1),
        ("batch-size", batch_size, 0),
        ("samples", samples, 0),
    ):
        if value < least:
            raise UsageError(f"--{name} {value}: at least {least}")
    given: Any = parse_fields(data, "files that go in step") or data
    chosen = parse_fields(columns or [], "--columns", required=True)
    if not given:
        given = evaluation_data(trained)
        if trained is None or not given:
            raise UsageError(f"give the data to score it on, as in: qkv eval {model} test.tsv")
        format, chosen = format or trained.format, chosen or dict(trained.columns)
        print_notes(model, [f"scored on what its recipe holds out: {format_files(given)}"])
    loaded = load(model, device=device)
    if int8:
        loaded = loaded.quantize()
    task = find_task(loaded.config)

    def read(columns: dict[str, str]) -> Any:
        problems = Problems(max_invalid_fraction=1)
        with progress_bar("reading") as progress:
            choices = {"format": format, "split": split, "max_records": limit, "problems": problems, "progress": progress}
            return load_records(task, given, columns=columns, **choices), problems  # type: ignore[arg-type]

    try:
        records, problems = read(chosen)
    except UsageError:
        if chosen or trained is None or not trained.columns:
            raise
        records, problems = read(dict(trained.columns))
        listed = ", ".join(f"{name} = {column}" for name, column in trained.columns.items())
        print_notes(model, [f"columns as in the recipe of this run: {listed}"])
    with progress_bar("scoring") as progress:
        found = judge(
            loaded.network,
            loaded.tokenizer,
            loaded.config,
            records,
            batch_size=batch_size,
            beam=beam,
            progress=progress,
            metrics=metric or (),
            max_samples=samples,
        )
    if json:
        values: dict[str, Any] = {
            "model": model,
            "data": list(data) or [format_files(given)],
            "task": task.name,
            "main": found.main,
        }
        values |= {"metrics": found.metrics, "records": found.num_records, "beam": beam, "notes": list(found.notes)}
        values["problems"] = problems.summary().to_dict()
        shown = ("source", "written", "expected")
        values["samples"] = [{name: getattr(sample, name) for name in shown} for sample in found.samples]
        print_json(values)
        return
    if problems.kinds:
        print_notes(format_files(given), str(problems.summary()).splitlines())
    picture.print_evaluation(model, found, StdoutConsole())
