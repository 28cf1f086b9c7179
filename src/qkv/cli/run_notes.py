"""What `qkv run` says after its results: outputs that were cut off, texts in several parts, unknown characters."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.api import Model


WHY_SENTENCES = "each sentence is read on its own; --no-sentences reads a text in one piece"
WHY_LONG_PARTS = "they are too long for this model; --too-long truncate reads their beginning only"


class RunNotes:
    """Counts outputs that were cut off and texts with unknown tokens, for notes after the results.

    With `why_parts`, it also counts the texts that were read in several parts, and says why.
    """

    def __init__(self, model: "Model", max_tokens: int, why_parts: str = "") -> None:
        self.model, self.max_tokens, self.why_parts = model, max_tokens, why_parts
        self.num_lines = self.num_truncated = self.num_with_unknown = self.num_in_parts = 0
        self.first_with_unknown = ""

    def add(self, lines: list[str], results: Sequence[Any]) -> None:
        """Count the lines of a chunk."""
        self.num_lines += len(lines)
        if self.model.config.family == "seq2seq":  # a decoder-only model usually stops only at max_tokens
            self.num_truncated += sum(result.finish_reason == "length" for result in results)
        self.num_in_parts += sum(bool(result.parts) for result in results) if self.why_parts else 0
        tokenizer = self.model.tokenizer
        if tokenizer is None or tokenizer.special_tokens.unk is None:
            return
        unk = tokenizer.special_tokens.unk
        with_unknown = [line for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True) if unk in ids]
        self.first_with_unknown = self.first_with_unknown or next(iter(with_unknown), "")
        self.num_with_unknown += len(with_unknown)

    def messages(self) -> list[str]:
        """The notes on all lines so far."""
        notes = []
        if self.num_truncated:
            notes.append(
                f"{self.num_truncated} of {self.num_lines} outputs were cut off"
                f"{f' after {self.max_tokens} tokens' if self.max_tokens else ''}; "
                "raise --max-tokens for longer ones"
            )
        if self.num_in_parts:
            notes.append(
                f"{self.num_in_parts} of {self.num_lines} texts were read in several parts, because {self.why_parts}"
            )
        if self.num_with_unknown:
            notes.append(
                f"{self.num_with_unknown} of {self.num_lines} texts have characters or words that are not in the "
                f"vocabulary; the first is {self.first_with_unknown[:60]!r}"
            )
        return notes
