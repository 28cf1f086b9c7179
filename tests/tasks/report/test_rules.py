"""Rules that a short training cannot plant: on a run with the fault, and on the same run without it."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.inside.doctor import Finding
from qkv.tasks.baselines import BASELINE_NAME
from qkv.tasks.report.advice import give_advice
from qkv.tasks.report.curve_verdict import CurveVerdict
from qkv.tasks.report.data import RecordCounts
from qkv.tasks.report.diagnostics import Advice, RunDiagnostics
from qkv.tasks.report.leakage import Leak, LeakageReport
from qkv.tasks.report.learning_curve import Gain, LearningCurve
from qkv.tasks.report.score import Measured, ScoreReport
from qkv.train.recipe.schema import DataSection, ModelSection, ObjectiveSection, Recipe, TrainSection

SETTLED = CurveVerdict(
    "settled", "the training loss fell from 2 to 1, and the validation loss settled at 1.1", steps=100
)
IMPROVING = CurveVerdict(
    "improving", "the validation loss still fell by 20 % in the last quarter of the training, to 1", steps=100
)
DATA = RecordCounts(900, 9000, 0, 0, 0, 0, 64, 32)
RECIPE = Recipe(
    data=DataSection(train="train.tsv", test="test.tsv", columns={"text": "review"}),
    objective=ObjectiveSection(kind="classification"),
    train=TrainSection(steps=100, epochs=3),
)


def make_run(**changes: Any) -> RunDiagnostics:
    """A healthy classifier, with changes."""
    config = qkv.new("bert-tiny").config
    score = ScoreReport(
        "accuracy",
        Measured("model", 0.85, (0.82, 0.88)),
        (Measured("TF-IDF + linear SVM", 0.8),),
        Measured("training", 0.9),
        500,
        500,
    )
    return replace(
        RunDiagnostics(folder="runs/a", recipe=RECIPE, config=config, curve_verdict=SETTLED, score=score, data=DATA),
        **changes,
    )


def with_scores(model: float, baseline: float, training: float, metric: str = "accuracy") -> ScoreReport:
    own = Measured("model", model, (model - 0.03, model + 0.03))
    return ScoreReport(metric, own, (Measured("baseline", baseline),), Measured("training", training), 500, 500)


def names(**changes: Any) -> list[str]:
    return [advice.name for advice in give_advice(make_run(**changes))]


def test_a_healthy_run_gets_no_advice() -> None:
    assert names() == []


def test_a_model_that_cannot_fit_its_training_data_is_too_small() -> None:
    assert names(score=with_scores(0.58, 0.9, 0.6)) == ["pretrained", "too_small"]
    assert "too_small" not in names(score=with_scores(0.58, 0.9, 0.99)), "it fits its training data"
    assert "too_small" not in names(score=with_scores(0.58, 0.9, 0.6), data=replace(DATA, truncated=1))
    much = replace(DATA, tokens=100 * RECIPE.train.batch_tokens)
    for steps, is_advised in ((50, False), (300, True)):  # half an epoch, three epochs
        found = names(score=with_scores(0.58, 0.9, 0.6), curve_verdict=replace(SETTLED, steps=steps), data=much)
        assert ("too_small" in found) == is_advised
    (_, advice) = give_advice(make_run(score=with_scores(0.58, 0.9, 0.6)))
    assert advice.overrides == ("model.width=256", "model.layers=4")
    assert advice.command == "qkv train runs/a/recipe.toml run=runs/a-3 model.width=256 model.layers=4"


OVERFITTED = CurveVerdict(
    "overfitted", "the validation loss was lowest at step 10 of 100 (1) and rose to 2, while it fell", steps=100
)


@pytest.mark.parametrize(
    ("dropout", "final", "layers", "title", "overrides"),
    [
        (0.1, "last", 2, "Keep the best checkpoint, and use more dropout", ("train.final=best", "model.dropout=0.2")),
        (0.4, "best", 2, "Use more dropout", ("model.dropout=0.5",)),
        (0.45, "best", 2, "Use more dropout", ("model.dropout=0.5",)),
        (0.5, "best", 4, "Use a smaller model", ("model.layers=2",)),
        (0.5, "last", 1, "Keep the best checkpoint", ("train.final=best",)),
        (0.5, "best", 1, "Add training data: the recipe already limits overfitting", ()),
    ],
)
def test_overfitting_changes_only_what_is_left_to_change(
    dropout: float, final: Any, layers: int, title: str, overrides: tuple[str, ...]
) -> None:
    config = qkv.new("bert-tiny").config
    assert config.encoder is not None
    stack = replace(config.encoder, dropout=dropout, layers=layers, num_layer_groups=layers)
    config = replace(config, encoder=stack)
    for patience in (0, 5):
        recipe = replace(RECIPE, train=TrainSection(steps=100, final=final, patience=patience))
        (advice,) = give_advice(make_run(curve_verdict=OVERFITTED, config=config, recipe=recipe))
        assert advice.title == title
        early = ("train.patience=3",) if overrides and not patience else ()
        assert advice.overrides == (*overrides, *early)


def test_every_command_trains_a_run_of_its_own(tmp_path: Path) -> None:
    run = str(tmp_path / "my run")
    for taken in ("my run-2", "my run-4.toml"):
        (tmp_path / taken).mkdir()
    wide = with_scores(0.58, 0.4, 0.99)
    wide = replace(wide, model=Measured("model", 0.58, (0.5, 0.66)))
    recipe = replace(RECIPE, data=replace(RECIPE.data, valid_fraction=0.1))
    given = give_advice(make_run(folder=run, new_run="", curve_verdict=OVERFITTED, score=wide, recipe=recipe))
    assert [advice.name for advice in given] == ["pretrained", "overfitting", "few_records"]
    runs = [word for advice in given for word in shlex.split(advice.command) if word.startswith("run=")]
    assert runs == [f"run={run}-{number}" for number in (3, 5, 6)]
    assert f"--out '{run}-3.toml' && qkv train '{run}-3.toml' 'run={run}-3'" in given[0].command


def test_bleu_is_compared_as_points() -> None:
    """BLEU is between 0 and 100, and other metrics are between 0 and 1."""
    translator = replace(RECIPE, objective=ObjectiveSection(kind="seq2seq"))

    def advise(model: float, baseline: float, training: float) -> list[str]:
        return names(score=with_scores(model, baseline, training, "bleu"), recipe=translator)

    assert advise(20.0, 50.0, 25.0) == ["too_small"]
    assert advise(20.0, 50.0, 95.0) == ["baseline"]
    perfect = with_scores(99.0, 50.0, 99.9, "bleu")
    assert names(score=perfect, recipe=translator, curve_verdict=IMPROVING) == [], "nearly perfect"


def test_a_model_that_is_no_better_than_a_baseline_on_all_data_trains_longer() -> None:
    translator = replace(RECIPE, objective=ObjectiveSection(kind="seq2seq"))
    for verdict in (SETTLED, CurveVerdict("unknown", "too few steps were logged to judge the training", steps=100)):
        score = with_scores(67.1, 66.9, 67.1, "bleu")
        (advice,) = give_advice(make_run(score=score, recipe=translator, curve_verdict=verdict))
        assert (advice.name, advice.overrides) == ("underfitting", ("train.steps=200", "train.epochs=6"))
        assert advice.reason == (
            "BLEU is 67.1, about the same on the training data (67.1), and the baseline (baseline) reaches 66.9."
        )
    for model, baseline, training in ((67.1, 40.0, 67.1), (67.1, 66.9, 99.0)):
        assert names(score=with_scores(model, baseline, training, "bleu"), recipe=translator) == []
    assert names(score=with_scores(0.0, 0.0, 0.0, "exact_match"), recipe=translator) == ["underfitting"]


def test_a_model_whose_loss_rose_but_whose_metric_did_not_fall_is_not_regularised() -> None:
    """Exact match is 0 on all data: the model has learned too little, whatever the loss does."""
    curve = [(10.0, 0.0), (20.0, 0.0)]
    score = with_scores(0.0, 0.0, 0.0, "exact_match")
    assert names(score=score, curve_verdict=OVERFITTED, metric_curve=curve) == ["underfitting"]
    falling = [(10.0, 0.5), (20.0, 0.0)]
    assert names(score=score, curve_verdict=OVERFITTED, metric_curve=falling) == ["overfitting"], "not both"


def test_a_metric_that_still_rises_asks_for_a_longer_run() -> None:
    (advice,) = give_advice(make_run(late_metric_gain=0.05))
    assert (advice.name, advice.reason) == (
        "underfitting",
        "Accuracy still rose by 5 points in the last quarter of the training.",
    )
    assert names(late_metric_gain=0.025) == [], "the interval of the score is ±3 points"
    assert names(late_metric_gain=0.05, score=with_scores(0.85, 0.8, 0.99)) == ["pretrained"], "it memorises"


def leaks(near: int, exact: int, total: int) -> LeakageReport:
    found = [1.0] * exact + [0.95] * near
    listed = {i: Leak(f"v:{i}", f"t:{i}", "a", "b", similarity) for i, similarity in enumerate(found)}
    return LeakageReport(total, 900, True, listed)


def test_at_most_half_of_the_evaluation_data_is_to_be_removed() -> None:
    (advice,) = give_advice(make_run(leakage=leaks(40, 0, 100)))
    assert advice.title == "Remove the leaked records from the training data or from the evaluation data"
    assert advice.command == "qkv report runs/a --json"
    for valid in ("", "valid.tsv"):
        recipe = replace(RECIPE, data=replace(RECIPE.data, valid=valid))
        (advice,) = give_advice(make_run(leakage=leaks(100, 0, 100), recipe=recipe))
        assert (advice.title, advice.command) == ("Evaluate on texts that differ from the training data", "")
        assert "The texts look alike, as if made from a template" in advice.reason
    (advice,) = give_advice(make_run(leakage=leaks(0, 100, 100), recipe=recipe))
    assert advice.overrides == ("data.valid=", "data.valid_fraction=0.1")


def test_leaks_that_change_nothing_need_no_work() -> None:
    found = {"leakage": leaks(0, 9, 100), "test_leakage": leaks(0, 9, 100)}
    assert names(**found) == ["leakage", "test_leakage"]
    value = make_run().score.model.value  # type: ignore[union-attr]
    assert names(**found, score_without_leaks=value - 0.02) == ["leakage", "test_leakage"]
    assert names(**found, score_without_leaks=value - 0.002) == ["leakage"], "an official test split stays as it is"


def test_a_new_model_that_is_near_its_baseline_should_be_fine_tuned() -> None:
    near, clear = with_scores(0.901, 0.895, 0.92), with_scores(0.9, 0.8, 0.92)
    near, clear = (replace(one, baselines=(replace(one.baselines[0], name=BASELINE_NAME),)) for one in (near, clear))
    assert names(score=near) == ["pretrained"]
    assert names(score=clear) == []
    base = replace(RECIPE, model=ModelSection(from_="a"))
    assert "pretrained" not in names(score=near, recipe=base), "it was"


def test_a_run_that_has_not_finished_is_resumed_before_it_is_compared_or_trained_longer() -> None:
    for changes in ({"curve_verdict": IMPROVING}, {"score": with_scores(0.58, 0.9, 0.6)}, {"full_epochs": 0}):
        (advice,) = give_advice(make_run(is_finished=False, **changes))
        assert (advice.name, advice.command, advice.starts_run) == ("unfinished", "qkv train runs/a", False)
        assert advice.reason == (
            "The run has not finished: its log ends at step 100, and its budget is train.steps=100, train.epochs=3."
        )
    language = replace(RECIPE, objective=ObjectiveSection(kind="causal_lm"))
    assert names(score=with_scores(4.0, 3.0, 4.0, "loss"), recipe=language, is_finished=False) == ["unfinished"]
    diverged = CurveVerdict("diverged", "the training loss fell from 2 to 1, but ended at 3", steps=100)
    assert names(curve_verdict=diverged, is_finished=False) == ["lr_too_high"], "the rest would not help"


def test_a_generator_below_its_baseline_trains_longer() -> None:
    translator = replace(RECIPE, objective=ObjectiveSection(kind="seq2seq"))
    score = with_scores(0.5, 0.9, 0.95)
    (advice,) = give_advice(make_run(score=score, recipe=translator))
    assert (advice.name, advice.overrides) == ("baseline", ("train.steps=200", "train.epochs=6"))
    assert names(score=score, recipe=translator, curve_verdict=IMPROVING) == ["underfitting"], "not said twice"


def test_a_quick_report_on_a_model_that_has_not_learned_points_to_the_full_one() -> None:
    (advice,) = give_advice(make_run(most_common_output_fraction=0.94, score=with_scores(0.0, 0.4, 0.0)))
    assert (advice.name, advice.command) == ("not_learned", "qkv report runs/a")
    assert advice.reason == "The model predicts the same for 94 % of the records."
    assert (
        names(most_common_output_fraction=0.94, score=with_scores(0.0, 0.4, 0.0), curve_verdict=IMPROVING)[0]
        == "underfitting"
    )


def test_a_run_that_read_few_of_its_records_gets_the_budget_to_read_them_twice() -> None:
    def advise(steps: int, kind: str = "classification", **changes: Any) -> Advice:
        data = replace(DATA, tokens=1000 * RECIPE.train.batch_tokens)
        recipe = replace(RECIPE, objective=ObjectiveSection(kind=kind), train=TrainSection(steps=steps))
        (advice,) = give_advice(
            make_run(curve_verdict=replace(IMPROVING, steps=steps), data=data, recipe=recipe, **changes)
        )
        return advice

    assert advise(250).overrides == ("train.steps=2000",)
    assert "The run has read about 25 % of its training data." in advise(250).reason
    assert advise(20).overrides == ("train.steps=200",), "at most ten times"
    assert advise(3000).overrides == ("train.steps=6000",)
    assert "read" not in advise(3000).reason
    assert advise(250, kind="causal_lm", score=None).overrides == ("train.steps=500",), "no records"


def test_a_run_that_has_not_read_its_data_once_trains_longer_unless_it_is_nearly_perfect() -> None:
    """It cannot have memorised what it has not read."""
    for score in (with_scores(0.85, 0.8, 0.9), with_scores(0.58, 0.4, 0.69), None):
        (advice,) = give_advice(make_run(score=score, full_epochs=0))
        assert advice.name == "underfitting"
        assert advice.reason == (
            "The training loss fell from 2 to 1, and the validation loss settled at 1.1. The run ended before it had "
            "read its training data once."
        )
    assert names(score=with_scores(0.58, 0.4, 0.69), full_epochs=1) == ["pretrained"], "it memorises"
    assert names(score=with_scores(0.99, 0.8, 0.99), full_epochs=0) == []


def test_a_run_with_hardly_any_steps_trains_longer() -> None:
    """A fine-tuned model for chats, which has no baseline."""
    chat = replace(RECIPE, objective=ObjectiveSection(kind="causal_lm"), model=ModelSection(from_="models/lm"))
    score = ScoreReport("loss", Measured("model", 1.17), (), None, 32, 32)
    for steps, overrides in ((2, ("train.steps=1000", "train.epochs=30")), (9, ("train.steps=300", "train.epochs=9"))):
        (advice,) = give_advice(make_run(recipe=chat, score=score, curve_verdict=replace(SETTLED, steps=steps)))
        assert (advice.name, advice.reason) == ("underfitting", f"The run took only {steps} steps.")
        assert advice.overrides == overrides
    (advice,) = give_advice(make_run(recipe=chat, score=score, curve_verdict=replace(SETTLED, steps=2), full_epochs=0))
    assert advice.reason.startswith("The run took only 2 steps. The run ended before it had read")
    assert names(recipe=chat, score=score, curve_verdict=replace(SETTLED, steps=20)) == []
    memorised = with_scores(0.58, 0.4, 0.99)
    assert names(score=memorised, curve_verdict=replace(SETTLED, steps=10)) == ["pretrained"], (
        "more steps would not help"
    )


def test_a_few_steps_of_the_first_epoch_are_too_few_to_blame_the_learning_rate() -> None:
    unknown = CurveVerdict("unknown", "too few steps were logged to judge the training", steps=100)
    score = with_scores(0.0, 0.4, 0.0)
    assert (
        names(curve_verdict=unknown, most_common_output_fraction=0.94, score=score, full_epochs=0)[0] == "underfitting"
    )
    assert names(curve_verdict=unknown, most_common_output_fraction=0.94, score=score, full_epochs=1) == ["not_learned"]


def test_a_lower_loss_is_better() -> None:
    language = replace(RECIPE, objective=ObjectiveSection(kind="causal_lm"))
    assert names(score=with_scores(4.0, 3.0, 4.0, "loss"), recipe=language) == ["baseline"]
    assert names(score=with_scores(2.0, 3.0, 2.0, "loss"), recipe=language) == []


@pytest.mark.parametrize(
    ("metric", "model", "baseline", "advised"),
    [
        ("masked_accuracy", 0.097, 0.096, True),
        ("masked_accuracy", 0.35, 0.096, False),
        ("loss", 5.02, 5.05, True),
        ("loss", 3.0, 5.05, False),
        ("accuracy", 0.81, 0.80, False),  # other tasks are judged by the score on their training data
    ],
)
def test_a_language_model_must_be_better_than_token_frequencies(
    metric: str, model: float, baseline: float, advised: bool
) -> None:
    """Language models are not evaluated on their training data."""
    recipe = replace(
        RECIPE, objective=ObjectiveSection(kind="masked_lm" if metric == "masked_accuracy" else "causal_lm")
    )
    score = replace(with_scores(model, baseline, 0.0, metric), training=None)
    found = give_advice(make_run(score=score, recipe=recipe))
    assert [(one.name, one.title) for one in found] == [
        ("baseline", "Train longer: the model is not better than a simple baseline")
    ] * advised


@pytest.mark.parametrize(("loss", "epochs", "advised"), [(5.67, 1, True), (5.67, 20, False), (4.9, 1, False)])
def test_a_language_model_near_the_unigram_model_trains_longer(loss: float, epochs: int, advised: bool) -> None:
    recipe = replace(RECIPE, objective=ObjectiveSection(kind="causal_lm"))
    score = ScoreReport("loss", Measured("model", loss), (Measured("unigram model", 6.05),), None, 57, 57)
    found = give_advice(make_run(score=score, recipe=recipe, full_epochs=epochs))
    assert [one.name for one in found] == ["underfitting"] * advised
    if found:
        assert found[0].reason == (
            "The baseline (unigram model) reaches 6.050, the model 5.670. The model has learned little more than the "
            "frequencies of tokens."
        )


def test_a_language_model_at_its_baseline_gets_the_learning_rate_that_was_faster_in_the_test() -> None:
    score = replace(with_scores(0.097, 0.096, 0.0, "masked_accuracy"), training=None)
    recipe = replace(RECIPE, objective=ObjectiveSection(kind="masked_lm"))
    losses = {str(RECIPE.train.lr): 5.0, str(10 * RECIPE.train.lr): 3.0}
    check = Finding("warning", "", values={"losses": losses})
    (advice,) = give_advice(make_run(score=score, recipe=recipe, lr_check=check))
    assert advice.overrides == (f"train.lr={10 * RECIPE.train.lr:.3g}",)
    assert advice.title.endswith("not better than a simple baseline")


def test_the_commands_for_a_pretrained_model_name_the_data() -> None:
    (advice,) = give_advice(make_run(score=with_scores(0.7, 0.9, 0.99)))
    assert advice.command == (
        "qkv init classify train.tsv --test test.tsv --columns text=review "
        "--from sentence-transformers/all-MiniLM-L6-v2 --out runs/a-2.toml && qkv train runs/a-2.toml run=runs/a-2"
    )
    fine_tuned = replace(RECIPE, model=ModelSection(from_="models/bert"))
    assert names(score=with_scores(0.7, 0.9, 0.99), recipe=fine_tuned) == ["baseline"]


def test_a_model_that_knows_its_training_data_by_heart_needs_pretrained_weights() -> None:
    assert names(score=with_scores(0.58, 0.4, 0.69)) == ["pretrained"]
    assert names(score=with_scores(0.58, 0.4, 0.62)) == []
    assert names(score=with_scores(0.58, 0.4, 0.69), curve_verdict=IMPROVING) == ["underfitting"], "first train longer"
    fine_tuned = replace(RECIPE, model=ModelSection(from_="models/bert"))
    assert names(score=with_scores(0.58, 0.4, 0.69), recipe=fine_tuned) == []


def test_a_slow_run_whose_learning_rate_is_right_trains_longer() -> None:
    stalled = CurveVerdict("stalled", "the training loss hardly fell: 0.69 at the start, 0.66 at the end")
    passed = Finding("ok", "")
    assert names(curve_verdict=stalled, lr_check=passed) == ["underfitting"]
    assert names(curve_verdict=stalled) == ["not_learned"], "it was not tested, so it may be too high or too low"
    slow = Finding("warning", "", values={"losses": {"1e-5": 0.69, "0.001": 0.68}})
    assert names(curve_verdict=stalled, lr_check=slow) == ["underfitting"], "no other learning rate was faster"
    losses = {"1e-5": 0.6, "0.001": 0.69, "0.01": float("nan")}
    warned = Finding("warning", "", values={"losses": losses})
    assert names(curve_verdict=stalled, lr_check=warned) == ["lr_too_high"]


def test_a_stalled_loss_is_no_fault_if_the_score_shows_that_the_model_has_learned() -> None:
    stalled = CurveVerdict("stalled", "the training loss hardly fell: 2.1 at the start, 2 at the end", steps=100)
    fine_tuned = replace(RECIPE, model=ModelSection(from_="models/bert"))
    assert names(curve_verdict=stalled, recipe=fine_tuned) == []
    assert names(curve_verdict=stalled, recipe=fine_tuned, score=with_scores(0.81, 0.8, 0.9)) == ["not_learned"], (
        "at the baseline"
    )
    chats = ScoreReport("loss", Measured("model", 2.0), (), None, 32, 32)
    assert names(curve_verdict=stalled, recipe=fine_tuned, score=chats) == [], "the loss was low at the start"
    assert names(curve_verdict=stalled, score=chats) == ["not_learned"]
    assert names(curve_verdict=stalled) == ["not_learned"], (
        "a new model may be above the baseline and far below its best"
    )
    for metric_curve, found in (([(10.0, 0.5), (50.0, 0.85)], []), ([(10.0, 0.8), (50.0, 0.85)], ["not_learned"])):
        assert names(curve_verdict=stalled, metric_curve=metric_curve) == found, (
            "the interval of the score is 6 points wide"
        )


def test_a_curve_that_may_be_flat_promises_nothing() -> None:
    def curve(low: float) -> LearningCurve:
        return LearningCurve(
            "accuracy", "this recipe, 5 minutes on each fraction", (), Gain(0.02, (low, 0.03), (-0.02, 0.04)), 1.0
        )

    assert names(learning_curve=curve(0.01)) == ["more_data"]
    assert names(learning_curve=curve(-0.01)) == []
    recipe = replace(RECIPE, objective=ObjectiveSection(kind="causal_lm"))
    for value, given in ((0.08, ["more_data"]), (0.04, [])):
        loss = LearningCurve("loss", "this recipe", (), Gain(value, (0.01, 0.2), (0.0, 0.2)), 1.0)
        found = give_advice(make_run(learning_curve=loss, recipe=recipe, score=None))
        assert [one.name for one in found] == given
        assert all(one.title == "Add more text" and "-0.08 nats per token" in one.reason for one in found)


@pytest.mark.parametrize(("positions", "override"), [(128, "data.max_length=128"), (64, "")])
def test_a_fine_tuned_model_reads_no_more_than_its_positions(positions: int, override: str) -> None:
    config = qkv.new("bert-tiny").config
    assert config.encoder is not None
    config = replace(config, encoder=replace(config.encoder, max_positions=positions))
    fine_tuned = replace(RECIPE, model=ModelSection(from_="models/bert"))
    cut = replace(DATA, truncated=300, suggested_length=200)
    (advice,) = give_advice(make_run(config=config, recipe=fine_tuned, data=cut))
    assert advice.name == "truncation"
    assert advice.overrides == ((override,) if override else ())
