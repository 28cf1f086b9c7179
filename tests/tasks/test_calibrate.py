"""The fitted temperature makes probabilities as high as the classifier is right, and changes no label."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_models import encoder, parts_of, records

import qkv
from qkv.errors import UsageError
from qkv.tasks.calibrate import MIN_RECORDS, calibrate, calibration_error, fit_temperature, fit_threshold
from qkv.tasks.evaluate import evaluate
from qkv.tasks.run.logits import class_probabilities
from qkv.tasks.text_model import TextModel
from qkv.tasks.verbs.classify import LabelScorer

LABELS = qkv.HeadConfig(kind="classify", labels=("a", "b", "c"))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_of_the_data_is_found(temperature: float) -> None:
    """Labels are sampled with the probabilities of logits; the classifier's logits are these times a temperature."""
    rng = np.random.default_rng(1)
    true = rng.normal(size=(4000, 3)) * 2
    probabilities = np.exp(true) / np.exp(true).sum(1, keepdims=True)
    labels = (probabilities.cumsum(1) > rng.random((len(true), 1))).argmax(1)
    logits = true * temperature
    assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.1)
    config = qkv.Config(encoder=encoder(LABELS).config.encoder, head=LABELS)
    raw = calibration_error(class_probabilities(config, logits), labels)
    head = qkv.HeadConfig(kind="classify", labels=LABELS.labels, temperature=fit_temperature(logits, labels))
    fitted = class_probabilities(qkv.Config(encoder=config.encoder, head=head), logits)
    assert calibration_error(fitted, labels) < 0.03
    assert raw > 0.05 or temperature == 1.0
    assert (fitted.argmax(1) == logits.argmax(1)).all()


def test_a_model_is_calibrated_on_enough_records_and_remembers_it(tmp_path: str) -> None:
    made = encoder(LABELS)
    texts = [f"the fox {i} runs" for i in range(MIN_RECORDS)]
    listed = records([{"text": text, "label": "abc"[i % 3]} for i, text in enumerate(texts)])
    config, message = calibrate(TextModel(*parts_of(made)), listed)
    assert config.head.temperature > 1  # the labels have nothing to do with the texts
    assert "fitted on 50 validation records" in message
    assert calibrate(TextModel(*parts_of(made)), listed[1:]) == (made.config, "")
    calibrated = qkv.Model(config, made.network, made.tokenizer)
    calibrated.save(tmp_path)
    loaded = qkv.load(tmp_path)
    assert loaded.config.head.temperature == config.head.temperature
    assert loaded.classify(texts[0]).probability < made.classify(texts[0]).probability
    assert loaded.classify(texts[0]).label == made.classify(texts[0]).label


@pytest.mark.parametrize(
    "fitted", [{"multi_label": True, "temperature": 1.5}, {"threshold": 0.6, "out_of_scope": "none"}], ids=str
)
def test_hugging_face_folders_keep_what_was_fitted(tmp_path: str, fitted: dict[str, Any]) -> None:
    head = qkv.HeadConfig(kind="classify", labels=("a", "b"), dense="tanh", bias=True, dropout=0.1, **fitted)
    encoder_config = qkv.new("bert-tiny").config.encoder
    qkv.new(qkv.Config(encoder=encoder_config, head=head, pad_token_id=0, architecture="bert")).export(tmp_path)
    assert qkv.load(tmp_path).config.head == head


@pytest.mark.parametrize(
    "wrong", [{"threshold": 1.0}, {"threshold": -0.1}, {"threshold": 0.5, "multi_label": True}], ids=str
)
def test_a_threshold_is_a_probability_of_one_label(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="threshold"):
        replace(LABELS, **wrong)


