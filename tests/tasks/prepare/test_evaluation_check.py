"""A metric or a beam that a run cannot be judged by is refused before its first step, and what it can be is taken."""

from pathlib import Path
from typing import Any

import pytest
from prepare_samples import sample_files, sample_recipe

from qkv.errors import UsageError
from qkv.tasks.prepare.prepare import prepare
from qkv.tasks.prepare.sources import FileSource


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("judged")
    sample_files(path)
    return path


@pytest.fixture
def nothing_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused is refused before the long part of the work."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the data was tokenised first")

    monkeypatch.setattr(FileSource, "encoded", refuse)


@pytest.mark.parametrize(
    ("kind", "file", "train", "told"),
    [
        ("seq2seq", "", {"metric": "blue"}, r"train.metric = 'blue' .*seq2seq.*did you mean 'bleu'"),
        ("seq2seq", "", {"metric": "accuracy"}, "known: .*exact_match.*loss"),
        ("classification", "", {"metric": "spearman"}, "is not a metric of classification; known: accuracy"),
        ("classification", "scores.jsonl", {"metric": "accuracy"}, "known: loss, pearson, spearman"),
        ("contrastive", "", {"metric": "spearman"}, "retrieval_accuracy"),
        ("tagging", "", {"metric": "bleu"}, "macro_f1"),
        ("span_corruption", "", {"metric": "bleu"}, "a span_corruption run can only be evaluated by its loss"),
        ("denoising", "", {"metric": "nonsense"}, "a denoising run can only be evaluated by its loss"),
        ("seq2seq", "", {"metric": "bleu", "eval_examples": 0}, r"train.eval_examples = 0.*train.metric = \"loss\""),
        ("seq2seq", "", {"eval_beam": 1000}, r"train.eval_beam = 1000 is larger than the vocabulary of \d+"),
        ("classification", "", {"eval_beam": 2}, "train.eval_beam = 2 has no effect: evaluating classification"),
    ],
)
@pytest.mark.usefixtures("nothing_tokenised")
def test_what_cannot_be_judged_by_is_refused(
    folder: Path, kind: str, file: str, train: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        prepare(sample_recipe(folder, kind, file, train=train))


def test_a_metric_without_validation_data_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"train.metric needs validation data"):
        prepare(sample_recipe(folder, "seq2seq", data={"valid_fraction": 0.0}, train={"metric": "loss"}))


@pytest.mark.parametrize(
    ("kind", "train"),
    [
        ("seq2seq", {"metric": "word_error_rate", "eval_beam": 3}),
        ("causal_lm", {"metric": "bits_per_byte"}),
        ("masked_lm", {"metric": "masked_accuracy"}),
        ("tagging", {"metric": "macro_f1"}),
        ("question_answering", {"metric": "exact_match"}),
        ("span_corruption", {"metric": "loss"}),
        ("seq2seq", {"metric": "loss", "eval_examples": 0}),
    ],
)
def test_what_can_be_judged_by_is_taken(folder: Path, kind: str, train: dict[str, Any]) -> None:
    """A control: the checks above refuse no more than they should."""
    assert prepare(sample_recipe(folder, kind, train=train)).valid_data is not None
