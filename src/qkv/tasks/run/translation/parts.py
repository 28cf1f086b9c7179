"""Translate and summarise: generate a text for a text of any length, part by part.

A translator reads sentence by sentence; line breaks and other white space between sentences stay as they are. A
summariser reads as many sentences at once as fit.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from qkv.decode import GenerationOptions
from qkv.decode.result import FinishReason
from qkv.errors import UsageError
from qkv.progress import OnProgress, repeat_progress
from qkv.tasks.run.generate import (
    GeneratedText,
    WordLink,
    generate_batched,
    limit_new_tokens,
    make_generation_options,
    prompt_ids,
)
from qkv.tasks.run.translation.options import SummariseOptions, TextToTextOptions, TranslateOptions
from qkv.tasks.run.translation.processors import Part, TextProcessor, find_processor
from qkv.tasks.text_model import TextModel
from qkv.text.sentences import CharSpan, fit_spans, split_sentences, split_to_fit

log = logging.getLogger("qkv")

EXTRA_TOKENS = 16
"""By default, a translation has at most twice the tokens of its source and this many more, rounded up."""
NO_SPACE = "。！？、，」』）"  # no space follows these


def translate(model: TextModel, texts: Sequence[str], options: TranslateOptions) -> list[GeneratedText]:
    """Translate each text, sentence by sentence, or in one piece if `options.sentences` is false.

    By default, a text that fits into the model is read in one piece if the model was not trained on single sentences. A
    sentence that is too long for the model is split after a clause or a word. The model's text processor
    (`translation/processors.py`) may copy parts of a sentence, or give them to the model in another form.

    If there are several sentences, the results in `.parts` have the other hypotheses of a beam search. The first
    translated sentence begins with the prefix, which must end at the end of a word.
    """
    prompt, sentences = options.prompt, options.sentences
    fits, processor = make_length_check(model, prompt), find_processor(model)
    reads_sentences = model.config.reads_sentences is not False

    def is_split(text: str) -> bool:
        return bool(sentences or (sentences is None and (reads_sentences or not fits(text))))

    def split(text: str) -> list[Part]:
        if not is_split(text):
            return [Part(text[start:end], (start, end)) for start, end in whole_span(text)]
        trimmed = [processor.trim(text, span) for span in split_sentences(text)]
        spans = [part for span in trimmed for part in split_to_fit(text, span, fits)]
        return [part for span in spans if (part := processor.read(text, span)) is not None]

    def generate(chosen: Sequence[Part], progress: OnProgress | None) -> None:
        read = [part for part in chosen if part.has_letters]
        generate_parts(replace(model, progress=progress), read, options)
        for part in chosen:
            part.result = part.result or GeneratedText(part.source, part.source, 0.0, "end", [])
            finish_part(last, processor, part, prompt, options.align)

    plain = replace(options, sentences=True, top=1, align=False, prefix="")
    first = replace(model, progress=repeat_progress(model.progress, 0, 0))
    processor.prepare(list(filter(is_split, texts)), lambda others: translate(first, others, plain))
    parts = [split(text) for text in texts]
    for several in parts:
        if several:
            several[0].prefix = options.prefix.rstrip()
    flat = [part for several in parts for part in several]
    last = replace(model, progress=repeat_progress(model.progress, len(flat), len(flat)))
    generate(flat, model.progress)
    processor.improve(flat, lambda again: generate(again, last.progress))
    return [join_parts(text, several, keep_gaps=True) for text, several in zip(texts, parts, strict=True)]


def finish_part(model: TextModel, processor: TextProcessor, part: Part, prompt: str, align: bool) -> None:
    """Complete the result of a part. Its word alignment is computed at most once for each text."""

    @cache
    def find_links(target: str, ids: tuple[int, ...]) -> list[WordLink]:
        from qkv.tasks.run.translation.align import align_words

        return align_words(model, part.source, target, ids, prompt) if part.has_letters else []

    assert part.result is not None
    part.result = processor.finish(part, part.result, lambda one: find_links(one.text, tuple(one.ids)), align=align)


def summarise(model: TextModel, texts: Sequence[str], options: SummariseOptions) -> list[GeneratedText]:
    """Summarise each text.

    If a text is too long for the model, `options.too_long` decides: "split" summarises part by part and joins the
    summaries; "truncate" summarises the first part only; "error" raises an error.
    """
    fits, too_long = make_length_check(model, options.prompt), options.too_long
    truncated: list[str] = []

    def split(text: str) -> list[CharSpan]:
        if fits(text):
            return whole_span(text)
        if too_long == "error":
            raise UsageError(
                f"a text of {len(text):,} characters, which begins with {text[:40]!r}, is too long for this model; "
                f'shorten it, or set too_long to "split" or "truncate"'
            )
        if too_long == "truncate":
            truncated.append(text)
        return fit_spans(text, fits)[: 1 if too_long == "truncate" else None]

    parts = [[Part(text[start:end], (start, end)) for start, end in split(text)] for text in texts]
    if truncated:
        log.warning(f"{len(truncated):,} of {len(texts):,} texts are too long: only their beginnings were summarised")
    flat = [part for several in parts for part in several]
    generate_parts(model, flat, options)
    return [join_parts(text, several, keep_gaps=False) for text, several in zip(texts, parts, strict=True)]


def make_length_check(model: TextModel, prompt: str) -> Callable[[str], bool]:
    """Make a function that returns whether the tokens of a text fit into the encoder's positions."""
    assert model.config.encoder is not None
    limit = model.config.encoder.max_positions
    return lambda part: len(prompt_ids(model.tokenizer, model.config, prompt + part)) <= limit


