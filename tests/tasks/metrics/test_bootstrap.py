"""Confidence intervals and the paired comparison of two models: their meaning, and their references in libraries."""

import copy
import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.tasks import metrics
from qkv.tasks.metrics.bootstrap import Score, bootstrap, percentiles, resample_weights

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "fox", "jumps", "over", "lazy"]


def noisy(texts: list[str], rate: float, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < rate else word for word in text.split()) for text in texts]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 14))) for _ in range(60)]


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """95 % of the intervals of samples from a population hold its mean; those of a wrong mean do not."""
    rng = np.random.default_rng(0)
    covered = wrong = 0
    for _ in range(100):
        score = metrics.mean_score(rng.random(150) < 0.7)
        low, high = percentiles(bootstrap({"x": score}, 200)["x"])
        covered += low <= 0.7 <= high
        wrong += low <= 0.8 <= high
    assert 0.90 <= covered / 100 <= 0.99
    assert wrong / 100 < 0.5


LABELLED = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=2, max_size=12)


@settings(deadline=None, max_examples=25)
@given(LABELLED, st.randoms(use_true_random=False))
def test_a_weighted_score_is_the_score_of_repeated_records(pairs: list[tuple[str, str]], draw: random.Random) -> None:
    weights = [draw.randint(0, 3) for _ in pairs]
    repeated = [pair for pair, weight in zip(pairs, weights, strict=True) for _ in range(weight)]
    numbers = {"a": 1.0, "b": 2.5, "c": -1.0}

    def scores(listed: list[tuple[str, str]]) -> dict[str, Score]:
        ours, theirs = [one for one, _ in listed], [two for _, two in listed]
        sets = metrics.label_set_scores(ours, theirs)
        texts, references = [f"{one} x {two}" for one, two in listed], [[f"{two} x"] for two in theirs]
        answers = {name: getattr(metrics, name)(texts, references) for name in ("answer_f1", "word_error_rate")}
        values = [numbers[one] for one in ours], [numbers[two] for two in theirs]
        tags = [[f"B-{one}", f"I-{one}"] for one in ours], [[f"B-{two}", f"I-{two}"] for two in theirs]
        return {
            **{name: getattr(metrics, name)(ours, theirs) for name in ("accuracy", "macro_f1", "matthews")},
            **{f"set {name}": score for name, score in sets.items()},
            **answers,
            **{name: getattr(metrics, name)(*values) for name in ("pearson", "spearman")},
            **metrics.entity_scores(*tags),
        }

    for name, score in scores(pairs).items():
        found = score.weighted(np.array(weights, float))
        assert found == pytest.approx(scores(repeated)[name], abs=1e-9), name


@pytest.mark.parametrize("name", ["bleu", "sacrebleu", "tokenised_bleu", "bleu_lowercase", "chrf", "ter", "rouge2"])
def test_texts_are_resampled_by_their_statistics(name: str, texts: list[str]) -> None:
    if name.startswith("rouge"):
        pytest.importorskip("rouge_score", reason="the extra rouge is not installed")
    written, metric = noisy(texts, 0.3, 2), getattr(metrics, name)
    score = metric(written, [[text] for text in texts])
    weights = next(resample_weights(len(texts), 1, seed=5))
    chosen = np.repeat(np.arange(len(texts)), weights.astype(int))
    again = metric([written[i] for i in chosen], [[texts[i]] for i in chosen])
    assert score.weighted(weights) == pytest.approx(again)
    assert score.weighted(weights) != score


def test_bleu_chrf_and_ter_equal_the_library_with_several_references(texts: list[str]) -> None:
    library = pytest.importorskip("sacrebleu.metrics")
    written, others = noisy(texts, 0.3, 2), noisy(texts, 0.2, 3)
    references = [[one, two] for one, two in zip(texts, others, strict=True)]
    for name, metric in (("sacrebleu", library.BLEU()), ("chrf", library.CHRF()), ("ter", library.TER())):
        expected = metric.corpus_score(written, [texts, others]).score
        assert getattr(metrics, name)(written, references) == pytest.approx(expected), name


def test_the_p_value_is_that_of_a_paired_test() -> None:
    theirs = pytest.importorskip("scipy.stats", reason="compared with scipy where it is installed")
    rng = np.random.default_rng(2)
    for shift in (0.0, 0.05, 0.12, 0.3):
        one, other = rng.normal(size=(2, 200))
        other += shift + one
        found = metrics.compare_metrics({"x": metrics.mean_score(one)}, {"x": metrics.mean_score(other)}, 2000)["x"]
        assert found.value == pytest.approx((other - one).mean())
        assert found.p_value == pytest.approx(theirs.ttest_rel(other, one).pvalue, abs=0.03)
    assert found.p_value < 0.01


