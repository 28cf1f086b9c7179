"""The base of tasks that generate a text about images: captions, and answers to questions."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from qkv.blocks.inputs import Prompt
from qkv.data.records import Record
from qkv.decode import GenerationOptions
from qkv.models import Config
from qkv.tasks import metrics
from qkv.tasks.record_task import RecordTask
from qkv.tasks.run.generate import GeneratedText, generate_batched, limit_new_tokens, make_generation_options
from qkv.tasks.scorer import Metric, Prediction, TaskScorer
from qkv.tasks.task import TaskOptions
from qkv.tasks.text_model import TextModel
from qkv.tasks.verbs.text_to_text import TextToTextEvaluation, max_target_tokens
from qkv.values import HIDDEN, Limits

DEFAULT_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class ImageToTextOptions(TaskOptions):
    """Options of `m.describe` and `m.ask`."""

    beam: Annotated[int, Limits(1, 1024), "The number of beams; 1 is greedy decoding."] = 1
    max_tokens: Annotated[int | None, Limits(1, 2**31), "The maximum number of new tokens."] = None
    generation: Mapping[str, Any] = field(default_factory=dict, metadata=HIDDEN)
    """Other fields of `GenerationOptions`, by name."""


def measure_texts(name: str, predicted: Sequence[str], expected: Sequence[str]) -> float:
    """A metric of texts with one reference each."""
    return float(getattr(metrics, name)(predicted, [[reference] for reference in expected]))


class ImageTextScorer(TaskScorer):
    """A generated text for each record, compared with the text of the record."""

    modality, metric = "text", "exact_match"
    metrics: Mapping[str, Metric] = {name: partial(measure_texts, name) for name in ("exact_match", "bleu", "chrf")}
    selectable = tuple(metrics)

    def __init__(self, task: "ImageToText") -> None:
        self.task, self.input_fields = task, task.inputs

    def is_usable(self, record: Record) -> bool:
        return self.task.is_usable(record)

    def expected(self, record: Record) -> str:
        return str(record.fields[self.task.target])

    def predict(self, model: TextModel, records: Sequence[Record], options: Any, notes: list[str]) -> list[Prediction]:
        targets = [*map(self.expected, records)]
        max_tokens = getattr(options, "max_tokens", 0) or max_target_tokens(model.tokenizer, targets) * 3 // 2 + 8
        generation = GenerationOptions(
            max_tokens=limit_new_tokens(model.config, max_tokens), beam=options.beam, **options.generation
        )
        results = self.task.generate(model, [self.task.read_record(one) for one in records], generation)
        if num_cut := sum(result.finish_reason == "length" for result in results):
            notes.append(f"{num_cut:,} of {len(results):,} predictions were cut off at {max_tokens} tokens")
        return [(one.text, None) for one in results]


class ImageToText(RecordTask):
    """A task whose input is one or more images, perhaps with a text, and whose result is a text."""

    calls = ("generate",)
    evaluation_batch_size, max_samples = 64, 8
    generates = True
    Options, EvalOptions, results = ImageToTextOptions, TextToTextEvaluation, (GeneratedText,)

    def supports(self, config: Config) -> bool:
        """Whether a model was trained for this task: models of other tasks read other inputs."""
        return config.task == self.name

    @abstractmethod
    def split_input(self, value: Any) -> tuple[Sequence[Any], str]:
        """The images of an input, and its text."""

    @abstractmethod
    def read_record(self, record: Record) -> Any:
        """The input that a record has."""

    @abstractmethod
    def is_usable(self, record: Record) -> bool:
        """Whether a record has everything that an evaluation needs."""

    def make_prompts(self, model: TextModel, values: Sequence[Any]) -> list[Prompt]:
        """The inputs of the encoder, which are laid out as in training: images, then the text."""
        from qkv.tasks.run.payloads import make_prompt

        return [
            make_prompt(model.tokenizer, model.config, images, text, f"image {number}")
            for number, (images, text) in enumerate(map(self.split_input, values), start=1)
        ]

    def generate(self, model: TextModel, values: Sequence[Any], options: GenerationOptions) -> list[Any]:
        """The generated text of each input."""
        return generate_batched(model, self.make_prompts(model, values), options)

    def make_options(self, values: Mapping[str, Any]) -> Any:
        """The options by name. Those that the task does not have itself are fields of `GenerationOptions`."""
        own = {name: value for name, value in values.items() if name in ("beam", "max_tokens")}
        others = {name: value for name, value in values.items() if name not in own}
        make_generation_options(others, sorted(own))  # an error before anything runs
        return replace(super().make_options(own), generation=others)

    def decode(self, model: TextModel, texts: Sequence[Any], options: ImageToTextOptions) -> list[GeneratedText]:
        """The text of each input."""
        max_tokens = limit_new_tokens(model.config, options.max_tokens or DEFAULT_TOKENS)
        generation = make_generation_options({"max_tokens": max_tokens, "beam": options.beam, **options.generation})
        results = self.generate(model, texts, generation)
        return [
            GeneratedText.from_generation(self.name_input(value), result)
            for value, result in zip(texts, results, strict=True)
        ]

    def name_input(self, value: Any) -> str:
        """An input as the source of a result."""
        images, text = self.split_input(value)
        names = [str(image) if isinstance(image, str) else "an image" for image in images]
        return " ".join([*names, *([text] if text else [])])

    def find_scorer(self, config: Config, records: Sequence[Record]) -> TaskScorer:
        return self.scorers[0](self)  # type: ignore[call-arg]
