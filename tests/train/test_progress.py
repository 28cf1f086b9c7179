"""The progress of a run, its budget in steps, minutes or epochs, and when an evaluation is due."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_data import OBJECTIVES

from qkv.data.load.loader import Loader
from qkv.data.stream.sequences import SequenceStream
from qkv.errors import QkvError
from qkv.train.optim.schedule import lr_at
from qkv.train.progress import DEFAULT_EVALUATIONS, Budget, Progress, is_better, is_due
from qkv.train.recipe.schema import TrainSection


def rows_of(layout: str = "packed", window: int | None = None) -> SequenceStream:
    objective = OBJECTIVES["next token"]()
    return SequenceStream(objective, batch_tokens=4 * objective.max_lengths[0], seed=1, layout=layout, pool_size=window)


def test_progress_goes_through_json_and_back() -> None:
    one = Progress(
        step=3,
        tokens=70,
        seconds=1.5,
        loss_sum=0.1 + 0.2,
        best_value=0.3,
        best_step=2,
        evals_since_best=1,
        pending_eval=True,
    )
    assert Progress.from_dict(asdict(one)) == one


def test_progress_of_another_version_is_not_guessed_at() -> None:
    with pytest.raises(QkvError, match="another version of qkv"):
        Progress.from_dict({"step": 3})


def test_the_budget_that_is_spent_first_counts() -> None:
    budget = Budget.from_section(TrainSection(steps=100, minutes=1.0), rows_of())
    assert budget.fraction_done(50, 6.0) == 0.5
    assert budget.fraction_done(10, 45.0) == 0.75
    assert budget.fraction_done(500, 45.0) == 1.0
    assert (budget.reason(100, 45.0), budget.reason(99, 61.0)) == ("steps", "minutes")
    budget = Budget.from_section(TrainSection(minutes=1.0, cpu_minutes=0.5), rows_of())
    assert budget.fraction_done(50, 6.0, cpu_seconds=15.0) == 0.5
    assert budget.reason(50, 20.0, cpu_seconds=31.0) == "cpu_minutes"


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("window", [None, 7], ids=["one window", "many windows"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_the_share_of_epochs_grows_with_every_step_and_ends_with_the_last(
    layout: str, window: int | None, epochs: int
) -> None:
    """The fraction grows within an epoch, also for little data, because the learning rate follows it."""
    rows = rows_of(layout, window)
    budget = Budget.from_section(TrainSection(epochs=epochs), rows)
    loader = Loader(rows, epochs=epochs)
    shares = [budget.fraction_done(0, 0.0, loader.cursor) for _ in loader]
    assert len(shares) > 3
    assert shares == sorted(set(shares))
    assert shares[-1] == 1.0
    assert shares[0] < 2 / len(shares) + 0.1
    assert budget.reason(0, 0.0) == "epochs"


def test_an_epoch_of_a_small_corpus_has_a_whole_schedule() -> None:
    rows = rows_of()
    section = TrainSection(epochs=1, schedule="linear", warmup=0.2, lr=1.0)
    budget, loader = Budget.from_section(section, rows), Loader(rows, epochs=1)
    assert rows.order.num_pools(1) == 1
    rates, done = [], 0.0
    for step, _ in enumerate(loader):
        rates.append(lr_at(section, step, done))
        done = budget.fraction_done(step + 1, 0.0, loader.cursor)
    assert max(rates) > 0.7
    assert rates[-1] < 0.4


@given(st.integers(1, 200))
def test_without_a_cadence_something_is_due_ten_times_in_the_budget(steps: int) -> None:
    budget = Budget.from_section(TrainSection(steps=steps), rows_of())
    shares = [budget.fraction_done(step, 0.0) for step in range(steps + 1)]
    times = sum(is_due(0, step, shares[step - 1], shares[step]) for step in range(1, steps + 1))
    assert times == min(steps, DEFAULT_EVALUATIONS)


@given(st.integers(1, 9), st.integers(1, 50))
def test_with_a_cadence_it_is_due_every_so_many_steps(every: int, step: int) -> None:
    assert is_due(every, step, 0.0, 1.0) == (step % every == 0)


def test_which_of_two_values_is_better() -> None:
    assert is_better("loss", 1.0, 2.0)
    assert not is_better("loss", 2.0, 2.0)
    assert is_better("bleu", 3.0, 2.0)
    assert is_better("bleu", 0.0, None)
    assert not is_better("loss", float("nan"), None), "what is not a number is never the best"
    assert not is_better("loss", float("nan"), 2.0)
