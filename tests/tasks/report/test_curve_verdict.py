"""The verdict on curves, with the curve of each fault planted, and the extrapolation of a learning curve."""

import math

import numpy as np
import pytest

from qkv.data import FileLocation, Record
from qkv.tasks.metrics.bootstrap import Score, mean_score
from qkv.tasks.report.curve_verdict import Verdict, diagnose_curves, late_metric_gain
from qkv.tasks.report.learning_curve import Gain, extrapolate, learn_fractions
from qkv.train.run.curves import RunCurves

STEPS = range(10, 410, 10)


def make_curves(training: list[float], valid: list[float], lr: list[float] | None = None) -> RunCurves:
    places = [400 * (i + 1) / len(valid) for i in range(len(valid))]
    rates = lr or [1e-3] * len(STEPS)
    return RunCurves(
        "run",
        list(zip(STEPS, training, strict=True)),
        list(zip(STEPS, rates, strict=True)),
        {"loss": list(zip(places, valid, strict=True))},
    )


def falling(start: float, end: float, rate: float = 8.0) -> list[float]:
    return [end + (start - end) * math.exp(-rate * step / 400) for step in STEPS]


SETTLED = [1.0, 0.6, 0.52, 0.51, 0.505, 0.5, 0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("verdict", "training", "valid"),
    [
        ("settled", falling(2.0, 0.4), SETTLED),
        ("overfitted", falling(2.0, 0.05), [0.9, 0.6, 0.5, 0.52, 0.56, 0.6, 0.65, 0.7, 0.75, 0.8]),
        ("improving", falling(2.0, 1.0, 2.0), [1.9, 1.8, 1.7, 1.6, 1.5, 1.42, 1.34, 1.26, 1.2, 1.12]),
        ("diverged", [*falling(2.0, 0.5)[:20], *([3.0] * 20)], SETTLED),
        ("diverged", [*falling(2.0, 0.5)[:39], math.nan], SETTLED),
        ("stalled", [0.693] * 40, [0.693] * 10),
        ("unknown", falling(2.0, 0.4), [0.5]),
    ],
)
def test_planted_curves(verdict: Verdict, training: list[float], valid: list[float]) -> None:
    assert diagnose_curves(make_curves(training, valid)).verdict == verdict


@pytest.mark.parametrize("losses", [[7.4], [7.4, math.nan], [7.4, 7.2, 7.1]])
def test_every_verdict_knows_the_number_of_steps(losses: list[float]) -> None:
    training = [(8.0 * (i + 1), loss) for i, loss in enumerate(losses)]
    assert diagnose_curves(RunCurves("run", training)).steps == 8 * len(losses)


def test_one_bad_batch_at_the_end_of_a_short_run_is_no_divergence() -> None:
    training = list(zip((1, 10, 20, 30, 40, 50, 52), (0.66, 0.58, 0.53, 0.55, 0.51, 0.48, 0.58), strict=True))

    def verdict(*valid: float) -> str:
        loss = {"loss": list(zip((27, 45, 52), valid, strict=False))}
        return diagnose_curves(RunCurves("run", training, [(step, 1e-3) for step, _ in training], loss)).verdict

    assert verdict(0.411, 0.427, 0.413) == "settled"
    assert verdict(0.411, 0.6, 0.7) == "diverged"
    assert verdict(0.64, 0.64, 0.64) == "diverged"  # before the first evaluation
    assert verdict(0.58) == "diverged"


def test_a_validation_loss_that_fell_shows_that_a_run_has_not_stalled() -> None:
    """The losses of an embedding model whose weights were trained before."""
    training = [(8.0 * (i + 1), loss) for i, loss in enumerate((0.0258, 0.0255, 0.0266, 0.0247, 0.0224, 0.021, 0.0315))]
    valid = [(9.0, 0.0213), (24.0, 0.0232), (40.0, 0.0187), (56.0, 0.0187)]
    lr = [(step, 1e-3) for step, _ in training]
    found = diagnose_curves(RunCurves("run", training, lr, {"loss": valid}))
    assert found.verdict == "settled"
    assert found.summary.startswith("the training loss rose from 0.0258 to 0.0315, and the validation loss ")
    flat = [(step, 0.0213) for step, _ in valid]
    assert diagnose_curves(RunCurves("run", training, lr, {"loss": flat})).verdict == "stalled"


def test_a_gain_of_a_small_loss_is_a_gain() -> None:
    """The losses of a tagger: most tokens are easy, so that the mean over all tokens is small."""
    training = [(7.0 * (i + 1), loss) for i, loss in enumerate((0.701, 0.219, 0.176, 0.161, 0.163, 0.144, 0.0926))]
    valid = [(9.0, 0.2185), (17.0, 0.1258), (30.0, 0.0931), (47.0, 0.1006), (49.0, 0.0824)]
    found = diagnose_curves(RunCurves("run", training, [(step, 1e-3) for step, _ in training], {"loss": valid}))
    assert found.verdict == "improving"


def test_a_rise_of_a_tiny_loss_and_a_late_minimum_are_no_overfitting() -> None:
    tiny = [value / 500 for value in [0.9, 0.6, 0.5, 0.52, 0.56, 0.6, 0.65, 0.7, 0.75, 0.8]]
    assert diagnose_curves(make_curves(falling(2.0, 0.0005), tiny)).verdict == "settled"
    late = [*SETTLED[:8], 0.49, 0.54]
    assert diagnose_curves(make_curves(falling(2.0, 0.05), late)).verdict == "settled"


