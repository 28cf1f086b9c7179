"""Describe: write a caption of an image.

Captions of scenes are also compared by what they say: a caption is right if it names every object with its size, colour
and shape, and every relation, whatever the wording.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from qkv.data.records import Record
from qkv.models import Config
from qkv.tasks.baselines import predict_most_frequent, predict_nearest_image
from qkv.tasks.evaluation import find_bad_file, select_decodable, select_usable
from qkv.tasks.image_to_text import ImageTextScorer, ImageToText
from qkv.tasks.metrics import mean_score
from qkv.tasks.scorer import Baseline, Metric, TaskScorer
from qkv.tasks.starters.starter import Starter


def parse(text: str) -> Counter[Any]:
    """What a caption of a scene says."""
    from qkv.data.builtin.scene import parse_caption

    return parse_caption(text)


def scene_exact(predicted: Sequence[str], expected: Sequence[str]) -> float:
    """The fraction of captions that say exactly what the scene is."""
    return mean_score([float(parse(ours) == parse(theirs)) for ours, theirs in zip(predicted, expected, strict=True)])


def scene_facts(predicted: Sequence[str], expected: Sequence[str]) -> float:
    """F1 of the facts that a caption states: objects with their attributes, and relations."""
    scores = []
    for ours, theirs in zip(map(parse, predicted), map(parse, expected), strict=True):
        total = ours.total() + theirs.total()
        scores.append(2 * (ours & theirs).total() / total if total else 1.0)
    return mean_score(scores)


class CaptionScorer(ImageTextScorer):
    """A caption for each image, compared by its words, and if it is a caption of a scene, by what it says."""

    baselines: Mapping[str, Baseline] = {
        "most frequent caption": Baseline(predict_most_frequent, is_cheap=True),
        "caption of the nearest image (pixels)": Baseline(predict_nearest_image),
    }

    metrics: Mapping[str, Metric] = {
        "scene_exact": scene_exact,
        "scene_facts": scene_facts,
        **ImageTextScorer.metrics,
    }
    selectable = tuple(metrics)

    def __init__(self, task: ImageToText, records: Sequence[Record] = ()) -> None:
        super().__init__(task)
        captions = [self.expected(one) for one in records if self.is_usable(one)]
        self.metric = "exact_match"
        if captions and all(map(parse, captions[:20])):
            self.metric = "scene_exact"
        elif sum(len(caption.split()) for caption in captions) > 3 * len(captions):
            self.metric = "bleu"
        is_scene = self.metric == "scene_exact"
        names = [name for name in self.metrics if is_scene or not name.startswith("scene")]
        self.metrics = {name: self.metrics[name] for name in dict.fromkeys((self.metric, *names))}

    def score_each(self, predicted: Sequence[str], expected: Sequence[str]) -> list[float]:
        measure = scene_facts if self.metric == "scene_exact" else self.metrics["chrf"]
        scale = 1 if self.metric == "scene_exact" else 100
        return [measure([ours], [theirs]) / scale for ours, theirs in zip(predicted, expected, strict=True)]


class DescribeTask(ImageToText):
    """Write a caption of an image."""

    name = "describe"
    description = "describes images"
    question = "Describe images."
    title = "Description"
    objective = "captioning"
    inputs, target = ("image",), "caption"
    example_inputs = ("picture.png",)
    scorers = (CaptionScorer,)
    example_data = "a table with the columns image (paths of files) and caption"
    starter = Starter("A caption of an image.", "captions.tsv", 64, is_image_to_text=True)

    def split_input(self, value: Any) -> tuple[Sequence[Any], str]:
        return (value,), ""

    def read_record(self, record: Record) -> Any:
        return record.fields["image"]

    def is_usable(self, record: Record) -> bool:
        has_both = isinstance(record.fields.get("image"), bytes) and isinstance(record.fields.get("caption"), str)
        return has_both and not find_bad_file(record)

    def select(self, config: Config, records: Sequence[Record], options: Any, notes: list[str]) -> list[Record]:
        return select_decodable(select_usable(records, notes, image=bytes, caption=str), notes)

    def find_scorer(self, config: Config, records: Sequence[Record]) -> TaskScorer:
        return CaptionScorer(self, records)


DESCRIBE = DescribeTask()
