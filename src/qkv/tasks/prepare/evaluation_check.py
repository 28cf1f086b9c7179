"""Whether a run can be judged as its recipe asks: a metric or beam that cannot be is refused before the first step."""

from collections.abc import Sequence

from qkv.data import Record
from qkv.errors import UsageError, suggest_name
from qkv.models import Config
from qkv.tasks.evaluate import available_metrics
from qkv.tasks.run.text_to_text import RECORD_METRICS
from qkv.train.recipe.schema import Recipe


def check_evaluation(recipe: Recipe, config: Config, records: Sequence[Record]) -> None:
    """Raise where `train.metric` or `train.eval_beam` is nothing that held-out records could be judged by."""
    asked, kind = recipe.train.metric, recipe.objective.kind
    if asked not in ("", "loss"):
        known = available_metrics(config, records)
        if not recipe.train.eval_examples:
            raise UsageError(
                f"train.metric = {asked!r} is worked out on held-out records, and train.eval_examples = 0 takes none: "
                'raise it, or write train.metric = "loss"'
            )
        if not known:
            raise UsageError(
                f"train.metric = {asked!r} cannot be worked out: {kind} is judged by its loss alone; leave it out"
            )
        if asked not in known:
            raise UsageError(
                f"train.metric = {asked!r} is nothing that {kind} is judged by; {suggest_name(asked, {*known, 'loss'})}"
            )
        if asked in RECORD_METRICS:
            RECORD_METRICS[asked](["a"], [["a"]])  # one of a library's says here that it is not installed
    beam = recipe.train.eval_beam
    if beam > 1 and kind != "seq2seq":
        raise UsageError(f"train.eval_beam = {beam} means nothing for {kind}: evaluation writes no texts; leave it out")
    if beam > config.stack.vocab_size:
        raise UsageError(
            f"train.eval_beam = {beam} is wider than the vocabulary of {config.stack.vocab_size:,}: lower it"
        )
