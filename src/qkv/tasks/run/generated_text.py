"""The result of tasks that generate text."""

from dataclasses import dataclass, field
from typing import Annotated

from qkv.decode import GenerationResult
from qkv.decode.result import FinishReason
from qkv.tasks.results import Result, Row
from qkv.values import HIDDEN, OMIT_EMPTY


@dataclass(frozen=True)
class WordLink:
    """A word of the generated text, the source word that it is aligned with, and their characters."""

    source: Annotated[str, "The word of the source."]
    target: Annotated[str, "The word of the generated text."]
    source_start: Annotated[int, "The first character of the source word."]
    source_end: Annotated[int, "One past its last character."]
    target_start: Annotated[int, "The first character of the generated word."]
    target_end: Annotated[int, "One past its last character."]
    weight: Annotated[float, "Of all that the generated word depends on, the fraction due to this source word."]


@dataclass(frozen=True, repr=False)
class GeneratedText(Result):
    """A text that the model generated: a translation, a summary, a continuation.

    A long source is read in parts, such as sentences; then `parts` has a result for each.
    """

    source: str = field(metadata=HIDDEN)
    text: str
    score: Annotated[float, "The log-probability; beam search divides it by a length divisor. The sum over all parts."]
    finish_reason: Annotated[FinishReason, "Why the generation ended: at EOS, at `max_tokens`, or at a `stop` text."]
    ids: Annotated[list[int], "The generated tokens."]
    alternatives: Annotated[list["GeneratedText"], "Other hypotheses, the best first."] = field(
        default_factory=list, metadata=OMIT_EMPTY
    )
    parts: Annotated[list["GeneratedText"], "The results of sentences or parts."] = field(
        default_factory=list, metadata=OMIT_EMPTY
    )
    alignment: Annotated[list[WordLink], "The source word of each word, if it was requested."] = field(
        default_factory=list, metadata=OMIT_EMPTY
    )

    def summary(self) -> str:
        """The text in one line."""
        return " ".join(self.text.splitlines())

    def body(self) -> str:
        """The text."""
        return self.text

    def rows(self) -> list[Row]:
        """The other hypotheses with their scores; then those of each part, with its number."""
        rows = [(f"{other.score:.3f}", other.summary()) for other in self.alternatives]
        of_parts = [(f"part {number}", *row) for number, part in enumerate(self.parts, 1) for row in part.rows()]
        return [*rows, *of_parts]

    def tables(self) -> list[list[Row]]:
        """The other hypotheses, and the alignment."""
        return [self.rows(), [(link.target, link.source, f"{link.weight:.2f}") for link in self.alignment]]

    @staticmethod
    def from_generation(source: str, result: GenerationResult) -> "GeneratedText":
        """Convert the result of `generate`."""
        others = [GeneratedText.from_generation(source, other) for other in result.alternatives]
        return GeneratedText(source, result.text, result.score, result.finish_reason, result.ids, others)
