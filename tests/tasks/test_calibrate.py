"""The fitted temperature makes probabilities as high as the classifier is right, and changes no label."""

import numpy as np
import pytest
from task_models import encoder, parts_of, records

import qkv
from qkv.tasks.calibrate import MIN_RECORDS, calibrate, calibration_error, fit_temperature
from qkv.tasks.run.classify import class_probabilities
from qkv.tasks.task import TextModel

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


def test_hugging_face_folders_keep_temperature_and_several_labels(tmp_path: str) -> None:
    base = qkv.new("bert-tiny").config
    head = qkv.HeadConfig(
        kind="classify", labels=("a", "b"), dense="tanh", bias=True, multi_label=True, temperature=1.5, dropout=0.1
    )
    made = qkv.new(qkv.Config(encoder=base.encoder, head=head, pad_token_id=0, architecture="bert"))
    made.export(tmp_path)
    found = qkv.load(tmp_path).config.head
    assert (found.multi_label, found.temperature, found.labels) == (True, 1.5, ("a", "b"))


def test_several_labels_are_independent() -> None:
    made = encoder(qkv.HeadConfig(kind="classify", labels=("a", "b", "c"), multi_label=True))
    result = made.classify("the fox")
    made.network.eval()
    logits = made.logits([made.tokenizer.encode("the fox")])[0]
    expected = dict(zip("abc", logits.sigmoid().tolist(), strict=True))
    assert result.probabilities == pytest.approx(expected, abs=1e-5)
    assert result.labels == [name for name in result.probabilities if expected[name] >= 0.5]
    assert made.classify("the fox", threshold=1.0).labels == []