def whole_span(text: str) -> list[CharSpan]:
    """The span of the whole text without white space around it; an empty list if the text is only white space."""
    start = len(text) - len(text.lstrip())
    return [(start, len(text.rstrip()))] if text.strip() else []


def with_beams(values: dict[str, Any], top: int) -> dict[str, Any]:
    """The options of a search that returns `top` hypotheses."""
    if top == 1:
        return values
    if values.get("temperature"):
        raise UsageError(f"top = {top} needs a beam search, which does not sample; leave out the temperature")
    return {**values, "beam": max(top, values.get("beam", 1)), "num_return_sequences": top}


def generate_parts(model: TextModel, parts: Sequence[Part], options: TextToTextOptions) -> None:
    """Generate the result of each part. Parts with the same prefix are generated together."""
    tokenizer, config = model.tokenizer, model.config
    values = with_beams(options.generation_values(), options.top)
    for prefix in dict.fromkeys(part.prefix for part in parts):
        chosen = [part for part in parts if part.prefix == prefix]
        sources = [prompt_ids(tokenizer, config, options.prompt + part.source) for part in chosen]
        prefix_ids = tokenizer.target.encode(prefix, add_special_tokens=False)
        generation = make_generation_options({**values, "prefix": prefix_ids, "tap": model.tap})
        limits = [limit_new_tokens(config, default_max_tokens(len(source)), 1 + len(prefix_ids)) for source in sources]
        if "max_tokens" in values:
            limits = []
        results = generate_batched(model, sources, generation, limits)
        for part, result in zip(chosen, results, strict=True):
            for one in (result, *result.alternatives) if prefix_ids else ():
                one.ids = [*prefix_ids, *one.ids]
                one.text = tokenizer.target.decode(one.ids)
            part.result = GeneratedText.from_generation(part.source, result)


def default_max_tokens(source_tokens: int) -> int:
    """The default `max_tokens` for a source, a multiple of 64, so that sources of similar lengths have the same limit.

    >>> default_max_tokens(5), default_max_tokens(24), default_max_tokens(25)
    (64, 64, 128)
    """
    step = GenerationOptions.max_tokens
    return -(-(2 * source_tokens + EXTRA_TOKENS) // step) * step


def join_parts(text: str, parts: Sequence[Part], *, keep_gaps: bool) -> GeneratedText:
    """Join the results of the parts of a text, with the white space of the text between them or with spaces."""
    if not parts:
        return GeneratedText(text, text if keep_gaps else "", 0.0, "end", [])
    joined, position, links = "", 0, list[WordLink]()
    for part in parts:
        assert part.result is not None
        gap = text[position : part.span[0]] if keep_gaps else " " if joined else ""
        if not gap and joined and not joined.endswith(tuple(NO_SPACE)):
            gap = " "  # the source has no spaces between sentences, but the target language does
        joined += gap
        links += [shift_link(link, part.span[0], len(joined)) for link in part.result.alignment]
        joined += part.result.text
        position = part.span[1]
    joined += text[position:] if keep_gaps else ""
    results = [part.result for part in parts if part.result is not None]
    ids = [token for result in results for token in result.ids]
    reason: FinishReason = next((result.finish_reason for result in results if result.finish_reason != "end"), "end")
    others, score = results[0].alternatives if len(results) == 1 else [], sum(result.score for result in results)
    return GeneratedText(text, joined, score, reason, ids, others, results if len(results) > 1 else [], links)


def shift_link(link: WordLink, source: int, target: int) -> WordLink:
    """Move a link by the offsets of its part in the whole source and the whole target."""
    return replace(
        link,
        source_start=link.source_start + source,
        source_end=link.source_end + source,
        target_start=link.target_start + target,
        target_end=link.target_end + target,
    )