def test_several_labels_are_independent() -> None:
    made = encoder(qkv.HeadConfig(kind="classify", labels=("a", "b", "c"), multi_label=True))
    result = made.classify("the fox")
    made.network.eval()
    logits = made.logits([made.tokenizer.encode("the fox")])[0]
    expected = dict(zip("abc", logits.sigmoid().tolist(), strict=True))
    assert result.probabilities == pytest.approx(expected, abs=1e-5)
    assert result.labels == [name for name in result.probabilities if expected[name] >= 0.5]
    assert made.classify("the fox", threshold=1.0).labels == []


def slow_threshold_accuracy(probabilities: np.ndarray, expected: np.ndarray, threshold: float) -> float:
    predicted = np.where(probabilities.max(1) >= threshold, probabilities.argmax(1), -1)
    return float((predicted == expected).mean())


@pytest.mark.parametrize("seed", range(8))
def test_no_threshold_has_a_higher_accuracy_than_the_fitted_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(3), size=60).round(1 + seed % 2)  # rounded, so that some are equal
    expected = rng.integers(-1, 3, 60)
    fitted = slow_threshold_accuracy(probabilities, expected, fit_threshold(probabilities, expected))
    others = [slow_threshold_accuracy(probabilities, expected, one) for one in np.linspace(0, 0.999, 400)]
    assert fitted == pytest.approx(max(others))


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_model_that_makes_no_error_keeps_its_temperature(seed: int) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 1, (60, 5))
    expected = generator.integers(5, size=60)
    logits[np.arange(60), expected] += generator.uniform(6, 12, 60)
    assert (logits.argmax(1) == expected).all(), "so the cross-entropy alone has no minimum"
    assert 0.7 < fit_temperature(logits, expected) < 1.2
    assert 0.15 < fit_temperature(logits / 5, expected) < 0.5, "a control: it was not sure enough"


def test_a_threshold_can_be_very_near_to_one() -> None:
    rare = np.array([1e-7, 2e-7, 3e-7])
    threshold = fit_threshold(np.stack([1 - rare, rare], 1), np.array([0, 0, -1]))
    assert 1 - 3e-7 < threshold < 1 - 2e-7


def test_a_threshold_without_use_is_zero() -> None:
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4]])
    assert fit_threshold(probabilities, np.array([0, 0])) == 0.0  # nothing is out of scope
    assert fit_threshold(probabilities, np.array([0, -1])) == 0.75


def test_a_model_recognises_texts_out_of_scope_and_is_evaluated_on_them(tmp_path: str) -> None:
    made = encoder(LABELS)
    listed = records(
        [{"text": f"the fox {i}", "label": "a"} for i in range(40)]
        + [{"text": f"lazy dog {i}", "label": "none"} for i in range(20)]
    )
    model = TextModel(*parts_of(made))
    config, message = calibrate(model, [], listed, "none")
    assert "fitted on 60 validation records" in message
    calibrated = qkv.Model(config, made.network, made.tokenizer)
    calibrated.save(tmp_path)
    loaded = qkv.load(tmp_path)
    assert (loaded.config.head.threshold, loaded.config.head.out_of_scope) == (config.head.threshold, "none")

    both = records([{"text": "the fox", "label": "none"}, {"text": "the fox", "label": "a"}])
    sure = encoder(LABELS)
    sure.config = qkv.Config(encoder=sure.config.encoder, head=replace(LABELS, threshold=0.4), pad_token_id=0)
    probability = sure.classify("the fox").probability
    for threshold, label in ((probability - 0.01, True), (probability + 0.01, False)):
        sure.config = replace(sure.config, head=replace(LABELS, threshold=threshold))
        assert (sure.classify("the fox").label is not None) is label
        assert sure.classify("the fox", threshold=0.0).label is not None  # the option has precedence
    found = evaluate(*parts_of(sure), both)
    assert found.metrics["out_of_scope_recall"] == 1.0
    assert (found.metrics["in_scope_accuracy"], found.metrics["accuracy"]) == (0.0, 0.5)
    assert "out of scope, because the model does not have these labels: 'none'" in found.notes
    sure.config = replace(sure.config, head=LABELS)  # without a threshold, the label is a mistake in the data
    found = evaluate(*parts_of(sure), both)
    assert "out_of_scope_recall" not in found.metrics
    assert found.notes == (
        "labels that the model does not have, counted as wrong: 'none'; if its texts belong to no class, train with "
        'objective.out_of_scope="none"',
    )


