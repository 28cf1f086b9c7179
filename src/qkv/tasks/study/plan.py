"""The plan of a study: a recipe, variants of it, and seeds. `study.json` holds the plan and later decisions.

runs/study/
  study.json          the plan, the budgets of the variants, the tuned values
  base.toml           the recipe, with every key
  relu-0, relu2-0     ordinary run folders: a variant and a seed
  results.json, curves.svg, study.html
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

from qkv.errors import QkvError, UsageError, shorten
from qkv.files import read_json_object, report_write_errors, write_atomically
from qkv.train.recipe import recipe_file
from qkv.train.recipe.schema import Recipe
from qkv.values import JSON, Limits, read

STUDY, BASE = "study.json", "base.toml"
VERSION = 1
MAX_VARIANTS = 64
VALUE = re.compile(r"(?:\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\"|'[^']*'|[^,])+")
EVALUATE_ALL = "train.max_eval_fraction=1"
"""An override of every run: the clock must not decide on how much data a run is evaluated."""
TUNING_SEED = 1_000_003
"""Added to the seed of the recipe: the tuning runs have a seed that does not count."""
Match = Literal["steps", "flops", "parameters", "tokens", "seconds"]


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """What is compared, and how. Only the number of seeds may change."""

    recipe: str  # as the user named it
    overrides: tuple[str, ...] = ()
    vary: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # key of the recipe → values; the first is the baseline
    seeds: Annotated[int, Limits(1, 1000)] = 3
    match: Match = "steps"
    tune: dict[str, tuple[str, ...]] = field(default_factory=dict)  # key → values; each variant gets the best one
    metric: str = "loss"
    threads: Annotated[int, Limits(1, 1024)] = 1  # CPU threads of each run; results depend on it


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One of the compared recipes, and the decisions about it."""

    name: str
    overrides: tuple[str, ...]  # of the recipe
    matched: tuple[str, ...] = ()  # more overrides, which match the budget of the baseline
    tuned: tuple[str, ...] = ()  # more overrides: the best tuned values
    parameters: int = 0  # 0: not computed yet
    flops_per_token: int | None = None  # of training
    flops_are_counted: bool = False  # by running the network, because a part does not state its cost


@dataclass(frozen=True)
class Cell:
    """One run of a study: a variant, and a seed or the values that are tried."""

    variant: str
    name: str  # of its folder
    overrides: tuple[str, ...]


class Study:
    """A study in its folder."""

    def __init__(self, folder: Path, plan: StudyPlan, variants: Sequence[Variant]) -> None:
        self.folder, self.plan = folder, plan
        self.variants = {variant.name: variant for variant in variants}

    @property
    def baseline(self) -> str:
        """The name of the variant that the others are compared with."""
        return next(iter(self.variants))

    def recipe(self, overrides: Sequence[str] = ()) -> Recipe:
        """The recipe of the study, with overrides."""
        return recipe_file.read(self.folder / BASE, overrides)

    def cells(self) -> list[Cell]:
        """The runs that count, ordered by seed, so that a stopped study has complete comparisons."""
        seed = self.recipe().train.seed
        return [
            self._cell(variant, str(number), (*variant.matched, *variant.tuned, f"train.seed={seed + number}"))
            for number in range(self.plan.seeds)
            for variant in self.variants.values()
        ]

    def tuning_cells(self) -> dict[str, list[tuple[tuple[str, ...], Cell]]]:
        """For each variant, the values to try as overrides, and their runs."""
        if not self.plan.tune:
            return {}
        seed = f"train.seed={self.recipe().train.seed + TUNING_SEED}"
        tried = combine(self.plan.tune)
        return {
            variant.name: [
                (values, self._cell(variant, f"tune-{number}", (*variant.matched, *values, seed)))
                for number, values in enumerate(tried)
            ]
            for variant in self.variants.values()
        }

    def _cell(self, variant: Variant, suffix: str, overrides: tuple[str, ...]) -> Cell:
        name = f"{variant.name}-{suffix}"
        place = (f"run={json.dumps(str(self.folder / name))}", f"train.num_threads={self.plan.threads}")
        return Cell(variant.name, name, (*variant.overrides, *overrides, *place))

    def update(self, variant: Variant) -> None:
        """Replace a variant by one with more decisions, and save the study."""
        self.variants[variant.name] = variant
        self.save()

    def save(self) -> None:
        """Write study.json."""
        values = {
            "format": "qkv study",
            "version": VERSION,
            "plan": asdict(self.plan),
            "variants": [asdict(variant) for variant in self.variants.values()],
        }
        path = self.folder / STUDY
        with report_write_errors(path):
            write_atomically(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n")


def create(folder: Path, plan: StudyPlan) -> Study:
    """Make the folder of a new study, or open the study with the same plan in it, possibly with more seeds."""
    if (folder / STUDY).exists():
        study = open_study(folder)
        if replace(study.plan, seeds=plan.seeds, threads=plan.threads) != plan:
            raise UsageError(
                f"{folder}: another study is there; continue it with qkv study {folder}, or choose another folder with "
                "--out"
            )
        return extend(study, plan.seeds)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder}: not a study, and not empty; choose another folder with --out")
    recipe_file.import_plugins_of(plan.recipe, plan.overrides)
    base = recipe_file.read(plan.recipe, [*plan.overrides, EVALUATE_ALL])
    tried = combine(plan.tune)
    variants = [Variant(name=name_variant(values), overrides=values) for values in combine(plan.vary)]
    for values in (*[variant.overrides for variant in variants], *tried):  # wrong keys are errors before anything runs
        recipe_file.read(plan.recipe, [*plan.overrides, *values])
    if len(variants) > MAX_VARIANTS:
        raise UsageError(f"--vary gives {len(variants)} variants, and a study has at most {MAX_VARIANTS}; vary less")
    if twice := {one.name for one in variants if [other.name for other in variants].count(one.name) > 1}:
        raise UsageError(f"--vary gives two variants the name {twice.pop()!r}; leave out values that occur twice")
    folder.mkdir(parents=True, exist_ok=True)
    recipe_file.write(replace(base, run=""), folder / BASE)
    study = Study(folder, plan, variants)
    study.save()
    return study


