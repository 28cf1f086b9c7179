"""`qkv doctor`: does a model compute what it should, and can it learn?"""

from qkv.cli.shared import Json, StdoutConsole, print_json


def doctor(name: str, /, *overrides: str, json: Json = False) -> None:
    """Check a model or a recipe: leaks, gradients, tied weights, KV cache, tokenizer, dead neurons, learning rate.

    It trains copies of the model for a few steps, and changes no files. The exit code is 1 if a check fails.

    Examples:
        qkv doctor my.toml
        qkv doctor my.toml train.lr=1e-2
        qkv doctor runs/dates
        qkv doctor gpt2 --json

    Parameters
    ----------
    name
        A model folder, a hub id or a preset; or a recipe, to check a model with new weights.
    overrides
        Changes to the recipe as key=value, as in qkv train.
    """
    from qkv.render.doctor import print_doctor
    from qkv.render.progress import stages_bar
    from qkv.tasks.doctor import examine

    with stages_bar() as progress:
        report = examine(name, overrides, progress)
    if json:
        print_json(report.to_dict())
    else:
        print_doctor(report, StdoutConsole())
    if not report.is_healthy:
        raise SystemExit(1)
