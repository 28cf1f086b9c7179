"""`qkv eval`: evaluate a model on data, or compare several models, or the variants of a study."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qkv.cli.data import parse_files, take_columns
from qkv.cli.evaluate_search import evaluate_search
from qkv.cli.evaluation_source import EvaluationSource
from qkv.cli.shared import (
    Int4,
    Int8,
    Json,
    StdoutConsole,
    StringList,
    check_minimum,
    fast_imports,
    print_json,
    print_notes,
    quantize_model,
    weight_precision,
)
from qkv.errors import UsageError

if TYPE_CHECKING:
    from qkv.data import Problems, Record
    from qkv.models import Config
    from qkv.tasks.evaluation import Evaluation
    from qkv.tasks.metrics import Difference
    from qkv.tasks.study.plan import Study
    from qkv.tasks.task import Task

DEFAULT_SAMPLES = 5
STUDY = "study.json"
ONE_SEED = (
    "Each recipe was trained with one seed, so the intervals compare these models, not the recipes: another seed would "
    "give other models. To compare recipes, use qkv study, which trains several seeds of each."
)
SEVERAL_SEEDS = (
    "These models come from one recipe with several seeds, so their differences show how much the seed alone changes."
)


def evaluate(
    model: str,
    /,
    *data: str,
    valid: StringList = None,
    test: StringList = None,
    columns: StringList = None,
    format: str = "",
    records_key: str = "",
    encoding: str = "",
    split: str = "",
    metric: StringList = None,
    limit: int = 0,
    beam: int = 1,
    batch_size: int = 0,
    samples: int = DEFAULT_SAMPLES,
    resamples: int = 1000,
    device: str = "cpu",
    int8: Int8 = False,
    int4: Int4 = False,
    baseline: bool = True,
    json: Json = False,
) -> None:
    """Evaluate a model on data: the metrics of its task with 95 % intervals, and examples of its predictions.

    Several models (or two indexes) may be given before the data. All are evaluated, and the differences from the first
    are printed with intervals and p-values. The folder of a study stands for all of its models. Without data, a run is
    evaluated on the test files of its own recipe. If the recipe has none, its validation files are used, or the part of
    the training files that the run held out for validation.

    Examples:
        qkv eval runs/dates
        qkv eval runs/dates dates --split test
        qkv eval runs/small runs/large test.tsv
        qkv eval runs/base-study test.tsv
        qkv eval models/translator source=test.en target=test.de --beam 5 --metric bleu --metric chrf
        qkv eval models/reviews reviews.csv.gz --columns text=review label=stars --json
        qkv eval notes.index queries=queries.tsv judgements=qrels.tsv
        qkv eval old.index new.index judged.tsv --metric ndcg@5 --metric recall@20

    Parameters
    ----------
    model
        A model folder, a hub id, or a bundled model (see qkv models), with a tokenizer; or a search index, which is
        evaluated with relevance judgements.
    data
        Files, globs or folders; field=file for each of several line-aligned files; or a built-in dataset. Before
        the data, you can name the folders of more models, or of a second index.
    valid
        Evaluation file, in place of DATA. Repeat the option for several files.
    test
        Evaluation file, in place of DATA. Repeat the option for several files.
    columns
        field=column for each column to read, such as --columns source=0 target=1. In a table without a header line,
        columns are numbers from 0. Default: columns with common names, then the columns of the run's recipe, then a
        guess from their content.
    format
        Format of the files. Default: detected from the extension and the first lines.
    records_key
        Path of the list of records in a JSON document, such as data.train.
    encoding
        Encoding of text files, such as latin-1. Default: recognised.
    split
        The split of a built-in dataset: train, valid or test (the default).
    metric
        Name of a metric. Repeat the option for several metrics. Default: all metrics of the task. For an index: ndcg@k,
        map, recall@k and mrr@k, where k is a number of files, as in recall@5.
    limit
        Number of records, a random sample that is always the same; 0 for all.
    beam
        Number of beams, for models that generate text.
    batch_size
        Number of records in a batch; 0 for the default of the task.
    samples
        Number of examples to show.
    resamples
        Number of bootstrap samples for confidence intervals; 0 for no intervals.
    device
        Device: cpu, cuda or mps.
    int8
        Quantize the linear layers to int8, to measure the loss in quality.
    int4
        Quantize the linear layers to int4, in groups of 32 weights.
    baseline
        Compare a classifier that a run has trained with a linear SVM on the same data (extra: qkv[baseline]).
    """
    with fast_imports():
        from qkv.render.evaluation import print_evaluation
        from qkv.search.folder import is_index

    check_minimum("beam", beam, 1)
    for option, value in {"limit": limit, "batch-size": batch_size, "samples": samples, "resamples": resamples}.items():
        check_minimum(option, value, 0)
    if is_index(Path(model)):
        given: dict[str, object] = {"valid": valid, "test": test, "columns": columns, "format": format, "split": split}
        given |= {"records-key": records_key, "encoding": encoding, "beam": beam > 1, "batch-size": batch_size}
        given |= {"int8": int8, "int4": int4}
        given |= {"samples": samples != DEFAULT_SAMPLES, "no-baseline": not baseline}
        if unused := [f"--{name}" for name, value in given.items() if value]:
            raise UsageError(f"{model} is an index; evaluating it does not use {', '.join(unused)}; leave them out")
        return evaluate_search(
            [model, *data], metrics=metric or (), limit=limit, resamples=resamples, device=device, json=json
        )
    data, chosen_columns = take_columns(data, columns)
    models, files = split_models(model, data)
    study = find_study(models)
    if study is not None:
        models = list_study_models(study)
    sets = [chosen for chosen in (files, list(test or ()), list(valid or ())) if chosen]
    if len(sets) > 1:
        raise UsageError("one set of files is evaluated at a time; give files, or --test, or --valid")
    source = EvaluationSource(
        models[0],
        parse_files(sets[0]) if sets else (),
        format=format,
        columns=chosen_columns,
        records_key=records_key,
        encoding=encoding,
        split=split,
        limit=limit,
    ).or_from_recipe()
    options = {"batch_size": batch_size, "metrics": metric or (), "max_samples": samples, "resamples": resamples}
    evaluated = evaluate_models(models, source, options, beam, device, weight_precision(int8, int4))
    results, problems = evaluated.results, evaluated.problems
    described = {"data": sets[0] if sets else [source.describe()], "task": evaluated.task.name, "beam": beam}
    described |= {"main": results[0].main_metric, "resamples": resamples, "problems": problems.summary().to_dict()}
    if problems.categories and not json:
        print_notes(source.describe(), str(problems.summary()).splitlines())
    if study is not None:
        return compare_variants(study, models, results, described, json)
    if len(models) > 1:
        return compare_results(models, results, described, json)
    scores = source.evaluate_baseline(evaluated.config, evaluated.records, results[0]) if baseline else {}
    if json:
        print_json(to_json(model, results[0]) | described | {"baseline": scores})
    else:
        print_evaluation(model, results[0], StdoutConsole(), scores, source.advise_below_baseline() if scores else "")


@dataclass
class EvaluatedModels:
    """The evaluations of models of the same task, and a description of the records."""

    task: "Task"
    config: "Config"  # of the first model
    records: "list[Record]"
    problems: "Problems"
    results: "list[Evaluation]"


def evaluate_models(
    models: Sequence[str],
    source: EvaluationSource,
    options: dict[str, Any],
    beam: int,
    device: str,
    precision: Literal["int8", "int4"] | None,
) -> EvaluatedModels:
    """Evaluate each model on the same records, which are read for the task of the first one."""
    from qkv.api import load
    from qkv.render.progress import progress_bar
    from qkv.tasks.evaluate import evaluate as evaluate_model
    from qkv.tasks.evaluate import has_option
    from qkv.tasks.table import find_task

    done: EvaluatedModels | None = None
    for name in models:
        loaded = quantize_model(load(name, device=device), name, precision)
        task = find_task(loaded.config)
        if done is None:
            done = EvaluatedModels(task, loaded.config, *source.read(task, models), [])
        elif task.name != done.task.name:
            raise UsageError(
                f"{models[0]} {done.task.description}, but {name} {task.description}; compare models of the same task"
            )
        if has_option(task, "beam"):
            options = {**options, "beam": beam}
        try:
            with progress_bar("evaluating") as progress:
                parts = (loaded.network, loaded.tokenizer, loaded.config)
                result = evaluate_model(*parts, done.records, **options, progress=progress)
        except UsageError as error:
            raise UsageError(f"{name}: {error}" if len(models) > 1 else str(error)) from error
        done.results.append(replace(result, notes=(*source.describe_use_in_training(name), *result.notes)))
    assert done is not None
    return done


def compare_results(
    models: Sequence[str], results: "Sequence[Evaluation]", described: dict[str, Any], json: bool
) -> None:
    """Print the results of several models, and the differences from the first. `described` has their common fields."""
    from qkv.render.evaluation import print_comparison

    first, *others = results
    differences = [first.compare(other, described["resamples"]) for other in others]
    for name, found in zip(models[1:], differences, strict=True):
        if described["resamples"] and not found:
            print_notes(name, [f"not compared with {models[0]}: the models did not use the same records"])
    note = describe_seeds([Path(name) / "recipe.toml" for name in models])
    if json:
        each = [to_json(name, result) for name, result in zip(models, results, strict=True)]
        compared = [
            {"model": name, "differences": differences_to_json(found)}
            for name, found in zip(models[1:], differences, strict=True)
        ]
        both = {"differences": compared[0]["differences"]} if len(models) == 2 else {"comparisons": compared}
        print_json(described | {"models": each, "note": note} | both)
    else:
        print_comparison(models, results, differences, StdoutConsole(), note)


def describe_seeds(recipes: Sequence[Path]) -> str:
    """What a comparison of runs says: of recipes with one seed each, or of one recipe with several seeds."""
    import tomllib

    if not all(path.is_file() for path in recipes):
        return ""
    tables = [tomllib.loads(path.read_text(encoding="utf-8")) for path in recipes]
    for table in tables:
        table.pop("run", None)
        table.get("train", {}).pop("seed", None)
    return SEVERAL_SEEDS if all(table == tables[0] for table in tables) else ONE_SEED


def find_study(models: Sequence[str]) -> "Study | None":
    """The study that a command line names, if it names one."""
    found = [name for name in models if (Path(name) / STUDY).is_file()]
    if not found:
        return None
    if len(models) > 1:
        raise UsageError(f"{found[0]} is a study: evaluate it alone, because its first variant is the baseline")
    from qkv.tasks.study import open_study

    return open_study(Path(found[0]), imports_plugins=False)


def list_study_models(study: "Study") -> list[str]:
    """The folders of the finished runs of a study, seed by seed."""
    models = [str(study.folder / cell.name) for cell in study.cells()]
    if unfinished := [name for name in models if not (Path(name) / "config.json").is_file()]:
        raise UsageError(f"{unfinished[0]} is not finished; finish the study first: qkv study {study.folder}")
    return models


def compare_variants(
    study: "Study", models: Sequence[str], results: "Sequence[Evaluation]", described: dict[str, Any], json: bool
) -> None:
    """Print the scores of the variants of a study over its seeds, and the paired differences from the baseline."""
    from qkv.render.study import print_variants
    from qkv.tasks.study.result import compare_scores

    variants = [cell.variant for cell in study.cells()]
    compared = compare_scores(
        [(variant, result.metrics) for variant, result in zip(variants, results, strict=True)], described["main"]
    )
    if json:
        each = [to_json(name, result) for name, result in zip(models, results, strict=True)]
        print_json(described | {"models": each, "variants": [asdict(one) for one in compared]})
    else:
        print_variants(compared, described["main"], results[0].num_records, StdoutConsole())


def split_models(model: str, data: Sequence[str]) -> tuple[list[str], list[str]]:
    """The models and the data of a command line: the folders of more models may precede the data."""
    from qkv.store.hub import find_bundled
    from qkv.train.checkpoint.files import is_checkpoint
    from qkv.train.run.folder import RunFolder

    def is_model(name: str) -> bool:
        path = Path(name)
        is_folder = (path / "config.json").is_file() or RunFolder(path).is_run or is_checkpoint(path)
        is_folder = is_folder or (path / STUDY).is_file()
        return is_folder or (path.suffix == ".gguf" and path.is_file()) or find_bundled(name) is not None

    names = list(takewhile(is_model, data))
    return [model, *names], list(data[len(names) :])


def to_json(model: str, result: "Evaluation") -> dict[str, Any]:
    """The JSON values of an evaluation."""
    shown = ("source", "prediction", "expected")
    return {
        "model": model,
        "metrics": result.metrics,
        "intervals": dict(result.intervals),
        "records": result.num_records,
        "signatures": dict(result.signatures),
        "report": None if result.report is None else result.report.to_dict(),
        "notes": list(result.notes),
        "samples": [{name: getattr(sample, name) for name in shown} for sample in result.samples],
    }


def differences_to_json(differences: "dict[str, Difference]") -> dict[str, Any]:
    """The JSON values of a comparison: the second model's score minus the first's."""
    return {name: asdict(one) for name, one in differences.items()}