def open_study(folder: Path, *, imports_plugins: bool = True) -> Study:
    """Open the study in a folder. `imports_plugins` imports the plugins of its recipe, which are code; to read results,
    pass False.
    """
    values = read_json_object(folder / STUDY)
    try:
        if values["version"] != VERSION:
            raise QkvError(f"{folder / STUDY}: version {values['version']!r}, but this qkv reads {VERSION}; update qkv")
        plan = read(StudyPlan, values["plan"], notation=JSON)
        variants = [read(Variant, one, notation=JSON) for one in values["variants"]]
    except (KeyError, TypeError, ValueError) as error:
        raise QkvError(f"{folder / STUDY}: not a study ({shorten(str(error))}); restore the file") from error
    if imports_plugins:
        recipe_file.import_plugins_of(folder / BASE)
    return Study(folder, plan, variants)


def extend(study: Study, seeds: int) -> Study:
    """The study with this number of seeds. Existing runs are kept, even if the number of seeds is lowered."""
    if seeds and seeds != study.plan.seeds:
        study.plan = replace(study.plan, seeds=seeds)
        study.save()
    return study


def is_study(path: Path) -> bool:
    """Whether a folder contains a study."""
    return (path / STUDY).is_file()


def combine(choices: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    """Every combination of values, as overrides.

    >>> combine({"a": ["1", "2"], "b": ["3"]})
    [('a=1', 'b=3'), ('a=2', 'b=3')]
    """
    keys = [[f"{key}={value}" for value in values] for key, values in choices.items()]
    return list(product(*keys))


def name_variant(overrides: Sequence[str]) -> str:
    """Convert the name of a variant to a valid folder name.

    >>> name_variant(["model.feedforward=relu2", "train.lr=1e-3"]), name_variant(["train.betas=[0.9, 0.95]"])
    ('relu2+1e-3', '0.9_0.95')
    """
    values = (override.partition("=")[2] for override in overrides)
    named = [re.sub(r"[^\w.-]+", "_", value.strip("\"'[]{} ")).strip("_.-") for value in values]
    return "+".join(name or "empty" for name in named)


def split_choices(options: Sequence[str], option: str) -> dict[str, tuple[str, ...]]:
    """Read `key=value,value` of a command line. Commas inside brackets and quotes do not separate values.

    >>> split_choices(["train.betas=[0.9, 0.95],[0.9, 0.99]", "train.lr=1e-3,3e-3"], "--vary")
    {'train.betas': ('[0.9, 0.95]', '[0.9, 0.99]'), 'train.lr': ('1e-3', '3e-3')}
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in options:
        key, equals, listed = text.partition("=")
        values = tuple(
            value.strip() for value in re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\"|'[^']*'|[^,])+", listed)
        )
        if not equals or not values or not key.strip():
            raise UsageError(f"{option} {shorten(repr(text))}: write key=value,value, such as train.lr=1e-3,3e-3")
        found[key.strip()] = values
    return found


def is_better(metric_is_lower: bool, one: float, other: float) -> bool:
    """Whether one value is better than another. A value that is not a number is never better."""
    if not math.isfinite(one):
        return False
    return not math.isfinite(other) or (one < other if metric_is_lower else one > other)
