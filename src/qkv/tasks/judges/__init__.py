"""What a report needs of each task: the model's predictions, their score, and how to show them.

A judge compares predictions with what the records expect. A baseline is judged in the same way as the model.

labels    one class, several labels              tags     entities, tags of words
numbers   scores, similarity, retrieval          texts    generated texts, answers
"""

from collections.abc import Sequence

from qkv.data.records import Record
from qkv.models import Config
from qkv.tasks.evaluate import find_task
from qkv.tasks.judges.judge import Judge, Prediction
from qkv.tasks.judges.labels import LabelJudge, LabelSetJudge
from qkv.tasks.judges.numbers import NumberJudge, RetrievalJudge, SimilarityJudge
from qkv.tasks.judges.tags import TagJudge
from qkv.tasks.judges.texts import AnswerJudge, TextJudge
from qkv.tasks.metrics.rouge import ROUGE_NAMES, has_rouge
from qkv.tasks.run.classify import class_names

__all__ = [
    "AnswerJudge",
    "Judge",
    "LabelJudge",
    "LabelSetJudge",
    "NumberJudge",
    "Prediction",
    "RetrievalJudge",
    "SimilarityJudge",
    "TagJudge",
    "TextJudge",
    "find_judge",
]


def find_judge(config: Config, records: Sequence[Record], beam: int = 1, metric: str = "") -> Judge | None:
    """The judge of a model's task; None for language models, and if the records lack the fields of the task.

    `metric` is the metric that the recipe chose. The judge uses it, if it can compute it.
    """
    name, head = find_task(config).name, config.head
    found: Judge | None = None
    if head.is_regression:
        found = NumberJudge()
    elif name == "classify":
        found = LabelSetJudge(config) if head.multi_label else LabelJudge(config)
    elif name == "tag":
        found = TagJudge(class_names(config))
    elif name == "text_to_text":
        found = TextJudge(records, beam)
    elif name == "answer":
        found = AnswerJudge(records)
    elif name == "embed":
        found = SimilarityJudge() if any("score" in one.fields for one in records) else RetrievalJudge()
    if found is None or not any(map(found.is_usable, records)):
        return None
    if metric in found.measures and (metric not in ROUGE_NAMES or has_rouge()):
        found.metric = metric
    return found
