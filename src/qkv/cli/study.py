"""`qkv study`: compare variants of a recipe over several seeds."""

from pathlib import Path
from typing import Literal

from qkv.cli.shared import Json, StdoutConsole, StringList, check_minimum, fast_imports, print_json, print_notes
from qkv.errors import UsageError


def study(
    recipe: str,
    /,
    *overrides: str,
    vary: StringList = None,
    seeds: int = 0,
    jobs: int = 1,
    match: Literal["steps", "flops", "parameters", "tokens", "seconds"] = "steps",
    tune: StringList = None,
    metric: str = "loss",
    out: Path | None = None,
    json: Json = False,
) -> None:
    """Compare variants of a recipe over several seeds, and report which differences the numbers support.

    Each variant is trained once for each seed, in ordinary run folders inside the folder of the study. The result has
    the mean and standard deviation over seeds, the difference from the first variant with its interval, and the number
    of seeds that would settle it. A study can be stopped at any moment: name its folder to continue, or to add seeds.

    Examples:
        qkv study base.toml --vary model.feedforward=relu,swiglu --seeds 3 --match parameters
        qkv study base.toml --vary train.optimizer=adamw,muon --tune train.lr=3e-4,1e-3,3e-3
        qkv study runs/base-study --seeds 5

    Parameters
    ----------
    recipe
        A recipe file, the name of a built-in recipe, or the folder of a study.
    overrides
        Changes to the recipe for all variants: key=value.
    vary
        key=value,value: a key of the recipe and the values to compare, the baseline first. Repeat the option for
        several keys; the variants are then all combinations.
    seeds
        Number of seeds. Default: 3 for a new study; an existing study keeps its number.
    jobs
        Number of runs at the same time.
    match
        The budget that all variants share. steps: as in the recipe. flops, tokens or seconds: by changing train.steps.
        parameters: by changing model.ffn_width.
    tune
        key=value,value: values to try for each variant. The best value is chosen with an extra seed, which does not
        count in the comparison.
    metric
        The metric to compare, such as loss, bleu or accuracy.
    out
        Folder of the study. Default: runs/NAME-study.
    """
    check_minimum("seeds", seeds, 0)
    check_minimum("jobs", jobs, 1)
    with fast_imports():
        from qkv.render.progress import stages_bar
        from qkv.render.study import print_study, write_study_page
        from qkv.tasks.study import StudyPlan, create, extend, is_study, open_study, run_study
        from qkv.tasks.study.plan import split_choices
        from qkv.tasks.study.run import default_threads, write_result

    if is_study(Path(recipe)):
        if overrides or vary or tune or match != "steps" or metric != "loss" or out is not None:
            raise UsageError(f"{recipe} is a study, whose plan is fixed; only --seeds and --jobs may be given")
        planned = extend(open_study(Path(recipe)), seeds)
    else:
        if not vary:
            raise UsageError("there is nothing to compare; add --vary, such as --vary model.feedforward=relu,swiglu")
        plan = StudyPlan(
            recipe=recipe,
            overrides=overrides,
            vary=split_choices(vary, "--vary"),
            seeds=seeds or 3,
            match=match,
            tune=split_choices(tune or [], "--tune"),
            metric=metric,
            threads=default_threads(jobs),
        )
        planned = create(out or Path("runs") / f"{Path(recipe).stem}-study", plan)
    with stages_bar() as progress:
        result = run_study(planned, jobs=jobs, progress=progress)
    write_result(result, planned.folder)
    page = write_study_page(result)
    if json:
        print_json(result.to_dict())
    else:
        print_study(result, StdoutConsole(highlight=False))
        print_notes(str(page), ["the page of the study"])
