"""The options of translations and summaries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from qkv.tasks.task import TaskOptions
from qkv.values import HIDDEN, Limits


@dataclass(frozen=True, kw_only=True)
class TextToTextOptions(TaskOptions):
    """Options of translations and summaries. Without a value, an option has the default of the model."""

    beam: Annotated[int, Limits(1, 1024), "The number of beams; 1 is greedy decoding."] = 1
    max_tokens: Annotated[int | None, Limits(1, 2**31), "The maximum number of new tokens of a sentence or part."] = (
        None
    )
    top: Annotated[int, Limits(1, 1024), "The number of hypotheses of a beam search to return."] = 1
    prompt: Annotated[str, Limits(0, 1000), "The text before every sentence or part."] = ""
    length_penalty: Annotated[float, Limits(-10, 10), "The exponent of the length by which a score is divided."] = 1.0
    no_repeat_ngram_size: Annotated[int, Limits(0, 1000), "No n-gram of this size may occur twice; 0: no limit."] = 0
    stop: Annotated[list[Annotated[str, Limits(1, 1000)]] | None, "Generation stops at these texts."] = None
    generation: Mapping[str, Any] = field(default_factory=dict, metadata=HIDDEN)
    """Other fields of `GenerationOptions`, by name."""

    def generation_values(self) -> dict[str, Any]:
        """The fields of `GenerationOptions` that differ from their defaults."""
        names = ("beam", "max_tokens", "length_penalty", "no_repeat_ngram_size", "stop")
        defaults = TextToTextOptions()
        given = {name: value for name in names if (value := getattr(self, name)) != getattr(defaults, name)}
        return {**given, **self.generation}


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(TextToTextOptions):
    """Options of `m.translate`."""

    align: Annotated[bool, "Align each word with a word of the source."] = False
    prefix: Annotated[str, Limits(0, 1000), "The beginning of the translation."] = ""
    sentences: Annotated[
        bool | None,
        "Generate sentence by sentence, for texts of any length. The default for a model that was trained on pairs of "
        "sentences.",
    ] = None


@dataclass(frozen=True, kw_only=True)
class SummariseOptions(TextToTextOptions):
    """Options of `m.summarise`."""

    too_long: Annotated[
        Literal["split", "truncate", "error"],
        'For a text with too many tokens: "split" summarises its parts, "truncate" its beginning; or "error".',
    ] = "split"
