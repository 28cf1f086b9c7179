"""`qkv eval`: evaluate a model on data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from qkv.cli.data import parse_fields, parse_files
from qkv.cli.shared import (
    Int4,
    Int8,
    Json,
    StdoutConsole,
    StringList,
    app,
    check_minimum,
    print_json,
    print_notes,
    quantize_model,
    weight_precision,
)
from qkv.errors import QkvError, UsageError

if TYPE_CHECKING:
    from qkv.train.recipe.schema import DataSection, Recipe


def read_run_recipe(model: str) -> "Recipe | None":
    """Read the recipe of a run; None if the model is not the folder of a run."""
    from qkv.train.recipe.recipe_file import read as read_recipe
    from qkv.train.run.load import run_path

    path = run_path(Path(model)) / "recipe.toml"
    return read_recipe(path) if path.exists() else None


def evaluation_data(data: "DataSection") -> Any:
    """The data to evaluate on: the recipe's test files, else its validation files, else its built-in dataset."""
    from qkv.data.builtin import DATASETS

    return data.test or data.valid or (data.train if data.train in DATASETS else "")


@app.command(name="eval")
def evaluate(
    model: str,
    /,
    *data: str,
    valid: StringList = None,
    test: StringList = None,
    columns: StringList = None,
    format: str = "",
    records_key: str = "",
    split: str = "",
    metric: StringList = None,
    limit: int = 0,
    beam: int = 1,
    batch_size: int = 0,
    samples: int = 5,
    device: str = "cpu",
    int8: Int8 = False,
    int4: Int4 = False,
    compare: Annotated[bool, Parameter(name="--baseline")] = True,
    json: Json = False,
) -> None:
    """Evaluate a model on data: the metrics of its task, and examples of its predictions.

    Without data, a run is evaluated on the test files of its own recipe, else on its validation files, else on the
    fraction of the training files that it held out for validation.

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
        Files, globs or folders; field=file for each of several line-aligned files; or a built-in dataset.
    valid
        A file to evaluate on, once for each: the same as `data`, as in qkv init.
    test
        A file to evaluate on, once for each: the same as `data`, as in qkv init.
    columns
        field=column for each column to read; by default the columns are found by their names.
    format
        The format of the files; by default it follows from their extension and their first lines.
    records_key
        Where in a JSON document the list of records is.
    split
        The split of a built-in dataset: train, valid or test (the default).
    metric
        The name of a metric; may be given several times. By default all metrics of the task are computed.
    limit
        Maximum number of records; 0 for all.
    beam
        Number of beams, for models that generate text.
    batch_size
        Number of records in a batch; 0 for the default of the task.
    samples
        Number of examples to show.
    device
        Device: cpu, cuda or mps.
    int8
        Quantize the linear layers to int8, to measure the loss in quality.
    int4
        Quantize the linear layers to int4, in groups of 32 weights.
    compare
        Compare a classifier that a run has trained with a linear SVM on the same data (extra: qkv[baseline]).
    """
    from qkv.api import load
    from qkv.data import Problems
    from qkv.render.evaluation import print_evaluation
    from qkv.render.progress import progress_bar
    from qkv.tasks.evaluate import evaluate as evaluate_model
    from qkv.tasks.evaluate import find_task
    from qkv.tasks.evaluation_records import held_out_records, load_records
    from qkv.tasks.train import format_files

    run_recipe = read_run_recipe(model)
    trained = None if run_recipe is None else run_recipe.data
    check_minimum("limit", limit, 0)
    check_minimum("beam", beam, 1)
    check_minimum("batch-size", batch_size, 0)
    check_minimum("samples", samples, 0)
    sets = [files for files in (data, tuple(test or ()), tuple(valid or ())) if files]
    if len(sets) > 1:
        raise UsageError("one set of files is evaluated at a time; give files, or --test, or --valid")
    given: Any = parse_files(sets[0]) if sets else ()
    chosen = parse_fields(columns or [], "--columns", required=True)
    is_held_out = False
    if not given:
        if trained is not None:
            given = evaluation_data(trained)
            is_held_out = not given and trained.valid_fraction > 0
            given = given or (trained.train if is_held_out else "")
        if trained is None or not (given or trained.mix):
            raise UsageError(f"no evaluation data was given; for example: qkv eval {model} test.tsv")
        format, chosen = format or trained.format, chosen or dict(trained.columns)
        records_key = records_key or trained.records_key
        part = f"the {trained.valid_fraction:.0%} that the run held out of " if is_held_out else ""
        print_notes(model, [f"evaluated on the data of its recipe: {part}{format_files(given)}"])
    loaded = load(model, device=device)
    loaded = quantize_model(loaded, model, weight_precision(int8, int4))
    task = find_task(loaded.config)

    def read_records(columns: dict[str, str]) -> Any:
        problems = Problems(max_invalid_fraction=1)
        with progress_bar("reading") as progress:
            if is_held_out and run_recipe is not None:
                return held_out_records(run_recipe, limit, problems, progress), problems
            records = load_records(
                task,
                given,
                format=format,
                columns=columns,
                records_key=records_key,
                split=split,
                max_records=limit,
                problems=problems,
                progress=progress,
            )
            return records, problems

    try:
        records, problems = read_records(chosen)
    except UsageError:
        if chosen or trained is None or not trained.columns:
            raise
        records, problems = read_records(dict(trained.columns))
        listed = ", ".join(f"{name} = {column}" for name, column in trained.columns.items())
        print_notes(model, [f"columns from the recipe of this run: {listed}"])
    with progress_bar("evaluating") as progress:
        result = evaluate_model(
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
    baseline: dict[str, float] = {}
    if compare and run_recipe is not None:
        from qkv.tasks.baseline import evaluate_baseline

        try:
            baseline = evaluate_baseline(run_recipe, records, list(result.metrics))
        except QkvError as error:
            print_notes(model, [f"no baseline was trained: {error}"])
    if json:
        values: dict[str, Any] = {
            "model": model,
            "data": list(data) or [format_files(given)],
            "task": task.name,
            "main": result.main_metric,
        }
        values |= {"metrics": result.metrics, "records": result.num_records, "beam": beam, "notes": list(result.notes)}
        values |= {"signatures": dict(result.signatures), "baseline": baseline}
        values["problems"] = problems.summary().to_dict()
        shown = ("source", "prediction", "expected")
        values["samples"] = [{name: getattr(sample, name) for name in shown} for sample in result.samples]
        print_json(values)
        return
    if problems.categories:
        print_notes(format_files(given), str(problems.summary()).splitlines())
    print_evaluation(model, result, StdoutConsole(), baseline)
