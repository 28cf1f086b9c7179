"""Where `qkv eval` finds the records of an evaluation: files of the command line, or the recipe of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.shared import print_notes
from qkv.errors import QkvError, UsageError

if TYPE_CHECKING:
    from qkv.data import Problems, Record
    from qkv.models import Config
    from qkv.tasks.evaluation import Evaluation
    from qkv.tasks.task import Task
    from qkv.train.recipe.schema import Recipe


@dataclass(frozen=True)
class EvaluationSource:
    """Where the records of an evaluation come from: the files of the command line, or the recipe of a run."""

    model: str
    files: Any  # as `parse_files` returns them
    format: str
    columns: dict[str, str]
    records_key: str
    encoding: str
    split: str
    limit: int
    is_held_out: bool = False  # the fraction of the training files that the run held out
    recipe: "Recipe | None" = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", read_run_recipe(self.model))

    def or_from_recipe(self) -> "EvaluationSource":
        """The data of the run's recipe, if no files are given."""
        from qkv.api import load
        from qkv.data.builtin import DATASETS

        if self.files:
            return self
        data = None if self.recipe is None else self.recipe.data
        files = None
        if data is not None:  # the test files of the recipe, else its validation files, else its built-in dataset
            files = data.test or data.valid or (data.train if data.train in DATASETS else "")
        is_held_out = data is not None and not files and data.valid_fraction > 0
        if data is None or not (files or is_held_out or data.mix):
            load(self.model)  # a model that does not exist is the first mistake to report
            raise UsageError(f"no evaluation data was given; for example: qkv eval {self.model} test.tsv")
        chosen = replace(
            self,
            files=files or (data.train if is_held_out else ""),
            format=self.format or data.format,
            columns=self.columns or dict(data.columns),
            records_key=self.records_key or data.records_key,
            encoding=self.encoding or data.encoding,
            is_held_out=is_held_out,
        )
        part = f"the {data.valid_fraction:.0%} that the run held out of " if is_held_out else ""
        print_notes(self.model, [f"evaluated on the data of its recipe: {part}{chosen.describe()}"])
        return chosen

    def read(self, task: "Task", models: Sequence[str]) -> "tuple[list[Record], Problems]":
        """The records of a task, with the given columns, or the columns of the models' recipes, or guessed columns.

        The numbers of columns in a recipe are for files without a header line, so names in the file come first.
        """
        trained = {} if self.columns else find_trained_columns(models)
        numbers = {model: columns for model, columns in trained.items() if not any(map(has_letters, columns.values()))}
        if found := self._read_trained(task, {name: one for name, one in trained.items() if name not in numbers}):
            return found
        try:
            return self._read(task, guess=not trained)
        except UsageError:
            if not trained:
                raise
        return self._read_trained(task, numbers) or self._read(task)

    def _read_trained(self, task: "Task", trained: dict[str, dict[str, str]]) -> "tuple[list[Record], Problems] | None":
        """The records with the columns of the first of these models whose columns the files have."""
        for model, columns in trained.items():
            try:
                records, problems = replace(self, columns=columns)._read(task)
            except UsageError:
                continue
            listed = ", ".join(f"{name} = {column}" for name, column in columns.items())
            print_notes(model, [f"columns from the recipe of this run: {listed}"])
            return records, problems
        return None

    def _read(self, task: "Task", guess: bool = True) -> "tuple[list[Record], Problems]":
        from qkv.data import Problems
        from qkv.render.progress import progress_bar
        from qkv.tasks.evaluation_records import held_out_records, load_records

        problems = Problems(max_invalid_fraction=1)
        notes: list[str] = []
        with progress_bar("reading") as progress:
            if self.is_held_out and self.recipe is not None:
                return held_out_records(self.recipe, self.limit, problems, progress), problems
            records = load_records(
                task,
                self.files,
                format=self.format,
                columns=self.columns,
                records_key=self.records_key,
                encoding=self.encoding,
                split=self.split,
                max_records=self.limit,
                guess=guess,
                notes=notes,
                problems=problems,
                progress=progress,
            )
        print_notes(self.describe(), notes)
        return records, problems

    def evaluate_baseline(self, config: "Config", records: "list[Record]", result: "Evaluation") -> dict[str, float]:
        """The metrics of a simple classifier that is trained on the run's data; {} if there is none."""
        from qkv.tasks.baselines import evaluate_baseline
        from qkv.tasks.table import find_task

        scorer = find_task(config).make_scorer(config, records)
        if self.recipe is None or scorer is None:
            return {}
        try:
            return evaluate_baseline(scorer, self.recipe, records, list(result.metrics))
        except QkvError as error:
            print_notes(self.model, [f"no baseline was trained: {error}"])
            return {}

    def describe_use_in_training(self, model: str) -> list[str]:
        """A note if the records are not test data of a run, because it was trained or validated on them."""
        from qkv.tasks.evaluation_records import describe_use_in_training

        try:
            recipe = read_run_recipe(model)
        except QkvError:  # a recipe of another version
            return []
        if recipe is None:
            return []
        is_held_out = self.is_held_out and self.recipe is not None and recipe.data == self.recipe.data
        note = describe_use_in_training(
            recipe, self.files, format=self.format, split=self.split, is_held_out=is_held_out
        )
        return [note] if note else []

    def advise_below_baseline(self) -> str:
        """Advice if the baseline is better; "" on the training data, which the baseline has memorised."""
        from qkv.tasks.evaluation_records import find_training_files

        if self.recipe is None:
            return ""
        options = {"format": self.format, "split": self.split}
        if not self.is_held_out and find_training_files(self.recipe, self.files, **options):
            return ""
        if self.recipe.model.from_:
            return "Train longer."
        return "Train longer, or fine-tune a trained model: qkv init classify FILE --from MODEL"

    def describe(self) -> str:
        """The files, for messages."""
        from qkv.train.recipe.schema import format_files

        return format_files(self.files)


def read_run_recipe(model: str) -> "Recipe | None":
    """Read the recipe of a run; None if the model is not the folder of a run."""
    from qkv.train.checkpoint.files import run_path
    from qkv.train.recipe.recipe_file import read as read_recipe

    path = run_path(Path(model)) / "recipe.toml"
    return read_recipe(path) if path.exists() else None


def has_letters(name: str) -> bool:
    """Whether the name of a column has letters.

    >>> has_letters("title + body"), has_letters("1 + 2")
    (True, False)
    """
    return any(map(str.isalpha, name))


def find_trained_columns(models: Sequence[str]) -> dict[str, dict[str, str]]:
    """The columns that the recipes of the models choose; only runs have recipes."""
    found = {}
    for model in models:
        try:
            recipe = read_run_recipe(model)
        except QkvError:  # a recipe of another version
            continue
        if recipe is not None and recipe.data.columns:
            found[model] = dict(recipe.data.columns)
    return found