def test_a_rise_of_the_validation_loss_is_overfitting_whatever_the_training_loss() -> None:
    """The training loss includes label smoothing, so that it is higher."""
    valid = [0.424, 0.037, 0.0037, 0.02, 0.019, 0.026, 0.032, 0.033, 0.032, 0.032]
    found = diagnose_curves(make_curves(falling(0.5, 0.2), valid))
    assert found.verdict == "overfitted"
    assert "lowest at step 120 of 400 (0.0037) and rose to 0.032" in found.summary


def test_a_metric_that_ends_at_its_best_has_a_late_gain() -> None:
    lr = [(float(step), 1e-3) for step in STEPS]

    def gain(*values: float) -> float:
        return late_metric_gain([(100.0 * (i + 1), value) for i, value in enumerate(values)], lr)

    assert gain(0.2, 0.3, 0.4, 0.5) == pytest.approx(0.1)
    assert gain(0.2, 0.3, 0.6, 0.5) == 0, "it was better before"
    assert gain(0.2, 0.5) == 0, "too few evaluations"


def test_a_flat_end_is_judged_by_the_learning_rate() -> None:
    """With a learning rate that falls to 0, the loss is flat at the end of a run that is too short, too."""
    decayed = [1e-3 * (1 - step / 400) ** 2 for step in STEPS]
    valid = [1.8, 1.6, 1.45, 1.35, 1.28, 1.23, 1.2, 1.19, 1.185, 1.184]
    training = falling(2.0, 1.0)
    assert diagnose_curves(make_curves(training, valid, decayed)).verdict == "improving"
    assert diagnose_curves(make_curves(training, valid)).verdict == "settled"


def make_records(count: int) -> list[Record]:
    return [Record({"text": str(i)}, FileLocation("train", i)) for i in range(count)]


def test_a_power_law_is_extrapolated_and_its_uncertainty_depends_on_the_records() -> None:
    """The planted error is 3 / √n."""

    def train_and_score(repeat: int) -> Gain:
        def score(chosen: object) -> float:
            error = 3 / math.sqrt(len(chosen))  # type: ignore[arg-type]
            wrong = round(200 * error)
            return mean_score(([0.0] * wrong + [1.0] * (200 - wrong)) * repeat)

        curve = learn_fractions("accuracy", "planted", make_records(800), (1 / 8, 1 / 4, 1 / 2, 1), score, 60)
        return curve.gain

    gain, narrow = train_and_score(1), train_and_score(25)
    assert gain.value == pytest.approx(3 / math.sqrt(800) - 3 / math.sqrt(1600), abs=0.003)
    for name in ("expected", "measured"):
        (low, high), (narrow_low, narrow_high) = getattr(gain, name), getattr(narrow, name)
        assert low < gain.value < high
        assert narrow_high - narrow_low < (high - low) / 2


def test_a_planted_gain_is_inside_the_intervals_and_mostly_certain() -> None:
    """The planted error is 2 · n^(−0.3), so twice the data gains 5.1 points; each model is wrong on other records."""
    rng = np.random.default_rng(0)

    def learn(count: int) -> Score:
        return mean_score((rng.random(1000) > 2 * count**-0.3).astype(float))

    inside, is_certain = [], []
    for _ in range(40):
        scores = {size: [learn(size) for _ in range(subsets)] for size, subsets in ((200, 2), (400, 1), (800, 1))}
        gain = extrapolate("accuracy", scores)
        low, high = gain.measured
        inside.append(low <= learn(1600) - scores[800][0] <= high)
        is_certain.append(gain.expected[0] > 0)
    assert sum(inside) >= 36
    assert sum(is_certain) >= 32


def test_the_gain_of_a_loss_is_positive_if_it_falls() -> None:
    """The planted loss is 9 · n^(−0.2), with a little noise of the excerpts."""
    rng = np.random.default_rng(0)
    scores = {n: [mean_score(9 * n**-0.2 + 0.05 * rng.standard_normal(200))] for n in (100, 200, 400)}
    gain = extrapolate("loss", scores)
    assert gain.value == pytest.approx(9 * 400**-0.2 - 9 * 800**-0.2, abs=0.02)
    assert 0 < gain.expected[0] < gain.value < gain.expected[1] < gain.measured[1]
    assert extrapolate("loss", {n: scores[500 - n] if n in (100, 400) else scores[n] for n in scores}).value < 0


def test_no_gain_leads_beyond_a_perfect_score() -> None:
    wrong = {100: 20, 200: 12, 400: 4}
    scores = {size: [mean_score([1.0] * (200 - count) + [0.0] * count)] for size, count in wrong.items()}
    assert extrapolate("accuracy", scores).measured[1] <= 0.02 + 1e-9


def test_subsets_with_different_scores_widen_the_interval() -> None:
    same, other = (mean_score([1.0] * count + [0.0] * (200 - count)) for count in (140, 100))
    large = {400: [mean_score([1.0] * 150 + [0.0] * 50)], 800: [mean_score([1.0] * 160 + [0.0] * 40)]}
    (low, high), (wide_low, wide_high) = (
        extrapolate("accuracy", {200: several, **large}).expected for several in ([same, same], [same, other])
    )
    assert wide_high - wide_low > 1.5 * (high - low)


def test_a_flat_curve_promises_nothing_and_few_records_give_no_curve() -> None:
    flat = {size: [mean_score([1.0, 0.0] * 100)] for size in (100, 200, 400)}
    gain = extrapolate("accuracy", flat)
    assert (gain.value, *gain.expected, *gain.measured) == pytest.approx((0, 0, 0, 0, 0), abs=1e-9)
    assert learn_fractions("accuracy", "few", make_records(100), (1 / 4, 1 / 2, 1), lambda chosen: 0.5, 60) is None
