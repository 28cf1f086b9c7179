"""The common part of tasks with one prediction per record: from records to metrics."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from qkv.data.records import Record
from qkv.models import Config
from qkv.tasks.evaluation import EvaluationOptions, Scored, select_metrics
from qkv.tasks.scorer import TaskScorer
from qkv.tasks.task import Task
from qkv.tasks.text_model import TextModel


class RecordTask(Task):
    """A task whose predictions are compared with records one by one."""

    EvalOptions: ClassVar[type[EvaluationOptions]] = EvaluationOptions

    def find_scorer(self, config: Config, records: Sequence[Record]) -> TaskScorer:
        """How predictions are compared with these records."""
        return self.scorers[0]()

    @abstractmethod
    def select(self, config: Config, records: Sequence[Record], options: Any, notes: list[str]) -> list[Record]:
        """The records that can be evaluated; a note says how many others there are, and why they cannot."""

    def score_records(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> Scored:
        """Predict the records, and compare the predictions with what the records expect."""
        usable = self.select(model.config, records, options, notes)
        scorer = self.make_scorer(model.config, usable)
        assert scorer is not None
        requested = [*options.metrics, *scorer.always_measured] if options.metrics else ()
        names = select_metrics(requested, list(scorer.metrics), scorer.default_metrics)
        predicted = [value for value, _ in scorer.predict(model, usable, options, notes)]
        expected = list(map(scorer.expected, usable))
        shown = list(zip(usable, predicted, expected, strict=True))[: options.max_samples]
        return Scored(
            scorer.measure_all(names, predicted, expected, usable),
            [scorer.make_sample(*one) for one in shown],
            names[0] if options.metrics or scorer.metric not in names else scorer.metric,
            len(usable),
            scorer.signatures(names),
            scorer.report_classes(predicted, expected) if scorer.has_classes else None,
        )