def test_a_clear_difference_of_bleu_is_clear_in_the_library_too(texts: list[str]) -> None:
    library, test = pytest.importorskip("sacrebleu.metrics"), pytest.importorskip("sacrebleu.significance")
    systems = {"A": noisy(texts, 0.3, 2), "B": noisy(texts, 0.05, 7)}
    metric = library.BLEU(references=[texts])
    _, theirs = test.PairedTest(list(systems.items()), {"BLEU": metric}, None, "bs", 300)()
    scores = [{"bleu": metrics.sacrebleu(side, [[text] for text in texts])} for side in systems.values()]
    ours = metrics.compare_metrics(*scores)["bleu"]
    assert ours.value == pytest.approx(theirs["BLEU"][1].score - theirs["BLEU"][0].score)
    assert max(ours.p_value, theirs["BLEU"][1].p_value) < 0.01
    low, high = metrics.confidence_intervals(scores[1])["bleu"]
    assert (high - low) / 2 == pytest.approx(theirs["BLEU"][1].ci, rel=0.2)


def test_the_interval_of_a_mean_is_that_of_scipy() -> None:
    theirs = pytest.importorskip("scipy.stats", reason="compared with scipy where it is installed")
    values = np.random.default_rng(3).exponential(size=200)
    expected = theirs.bootstrap((values,), np.mean, method="percentile", rng=1).confidence_interval
    found = metrics.confidence_intervals({"x": metrics.mean_score(values)}, 4000)["x"]
    assert found == pytest.approx((expected.low, expected.high), abs=0.02)


@pytest.mark.parametrize("count", [2, 100, 2000])
def test_a_score_of_all_or_none_has_an_interval(count: int) -> None:
    """As Wilson's, at which the p-value of all records right is about 5 %."""
    theirs = pytest.importorskip("scipy.stats", reason="compared with scipy where it is installed")
    for right in (0, count):
        score = metrics.mean_score([1.0] * right + [0.0] * (count - right))
        expected = theirs.binomtest(right, count).proportion_ci(method="wilson")
        assert metrics.confidence_intervals({"x": score})["x"] == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_pairing_makes_the_interval_of_a_difference_narrow() -> None:
    """A model that is right wherever another is right, and once more, is surely not worse."""
    draw = random.Random(4)
    expected = [draw.choice("ab") for _ in range(300)]
    one = [label if draw.random() < 0.7 else "c" for label in expected]
    better = [label if i < 30 else ours for i, (ours, label) in enumerate(zip(one, expected, strict=True))]
    scores = [{"accuracy": metrics.accuracy(side, expected)} for side in (one, better)]
    found = metrics.compare_metrics(*scores)["accuracy"]
    assert found.interval[0] > 0
    assert found.p_value < 0.02
    widths = [high - low for low, high in (metrics.confidence_intervals(side)["accuracy"] for side in scores)]
    assert found.interval[1] - found.interval[0] < min(widths) / 2
    shuffled = draw.sample(better, len(better))
    unpaired = metrics.compare_metrics(scores[0], {"accuracy": metrics.accuracy(shuffled, expected)})
    assert unpaired["accuracy"].value < 0  # a negative control: the order of the records matters


def test_equal_models_do_not_differ() -> None:
    score = {"accuracy": metrics.accuracy("aab" * 30, "abb" * 30)}
    found = metrics.compare_metrics(score, score)["accuracy"]
    assert (found.value, found.interval, found.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_intervals_are_reproducible_and_need_two_units() -> None:
    scores = {"a": metrics.accuracy("abab", "aaab"), "one": metrics.accuracy("a", "a"), "plain": 0.5}
    found = metrics.confidence_intervals(scores)
    assert list(found) == ["a"]
    assert found == metrics.confidence_intervals(scores)
    assert metrics.confidence_intervals(scores, 0) == {}
    assert metrics.compare_metrics(scores, scores, 0) == {}
    other = {"a": metrics.accuracy("aba", "aaa")}
    assert metrics.compare_metrics(scores, other) == {}  # other records


def test_a_copied_score_is_a_plain_float() -> None:
    score = metrics.accuracy("ab", "aa")
    for copied in (copy.deepcopy(score), pickle.loads(pickle.dumps(score))):
        assert type(copied) is float
        assert copied == score == 0.5
