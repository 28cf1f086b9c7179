"""Text processors: they change what a translator reads, and what it has written.

The `text_processor` of a model's config names one of `TEXT_PROCESSORS`. A model without a processor reads every
sentence unchanged. To add a processor, register a subclass of `TextProcessor`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qkv.tables import OpenTable
from qkv.tasks.run.generate import GeneratedText, WordLink
from qkv.tasks.text_model import TextModel
from qkv.text.sentences import CharSpan

FindLinks = Callable[[GeneratedText], list[WordLink]]


@dataclass
class Part:
    """A part of a source: its characters, and the text that is generated for it."""

    source: str
    span: CharSpan
    prefix: str = ""
    result: GeneratedText | None = None

    @property
    def has_letters(self) -> bool:
        """Whether the part has something to translate; a part without letters is copied."""
        return any(map(str.isalpha, self.source))


class TextProcessor:
    """Changes nothing. Subclasses override the methods that they need."""

    def __init__(self, model: TextModel) -> None:
        self.model = model

    def prepare(self, texts: Sequence[str], translate: Callable[[list[str]], list[GeneratedText]]) -> None:
        """Called first, with all texts that are read sentence by sentence. `translate` can translate any texts for
        comparison.
        """

    def trim(self, text: str, span: CharSpan) -> CharSpan:
        """The part of a sentence that the model reads."""
        return span

    def read(self, text: str, span: CharSpan) -> Part | None:
        """The part that the model reads for a sentence; None if the sentence is copied."""
        part = Part(text[slice(*span)], span)
        return part if part.has_letters else None

    def finish(self, part: Part, result: GeneratedText, find_links: FindLinks, *, align: bool) -> GeneratedText:
        """The final result of a part, given the model's result, with an alignment if it is requested."""
        return replace(result, alignment=find_links(result)) if align else result

    def improve(self, parts: Sequence[Part], generate: Callable[[Sequence[Part]], None]) -> None:
        """Called when all parts have results, to replace some of them. `generate` generates results again."""


TEXT_PROCESSORS = OpenTable[type[TextProcessor]](
    "text processor", lazy={"careful": "qkv_translation.careful:CarefulProcessor"}
)


def find_processor(model: TextModel) -> TextProcessor:
    """The processor that a model's config names."""
    name = model.config.text_processor
    return TextProcessor(model) if name is None else TEXT_PROCESSORS.find(name, "config.json: text_processor")(model)