def test_only_the_label_of_the_training_is_out_of_scope() -> None:
    made = encoder(replace(LABELS, threshold=0.99, out_of_scope="none"))
    texts = [{"text": "the fox", "label": label} for label in ("none", "a", "b", "x", "y")]
    found = evaluate(*parts_of(made), records(texts))
    assert (found.metrics["out_of_scope_recall"], found.metrics["accuracy"]) == (1.0, 1 / 5), "all are rejected"
    assert "out of scope, because the model does not have these labels: 'none'" in found.notes
    assert "labels that the model does not have, counted as wrong: 'x', 'y'" in found.notes
    assert evaluate(*parts_of(made), records(texts[:1])).metrics["accuracy"] == 1.0
    assert [LabelScorer(made.config, []).expected(one) for one in records(texts)] == [
        "(out of scope)",
        "a",
        "b",
        "x",
        "y",
    ]


@pytest.mark.parametrize("known", ["none", ""], ids=["new", "from before it was kept"])
def test_a_file_whose_labels_all_mean_something_else_is_refused(known: str) -> None:
    made = encoder(replace(LABELS, threshold=0.99, out_of_scope=known))
    with pytest.raises(UsageError, match=r"none of the labels is a class of this model: .* 'x', 'y', but the classes"):
        evaluate(*parts_of(made), records([{"text": "the fox", "label": label} for label in ("x", "y")]))


def test_a_record_without_a_label_is_left_out_and_not_out_of_scope() -> None:
    made = encoder(replace(LABELS, threshold=0.4))
    found = evaluate(*parts_of(made), records([{"text": "the fox", "label": "a"}, {"text": "the fox"}]))
    assert found.num_records == 1
    assert "out_of_scope_recall" not in found.metrics


def test_too_few_texts_out_of_scope_fit_no_threshold() -> None:
    model = TextModel(*parts_of(encoder(LABELS)))
    listed = records([{"text": f"fox {i}", "label": "a" if i else "none"} for i in range(40)])
    config, message = calibrate(model, [], listed, "none")
    assert config.head.threshold == 0.0
    assert message == "no threshold was fitted: of 40 validation records, 1 are out of scope"


def test_training_leaves_out_what_is_out_of_scope_and_fits_the_threshold(tmp_path: Path) -> None:
    lines = [f"a fine book {i},fine\na bad book {i},bad\nxyzzy {i} plugh,none\n" for i in range(40)]
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(lines[:20]))
    (tmp_path / "valid.csv").write_text("text,label\n" + "".join(lines[20:]))
    overrides = {"data.train": str(tmp_path / "train.csv"), "data.valid": str(tmp_path / "valid.csv")}
    overrides |= {
        "data.cache_dir": str(tmp_path / "cache"),
        "run": str(tmp_path / "run"),
        "objective.out_of_scope": "none",
    }
    (tmp_path / "recipe.toml").write_text(
        '[objective]\nkind = "classification"\n[data]\nmax_length = 32\n[tokenizer]\nkind = "char"\n'
        '[model]\npreset = "bert-tiny"\nlayers = 1\n[train]\nsteps = 15\nbatch_tokens = 512\nlr = 0.002\n'
    )
    made = qkv.train(str(tmp_path / "recipe.toml"), **overrides)
    assert made.config.head.labels == ("bad", "fine")
    assert made.config.head.threshold > 0
    assert "of the 20 records out of scope are recognised" in (tmp_path / "run/README.md").read_text()
    found = qkv.load(tmp_path / "run").evaluate(str(tmp_path / "valid.csv"))
    assert found.metrics["out_of_scope_recall"] > 0
