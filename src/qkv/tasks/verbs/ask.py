"""Ask: answer a question about an image, or about two."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qkv.data.modalities import MODALITIES
from qkv.data.records import Record
from qkv.errors import UsageError
from qkv.models import Config
from qkv.tasks.baselines import index_texts, predict_most_frequent
from qkv.tasks.evaluation import find_bad_file, select_decodable, select_usable
from qkv.tasks.image_to_text import ImageTextScorer, ImageToText
from qkv.tasks.scorer import Baseline, Metric, TaskScorer
from qkv.tasks.starters.starter import Starter


def predict_blindly(scorer: TaskScorer, training: Sequence[Record], records: Sequence[Record]) -> list[Any]:
    """The answer to the training question with the highest BM25 score, without a look at the image."""
    index = index_texts([one.fields["question"] for one in training])
    return [scorer.expected(training[int(index.scores(one.fields["question"]).argmax())]) for one in records]


class ImageAnswerScorer(ImageTextScorer):
    """An answer for each question; only an equal one is right."""

    metrics: Mapping[str, Metric] = {"exact_match": ImageTextScorer.metrics["exact_match"]}
    baselines: Mapping[str, Baseline] = {
        "most frequent answer": Baseline(predict_most_frequent, is_cheap=True),
        "answer to the nearest question, without the image": Baseline(predict_blindly),
    }

    def score_each(self, predicted: Sequence[str], expected: Sequence[str]) -> list[float]:
        return [self.metrics["exact_match"]([ours], [theirs]) for ours, theirs in zip(predicted, expected, strict=True)]


class AskTask(ImageToText):
    """Answer a question about one image, or about a pair of images."""

    name = "ask"
    description = "answers questions about images"
    question = "Answer questions about images."
    title = "Answer"
    objective = "visual_questions"
    inputs, target = ("image", "question"), "answer"
    needs_all_inputs, more_inputs = True, ("second_image",)
    example_inputs = ("picture.png", "your question")
    scorers = (ImageAnswerScorer,)
    example_data = "a table with the columns image (paths of files), question and answer, and perhaps second_image"
    starter = Starter(
        "The answer to a question about an image, or about two.",
        "questions.tsv",
        32,
        is_image_to_text=True,
        reads_question=True,
    )

    def split_input(self, value: Any) -> tuple[Sequence[Any], str]:
        images, question = value
        return (images if isinstance(images, tuple) else (images,)), question

    def read_line(self, line: str) -> Any:
        """An image and a question with a tab between them, or two images and a question."""
        *images, question = line.split("\t")
        return (tuple(images) if len(images) > 1 else images[0] if images else "", question)

    def map_payloads(self, value: Any, function: Callable[[Any], Any]) -> Any:
        images, question = self.split_input(value)
        return tuple(map(function, images)), question

    def join_inputs(self, values: tuple[Any, ...]) -> Any:
        image, question, *others = values
        return (image, *others), question

    def check_inputs(self, config: Config, values: Sequence[Any]) -> None:
        for number, value in enumerate(values, start=1):
            advice = "give (image, question), or ((first image, second image), question)"
            if not (isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str) and value[0]):
                raise UsageError(f"input {number} is not an image and its question; {advice}")
            images, text = self.split_input(value)
            if not text.strip():
                raise UsageError(f"question {number} is empty; ask something about the image")
            for image in images:
                if not isinstance(image, str) and (problem := MODALITIES["image"].check(image)):
                    raise UsageError(f"image {number} {problem}; {advice}")

    def read_record(self, record: Record) -> Any:
        images = [record.fields[name] for name in ("image", "second_image") if name in record.fields]
        return tuple(images), record.fields["question"]

    def is_usable(self, record: Record) -> bool:
        texts = all(isinstance(record.fields.get(name), str) for name in ("question", "answer"))
        return texts and isinstance(record.fields.get("image"), bytes) and not find_bad_file(record)

    def select(self, config: Config, records: Sequence[Record], options: Any, notes: list[str]) -> list[Record]:
        return select_decodable(select_usable(records, notes, image=bytes, question=str, answer=str), notes)

    def find_scorer(self, config: Config, records: Sequence[Record]) -> TaskScorer:
        return ImageAnswerScorer(self)


ASK = AskTask()
