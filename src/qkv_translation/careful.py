"""The text processor "careful": copies what a small translator cannot know, and corrects what it often gets wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from qkv.tasks.run.generate import GeneratedText
from qkv.tasks.run.translation.processors import FindLinks, Part, TextProcessor
from qkv.tasks.text_model import TextModel
from qkv.text.sentences import CharSpan
from qkv_translation.capitals import lower_capitals, write_capitals
from qkv_translation.lost_numbers import NumberPlaceholders, has_more_numbers, replace_lost_numbers
from qkv_translation.verbatim import (
    MaskedSource,
    adapt_parenthetical,
    find_parentheticals,
    inner_span,
    is_translated,
    leave_out_copied,
    make_symbol_check,
    strip_clause_mark,
)


@dataclass(kw_only=True)
class MaskedPart(Part):
    """A sentence without the texts that are copied."""

    masked: MaskedSource
    is_in_capitals: bool  # the model then reads lower case


class CarefulProcessor(TextProcessor):
    """Copies URLs, list markers and unseen symbols, lowers capitals, and translates a sentence again if it loses a
    number.

    A model that was trained only on complete sentences extends a clause to a sentence. So such a model reads a clause
    without the comma or colon at its end. Only for such a model, lost numbers are translated again.
    """

    def __init__(self, model: TextModel) -> None:
        super().__init__(model)
        self.is_unseen = make_symbol_check(model.tokenizer)
        self.translations: dict[str, str] = {}  # text in brackets → translation

    def prepare(self, texts: Sequence[str], translate: Callable[[list[str]], list[GeneratedText]]) -> None:
        """Translate the texts in brackets."""
        found = [(inner, text) for text in texts for _, inner in find_parentheticals(text, self.is_unseen)]
        sources = [inner for inner, text in found if is_translated(inner, text)]
        results = translate(sources) if sources else []
        pairs = zip(sources, results, strict=True)
        self.translations = {inner: adapt_parenthetical(inner, result.text) for inner, result in pairs}

    def trim(self, text: str, span: CharSpan) -> CharSpan:
        """The sentence without a list marker, and without quotation marks around it."""
        span = inner_span(text, span)
        return strip_clause_mark(text, span) if self.model.config.reads_sentences else span

    def read(self, text: str, span: CharSpan) -> Part | None:
        """The sentence without the copied texts."""
        part = self.read_sentence(text[slice(*span)], span)
        return part if part.has_letters or find_parentheticals(part.masked.sentence, self.is_unseen) else None

    def read_sentence(self, sentence: str, span: CharSpan) -> MaskedPart:
        """A sentence without the copied texts, in lower case if it is in capitals."""
        masked = leave_out_copied(sentence, self.is_unseen, self.translations)
        source = lower_capitals(masked.text, self.model.tokenizer)
        return MaskedPart(source, span, masked=masked, is_in_capitals=source != masked.text)

    def finish(self, part: Part, result: GeneratedText, find_links: FindLinks, *, align: bool) -> GeneratedText:
        """The result with the copied texts, in capitals if the source is in capitals."""
        if not isinstance(part, MaskedPart):
            return super().finish(part, result, find_links, align=align)
        if part.is_in_capitals:
            result = write_capitals(result, part.prefix)
        result = super().finish(part, result, find_links, align=align)
        others = [part.masked.insert_copies(other, find_links) for other in result.alternatives]
        return replace(part.masked.insert_copies(result, find_links), alternatives=others)

    def improve(self, parts: Sequence[Part], generate: Callable[[Sequence[Part]], None]) -> None:
        """Translate a sentence again if its translation has lost a number."""
        again = list[tuple[Part, NumberPlaceholders, Part]]()
        for part in parts if self.model.config.reads_sentences else []:
            assert part.result is not None
            if isinstance(part, MaskedPart):
                replaced = replace_lost_numbers(part.masked.sentence, part.result.text)
                if replaced is not None:
                    other = replace(self.read_sentence(replaced.text, part.span), prefix=part.prefix)
                    again.append((part, replaced, other))
        generate([part for _, _, part in again])
        for first, replaced, second in again:
            assert first.result is not None
            assert second.result is not None
            restored = replaced.restore_numbers(second.result)
            if restored and has_more_numbers(replaced.sentence, restored.text, first.result.text):
                first.result = restored
